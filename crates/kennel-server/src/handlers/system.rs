//! Health, the OpenAPI document, its page for people, and the caller's own token.

use crate::app::AppState;
use crate::auth::Identity;
use crate::error::Outcome;
use crate::openapi;
use crate::routes::{Access, Content, Operation, Query, Routes, schema};
use axum::extract::State;
use axum::http::{Method, header};
use axum::response::{Html, IntoResponse};
use axum::{Extension, Json};
use kennel_api::{Health, Scope, TokenView};
use serde_json::Value;
use std::fmt::Write as _;
use std::sync::OnceLock;

pub(super) fn add(routes: Routes) -> Routes {
    let public = |path, id, summary, response| Operation {
        method: Method::GET,
        path,
        id,
        access: Access::Public,
        summary,
        query: Query::None,
        request: Content::Empty,
        response: (200, response),
        creates: false,
    };
    let health = Content::Json(schema::<Health>);
    routes
        .add(public("/healthz", "getHealth", "Whether the server runs.", health), healthy)
        .add(public("/readyz", "getReadiness", "Whether the server can reach its store.", health), ready)
        .add(public("/openapi.json", "getOpenApi", "This document.", Content::Json(schema::<Value>)), async || {
            Json(document())
        })
        .add(public("/docs", "getDocs", "The operations of the API, as a page for people.", Content::Html), docs)
        .add(
            Operation {
                access: Access::Scope(Scope::Read),
                ..public("/v1/token", "getToken", "The caller's own token.", Content::Json(schema::<TokenView>))
            },
            token,
        )
}

async fn healthy() -> Json<Health> {
    Json(Health { status: "ok".into() })
}

async fn ready(State(app): State<AppState>) -> Outcome<Json<Health>> {
    app.tokens().list().await?;
    Ok(Json(Health { status: "ok".into() }))
}

async fn token(Extension(identity): Extension<Identity>) -> Json<TokenView> {
    let token = identity.token();
    Json(TokenView {
        id: token.map(|token| token.id.clone()),
        name: token.map_or_else(|| "owner".into(), |token| token.name.clone()),
        scope: identity.scope(),
        project: identity.project().map(ToOwned::to_owned),
        directories: token.map(|token| token.directories.clone()).unwrap_or_default(),
    })
}

fn document() -> &'static Value {
    static DOCUMENT: OnceLock<Value> = OnceLock::new();
    DOCUMENT.get_or_init(openapi::document)
}

/// A page that lists the operations. It loads nothing from elsewhere and runs no script.
async fn docs() -> impl IntoResponse {
    static PAGE: OnceLock<String> = OnceLock::new();
    let policy = [(header::CONTENT_SECURITY_POLICY, "default-src 'none'; style-src 'unsafe-inline'")];
    (policy, Html(PAGE.get_or_init(page).as_str()))
}

fn page() -> String {
    const HEAD: &str = "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>Kennel API</title><style>\
        body{font:16px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em}\
        code,pre{font:14px/1.5 ui-monospace,monospace}pre{background:#f4f4f4;padding:1em;overflow:auto}\
        table{border-collapse:collapse}td,th{text-align:left;padding:.2em .8em .2em 0;vertical-align:top}\
        h2{margin-top:2em;border-bottom:1px solid #ccc}</style><h1>Kennel API</h1>\
        <p>The machine-readable form is <a href=\"/openapi.json\">/openapi.json</a>.</p>";
    let mut page = HEAD.to_owned();
    for (path, methods) in document()["paths"].as_object().into_iter().flatten() {
        for (method, operation) in methods.as_object().into_iter().flatten() {
            let text = |value: &Value| escape(value.as_str().unwrap_or_default());
            let _ = write!(
                page,
                "<h2 id=\"{0}\"><code>{1} {2}</code></h2><p>{3} {4}</p>",
                text(&operation["operationId"]),
                method.to_ascii_uppercase(),
                escape(path),
                text(&operation["summary"]),
                text(&operation["description"]),
            );
            let parameters = operation["parameters"].as_array();
            if let Some(parameters) = parameters.filter(|parameters| !parameters.is_empty()) {
                page.push_str("<table><tr><th>parameter<th>in<th>meaning");
                for parameter in parameters {
                    let cell = |key: &str| text(&parameter[key]);
                    let (name, place, meaning) = (cell("name"), cell("in"), cell("description"));
                    let _ = write!(page, "<tr><td><code>{name}</code><td>{place}<td>{meaning}");
                }
                page.push_str("</table>");
            }
            for (title, part) in [("Request", "requestBody"), ("Response", "responses")] {
                let named = schemas(&operation[part]);
                if !named.is_empty() {
                    let links: Vec<String> = named
                        .iter()
                        .map(|name| format!("<a href=\"#{0}\"><code>{0}</code></a>", escape(name)))
                        .collect();
                    let _ = write!(page, "<p>{title}: {}</p>", links.join(", "));
                }
            }
        }
    }
    for (name, schema) in document()["components"]["schemas"].as_object().into_iter().flatten() {
        let text = serde_json::to_string_pretty(schema).unwrap_or_default();
        let _ = write!(page, "<h2 id=\"{0}\"><code>{0}</code></h2><pre>{1}</pre>", escape(name), escape(&text));
    }
    page
}

/// The names of the schemas that a part of the document refers to.
fn schemas(part: &Value) -> Vec<String> {
    let mut names = Vec::new();
    let mut rest = vec![part];
    while let Some(value) = rest.pop() {
        match value {
            Value::Object(map) => {
                let name = map.get("$ref").and_then(Value::as_str).and_then(|text| text.rsplit('/').next());
                if let Some(name) = name.filter(|name| !names.iter().any(|known| known == name)) {
                    names.push(name.to_owned());
                }
                rest.extend(map.values());
            }
            Value::Array(list) => rest.extend(list),
            _ => {}
        }
    }
    names
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
