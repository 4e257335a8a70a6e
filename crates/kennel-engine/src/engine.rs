//! The engine: creates providers, chooses one for a new sandbox, and finds existing sandboxes.
//!
//! Creating a provider is cheap and connects to nothing. The client of a container engine is created only when it is
//! needed.

use crate::amendments::Amendments;
use crate::bridges::{BridgeProgram, BridgesDir, open_sockets};
use crate::endpoint::{self, Endpoint};
use crate::idle::Idle;
use crate::pool::without_members;
use crate::{Applied, Caller, Directories, Failpoints, Plan, Sessions, Settings, Steps, Store};
use kennel_config::ImagesSection;
use kennel_core::{Error, Provider, Result, Sandbox, Sweep, printable};
use kennel_docker::{Docker, DockerOptions, EngineKind, NamePrefix};
use kennel_image::PullOptions;
use kennel_types::{ErrorCode, Leftover, NetworkMode, NextStep, ProviderKind, SandboxId, SandboxInfo, SocketBridge};
use serde::Serialize;
use std::path::PathBuf;
use std::sync::Arc;

/// Everything that front ends share: providers, settings, profiles and sessions of one caller.
///
/// `examples/library.rs` is a program that uses it.
#[derive(Clone)]
pub struct Engine {
    caller: Caller,
    /// `None` if the caller's environment names none.
    directories: Option<Directories>,
    /// The only provider that may be used, if the caller named one.
    named: Option<ProviderKind>,
    /// The name of a provider that the caller named, but that is not implemented yet. No other is used.
    unimplemented: Option<&'static str>,
    /// Providers that the caller has made, which are used instead of those of this machine.
    given: Vec<Arc<dyn Provider>>,
    /// The native provider, if it has already started to prepare a sandbox.
    native: Option<Arc<kennel_native::Native>>,
    failpoints: Failpoints,
    /// The program that serves the bridges of sandboxes that stay.
    bridge_program: Option<BridgeProgram>,
}

/// The sandboxes of all providers, and the providers that could not list theirs.
#[derive(Debug, Default)]
pub struct Listing {
    /// The sandboxes.
    pub found: Vec<SandboxInfo>,
    /// The providers that did not respond. Their sandboxes are missing.
    pub silent: Vec<Silent>,
}

/// A provider that did not respond.
#[derive(Debug)]
pub struct Silent {
    /// The provider.
    pub provider: ProviderKind,
    /// Why it did not respond.
    pub error: Error,
}

/// The result of a search for one sandbox.
pub struct LookUp {
    /// The sandbox, or why there is none.
    pub sandbox: Result<Sandbox>,
    /// The providers that could not be asked. One of them may have the sandbox, if it was not found.
    pub silent: Vec<Silent>,
}

/// A leftover of a killed program, and the provider that found it.
#[derive(Debug, Serialize)]
pub struct FoundLeftover {
    /// The provider.
    pub provider: &'static str,
    /// What was found.
    #[serde(flatten)]
    pub what: Leftover,
}

impl Engine {
    /// All providers that are searched for sandboxes, fastest first.
    pub const PROVIDERS: [ProviderKind; 4] =
        [ProviderKind::Native, ProviderKind::Local, ProviderKind::Podman, ProviderKind::Docker];

    /// Creates an engine for a caller, with the providers of this machine. Nothing is read or written yet.
    pub fn new(caller: Caller) -> Self {
        let directories = Directories::find(&caller).ok();
        let failpoints = Failpoints::default();
        Self {
            caller,
            directories,
            named: None,
            unimplemented: None,
            given: Vec::new(),
            native: None,
            failpoints,
            bridge_program: None,
        }
    }

    /// Creates an engine for a caller, with the providers of this machine and other directories than the caller's.
    pub(crate) fn with_directories(caller: Caller, directories: Directories) -> Self {
        Self { directories: Some(directories), ..Self::new(caller) }
    }

