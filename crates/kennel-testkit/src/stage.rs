//! Where a case plays: a provider in a home of its own, and a sweep afterwards that finds what was left.

use crate::{Home, Wire, host, inside, within};
use kennel_core::{Provider, RemoveOptions, Result, Sandbox};
use kennel_types::{ErrorCode, ExecSpec, Mode, SandboxId, SandboxSpec, Support};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Longest time a case may take; a provider that hangs fails instead.
const CASE: Duration = Duration::from_mins(5);

/// A provider under test, in a home of its own.
pub trait Subject: Send + Sync {
    /// Its home.
    fn home(&self) -> &Home;

    /// A provider on the home's directories. Each call stands for another process that comes later.
    fn open(&self) -> Arc<dyn Provider>;

    /// What every sandbox of this provider needs: its image.
    fn spec(&self) -> SandboxSpec {
        SandboxSpec::default()
    }

    /// The row of the mode table that its sandboxes are of.
    fn mode(&self, provider: &dyn Provider) -> &'static Mode {
        provider.mode()
    }

    /// Where the keeper's socket is inside, if it has a path there.
    fn socket_inside(&self) -> Option<String> {
        None
    }

    /// What only its engine knows to be left.
    fn leftovers(&self) -> Vec<String> {
        Vec::new()
    }
}

/// What a case has at hand.
pub struct Stage {
    subject: Box<dyn Subject>,
    provider: Arc<dyn Provider>,
    made: Mutex<Vec<SandboxId>>,
}

/// Plays a case on a fresh subject, sweeps, and fails if anything is left.
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
    // Which row holds may be known only after it was asked.
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
    /// The row of the mode table that says what should happen.
    pub fn mode(&self) -> &'static Mode {
        self.subject.mode(&*self.provider)
    }

    /// The provider.
    pub fn provider(&self) -> Arc<dyn Provider> {
        self.provider.clone()
    }

    /// A provider as a later process would have it.
    pub fn reopen(&self) -> Arc<dyn Provider> {
        self.subject.open()
    }

    /// The provider over connections that can be cut.
    pub fn wire(&self) -> Arc<Wire> {
        Wire::new(self.provider())
    }

    /// The home.
    pub fn home(&self) -> &Home {
        self.subject.home()
    }

    /// Where the keeper's socket is inside, if it has a path there.
    pub fn socket_inside(&self) -> Option<String> {
        self.subject.socket_inside()
    }

    /// A plain sandbox with the home's workspace. Its processes carry the home's mark.
    pub fn spec(&self) -> SandboxSpec {
        let mut spec = self.subject.spec();
        // An engine of another machine has none of our files.
        spec.workspace = Some(self.home().workspace()).filter(|_| self.mode().workspace == Support::Given);
        spec.env.insert("KENNEL_TEST_HOME".into(), self.home().mark());
        // Other tests may keep the machine busy.
        spec.startup_ms = Some(60_000);
        spec
    }

    /// A name that no other test gives a sandbox: an engine is shared.
    pub fn name(&self, word: &str) -> String {
        format!("{word}-{}", self.home().mark().to_lowercase())
    }

    /// A word for one command, to find its processes by.
    pub fn mark(&self, spec: &mut ExecSpec, word: &str) -> String {
        let mark = format!("{}-{word}", self.home().mark());
        spec.env.insert("KENNEL_TEST_COMMAND".into(), mark.clone());
        mark
    }

    /// Remembers a sandbox for the sweep.
    pub fn note(&self, id: &SandboxId) {
        self.made.lock().unwrap_or_else(PoisonError::into_inner).push(id.clone());
    }

    /// Makes a sandbox, or says why not.
    pub async fn try_create(&self, spec: &SandboxSpec) -> Result<Sandbox> {
        let sandbox = Sandbox::create(self.provider(), spec).await?;
        self.note(sandbox.id());
        Ok(sandbox)
    }

    /// Makes a sandbox.
    pub async fn create(&self, spec: &SandboxSpec) -> Sandbox {
        self.try_create(spec).await.unwrap_or_else(|error| panic!("create: {error}"))
    }

    /// Makes a sandbox and starts it.
    pub async fn started(&self, spec: &SandboxSpec) -> Sandbox {
        let sandbox = self.create(spec).await;
        sandbox.start().await.unwrap_or_else(|error| panic!("start: {error}"));
        sandbox
    }

    /// A plain sandbox that runs.
    pub async fn running(&self) -> Sandbox {
        self.started(&self.spec()).await
    }

    /// The same sandbox over another provider or wire.
    pub async fn again(&self, provider: Arc<dyn Provider>, sandbox: &Sandbox) -> Sandbox {
        Sandbox::find(provider, sandbox.id().as_str()).await.expect("find it again")
    }

    /// Making this sandbox must be refused as something the provider cannot give.
    pub async fn refuses(&self, spec: &SandboxSpec) {
        match self.try_create(spec).await {
            Ok(_) => panic!("{spec:?} should have been refused"),
            Err(error) => assert_eq!(error.code(), ErrorCode::Unsupported, "{error}"),
        }
    }

    /// Whether real processes run inside. Where they do not, a real program must be refused as not there.
    pub async fn has_processes(&self) -> bool {
        if self.mode().processes == Support::Given {
            return true;
        }
        let sandbox = self.running().await;
        let error = sandbox.exec(&ExecSpec::argv(["uname"])).await.err().expect("no real program is there");
        assert_eq!((error.code(), error.exit_status()), (ErrorCode::ExecFailed, 127));
        false
    }

    /// Everything that is left of this stage's sandboxes.
    pub fn leftovers(&self) -> Vec<String> {
        let made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let ids: Vec<String> = made.iter().map(ToString::to_string).collect();
        drop(made);
        let mut left = host::leftovers(&self.home().mark(), &ids, &self.home().state());
        left.extend(self.subject.leftovers());
        left
    }

    /// Removes all sandboxes and answers what is left after that.
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
        within(inside::SOON, async || self.leftovers().is_empty()).await;
        left.extend(self.leftovers());
        left
    }
}
