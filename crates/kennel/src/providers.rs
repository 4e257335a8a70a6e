//! Creates the providers, chooses one for a new sandbox, and finds existing sandboxes.
//!
//! Creating a provider is cheap and connects to nothing. The client of an engine is created only when it is needed.

use crate::command::gc::Found;
use crate::command::image::{logins, pull_options};
use crate::directories::Directories;
use crate::engines::{self, Endpoint};
use crate::next_step::{Hint, words};
use crate::report;
use crate::settings::Settings;
use kennel_config::OnUnavailable;
use kennel_core::{Error, Provider, Result, Sandbox, Sweep, VolumeOptions, printable};
use kennel_docker::{Docker, DockerOptions, EngineKind, NamePrefix};
use kennel_image::PullOptions;
use kennel_types::{ErrorCode, Mode, NetworkMode, ProviderKind, SandboxId, SandboxInfo, VolumeInfo};
use std::sync::Arc;

/// The name of a provider on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ProviderName {
    /// Linux namespaces on this machine, without an engine
    Native,
    /// Podman containers
    Podman,
    /// Docker containers
    Docker,
    /// Plain processes without isolation
    Local,
    /// Apple's containers
    #[value(alias = "macos-container", hide = true)]
    Apple,
}

impl ProviderName {
    /// All providers that are searched for sandboxes, fastest first.
    pub(crate) const ALL: [Self; 4] = [Self::Native, Self::Local, Self::Podman, Self::Docker];

    /// Returns the name as it is typed.
    pub(crate) fn as_str(self) -> &'static str {
        self.kind().map_or("apple", ProviderKind::name)
    }

    /// Returns the provider in the mode table, or `None` if it is not implemented yet.
    pub(crate) fn kind(self) -> Option<ProviderKind> {
        match self {
            Self::Native => Some(ProviderKind::Native),
            Self::Podman => Some(ProviderKind::Podman),
            Self::Docker => Some(ProviderKind::Docker),
            Self::Local => Some(ProviderKind::Local),
            Self::Apple => None,
        }
    }

    /// Converts the setting `sandbox.provider`. Returns `None` for `auto`.
    fn set(provider: kennel_config::Provider) -> Result<Option<Self>> {
        use kennel_config::Provider;
        match provider {
            Provider::Auto => Ok(None),
            Provider::Native => Ok(Some(Self::Native)),
            Provider::Podman => Ok(Some(Self::Podman)),
            Provider::Docker => Ok(Some(Self::Docker)),
            Provider::Local => Ok(Some(Self::Local)),
            Provider::Apple | Provider::Vm | Provider::Kubernetes | Provider::Mock => {
                let name = format!("{provider:?}").to_lowercase();
                Err(Error::new(ErrorCode::Unsupported, format!("sandbox.provider: there is no {name} provider yet"))
                    .hint("kennel config show sandbox.provider, or use --provider native"))
            }
        }
    }

    /// Returns the provider's first mode in the mode table; that of Docker if the provider is not implemented yet.
    pub(crate) fn mode(self) -> &'static Mode {
        Mode::first_of(self.kind().unwrap_or(ProviderKind::Docker))
    }

    /// Creates the provider for existing sandboxes. They are found whatever the prefix of their containers' names is.
    pub(crate) fn make(self) -> Result<Arc<dyn Provider>> {
        self.make_with(NamePrefix::default())
    }

    fn make_with(self, name_prefix: NamePrefix) -> Result<Arc<dyn Provider>> {
        if self == Self::Apple {
            return Err(Error::new(ErrorCode::Unsupported, "--provider apple: there is no apple provider yet")
                .hint("use --provider native, podman or docker"));
        }
        let directories = Directories::find()?;
        let (state, programs) = (directories.provider_state(self.as_str()), directories.programs());
        Ok(match self {
            Self::Apple => unreachable!("it was refused above"),
            Self::Native => Arc::new(make_native(&directories, PullOptions::default())),
            Self::Local => Arc::new(kennel_local::Local::new(state, programs)),
            Self::Podman | Self::Docker => {
                let expected = if self == Self::Podman { EngineKind::Podman } else { EngineKind::Docker };
                let options = DockerOptions {
                    state_dir: state,
                    program_dir: programs,
                    expected,
                    installation: directories.installation()?,
                    name_prefix,
                };
                let docker = Docker::new(options, self.endpoint()?.dialer()?).with_logins(logins());
                Arc::new(docker.hiding(directories.all()).beside_engines(engines::sockets()))
            }
        })
    }

    /// Returns the endpoint of the provider's engine. It is an error if the provider has none.
    pub(crate) fn endpoint(self) -> Result<Endpoint> {
        match self {
            Self::Podman => engines::podman(),
            _ => engines::docker(),
        }
    }

    /// Whether the provider may be available. If the user did not name it, it is used only if so.
    fn may_be_here(self) -> bool {
        match self {
            Self::Native | Self::Local => true,
            Self::Apple => false,
            Self::Podman => self.endpoint().is_ok_and(|endpoint| endpoint.may_answer()),
            // If both endpoints belong to the same engine, it is used only once, as Podman.
            Self::Docker => self.endpoint().is_ok_and(|endpoint| {
                let podman = Self::Podman.endpoint().is_ok_and(|podman| podman.is_same(&endpoint));
                endpoint.may_answer() && !podman
            }),
        }
    }
}