    /// Creates an engine for a program without a user's environment, with the providers of this machine. All its files are
    /// below one directory.
    pub fn below(dir: impl Into<PathBuf>) -> Self {
        let dir: PathBuf = dir.into();
        let directories = Directories::new(dir.join("state"), dir.join("data"), None);
        let uid = rustix::process::geteuid().as_raw();
        let caller = Caller { current_dir: dir, uid, ..Caller::default() };
        Self { directories: Some(directories), ..Self::new(caller) }
    }

    /// Creates an engine with directories and providers that the caller has made. Only these providers are used.
    pub fn with_providers(
        caller: Caller,
        directories: Directories,
        providers: impl IntoIterator<Item = Arc<dyn Provider>>,
    ) -> Self {
        let given = providers.into_iter().collect();
        Self { directories: Some(directories), given, ..Self::new(caller) }
    }

    /// Names the program that serves the sockets of sandboxes that stay. Without one, these sandboxes cannot have sockets.
    #[must_use]
    pub fn with_bridge_program(self, program: BridgeProgram) -> Self {
        Self { bridge_program: Some(program), ..self }
    }

    /// Lets a test end the process at each named step.
    #[must_use]
    pub fn with_failpoints(self, failpoints: Failpoints) -> Self {
        Self { failpoints, ..self }
    }

    /// Returns the failpoints.
    pub(crate) fn failpoints(&self) -> &Failpoints {
        &self.failpoints
    }

    /// Restricts the engine to one provider.
    #[must_use]
    pub fn only(self, provider: ProviderKind) -> Self {
        Self { named: Some(provider), ..self }
    }

    /// Restricts the engine to a provider that is not implemented yet. Every use of a provider is an error.
    #[must_use]
    pub fn only_unimplemented(self, name: &'static str) -> Self {
        Self { unimplemented: Some(name), ..self }
    }

    /// Returns the caller.
    pub fn caller(&self) -> &Caller {
        &self.caller
    }

    /// Returns the directories of this installation.
    pub fn directories(&self) -> Result<Directories> {
        self.directories.clone().map_or_else(|| Directories::find(&self.caller), Ok)
    }

    /// Returns the only provider that may be used, if the caller named one.
    pub fn named(&self) -> Option<ProviderKind> {
        self.named
    }

    /// Returns the named provider, or all providers if none is named.
    pub fn named_or_all(&self) -> Vec<ProviderKind> {
        self.named.map_or_else(|| Self::PROVIDERS.to_vec(), |name| vec![name])
    }

    /// Returns the settings in effect, without profiles.
    pub fn settings(&self) -> Result<Settings> {
        Settings::load(&self.caller, &self.directories()?)
    }

    /// Returns the settings in effect, with profiles.
    pub fn settings_with_profiles(&self) -> Result<Settings> {
        Settings::load_with_profiles(&self.caller, &self.directories()?)
    }

    /// Starts to prepare a native sandbox before its details are known, unless another provider will be used. This
    /// overlaps with other work of the caller. If the caller has a jail that fits, it is used.
    pub fn prepare(
        &mut self,
        image: Option<&str>,
        network: Option<NetworkMode>,
        early: Option<kennel_native::EarlyJail>,
    ) {
        let native = self.named.is_none_or(|name| name == ProviderKind::Native) && image.is_none();
        if let (true, true, Some(directories)) =
            (native && self.unimplemented.is_none(), self.given.is_empty(), &self.directories)
        {
            let native = self.make_native(directories, PullOptions::default());
            native.prepare(network, early);
            self.native = Some(Arc::new(native));
        }
    }

    /// Creates a provider for existing sandboxes. They are found whatever the prefix of their containers' names is.
    pub fn provider(&self, kind: ProviderKind) -> Result<Arc<dyn Provider>> {
        Ok(self.existing(kind)?)
    }

