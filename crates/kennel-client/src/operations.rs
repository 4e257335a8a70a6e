//! The operations on sandboxes, and those on the server itself.

use crate::Client;
use crate::client::{escape, query};
use hyper::Method;
use kennel_api::{
    ChangeSandbox, CreateSandbox, ExecRequest, ExecResult, Health, Millis, Page, Preview, PreviewRequest,
    RenameRequest, RenewRequest, SandboxStats, SandboxView, StopRequest, Ticket, TicketRequest, TokenView, WaitResult,
};
use kennel_types::Result;
use std::time::Duration;

const NONE: Option<&()> = None;

/// The path of an operation on a sandbox.
pub(crate) fn of_sandbox(sandbox: &str, rest: &str) -> String {
    format!("/v1/sandboxes/{}{rest}", escape(sandbox))
}

impl Client {
    /// Creates a sandbox, and starts it unless the request says otherwise.
    pub async fn create(&self, request: &CreateSandbox) -> Result<SandboxView> {
        self.call(Method::POST, "/v1/sandboxes", Some(request)).await
    }

    /// Returns a sandbox by its id or name.
    pub async fn sandbox(&self, sandbox: &str) -> Result<SandboxView> {
        self.get(&of_sandbox(sandbox, "")).await
    }

    /// Returns all sandboxes, oldest first, and the providers that did not respond.
    pub async fn sandboxes(&self) -> Result<Page<SandboxView>> {
        let mut all: Page<SandboxView> = self.get("/v1/sandboxes?limit=1000").await?;
        while let Some(cursor) = all.next_cursor.take() {
            let path = format!("/v1/sandboxes{}", query(&[("limit", Some("1000".into())), ("cursor", Some(cursor))]));
            let page: Page<SandboxView> = self.get(&path).await?;
            all.items.extend(page.items);
            all.next_cursor = page.next_cursor;
        }
        Ok(all)
    }

    /// Starts a sandbox.
    pub async fn start(&self, sandbox: &str) -> Result<SandboxView> {
        self.call(Method::POST, &of_sandbox(sandbox, "/start"), NONE).await
    }

    /// Ends all processes of a sandbox.
    pub async fn stop(&self, sandbox: &str, grace: Duration) -> Result<SandboxView> {
        let grace = Some(Millis(grace.as_millis().try_into().unwrap_or(u64::MAX)));
        self.call(Method::POST, &of_sandbox(sandbox, "/stop"), Some(&StopRequest { grace })).await
    }

    /// Pauses all processes of a sandbox.
    pub async fn pause(&self, sandbox: &str) -> Result<SandboxView> {
        self.call(Method::POST, &of_sandbox(sandbox, "/pause"), NONE).await
    }

    /// Resumes a paused sandbox.
    pub async fn resume(&self, sandbox: &str) -> Result<SandboxView> {
        self.call(Method::POST, &of_sandbox(sandbox, "/resume"), NONE).await
    }

    /// Renames a sandbox.
    pub async fn rename(&self, sandbox: &str, name: &str) -> Result<SandboxView> {
        let request = RenameRequest { name: name.to_owned() };
        self.call(Method::POST, &of_sandbox(sandbox, "/rename"), Some(&request)).await
    }

    /// Changes labels and limits of a sandbox.
    pub async fn change(&self, sandbox: &str, request: &ChangeSandbox) -> Result<SandboxView> {
        self.call(Method::PATCH, &of_sandbox(sandbox, ""), Some(request)).await
    }

    /// Lets a sandbox expire after this time. Zero means never.
    pub async fn renew(&self, sandbox: &str, ttl: Duration) -> Result<SandboxView> {
        let request = RenewRequest { ttl: Millis(ttl.as_millis().try_into().unwrap_or(u64::MAX)) };
        self.call(Method::POST, &of_sandbox(sandbox, "/renew"), Some(&request)).await
    }

    /// Waits until a sandbox ends, or this time is over: at most ten minutes.
    pub async fn wait(&self, sandbox: &str, within: Duration) -> Result<WaitResult> {
        let path = of_sandbox(sandbox, &query(&[("timeoutMs", Some(within.as_millis().to_string()))]));
        self.get(&path.replacen('?', "/wait?", 1)).await
    }

    /// Removes a sandbox. Without `force`, it must not run.
    pub async fn remove(&self, sandbox: &str, force: bool, volumes: bool) -> Result<()> {
        let parameters = [("force", Some(force.to_string())), ("volumes", Some(volumes.to_string()))];
        self.done(Method::DELETE, &of_sandbox(sandbox, &query(&parameters)), NONE).await
    }

    /// Returns the resource usage of a sandbox.
    pub async fn stats(&self, sandbox: &str) -> Result<SandboxStats> {
        self.get(&of_sandbox(sandbox, "/stats")).await
    }

    /// Runs a command to its end. Streams have no limit of their output: see [`Client::command`].
    pub async fn exec(&self, sandbox: &str, request: &ExecRequest) -> Result<ExecResult> {
        self.call(Method::POST, &of_sandbox(sandbox, "/exec"), Some(request)).await
    }

    /// Returns a link with which a browser gets access to a port.
    pub async fn preview(&self, sandbox: &str, request: &PreviewRequest) -> Result<Preview> {
        self.call(Method::POST, &of_sandbox(sandbox, "/previews"), Some(request)).await
    }

    /// Returns a ticket for one request without a token.
    pub async fn ticket(&self, request: &TicketRequest) -> Result<Ticket> {
        self.call(Method::POST, "/v1/tickets", Some(request)).await
    }

    /// Returns the caller's own token, without its secret.
    pub async fn token(&self) -> Result<TokenView> {
        self.get("/v1/token").await
    }

    /// Whether the server can be used. It needs no token.
    pub async fn is_ready(&self) -> Result<bool> {
        let health: Health = self.get("/readyz").await?;
        Ok(health.status == "ok")
    }
}
