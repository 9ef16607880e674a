//! The description of the API (OpenAPI 3.1), made from the table and the types that handlers use.

use schemars::generate::SchemaSettings;
use schemars::{Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

use super::ProblemBody;
use super::input::{ITEMS, MOST_ITEMS};
use super::table::{Answer, Route};

/// Makes the description.
pub fn document(table: &[Route]) -> Value {
    // What is read and what is written differ: a field with a default may be left out of a request, never out of an answer.
    let mut requests = generator(SchemaSettings::draft2020_12().for_deserialize());
    let mut answers = generator(SchemaSettings::draft2020_12().for_serialize());
    let problem = answers.subschema_for::<ProblemBody>();
    let mut paths: Map<String, Value> = Map::new();
    for route in table {
        let operation = operation(route, &mut requests, &mut answers, &problem);
        let path = paths.entry(route.path).or_insert_with(|| json!({}));
        path[route.method.as_str().to_ascii_lowercase()] = operation;
    }
    let mut schemas = requests.take_definitions(true);
    schemas.append(&mut answers.take_definitions(true));
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "redeliver",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Tasks that fail and are tried again. Every error is a problem (RFC 9457) that names the field; lists are \
                {items, next} and go on with `cursor`; times are RFC 3339 in UTC, lengths of time milliseconds.",
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "servers": [{ "url": "/" }],
        "security": [{ "token": [] }],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": { "token": {
                "type": "http", "scheme": "bearer",
                "description": "From `redeliver token create`. Roles: viewer, operator, editor, admin; each may do what those before it may.",
            } },
        },
    })
}

fn generator(settings: SchemaSettings) -> SchemaGenerator {
    settings
        .with(|settings| {
            settings.definitions_path = "/components/schemas".into();
            settings.meta_schema = None;
        })
        .into_generator()
}

fn operation(route: &Route, requests: &mut SchemaGenerator, answers: &mut SchemaGenerator, problem: &Schema) -> Value {
    let mut parameters = path_parameters(route.path);
    parameters.extend(route.query.iter().flat_map(|query| query_parameters(query(requests))));
    if route.paged {
        parameters.push(json!({
            "name": "limit", "in": "query", "description": "At most so many.",
            "schema": { "type": "integer", "minimum": 1, "maximum": MOST_ITEMS, "default": ITEMS },
        }));
        parameters.push(json!({
            "name": "cursor", "in": "query", "description": "The `next` of the page before.",
            "schema": { "type": "string", "pattern": "^-?[0-9]{1,18}$" },
        }));
    }
    for (name, about) in &route.headers {
        let schema = json!({ "type": "string", "minLength": 1, "maxLength": 200, "pattern": "^[!-~]+$" });
        parameters.push(json!({ "name": name, "in": "header", "description": about, "schema": schema }));
    }
    let mut responses = Map::new();
    for (status, about, answer) in &route.answers {
        let content: Value = match answer {
            Answer::Json(schema) => json!({ "application/json": { "schema": schema(answers) } }),
            Answer::Bytes(media) => {
                media.iter().map(|media| ((*media).to_owned(), json!({}))).collect::<Map<_, _>>().into()
            }
        };
        responses.insert(status.to_string(), json!({ "description": about, "content": content }));
    }
    for status in route.all_problems() {
        responses.insert(
            status.to_string(),
            json!({ "description": meaning(status), "content": { "application/problem+json": { "schema": problem } } }),
        );
    }
    let mut operation = json!({
        "operationId": route.id,
        "summary": route.about,
        "description": needs(route),
        "parameters": parameters,
        "responses": responses,
    });
    if let Some((schema, required)) = route.body {
        operation["requestBody"] =
            json!({ "required": required, "content": { "application/json": { "schema": schema(requests) } } });
    }
    if route.role.is_none() {
        operation["security"] = json!([]);
    }
    operation
}

fn needs(route: &Route) -> String {
    match (route.role, route.changes) {
        (None, _) => "Needs no token.".into(),
        (Some(role), false) => format!("Needs the role {role}."),
        (Some(role), true) => format!("Needs the role {role}. Told to the audit; refused by a read-only server."),
    }
}

fn path_parameters(path: &str) -> Vec<Value> {
    let names = path.split('{').skip(1).filter_map(|rest| rest.split('}').next());
    let parameter = |name: &str| {
        let schema = match name {
            "job" => json!({ "type": "integer", "minimum": 1, "maximum": 1_000_000_000 }),
            "generation" | "number" | "position" => {
                json!({ "type": "integer", "minimum": 0, "maximum": 1_000_000_000 })
            }
            _ => json!({ "type": "string", "minLength": 1, "maxLength": 200 }),
        };
        json!({ "name": name, "in": "path", "required": true, "schema": schema })
    };
    names.map(parameter).collect()
}

/// Each property of the query's type is a parameter.
fn query_parameters(schema: Schema) -> Vec<Value> {
    let Value::Object(mut schema) = schema.to_value() else { return Vec::new() };
    let required = schema.remove("required").unwrap_or_default();
    let Some(Value::Object(properties)) = schema.remove("properties") else { return Vec::new() };
    let is_required = |name: &str| required.as_array().is_some_and(|names| names.iter().any(|known| known == name));
    properties
        .into_iter()
        .map(|(name, mut schema)| {
            let about = schema.as_object_mut().and_then(|schema| schema.remove("description"));
            not_null(&mut schema);
            json!({ "name": name, "in": "query", "required": is_required(&name), "description": about, "schema": schema })
        })
        .collect()
}

/// A query cannot say null: what may be left out is left out.
fn not_null(schema: &mut Value) {
    let Some(schema) = schema.as_object_mut() else { return };
    if let Some(Value::Array(types)) = schema.get_mut("type") {
        types.retain(|kind| kind != "null");
        if let [only] = types.as_slice() {
            let only = only.clone();
            schema.insert("type".into(), only);
        }
    }
    if schema.get("default").is_some_and(Value::is_null) {
        schema.remove("default");
    }
}

fn meaning(status: u16) -> &'static str {
    match status {
        400 => "A parameter, a header or the request itself cannot be meant.",
        401 => "Nobody knows who asks.",
        403 => "Whoever asks may not, or the server is read-only.",
        404 => "There is no such thing.",
        409 => "It is in another state; `state` says in which.",
        413 => "The body is too long.",
        415 => "The body is not JSON.",
        421 => "The name in `Host` is none of this server's.",
        422 => "A field of the body cannot be meant.",
        429 => "Too often.",
        503 => "Store or broker do not answer now.",
        _ => "A mistake of the server.",
    }
}