    /// Creates a provider for existing sandboxes, as the engine holds it.
    fn existing(&self, kind: ProviderKind) -> Result<Arc<Steps>> {
        self.make(kind, NamePrefix::default(), None)
    }

    /// Creates a provider for new sandboxes, according to the settings.
    pub(crate) fn provider_with(&self, kind: ProviderKind, settings: &Settings) -> Result<Arc<dyn Provider>> {
        Ok(self.make(kind, NamePrefix::new(settings.sandbox.name_prefix.as_str())?, Some(&settings.images))?)
    }

    fn make(&self, kind: ProviderKind, name_prefix: NamePrefix, images: Option<&ImagesSection>) -> Result<Arc<Steps>> {
        let provider = self.make_bare(kind, name_prefix, images)?;
        let idle = Idle::new(self.directories()?.idle());
        let amendments = self.amendments()?;
        Ok(Steps::for_engine(provider, self.failpoints.clone(), idle, self.bridges()?, amendments))
    }

    /// Returns what was changed about sandboxes after their creation.
    pub fn amendments(&self) -> Result<Amendments> {
        Ok(Amendments::new(self.directories()?.amendments()))
    }

    /// Returns the directory of sandboxes with bridges.
    pub(crate) fn bridges(&self) -> Result<BridgesDir> {
        let directories = self.directories()?;
        Ok(BridgesDir {
            dir: directories.bridges(),
            program: self.bridge_program.clone(),
            directories,
            variables: self.caller.variables.clone(),
            engines: endpoint::sockets(&self.caller).into_iter().collect(),
        })
    }

    /// Creates a provider that never wakes or starts a sandbox by itself.
    pub(crate) fn bare_provider(&self, kind: ProviderKind) -> Result<Arc<dyn Provider>> {
        self.make_bare(kind, NamePrefix::default(), None)
    }

    /// Serves the sockets of a tied sandbox that was just launched: opens those of the host, and listens inside. The
    /// caller runs [`Bridges::serve`](kennel_core::Bridges::serve).
    pub async fn bridge(&self, sandbox: &Sandbox, sockets: &[SocketBridge]) -> Result<kennel_core::Bridges> {
        let engines: Vec<PathBuf> = endpoint::sockets(&self.caller).into_iter().collect();
        sandbox.bridge(open_sockets(sockets, &engines).await?).await
    }

    fn make_bare(
        &self,
        kind: ProviderKind,
        name_prefix: NamePrefix,
        images: Option<&ImagesSection>,
    ) -> Result<Arc<dyn Provider>> {
        if let Some(name) = self.unimplemented {
            let others = [ProviderKind::Native, ProviderKind::Podman, ProviderKind::Docker];
            return Err(Error::new(ErrorCode::Unsupported, format!("there is no {name} provider yet"))
                .suggest(NextStep::use_provider(others)));
        }
        if !self.given.is_empty() {
            let given = self.given.iter().find(|provider| provider.mode().key.provider == kind);
            return given
                .cloned()
                .ok_or_else(|| Error::new(ErrorCode::NotAvailable, format!("there is no provider {}", kind.name())));
        }
        let directories = self.directories()?;
        let (state, programs) = (directories.provider_state(kind.name()), directories.programs());
        let pull = images.map(|images| self.pull_options(images.clone()));
        Ok(match kind {
            ProviderKind::Native => match (&self.native, pull) {
                (Some(native), Some(pull)) => {
                    native.pull_with(pull);
                    native.clone()
                }
                (_, pull) => Arc::new(self.make_native(&directories, pull.unwrap_or_default())),
            },
            ProviderKind::Local => Arc::new(kennel_local::Local::new(state, programs)),
            ProviderKind::Mock => {
                return Err(Error::new(ErrorCode::Unsupported, "the mock provider exists only in tests"));
            }
            ProviderKind::Podman | ProviderKind::Docker => {
                let expected = if kind == ProviderKind::Podman { EngineKind::Podman } else { EngineKind::Docker };
                let options = DockerOptions {
                    state_dir: state,
                    program_dir: programs,
                    expected,
                    installation: directories.installation()?,
                    name_prefix,
                };
                let docker = Docker::new(options, self.endpoint(kind)?.dialer()?).with_logins(self.caller.logins());
                Arc::new(docker.hiding(directories.all()).hiding_sockets(endpoint::sockets(&self.caller)))
            }
        })
    }

