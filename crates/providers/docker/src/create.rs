//! Creates a sandbox: checks the spec and what the engine supports, creates the container, and inspects the result. A
//! sandbox that is weaker than requested is removed again.

use crate::engine::status;
use crate::engine_mode::{has_own_ids, is_rootless};
use crate::info::Container;
use crate::keeper::back_off;
use crate::mounts::{Empty, mounts};
use crate::plan::{Facts, Ids, KeeperSetup, Plan, Workdir, plan};
use crate::{Docker, Seen, seccomp};
use bollard::models::ImageConfig;
use bollard::query_parameters::{
    ContainerArchiveInfoOptionsBuilder, CreateContainerOptionsBuilder, RemoveContainerOptionsBuilder,
    UploadToContainerOptionsBuilder,
};
use kennel_core::{Error, Result, Sweep, printable};
use kennel_provider::{Guard, require};
use kennel_types::{
    ErrorCode, Field, IsolationLayer, Limits, Mode, NetworkMode, NextStep, Owner, ProviderKind, SandboxId, SandboxInfo,
    SandboxSpec, Support,
};
use rustix::fs::{Mode as FileMode, OFlags, StatVfsMountFlags};
use rustix::io::Errno;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The first API version with recursively read-only mounts.
const DEEP_READ_ONLY: (usize, usize) = (1, 44);

/// How often a request to Podman is repeated after a spurious failure.
const RETRIES: u32 = 3;
/// The delay before a request to Podman is repeated.
const RETRY_WAIT: Duration = Duration::from_millis(50);

impl Docker {
    /// Creates a sandbox, completely or not at all.
    pub(crate) async fn make(&self, id: &SandboxId, spec: &SandboxSpec) -> Result<SandboxInfo> {
        if self.engine_mode.get().is_none() && (spec.userns.is_none() || spec.image.is_none()) {
            // Otherwise the mode depends on the engine's info, fetched below.
            require(self.row(), spec)?;
        }
        let reference = image_reference(spec)?;
        self.engine.api().await?;
        let (image, setup) = tokio::join!(self.image(reference), self.engine_mode());
        let setup = setup?;
        // Now the mode is known.
        let mode = setup.with_userns(spec.userns.as_deref())?;
        check_shared(spec, mode)?;
        let network = require(mode, spec)?;
        let image = image?;
        setup.check()?;
        self.check_paths(spec)?;
        Self::check_owner(spec, mode)?;
        let (run_dir, held) = self.claim(id).await?;
        let made = self.make_container(spec, id, network, &image, &run_dir, mode).await;
        if made.is_ok() {
            self.run_dirs.complete(id);
        } else {
            let _ = self.run_dirs.remove(id);
        }
        if let (true, Some(seen)) = (spec.tied, self.seen().get_mut(id)) {
            seen.held = Some(Arc::new(held));
        }
        if self.run_dirs.is_sweep_due() {
            // Leftovers of other sandboxes do not prevent this one.
            let _ = self.sweep_leftovers(Sweep::Remove).await;
        }
        made
    }

    /// Claims the id of a new sandbox: its run directory, and a lock on it.
    async fn claim(&self, id: &SandboxId) -> Result<(PathBuf, std::fs::File)> {
        let taken = || Error::new(ErrorCode::AlreadyExists, format!("there is already a sandbox {id}"));
        if let Some(claimed) = self.run_dirs.claim(id)? {
            return Ok(claimed);
        }
        // A process that was killed before it created the container leaves a directory without one.
        if self.run_dirs.is_held(id) || self.by_id(id).await?.is_some() {
            return Err(taken());
        }
        self.run_dirs.remove(id)?;
        self.run_dirs.claim(id)?.ok_or_else(taken)
    }

