//! Tickets and previews: access for browsers, which cannot send an `Authorization` header with everything.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A ticket to create: one request that may be made once, within 30 seconds, without a token.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TicketRequest {
    /// The id of the operation, for example `streamCommand`.
    pub operation: String,
    /// The path and query of the request, for example `/v1/sandboxes/box/stream`.
    #[schemars(regex(pattern = r"^/v1/"))]
    pub path: String,
}

/// A ticket.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Ticket {
    /// The secret. It belongs into the query parameter `ticket`.
    pub ticket: String,
    /// The path and query of the request, with the ticket.
    pub path: String,
    /// When it expires, in milliseconds since 1970.
    pub expires_ms: u64,
}

/// A preview to open: a link to a port of a sandbox, for a browser.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PreviewRequest {
    /// The port inside.
    #[schemars(range(min = 1, max = 65535))]
    pub port: u16,
    /// The path at which the browser starts; defaults to `/`.
    #[serde(default)]
    #[schemars(regex(pattern = r"^/"))]
    pub path: Option<String>,
}

/// A link to a port of a sandbox.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Preview {
    /// The link. It can be opened once, within five minutes, and gives that browser access to the port.
    pub url: String,
    /// The address of the port, for a browser that has access.
    pub origin: String,
    /// When the link expires, in milliseconds since 1970.
    pub expires_ms: u64,
}
