//! `kennel serve`: the resident process and the HTTP server, in this process or in the background.

mod activation;
mod background;
mod log;

use super::profile::start_profile;
use crate::completion;
use crate::output::print;
use crate::report;
use crate::signals::{ENDING, Signals};
use background::{Action, Running};
use kennel_core::{Error, Result};
use kennel_engine::{Engine, Events, Resident, Store};
use kennel_server::{Certificate, Listen, Passed, Server, ServerOptions, keep_token_file};
use kennel_types::{ErrorCode, NextStep};
use log::{Level, LogFormat};
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
  kennel serve --listen 0.0.0.0:7443 --tls-self-signed --server-name box.example.com
  kennel serve --detach --log-format json
  kennel serve status
  kennel serve stop
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
///
/// At an address that other machines reach, the server needs TLS: `--tls-cert` and `--tls-key`, or `--tls-self-signed`. Then
/// all TCP addresses use TLS. The server also serves sockets that systemd passes to it (`LISTEN_FDS`).
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub(crate) struct Serve {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    options: Options,
}

#[derive(Debug, clap::Args)]
struct Options {
    /// Also listen at an address and port, or at unix:PATH; port 0 is any free port
    #[arg(long, value_name = "ADDR", value_parser = parse_listen)]
    listen: Vec<Listen>,
    /// The file of the server's certificate in PEM format, followed by those that signed it
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The file of the certificate's private key in PEM format
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Use a certificate that the first start creates in the state directory; clients recognize it by its fingerprint
    #[arg(long, conflicts_with = "tls_cert")]
    tls_self_signed: bool,
    /// A name or IP address by which clients call the server, if it is not the address at which it listens
    #[arg(long = "server-name", value_name = "NAME", value_parser = parse_name)]
    server_names: Vec<String>,
    /// The domain below which ports of sandboxes have names for browsers: PORT-ID.DOMAIN [default: localhost]
    #[arg(long, value_name = "DOMAIN", value_parser = parse_domain)]
    preview_domain: Option<String>,
    /// Run in the background; return when the server is ready
    #[arg(long)]
    detach: bool,
    /// This is the process in the background
    #[arg(long, hide = true)]
    detached: bool,
    /// The format of the log on standard error: text, or one JSON object per line
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = LogFormat::Text)]
    log_format: LogFormat,
    /// The least severe messages in the log
    #[arg(long, value_enum, value_name = "LEVEL", default_value_t = Level::Info)]
    log_level: Level,
    /// Start this profile. Sessions that are opened through the API use its settings, unless they name another profile
    #[arg(long, value_name = "NAME", add = completion::profiles())]
    profile: Option<String>,
}

impl Serve {
    pub(crate) async fn run(self, engine: &Engine) -> u8 {
        let done = match self.action {
            Some(action) => action.run(engine).await,
            None if self.options.detach => background::start(engine).await,
            None => self.options.serve(engine).await.map(|()| 0),
        };
        done.unwrap_or_else(|error| report::failed(&error))
    }
}

impl Options {
    async fn serve(self, engine: &Engine) -> Result<()> {
        if self.detached {
            // The terminal of the user who started it does not end it.
            let _ = rustix::process::setsid();
        }
        let log = log::start(self.log_format, self.log_level)?;
        let mut signals = Signals::listen()?;
        let passed = activation::passed_sockets()?;
        let mut options = self.server_options(engine, passed)?;
        let resident = Resident::begin(engine).await?;
        options.pools = Some(resident.pool_counts());
        let mut greeting = Vec::new();
        if let Some(name) = &self.profile {
            start_profile(engine, name).await?;
            tracing::info!("Using container profile: {name}");
            greeting.push(format!("Using container profile: {name}"));
        }
        let server = Serving::start(engine, resident.events(), self.listen, options).await?;
        let running = Running::note(engine, &server.addresses, server.fingerprint.clone())?;
        greeting.extend(server.addresses.iter().map(|address| format!("listening at {address}")));
        greeting.extend(server.fingerprint.iter().map(|hash| format!("certificate sha256={hash}")));
        // A program that has started this one waits for the line.
        greeting.push("watching idle sandboxes; interrupt with Ctrl-C".into());
        if print(&greeting.join("\n")) != 0 {
            return Ok(());
        }
        activation::tell_ready();
        let mut served = Ok(());
        // The server ends while this process is still the resident one, so that it does not remove the socket of the next.
        let ended = async {
            while !ENDING.contains(&signals.next().await) {}
            tracing::info!("ending");
            activation::tell_stopping();
            // A second signal ends the program although requests are open.
            tokio::select! {
                done = server.end() => served = done,
                _ = signals.end() => {}
            }
        };
        let watched = resident.run(ended).await;
        running.remove();
        log.flush();
        watched.and(served)
    }

