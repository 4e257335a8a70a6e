//! The workspace and other mounts, and the owners of their files.

use crate::Stage;
use crate::inside::{at, code, files, ok, sh};
use kennel_core::WriteOptions;
use kennel_types::{Backing, ErrorCode, Mount, Owner, SandboxSpec, Support};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Changes in the workspace are visible on both sides at once. Without mounts, the workspace is the host's directory
/// itself.
pub async fn workspace_is_shared(stage: &Stage) {
    let workspace = stage.home().workspace();
    std::fs::write(workspace.join("from-outside"), "out").unwrap();
    if stage.mode().workspace == Support::Refused {
        return stage.refuses(&SandboxSpec { workspace: Some(workspace), ..stage.spec() }).await;
    }
    let sandbox = stage.running().await;
    if stage.mode().backing == Backing::Memory {
        // It contains no files of the host.
        assert_eq!(code(files(&sandbox).await.read(at(&sandbox, "from-outside"), 10).await), ErrorCode::NotFound);
        return;
    }
    if stage.mode().backing == Backing::Host {
        assert_eq!(Path::new(&sandbox.info().workdir), workspace);
    } else {
        assert_eq!(sandbox.info().workdir, "/workspace");
    }
    assert_eq!(ok(&sandbox, "cat from-outside").await, "out");
    ok(&sandbox, "printf in > from-inside").await;
    assert_eq!(std::fs::read(workspace.join("from-inside")).unwrap(), b"in");
    std::fs::write(workspace.join("from-outside"), "changed").unwrap();
    assert_eq!(ok(&sandbox, "cat from-outside").await, "changed");
}

/// A read-only root filesystem is either enforced or refused. Options that only images and engines have are refused by
/// other modes.
pub async fn read_only_root_cannot_be_written(stage: &Stage) {
    let spec = SandboxSpec { read_only: true, ..stage.spec() };
    if stage.mode().backing != Backing::Image {
        stage.refuses(&SandboxSpec { runtime: Some("other".into()), ..stage.spec() }).await;
        stage.refuses(&SandboxSpec { userns: Some("auto".into()), ..stage.spec() }).await;
        stage.refuses(&SandboxSpec { image_main: true, ..stage.spec() }).await;
    }
    if stage.mode().read_only == Support::Refused {
        return stage.refuses(&spec).await;
    }
    let sandbox = stage.started(&spec).await;
    for script in ["echo x > /file", "echo x > /etc/new", "rm /etc/passwd", "mount -o remount,rw /", "mkdir /var/x"] {
        assert!(!sh(&sandbox, script).await.status.success(), "{script}");
    }
    assert_eq!(ok(&sandbox, "echo tmp > /tmp/new && cat /tmp/new").await, "tmp");
    if stage.mode().workspace == Support::Given {
        ok(&sandbox, "echo x > by-command").await;
    }
}

/// Returns a spec with an additional mount, and the mounted directory, which contains a file.
fn mounting(stage: &Stage, target: &str, read_only: bool) -> (SandboxSpec, std::path::PathBuf) {
    let host = stage.home().path().join("shared");
    std::fs::create_dir_all(&host).unwrap();
    std::fs::write(host.join("file"), "shared").unwrap();
    let mounts = vec![Mount { host: host.clone(), target: target.into(), read_only }];
    (SandboxSpec { mounts, ..stage.spec() }, host)
}

/// A directory can be mounted at a path that does not exist yet. A single file can be mounted, too.
pub async fn directories_and_files_are_mounted(stage: &Stage) {
    let (mut spec, host) = mounting(stage, "/made/for/it", false);
    if stage.mode().mounts == Support::Refused {
        return stage.refuses(&spec).await;
    }
    spec.mounts.push(Mount { host: host.join("file"), target: "/made/single".into(), read_only: true });
    let sandbox = stage.started(&spec).await;
    assert_eq!(ok(&sandbox, "cat /made/for/it/file /made/single").await, "sharedshared");
    ok(&sandbox, "echo new > /made/for/it/new").await;
    assert_eq!(std::fs::read(host.join("new")).unwrap(), b"new\n");
    sandbox.stop(std::time::Duration::ZERO).await.unwrap();
    sandbox.start().await.unwrap();
    assert_eq!(ok(&sandbox, "cat /made/for/it/new").await, "new");
}

/// A read-only mount can be written neither by a command nor by a file request, not even by root.
pub async fn read_only_mount_cannot_be_written(stage: &Stage) {
    let (spec, host) = mounting(stage, "/fixed", true);
    if stage.mode().mounts == Support::Refused {
        return stage.refuses(&spec).await;
    }
    let sandbox = stage.started(&spec).await;
    assert_eq!(ok(&sandbox, "cat /fixed/file").await, "shared");
    for script in ["echo x > /fixed/file", "echo x > /fixed/new", "rm /fixed/file", "mount -o remount,rw,bind /fixed"] {
        assert!(!sh(&sandbox, script).await.status.success(), "{script}");
    }
    let files = files(&sandbox).await;
    assert_ne!(code(files.write("/fixed/file", b"x", WriteOptions::default()).await), ErrorCode::Internal);
    assert_ne!(code(files.remove("/fixed/file", false).await), ErrorCode::Internal);
    assert_eq!(std::fs::read(host.join("file")).unwrap(), b"shared");
    assert_eq!(std::fs::read_dir(host).unwrap().count(), 1);
}

