//! The description is of this API.

use redeliver::api;
use reqwest::Method;

use crate::desk::{Desk, json};

#[tokio::test]
async fn the_description_is_served_to_everybody_and_has_every_route() {
    let desk = Desk::new().await;
    let response = desk.request(Method::GET, "/v1/openapi.json").send().await.unwrap();
    assert_eq!(response.status(), 200);
    let document = json(response).await;
    assert_eq!(document["openapi"], "3.1.0");
    let mut names = std::collections::BTreeSet::new();
    for route in api::table() {
        let operation = &document["paths"][route.path][route.method.as_str().to_ascii_lowercase()];
        assert_eq!(operation["operationId"], route.id, "{route:?}");
        assert!(names.insert(route.id), "{route:?}: the name is there twice");
        assert_eq!(operation["security"].is_array(), route.role.is_none(), "{route:?}");
        assert!(operation["responses"]["200"].is_object() || operation["responses"]["201"].is_object(), "{route:?}");
    }
    // Every reference leads somewhere.
    let text = document.to_string();
    for reference in text.split("\"$ref\":\"#/components/schemas/").skip(1) {
        let name = reference.split('"').next().unwrap();
        assert!(document["components"]["schemas"][name].is_object(), "{name} is not there");
    }
}