    async fn make_container(
        &self,
        spec: &SandboxSpec,
        id: &SandboxId,
        network: NetworkMode,
        image: &ImageConfig,
        run_dir: &Path,
        mode: &'static Mode,
    ) -> Result<SandboxInfo> {
        let api = self.engine.api().await?;
        // Held until the container is created, so that a name is assigned only once, and so that no volume is removed
        // before the container uses it: the engine would create one without labels.
        let _held = match &spec.name {
            Some(name) => Some(self.free_name(name).await?),
            None if !spec.caches.is_empty() || spec.data => Some(self.run_dirs.lock().await?),
            None => None,
        };
        let here = self.engine.dialer().is_here();
        // A keeper with its own ids could not access a directory of the host, because the host user is not mapped
        // inside.
        let shown = here && !has_own_ids(mode);
        let program = if shown { self.keeper_program()? } else { None };
        let keeper = match (shown, mode.keeper) {
            (_, Support::Refused) => KeeperSetup::Plain,
            (true, Support::Given) => KeeperSetup::Mounted { program: program.as_deref(), run_dir },
            (false, Support::Given) => KeeperSetup::Copied,
        };
        let own = [&self.state_dir, &self.program_dir].into_iter().chain(&self.hidden);
        let engines = self.engine.dialer().socket().map(Path::to_owned).into_iter().chain(self.engines.iter().cloned());
        let guard = Guard::new(own.map(PathBuf::as_path)).with_engines(engines);
        guard.check_bridges(spec).await?;
        let version = api.client_version();
        let deep = (version.major_version, version.minor_version) >= DEEP_READ_ONLY;
        let name = mode.name();
        let facts = Facts {
            id,
            installation: &self.installation,
            prefix: &self.prefix,
            network,
            image,
            owner: spec.owner.unwrap_or_else(caller),
            created_ms: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64,
            mode: &name,
            kind: self.engine.kind(),
            keeper,
            limits: mode.limits == Support::Given,
            filter: network == NetworkMode::Bridge && mode.layers.contains(&IsolationLayer::NetworkFilter),
            ids: match (has_own_ids(mode), mode.workspace) {
                (true, Support::Refused) => Ids::Apart,
                (true, Support::Given) => Ids::Kept,
                (false, _) if is_rootless(mode) => Ids::Root,
                (false, _) => Ids::Same,
            },
            seccomp: seccomp::option(self.engine.kind(), here, &self.program_dir)?,
            mounts: mounts(spec, &guard, |kind| self.empty(kind), deep).await?,
            volumes: self.new_volumes(spec, spec.name.as_deref().unwrap_or(id.as_str()))?,
        };
        self.make_volumes(&facts.volumes).await?;
        let Plan { container, body, make_workdir, make_home, give_volumes } = plan(spec, facts)?;
        let query = CreateContainerOptionsBuilder::default().name(&container).build();
        let mut made = api.create_container(Some(query.clone()), body.clone()).await;
        for _ in 0..RETRIES {
            match &made {
                Err(error) if is_shortage_of_ids(error) => {}
                _ => break,
            }
            back_off(RETRY_WAIT).await;
            made = api.create_container(Some(query.clone()), body.clone()).await;
        }
        let made = match made {
            Ok(made) => made,
            Err(error) if is_taken(&error) => {
                return Err(taken(spec.name.as_deref().unwrap_or_default(), &container));
            }
            Err(error) if status(&error) == Some(404) => return Err(self.no_image(image_reference(spec)?)),
            Err(error) => {
                let error = self.engine.error(format!("create the container {container}"), error);
                return Err(if has_own_ids(mode) { no_ids(mode, error) } else { error });
            }
        };
        let finished = async {
            for dir in make_workdir.iter().chain(&make_home) {
                self.make_workdir(&made.id, dir).await?;
            }
            if let Some((owner, targets)) = give_volumes {
                for path in targets {
                    self.make_workdir(&made.id, &Workdir { path, owner, if_missing: false }).await?;
                }
            }
            let container = self.inspect(&made.id).await?.ok_or_else(|| Error::no_sandbox(id))?;
            self.check_made(spec, mode, &container, &made.warnings)?;
            Ok(container.info)
        };
        let finished = finished.await;
        if finished.is_ok() {
            self.seen().insert(id.clone(), Seen { engine_id: made.id, made_here: true, shown, held: None });
        } else {
            let query = RemoveContainerOptionsBuilder::default().force(true).v(true).build();
            let _ = api.remove_container(&made.id, Some(query)).await;
        }
        finished
    }

    /// Returns the configuration of the image.
    async fn image(&self, reference: &str) -> Result<ImageConfig> {
        match self.engine.api().await?.inspect_image(reference).await {
            Ok(image) => Ok(image.config.unwrap_or_default()),
            Err(error) if status(&error) == Some(404) => Err(self.no_image(reference)),
            Err(error) => Err(self.engine.error(format!("inspect the image {reference}"), error)),
        }
    }