    fn make_native(&self, directories: &Directories, pull: PullOptions) -> kennel_native::Native {
        let native = kennel_native::Native::new(directories.provider_state("native"), directories.programs());
        let native = native.hiding(directories.all()).hiding_sockets(endpoint::sockets(&self.caller));
        match kennel_image::Store::open(directories.images()) {
            Ok(store) => native.with_images(store, pull),
            // The store may belong to another user. That is an error only if an image is requested.
            Err(_) => native,
        }
    }

    /// Tests which features of the kernel native sandboxes can use.
    pub fn probe_kernel(&self) -> Result<kennel_native::KernelSupport> {
        self.make_native(&self.directories()?, PullOptions::default()).probe_kernel()
    }

    /// Returns the options for pulling an image, according to the settings.
    pub fn pull_options(&self, settings: ImagesSection) -> PullOptions {
        let usual = kennel_image::Limits::default();
        PullOptions {
            limits: kennel_image::Limits { bytes: settings.max_size.map_or(usual.bytes, |size| size.0), ..usual },
            credentials: self.caller.logins(),
            insecure: settings.insecure,
            mirrors: settings.mirrors,
            proxies: self.caller.proxies(),
            ..PullOptions::default()
        }
    }

    /// Opens Kennel's image store.
    pub fn images(&self) -> Result<kennel_image::Store> {
        kennel_image::Store::open(self.directories()?.images())
    }

    /// Returns the layers of images that native sandboxes use.
    pub fn image_layers_in_use(&self) -> Result<std::collections::HashSet<kennel_image::Digest>> {
        // Without a state directory there are no sandboxes.
        let Some(directories) = &self.directories else { return Ok(std::collections::HashSet::new()) };
        kennel_image::noted_below(&directories.provider_state("native"))
    }

    /// Whether the image is in Kennel's own store, so that native sandboxes can use it without a pull.
    pub(crate) fn has_image(&self, image: &str) -> bool {
        let found = self.images().ok().zip(image.parse().ok()).and_then(|(store, image)| store.get(&image).ok());
        found.flatten().is_some()
    }

    /// Returns the endpoint of a container engine.
    pub fn endpoint(&self, kind: ProviderKind) -> Result<Endpoint> {
        match kind {
            ProviderKind::Podman => endpoint::podman(&self.caller),
            _ => endpoint::docker(&self.caller),
        }
    }

    /// Whether the provider may be available. If the caller did not name it, it is used only if so.
    fn may_be_here(&self, kind: ProviderKind) -> bool {
        let endpoint = |kind| self.endpoint(kind).ok();
        match kind {
            ProviderKind::Native | ProviderKind::Local | ProviderKind::Mock => true,
            ProviderKind::Podman => endpoint(kind).is_some_and(|endpoint| endpoint.may_answer()),
            // If both endpoints belong to the same engine, it is used only once, as Podman.
            ProviderKind::Docker => endpoint(kind).is_some_and(|docker| {
                let podman = endpoint(ProviderKind::Podman).is_some_and(|podman| podman.is_same(&docker));
                docker.may_answer() && !podman
            }),
        }
    }

    /// Returns the sockets at which a container engine would appear that is not among these providers. There are none if the
    /// caller chose the providers.
    pub(crate) fn absent_sockets(&self, known: &[ProviderKind]) -> Vec<PathBuf> {
        if self.named.is_some() || self.unimplemented.is_some() || !self.given.is_empty() {
            return Vec::new();
        }
        let absent = [ProviderKind::Podman, ProviderKind::Docker].into_iter().filter(|kind| !known.contains(kind));
        absent.flat_map(|kind| endpoint::awaited(&self.caller, kind == ProviderKind::Docker)).collect()
    }