    fn server_options(&self, engine: &Engine, passed: Vec<Passed>) -> Result<ServerOptions> {
        let has_tcp = self.listen.iter().any(|listen| matches!(listen, Listen::Tcp(_)))
            || passed.iter().any(|passed| matches!(passed, Passed::Tcp(_)));
        let certificate = match (&self.tls_cert, &self.tls_key) {
            (Some(certificate), Some(key)) => Some(Certificate::read(certificate, key)?),
            _ if self.tls_self_signed => Some(self.self_signed(engine)?),
            _ => None,
        };
        if certificate.is_some() && !has_tcp {
            let message = "use TLS: the server listens at no TCP address";
            return Err(Error::new(ErrorCode::InvalidConfig, message)
                .suggest(NextStep::advice("add --listen, for example --listen 0.0.0.0:7443")));
        }
        Ok(ServerOptions {
            certificate,
            names: self.server_names.clone(),
            passed,
            pools: None,
            preview_domain: self.preview_domain.clone(),
            profile: self.profile.clone(),
        })
    }

    /// The certificate in the state directory. It has the names that are known when it is created.
    fn self_signed(&self, engine: &Engine) -> Result<Certificate> {
        let addresses = self.listen.iter().filter_map(|listen| match listen {
            Listen::Tcp(address) if !address.ip().is_unspecified() => Some(address.ip().to_string()),
            _ => None,
        });
        let names: Vec<String> = self.server_names.iter().cloned().chain(addresses).collect();
        Certificate::self_signed(&engine.directories()?.certificate(), &names)
    }
}

/// The server, which runs on threads of its own. The resident process beside it stays single-threaded.
struct Serving {
    threads: Threads,
    end: oneshot::Sender<()>,
    task: JoinHandle<Result<()>>,
    /// The addresses that the user asked for.
    addresses: Vec<String>,
    /// The hash of the certificate.
    fingerprint: Option<String>,
}

impl Serving {
    async fn start(engine: &Engine, events: Events, more: Vec<Listen>, options: ServerOptions) -> Result<Self> {
        let directories = engine.directories()?;
        let store = Store::open(directories.database()).await?;
        let is_tcp_passed = options.passed.iter().any(|passed| matches!(passed, Passed::Tcp(_)));
        if is_tcp_passed || more.iter().any(|listen| matches!(listen, Listen::Tcp(_))) {
            keep_token_file(&store, &directories.token_file()).await?;
        }
        let threads = Threads::start()?;
        let mut listen = vec![Listen::Unix(directories.api_socket())];
        listen.extend(more);
        let engine = engine.clone();
        let fingerprint = options.certificate.as_ref().map(Certificate::fingerprint);
        let listening = async move { Server::listen(engine, events, store, &listen, options).await };
        let server = joined(threads.spawn(listening).await)?;
        let addresses = server.addresses().split_off(1);
        let (end, ended) = oneshot::channel();
        let task = threads.spawn(server.run(async move {
            // It also ends if the sender is dropped.
            let _ = ended.await;
        }));
        Ok(Self { threads, end, task, addresses, fingerprint })
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

/// Parses a name of the server: an IP address or a domain.
fn parse_name(text: &str) -> std::result::Result<String, String> {
    if text.parse::<std::net::IpAddr>().is_ok() {
        return Ok(text.to_owned());
    }
    parse_domain(text).map_err(|_| "expected a domain name or an IP address, for example box.example.com".into())
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
