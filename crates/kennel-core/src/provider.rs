//! What a backend has to do: make and remove sandboxes, and hand out a byte stream to the keeper inside.

use crate::{Error, Result};
use futures_util::stream::Stream;
use kennel_proto::Channel;
use kennel_types::{
    Availability, Backing, ErrorCode, Event, GitProtection, Limits, Mode, NetworkMode, Pull, SandboxId, SandboxInfo,
    SandboxSpec, Stats, Support,
};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::pin::Pin;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};

/// Bytes to and from a keeper.
pub trait ByteStream: AsyncRead + AsyncWrite + Unpin + Send + Sync {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send + Sync> ByteStream for T {}

/// A keeper that answered the phone; nothing was said yet.
pub struct Dialed {
    /// The bytes.
    pub stream: Box<dyn ByteStream>,
    /// The secret to say, where the keeper wants one.
    pub token: Option<Vec<u8>>,
    /// Whether a tied sandbox lives as long as this connection.
    pub owner: bool,
}

/// A piece of the main process's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogChunk {
    /// `Stdout` or `Stderr`.
    pub channel: Channel,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// Which part of a log.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogOptions {
    /// Only the last lines.
    pub tail: Option<usize>,
    /// Go on until the sandbox ends.
    pub follow: bool,
}

/// A log as it is read.
pub type LogStream = Pin<Box<dyn Stream<Item = Result<LogChunk>> + Send>>;
/// Events as they happen.
pub type EventStream = Pin<Box<dyn Stream<Item = Result<Event>> + Send>>;

/// How far a part of an image is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PullProgress {
    /// The part: a layer.
    pub part: String,
    /// What is being done with it.
    pub doing: String,
    /// How many bytes that is done for, and of how many, where both are known.
    pub bytes: Option<(u64, u64)>,
}

/// An image to build.
#[derive(Clone, Debug, Default)]
pub struct ImageBuild {
    /// The directory that is built from.
    pub context: PathBuf,
    /// The file that says how; `Dockerfile` or `Containerfile` of the directory if not given.
    pub file: Option<PathBuf>,
    /// What it is called.
    pub tag: String,
    /// Values for the file's arguments.
    pub args: BTreeMap<String, String>,
    /// What each step may use: memory and CPUs.
    pub limits: Limits,
    /// Do every step again.
    pub no_cache: bool,
    /// Pull what it is made from, also if it is there.
    pub pull: bool,
}

/// What goes with a sandbox when it is removed.
#[derive(Clone, Copy, Debug, Default)]
pub struct RemoveOptions {
    /// Its data volumes too.
    pub volumes: bool,
    /// Also if it runs.
    pub force: bool,
}

/// A backend. Exec, terminals, files and the rest are not here: they go through [`Provider::dial`] and the keeper, and
/// so behave the same everywhere.
#[async_trait::async_trait]
pub trait Provider: Send + Sync {
    /// Its name, as people type it.
    #[allow(clippy::misnamed_getters)] // the row's `name` is the mode's, not the provider's
    fn name(&self) -> &'static str {
        self.mode().provider
    }

    /// The row of the mode table it keeps to here.
    fn mode(&self) -> &'static Mode;

    /// All rows that can be had here: what is asked for decides. The first is that of [`Provider::mode`].
    fn modes(&self) -> Vec<&'static Mode> {
        vec![self.mode()]
    }

    /// Whether it can be used here, and what is missing.
    async fn probe(&self) -> Availability;

    /// Makes a sandbox. What cannot be given is refused, never left out.
    async fn create(&self, spec: &SandboxSpec) -> Result<SandboxInfo>;

    /// Starts it; its keeper can be dialled afterwards. Starting a running one is no error.
    async fn start(&self, id: &SandboxId) -> Result<()>;

    /// Starts it and dials its keeper. Where both can go on at once, it comes back before the keeper listens: what goes
    /// wrong then is said on the stream, in place of the keeper's welcome.
    async fn launch(&self, id: &SandboxId) -> Result<Dialed> {
        self.start(id).await?;
        self.dial(id).await
    }

    /// Ends everything in it: TERM, `grace`, KILL. Stopping a stopped one is no error.
    async fn stop(&self, id: &SandboxId, grace: Duration) -> Result<()>;

    /// Removes it.
    async fn remove(&self, id: &SandboxId, options: RemoveOptions) -> Result<()>;

    /// Makes everything in it stand still. Pausing a paused one is no error.
    async fn pause(&self, _id: &SandboxId) -> Result<()> {
        Err(Error::unsupported(self.name(), "pauses").hint("kennel explain pause"))
    }

    /// Lets it go on. One that runs is no error.
    async fn unpause(&self, _id: &SandboxId) -> Result<()> {
        Err(Error::unsupported(self.name(), "pauses").hint("kennel explain pause"))
    }

    /// Gives it another name. `already_exists` if that is taken.
    async fn rename(&self, id: &SandboxId, name: &str) -> Result<()>;

    /// The sandbox of that id or name, as it is now.
    async fn get(&self, id_or_name: &str) -> Result<SandboxInfo>;

    /// All sandboxes of this installation. An error is never an empty list.
    async fn list(&self) -> Result<Vec<SandboxInfo>>;

    /// A byte stream to the keeper. `stopped` if it does not run.
    async fn dial(&self, id: &SandboxId) -> Result<Dialed>;

    /// The main process's log.
    async fn logs(&self, id: &SandboxId, options: LogOptions) -> Result<LogStream>;

    /// What happens to sandboxes from now on.
    async fn watch(&self) -> Result<EventStream>;

    /// What a sandbox uses, where the backend knows better than the keeper inside.
    async fn stats(&self, _id: &SandboxId) -> Result<Option<Stats>> {
        Ok(None)
    }

    /// Makes sure that an image is there, as `when` says, and tells how far it is. Nothing to do where no images are run.
    async fn pull(&self, _image: &str, _when: Pull, _tell: &(dyn Fn(PullProgress) + Sync)) -> Result<()> {
        Ok(())
    }

    /// Removes what was left behind by programs that were killed, and is nobody's any more. Answers what, in words.
    async fn sweep(&self) -> Result<Vec<String>> {
        self.list().await.map(|_| Vec::new())
    }

    /// Builds an image, and tells line by line what is done.
    async fn build_image(&self, _build: &ImageBuild, _tell: &(dyn Fn(String) + Sync)) -> Result<()> {
        Err(Error::unsupported(self.name(), "image builds").hint("use --provider podman or --provider docker"))
    }
}

