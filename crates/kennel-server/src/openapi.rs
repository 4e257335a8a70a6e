//! The OpenAPI 3.1 document, from the table of routes and the schemas of the types.

use crate::routes::{Access, Content, Operation, Query, Routes, schema};
use kennel_api::ErrorBody;
use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

/// The failures that are not the client's mistake. Status 500 is none of them: it would be a defect.
const FAILURES: &[(&str, &str)] = &[
    ("501", "The provider cannot do this."),
    ("502", "The sandbox, or a program in it, failed."),
    ("503", "A provider or the store is not available, or a limit is reached."),
    ("504", "It took too long."),
    ("507", "Memory or disk space ran out."),
];

/// Where the schemas of the types are in the document.
const SCHEMAS: &str = "/components/schemas";

/// Returns the OpenAPI document of the server.
pub fn document() -> Value {
    of(&Routes::described())
}

fn of(operations: &[Operation]) -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| settings.definitions_path = SCHEMAS.into());
    let mut generator = settings.into_generator();
    let error = schema::<ErrorBody>(&mut generator);
    let mut paths: Map<String, Value> = Map::new();
    for operation in operations {
        let described = describe(operation, &mut generator, &error.clone().to_value());
        let path = paths.entry(openapi_path(operation.path)).or_insert_with(|| json!({}));
        path[operation.method.as_str().to_ascii_lowercase()] = described;
    }
    let schemas: Map<String, Value> = generator.take_definitions(true).into_iter().collect();
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Kennel",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Sandboxes for coding agents. See docs/server.md.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"bearer": []}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    })
}

/// A wildcard of the router is a plain parameter in the document.
fn openapi_path(path: &str) -> String {
    path.replace("{*", "{")
}

fn describe(operation: &Operation, generator: &mut SchemaGenerator, error: &Value) -> Value {
    let mut described = json!({
        "operationId": operation.id,
        "summary": operation.summary,
        "tags": [tag(operation.path)],
        "parameters": parameters(operation, generator),
        "responses": responses(operation, generator, error),
    });
    match operation.access {
        Access::Public => described["security"] = json!([]),
        Access::Scope(scope) => {
            described["x-scope"] = json!(scope.name());
            described["description"] = json!(format!("Needs the scope `{scope}`."));
        }
    }
    if let Some(content) = content(operation.request, generator) {
        let required = !matches!(operation.request, Content::OptionalJson(_) | Content::Bytes | Content::Inside);
        described["requestBody"] = json!({"required": required, "content": content});
    }
    described
}

/// The resource of a path: the part after `/v1`.
fn tag(path: &str) -> &str {
    let rest = path.strip_prefix("/v1/").unwrap_or("system");
    let mut parts = rest.split('/').filter(|part| !part.starts_with('{'));
    match (parts.next(), parts.next()) {
        (Some("sandboxes"), Some(part @ ("exec" | "files" | "processes" | "ports"))) => part,
        (Some(first), _) => first,
        (None, _) => "system",
    }
}

fn parameters(operation: &Operation, generator: &mut SchemaGenerator) -> Vec<Value> {
    let mut parameters: Vec<Value> = Vec::new();
    for name in operation.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}')) {
        let (pattern, description) = match name {
            "sandbox" => (
                json!({"type": "string", "pattern": "^[a-z0-9][a-z0-9-]{0,62}$"}),
                "The id or the name of the sandbox.",
            ),
            "port" => (json!({"type": "integer", "minimum": 1, "maximum": 65535}), "The port inside."),
            "process" => (json!({"type": "integer", "minimum": 0}), "The id of the command."),
            _ => (json!({"type": "string", "minLength": 1}), "The id or the name."),
        };
        let name = name.trim_start_matches('*');
        parameters
            .push(json!({"name": name, "in": "path", "required": true, "schema": pattern, "description": description}));
    }
    if let Query::Of(fields) = operation.query {
        let fields = fields(generator).to_value();
        let required: Vec<&str> =
            fields["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        for (name, schema) in fields["properties"].as_object().into_iter().flatten() {
            let mut schema = without_null(schema);
            let description = schema.as_object_mut().and_then(|schema| schema.remove("description"));
            parameters.push(json!({
                "name": name, "in": "query", "required": required.contains(&name.as_str()),
                "schema": schema, "description": description,
            }));
        }
    }
    if operation.creates {
        parameters.push(json!({
            "name": "Idempotency-Key", "in": "header", "required": false,
            "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
            "description": "A key that the client chooses. The same request with the same key has its effect once; the key is kept for 24 hours.",
        }));
    }
    parameters
}

