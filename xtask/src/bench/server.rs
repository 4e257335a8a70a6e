//! Measures `kennel serve` under load: many clients, many requests, many terminals, and large files. The clients are threads
//! that speak HTTP at the server's unix socket, where no rate limit of a token applies.

mod http;

use super::Effort;
use super::environment::BenchEnvironment;
use super::row::Row;
use super::sample::{Samples, once, succeed, take_turns};
use anyhow::{Context, Result, bail};
use http::{Connection, Terminal};
use serde_json::json;
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The clients that send commands at the same time.
const CLIENTS: usize = 64;
/// The sandboxes in which the commands run.
const SANDBOXES: usize = 8;
/// The commands of a client in one turn.
const COMMANDS: usize = 10;
/// The requests over which memory must not grow; a tenth of it with `--quick`.
const REQUESTS: usize = 100_000;
/// The terminals that are open at the same time; a tenth of it with `--quick`.
const TERMINALS: usize = 500;
/// The size of the large file; a tenth of it with `--quick`.
const LARGE: u64 = 1 << 30;

/// Compares commands over HTTP from many clients with a loop that spawns a program on the host.
pub(super) fn exec(environment: &BenchEnvironment, effort: Effort) -> Result<Vec<Row>> {
    let server = BenchServer::start(environment, SANDBOXES)?;
    let mut clients = server.connections(CLIENTS)?;
    let body = json!({"argv": [environment.busybox(), "true"]}).to_string();
    let (mut each, mut spawned, mut latencies) = (Vec::new(), Vec::new(), Vec::new());
    let count = CLIENTS * COMMANDS;
    for turn in 0..=effort.times(10) {
        let began = Instant::now();
        let took = server.exec_all(&mut clients, &body, COMMANDS)?;
        let ours = began.elapsed() / u32::try_from(count)?;
        let began = Instant::now();
        for _ in 0..count {
            environment.host_true()?;
        }
        let theirs = began.elapsed() / u32::try_from(count)?;
        if turn > 0 {
            each.push(ours);
            spawned.push(theirs);
            latencies.extend(took);
        }
    }
    let [each, spawned, latency] = [&each, &spawned, &latencies].map(|times| Samples::from_times(times));
    let slow = Samples::from_times(&[Duration::from_secs_f64(latency.p99() / 1e3)]);
    Ok(vec![
        Row::times(
            &format!("exec over HTTP from {CLIENTS} clients in {SANDBOXES} sandboxes, time per command"),
            &each,
            "a spawn loop on the host",
            &spawned,
        )
        .at_least_one_in(1.0 / 0.6),
        Row::times(&format!("exec over HTTP for one of {CLIENTS} clients, p99"), &slow, "p50", &latency),
    ])
}

/// Measures how much memory the server needs after many requests, compared with after a few.
pub(super) fn memory(environment: &BenchEnvironment, effort: Effort) -> Result<Vec<Row>> {
    let requests = if effort.is_small() { REQUESTS / 10 } else { REQUESTS };
    let server = BenchServer::start(environment, 1)?;
    let mut clients = server.connections(16)?;
    let body = json!({"argv": [environment.busybox(), "true"]}).to_string();
    // Each tenth request runs a command.
    let mut load = |count: usize| -> Result<()> {
        for _ in 0..count / (16 * 10) {
            server.exec_all(&mut clients, &body, 1)?;
            BenchServer::get_all(&mut clients, "/v1/sandboxes/bench-0", 9)?;
        }
        Ok(())
    };
    load(requests / 5)?;
    let before = server.memory()?;
    load(requests - requests / 5)?;
    let grown = server.memory()?.saturating_sub(before);
    let what = format!("growth of the server's memory over {} requests", requests - requests / 5);
    Ok(vec![Row::size(&what, grown).at_most_bytes(2_000_000)])
}

/// Opens many terminals at once, each of which must echo a line.
pub(super) fn terminals(environment: &BenchEnvironment, effort: Effort) -> Result<Vec<Row>> {
    let count = if effort.is_small() { TERMINALS / 10 } else { TERMINALS };
    let server = BenchServer::start(environment, SANDBOXES)?;
    let before = server.memory()?;
    let mut open = Vec::new();
    for at in 0..count {
        open.push(Terminal::open(&server.socket, &format!("bench-{}", at % SANDBOXES))?);
    }
    let mut took = Vec::new();
    for terminal in &mut open {
        let began = Instant::now();
        terminal.echo("hello")?;
        took.push(began.elapsed());
    }
    let memory = server.memory()?.saturating_sub(before) / count as u64;
    let took = Samples::from_times(&took);
    Ok(vec![
        Row::spread(&format!("a line echoed by one of {count} terminals that are open at once, p95"), &took),
        Row::size(&format!("the server's memory for one of {count} terminals"), memory).at_most_bytes(1_000_000),
    ])
}