/// A fresh id.
pub fn new_id() -> Result<SandboxId> {
    let mut bytes = [0; 12];
    getrandom::fill(&mut bytes)
        .map_err(|error| Error::new(ErrorCode::Internal, format!("read random bytes for an id: {error}")))?;
    Ok(SandboxId::from_random(bytes))
}

/// Refuses what cannot be a name: it ends up in paths and labels.
pub fn check_name(name: &str) -> Result<()> {
    SandboxId::new(name).map(drop).map_err(|error| Error::new(ErrorCode::InvalidConfig, error.to_string()))
}

/// Refuses ports that cannot be published.
fn check_ports(mode: &Mode, spec: &SandboxSpec, network: NetworkMode) -> Result<()> {
    let Some(port) = spec.ports.first() else { return Ok(()) };
    if mode.ports == Support::Refused {
        return Err(
            Error::unsupported(mode.provider, format!("the published port {port}")).hint("kennel explain ports")
        );
    }
    if network != NetworkMode::Bridge {
        let why = match network {
            NetworkMode::None => "nothing gets into a sandbox with network none",
            _ => "a sandbox with network host is reached without",
        };
        return Err(Error::new(ErrorCode::InvalidConfig, format!("publish port {port}: {why}"))
            .hint("use --network bridge, or leave out --publish"));
    }
    for (at, port) in spec.ports.iter().enumerate() {
        let same = |other: &&kennel_types::Port| {
            port.host.is_some() && (port.host, port.protocol) == (other.host, other.protocol)
        };
        if let Some(other) = spec.ports[..at].iter().find(same) {
            return Err(Error::new(
                ErrorCode::InvalidConfig,
                format!("publish port {port}: {other} is at the same place"),
            )
            .hint("name another port outside, or none for any free one"));
        }
    }
    Ok(())
}

/// Refuses volumes that nobody would find again, or that lie where something else does.
fn check_volumes(spec: &SandboxSpec) -> Result<()> {
    let refuse = |message: String, hint: &str| Err(Error::new(ErrorCode::InvalidConfig, message).hint(hint));
    if spec.data && spec.tied && spec.name.is_none() {
        let message = "a volume of its own for a sandbox that is removed at once and has no name: nobody would find it";
        return refuse(message.into(), "give the sandbox a --name");
    }
    let clean = |target: &str| target.split('/').filter(|name| !name.is_empty()).collect::<Vec<_>>().join("/");
    let mut targets: Vec<String> = spec.mounts.iter().map(|mount| clean(&mount.target)).collect();
    targets.extend(spec.data.then(|| ".data".to_owned()));
    for cache in &spec.caches {
        check_name(&cache.name)?;
        if !cache.target.starts_with('/') || cache.target.split('/').any(|name| name == "..") {
            let message = format!("cache {} at {}: the path must be absolute", cache.name, cache.target);
            return refuse(message, "use NAME:TARGET, as in npm:/root/.npm");
        }
        targets.push(clean(&cache.target));
    }
    targets.sort_unstable();
    match targets.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(twice) => refuse(format!("two things are to be at /{}", twice[0]), "choose another path for one of them"),
        None => Ok(()),
    }
}