    fn candidates(&self) -> Vec<ProviderKind> {
        match self.named {
            Some(kind) => vec![kind],
            None if !self.given.is_empty() => self.given.iter().map(|given| given.mode().key.provider).collect(),
            None => Self::PROVIDERS.into_iter().filter(|kind| self.may_be_here(*kind)).collect(),
        }
    }

    /// Calls each provider that may be available. It is an error if the named provider fails; the failures of others
    /// are returned. The call is a plain closure that returns a future: with an async closure, the compiler could not tell
    /// that the future can move between threads.
    pub(crate) async fn each<T, F: Future<Output = Result<T>>>(
        &self,
        call: impl Fn(Arc<dyn Provider>) -> F,
    ) -> Result<(Vec<(ProviderKind, T)>, Vec<Silent>)> {
        let (mut done, mut silent) = (Vec::new(), Vec::new());
        for provider in self.candidates() {
            let called = match self.provider(provider) {
                Ok(made) => call(made).await,
                Err(error) => Err(error),
            };
            match called {
                Ok(result) => done.push((provider, result)),
                Err(error) if self.named.is_some() || self.unimplemented.is_some() => return Err(error),
                Err(error) => silent.push(Silent { provider, error }),
            }
        }
        Ok((done, silent))
    }

    /// Lists all sandboxes. It is an error if a named provider cannot list its sandboxes; others are reported.
    pub async fn list(&self) -> Result<Listing> {
        let (found, silent) = self.each(|provider| async move { provider.list().await }).await?;
        // Members of pools are nobody's sandboxes yet.
        let found = found.into_iter().flat_map(|(_, found)| without_members(found)).collect();
        Ok(Listing { found, silent })
    }

    /// Finds what killed programs left behind, and removes or only reports it.
    pub async fn sweep(&self, action: Sweep) -> Result<(Vec<FoundLeftover>, Vec<Silent>)> {
        let (found, silent) = self.each(|provider| async move { provider.sweep(action).await }).await?;
        let leftover = |(provider, found): (ProviderKind, Vec<Leftover>)| {
            found.into_iter().map(move |what| FoundLeftover { provider: provider.name(), what })
        };
        Ok((found.into_iter().flat_map(leftover).collect(), silent))
    }

    /// Returns the providers that respond, and those that do not.
    pub async fn responding(&self) -> Result<(Vec<Arc<dyn Provider>>, Vec<Silent>)> {
        let (found, silent) =
            self.each(|provider| async move { provider.list().await.map(|_| provider.clone()) }).await?;
        Ok((found.into_iter().map(|(_, provider)| provider).collect(), silent))
    }

    /// Returns the providers that may be available, for existing sandboxes.
    pub(crate) fn existing_providers(&self) -> Vec<(ProviderKind, Arc<Steps>)> {
        self.candidates().into_iter().filter_map(|kind| Some((kind, self.existing(kind).ok()?))).collect()
    }

    /// Opens the store of sessions, with the providers that may be available. Also returns the providers that could not
    /// be created. No other method opens the database.
    pub async fn sessions(&self) -> Result<(Sessions, Vec<Silent>)> {
        let (mut providers, mut silent) = (Vec::new(), Vec::new());
        for provider in self.candidates() {
            match self.existing(provider) {
                Ok(made) => providers.push(made),
                Err(error) if self.named.is_some() => return Err(error),
                Err(error) => silent.push(Silent { provider, error }),
            }
        }
        let store = Store::open(self.directories()?.database()).await?;
        let sessions = Sessions::with_steps(store, providers, &self.failpoints).with_pools(self.pool_claims()?);
        Ok((sessions, silent))
    }

