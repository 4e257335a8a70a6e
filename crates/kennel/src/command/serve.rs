//! `kennel serve`.

use super::profile::start_profile;
use crate::completion;
use crate::output::print;
use crate::report;
use crate::signals::{ENDING, Signals};
use kennel_core::{Error, Result};
use kennel_engine::{Engine, Events, Resident, Store};
use kennel_server::{Listen, Server, ServerOptions, keep_token_file};
use kennel_types::ErrorCode;
use std::net::SocketAddr;
use std::path::PathBuf;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::{JoinError, JoinHandle};

const EXAMPLES: &str = "\
Examples:
  kennel serve
  kennel serve --listen 127.0.0.1:7070   also serve the HTTP API at a TCP port
  kennel serve --listen 127.0.0.1:7070 --preview-domain preview.example.com
  kennel serve --profile dev             sessions of the API use this profile
  kennel create --name box --idle-pause 1m --idle-timeout 1h
  kennel pool set quick --min 4";

/// Serve the HTTP API, pause and stop idle sandboxes, and fill pools
///
/// Runs the resident process. It pauses sandboxes that have an idle pause, and stops them after their idle timeout. The
/// next command in such a sandbox resumes or starts it. It also makes the members of pools (see `kennel pool`). There can
/// be one resident process for each user, or for each `KENNEL_HOME`. All other commands work with and without it. When it
/// ends, sandboxes keep running, and a paused sandbox is resumed by its next use.
///
/// It also serves the HTTP API at the socket `api.sock` in the state directory, where the same user needs no token. With
/// `--listen` it serves the API at another address too, where every request needs a token: see `kennel token`. Its first
/// start at a TCP address creates a token with all rights in the file `token` in the state directory.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Serve {
    /// Also listen at a loopback address and port, or at unix:PATH; port 0 is any free port
    #[arg(long, value_name = "ADDR", value_parser = parse_listen)]
    listen: Vec<Listen>,
    /// The domain below which ports of sandboxes have names for browsers: PORT-ID.DOMAIN [default: localhost]
    #[arg(long, value_name = "DOMAIN", value_parser = parse_domain)]
    preview_domain: Option<String>,
    /// Start this profile. Sessions that are opened through the API use its settings, unless they name another profile
    #[arg(long, value_name = "NAME", add = completion::profiles())]
    profile: Option<String>,
}

impl Serve {
    pub(crate) async fn run(self, engine: &Engine) -> u8 {
        self.serve(engine).await.map_or_else(|error| report::failed(&error), |()| 0)
    }

    async fn serve(self, engine: &Engine) -> Result<()> {
        let mut signals = Signals::listen()?;
        let resident = Resident::begin(engine).await?;
        let mut greeting = Vec::new();
        if let Some(name) = &self.profile {
            start_profile(engine, name).await?;
            greeting.push(format!("Using container profile: {name}"));
        }
        let options = ServerOptions { preview_domain: self.preview_domain, profile: self.profile };
        let server = Serving::start(engine, resident.events(), self.listen, options).await?;
        greeting.extend(server.addresses.iter().map(|address| format!("listening at {address}")));
        // A program that has started this one waits for the line.
        greeting.push("watching idle sandboxes; interrupt with Ctrl-C".into());
        if print(&greeting.join("\n")) != 0 {
            return Ok(());
        }
        let mut served = Ok(());
        // The server ends while this process is still the resident one, so that it does not remove the socket of the next.
        let ended = async {
            while !ENDING.contains(&signals.next().await) {}
            // A second signal ends the program although requests are open.
            tokio::select! {
                done = server.end() => served = done,
                _ = signals.end() => {}
            }
        };
        let watched = resident.run(ended).await;
        watched.and(served)
    }
}

/// The server, which runs on threads of its own. The resident process beside it stays single-threaded.
struct Serving {
    threads: Threads,
    end: oneshot::Sender<()>,
    task: JoinHandle<Result<()>>,
    /// The addresses that the user asked for.
    addresses: Vec<String>,
}

impl Serving {
    async fn start(engine: &Engine, events: Events, more: Vec<Listen>, options: ServerOptions) -> Result<Self> {
        let directories = engine.directories()?;
        let store = Store::open(directories.database()).await?;
        if more.iter().any(|listen| matches!(listen, Listen::Tcp(_))) {
            keep_token_file(&store, &directories.token_file()).await?;
        }
        let threads = Threads::start()?;
        let mut listen = vec![Listen::Unix(directories.api_socket())];
        listen.extend(more);
        let engine = engine.clone();
        let listening = async move { Server::listen(engine, events, store, &listen, options).await };
        let server = joined(threads.spawn(listening).await)?;
        let addresses = server.addresses().split_off(1);
        let (end, ended) = oneshot::channel();
        let task = threads.spawn(server.run(async move {
            // It also ends if the sender is dropped.
            let _ = ended.await;
        }));
        Ok(Self { threads, end, task, addresses })
    }

    /// Ends the server, and waits for open requests for a while.
    async fn end(self) -> Result<()> {
        let Self { threads: _threads, end, task, .. } = self;
        let _ = end.send(());
        joined(task.await)
    }
}

/// Returns the result of a task of the server.
fn joined<T>(done: std::result::Result<Result<T>, JoinError>) -> Result<T> {
    done.unwrap_or_else(|error| Err(Error::new(ErrorCode::Internal, format!("the server ended early: {error}"))))
}

/// The threads of the server.
struct Threads(Option<Runtime>);

impl Threads {
    fn start() -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().thread_name("kennel-http").build();
        runtime.map(|runtime| Self(Some(runtime))).map_err(|error| Error::io("start the threads of the server", error))
    }

    fn spawn<F>(&self, task: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send + 'static> + Send + 'static,
    {
        self.0.as_ref().expect("the runtime is there until it is dropped").spawn(task)
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            // An asynchronous program must not wait for threads.
            runtime.shutdown_background();
        }
    }
}

/// Parses an address: `IP:PORT`, `localhost:PORT` or `unix:PATH`. No name is resolved.
fn parse_listen(text: &str) -> std::result::Result<Listen, String> {
    if let Some(path) = text.strip_prefix("unix:") {
        let path = PathBuf::from(path);
        return if path.is_absolute() {
            Ok(Listen::Unix(path))
        } else {
            Err("expected an absolute path after unix:".into())
        };
    }
    let address = text.strip_prefix("localhost:").map_or_else(|| text.to_owned(), |port| format!("127.0.0.1:{port}"));
    let parsed = address.parse::<SocketAddr>();
    parsed
        .map(Listen::Tcp)
        .map_err(|_| "expected IP:PORT, localhost:PORT or unix:PATH, for example 127.0.0.1:7070".into())
}

/// Parses a domain: labels of letters, digits and hyphens, with dots between them.
fn parse_domain(text: &str) -> std::result::Result<String, String> {
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    // The name of a port adds up to 70 characters, and a whole name has 253 at most.
    if text.len() <= 180 && text.split('.').all(is_label) && text.parse::<std::net::IpAddr>().is_err() {
        return Ok(text.to_ascii_lowercase());
    }
    Err("expected a domain name, for example preview.example.com".into())
}