/// Processes inside can replace a directory in the workspace that is also mounted elsewhere by a symlink. The next
/// start does not follow it.
pub async fn start_follows_no_symlink_at_a_mount_source(stage: &Stage) {
    let (mut spec, _) = mounting(stage, "/mounted", false);
    if stage.mode().mounts == Support::Refused {
        return stage.refuses(&spec).await;
    }
    let (host, victim) = (stage.home().workspace().join("data"), stage.home().path().join("victim"));
    for (dir, file) in [(&host, "file"), (&victim, "secret")] {
        std::fs::create_dir(dir).unwrap();
        std::fs::write(dir.join(file), file).unwrap();
    }
    spec.mounts[0].host.clone_from(&host);
    let sandbox = stage.started(&spec).await;
    assert_eq!(ok(&sandbox, "cat /mounted/file").await, "file");
    ok(&sandbox, &format!("mv data .old && ln -s {} data", victim.display())).await;
    sandbox.stop(std::time::Duration::ZERO).await.unwrap();
    let error = sandbox.start().await.expect_err("the mount is a symlink now");
    assert!(error.to_string().contains(host.to_str().unwrap()), "{error}");
    // The controls: a process of the host follows the symlink, and without it the sandbox starts.
    assert_eq!(std::fs::read(host.join("secret")).unwrap(), b"secret");
    std::fs::remove_file(&host).unwrap();
    std::fs::rename(host.with_file_name(".old"), &host).unwrap();
    sandbox.start().await.unwrap();
    assert_eq!(ok(&sandbox, "cat /mounted/file; ls /mounted").await, "filefile");
}

/// A mount whose host path is missing is an error, and the path is not created.
pub async fn missing_mount_source_is_an_error(stage: &Stage) {
    let (mut spec, host) = mounting(stage, "/fixed", false);
    spec.mounts[0].host = host.join("absent");
    if stage.mode().mounts == Support::Refused {
        return stage.refuses(&spec).await;
    }
    let error = match stage.try_create(&spec).await {
        Ok(sandbox) => sandbox.start().await.expect_err("it is not there"),
        Err(error) => error,
    };
    assert!(error.to_string().contains("absent"), "{error}");
    assert!(!host.join("absent").exists());
}

/// Files in the workspace belong to the requested owner, whichever user created them inside.
pub async fn workspace_files_belong_to_the_requested_owner(stage: &Stage) {
    let root = rustix::process::geteuid().is_root();
    let own = std::fs::metadata(stage.home().workspace()).unwrap();
    // Only root can change the owner of files.
    let owner = if root { Owner { uid: 12345, gid: 12346 } } else { Owner { uid: own.uid(), gid: own.gid() } };
    let spec = SandboxSpec { owner: Some(owner), ..stage.spec() };
    if stage.mode().workspace == Support::Refused {
        return stage.refuses(&SandboxSpec { workspace: Some(stage.home().workspace()), ..spec }).await;
    }
    if stage.mode().mounts == Support::Refused {
        return stage.refuses(&SandboxSpec { owner: Some(Owner { uid: 12345, gid: 12346 }), ..spec }).await;
    }
    let workspace = stage.home().workspace();
    std::os::unix::fs::chown(&workspace, Some(owner.uid), Some(owner.gid)).unwrap();
    std::fs::write(workspace.join("theirs"), "t").unwrap();
    std::os::unix::fs::chown(workspace.join("theirs"), Some(owner.uid), Some(owner.gid)).unwrap();
    let sandbox = stage.started(&spec).await;
    ok(&sandbox, "echo x > by-command; mkdir dir; echo x > dir/below; echo more >> theirs").await;
    files(&sandbox).await.write(at(&sandbox, "deep/by-call"), b"x", WriteOptions::default()).await.unwrap();
    for name in ["by-command", "dir", "dir/below", "deep", "deep/by-call", "theirs"] {
        let found = std::fs::metadata(workspace.join(name)).unwrap();
        assert_eq!((found.uid(), found.gid()), (owner.uid, owner.gid), "{name}");
    }
    // That user has a writable home directory and a name inside.
    ok(&sandbox, "cd \"$HOME\" && echo x > file && whoami").await;
}

/// A mount within another mount is visible, also in the workspace, whose other files stay visible.
pub async fn nested_mounts_are_visible(stage: &Stage) {
    let (mut spec, host) = mounting(stage, "/workspace/deep/within", false);
    if stage.mode().mounts == Support::Refused {
        return stage.refuses(&spec).await;
    }
    let workspace = stage.home().workspace();
    std::fs::write(workspace.join("beside"), "b").unwrap();
    spec.mounts.push(Mount { host: host.join("file"), target: "/workspace/beside".into(), read_only: true });
    let sandbox = stage.started(&spec).await;
    assert_eq!(ok(&sandbox, "cat deep/within/file beside && echo new > deep/within/new").await, "sharedshared");
    assert_eq!(std::fs::read(host.join("new")).unwrap(), b"new\n");
    assert_eq!(std::fs::read(workspace.join("beside")).unwrap(), b"b", "the host's own file is unchanged");
    assert!(!workspace.join("deep/within/new").exists());
}
