//! The provider trait: creates and removes sandboxes, and opens byte streams to their keepers.

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

/// A byte stream to a keeper.
pub trait ByteStream: AsyncRead + AsyncWrite + Unpin + Send + Sync {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send + Sync> ByteStream for T {}

/// An open keeper connection, before the handshake.
pub struct Dialed {
    /// The byte stream.
    pub stream: Box<dyn ByteStream>,
    /// The secret token, if the keeper requires one.
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

/// Selects a part of a log.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogOptions {
    /// Return only the last lines.
    pub tail: Option<usize>,
    /// Continue until the sandbox ends.
    pub follow: bool,
}

/// A stream of log chunks.
pub type LogStream = Pin<Box<dyn Stream<Item = Result<LogChunk>> + Send>>;
/// A stream of events.
pub type EventStream = Pin<Box<dyn Stream<Item = Result<Event>> + Send>>;

/// The progress of one part of an image pull.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PullProgress {
    /// The name of the part: a layer.
    pub part: String,
    /// The current step.
    pub doing: String,
    /// The number of bytes that are done, and the total number, if both are known.
    pub bytes: Option<(u64, u64)>,
}

/// An image to build.
#[derive(Clone, Debug, Default)]
pub struct ImageBuild {
    /// The build context directory.
    pub context: PathBuf,
    /// The build file. Defaults to `Dockerfile` or `Containerfile` in the context.
    pub file: Option<PathBuf>,
    /// The name of the new image.
    pub tag: String,
    /// Values of build arguments.
    pub args: BTreeMap<String, String>,
    /// Memory and CPU limits of each build step.
    pub limits: Limits,
    /// Run all steps again, without the cache.
    pub no_cache: bool,
    /// Pull the base image even if it is present.
    pub pull: bool,
}

/// Options for removing a sandbox.
#[derive(Clone, Copy, Debug, Default)]
pub struct RemoveOptions {
    /// Also remove its data volumes.
    pub volumes: bool,
    /// Also remove a running sandbox.
    pub force: bool,
}

