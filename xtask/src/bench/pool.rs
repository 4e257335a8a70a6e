//! Measures sandboxes from a pool, and how often the resident process, which keeps the pool, wakes up.

use super::Effort;
use super::environment::BenchEnvironment;
use super::row::Row;
use super::sample::Samples;
use anyhow::{Context, Result, bail};
use kennel_core::{Provider, Sandbox};
use kennel_engine::{Caller, Directories, Engine, Pool, PoolClaims, PoolResult, PoolUse};
use kennel_testkit::within_blocking;
use kennel_types::{ExecSpec, NetworkMode, ProviderKind, SandboxSpec};
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The name of the pool.
const NAME: &str = "bench";
/// The number of claims at the same time; a tenth of it with `--quick`.
const AT_ONCE: usize = 100;
/// The number of sandboxes beside an idle resident process; a tenth of it with `--quick`.
const BESIDE: usize = 200;
/// For how long the resident process is watched.
const WATCHED: Duration = Duration::from_secs(10);

/// Compares a native sandbox from a pool and its first command with a command alone, and measures many claims at once.
pub(super) fn native(environment: &BenchEnvironment, effort: Effort) -> Result<Vec<Row>> {
    let provider = environment.native();
    let (spec, command) = (spec(environment), ExecSpec::argv([environment.busybox(), "true"]));
    let pool = WarmPool::fill(environment, provider, &spec, 4)?;
    let running = environment.sandbox(provider, None)?;
    let (mut alone, mut claims) = (Vec::new(), Vec::new());
    for turn in 0..=effort.times(100) {
        let began = Instant::now();
        environment.wait(run(&running, &command))?;
        let exec = began.elapsed();
        pool.until_filled()?;
        let began = Instant::now();
        let sandbox = environment.wait(pool.claim(&command))?;
        if turn > 0 {
            alone.push(exec);
            claims.push(began.elapsed());
        }
        environment.remove(&sandbox)?;
    }
    environment.remove(&running)?;
    let at_once = if effort.is_small() { AT_ONCE / 10 } else { AT_ONCE };
    pool.set(at_once)?;
    let began = Instant::now();
    let made = environment.wait(async {
        let each = (0..at_once).map(|_| async {
            let sandbox = pool.claim(&command).await?;
            Ok((sandbox, began.elapsed()))
        });
        futures_util::future::try_join_all(each).await
    })?;
    let (sandboxes, crowd): (Vec<Sandbox>, Vec<_>) = made.into_iter().unzip();
    for sandbox in &sandboxes {
        environment.remove(sandbox)?;
    }
    let [alone, claims, crowd] = [&alone, &claims, &crowd].map(|times| Samples::from_times(times));
    Ok(vec![
        Row::times("claim and first command (native)", &claims, "exec alone", &alone).at_most_more(3.0),
        Row::spread(&format!("{at_once} claims at once (native), p95"), &crowd).at_most(2.5),
    ])
}

/// Compares a container from a pool and its first command with a container that is created.
pub(super) fn docker(environment: &BenchEnvironment, effort: Effort) -> Result<Vec<Row>> {
    let Some(docker) = environment.docker() else { return Ok(Vec::new()) };
    let spec =
        SandboxSpec { image: Some(docker.image.clone()), network: Some(NetworkMode::None), ..SandboxSpec::default() };
    let command = ExecSpec::argv(["true"]);
    let pool = WarmPool::fill(environment, &docker.provider, &spec, 1)?;
    let (mut cold, mut claims) = (Vec::new(), Vec::new());
    for turn in 0..=effort.times(10) {
        let began = Instant::now();
        let created = environment.wait(async {
            let sandbox = Sandbox::create(docker.provider.clone(), &spec).await?;
            sandbox.start().await?;
            run(&sandbox, &command).await?;
            Ok(sandbox)
        })?;
        let took = began.elapsed();
        environment.remove(&created)?;
        pool.until_filled()?;
        let began = Instant::now();
        let claimed = environment.wait(pool.claim(&command))?;
        if turn > 0 {
            cold.push(took);
            claims.push(began.elapsed());
        }
        environment.remove(&claimed)?;
    }
    let [cold, claims] = [&cold, &claims].map(|times| Samples::from_times(times));
    Ok(vec![Row::times("claim and first command (docker)", &claims, "a cold create", &cold).at_most_one_in(20.0)])
}

/// Counts how often an idle resident process wakes up, with many sandboxes that it watches.
pub(super) fn idle(environment: &BenchEnvironment, effort: Effort) -> Result<Vec<Row>> {
    let beside = if effort.is_small() { BESIDE / 10 } else { BESIDE };
    let pool = WarmPool::fill(environment, environment.native(), &spec(environment), 1)?;
    let spec = SandboxSpec { idle_pause_ms: Some(3_600_000), ..spec(environment) };
    let provider = pool.engine.provider(ProviderKind::Native)?;
    let mut sandboxes = Vec::new();
    for _ in 0..beside {
        let sandbox = environment.wait(Sandbox::create(provider.clone(), &spec))?;
        environment.wait(sandbox.start())?;
        sandboxes.push(sandbox);
    }
    pool.until_still()?;
    let before = pool.wake_ups()?;
    #[expect(clippy::disallowed_methods, reason = "the time in which wake-ups are counted")]
    std::thread::sleep(WATCHED);
    let woken = pool.wake_ups()? - before;
    for sandbox in &sandboxes {
        environment.remove(sandbox)?;
    }
    let what = format!("wake-ups of an idle resident process with {beside} sandboxes, in {} s", WATCHED.as_secs());
    Ok(vec![Row::count(&what, woken).at_most_count(0)])
}