/// The providers that this call of the command line may use.
pub(crate) struct Providers {
    named: Option<ProviderName>,
    /// The native provider, if it has already started to prepare a sandbox.
    native: Option<Arc<kennel_native::Native>>,
}

/// All sandboxes, and the providers that could not list theirs.
pub(crate) struct Listing {
    pub(crate) found: Vec<SandboxInfo>,
    pub(crate) silent: Vec<(ProviderName, Error)>,
}

/// All volumes with their providers, and the providers that could not list theirs.
pub(crate) struct VolumeListing {
    pub(crate) found: Vec<(Arc<dyn Provider>, VolumeInfo)>,
    pub(crate) silent: Vec<(ProviderName, Error)>,
}

impl Providers {
    /// Allows only the named provider, or all providers if none is named.
    pub(crate) fn new(named: Option<ProviderName>) -> Self {
        Self { named, native: None }
    }

    /// Starts to prepare a native sandbox before its details are known, unless another provider will be used.
    pub(crate) fn prepare(&mut self, image: Option<&str>, network: Option<NetworkMode>) {
        let native = self.named.is_none_or(|name| name == ProviderName::Native) && image.is_none();
        if let (true, Ok(directories)) = (native, Directories::find()) {
            let native = make_native(&directories, PullOptions::default());
            native.prepare(network);
            self.native = Some(Arc::new(native));
        }
    }

    /// Creates a provider for a new sandbox. Returns the existing native provider if it has started to prepare one.
    fn make(&self, name: ProviderName, settings: &Settings) -> Result<Arc<dyn Provider>> {
        match (&self.native, name) {
            (Some(native), ProviderName::Native) => {
                native.pull_with(pull_options(settings.images.clone()));
                Ok(native.clone())
            }
            (None, ProviderName::Native) => {
                Ok(Arc::new(make_native(&Directories::find()?, pull_options(settings.images.clone()))))
            }
            _ => name.make_with(NamePrefix::new(settings.sandbox.name_prefix.as_str())?),
        }
    }

    /// Returns the provider for a new sandbox: the one that is named on the command line or in the settings, else
    /// native if it works, else Podman, else Docker. `local` is never chosen automatically.
    ///
    /// If the settings allow commands to run without a sandbox, and there is none, the settings that describe a sandbox
    /// are removed, and a warning lists them.
    pub(crate) async fn for_new(&self, settings: &mut Settings, image: Option<&str>) -> Result<Arc<dyn Provider>> {
        if let Some(named) = self.named {
            return self.make(named, settings);
        }
        if !settings.sandbox.enabled {
            return self.directly("sandbox.enabled is false", settings);
        }
        let found = match ProviderName::set(settings.sandbox.provider)? {
            Some(named) => self.make(named, settings),
            None => self.detected(settings, image).await,
        };
        if settings.sandbox.on_unavailable == OnUnavailable::Error {
            return found;
        }
        let reason = match found {
            Ok(provider) => {
                let probed = provider.probe().await;
                if probed.available {
                    return Ok(provider);
                }
                probed.detail
            }
            Err(error) if error.code() == ErrorCode::NotAvailable => error.to_string(),
            Err(error) => return Err(error),
        };
        self.directly(&format!("{reason}, and sandbox.onUnavailable is run-directly"), settings)
    }

    /// Returns the provider for plain processes of the host, and warns that there is no sandbox.
    fn directly(&self, reason: &str, settings: &mut Settings) -> Result<Arc<dyn Provider>> {
        let dropped = settings.without_sandbox();
        let dropped =
            if dropped.is_empty() { String::new() } else { format!("; ignored settings: {}", dropped.join(", ")) };
        report::warning(&format!("{reason}: the command runs without a sandbox{dropped}"));
        self.make(ProviderName::Local, settings)
    }

