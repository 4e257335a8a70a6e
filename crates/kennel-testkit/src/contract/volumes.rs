//! Volumes: they outlive sandboxes, are listed with their users, and are removed only on request.

use crate::Stage;
use crate::inside::{PLENTY, code, files, ok, run};
use kennel_core::{RemoveOptions, Sandbox, VolumeOptions, WriteOptions};
use kennel_types::{Cache, ErrorCode, ExecSpec, NextStep, SandboxSpec, Support, VolumeInfo, VolumeKind};

const KEEP: RemoveOptions = RemoveOptions { force: true, volumes: false };
const ALL: RemoveOptions = RemoveOptions { force: true, volumes: true };

fn named(stage: &Stage, word: &str) -> SandboxSpec {
    SandboxSpec { name: Some(stage.name(word)), data: true, ..stage.spec() }
}

/// Returns the spec of a sandbox with a cache. Its project is the home's mark.
fn with_cache(stage: &Stage, word: &str) -> SandboxSpec {
    let cache = Cache::new(stage.name("downloads"), "/cache");
    let project = Some(stage.home().mark());
    SandboxSpec { name: Some(stage.name(word)), caches: vec![cache], project, ..stage.spec() }
}

/// Writes a file, with a command or, without processes, through the keeper.
async fn write(stage: &Stage, sandbox: &Sandbox, path: &str, text: &str) {
    if stage.mode().processes == Support::Given {
        ok(sandbox, &format!("echo {text} > {path}")).await;
    } else {
        let bytes = format!("{text}\n");
        files(sandbox).await.write(path, bytes.as_bytes(), WriteOptions::default()).await.unwrap();
    }
}

/// Returns the content of a file, without the last newline, or `None` if there is no such file.
async fn read(stage: &Stage, sandbox: &Sandbox, path: &str) -> Option<String> {
    if stage.mode().processes == Support::Given {
        let found = ok(sandbox, &format!("test ! -e {path} || cat {path}")).await;
        return Some(found).filter(|found| !found.is_empty());
    }
    match files(sandbox).await.read(path, PLENTY).await {
        Ok(bytes) => Some(String::from_utf8(bytes).unwrap().trim_end().to_owned()),
        Err(error) => {
            assert_eq!(error.code(), ErrorCode::NotFound, "{error}");
            None
        }
    }
}

/// Writes to a directory of the cache that only another user may read, where there are such users. Returns the least
/// size of the cache.
async fn private(stage: &Stage, sandbox: &Sandbox) -> u64 {
    const SIZE: u64 = 1 << 20;
    if stage.mode().users == Support::Refused {
        return 1;
    }
    ok(sandbox, "chmod 777 /cache").await;
    let script = format!("mkdir -m 700 /cache/private && head -c {SIZE} /dev/zero > /cache/private/file");
    let output = run(sandbox, &ExecSpec { user: Some("1000:1000".into()), ..ExecSpec::shell(script) }).await;
    assert!(output.status.success(), "{:?}: {}", output.status, output.stderr_text());
    SIZE
}

/// Returns the volume with this name, with its size.
async fn find(stage: &Stage, name: &str) -> Option<VolumeInfo> {
    let found = stage.reopen().volumes(VolumeOptions { sizes: true }).await.unwrap();
    found.into_iter().find(|volume| volume.name == name)
}

/// Returns the names of the sandboxes that use a volume.
fn users(volume: &VolumeInfo) -> Vec<&str> {
    volume.used_by.iter().map(|user| user.name.as_str()).collect()
}