/// Removes `null` from the values of a parameter: a query leaves out what it does not set.
fn without_null(schema: &Value) -> Value {
    let mut schema = schema.clone();
    if let Some(types) = schema["type"].as_array() {
        let types: Vec<Value> = types.iter().filter(|name| *name != "null").cloned().collect();
        schema["type"] = if let [one] = types.as_slice() { one.clone() } else { types.into() };
    }
    if let Some(options) = schema.get("anyOf").and_then(Value::as_array) {
        let rest: Vec<&Value> = options.iter().filter(|option| option["type"] != "null").collect();
        if let [one] = rest.as_slice() {
            let mut one = (*one).clone();
            one["description"] = schema["description"].clone();
            return one;
        }
    }
    schema
}

fn responses(operation: &Operation, generator: &mut SchemaGenerator, error: &Value) -> Value {
    let (status, body) = operation.response;
    let failure =
        |description: &str| json!({"description": description, "content": {"application/json": {"schema": error}}});
    let mut success = json!({"description": "Success."});
    if let Some(content) = content(body, generator) {
        success["content"] = content;
    }
    if operation.creates && operation.path == "/v1/sandboxes" {
        success["links"] = links();
    }
    let mut responses = json!({status.to_string(): success, "4XX": failure("The request was refused.")});
    for (status, description) in FAILURES {
        responses[*status] = failure(description);
    }
    if matches!(body, Content::Inside) {
        // The program inside chooses the status and the body.
        responses = json!({"default": success});
    }
    if operation.access != Access::Public {
        responses["401"] = failure("There is no valid token.");
        responses["403"] = failure("The token does not allow this.");
    }
    responses
}

/// What can be done with a new sandbox: the operations with its id in their path.
fn links() -> Value {
    let operations = Routes::described();
    let about = operations.iter().filter(|operation| {
        operation.path.starts_with("/v1/sandboxes/{sandbox}") && !matches!(operation.response.1, Content::Inside)
    });
    let link = |operation: &Operation| {
        let parameters = json!({"sandbox": "$response.body#/id"});
        (operation.id.to_owned(), json!({"operationId": operation.id, "parameters": parameters}))
    };
    Value::Object(about.map(link).collect())
}

fn content(content: Content, generator: &mut SchemaGenerator) -> Option<Value> {
    Some(match content {
        Content::Empty | Content::WebSocket(_) => return None,
        Content::Json(schema) | Content::OptionalJson(schema) => {
            json!({"application/json": {"schema": schema(generator)}})
        }
        Content::Bytes => json!({"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}),
        Content::Text => json!({"text/plain": {"schema": {"type": "string"}}}),
        Content::Metrics => json!({"application/openmetrics-text": {"schema": {"type": "string"}}}),
        Content::Html => json!({"text/html": {"schema": {"type": "string"}}}),
        Content::Lines(schema) => json!({"application/x-ndjson": {"schema": schema(generator)}}),
        Content::Events(schema) => json!({"text/event-stream": {"schema": schema(generator)}}),
        Content::Inside => json!({"*/*": {"schema": {}}}),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::Method;
    use std::collections::HashSet;

    #[test]
    fn every_operation_has_its_own_id_and_place() {
        let operations = Routes::described();
        let ids: HashSet<&str> = operations.iter().map(|operation| operation.id).collect();
        assert_eq!(ids.len(), operations.len(), "an id is used twice");
        for operation in &operations {
            assert!(operation.summary.ends_with('.'), "{}", operation.id);
            let is_get = operation.method == Method::GET;
            assert!(!(operation.creates && is_get), "{}", operation.id);
        }
    }
}