/// Compares a large file to and from a sandbox with `cp` on the host.
pub(super) fn files(environment: &BenchEnvironment, effort: Effort) -> Result<Vec<Row>> {
    let size = if effort.is_small() { LARGE / 10 } else { LARGE };
    let server = BenchServer::start(environment, 1)?;
    let path = |name: &str| environment.path().join(name).display().to_string();
    let (from, back, copy) = (path("large"), path("large.back"), path("large.copy"));
    let mut file = File::create(&from)?;
    let mut random = std::io::Read::take(File::open("/dev/urandom")?, size);
    std::io::copy(&mut random, &mut file)?;
    let url = format!("unix:{}", server.socket.display());
    let cp = |from: &str, to: &str| succeed(&mut environment.kennel(&["--server", &url, "cp", from, to]));
    // There is something to read in the first turn too.
    cp(&from, "bench-0:/tmp/down")?;
    let [up, down, host] = take_turns(
        effort.times(3),
        [
            once(|| cp(&from, "bench-0:/tmp/up")),
            once(|| cp("bench-0:/tmp/down", &back)),
            once(|| succeed(Command::new("cp").args([&from, &copy]))),
        ],
    )?;
    for path in [from, back, copy] {
        let _ = std::fs::remove_file(path);
    }
    let mebibytes = size >> 20;
    Ok(vec![
        Row::times(&format!("{mebibytes} MiB to a sandbox over HTTP"), &up, "cp on the host", &host),
        Row::times(&format!("{mebibytes} MiB from a sandbox over HTTP"), &down, "cp on the host", &host),
    ])
}

/// A running `kennel serve` with sandboxes `bench-0`, `bench-1` and so on.
struct BenchServer<'a> {
    environment: &'a BenchEnvironment,
    socket: PathBuf,
    process: Child,
    sandboxes: usize,
}

impl<'a> BenchServer<'a> {
    fn start(environment: &'a BenchEnvironment, sandboxes: usize) -> Result<Self> {
        let mut serve = environment.kennel(&["--provider", "native", "serve", "--log-level", "warn"]);
        let mut process = serve.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().context("start kennel serve")?;
        let output = BufReader::new(process.stdout.take().context("its output is a pipe")?);
        let server = Self { environment, socket: environment.path().join("state/api.sock"), process, sandboxes };
        let is_last = |line: &std::io::Result<String>| line.as_ref().map_or(true, |line| line.contains("Ctrl-C"));
        output.lines().find(is_last).context("kennel serve ended")?.context("wait for kennel serve")?;
        let mut connection = Connection::open(&server.socket)?;
        for at in 0..sandboxes {
            let body = json!({"name": format!("bench-{at}"), "network": "none"}).to_string();
            connection.call("POST", "/v1/sandboxes", &body, 201)?;
        }
        Ok(server)
    }

    fn connections(&self, count: usize) -> Result<Vec<Connection>> {
        (0..count).map(|_| Connection::open(&self.socket)).collect()
    }

    /// Lets each client run a command several times. Returns the time of each.
    fn exec_all(&self, clients: &mut [Connection], body: &str, times: usize) -> Result<Vec<Duration>> {
        let sandboxes = self.sandboxes;
        each(clients, |at, client| {
            let path = format!("/v1/sandboxes/bench-{}/exec", at % sandboxes);
            (0..times).map(|_| timed(|| client.call("POST", &path, body, 200))).collect()
        })
    }

    /// Lets each client send a request several times.
    fn get_all(clients: &mut [Connection], path: &str, times: usize) -> Result<()> {
        each(clients, |_, client| (0..times).map(|_| timed(|| client.call("GET", path, "", 200))).collect()).map(drop)
    }

    /// The memory of the server that no other process shares, in bytes.
    fn memory(&self) -> Result<u64> {
        let text = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", self.process.id()))?;
        let line = text.lines().find_map(|line| line.strip_prefix("Pss:")).context("it has a size")?;
        let kibibytes: u64 = line.trim().trim_end_matches(" kB").parse()?;
        Ok(kibibytes * 1024)
    }
}

/// Calls a function with each connection at the same time.
fn each(
    clients: &mut [Connection],
    call: impl Fn(usize, &mut Connection) -> Result<Vec<Duration>> + Sync,
) -> Result<Vec<Duration>> {
    let call = &call;
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            clients.iter_mut().enumerate().map(|(at, client)| scope.spawn(move || call(at, client))).collect();
        let mut all = Vec::new();
        for thread in threads {
            let Ok(done) = thread.join() else { bail!("a client panicked") };
            all.extend(done?);
        }
        Ok(all)
    })
}

fn timed(act: impl FnOnce() -> Result<()>) -> Result<Duration> {
    let began = Instant::now();
    act()?;
    Ok(began.elapsed())
}

impl Drop for BenchServer<'_> {
    fn drop(&mut self) {
        for at in 0..self.sandboxes {
            let name = format!("bench-{at}");
            let _ =
                succeed(&mut self.environment.kennel(&["--provider", "native", "rm", "--force", "--volumes", &name]));
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