/// A later sandbox of the same name gets the same data volume, and no other sandbox does.
pub async fn data_volume_is_found_by_the_sandbox_name(stage: &Stage) {
    let spec = named(stage, "own");
    if stage.mode().volumes == Support::Refused {
        return stage.refuses(&spec).await;
    }
    let first = stage.started(&spec).await;
    write(stage, &first, "/.data/file", "kept").await;
    if stage.mode().processes == Support::Given {
        ok(&first, "chmod 700 /.data").await;
    }
    first.remove(KEEP).await.unwrap();
    let other = stage.started(&named(stage, "other")).await;
    assert_eq!(read(stage, &other, "/.data/file").await, None);
    write(stage, &other, "/.data/mine", "x").await;
    let second = stage.started(&spec).await;
    assert_eq!(read(stage, &second, "/.data/file").await.as_deref(), Some("kept"));
    assert_eq!(read(stage, &second, "/.data/mine").await, None);
    second.remove(ALL).await.unwrap();
    let third = stage.started(&spec).await;
    assert_eq!(read(stage, &third, "/.data/file").await, None);
    for sandbox in [third, other] {
        sandbox.remove(ALL).await.unwrap();
    }
}

/// A data volume without a sandbox name is refused, because no later sandbox could find it.
pub async fn data_volume_without_a_sandbox_name_is_refused(stage: &Stage) {
    let spec = SandboxSpec { name: None, data: true, tied: true, ..stage.spec() };
    if stage.mode().volumes == Support::Refused {
        return stage.refuses(&spec).await;
    }
    assert_eq!(code(stage.try_create(&spec).await), ErrorCode::InvalidConfig);
}

/// Volumes are listed with their kind, their origin and the sandboxes that use them, whether those run or not. Sandboxes
/// that are removed leave them.
pub async fn volumes_are_listed_with_their_users(stage: &Stage) {
    let (data, cache) = (named(stage, "box"), with_cache(stage, "first"));
    if stage.mode().volumes == Support::Refused {
        stage.refuses(&cache).await;
        return stage.refuses(&data).await;
    }
    let cache_name = VolumeKind::Cache.volume(&stage.name("downloads"));
    let data_name = VolumeKind::Data.volume(&stage.name("box"));
    let (own, first) = (stage.started(&data).await, stage.started(&cache).await);
    write(stage, &first, "/cache/file", "shared").await;
    let least = private(stage, &first).await;
    let second = stage.started(&with_cache(stage, "second")).await;
    assert_eq!(read(stage, &second, "/cache/file").await.as_deref(), Some("shared"));
    second.stop(std::time::Duration::ZERO).await.unwrap();

    let volume = find(stage, &cache_name).await.unwrap();
    assert_eq!((volume.kind, volume.provider.as_str()), (VolumeKind::Cache, stage.provider().name()));
    assert_eq!((&volume.workspace, &volume.project), (&cache.workspace, &cache.project));
    assert!(volume.size.is_some_and(|size| size >= least), "{least}: {volume:?}");
    let mut names = users(&volume);
    names.sort_unstable();
    assert_eq!(names, [stage.name("first"), stage.name("second")]);
    let volume = find(stage, &data_name).await.unwrap();
    assert_eq!((volume.kind, users(&volume)), (VolumeKind::Data, vec![stage.name("box").as_str()]));
    assert_eq!(volume.used_by[0].id, *own.id());
    assert_eq!(volume.workspace, data.workspace);
    let unmeasured = stage.provider().volumes(VolumeOptions::default()).await.unwrap();
    assert!(unmeasured.iter().any(|volume| volume.name == data_name));

    for sandbox in [own, first, second] {
        sandbox.remove(KEEP).await.unwrap();
    }
    for name in [cache_name, data_name] {
        let volume = find(stage, &name).await.unwrap();
        assert_eq!(users(&volume), [""; 0]);
        stage.provider().remove_volume(&name).await.unwrap();
        assert_eq!(find(stage, &name).await, None);
    }
}