    async fn detected(&self, settings: &Settings, image: Option<&str>) -> Result<Arc<dyn Provider>> {
        let native = self.make(ProviderName::Native, settings)?;
        // An image that is not in Kennel's store may be in that of an engine.
        let engine = || {
            [ProviderName::Podman, ProviderName::Docker]
                .into_iter()
                .any(|name| name.endpoint().is_ok_and(|endpoint| endpoint.may_answer()))
        };
        let elsewhere = |image: &str| !has_image(image) && engine();
        let reason = if image.is_some_and(elsewhere) {
            "it does not have the image".to_owned()
        } else {
            let availability = native.probe().await;
            if availability.available {
                return Ok(native);
            }
            let fix = availability.next_step.as_ref().map(words);
            fix.map_or(availability.detail.clone(), |fix| format!("{} ({fix})", availability.detail))
        };
        let chosen = self.engine(settings, &format!("native: {reason}")).await?;
        if image.is_none() {
            report::note(&format!("native is not available: {reason}; using {}", chosen.as_str()));
        }
        self.make(chosen, settings)
    }

    /// Returns the provider that builds images: the named one, else an engine.
    pub(crate) async fn for_builds(&self, settings: &Settings) -> Result<Arc<dyn Provider>> {
        let set = ProviderName::set(settings.sandbox.provider)?;
        let engine = set.filter(|name| matches!(name, ProviderName::Podman | ProviderName::Docker));
        let chosen = match self.named.or(engine) {
            Some(named) => named,
            None => self.engine(settings, "native: it cannot build images").await?,
        };
        self.make(chosen, settings)
    }

    /// Returns Podman if it works, else Docker. The error contains `native`: why the native provider is not used.
    async fn engine(&self, settings: &Settings, native: &str) -> Result<ProviderName> {
        let (podman, docker) = (ProviderName::Podman.endpoint()?, ProviderName::Docker.endpoint()?);
        Ok(match (podman.may_answer(), docker.may_answer()) {
            // A socket may exist although its engine does not run.
            (true, true) if !podman.is_same(&docker) => {
                let made = self.make(ProviderName::Podman, settings)?;
                if made.probe().await.available { ProviderName::Podman } else { ProviderName::Docker }
            }
            (true, _) => ProviderName::Podman,
            (false, true) => ProviderName::Docker,
            (false, false) => {
                let message = format!(
                    "no provider is available: {native}; podman: {} does not exist; docker: {} does not exist",
                    podman.shown(),
                    docker.shown()
                );
                return Err(Error::new(ErrorCode::NotAvailable, message).hint("kennel setup docker"));
            }
        })
    }

    /// Finds a sandbox by its id, its name or the beginning of its id.
    pub(crate) async fn find(&self, text: &str) -> Result<Sandbox> {
        // Text that is not a valid id is not passed to a provider, which might use it in a path.
        if SandboxId::new(text).is_err() {
            return Err(Error::no_sandbox(printable(text)));
        }
        let mut asked = Vec::new();
        let mut silent = Vec::new();
        for name in self.candidates() {
            let found = match name.make() {
                Ok(provider) => {
                    asked.push((name, provider.clone()));
                    Sandbox::find(provider, text).await
                }
                Err(error) => Err(error),
            };
            match found {
                Ok(sandbox) => return Ok(sandbox),
                Err(error) if error.code() == ErrorCode::NotFound => {}
                Err(error) => {
                    asked.pop();
                    silent.push((name, error));
                }
            }
        }
        self.find_by_prefix(text, asked, silent).await
    }

    async fn find_by_prefix(
        &self,
        text: &str,
        asked: Vec<(ProviderName, Arc<dyn Provider>)>,
        mut silent: Vec<(ProviderName, Error)>,
    ) -> Result<Sandbox> {
        let mut matches = Vec::new();
        for (name, provider) in asked {
            match provider.list().await {
                Ok(found) => matches.extend(
                    found.into_iter().filter(|it| it.id.as_str().starts_with(text)).map(|it| (provider.clone(), it.id)),
                ),
                Err(error) => silent.push((name, error)),
            }
        }
        match matches.as_slice() {
            [(provider, id)] => Sandbox::find(provider.clone(), id.as_str()).await,
            [] => match silent.pop() {
                Some((_, error)) if self.named.is_some() => Err(error),
                last => {
                    report_silent(&silent);
                    report_silent(last.as_slice());
                    Err(Error::no_sandbox(text))
                }
            },
            several => {
                let ids: Vec<&str> = several.iter().map(|(_, id)| id.as_str()).collect();
                let message = format!("{text} matches {} ids: {}", ids.len(), ids.join(", "));
                Err(Error::new(ErrorCode::InvalidConfig, message).hint("use more characters of the id"))
            }
        }
    }

    /// Lists all sandboxes. It is an error if a named provider cannot list its sandboxes; others are left out.
    pub(crate) async fn list(&self) -> Result<Listing> {
        let mut listing = Listing { found: Vec::new(), silent: Vec::new() };
        for name in self.candidates() {
            let found = match name.make() {
                Ok(provider) => provider.list().await,
                Err(error) => Err(error),
            };
            match found {
                Ok(found) => listing.found.extend(found),
                Err(error) if self.named.is_some() => return Err(error),
                Err(error) => listing.silent.push((name, error)),
            }
        }
        Ok(listing)
    }

