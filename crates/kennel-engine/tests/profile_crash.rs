//! Kills the process at every named step of every operation on a profile, and then uses the profile again. Nothing has
//! to be reconciled in between: the next use finds the sandbox, and completes what was interrupted.
//!
//! See `crash.rs` for why these kills stand for a kill at any moment.

mod common;

use common::kill::{self, Sandboxes};
use kennel_config::SandboxOverrides;
use kennel_core::Result;
use kennel_engine::{Caller, Directories, Engine, Failpoints, ProfileStatus, caller};
use kennel_provider::labels::PROFILE;
use kennel_testkit::Home;
use kennel_types::{ErrorCode, SandboxInfo};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::path::PathBuf;

/// A label of the profile that is changed between the first start and a restart.
const VERSION: &str = "version";

/// An operation whose process is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Operation {
    /// The first start, which creates the sandbox.
    FirstStart,
    /// The start of a sandbox that was stopped.
    Start,
    Stop,
    Restart,
    /// The restart of a profile that has changed, which creates the sandbox again.
    RestartChanged,
    Delete,
}

impl Operation {
    const ALL: [Self; 6] =
        [Self::FirstStart, Self::Start, Self::Stop, Self::Restart, Self::RestartChanged, Self::Delete];

    /// Whether the sandbox that was there before is still there after the operation.
    fn keeps_sandbox(self) -> bool {
        matches!(self, Self::Start | Self::Stop | Self::Restart)
    }
}

/// The instructions for the process that is killed.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Instructions {
    paths: Paths,
    operation: Operation,
    /// The step at which it is killed.
    kill_at: Option<usize>,
}

/// Where sandboxes and profiles are.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Paths {
    sandboxes: Sandboxes,
    home: PathBuf,
    workspace: PathBuf,
}

impl Paths {
    fn new(home: &Home, engine: Option<kill::ContainerEngine>) -> Self {
        Self { sandboxes: Sandboxes::new(home, engine), home: home.path().to_owned(), workspace: home.workspace() }
    }

    /// The name of the profile. It is unique, because all tests share one container engine.
    fn name(&self) -> &str {
        &self.sandboxes.mark
    }

    fn profiles_dir(&self) -> PathBuf {
        self.directories().profiles()
    }

    fn directories(&self) -> Directories {
        Directories::new(self.home.join("engine"), self.home.join("data"), None)
    }

    fn engine(&self) -> Engine {
        let variables = [(caller::KENNEL_HOME.into(), self.home.clone().into_os_string())].into();
        let uid = rustix::process::geteuid().as_raw();
        let caller = Caller { variables, current_dir: self.workspace.clone(), uid };
        Engine::with_providers(caller, self.directories(), [self.sandboxes.provider()])
    }

    fn overrides(&self) -> SandboxOverrides {
        let mut overrides = json!({
            "provider": self.sandboxes.provider_name(),
            "env": { "KENNEL_TEST_HOME": self.sandboxes.mark },
            "labels": { VERSION: "one" },
            "network": "none",
            "startupTimeout": "60s",
        });
        if let Some(image) = self.sandboxes.image() {
            overrides["image"] = image.into();
        }
        serde_json::from_value(overrides).unwrap()
    }

    /// The sandbox that the provider has. There is never more than one.
    async fn sandbox(&self) -> Option<SandboxInfo> {
        let mut found = self.sandboxes.provider().list().await.unwrap();
        assert!(found.len() <= 1, "no duplicate: {found:?}");
        let sandbox = found.pop()?;
        assert_eq!(sandbox.labels.get(PROFILE).map(String::as_str), Some(self.name()), "no orphan");
        Some(sandbox)
    }

    /// Returns the names of all files except the lock file, which stays.
    fn files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.profiles_dir()).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| *name != format!(".{}.lock", self.name())).collect()
    }
}

/// Carries out an operation.
async fn carry_out(engine: &Engine, name: &str, operation: Operation) -> Result<()> {
    let profiles = engine.profiles()?;
    match operation {
        Operation::FirstStart | Operation::Start => profiles.start(name, None, &|_| ()).await.map(drop),
        Operation::Stop => profiles.stop(name).await.map(drop),
        Operation::Restart | Operation::RestartChanged => profiles.restart(name, false, &|_| ()).await.map(drop),
        Operation::Delete => profiles.delete(name, true).await,
    }
}

/// The process that is killed. Only the other tests of this file start it.
#[test]
#[ignore = "the tests of this file start it, and kill it"]
fn killed() {
    let Instructions { paths, operation, kill_at } = kill::instructions();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let failpoints = Failpoints::kill_at(kill_at);
        let engine = paths.engine().with_failpoints(failpoints.clone());
        carry_out(&engine, paths.name(), operation).await.unwrap();
        paths.sandboxes.write_steps(&failpoints);
    });
}