/// Refuses a read-only `.git/config` where it cannot be held.
fn check_git(mode: &Mode, spec: &SandboxSpec) -> Result<()> {
    if spec.protect_git != GitProtection::Config {
        return Ok(());
    }
    let without = "leave it out, or say --protect-git=false";
    if spec.workspace.is_some() && mode.workspace == Support::Given && mode.mounts == Support::Refused {
        return Err(Error::unsupported(mode.provider, "a read-only .git/config").hint(without));
    }
    if spec.nesting {
        let message = "--protect-git cannot hold with --nesting: in a mount namespace made inside, .git can be renamed";
        return Err(Error::new(ErrorCode::InvalidConfig, message).hint("leave out one of them"));
    }
    Ok(())
}

/// Refuses what the mode does not give, and answers the network to use. Every provider calls it first in `create`.
pub fn require(mode: &Mode, spec: &SandboxSpec) -> Result<NetworkMode> {
    let refuse = |what: String, feature: &str| {
        Err(Error::unsupported(mode.provider, what).hint(format!("kennel explain {feature}")))
    };
    if mode.limits == Support::Refused && spec.limits.on_processes() {
        return refuse("memory, cpu or process limits".into(), "limits");
    }
    if mode.disk == Support::Refused && spec.limits.disk.is_some() {
        return refuse("a limit on its disk".into(), "disk");
    }
    if mode.nesting == Support::Refused && spec.nesting {
        return refuse("sandboxes inside".into(), "nesting");
    }
    check_git(mode, spec)?;
    crate::labels::check_labels(&spec.labels)?;
    if let (Support::Refused, Some(mount)) = (mode.mounts, spec.mounts.first()) {
        return refuse(format!("a mount at {}", mount.target), "mounts");
    }
    if mode.users == Support::Refused && spec.user.is_some() {
        return refuse("commands as another user".into(), "users");
    }
    if mode.volumes == Support::Refused && (spec.data || !spec.caches.is_empty()) {
        return refuse("volumes".into(), "volumes");
    }
    check_volumes(spec)?;
    if mode.keeper == Support::Refused {
        let asked = [
            (spec.tied, "sandboxes that end with their maker"),
            (spec.idle_seconds.is_some(), "an end of sandboxes that nobody uses"),
        ];
        if let Some((_, what)) = asked.into_iter().find(|(asked, _)| *asked) {
            return refuse(format!("{what}: no keeper runs on that engine's machine"), "keeper");
        }
    }
    if mode.read_only == Support::Refused && spec.read_only {
        return refuse("a read-only root".into(), "read_only");
    }
    if mode.backing != Backing::Image {
        let engine = "leave it out, or use --provider docker or podman";
        let asked = [
            (spec.runtime.is_some(), "another runtime", engine),
            (spec.userns.is_some(), "another user namespace", "leave it out, or use --provider podman"),
            (spec.image_main, "an image's own command", "name an image with --image, or leave it out"),
        ];
        if let Some((_, what, hint)) = asked.into_iter().find(|(asked, ..)| *asked) {
            return Err(Error::unsupported(mode.provider, what).hint(hint));
        }
    }
    match (mode.backing, &spec.image) {
        (Backing::Image, None) => {
            return Err(Error::new(ErrorCode::InvalidConfig, format!("the {} provider needs an image", mode.provider))
                .hint("name one with --image IMAGE"));
        }
        (Backing::Image, Some(_)) | (_, None) => {}
        (_, Some(image)) => {
            return refuse(format!("the image {image}: it runs on the host's own files"), "images");
        }
    }
    let network = spec.network.unwrap_or(mode.default_network());
    check_ports(mode, spec, network)?;
    if !mode.networks.contains(&network) {
        let known: Vec<String> = mode.networks.iter().map(ToString::to_string).collect();
        return Err(Error::unsupported(mode.provider, format!("network {network}"))
            .hint(format!("use --network {}", known.join(" or --network "))));
    }
    for mount in &spec.mounts {
        if !mount.host.is_absolute() || !mount.target.starts_with('/') {
            return Err(Error::new(
                ErrorCode::InvalidConfig,
                format!("mount {}:{}: both paths must be absolute", mount.host.display(), mount.target),
            ));
        }
    }
    if let Some(name) = &spec.name {
        check_name(name)?;
    }
    Ok(network)
}