/// A backend for sandboxes. Commands, terminals, files and so on are not part of this trait: they use
/// [`Provider::dial`] and the keeper, so they behave the same on every provider.
#[async_trait::async_trait]
pub trait Provider: Send + Sync {
    /// The provider's name on the command line.
    #[allow(clippy::misnamed_getters)] // `Mode::name` is the name of the mode, not of the provider
    fn name(&self) -> &'static str {
        self.mode().provider()
    }

    /// The mode that this provider has by default on this machine.
    fn mode(&self) -> &'static Mode;

    /// All modes that are possible on this machine; the spec decides which one applies. The first is
    /// [`Provider::mode`].
    fn modes(&self) -> Vec<&'static Mode> {
        vec![self.mode()]
    }

    /// Whether the provider can be used on this machine, and what is missing.
    async fn probe(&self) -> Availability;

    /// Creates a sandbox. If anything in the spec cannot be provided, creation fails.
    async fn create(&self, spec: &SandboxSpec) -> Result<SandboxInfo>;

    /// Starts a sandbox. Its keeper can be dialled afterwards. It is no error if it is already running.
    async fn start(&self, id: &SandboxId) -> Result<()>;

    /// Starts a sandbox and dials its keeper. If the provider can do both at once, this returns before the keeper
    /// listens. An error that occurs later arrives on the stream in place of the keeper's welcome.
    async fn launch(&self, id: &SandboxId) -> Result<Dialed> {
        self.start(id).await?;
        self.dial(id).await
    }

    /// Ends all processes of a sandbox: TERM, `grace`, KILL. It is no error if it is already stopped.
    async fn stop(&self, id: &SandboxId, grace: Duration) -> Result<()>;

    /// Removes a sandbox.
    async fn remove(&self, id: &SandboxId, options: RemoveOptions) -> Result<()>;

    /// Pauses all processes of a sandbox. It is no error if it is already paused.
    async fn pause(&self, _id: &SandboxId) -> Result<()> {
        Err(Error::unsupported(self.name(), "pausing").hint("kennel explain pause"))
    }

    /// Resumes a paused sandbox. It is no error if it is running.
    async fn unpause(&self, _id: &SandboxId) -> Result<()> {
        Err(Error::unsupported(self.name(), "pausing").hint("kennel explain pause"))
    }

    /// Renames a sandbox. Fails with `already_exists` if the name is in use.
    async fn rename(&self, id: &SandboxId, name: &str) -> Result<()>;

    /// Returns the current state of the sandbox with this id or name.
    async fn get(&self, id_or_name: &str) -> Result<SandboxInfo>;

    /// Returns all sandboxes of this installation. A failure is an error, never an empty list.
    async fn list(&self) -> Result<Vec<SandboxInfo>>;

    /// Opens a byte stream to the keeper. Fails with `stopped` if the sandbox is not running.
    async fn dial(&self, id: &SandboxId) -> Result<Dialed>;

    /// Returns the log of the main process.
    async fn logs(&self, id: &SandboxId, options: LogOptions) -> Result<LogStream>;

    /// Returns the events of all sandboxes from now on.
    async fn watch(&self) -> Result<EventStream>;

    /// Returns the resource usage of a sandbox, if the backend knows it better than the keeper.
    async fn stats(&self, _id: &SandboxId) -> Result<Option<Stats>> {
        Ok(None)
    }

    /// Makes sure that an image is present, according to `when`, and reports progress. Does nothing for providers
    /// without images.
    async fn pull(&self, _image: &str, _when: Pull, _tell: &(dyn Fn(PullProgress) + Sync)) -> Result<()> {
        Ok(())
    }

    /// Removes leftovers of killed programs that belong to no sandbox. Returns a description of each.
    async fn sweep(&self) -> Result<Vec<String>> {
        self.list().await.map(|_| Vec::new())
    }

    /// Builds an image, and reports each line of the build output.
    async fn build_image(&self, _build: &ImageBuild, _tell: &(dyn Fn(String) + Sync)) -> Result<()> {
        Err(Error::unsupported(self.name(), "building images").hint("use --provider podman or --provider docker"))
    }
}

/// Creates a random id.
pub fn new_id() -> Result<SandboxId> {
    let mut bytes = [0; 12];
    getrandom::fill(&mut bytes)
        .map_err(|error| Error::new(ErrorCode::Internal, format!("read random bytes for an id: {error}")))?;
    Ok(SandboxId::from_random(bytes))
}

/// Checks that a name is valid. Names are used in paths and labels.
pub fn check_name(name: &str) -> Result<()> {
    SandboxId::new(name).map(drop).map_err(|error| Error::new(ErrorCode::InvalidConfig, error.to_string()))
}

/// Refuses ports that cannot be published.
fn check_ports(mode: &Mode, spec: &SandboxSpec, network: NetworkMode) -> Result<()> {
    let Some(port) = spec.ports.first() else { return Ok(()) };
    if mode.ports == Support::Refused {
        return Err(
            Error::unsupported(mode.provider(), format!("the published port {port}")).hint("kennel explain ports")
        );
    }
    if network != NetworkMode::Bridge {
        let why = match network {
            NetworkMode::None => "a sandbox with network none cannot be reached",
            _ => "a sandbox with network host needs no published ports",
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
                format!("publish port {port}: {other} uses the same port of the host"),
            )
            .hint("use another port of the host, or none for any free port"));
        }
    }
    Ok(())
}

