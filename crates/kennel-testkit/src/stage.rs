//! The environment of a contract case: a provider in its own home directory. After the case, it is checked for
//! leftovers.

use crate::{Home, Wire, host, inside, within};
use kennel_core::{Provider, RemoveOptions, Result, Sandbox, Sweep};
use kennel_types::{ErrorCode, ExecSpec, Mode, SandboxId, SandboxSpec, Support};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The time limit of a case, so that a provider that hangs is a failure.
const CASE: Duration = Duration::from_mins(5);

/// A provider under test, with its own home directory.
pub trait Subject: Send + Sync {
    /// The home directory of the test.
    fn home(&self) -> &Home;

    /// Opens a provider on the home's directories. Each call represents a later process.
    fn open(&self) -> Arc<dyn Provider>;

    /// The settings that every sandbox of this provider needs, such as an image.
    fn spec(&self) -> SandboxSpec {
        SandboxSpec::default()
    }

    /// The mode of the provider's sandboxes.
    fn mode(&self, provider: &dyn Provider) -> &'static Mode {
        provider.mode()
    }

    /// The path of the keeper's socket inside, if it has one.
    fn socket_inside(&self) -> Option<String> {
        None
    }

    /// Returns descriptions of leftovers that only the engine knows.
    fn leftovers(&self) -> Vec<String> {
        Vec::new()
    }
}

/// The environment of one case: the provider under test, and the sandboxes created so far.
pub struct Stage {
    subject: Box<dyn Subject>,
    provider: Arc<dyn Provider>,
    made: Mutex<Vec<SandboxId>>,
}

/// Runs a case on a new subject, removes all sandboxes, and fails if anything is left.
pub fn check<S: Subject + 'static>(make: impl FnOnce() -> S, case: impl AsyncFnOnce(&Stage)) {
    let subject = make();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime for the case");
    let entered = runtime.enter();
    let stage = Stage { provider: subject.open(), subject: Box::new(subject), made: Mutex::default() };
    drop(entered);
    // The mode may be known only after a probe.
    runtime.block_on(stage.provider.probe());
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let in_time = runtime.block_on(async { tokio::time::timeout(CASE, case(&stage)).await.is_ok() });
        assert!(in_time, "the case took longer than {CASE:?}");
    }));
    let left = runtime.block_on(stage.sweep());
    drop(runtime);
    if let Err(panic) = outcome {
        resume_unwind(panic);
    }
    assert!(left.is_empty(), "left behind:\n{}", left.join("\n"));
}

