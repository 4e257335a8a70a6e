//! Creates sandboxes for callers that give up, and for providers that fail: a sandbox is either returned or removed.

use async_trait::async_trait;
use futures_util::FutureExt;
use kennel_core::{Dialed, EventStream, LogOptions, LogStream, Provider, RemoveOptions, Result, Sandbox};
use kennel_engine::{Cancel, create_sandbox, discard};
use kennel_mock::{Call, Fault, Mock};
use kennel_types::{Availability, ErrorCode, Mode, NextStep, SandboxId, SandboxInfo, SandboxSpec};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;

/// A provider that creates a sandbox, and then does what the test wants.
struct AfterCreation {
    mock: Mock,
    /// Waits for a permit before it returns.
    hold: Arc<Semaphore>,
    panics: bool,
}

impl AfterCreation {
    fn new(mock: &Mock, permits: usize, panics: bool) -> Arc<Self> {
        Arc::new(Self { mock: mock.clone(), hold: Arc::new(Semaphore::new(permits)), panics })
    }
}

#[async_trait]
impl Provider for AfterCreation {
    fn mode(&self) -> &'static Mode {
        self.mock.mode()
    }

    async fn probe(&self) -> Availability {
        self.mock.probe().await
    }

    async fn create(&self, id: &SandboxId, spec: &SandboxSpec) -> Result<SandboxInfo> {
        let info = self.mock.create(id, spec).await;
        let _permit = self.hold.acquire().await;
        assert!(!self.panics, "the provider is broken");
        info
    }

    async fn start(&self, id: &SandboxId) -> Result<()> {
        self.mock.start(id).await
    }

    async fn stop(&self, id: &SandboxId, grace: Duration) -> Result<()> {
        self.mock.stop(id, grace).await
    }

    async fn remove(&self, id: &SandboxId, options: RemoveOptions) -> Result<()> {
        self.mock.remove(id, options).await
    }

    async fn rename(&self, id: &SandboxId, name: &str) -> Result<()> {
        self.mock.rename(id, name).await
    }

    async fn get(&self, id_or_name: &str) -> Result<SandboxInfo> {
        self.mock.get(id_or_name).await
    }

    async fn list(&self) -> Result<Vec<SandboxInfo>> {
        self.mock.list().await
    }

    async fn dial(&self, id: &SandboxId) -> Result<Dialed> {
        self.mock.dial(id).await
    }

    async fn logs(&self, id: &SandboxId, options: LogOptions) -> Result<LogStream> {
        self.mock.logs(id, options).await
    }

    async fn watch(&self) -> Result<EventStream> {
        self.mock.watch().await
    }
}

async fn is_created(mock: &Mock) {
    kennel_testkit::eventually("the sandbox is created", async || mock.list().await.unwrap().len() == 1).await;
}

async fn is_gone(mock: &Mock) {
    kennel_testkit::eventually("the sandbox is removed", async || mock.list().await.unwrap().is_empty()).await;
}

#[tokio::test]
async fn a_sandbox_is_returned_or_nothing_is_left() {
    let (mock, spec) = (Mock::new(), SandboxSpec::default());
    let create = async || create_sandbox(Arc::new(mock.clone()), &spec, &Cancel::default()).await;
    let sandbox = create().await.unwrap();
    assert_eq!(mock.list().await.unwrap().len(), 1, "the control");
    discard(&sandbox).await.unwrap();

    mock.fault(Fault::ReplyLost(Call::Create));
    assert_eq!(create().await.err().unwrap().code(), ErrorCode::NotAvailable);
    assert_eq!(mock.list().await.unwrap(), [], "the sandbox was created, and is removed");
    mock.fault(Fault::Fails(Call::Create, ErrorCode::Timeout));
    assert_eq!(create().await.err().unwrap().code(), ErrorCode::Timeout);
    assert_eq!(mock.list().await.unwrap(), []);
}

#[tokio::test]
async fn a_panic_of_the_provider_leaves_nothing() {
    let mock = Mock::new();
    let provider = AfterCreation::new(&mock, 1, true);
    let (spec, cancel) = (SandboxSpec::default(), Cancel::default());
    let creating = create_sandbox(provider, &spec, &cancel);
    let done = AssertUnwindSafe(creating).catch_unwind().await.expect("it is an error, and no panic of the caller");
    let error = done.err().unwrap();
    assert_eq!(error.code(), ErrorCode::Internal, "{error}");
    assert!(error.to_string().contains("the provider is broken"), "{error}");
    assert_eq!(mock.list().await.unwrap(), []);
}

#[tokio::test]
async fn a_caller_that_cancels_waits_until_the_sandbox_is_removed() {
    let mock = Mock::new();
    let provider = AfterCreation::new(&mock, 0, false);
    let (hold, cancel) = (provider.hold.clone(), Cancel::default());
    let creating = tokio::spawn({
        let cancel = cancel.clone();
        async move { create_sandbox(provider, &SandboxSpec::default(), &cancel).await.map(drop) }
    });
    is_created(&mock).await;
    cancel.cancel();
    hold.add_permits(1);
    assert_eq!(creating.await.unwrap().unwrap_err().code(), ErrorCode::Aborted);
    assert_eq!(mock.list().await.unwrap(), [], "it is removed by then");
}

#[tokio::test]
async fn a_dropped_call_leaves_no_sandbox() {
    let mock = Mock::new();
    let provider = AfterCreation::new(&mock, 0, false);
    let hold = provider.hold.clone();
    let creating =
        tokio::spawn(
            async move { create_sandbox(provider, &SandboxSpec::default(), &Cancel::default()).await.map(drop) },
        );
    is_created(&mock).await;
    creating.abort();
    assert!(creating.await.unwrap_err().is_cancelled());
    hold.add_permits(1);
    is_gone(&mock).await;
}

#[tokio::test]
async fn a_failed_removal_keeps_its_code() {
    let mock = Mock::new();
    let sandbox = Sandbox::create(Arc::new(mock.clone()), &SandboxSpec::default()).await.unwrap();
    mock.fault(Fault::Fails(Call::Remove, ErrorCode::NotAvailable));
    let error = discard(&sandbox).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::NotAvailable, "{error}");
    let name = sandbox.id().to_string();
    assert_eq!(error.next_step(), Some(&NextStep::RemoveSandbox { name, force: true, volumes: false }));
    discard(&sandbox).await.unwrap();
    discard(&sandbox).await.unwrap();
}
