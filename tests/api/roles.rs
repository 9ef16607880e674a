//! Every route × every role, and every route of a read-only server.

use redeliver::api::{self, Route};
use redeliver::store::Store;
use redeliver::store::access::{AccessStore, AuditFilter, Role};
use reqwest::{Method, StatusCode};

use crate::desk::Desk;

/// The route's path with something in the place of each parameter.
pub fn path_of(route: &Route) -> String {
    let mut path = String::new();
    let mut rest = route.path;
    while let Some((before, after)) = rest.split_once('{') {
        let (name, behind) = after.split_once('}').expect("parameters are closed");
        let value = match name {
            "generation" | "position" => "0",
            "number" | "job" => "1",
            _ => "t1",
        };
        path.push_str(before);
        path.push_str(value);
        rest = behind;
    }
    path + rest
}

async fn ask(desk: &Desk, route: &Route, role: Option<Role>) -> StatusCode {
    let path = path_of(route);
    let request = match role {
        Some(role) => desk.by(role, route.method.clone(), &path),
        None => desk.request(route.method.clone(), &path),
    };
    let request = if route.method == Method::POST {
        request.header("content-type", "application/json").body(r#"{"no_such_field": 1}"#)
    } else {
        request
    };
    request.send().await.unwrap().status()
}

#[tokio::test]
async fn every_route_answers_every_role_as_the_table_says() {
    let desk = Desk::new().await;
    desk.submit("t1", "order.ship", "{}").await;
    for route in api::table() {
        let unknown = ask(&desk, &route, None).await;
        assert_eq!(unknown == StatusCode::UNAUTHORIZED, route.role.is_some(), "{route:?} without a token: {unknown}");
        for role in Role::ALL {
            // The token that revokes itself would change what comes after.
            if route.id == "revokeToken" && role == Role::Admin {
                continue;
            }
            let status = ask(&desk, &route, Some(role)).await;
            let may = route.role.is_none_or(|least| role >= least);
            assert_eq!(status == StatusCode::FORBIDDEN, !may, "{route:?} by {role}: {status}");
            assert_ne!(status, StatusCode::UNAUTHORIZED, "{route:?} by {role}");
            assert!(status != StatusCode::NOT_FOUND || route.path.contains('{'), "{route:?} by {role}: {status}");
        }
    }
}

#[tokio::test]
async fn a_viewer_changes_nothing_by_any_route() {
    let desk = Desk::new().await;
    desk.submit("t1", "order.ship", "{}").await;
    let before = desk.store.get(&["t1".into()]).await.unwrap();
    for route in api::table().into_iter().filter(|route| route.changes) {
        assert!(route.role >= Some(Role::Operator), "{route:?} changes something and is open to viewers");
        for body in ["", "{}", r#"{"reason": "x"}"#, r#"{"reason": "x", "all": true}"#] {
            let request = desk.by(Role::Viewer, route.method.clone(), &path_of(&route));
            let request = request.header("content-type", "application/json").body(body);
            assert_eq!(request.send().await.unwrap().status(), StatusCode::FORBIDDEN, "{route:?} {body}");
        }
    }
    assert_eq!(desk.store.get(&["t1".into()]).await.unwrap(), before);
    assert!(desk.store.audit(&AuditFilter::default(), None, 10).await.unwrap().items.is_empty());
}

#[tokio::test]
async fn a_read_only_server_refuses_every_change_by_every_role() {
    let desk = Desk::with(|config| config.console.read_only = true).await;
    for route in api::table() {
        for role in Role::ALL {
            let status = ask(&desk, &route, Some(role)).await;
            let may = !route.changes && route.role.is_none_or(|least| role >= least);
            assert_eq!(status == StatusCode::FORBIDDEN, !may, "{route:?} by {role}: {status}");
        }
    }
    assert!(desk.store.tokens().await.unwrap().iter().all(|token| token.revoked_at.is_none()));
}
