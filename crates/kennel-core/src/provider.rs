//! The provider trait: creates and removes sandboxes, and opens byte streams to their keepers.

use crate::{Error, Gate, Prepared, Result, printable};
use futures_util::stream::Stream;
use kennel_proto::Channel;
use kennel_types::{
    Availability, ErrorCode, Event, Feature, Leftover, Limits, Mode, NextStep, Operation, ProviderKind, Pull,
    SandboxId, SandboxInfo, SandboxSpec, Stats, VolumeInfo,
};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
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

impl RemoveOptions {
    /// The operation that decides whether the removal is allowed.
    pub fn operation(self) -> Operation {
        if self.force { Operation::ForceRemove } else { Operation::Remove }
    }
}

/// Selects what [`Provider::volumes`] returns.
#[derive(Clone, Copy, Debug, Default)]
pub struct VolumeOptions {
    /// Also measure sizes. This is slow if there are many files.
    pub sizes: bool,
}

/// What [`Provider::sweep`] does with leftovers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sweep {
    /// Return them, and change nothing.
    Report,
    /// Remove them, and return those that were removed.
    Remove,
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

    /// Creates a sandbox with an id that the caller has chosen ([`new_id`]). So a caller can record the id first, and
    /// after a crash it can find out whether the sandbox exists. Fails with `already_exists` if the id is in use. If
    /// anything in the spec cannot be provided, creation fails.
    async fn create(&self, id: &SandboxId, spec: &SandboxSpec) -> Result<SandboxInfo>;

    /// Makes what a sandbox like this one needs before its details are known, for a pool. Returns `None` if the provider
    /// makes only whole sandboxes.
    async fn prepare_part(&self, _spec: &SandboxSpec) -> Result<Option<Prepared>> {
        Ok(None)
    }

    /// Uses a part for the sandbox with this id, which this value creates and starts next. If the part does not fit the
    /// sandbox, it ends, and the reason is returned.
    fn use_part(&self, _id: &SandboxId, _spec: &SandboxSpec, _part: Prepared) -> std::result::Result<(), String> {
        Err("the provider makes only whole sandboxes".to_owned())
    }

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
        Err(Error::unsupported(self.name(), "pausing").suggest(NextStep::ExplainFeature { feature: Feature::Pause }))
    }

    /// Resumes a paused sandbox. It is no error if it is running.
    async fn unpause(&self, _id: &SandboxId) -> Result<()> {
        Err(Error::unsupported(self.name(), "pausing").suggest(NextStep::ExplainFeature { feature: Feature::Pause }))
    }

    /// Renames a sandbox. Fails with `already_exists` if the name is in use.
    async fn rename(&self, id: &SandboxId, name: &str) -> Result<()>;

    /// Changes limits of a sandbox, whether it runs or not. Those that are `None` stay as they are. Fails with
    /// `unsupported` if the provider cannot change one of them; then it changes none.
    async fn change_limits(&self, _id: &SandboxId, _limits: Limits) -> Result<()> {
        let step = NextStep::advice("create a new sandbox with these limits");
        Err(Error::unsupported(self.name(), "changing the limits of a sandbox").suggest(step))
    }

    /// Returns the current state of the sandbox with this id or name.
    async fn get(&self, id_or_name: &str) -> Result<SandboxInfo>;

    /// Returns all sandboxes of this installation, and changes nothing. A failure is an error, never an empty list.
    async fn list(&self) -> Result<Vec<SandboxInfo>>;

    /// Opens a byte stream to the keeper. Fails with `stopped` if the sandbox is not running.
    async fn dial(&self, id: &SandboxId) -> Result<Dialed>;

    /// Returns the gate of a sandbox that is paused while it is idle. `None` if no process does that.
    fn gate(&self, _id: &SandboxId) -> Option<Arc<dyn Gate>> {
        None
    }

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

    /// Returns the id of an image that is present here. It changes when the name refers to another image. Returns `None`
    /// if the image is not present, or if the provider has no images.
    async fn image_id(&self, _image: &str) -> Result<Option<String>> {
        Ok(None)
    }

    /// Finds leftovers of killed programs that belong to no sandbox, and removes or only reports them. Creating a
    /// sandbox also removes leftovers now and then; listing never does.
    async fn sweep(&self, _action: Sweep) -> Result<Vec<Leftover>> {
        Ok(Vec::new())
    }

    /// Returns all volumes of this installation, and changes nothing. A failure is an error, never an empty list.
    /// Providers without volumes return none.
    async fn volumes(&self, _options: VolumeOptions) -> Result<Vec<VolumeInfo>> {
        Ok(Vec::new())
    }

    /// Removes a volume and its content. Fails with `conflict` if a sandbox uses it, whether that runs or not. A sandbox
    /// that is created at the same time either keeps the volume, or gets a new one.
    async fn remove_volume(&self, name: &str) -> Result<()> {
        Err(Error::no_volume(printable(name)))
    }

    /// Builds an image, and reports each line of the build output.
    async fn build_image(&self, _build: &ImageBuild, _tell: &(dyn Fn(String) + Sync)) -> Result<()> {
        let step = NextStep::use_provider([ProviderKind::Podman, ProviderKind::Docker]);
        Err(Error::unsupported(self.name(), "building images").suggest(step))
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