fn run(paths: &Paths, operation: Operation, kill_at: Option<usize>) -> bool {
    kill::run(&Instructions { paths: paths.clone(), operation, kill_at })
}

/// Brings new directories to the state in which the operation starts. Returns the sandbox, if there is one then.
async fn prepare(paths: &Paths, operation: Operation) -> Option<SandboxInfo> {
    let (engine, name) = (paths.engine(), paths.name());
    let profiles = engine.profiles().unwrap();
    profiles.create(name, paths.overrides()).await.unwrap();
    if operation != Operation::FirstStart {
        profiles.start(name, None, &|_| ()).await.unwrap();
    }
    if operation == Operation::Start {
        profiles.stop(name).await.unwrap();
    }
    if operation == Operation::RestartChanged {
        let labels = [(VERSION.to_owned(), "two".to_owned())].into();
        profiles.edit(name, SandboxOverrides { labels, ..SandboxOverrides::default() }).await.unwrap();
    }
    paths.sandbox().await
}

/// Checks what a kill left, before anything completes it.
async fn check_interrupted(paths: &Paths, operation: Operation, before: Option<&SandboxInfo>) {
    let sandbox = paths.sandbox().await;
    if operation.keeps_sandbox() {
        assert_eq!(sandbox.as_ref().map(|it| &it.id), before.map(|it| &it.id), "no loss");
    }
    match paths.engine().profiles().unwrap().status(paths.name()).await {
        Ok(found) => {
            assert_eq!(found.sandbox.as_ref().map(|it| &it.id), sandbox.as_ref().map(|it| &it.id));
            let up = sandbox.is_some_and(|it| it.status.is_up());
            assert_eq!(found.status == ProfileStatus::Running, up, "{found:?}");
        }
        Err(error) => {
            assert_eq!((error.code(), operation), (ErrorCode::NotFound, Operation::Delete), "{error}");
            assert_eq!(sandbox, None, "no orphan");
        }
    }
}

/// Carries out the interrupted operation again, as a user would, and checks its result.
async fn again(paths: &Paths, operation: Operation, before: Option<&SandboxInfo>) {
    let engine = paths.engine();
    match carry_out(&engine, paths.name(), operation).await {
        Err(error) if operation == Operation::Delete && error.code() == ErrorCode::NotFound => {}
        done => done.unwrap(),
    }
    let sandbox = paths.sandbox().await;
    if operation == Operation::Delete {
        assert_eq!((sandbox, paths.files()), (None, Vec::new()));
        return;
    }
    let sandbox = sandbox.expect("no loss");
    let file = format!("{}.json", paths.name());
    assert_eq!(paths.files(), [file]);
    assert_eq!(sandbox.status.is_up(), operation != Operation::Stop, "{sandbox:?}");
    let version = if operation == Operation::RestartChanged { "two" } else { "one" };
    assert_eq!(sandbox.labels.get(VERSION).map(String::as_str), Some(version));
    if operation.keeps_sandbox() {
        assert_eq!(Some(&sandbox.id), before.map(|it| &it.id));
    }
    // The next use finds this sandbox, and not another one.
    let started = engine.profiles().unwrap().start(paths.name(), None, &|_| ()).await.unwrap();
    assert_eq!((started.created, started.profile_changed), (false, false));
    assert_eq!(started.sandbox.info().id, sandbox.id);
}

async fn crash_everywhere(engine: Option<kill::ContainerEngine>, operation: Operation) {
    let names = {
        let home = Home::new();
        let paths = Paths::new(&home, engine.clone());
        prepare(&paths, operation).await;
        assert!(!run(&paths, operation, None));
        paths.sandboxes.clean_up().await;
        paths.sandboxes.read_steps()
    };
    assert!(names.len() >= 4, "{names:?}");
    for (index, name) in names.iter().enumerate() {
        // After the kill, the user tries again, or gives the profile up.
        for next in [operation, Operation::Delete] {
            let home = Home::new();
            let paths = Paths::new(&home, engine.clone());
            let before = prepare(&paths, operation).await;
            assert!(run(&paths, operation, Some(index)), "{operation:?} reaches {name:?}");
            check_interrupted(&paths, operation, before.as_ref()).await;
            again(&paths, next, before.as_ref()).await;
            paths.sandboxes.clean_up().await;
            if operation == Operation::Delete {
                break;
            }
        }
    }
}

common::kill::crash_tests! {
    first_start FirstStart,
    start Start,
    stop Stop,
    restart Restart,
    restart_changed RestartChanged,
    delete Delete,
}