impl Stage {
    /// The mode, which states what should happen.
    pub fn mode(&self) -> &'static Mode {
        self.subject.mode(&*self.provider)
    }

    /// The provider under test.
    pub fn provider(&self) -> Arc<dyn Provider> {
        self.provider.clone()
    }

    /// Opens the provider again, as a later process would.
    pub fn reopen(&self) -> Arc<dyn Provider> {
        self.subject.open()
    }

    /// Returns the provider with connections that can be cut.
    pub fn wire(&self) -> Arc<Wire> {
        Wire::new(self.provider())
    }

    /// The home directory of the test.
    pub fn home(&self) -> &Home {
        self.subject.home()
    }

    /// The path of the keeper's socket inside, if it has one.
    pub fn socket_inside(&self) -> Option<String> {
        self.subject.socket_inside()
    }

    /// The spec of a plain sandbox with the home's workspace. Its processes have the home's mark in their environment.
    pub fn spec(&self) -> SandboxSpec {
        let mut spec = self.subject.spec();
        // An engine on another machine has no files of this one.
        spec.workspace = Some(self.home().workspace()).filter(|_| self.mode().workspace == Support::Given);
        spec.env.insert("KENNEL_TEST_HOME".into(), self.home().mark());
        // A long time limit, because other tests may keep the machine busy.
        spec.startup_ms = Some(60_000);
        spec
    }

    /// Returns a sandbox name that no other test uses, because tests share an engine.
    pub fn name(&self, word: &str) -> String {
        format!("{word}-{}", self.home().mark().to_lowercase())
    }

    /// Adds a mark to a command's environment, by which its processes are found, and returns it.
    pub fn mark(&self, spec: &mut ExecSpec, word: &str) -> String {
        let mark = format!("{}-{word}", self.home().mark());
        spec.env.insert("KENNEL_TEST_COMMAND".into(), mark.clone());
        mark
    }

    /// Adds a sandbox to those that are removed after the case.
    pub fn note(&self, id: &SandboxId) {
        self.made.lock().unwrap_or_else(PoisonError::into_inner).push(id.clone());
    }

    /// Creates a sandbox, or returns the error.
    pub async fn try_create(&self, spec: &SandboxSpec) -> Result<Sandbox> {
        let sandbox = Sandbox::create(self.provider(), spec).await?;
        self.note(sandbox.id());
        Ok(sandbox)
    }

    /// Creates a sandbox.
    pub async fn create(&self, spec: &SandboxSpec) -> Sandbox {
        self.try_create(spec).await.unwrap_or_else(|error| panic!("create: {error}"))
    }

    /// Creates a sandbox and starts it.
    pub async fn started(&self, spec: &SandboxSpec) -> Sandbox {
        let sandbox = self.create(spec).await;
        sandbox.start().await.unwrap_or_else(|error| panic!("start: {error}"));
        sandbox
    }

    /// Creates and starts a plain sandbox.
    pub async fn running(&self) -> Sandbox {
        self.started(&self.spec()).await
    }

    /// Opens a sandbox again through another provider or wire.
    pub async fn again(&self, provider: Arc<dyn Provider>, sandbox: &Sandbox) -> Sandbox {
        Sandbox::find(provider, sandbox.id().as_str()).await.expect("find it again")
    }

    /// Checks that the provider refuses this sandbox as unsupported.
    pub async fn refuses(&self, spec: &SandboxSpec) {
        match self.try_create(spec).await {
            Ok(_) => panic!("{spec:?} should have been refused"),
            Err(error) => assert_eq!(error.code(), ErrorCode::Unsupported, "{error}"),
        }
    }

    /// Whether real processes run inside. If not, a real program must fail with "not found".
    pub async fn has_processes(&self) -> bool {
        if self.mode().processes == Support::Given {
            return true;
        }
        let sandbox = self.running().await;
        let error = sandbox.exec(&ExecSpec::argv(["uname"])).await.err().expect("no real program is there");
        assert_eq!((error.code(), error.exit_status()), (ErrorCode::ExecFailed, 127));
        false
    }

    /// Returns descriptions of everything that is left of this case's sandboxes.
    pub fn leftovers(&self) -> Vec<String> {
        let made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let ids: Vec<String> = made.iter().map(ToString::to_string).collect();
        drop(made);
        let mut left = host::leftovers(&self.home().mark(), &ids, &self.home().state());
        left.extend(self.subject.leftovers());
        left
    }

    /// Removes all sandboxes, and returns descriptions of what is left.
    async fn sweep(&self) -> Vec<String> {
        let mut left = Vec::new();
        match self.provider.list().await {
            Ok(sandboxes) => {
                for sandbox in sandboxes {
                    let options = RemoveOptions { volumes: true, force: true };
                    match self.provider.remove(&sandbox.id, options).await {
                        Ok(()) => {}
                        Err(error) if error.code() == ErrorCode::NotFound => {}
                        Err(error) => left.push(format!("sandbox {}: {error}", sandbox.id)),
                    }
                }
            }
            Err(error) => left.push(format!("unlisted sandboxes: {error}")),
        }
        within(inside::SOON, async || {
            // What an engine has removed by itself leaves a run directory, which the next sweep removes.
            let _ = self.provider.sweep(Sweep::Remove).await;
            self.leftovers().is_empty()
        })
        .await;
        left.extend(self.leftovers());
        left
    }
}