/// A volume is removed only if no sandbox uses it. The next sandbox gets an empty one.
pub async fn volume_in_use_is_not_removed(stage: &Stage) {
    let spec = with_cache(stage, "user");
    if stage.mode().volumes == Support::Refused {
        return stage.refuses(&spec).await;
    }
    let name = VolumeKind::Cache.volume(&stage.name("downloads"));
    let provider = stage.provider();
    let sandbox = stage.started(&spec).await;
    write(stage, &sandbox, "/cache/file", "kept").await;
    for running in [true, false] {
        let error = provider.remove_volume(&name).await.expect_err("it is in use");
        assert_eq!(error.code(), ErrorCode::Conflict, "{error}");
        assert!(error.to_string().contains(&stage.name("user")), "{error}");
        let step = NextStep::RemoveSandbox { name: stage.name("user"), force: false, volumes: false };
        assert_eq!(error.next_step(), Some(&step));
        if running {
            sandbox.stop(std::time::Duration::ZERO).await.unwrap();
        }
    }
    sandbox.start().await.unwrap();
    assert_eq!(read(stage, &sandbox, "/cache/file").await.as_deref(), Some("kept"));
    // Removing a sandbox with its volumes removes no volume that is shared.
    sandbox.remove(ALL).await.unwrap();
    provider.remove_volume(&name).await.unwrap();
    assert_eq!(find(stage, &name).await, None);
    let next = stage.started(&spec).await;
    assert_eq!(read(stage, &next, "/cache/file").await, None);
    next.remove(ALL).await.unwrap();
    provider.remove_volume(&name).await.unwrap();
}

/// A renamed sandbox keeps its data volume.
pub async fn renamed_sandbox_keeps_its_volume(stage: &Stage) {
    let spec = named(stage, "before");
    if stage.mode().volumes == Support::Refused {
        return stage.refuses(&spec).await;
    }
    let name = VolumeKind::Data.volume(&stage.name("before"));
    let sandbox = stage.started(&spec).await;
    write(stage, &sandbox, "/.data/file", "kept").await;
    sandbox.stop(std::time::Duration::ZERO).await.unwrap();
    stage.provider().rename(sandbox.id(), &stage.name("after")).await.unwrap();
    assert_eq!(users(&find(stage, &name).await.unwrap()), [stage.name("after")]);
    assert_eq!(code(stage.provider().remove_volume(&name).await), ErrorCode::Conflict);
    sandbox.start().await.unwrap();
    assert_eq!(read(stage, &sandbox, "/.data/file").await.as_deref(), Some("kept"));
    sandbox.remove(ALL).await.unwrap();
    assert_eq!(find(stage, &name).await, None);
}

/// Unknown volumes, paths, and names of volumes that are not Kennel's are not found.
pub async fn unknown_volume_is_not_found(stage: &Stage) {
    let unknown = VolumeKind::Data.volume(&stage.name("unknown"));
    for name in [unknown.as_str(), "", "..", "../native", "data-../../native", "/etc", "data-", "a\u{1b}[2J"] {
        let error = stage.provider().remove_volume(name).await.expect_err("there is none");
        assert_eq!((error.code(), error.next_step()), (ErrorCode::NotFound, Some(&NextStep::ListVolumes)), "{name:?}");
        assert!(!error.to_string().contains('\u{1b}'), "{error}");
    }
}

/// While a volume is removed, sandboxes are created that use it. Each of them works, and keeps what it writes.
pub async fn volume_removed_during_creation_is_whole_or_new(stage: &Stage) {
    let spec = with_cache(stage, "user");
    if stage.mode().volumes == Support::Refused {
        return stage.refuses(&spec).await;
    }
    let name = VolumeKind::Cache.volume(&stage.name("downloads"));
    let first = stage.started(&spec).await;
    write(stage, &first, "/cache/file", "old").await;
    first.remove(KEEP).await.unwrap();
    for round in 0..5 {
        let remover = stage.reopen();
        let (removed, sandbox) = tokio::join!(remover.remove_volume(&name), stage.started(&spec));
        match removed {
            Ok(()) => {}
            Err(error) => assert_eq!(error.code(), ErrorCode::Conflict, "{error}"),
        }
        write(stage, &sandbox, "/cache/mine", "new").await;
        let volume = find(stage, &name).await.unwrap_or_else(|| panic!("round {round}: the volume is not listed"));
        assert_eq!(users(&volume), [stage.name("user")]);
        sandbox.stop(std::time::Duration::ZERO).await.unwrap();
        sandbox.start().await.unwrap();
        assert_eq!(read(stage, &sandbox, "/cache/mine").await.as_deref(), Some("new"));
        sandbox.remove(KEEP).await.unwrap();
    }
    stage.provider().remove_volume(&name).await.unwrap();
}
