//! What others wrote, as files: payloads, stacks and attachments. Nothing of it may run in a browser.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use super::looks::{find, payload};
use super::visit::Visit;
use crate::api::{App, Principal, Problem};
use crate::console::pages::task::SHOWN_IN_PLACE;
use crate::task::AttachmentBody;

/// Whatever the bytes are, they get no script, no form, no frame, no origin.
const SANDBOX: &str = "default-src 'none'; sandbox";

pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/tasks/{id}/payload", get(task_payload))
        .route("/tasks/{id}/raw", get(raw))
        .route("/tasks/{id}/result", get(result))
        .route("/tasks/{id}/attempts/{fence}/stack", get(stack))
        .route("/tasks/{id}/attempts/{fence}/attachments/{position}", get(attachment))
}

/// Bytes that a browser saves, never shows.
fn download(name: &str, bytes: Vec<u8>) -> Response {
    let headers = [
        (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
        (header::CONTENT_DISPOSITION, disposition("attachment", name)),
        (header::CONTENT_SECURITY_POLICY, SANDBOX.to_owned()),
    ];
    (headers, bytes).into_response()
}

/// A header with a file name in it, for which others chose the characters (RFC 6266, RFC 8187).
fn disposition(how: &str, name: &str) -> String {
    let plain: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' }).take(100).collect();
    let plain = plain.trim_start_matches('.');
    let short: String = name.chars().take(100).collect();
    format!("{how}; filename=\"{plain}\"; filename*=UTF-8''{}", crate::console::link::encode(&short))
}

async fn task_payload(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    principal: Principal,
    visit: Visit,
) -> Result<Response, Problem> {
    let task = find(&app, &id, visit.ui.lang).await?;
    Ok(download(&format!("{id}.payload.json"), payload(&app, &task, &principal).0.into_bytes()))
}

async fn raw(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    principal: Principal,
    visit: Visit,
) -> Result<Response, Problem> {
    let task = find(&app, &id, visit.ui.lang).await?;
    if app.mask(&principal).hides_bytes(&task) {
        return Err(Problem::forbidden("what arrived may hold masked fields; this needs the role editor"));
    }
    let raw = task.spec.raw.as_ref().ok_or_else(|| Problem::not_found("this task was not refused"))?;
    Ok(download(&format!("{id}.raw"), raw.bytes.clone()))
}

async fn result(State(app): State<Arc<App>>, Path(id): Path<String>) -> Result<Response, Problem> {
    let result = app.store.result(&id).await?.ok_or_else(|| Problem::not_found("this task has no result"))?;
    Ok(download(&format!("{id}.result"), result.body))
}

async fn stack(State(app): State<Arc<App>>, Path((id, fence)): Path<(String, i64)>) -> Result<Response, Problem> {
    let attempts = app.store.attempt_heads(&id).await?;
    let failure = attempts.into_iter().find(|head| head.attempt.fence == fence).and_then(|head| head.attempt.failure);
    let stack =
        failure.and_then(|failure| failure.stack).ok_or_else(|| Problem::not_found("this attempt has no stack"))?;
    Ok(download(&format!("{id}.{fence}.stack.txt"), stack.into_bytes()))
}

/// A picture is shown; everything else is saved.
async fn attachment(
    State(app): State<Arc<App>>,
    Path((id, fence, position)): Path<(String, i64, usize)>,
) -> Result<Response, Problem> {
    let attachment = app.store.attachment(&id, fence, position).await?;
    let attachment =
        attachment.ok_or_else(|| Problem::not_found("there is no such attachment; it may have been pruned"))?;
    let AttachmentBody::Bytes(bytes) = &attachment.body else {
        return Err(Problem::not_found("the bytes of this attachment are not kept here"));
    };
    let bytes = bytes.to_vec();
    if !SHOWN_IN_PLACE.contains(&attachment.media_type.as_str()) {
        return Ok(download(&attachment.name, bytes));
    }
    let headers = [
        (header::CONTENT_TYPE, attachment.media_type.clone()),
        (header::CONTENT_DISPOSITION, disposition("inline", &attachment.name)),
        (header::CONTENT_SECURITY_POLICY, SANDBOX.to_owned()),
    ];
    Ok((headers, bytes).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_name_cannot_leave_its_header() {
        let header = disposition("attachment", "a\"; x=\r\nSet-Cookie: y/../..\\\u{202e}gnp.html");
        assert!(!header.contains(['\r', '\n', '/', '\\']) && header.is_ascii(), "{header}");
        assert_eq!(header.matches('"').count(), 2, "{header}");
        assert!(disposition("inline", "截图.png").ends_with("filename*=UTF-8''%E6%88%AA%E5%9B%BE.png"));
    }
}