    /// Returns the path of the keeper program for a bind mount. Returns `None` if its filesystem is mounted `noexec`,
    /// because a bind mount inherits that.
    fn keeper_program(&self) -> Result<Option<PathBuf>> {
        let what = |error| Error::io(format!("put the keeper's program into {}", self.program_dir.display()), error);
        let program = kennel_keeper_bin::KEEPER.install(&self.program_dir).map_err(what)?;
        let place = rustix::fs::statvfs(&program).map_err(|error| what(error.into()))?;
        Ok(Some(program).filter(|_| !place.f_flag.contains(StatVfsMountFlags::NOEXEC)))
    }

    /// Returns the path of an empty directory or file, which is mounted read-only as a mask. Creates it if needed.
    fn empty(&self, kind: Empty) -> Result<PathBuf> {
        let path = self.program_dir.join(match kind {
            Empty::Dir => "empty-dir",
            Empty::File => "empty-file",
        });
        let made = std::fs::create_dir_all(&self.program_dir).map_err(|_| Errno::NOENT).and_then(|()| match kind {
            Empty::Dir => match rustix::fs::mkdir(&path, FileMode::from_raw_mode(0o555)) {
                Err(Errno::EXIST) => Ok(()),
                made => made,
            },
            Empty::File => {
                let flags = OFlags::CREATE | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                rustix::fs::open(&path, flags, FileMode::from_raw_mode(0o444)).map(drop)
            }
        });
        made.map_err(|error| Error::io(format!("make {}", path.display()), error))?;
        Ok(path)
    }

    /// Refuses a workspace if the engine is on another machine, where it would mount a directory of that machine.
    fn check_paths(&self, spec: &SandboxSpec) -> Result<()> {
        match &spec.workspace {
            Some(workspace) if !self.engine.dialer().is_here() => {
                let what = format!("the workspace {}: the engine is on another machine", workspace.display());
                Err(Error::unsupported(self.row().provider(), what)
                    .suggest(NextStep::CopyInstead { field: Field::Workspace }))
            }
            _ => Ok(()),
        }
    }

    /// Refuses an owner that a rootless engine cannot give to files, and the user namespace keep-id for root.
    fn check_owner(spec: &SandboxSpec, mode: &Mode) -> Result<()> {
        match spec.owner {
            Some(owner) if is_rootless(mode) && owner != caller() => Err(Error::unsupported(
                mode.provider(),
                format!("files of user {}: the engine does not run as root", owner.uid),
            )
            .advise("leave out sudo")),
            None if is_rootless(mode) && has_own_ids(mode) && caller().uid == 0 => Err(Error::unsupported(
                mode.provider(),
                "the user namespace keep-id for root: the engine belongs to another user",
            )
            .suggest(NextStep::either([
                NextStep::LeaveOut { field: Field::Userns },
                NextStep::advice("call it as the user who runs the engine"),
            ]))),
            _ => Ok(()),
        }
    }

    /// Creates the working directory, owned by the user that commands run as.
    async fn make_workdir(&self, engine_id: &str, workdir: &Workdir) -> Result<()> {
        let what = "create the working directory";
        let name = workdir.path.trim_matches('/');
        if name.is_empty() || (workdir.if_missing && self.is_there(engine_id, &workdir.path).await) {
            return Ok(());
        }
        let mut archive = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_ustar();
        header.set_entry_type(tar::EntryType::Directory);
        header.set_mode(0o755);
        header.set_uid(workdir.owner.uid.into());
        header.set_gid(workdir.owner.gid.into());
        header.set_size(0);
        archive.append_data(&mut header, name, std::io::empty()).map_err(|error| Error::io(what, error))?;
        self.put(engine_id, "/", archive, what).await
    }

    /// Whether a path in a container exists.
    async fn is_there(&self, engine_id: &str, path: &str) -> bool {
        let query = ContainerArchiveInfoOptionsBuilder::default().path(path).build();
        match self.engine.api().await {
            Ok(api) => api.get_container_archive_info(engine_id, Some(query)).await.is_ok(),
            Err(_) => false,
        }
    }

