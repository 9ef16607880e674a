//! The one table of the API: from it come the router, what each route needs, and the description.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::handler::Handler;
use axum::http::Method;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, MethodRouter, on};
use schemars::{JsonSchema, Schema, SchemaGenerator};

use super::{App, Principal, Problem};
use crate::store::access::Role;

/// Makes the schema of a type.
pub(super) type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

/// What a route answers with.
#[derive(Clone, Copy)]
pub(super) enum Answer {
    /// A document.
    Json(SchemaOf),
    /// Bytes of one of these media types.
    Bytes(&'static [&'static str]),
}

/// One route.
pub struct Route {
    /// The method.
    pub method: Method,
    /// Its path; `{name}` is a parameter.
    pub path: &'static str,
    /// What the description calls it.
    pub id: &'static str,
    /// What it does.
    pub about: &'static str,
    /// The least role; `None`: everybody.
    pub role: Option<Role>,
    /// Whether it changes something: refused by a server that is read-only, told to the audit otherwise.
    pub changes: bool,
    pub(super) query: Vec<SchemaOf>,
    pub(super) paged: bool,
    pub(super) headers: Vec<(&'static str, &'static str)>,
    pub(super) body: Option<(SchemaOf, bool)>,
    pub(super) answers: Vec<(u16, &'static str, Answer)>,
    pub(super) problems: Vec<u16>,
    handler: MethodRouter<Arc<App>>,
}

impl std::fmt::Debug for Route {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.method, self.path)
    }
}

impl Route {
    fn new<H: Handler<T, Arc<App>>, T: 'static>(
        (method, filter): (Method, MethodFilter),
        (path, id, about): (&'static str, &'static str, &'static str),
        role: Option<Role>,
        handler: H,
    ) -> Route {
        Route {
            changes: method != Method::GET,
            method,
            path,
            id,
            about,
            role,
            query: Vec::new(),
            paged: false,
            headers: Vec::new(),
            body: None,
            answers: Vec::new(),
            problems: Vec::new(),
            handler: on(filter, handler),
        }
    }

    /// A route that looks.
    pub(super) fn get<H: Handler<T, Arc<App>>, T: 'static>(
        names: (&'static str, &'static str, &'static str),
        role: Role,
        handler: H,
    ) -> Route {
        Route::new((Method::GET, MethodFilter::GET), names, Some(role), handler)
    }

    /// A route that changes something.
    pub(super) fn post<H: Handler<T, Arc<App>>, T: 'static>(
        names: (&'static str, &'static str, &'static str),
        role: Role,
        handler: H,
    ) -> Route {
        Route::new((Method::POST, MethodFilter::POST), names, Some(role), handler)
    }

    /// A route that takes something away.
    pub(super) fn delete<H: Handler<T, Arc<App>>, T: 'static>(
        names: (&'static str, &'static str, &'static str),
        role: Role,
        handler: H,
    ) -> Route {
        Route::new((Method::DELETE, MethodFilter::DELETE), names, Some(role), handler)
    }

    /// It changes nothing, although it is asked with a body.
    pub(super) fn looks(mut self) -> Route {
        self.changes = false;
        self
    }

    /// Everybody may.
    pub(super) fn open(mut self) -> Route {
        self.role = None;
        self
    }

    pub(super) fn query<Q: JsonSchema>(mut self) -> Route {
        self.query.push(inline::<Q>);
        self
    }

    pub(super) fn paged(mut self) -> Route {
        self.paged = true;
        self
    }

    pub(super) fn header(mut self, name: &'static str, about: &'static str) -> Route {
        self.headers.push((name, about));
        self
    }

    pub(super) fn body<B: JsonSchema>(mut self) -> Route {
        self.body = Some((SchemaGenerator::subschema_for::<B>, true));
        self
    }

    pub(super) fn maybe_body<B: JsonSchema>(mut self) -> Route {
        self.body = Some((SchemaGenerator::subschema_for::<B>, false));
        self
    }

    pub(super) fn answers<A: JsonSchema>(mut self, status: u16, about: &'static str) -> Route {
        self.answers.push((status, about, Answer::Json(SchemaGenerator::subschema_for::<A>)));
        self
    }

    pub(super) fn bytes(mut self, status: u16, about: &'static str, media: &'static [&'static str]) -> Route {
        self.answers.push((status, about, Answer::Bytes(media)));
        self
    }

    pub(super) fn problems(mut self, statuses: &[u16]) -> Route {
        self.problems.extend(statuses);
        self
    }

    /// Every status that is a problem and that it may answer with.
    pub(super) fn all_problems(&self) -> Vec<u16> {
        let mut statuses = vec![400, 401, 403, 421, 500, 503];
        if self.path.contains('{') {
            statuses.push(404);
        }
        if self.body.is_some() {
            statuses.extend([413, 415, 422]);
        }
        statuses.extend(&self.problems);
        statuses.sort_unstable();
        statuses.dedup();
        statuses
    }
}

fn inline<Q: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    Q::json_schema(generator)
}

/// Every route of the API, behind what each needs.
pub(super) fn router(app: &Arc<App>, table: Vec<Route>) -> Router<Arc<App>> {
    table.into_iter().fold(Router::new(), |router, route| {
        let needs = Needs { role: route.role, changes: route.changes, read_only: app.console.read_only };
        router.route(route.path, route.handler.route_layer(from_fn_with_state(needs, authorise)))
    })
}

#[derive(Clone, Copy)]
struct Needs {
    role: Option<Role>,
    changes: bool,
    read_only: bool,
}

async fn authorise(State(needs): State<Needs>, request: Request, next: Next) -> Response {
    if let Some(role) = needs.role {
        let Some(principal) = request.extensions().get::<Principal>() else {
            return Problem::unauthorized("sign in, or show a token as `Authorization: Bearer …`").into_response();
        };
        if let Err(problem) = principal.need(role) {
            return problem.into_response();
        }
    }
    if needs.changes && needs.read_only {
        return Problem::forbidden("this server is read-only").into_response();
    }
    next.run(request).await
}
