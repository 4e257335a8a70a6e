//! Paths that try to lead out of the sandbox.

use crate::Stage;
use crate::inside::{SOON, at, code, files, ok};
use kennel_core::WriteOptions;
use kennel_types::{Backing, ErrorCode};

const PLAIN: WriteOptions = WriteOptions { mode: None, parents: false };

/// A path with more `..` than parent directories stays inside.
pub async fn dot_dot_stays_inside(stage: &Stage) {
    let sandbox = stage.running().await;
    let files = files(&sandbox).await;
    let up = "/..".repeat(20);
    let path = at(&sandbox, "file");
    files.write(format!("{up}{path}"), b"here", PLAIN).await.unwrap();
    assert_eq!(files.read(&path, 10).await.unwrap(), b"here");
    assert_eq!(files.read(format!("{}{up}{path}", sandbox.info().workdir), 10).await.unwrap(), b"here");
    // A relative path starts at the working directory of commands.
    assert_eq!(files.read("file", 10).await.unwrap(), b"here");
    // A file outside, by its path on the host.
    let secret = stage.home().path().join("secret");
    std::fs::write(&secret, "outside").unwrap();
    let way_out = format!("{}{up}{}", sandbox.info().workdir, secret.display());
    match stage.mode().backing {
        Backing::Image | Backing::Memory => assert_eq!(code(files.read(way_out, 10).await), ErrorCode::NotFound),
        // The sandbox shows the host's own files. The owner of this one decides whether it can be read.
        Backing::Host | Backing::HostOverlay | Backing::HostParts => {
            let direct = files.read(secret.to_str().unwrap(), 10).await.map_err(|error| error.code());
            assert_eq!(files.read(way_out, 10).await.map_err(|error| error.code()), direct);
        }
    }
    assert_eq!(std::fs::read(secret).unwrap(), b"outside");
}

/// Absolute symlinks are resolved inside, also if they were created outside, in the shared workspace.
pub async fn absolute_symlinks_resolve_inside(stage: &Stage) {
    if !stage.has_processes().await {
        return;
    }
    let sandbox = stage.running().await;
    let files = files(&sandbox).await;
    ok(&sandbox, "ln -s /etc/passwd inside; ln -s /proc/sys/kernel/ostype proc; ln -s / root").await;
    let passwd = ok(&sandbox, "cat /etc/passwd").await;
    for path in ["inside", "root/etc/passwd", "root/../../etc/passwd"] {
        let bytes = files.read(at(&sandbox, path), 1 << 20).await.unwrap();
        assert_eq!(String::from_utf8(bytes).unwrap().trim_end_matches('\n'), passwd, "{path}");
    }
    let workspace = stage.home().workspace();
    let secret = stage.home().path().join("secret");
    std::fs::write(&secret, "outside").unwrap();
    std::os::unix::fs::symlink(&secret, workspace.join("out")).unwrap();
    std::os::unix::fs::symlink("../../secret", workspace.join("up")).unwrap();
    if stage.mode().backing == Backing::Image {
        assert_eq!(code(files.read(at(&sandbox, "out"), 10).await), ErrorCode::NotFound);
        assert_eq!(code(files.read(at(&sandbox, "up"), 10).await), ErrorCode::NotFound);
    }
    if stage.mode().backing != Backing::Host {
        // Writing through the symlink may change a file inside. Outside nothing changes.
        let _ = files.write(at(&sandbox, "out"), b"changed", PLAIN).await;
        assert_eq!(std::fs::read(&secret).unwrap(), b"outside");
    }
}

/// A symlink loop is an error, and the call does not hang.
pub async fn symlink_loops_are_an_error(stage: &Stage) {
    if !stage.has_processes().await {
        return;
    }
    let sandbox = stage.running().await;
    let files = files(&sandbox).await;
    ok(&sandbox, "ln -s b a; ln -s a b; ln -s self/x self").await;
    for path in ["a", "b", "self", "a/deeper"] {
        let read = tokio::time::timeout(SOON, files.read(at(&sandbox, path), 10)).await.expect("no hang");
        assert_ne!(code(read), ErrorCode::Internal, "{path}");
        assert_ne!(code(files.stat(at(&sandbox, path), true).await), ErrorCode::Internal, "{path}");
    }
    files.remove(at(&sandbox, "a"), false).await.unwrap();
}

/// FIFOs and devices are neither read nor written, and no call waits for the other end of a FIFO.
pub async fn fifos_and_devices_are_refused(stage: &Stage) {
    if !stage.has_processes().await {
        return;
    }
    let sandbox = stage.running().await;
    let files = files(&sandbox).await;
    ok(&sandbox, "mkfifo pipe; ln -s /dev/zero zero").await;
    for path in [at(&sandbox, "pipe"), at(&sandbox, "zero"), "/dev/zero".into(), "/dev/null".into()] {
        let read = tokio::time::timeout(SOON, files.read(&path, 10)).await.expect("no hang");
        assert_eq!(code(read), ErrorCode::PermissionDenied, "read {path}");
        if !path.ends_with("/zero") {
            let write = tokio::time::timeout(SOON, files.write(&path, b"x", PLAIN)).await.expect("no hang");
            assert_eq!(code(write), ErrorCode::PermissionDenied, "write {path}");
        }
    }
    assert_eq!(ok(&sandbox, "test -p pipe && test -c /dev/null && echo still").await, "still");
    files.remove(at(&sandbox, "pipe"), false).await.unwrap();
}

/// Magic links in `/proc`, which lead to another root or to open files of other processes, are refused.
pub async fn magic_links_are_refused(stage: &Stage) {
    if !stage.has_processes().await {
        return;
    }
    let sandbox = stage.running().await;
    let files = files(&sandbox).await;
    for path in ["/proc/self/root/etc/passwd", "/proc/1/root/etc/passwd", "/proc/self/cwd/x", "/proc/self/exe"] {
        assert_eq!(code(files.read(path, 1 << 20).await), ErrorCode::PermissionDenied, "{path}");
        assert_eq!(code(files.write(path, b"x", PLAIN).await), ErrorCode::PermissionDenied, "{path}");
    }
    ok(&sandbox, "ln -s /proc/self/root/etc disguised").await;
    assert_eq!(code(files.read(at(&sandbox, "disguised/passwd"), 10).await), ErrorCode::PermissionDenied);
    for descriptor in 0..20 {
        let read = files.read(format!("/proc/self/fd/{descriptor}"), 10).await;
        assert!(matches!(code(read), ErrorCode::PermissionDenied | ErrorCode::NotFound), "descriptor {descriptor}");
    }
}

/// Removal removes a symlink, but not its target.
pub async fn removal_follows_no_symlink(stage: &Stage) {
    if !stage.has_processes().await {
        return;
    }
    let sandbox = stage.running().await;
    let files = files(&sandbox).await;
    ok(&sandbox, "mkdir -p precious doomed/sub; echo p > precious/file; ln -s ../../precious doomed/sub/link").await;
    ok(&sandbox, "ln -s precious to-dir; ln -s precious/file to-file").await;
    files.remove(at(&sandbox, "doomed"), true).await.unwrap();
    files.remove(at(&sandbox, "to-dir"), true).await.unwrap();
    files.remove(at(&sandbox, "to-file"), false).await.unwrap();
    assert_eq!(ok(&sandbox, "cat precious/file; ls").await, "p\nprecious");
}
