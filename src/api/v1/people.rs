//! Who may what, and who did what.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::input::{self, Body, Id, Paged};
use super::{Api, Principal, Problem, Route};
use crate::desk::people::{AuditDocument, NewTokenDocument, TokenDocument, check_token_name, make_token};
use crate::desk::{List, filter};
use crate::store::access::{AuditFilter, Role};

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::get(("/v1/me", "getMe", "Who asks, and what they may"), Role::Viewer, me).answers::<Me>(200, "You"),
        Route::get(("/v1/audit", "listAudit", "Every change, newest first"), Role::Admin, audit)
            .query::<AuditQuery>()
            .paged()
            .answers::<List<AuditDocument>>(200, "A page"),
        Route::get(("/v1/tokens", "listTokens", "Tokens, without their secrets"), Role::Admin, tokens).answers::<List<
            TokenDocument,
        >>(
            200,
            "Revoked ones too",
        ),
        Route::post(("/v1/tokens", "createToken", "Make a token; its secret is shown this once"), Role::Admin, create)
            .body::<TokenBody>()
            .answers::<NewTokenDocument>(201, "With its secret")
            .problems(&[409]),
        Route::delete(
            ("/v1/tokens/{name}", "revokeToken", "Revoke a token, and end its sessions"),
            Role::Admin,
            revoke,
        )
        .answers::<TokenDocument>(200, "It is revoked")
        .problems(&[409]),
    ]
}

/// Whoever asks.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
struct Me {
    /// The name in the audit.
    who: String,
    /// What they may.
    role: Role,
    /// Whether this server refuses every change.
    read_only: bool,
}

async fn me(State(app): Api, principal: Principal) -> Json<Me> {
    Json(Me { who: principal.who, role: principal.role, read_only: app.console.read_only })
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct AuditQuery {
    /// By this one.
    who: Option<String>,
    /// This action.
    action: Option<String>,
    /// With exactly this target.
    target: Option<String>,
}

async fn audit(
    State(app): Api,
    Paged { query, limit, cursor }: Paged<AuditQuery>,
) -> Result<Json<List<AuditDocument>>, Problem> {
    let filter = AuditFilter { who: query.who, action: query.action, target: query.target };
    let page = app.store.audit(&filter, cursor.as_deref(), limit).await?;
    Ok(Json(List { items: page.items.into_iter().map(AuditDocument::of).collect(), next: page.next }))
}

async fn tokens(State(app): Api) -> Result<Json<List<TokenDocument>>, Problem> {
    Ok(Json(List::whole(app.store.tokens().await?.iter().map(TokenDocument::of).collect())))
}

/// A token to make.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct TokenBody {
    /// Who it is, in the audit; never given twice.
    #[schemars(length(min = 1, max = 100))]
    name: String,
    /// What it may.
    role: Role,
    /// When it ends: in `90d`, or RFC 3339; default never.
    expires: Option<String>,
    /// Why, for those who come after.
    reason: Option<String>,
}

async fn create(
    State(app): Api,
    principal: Principal,
    Body(body): Body<TokenBody>,
) -> Result<(StatusCode, Json<NewTokenDocument>), Problem> {
    let reason = input::reason(body.reason)?;
    check_token_name(&body.name).map_err(|message| Problem::invalid("name", message))?;
    let now = app.store.now();
    let expires_at = match &body.expires {
        None => None,
        Some(text) => {
            let moment = filter::moment(text).map_err(|message| Problem::invalid("expires", message))?;
            Some(moment.resolve_ahead(now)).filter(|at| *at > now)
        }
    };
    if body.expires.is_some() && expires_at.is_none() {
        return Err(Problem::invalid("expires", "expected a time ahead"));
    }
    let made = make_token(&*app.store, &body.name, body.role, expires_at, &principal.who).await?;
    let made = made.ok_or_else(|| {
        Problem::conflict(format!("a token named {:?} is there, or was; names are given once", body.name), "taken")
    })?;
    let mut entry = principal.entry("token.create", format!("{} ({})", body.name, body.role));
    entry.reason = reason;
    app.told(entry).await?;
    Ok((StatusCode::CREATED, Json(made)))
}

async fn revoke(State(app): Api, principal: Principal, Id(name): Id) -> Result<Json<TokenDocument>, Problem> {
    let revoked = app.store.revoke_token(&name).await?;
    let token = app.store.tokens().await?.into_iter().find(|token| token.name == name);
    let token = token.ok_or_else(|| Problem::not_found(format!("there is no token named {name:?}")))?;
    if !revoked {
        return Err(Problem::conflict(format!("the token {name:?} was revoked before"), "revoked"));
    }
    app.told(principal.entry("token.revoke", &name)).await?;
    Ok(Json(TokenDocument::of(&token)))
}
