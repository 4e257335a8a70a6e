//! Checks that every provider makes: of a spec against a mode, and of an operation against a state.

use kennel_core::{Error, Result, check_name};
use kennel_types::{
    Backing, ErrorCode, Feature, Field, GitProtection, Mode, NetworkMode, NextStep, Operation, ProviderKind, Refusal,
    SandboxSpec, SocketBridge, Status, Support, Verdict,
};

/// Checks whether an operation is allowed on a sandbox in this state, by the state machine of [`Status`]. Returns
/// whether there is anything to do.
pub fn permit(name: &str, status: Status, tied: bool, operation: Operation) -> Result<bool> {
    match status.verdict(operation, tied) {
        Verdict::Proceed => Ok(true),
        Verdict::Done => Ok(false),
        Verdict::Refused(Refusal::NotRunning) => Err(Error::stopped(name)),
        Verdict::Refused(Refusal::Paused) => Err(Error::paused(name)),
        Verdict::Refused(Refusal::Running) => Err(Error::is_running(name)),
        Verdict::Refused(Refusal::Tied) => Err(Error::is_tied(name)),
    }
}

/// Suggests to look up which providers support a feature.
fn explain(feature: Feature) -> NextStep {
    NextStep::ExplainFeature { feature }
}

/// Refuses ports that cannot be published.
fn check_ports(mode: &Mode, spec: &SandboxSpec, network: NetworkMode) -> Result<()> {
    let Some(port) = spec.ports.first() else { return Ok(()) };
    if mode.ports == Support::Refused {
        return Err(
            Error::unsupported(mode.provider(), format!("the published port {port}")).suggest(explain(Feature::Ports))
        );
    }
    if network != NetworkMode::Bridge {
        let why = match network {
            NetworkMode::None => "a sandbox with network none cannot be reached",
            _ => "a sandbox with network host needs no published ports",
        };
        let steps =
            [NextStep::set_to(Field::Network, [NetworkMode::Bridge]), NextStep::LeaveOut { field: Field::Ports }];
        return Err(Error::new(ErrorCode::InvalidConfig, format!("publish port {port}: {why}"))
            .suggest(NextStep::either(steps)));
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
            .advise("use another port of the host, or none for any free port"));
        }
    }
    Ok(())
}

/// Refuses volumes that nobody could find again, or whose path inside is used twice.
fn check_volumes(spec: &SandboxSpec) -> Result<()> {
    let refuse = |message: String, step: NextStep| Err(Error::new(ErrorCode::InvalidConfig, message).suggest(step));
    if spec.data && spec.tied && spec.name.is_none() {
        let message = "a data volume needs a sandbox with a name: this one has none, and is removed at once";
        return refuse(message.into(), NextStep::set(Field::Name));
    }
    let clean = |target: &str| target.split('/').filter(|name| !name.is_empty()).collect::<Vec<_>>().join("/");
    let mut targets: Vec<String> = spec.mounts.iter().map(|mount| clean(&mount.target)).collect();
    targets.extend(spec.data.then(|| ".data".to_owned()));
    for cache in &spec.caches {
        check_name(&cache.name)?;
        if !cache.target.starts_with('/') || cache.target.split('/').any(|name| name == "..") {
            let message = format!("cache {} at {}: the path must be absolute", cache.name, cache.target);
            return refuse(message, NextStep::set(Field::Caches));
        }
        targets.push(clean(&cache.target));
    }
    targets.sort_unstable();
    match targets.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(twice) => refuse(
            format!("two mounts or volumes have the same path /{}", twice[0]),
            NextStep::advice("choose another path for one of them"),
        ),
        None => Ok(()),
    }
}

/// Refuses bridges to sockets that cannot be served. [`Guard::check_bridges`](crate::Guard::check_bridges) looks at the
/// sockets themselves.
fn check_sockets(mode: &Mode, spec: &SandboxSpec) -> Result<()> {
    let Some(first) = spec.sockets.first() else { return Ok(()) };
    if mode.sockets == Support::Refused {
        let what = format!("the socket {} inside", first.target);
        return Err(Error::unsupported(mode.provider(), what).suggest(explain(Feature::Sockets)));
    }
    let refuse =
        |message: String| Err(Error::new(ErrorCode::InvalidConfig, message).suggest(NextStep::set(Field::Sockets)));
    if spec.sockets.len() > SocketBridge::MOST {
        return refuse(format!("{} sockets: a sandbox can have at most {}", spec.sockets.len(), SocketBridge::MOST));
    }
    for (at, socket) in spec.sockets.iter().enumerate() {
        let SocketBridge { target, .. } = socket;
        let names = |target: &str| target.split('/').filter(|name| !name.is_empty()).map(str::to_owned).collect();
        let own: Vec<String> = names(target);
        if !target.starts_with('/') || target.ends_with('/') || target.contains('\0') {
            return refuse(format!("socket {socket}: the path inside must be absolute, and end in a name"));
        }
        if own.iter().any(|name| name == "." || name == "..") {
            return refuse(format!("socket {socket}: the path inside must not contain . or .."));
        }
        if spec.sockets[..at].iter().any(|other| own == names(&other.target)) {
            return refuse(format!("socket {socket}: two sockets have the same path inside"));
        }
    }
    Ok(())
}