    /// Unpacks an archive in a directory of a container. If the root filesystem is read-only, the directory must be in
    /// a volume.
    pub(crate) async fn put(
        &self,
        engine_id: &str,
        dir: &str,
        archive: tar::Builder<Vec<u8>>,
        what: &str,
    ) -> Result<()> {
        let bytes = archive.into_inner().map_err(|error| Error::io(what, error))?;
        let query = UploadToContainerOptionsBuilder::default().path(dir).build();
        let body = bollard::body_full(bytes.into());
        let sent = self.engine.api().await?.upload_to_container(engine_id, Some(query), body).await;
        sent.map_err(|error| self.engine.error(what, error))
    }

    fn no_image(&self, reference: &str) -> Error {
        let steps = [
            NextStep::run_on_host(format!("{} pull {reference}", self.engine.kind().word())),
            NextStep::BuildImage { image: reference.to_owned() },
        ];
        Error::new(ErrorCode::ImageNotFound, format!("there is no image {reference} on this engine"))
            .suggest(NextStep::either(steps))
    }

    /// Checks that the container is as strict as requested. Engines ignore limits that their kernel does not support,
    /// at most with a warning. Kennel refuses them.
    fn check_made(&self, spec: &SandboxSpec, mode: &Mode, container: &Container, warnings: &[String]) -> Result<()> {
        let enforced = &container.info.enforcement;
        let mut missing: Vec<String> = mode
            .layers_with(container.info.network)
            .iter()
            .filter(|layer| !enforced.layers.contains(layer))
            .map(|layer| format!("{layer:?}"))
            .collect();
        missing.extend(missing_limits(&spec.limits, &enforced.limits));
        // Podman takes a runtime only from its own settings.
        missing.extend(
            spec.runtime
                .iter()
                .filter(|asked| **asked != container.runtime)
                .map(|asked| format!("the runtime {asked}")),
        );
        missing.extend((spec.read_only && !container.read_only).then(|| "a read-only root filesystem".to_owned()));
        if missing.is_empty() {
            return Ok(());
        }
        let missing = format!("{} on this engine", missing.join(", "));
        let error = Error::unsupported(mode.provider(), missing);
        let said: Vec<String> = warnings.iter().map(|warning| printable(warning)).collect();
        if said.is_empty() {
            return Err(error);
        }
        let engine = self.engine.kind().title().to_owned();
        Err(error.suggest(NextStep::EngineSays { engine, text: said.join("; ") }))
    }
}

/// Refuses host files and volumes if their files would belong to nobody inside. This is the case for host files if no
/// host user is mapped into the sandbox, and for volumes if each sandbox has different ids.
fn check_shared(spec: &SandboxSpec, mode: &Mode) -> Result<()> {
    if !has_own_ids(mode) || mode.workspace == Support::Given {
        return Ok(());
    }
    let (with, or) = match mode.volumes {
        Support::Refused => ("with the user namespace auto", None),
        Support::Given => ("on an engine that remaps ids", Some(NextStep::use_provider([ProviderKind::Native]))),
    };
    let refuse = |what: String, field| {
        let what = format!("{what} {with}: its files would belong to nobody");
        let steps: Vec<NextStep> = std::iter::once(NextStep::CopyInstead { field }).chain(or.clone()).collect();
        Err(Error::unsupported(mode.provider(), what).suggest(NextStep::either(steps)))
    };
    if let Some(workspace) = &spec.workspace {
        return refuse(format!("the workspace {}", workspace.display()), Field::Workspace);
    }
    if let Some(mount) = spec.mounts.first() {
        return refuse(format!("a mount at {}", mount.target), Field::Mounts);
    }
    if mode.volumes == Support::Refused && (spec.data || !spec.caches.is_empty()) {
        return refuse("a volume".into(), Field::Volumes);
    }
    Ok(())
}

/// Whether Podman reports that the user has no subordinate ids. Concurrent requests sometimes fail like this, too.
fn is_shortage_of_ids(error: &bollard::errors::Error) -> bool {
    status(error) == Some(500) && error.to_string().contains("requires additional UIDs")
}

