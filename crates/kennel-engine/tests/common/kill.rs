//! Processes that a test kills at a named step, and the sandboxes that they leave.

use kennel_core::{Provider, RemoveOptions};
use kennel_docker::{Docker, DockerOptions, EngineKind, NamePrefix, UnixDialer};
use kennel_engine::Failpoints;
use kennel_native::Native;
use kennel_testkit::{Home, docker, environment, host};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;

/// The environment variable that tells the killed process what to do.
const INSTRUCTIONS: &str = "KENNEL_TEST_CRASH";
pub(crate) const FORCE: RemoveOptions = RemoveOptions { force: true, volumes: true };

/// A container engine: its socket and an image on it.
pub(crate) type ContainerEngine = (PathBuf, String);

/// Where the sandboxes of a test are.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Sandboxes {
    state: PathBuf,
    programs: PathBuf,
    steps: PathBuf,
    pub(crate) mark: String,
    /// Native if there is none.
    engine: Option<ContainerEngine>,
}

impl Sandboxes {
    pub(crate) fn new(home: &Home, engine: Option<ContainerEngine>) -> Self {
        let steps = home.path().join("steps");
        Self { state: home.state(), programs: home.programs(), steps, mark: home.mark(), engine }
    }

    pub(crate) fn image(&self) -> Option<String> {
        self.engine.as_ref().map(|(_, image)| image.clone())
    }

    pub(crate) fn provider_name(&self) -> &'static str {
        if self.engine.is_some() { "docker" } else { "native" }
    }

    pub(crate) fn provider(&self) -> Arc<dyn Provider> {
        let Some((socket, _)) = &self.engine else {
            return Arc::new(Native::new(self.state.clone(), self.programs.clone()));
        };
        let options = DockerOptions {
            state_dir: self.state.clone(),
            program_dir: self.programs.clone(),
            expected: EngineKind::Docker,
            installation: self.mark.clone(),
            name_prefix: NamePrefix::default(),
        };
        Arc::new(Docker::new(options, Arc::new(UnixDialer::new(socket))))
    }

    /// Tells the parent the steps of a process that was not killed.
    pub(crate) fn write_steps(&self, failpoints: &Failpoints) {
        std::fs::write(&self.steps, failpoints.reached().join("\n")).unwrap();
    }

    /// Returns the steps of a process that was not killed.
    pub(crate) fn read_steps(&self) -> Vec<String> {
        std::fs::read_to_string(&self.steps).unwrap().lines().map(ToOwned::to_owned).collect()
    }

    /// Removes all sandboxes, and checks that nothing of them is left.
    pub(crate) async fn clean_up(&self) {
        let provider = self.provider();
        let mut ids = Vec::new();
        for sandbox in provider.list().await.unwrap() {
            provider.remove(&sandbox.id, FORCE).await.unwrap();
            ids.push(sandbox.id.to_string());
        }
        kennel_testkit::eventually("nothing is left", async || {
            let _ = provider.sweep(kennel_core::Sweep::Remove).await;
            host::leftovers(&self.mark, &ids, &self.state).is_empty()
        })
        .await;
    }
}

/// Returns the container engine that the tests share.
pub(crate) fn container_engine() -> ContainerEngine {
    let socket = docker::socket();
    let image = docker::image_on(&socket);
    (socket, image)
}

/// Runs the test `killed` of this program in a process of its own. Returns whether it was killed.
pub(crate) fn run<T: Serialize + std::fmt::Debug>(instructions: &T) -> bool {
    let done = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "killed", "--nocapture"])
        .env(INSTRUCTIONS, serde_json::to_string(instructions).unwrap())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    if done.status.signal() == Some(9) {
        return true;
    }
    let text = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{instructions:?}: {}\n{text}", done.status);
    false
}

/// Returns the instructions for this process.
pub(crate) fn instructions<T: DeserializeOwned>() -> T {
    let instructions = environment::variable(INSTRUCTIONS).expect("the variable has instructions");
    serde_json::from_slice(instructions.as_encoded_bytes()).unwrap()
}

/// Creates one test for each operation, on native and on a container engine, so that they run at the same time and name
/// what failed. The program has a type `Operation` and a function `crash_everywhere`.
macro_rules! crash_tests {
    ($($name:ident $operation:ident,)*) => {
        mod native {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::crash_everywhere(None, super::Operation::$operation).await;
            })*
        }

        mod engine {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                let engine = $crate::common::kill::container_engine();
                super::crash_everywhere(Some(engine), super::Operation::$operation).await;
            })*
        }

        #[test]
        fn every_operation_is_tested() {
            assert_eq!([$(Operation::$operation),*], Operation::ALL);
        }
    };
}
pub(crate) use crash_tests;