    /// Lists all volumes. It is an error if a named provider cannot list its volumes; others are left out.
    pub(crate) async fn volumes(&self, options: VolumeOptions) -> Result<VolumeListing> {
        let mut listing = VolumeListing { found: Vec::new(), silent: Vec::new() };
        for name in self.candidates() {
            let found = match name.make() {
                Ok(provider) => provider.volumes(options).await.map(|found| (provider, found)),
                Err(error) => Err(error),
            };
            match found {
                Ok((provider, found)) => {
                    listing.found.extend(found.into_iter().map(|volume| (provider.clone(), volume)));
                }
                Err(error) if self.named.is_some() => return Err(error),
                Err(error) => listing.silent.push((name, error)),
            }
        }
        Ok(listing)
    }

    /// Finds what killed programs left behind, and removes or only reports it. Warns about providers that do not
    /// respond.
    pub(crate) async fn sweep(&self, action: Sweep) -> Result<Vec<Found>> {
        let (mut removed, mut silent) = (Vec::new(), Vec::new());
        for name in self.candidates() {
            let swept = match name.make() {
                Ok(provider) => provider.sweep(action).await,
                Err(error) => Err(error),
            };
            match swept {
                Ok(swept) => removed.extend(swept.into_iter().map(|what| Found { provider: name.as_str(), what })),
                Err(error) if self.named.is_some() => return Err(error),
                Err(error) => silent.push((name, error)),
            }
        }
        report_silent(&silent);
        Ok(removed)
    }

    /// Returns the providers that respond. Warns about the others; it is an error if a named provider does not respond.
    pub(crate) async fn all_that_answer(&self) -> Result<Vec<Arc<dyn Provider>>> {
        let mut answer = Vec::new();
        let mut silent = Vec::new();
        for name in self.candidates() {
            let asked = match name.make() {
                Ok(provider) => provider.list().await.map(|_| provider),
                Err(error) => Err(error),
            };
            match asked {
                Ok(provider) => answer.push(provider),
                Err(error) if self.named.is_some() => return Err(error),
                Err(error) => silent.push((name, error)),
            }
        }
        report_silent(&silent);
        Ok(answer)
    }

    /// Returns the provider that a new sandbox would use; native if none is available.
    pub(crate) async fn name_for_new(&self, settings: &Settings) -> Result<ProviderName> {
        let found = match self.for_new(&mut settings.clone(), None).await {
            Err(error) if error.code() == ErrorCode::NotAvailable => None,
            found => Some(found?),
        };
        let kind = found.map(|provider| provider.mode().key.provider);
        let name = kind.and_then(|kind| ProviderName::ALL.into_iter().find(|name| name.kind() == Some(kind)));
        Ok(name.unwrap_or(ProviderName::Native))
    }

    /// Returns the provider that is named on the command line.
    pub(crate) fn named(&self) -> Option<ProviderName> {
        self.named
    }

    /// Returns the named provider, or all providers if none is named.
    pub(crate) fn named_or_all(&self) -> Vec<ProviderName> {
        self.named.map_or_else(|| ProviderName::ALL.to_vec(), |name| vec![name])
    }

    fn candidates(&self) -> Vec<ProviderName> {
        match self.named {
            Some(name) => vec![name],
            None => ProviderName::ALL.into_iter().filter(|name| name.may_be_here()).collect(),
        }
    }
}

/// Whether the image is in Kennel's own store, so that native sandboxes can use it without a pull.
fn has_image(image: &str) -> bool {
    let store = Directories::find().ok().and_then(|directories| kennel_image::Store::open(directories.images()).ok());
    let found = store.zip(image.parse().ok()).and_then(|(store, reference)| store.get(&reference).ok());
    found.flatten().is_some()
}

fn make_native(directories: &Directories, pull: PullOptions) -> kennel_native::Native {
    let native = kennel_native::Native::new(directories.provider_state("native"), directories.programs());
    let native = native.hiding(directories.all()).beside_engines(engines::sockets());
    match kennel_image::Store::open(directories.images()) {
        Ok(store) => native.with_images(store, pull),
        // The store may belong to another user. That is an error only if an image is requested.
        Err(_) => native,
    }
}

/// Tests which features of the kernel native sandboxes can use.
pub(crate) fn probe_kernel() -> Result<kennel_native::KernelSupport> {
    make_native(&Directories::find()?, PullOptions::default()).probe_kernel()
}

/// Warns about providers that did not respond.
pub(crate) fn report_silent(silent: &[(ProviderName, Error)]) {
    for (name, error) in silent {
        report::warning(&format!("cannot list the sandboxes of {}: {error}", name.as_str()));
    }
}
