//! Creates a sandbox for a caller that may give up, and removes sandboxes.
//!
//! A request to an engine that is cut off halfway may still have its effect later, when nobody would notice. So a
//! creation runs as a task of its own, which the caller cannot cut off. Whatever the task or its caller comes to, the
//! sandbox is either returned or removed.

use crate::{Cancel, Claimed, PoolResult};
use futures_util::FutureExt;
use kennel_core::{Error, Provider, RemoveOptions, Result, Sandbox, new_id};
use kennel_types::{ErrorCode, NextStep, SandboxId, SandboxSpec};
use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

/// How long a creation may take to end after its caller gave up.
const LAST_WAIT: Duration = Duration::from_secs(10);
/// How long the removal of a sandbox may take.
const REMOVE_WITHIN: Duration = Duration::from_secs(30);

/// Creates a sandbox. If that fails or panics, or the caller gives up by `cancel` or by dropping the future, nothing of
/// the sandbox is left.
pub async fn create_sandbox(provider: Arc<dyn Provider>, spec: &SandboxSpec, cancel: &Cancel) -> Result<Sandbox> {
    create_sandbox_with_id(provider, &new_id()?, spec, cancel).await
}

/// Creates a sandbox like [`create_sandbox`], with an id that the caller has chosen, and may have recorded before.
pub async fn create_sandbox_with_id(
    provider: Arc<dyn Provider>,
    id: &SandboxId,
    spec: &SandboxSpec,
    cancel: &Cancel,
) -> Result<Sandbox> {
    let (sandbox, _) = create_claimed(Claimed::none_for(id.clone()), provider, spec, cancel).await?;
    Ok(sandbox)
}

/// Creates a sandbox like [`create_sandbox`], from the member of a pool that was claimed for it. Also returns whether it
/// came from the pool.
pub async fn create_claimed(
    claimed: Claimed,
    provider: Arc<dyn Provider>,
    spec: &SandboxSpec,
    cancel: &Cancel,
) -> Result<(Sandbox, Option<PoolResult>)> {
    let creation = Box::pin(create(claimed, provider, spec.clone(), cancel.clone()));
    cancel.attend(creation, |(sandbox, _)| async move { discard(&sandbox).await }).await
}

async fn create(
    mut claimed: Claimed,
    provider: Arc<dyn Provider>,
    spec: SandboxSpec,
    cancel: Cancel,
) -> Result<(Sandbox, Option<PoolResult>)> {
    let id = claimed.id.clone();
    let creating = async {
        let sandbox = claimed.create(provider.clone(), &spec).await?;
        Ok::<_, Error>((sandbox, claimed.result.clone()))
    };
    let mut creating = pin!(AssertUnwindSafe(creating).catch_unwind());
    let done = tokio::select! {
        done = &mut creating => Some(done),
        () = cancel.cancelled() => tokio::time::timeout(LAST_WAIT, creating).await.ok(),
    };
    let error = match done {
        Some(Ok(Ok(created))) => return Ok(created),
        Some(Ok(Err(error))) if is_refusal(error.code()) => return Err(error),
        Some(Ok(Err(error))) => error,
        Some(Err(panic)) => Error::new(ErrorCode::Internal, format!("panic: {}", panic_message(&*panic))),
        None => Error::new(ErrorCode::Aborted, "the caller gave up, and the creation did not end"),
    };
    // Perhaps only the reply was lost.
    let removed = tokio::time::timeout(REMOVE_WITHIN, remove_sandbox(&*provider, &id, false)).await;
    if let Ok(Err(error)) = removed {
        tracing::warn!(sandbox = %id, %error, "a sandbox that was not completely created may be left");
    }
    Err(error)
}

/// Whether the error says that the provider has made nothing.
fn is_refusal(code: ErrorCode) -> bool {
    use ErrorCode::{AlreadyExists, InvalidConfig, NotFound, PermissionDenied, Unsupported};
    matches!(code, AlreadyExists | InvalidConfig | NotFound | PermissionDenied | Unsupported)
}

/// Removes a sandbox with everything in it, whatever runs there. Its data volume is kept, because it is meant to outlive
/// the sandbox. It is no error if the sandbox does not exist.
pub async fn discard(sandbox: &Sandbox) -> Result<()> {
    let options = RemoveOptions { volumes: false, force: true };
    let error = match tokio::time::timeout(REMOVE_WITHIN, sandbox.remove(options)).await {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(error)) if error.code() == ErrorCode::NotFound => return Ok(()),
        Ok(Err(error)) => error,
        Err(_) => Error::new(ErrorCode::Timeout, format!("it took longer than {REMOVE_WITHIN:?}")),
    };
    let name = sandbox.id().to_string();
    let error = error.context(format!("remove sandbox {name}"));
    Err(error.suggest(NextStep::RemoveSandbox { name, force: true, volumes: false }))
}

/// Removes a sandbox, whatever runs in it. It is no error if it does not exist.
pub(crate) async fn remove_sandbox(provider: &dyn Provider, id: &SandboxId, volumes: bool) -> Result<()> {
    match provider.remove(id, RemoveOptions { force: true, volumes }).await {
        Ok(()) => Ok(()),
        Err(error) if error.code() == ErrorCode::NotFound => Ok(()),
        // Perhaps only the reply was lost.
        Err(error) => match provider.get(id.as_str()).await {
            Err(gone) if gone.code() == ErrorCode::NotFound => Ok(()),
            _ => Err(error.context(format_args!("remove sandbox {id}"))),
        },
    }
}

/// Returns the message of a panic.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".into())
}