    /// Compares the sessions with the sandboxes that exist and, with `apply`, completes what was interrupted. Returns
    /// `None` if there never was a session.
    pub async fn reconcile(&self, apply: bool) -> Result<Option<(Plan, Vec<Applied>)>> {
        if !has_store(&self.directories()?.database()) {
            return Ok(None);
        }
        let (sessions, _) = self.sessions().await?;
        let plan = sessions.plan().await?;
        let applied = if apply { sessions.apply(&plan).await? } else { Vec::new() };
        Ok(Some((plan, applied)))
    }

    /// Finds a sandbox by its id, its name or the beginning of its id.
    pub async fn find(&self, text: &str) -> Result<Sandbox> {
        self.look_up(text).await.sandbox
    }

    /// Finds a sandbox like [`Self::find`], and also returns which providers could not be asked.
    pub async fn look_up(&self, text: &str) -> LookUp {
        let mut silent = Vec::new();
        let sandbox = self.search(text, &mut silent).await;
        LookUp { sandbox, silent }
    }

    async fn search(&self, text: &str, silent: &mut Vec<Silent>) -> Result<Sandbox> {
        // Text that is not a valid id is not passed to a provider, which might use it in a path.
        if SandboxId::new(text).is_err() {
            return Err(Error::no_sandbox(printable(text)));
        }
        let mut asked = Vec::new();
        for provider in self.candidates() {
            let found = match self.provider(provider) {
                Ok(made) => {
                    asked.push((provider, made.clone()));
                    Sandbox::find(made, text).await
                }
                Err(error) => Err(error),
            };
            match found {
                Ok(sandbox) => {
                    silent.clear();
                    return Ok(sandbox);
                }
                Err(error) if error.code() == ErrorCode::NotFound => {}
                Err(error) => {
                    asked.pop();
                    silent.push(Silent { provider, error });
                }
            }
        }
        self.search_by_prefix(text, asked, silent).await
    }

    async fn search_by_prefix(
        &self,
        text: &str,
        asked: Vec<(ProviderKind, Arc<dyn Provider>)>,
        silent: &mut Vec<Silent>,
    ) -> Result<Sandbox> {
        let mut matches = Vec::new();
        for (kind, provider) in asked {
            match provider.list().await {
                Ok(found) => matches.extend(
                    found.into_iter().filter(|it| it.id.as_str().starts_with(text)).map(|it| (provider.clone(), it.id)),
                ),
                Err(error) => silent.push(Silent { provider: kind, error }),
            }
        }
        match matches.as_slice() {
            [(provider, id)] => {
                silent.clear();
                Sandbox::find(provider.clone(), id.as_str()).await
            }
            [] => match silent.pop() {
                Some(Silent { error, .. }) if self.named.is_some() || self.unimplemented.is_some() => Err(error),
                last => {
                    silent.extend(last);
                    Err(Error::no_sandbox(text))
                }
            },
            several => {
                let ids: Vec<&str> = several.iter().map(|(_, id)| id.as_str()).collect();
                let message = format!("{text} matches {} ids: {}", ids.len(), ids.join(", "));
                Err(Error::new(ErrorCode::InvalidConfig, message)
                    .suggest(NextStep::advice("use more characters of the id")))
            }
        }
    }
}

/// Whether there is a store of sessions, or was one that is damaged and was moved aside.
fn has_store(database: &std::path::Path) -> bool {
    let name = database.file_name().unwrap_or_default().as_encoded_bytes();
    let entries = database.parent().and_then(|dir| std::fs::read_dir(dir).ok());
    let is_store = |entry: &std::fs::DirEntry| entry.file_name().as_encoded_bytes().starts_with(name);
    entries.is_some_and(|entries| entries.flatten().any(|entry| is_store(&entry)))
}

impl Engine {
    /// Returns the kind of the first provider that the caller has made, if it has made any.
    pub(crate) fn first_given(&self) -> Option<ProviderKind> {
        self.given.first().map(|provider| provider.mode().key.provider)
    }
}