/// Refuses a read-only `.git/config` if it cannot be enforced.
fn check_git(mode: &Mode, spec: &SandboxSpec) -> Result<()> {
    if spec.protect_git != GitProtection::Config {
        return Ok(());
    }
    if spec.workspace.is_some() && mode.workspace == Support::Given && mode.mounts == Support::Refused {
        let steps = [NextStep::LeaveOut { field: Field::ProtectGit }, NextStep::LeaveGitUnprotected];
        return Err(Error::unsupported(mode.provider(), "a read-only .git/config").suggest(NextStep::either(steps)));
    }
    if spec.nesting {
        let message = "a read-only .git/config cannot be enforced with nested sandboxes: .git can be renamed in a \
                       nested mount namespace";
        let fields = vec![Field::ProtectGit, Field::Nesting];
        return Err(Error::new(ErrorCode::InvalidConfig, message).suggest(NextStep::LeaveOutOneOf { fields }));
    }
    Ok(())
}

/// Refuses everything that the mode does not support, and returns the network to use. Every provider calls this first
/// in `create`.
pub fn require(mode: &Mode, spec: &SandboxSpec) -> Result<NetworkMode> {
    let refuse = |what: String, feature| Err(Error::unsupported(mode.provider(), what).suggest(explain(feature)));
    if mode.limits == Support::Refused && spec.limits.on_processes() {
        return refuse("memory, cpu or process limits".into(), Feature::Limits);
    }
    if mode.disk == Support::Refused && spec.limits.disk.is_some() {
        return refuse("disk limits".into(), Feature::Disk);
    }
    if mode.nesting == Support::Refused && spec.nesting {
        return refuse("nested sandboxes".into(), Feature::Nesting);
    }
    check_git(mode, spec)?;
    check_sockets(mode, spec)?;
    crate::labels::check_labels(&spec.labels)?;
    if let (Support::Refused, Some(mount)) = (mode.mounts, spec.mounts.first()) {
        return refuse(format!("a mount at {}", mount.target), Feature::Mounts);
    }
    if mode.users == Support::Refused && spec.user.is_some() {
        return refuse("commands as another user".into(), Feature::Users);
    }
    if mode.volumes == Support::Refused && (spec.data || !spec.caches.is_empty()) {
        return refuse("volumes".into(), Feature::Volumes);
    }
    check_volumes(spec)?;
    if mode.keeper == Support::Refused {
        let asked =
            [(spec.tied, "sandboxes that are tied to their creator"), (spec.idle_seconds.is_some(), "idle timeouts")];
        if let Some((_, what)) = asked.into_iter().find(|(asked, _)| *asked) {
            return refuse(format!("{what}: no keeper runs on that engine's machine"), Feature::Keeper);
        }
    }
    if mode.read_only == Support::Refused && spec.read_only {
        return refuse("a read-only root filesystem".into(), Feature::ReadOnly);
    }
    if mode.backing != Backing::Image {
        let engines = |engines: &[ProviderKind]| NextStep::use_provider(engines);
        let asked = [
            (
                spec.runtime.is_some(),
                "a choice of runtime",
                [NextStep::LeaveOut { field: Field::Runtime }, engines(&[ProviderKind::Docker, ProviderKind::Podman])],
            ),
            (
                spec.userns.is_some(),
                "a choice of user namespace",
                [NextStep::LeaveOut { field: Field::Userns }, engines(&[ProviderKind::Podman])],
            ),
            (
                spec.image_main,
                "an image's own command",
                [NextStep::set(Field::Image), NextStep::LeaveOut { field: Field::ImageCommand }],
            ),
        ];
        if let Some((_, what, steps)) = asked.into_iter().find(|(asked, ..)| *asked) {
            return Err(Error::unsupported(mode.provider(), what).suggest(NextStep::either(steps)));
        }
    }
    match (mode.backing, &spec.image) {
        (Backing::Image, None) => {
            return Err(Error::new(
                ErrorCode::InvalidConfig,
                format!("the {} provider needs an image", mode.provider()),
            )
            .suggest(NextStep::set(Field::Image)));
        }
        (Backing::Image, Some(_)) | (_, None) => {}
        (_, Some(image)) => {
            return refuse(format!("the image {image}: it uses the host's filesystem"), Feature::Images);
        }
    }
    let network = spec.network.unwrap_or(mode.default_network());
    check_ports(mode, spec, network)?;
    if !mode.networks.contains(&network) {
        return Err(Error::unsupported(mode.provider(), format!("network {network}"))
            .suggest(NextStep::set_to(Field::Network, mode.networks)));
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
