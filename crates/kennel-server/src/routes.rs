//! The table of routes. Every route is added by [`Routes::add`], which demands an [`Operation`]: without a scope and a
//! description, there is no route.

use crate::app::AppState;
use crate::{auth, handlers};
use axum::Router;
use axum::handler::Handler;
use axum::http::Method;
use axum::routing::{MethodFilter, on};
use kennel_api::Scope;
use schemars::{JsonSchema, Schema, SchemaGenerator};

/// A route: how it is called, what it needs, and what the OpenAPI document says about it. All fields are required.
#[derive(Clone, Debug)]
pub(crate) struct Operation {
    /// The method.
    pub(crate) method: Method,
    /// The path, with parameters as in `/v1/sandboxes/{sandbox}`.
    pub(crate) path: &'static str,
    /// The id of the operation, from which clients make the names of functions.
    pub(crate) id: &'static str,
    /// Who may call it.
    pub(crate) access: Access,
    /// One line: what it does.
    pub(crate) summary: &'static str,
    /// What the query may contain: a struct, whose fields are the parameters.
    pub(crate) query: Query,
    /// The body of the request.
    pub(crate) request: Content,
    /// The status of success, and the body of the response.
    pub(crate) response: (u16, Content),
    /// Whether it creates something, so that clients can repeat it safely with an `Idempotency-Key`.
    pub(crate) creates: bool,
}

/// Who may call an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Everyone, without a token. It tells nothing about sandboxes.
    Public,
    /// Callers with this scope.
    Scope(Scope),
}

/// Returns the schema of a type.
pub(crate) type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

/// The body of a request or a response.
#[derive(Clone, Copy, Debug)]
#[allow(dead_code)] // the kinds of streams are used by the routes of streams
pub(crate) enum Content {
    /// None.
    Empty,
    /// JSON.
    Json(SchemaOf),
    /// JSON that may be left out.
    OptionalJson(SchemaOf),
    /// Bytes.
    Bytes,
    /// Text.
    Text,
    /// Measurements in the text format of Prometheus.
    Metrics,
    /// A page for people.
    Html,
    /// Lines of JSON, while something goes on.
    Lines(SchemaOf),
    /// Server-sent events whose data is JSON.
    Events(SchemaOf),
    /// The connection becomes a WebSocket with this subprotocol.
    WebSocket(&'static str),
    /// Whatever a program inside sends or expects.
    Inside,
}

/// The query of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Query {
    /// None.
    None,
    /// The fields of a struct.
    Of(SchemaOf),
}

/// The schema of a type, for [`Content`] and [`Query`].
pub(crate) fn schema<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

/// The fields of a query, for [`Query::Of`].
pub(crate) fn fields<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    T::json_schema(generator)
}

/// The routes and their description.
pub(crate) struct Routes {
    app: Option<AppState>,
    router: Router<AppState>,
    operations: Vec<Operation>,
}

impl Routes {
    /// All routes of the server.
    pub(crate) fn all(app: &AppState) -> Self {
        handlers::add_all(Self { app: Some(app.clone()), router: Router::new(), operations: Vec::new() })
    }

    /// The description of all routes, without a server.
    pub(crate) fn described() -> Vec<Operation> {
        handlers::add_all(Self { app: None, router: Router::new(), operations: Vec::new() }).operations
    }

    /// Adds a route. It is the only way to add one.
    pub(crate) fn add<H, T>(mut self, operation: Operation, handler: H) -> Self
    where
        H: Handler<T, AppState>,
        T: 'static,
    {
        if let Some(app) = &self.app {
            let filter = MethodFilter::try_from(operation.method.clone()).expect("operations have ordinary methods");
            let needs = auth::Needs { app: app.clone(), access: operation.access, operation: operation.id };
            let check = axum::middleware::from_fn_with_state(needs, auth::authorize);
            self.router = self.router.route(operation.path, on(filter, handler).route_layer(check));
        }
        self.operations.push(operation);
        self
    }

    /// Returns the router, without the layers that concern all requests.
    pub(crate) fn router(self) -> Router<AppState> {
        self.router
    }
}