/// Adds a next step to Podman's error that no subordinate ids are left. Returns any other error unchanged.
fn no_ids(mode: &Mode, error: Error) -> Error {
    let said = error.to_string();
    if !["available IDs", "unused IDs", "additional UIDs"].iter().any(|part| said.contains(part)) {
        return error;
    }
    let error = Error::unsupported(mode.provider(), format!("a user namespace: no ids are left ({said})"));
    error.suggest(if is_rootless(mode) {
        NextStep::CheckMachine { purpose: Some("have root give you ids in /etc/subuid and /etc/subgid".into()) }
    } else {
        NextStep::advice("as root, add the line containers:2147483647:2147483648 to /etc/subuid and /etc/subgid")
    })
}

pub(crate) fn missing_limits(asked: &Limits, given: &Limits) -> Vec<String> {
    let mut missing = Vec::new();
    if asked.memory.is_some() && asked.memory != given.memory {
        missing.push("the memory limit".to_owned());
    }
    if asked.millicpus.is_some() && asked.millicpus != given.millicpus {
        missing.push("the cpu limit".to_owned());
    }
    if asked.pids.is_some() && asked.pids != given.pids {
        missing.push("the process limit".to_owned());
    }
    missing
}

fn image_reference(spec: &SandboxSpec) -> Result<&str> {
    image_name(spec.image.as_deref().unwrap_or_default())
}

/// Checks an image name, which becomes part of a URL.
pub(crate) fn image_name(reference: &str) -> Result<&str> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-/:@".contains(c);
    if !reference.is_empty() && reference.chars().all(plain) && !reference.contains("..") {
        return Ok(reference);
    }
    Err(Error::new(ErrorCode::InvalidConfig, format!("invalid image name {reference:?}")))
}

/// Whether the engine refused a name because it is in use. Podman has no separate status for that.
pub(crate) fn is_taken(error: &bollard::errors::Error) -> bool {
    status(error) == Some(409) || (status(error) == Some(500) && error.to_string().contains("already in use"))
}

pub(crate) fn taken(name: &str, container: &str) -> Error {
    Error::new(ErrorCode::AlreadyExists, format!("the name {name} is taken: there is a container {container}")).suggest(
        NextStep::either([
            NextStep::ChooseAnother { field: Field::Name },
            NextStep::RemoveSandbox { name: name.to_owned(), force: true, volumes: false },
        ]),
    )
}

fn caller() -> Owner {
    Owner { uid: rustix::process::geteuid().as_raw(), gid: rustix::process::getegid().as_raw() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kennel_types::ByteSize;

    #[test]
    fn a_limit_ignored_by_the_engine_is_noticed() {
        let asked = Limits { memory: Some(ByteSize(8)), millicpus: Some(500), pids: Some(3), disk: None };
        assert!(missing_limits(&asked, &asked).is_empty());
        assert!(missing_limits(&Limits::default(), &asked).is_empty());
        assert_eq!(missing_limits(&asked, &Limits::default()).len(), 3);
        assert_eq!(missing_limits(&asked, &Limits { pids: Some(4), ..asked }), ["the process limit"]);
    }

    #[test]
    fn a_shortage_of_ids_is_recognised() {
        let said = |text: &str, mode: &str| {
            let error = no_ids(Mode::named(mode).unwrap(), Error::new(ErrorCode::Internal, text));
            (error.code(), format!("{:?}", error.next_step()))
        };
        let (code, hint) =
            said("creating container storage: could not find enough available IDs", "podman, root, userns auto");
        assert_eq!((code, hint.contains("containers:")), (ErrorCode::Unsupported, true), "{hint}");
        let (code, hint) = said("keep-id requires additional UIDs or GIDs", "podman, rootless, userns keep-id");
        assert_eq!((code, hint.contains("give you")), (ErrorCode::Unsupported, true), "{hint}");
        assert_eq!(said("no space left", "podman, root, userns auto").0, ErrorCode::Internal);
    }

    #[test]
    fn image_paths_are_refused() {
        let check = |image: &str| {
            let spec = SandboxSpec { image: Some(image.into()), ..SandboxSpec::default() };
            image_reference(&spec).is_ok()
        };
        for good in ["busybox", "a/b:1.0", "localhost:5000/x@sha256:abc"] {
            assert!(check(good), "{good}");
        }
        for bad in ["", "a b", "../containers/json", "x?y", "x#y", "x%2f"] {
            assert!(!check(bad), "{bad}");
        }
    }
}