/// Refuses volumes that nobody could find again, or whose path inside is used twice.
fn check_volumes(spec: &SandboxSpec) -> Result<()> {
    let refuse = |message: String, hint: &str| Err(Error::new(ErrorCode::InvalidConfig, message).hint(hint));
    if spec.data && spec.tied && spec.name.is_none() {
        let message = "a data volume needs a sandbox with a name: this one has none, and is removed at once";
        return refuse(message.into(), "give the sandbox a --name");
    }
    let clean = |target: &str| target.split('/').filter(|name| !name.is_empty()).collect::<Vec<_>>().join("/");
    let mut targets: Vec<String> = spec.mounts.iter().map(|mount| clean(&mount.target)).collect();
    targets.extend(spec.data.then(|| ".data".to_owned()));
    for cache in &spec.caches {
        check_name(&cache.name)?;
        if !cache.target.starts_with('/') || cache.target.split('/').any(|name| name == "..") {
            let message = format!("cache {} at {}: the path must be absolute", cache.name, cache.target);
            return refuse(message, "use NAME:TARGET, for example npm:/root/.npm");
        }
        targets.push(clean(&cache.target));
    }
    targets.sort_unstable();
    match targets.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(twice) => refuse(
            format!("two mounts or volumes have the same path /{}", twice[0]),
            "choose another path for one of them",
        ),
        None => Ok(()),
    }
}

/// Refuses a read-only `.git/config` if it cannot be enforced.
fn check_git(mode: &Mode, spec: &SandboxSpec) -> Result<()> {
    if spec.protect_git != GitProtection::Config {
        return Ok(());
    }
    let without = "leave it out, or use --protect-git=false";
    if spec.workspace.is_some() && mode.workspace == Support::Given && mode.mounts == Support::Refused {
        return Err(Error::unsupported(mode.provider(), "a read-only .git/config").hint(without));
    }
    if spec.nesting {
        let message =
            "--protect-git cannot be enforced with --nesting: .git can be renamed in a nested mount namespace";
        return Err(Error::new(ErrorCode::InvalidConfig, message).hint("leave out one of them"));
    }
    Ok(())
}

/// Refuses everything that the mode does not support, and returns the network to use. Every provider calls this first
/// in `create`.
pub fn require(mode: &Mode, spec: &SandboxSpec) -> Result<NetworkMode> {
    let refuse = |what: String, feature: &str| {
        Err(Error::unsupported(mode.provider(), what).hint(format!("kennel explain {feature}")))
    };
    if mode.limits == Support::Refused && spec.limits.on_processes() {
        return refuse("memory, cpu or process limits".into(), "limits");
    }
    if mode.disk == Support::Refused && spec.limits.disk.is_some() {
        return refuse("disk limits".into(), "disk");
    }
    if mode.nesting == Support::Refused && spec.nesting {
        return refuse("nested sandboxes".into(), "nesting");
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
        let asked =
            [(spec.tied, "sandboxes that are tied to their creator"), (spec.idle_seconds.is_some(), "idle timeouts")];
        if let Some((_, what)) = asked.into_iter().find(|(asked, _)| *asked) {
            return refuse(format!("{what}: no keeper runs on that engine's machine"), "keeper");
        }
    }
    if mode.read_only == Support::Refused && spec.read_only {
        return refuse("a read-only root filesystem".into(), "read_only");
    }
    if mode.backing != Backing::Image {
        let engine = "leave it out, or use --provider docker or podman";
        let asked = [
            (spec.runtime.is_some(), "a choice of runtime", engine),
            (spec.userns.is_some(), "a choice of user namespace", "leave it out, or use --provider podman"),
            (spec.image_main, "an image's own command", "name an image with --image, or leave it out"),
        ];
        if let Some((_, what, hint)) = asked.into_iter().find(|(asked, ..)| *asked) {
            return Err(Error::unsupported(mode.provider(), what).hint(hint));
        }
    }
    match (mode.backing, &spec.image) {
        (Backing::Image, None) => {
            return Err(Error::new(
                ErrorCode::InvalidConfig,
                format!("the {} provider needs an image", mode.provider()),
            )
            .hint("name one with --image IMAGE"));
        }
        (Backing::Image, Some(_)) | (_, None) => {}
        (_, Some(image)) => {
            return refuse(format!("the image {image}: it uses the host's filesystem"), "images");
        }
    }
    let network = spec.network.unwrap_or(mode.default_network());
    check_ports(mode, spec, network)?;
    if !mode.networks.contains(&network) {
        let known: Vec<String> = mode.networks.iter().map(ToString::to_string).collect();
        return Err(Error::unsupported(mode.provider(), format!("network {network}"))
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
