//! The handlers, one file per resource.

mod archives;
mod builds;
mod change;
mod create;
pub(crate) mod exec;
mod file_batch;
mod file_search;
mod files;
mod images;
mod inventory;
mod lifecycle;
mod logs;
mod pools;
mod process_io;
mod processes;
mod profile_edit;
mod profiles;
mod progress;
mod sandboxes;
mod session_create;
mod session_use;
pub(crate) mod sessions;
mod system;
mod volumes;

use crate::routes::{Access, Content, Operation, Query, Routes};
use axum::http::Method;
use kennel_api::Scope;

/// Adds all routes.
pub(crate) fn add_all(routes: Routes) -> Routes {
    let routes = crate::streams::add_all(routes);
    let routes = system::add(routes);
    let routes = sandboxes::add(routes);
    let routes = create::add(routes);
    let routes = lifecycle::add(routes);
    let routes = change::add(routes);
    let routes = exec::add(routes);
    let routes = files::add(routes);
    let routes = file_batch::add(routes);
    let routes = file_search::add(routes);
    let routes = archives::add(routes);
    let routes = logs::add(routes);
    let routes = processes::add(routes);
    let routes = process_io::add(routes);
    let routes = profiles::add(routes);
    let routes = profile_edit::add(routes);
    let routes = sessions::add(routes);
    let routes = crate::acp::add(routes);
    let routes = session_create::add(routes);
    let routes = session_use::add(routes);
    let routes = volumes::add(routes);
    let routes = pools::add(routes);
    let routes = images::add(routes);
    let routes = builds::add(routes);
    inventory::add(routes)
}

/// An operation that needs a scope, and has neither a query nor bodies. Handlers override what differs.
fn operation(method: Method, path: &'static str, id: &'static str, scope: Scope, summary: &'static str) -> Operation {
    Operation {
        method,
        path,
        id,
        access: Access::Scope(scope),
        summary,
        query: Query::None,
        request: Content::Empty,
        response: (204, Content::Empty),
        creates: false,
    }
}