fn spec(environment: &BenchEnvironment) -> SandboxSpec {
    SandboxSpec {
        network: Some(NetworkMode::None),
        workspace: Some(environment.path().join("workspace")),
        ..SandboxSpec::default()
    }
}

async fn run(sandbox: &Sandbox, command: &ExecSpec) -> kennel_core::Result<()> {
    let output = sandbox.run(command, None, 1024).await?;
    assert!(output.status.success(), "{command:?} failed: {:?}", output.status);
    Ok(())
}

/// A running `kennel serve`, and its pool.
struct WarmPool<'a> {
    environment: &'a BenchEnvironment,
    engine: Engine,
    provider: Arc<dyn Provider>,
    spec: SandboxSpec,
    claims: PoolClaims,
    resident: Child,
}

impl<'a> WarmPool<'a> {
    /// Starts a resident process, and waits until its pool has this many members.
    fn fill(
        environment: &'a BenchEnvironment,
        provider: &Arc<dyn Provider>,
        spec: &SandboxSpec,
        members: usize,
    ) -> Result<Self> {
        let directories = Directories::new(environment.path().join("state"), environment.path().join("data"), None);
        let engine = Engine::with_providers(Caller::default(), directories, [provider.clone()]);
        let mut resident = environment.kennel(&["--provider", provider.name(), "serve"]);
        let mut resident = resident.stdout(Stdio::piped()).spawn().context("start kennel serve")?;
        let (claims, output) = (engine.pool_claims()?, resident.stdout.take());
        let (provider, spec) = (provider.clone(), spec.clone());
        let pool = Self { environment, engine, provider, spec, claims, resident };
        let greeting = BufReader::new(output.context("its output is a pipe")?).lines();
        let is_last = |line: &std::io::Result<String>| line.as_ref().map_or(true, |line| line.contains("Ctrl-C"));
        greeting.into_iter().find(is_last).context("kennel serve ended")?.context("wait for kennel serve")?;
        pool.set(members)?;
        Ok(pool)
    }

    fn set(&self, members: usize) -> Result<()> {
        let members = u32::try_from(members)?;
        let pool = Pool {
            name: NAME.to_owned(),
            min: members,
            max: members,
            provider: self.provider.mode().key.provider,
            profile: None,
            sessions: None,
            spec: self.spec.clone(),
        };
        self.environment.wait(self.engine.pools()?.set(&pool))?;
        self.until_filled()
    }

    fn until_filled(&self) -> Result<()> {
        let pools = self.engine.pools()?;
        let is_filled = || {
            let all = self.environment.wait(pools.list()).unwrap_or_default();
            all.first().is_some_and(|pool| pool.ready.is_some_and(|ready| ready >= pool.min))
        };
        if !within_blocking(Duration::from_mins(1), is_filled) {
            bail!("the pool was not filled: {:?}", self.environment.wait(pools.list()));
        }
        Ok(())
    }

    /// Creates a sandbox from the pool, and runs a command in it.
    async fn claim(&self, command: &ExecSpec) -> kennel_core::Result<Sandbox> {
        let mut claimed = self.claims.claim(&*self.provider, &self.spec, PoolUse::Require).await?;
        let sandbox = claimed.create(self.provider.clone(), &self.spec).await?;
        assert!(matches!(claimed.result, Some(PoolResult::Hit { .. })), "{:?}", claimed.result);
        // A container from a pool runs.
        if !sandbox.info().status.is_up() {
            sandbox.start().await?;
        }
        run(&sandbox, command).await?;
        Ok(sandbox)
    }

    /// Waits until the resident process has nothing to do any more.
    fn until_still(&self) -> Result<()> {
        let mut last = self.wake_ups()?;
        let is_still = || {
            #[expect(clippy::disallowed_methods, reason = "it does nothing only if it does nothing for a while")]
            std::thread::sleep(Duration::from_secs(1));
            let now = self.wake_ups().unwrap_or_default();
            std::mem::replace(&mut last, now) == now
        };
        if !within_blocking(Duration::from_mins(2), is_still) {
            bail!("the resident process does not come to rest");
        }
        Ok(())
    }

    /// Returns how often the threads of the resident process have waited, or were interrupted.
    fn wake_ups(&self) -> Result<u64> {
        let mut all = 0;
        for thread in std::fs::read_dir(format!("/proc/{}/task", self.resident.id())).context("list its threads")? {
            let status =
                std::fs::read_to_string(thread?.path().join("status")).context("read the status of a thread")?;
            let counts = status.lines().filter(|line| line.contains("ctxt_switches:"));
            all += counts.filter_map(|line| line.split_whitespace().last()?.parse::<u64>().ok()).sum::<u64>();
        }
        Ok(all)
    }
}

impl Drop for WarmPool<'_> {
    fn drop(&mut self) {
        if let Ok(pools) = self.engine.pools() {
            let _ = self.environment.wait(pools.remove(NAME));
        }
        let _ = self.resident.kill();
        let _ = self.resident.wait();
        let _ = self.environment.wait(self.engine.remove_pool_members(true));
    }
}
