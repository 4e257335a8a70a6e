//! Which providers there are here, how each is made, and how a sandbox is found among them.
//!
//! Making one is cheap and asks nobody: an engine's client is built only for who needs that engine.

use crate::command::image::{logins, pull_options};
use crate::engines::{self, Endpoint};
use crate::places::Places;
use crate::report;
use crate::settings::Settings;
use kennel_config::OnUnavailable;
use kennel_core::{Error, Provider, Result, Sandbox, printable};
use kennel_docker::{Docker, DockerOptions, Kind, NamePrefix};
use kennel_image::PullOptions;
use kennel_types::{ErrorCode, Mode, NetworkMode, ProviderKind, SandboxId, SandboxInfo};
use std::sync::Arc;

/// A provider, as people type it.
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
    /// Where sandboxes are looked for, those that answer fastest first.
    pub(crate) const ALL: [Self; 4] = [Self::Native, Self::Local, Self::Podman, Self::Docker];

    /// The name as it is typed.
    pub(crate) fn as_str(self) -> &'static str {
        self.kind().map_or("apple", ProviderKind::name)
    }

    /// The provider in the mode table; none for one that does not exist yet.
    pub(crate) fn kind(self) -> Option<ProviderKind> {
        match self {
            Self::Native => Some(ProviderKind::Native),
            Self::Podman => Some(ProviderKind::Podman),
            Self::Docker => Some(ProviderKind::Docker),
            Self::Local => Some(ProviderKind::Local),
            Self::Apple => None,
        }
    }

    /// The one that a setting names; none for `auto`.
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

    /// The row of the mode table that it keeps to, or would; that of an engine if it has none yet.
    pub(crate) fn mode(self) -> &'static Mode {
        Mode::first_of(self.kind().unwrap_or(ProviderKind::Docker))
    }

    /// For what is there already: names of containers may begin with anything.
    pub(crate) fn make(self) -> Result<Arc<dyn Provider>> {
        self.make_with(NamePrefix::default())
    }

    fn make_with(self, name_prefix: NamePrefix) -> Result<Arc<dyn Provider>> {
        if self == Self::Apple {
            return Err(Error::new(ErrorCode::Unsupported, "--provider apple: there is no apple provider yet")
                .hint("use --provider native, podman or docker"));
        }
        let places = Places::find()?;
        let (state, programs) = (places.provider_state(self.as_str()), places.programs());
        Ok(match self {
            Self::Apple => unreachable!("it was refused above"),
            Self::Native => Arc::new(make_native(&places, PullOptions::default())),
            Self::Local => Arc::new(kennel_local::Local::new(state, programs)),
            Self::Podman | Self::Docker => {
                let expected = if self == Self::Podman { Kind::Podman } else { Kind::Docker };
                let options = DockerOptions {
                    state_dir: state,
                    program_dir: programs,
                    expected,
                    installation: places.installation()?,
                    name_prefix,
                };
                let docker = Docker::new(options, self.endpoint()?.dialer()?).with_logins(logins());
                Arc::new(docker.hiding(places.all()).beside_engines(engines::sockets()))
            }
        })
    }

    /// Where the engine listens, of one that has an engine.
    pub(crate) fn endpoint(self) -> Result<Endpoint> {
        match self {
            Self::Podman => engines::podman(),
            _ => engines::docker(),
        }
    }

    /// Whether it is worth asking when nobody named it.
    fn may_be_here(self) -> bool {
        match self {
            Self::Native | Self::Local => true,
            Self::Apple => false,
            Self::Podman => self.endpoint().is_ok_and(|endpoint| endpoint.may_answer()),
            // One engine is asked once: it says itself what it is.
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
    /// The native one, if it has begun already.
    native: Option<Arc<kennel_native::Native>>,
}

/// The sandboxes there are, and the providers that could not tell.
pub(crate) struct Listing {
    pub(crate) found: Vec<SandboxInfo>,
    pub(crate) silent: Vec<(ProviderName, Error)>,
}

impl Providers {
    /// All of them, or the one that was named.
    pub(crate) fn new(named: Option<ProviderName>) -> Self {
        Self { named, native: None }
    }

    /// Begins with a sandbox whose details are still to be found out, where there is anything to begin with.
    pub(crate) fn prepare(&mut self, image: Option<&str>, network: Option<NetworkMode>) {
        let native = self.named.is_none_or(|name| name == ProviderName::Native) && image.is_none();
        if let (true, Ok(places)) = (native, Places::find()) {
            let native = make_native(&places, PullOptions::default());
            native.prepare(network);
            self.native = Some(Arc::new(native));
        }
    }

    /// One of them for a new sandbox, made once if it has begun already.
    fn make(&self, name: ProviderName, settings: &Settings) -> Result<Arc<dyn Provider>> {
        match (&self.native, name) {
            (Some(native), ProviderName::Native) => {
                native.pull_with(pull_options(settings.images.clone()));
                Ok(native.clone())
            }
            (None, ProviderName::Native) => {
                Ok(Arc::new(make_native(&Places::find()?, pull_options(settings.images.clone()))))
            }
            _ => name.make_with(NamePrefix::new(settings.sandbox.name_prefix.as_str())?),
        }
    }

    /// The one for a new sandbox: the one that was named, on the command line or in the settings; else native where it
    /// works, else Podman, else Docker. Never `local` by itself.
    ///
    /// Where the user has chosen to go without a sandbox, the settings that describe one are dropped, and named.
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

    /// Plain processes of this machine, and a warning that says so.
    fn directly(&self, reason: &str, settings: &mut Settings) -> Result<Arc<dyn Provider>> {
        let dropped = settings.without_sandbox();
        let dropped =
            if dropped.is_empty() { String::new() } else { format!("; ignored settings: {}", dropped.join(", ")) };
        report::warning(&format!("{reason}: the command runs without a sandbox{dropped}"));
        self.make(ProviderName::Local, settings)
    }

    async fn detected(&self, settings: &Settings, image: Option<&str>) -> Result<Arc<dyn Provider>> {
        let native = self.make(ProviderName::Native, settings)?;
        // What is only in an engine's own store may be there and nowhere else.
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
            availability.fix.map_or(availability.detail.clone(), |fix| format!("{} ({fix})", availability.detail))
        };
        let chosen = self.engine(settings, &format!("native: {reason}")).await?;
        if image.is_none() {
            report::note(&format!("native is not available: {reason}; using {}", chosen.as_str()));
        }
        self.make(chosen, settings)
    }

    /// The one that builds images: the one that was named, else an engine.
    pub(crate) async fn for_builds(&self, settings: &Settings) -> Result<Arc<dyn Provider>> {
        let set = ProviderName::set(settings.sandbox.provider)?;
        let engine = set.filter(|name| matches!(name, ProviderName::Podman | ProviderName::Docker));
        let chosen = match self.named.or(engine) {
            Some(named) => named,
            None => self.engine(settings, "native: it cannot build images").await?,
        };
        self.make(chosen, settings)
    }

    /// Podman where it answers, else Docker. `native` says why it is neither.
    async fn engine(&self, settings: &Settings, native: &str) -> Result<ProviderName> {
        let (podman, docker) = (ProviderName::Podman.endpoint()?, ProviderName::Docker.endpoint()?);
        Ok(match (podman.may_answer(), docker.may_answer()) {
            // A socket may be all there is of an engine.
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

    /// The sandbox of that id, name or beginning of an id.
    pub(crate) async fn find(&self, text: &str) -> Result<Sandbox> {
        // What cannot be an id goes to no provider: it may end up in a path there.
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

    /// Everything that exists. Only a provider that was named must be able to tell.
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

    /// Removes what was left behind, and answers what. Who cannot be asked is named.
    pub(crate) async fn sweep(&self) -> Result<Vec<String>> {
        let (mut removed, mut silent) = (Vec::new(), Vec::new());
        for name in self.candidates() {
            let swept = match name.make() {
                Ok(provider) => provider.sweep().await,
                Err(error) => Err(error),
            };
            match swept {
                Ok(swept) => removed.extend(swept.into_iter().map(|what| format!("{}: {what}", name.as_str()))),
                Err(error) if self.named.is_some() => return Err(error),
                Err(error) => silent.push((name, error)),
            }
        }
        report_silent(&silent);
        Ok(removed)
    }

    /// Those that can be asked. Those that cannot are named, or are the error if they were asked for.
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

    /// The one that a new sandbox would get; native if none is available.
    pub(crate) async fn name_for_new(&self, settings: &Settings) -> Result<ProviderName> {
        let found = match self.for_new(&mut settings.clone(), None).await {
            Err(error) if error.code() == ErrorCode::NotAvailable => None,
            found => Some(found?),
        };
        let kind = found.map(|provider| provider.mode().key.provider);
        let name = kind.and_then(|kind| ProviderName::ALL.into_iter().find(|name| name.kind() == Some(kind)));
        Ok(name.unwrap_or(ProviderName::Native))
    }

    /// The one that was named.
    pub(crate) fn named(&self) -> Option<ProviderName> {
        self.named
    }

    /// The one that was named, or all there are.
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

/// Whether native sandboxes can be made of that image at once.
fn has_image(image: &str) -> bool {
    let store = Places::find().ok().and_then(|places| kennel_image::Store::open(places.images()).ok());
    let found = store.zip(image.parse().ok()).and_then(|(store, reference)| store.get(&reference).ok());
    found.flatten().is_some()
}

fn make_native(places: &Places, pull: PullOptions) -> kennel_native::Native {
    let native = kennel_native::Native::new(places.provider_state("native"), places.programs());
    let native = native.hiding(places.all()).beside_engines(engines::sockets());
    match kennel_image::Store::open(places.images()) {
        Ok(store) => native.with_images(store, pull),
        // Another's: it is told when an image is asked for.
        Err(_) => native,
    }
}

/// Tries what the kernel grants to native sandboxes.
pub(crate) fn try_kernel() -> Result<kennel_native::Trial> {
    make_native(&Places::find()?, PullOptions::default()).try_kernel()
}

/// Says which providers could not be asked.
pub(crate) fn report_silent(silent: &[(ProviderName, Error)]) {
    for (name, error) in silent {
        report::warning(&format!("cannot list the sandboxes of {}: {error}", name.as_str()));
    }
}
