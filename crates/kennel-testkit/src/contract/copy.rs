//! Copying files between the host and a sandbox.

use crate::inside::{at, code, files};
use crate::{Stage, Wire};
use kennel_core::copy::{Copier, Progress};
use kennel_core::{Features, Sandbox, WriteOptions};
use kennel_proto::Request;
use kennel_types::{ErrorCode, FileKind};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::sync::{Arc, Mutex};
use tar::{EntryType, Header};

/// A copy with symlinks and permissions sends requests to the keeper, and starts no process inside.
pub async fn copies_start_no_process(stage: &Stage) {
    if !stage.has_processes().await {
        return;
    }
    let sandbox = stage.running().await;
    let wire = Wire::recording(stage.provider(), Features::ALL);
    copies_arrive(stage, &stage.again(wire.clone(), &sandbox).await).await;
    let requests = wire.requests();
    let count = |wanted: fn(&Request) -> bool| requests.iter().filter(|request| wanted(request)).count();
    assert_eq!(count(|request| matches!(request, Request::Spawn(_))), 0, "a process was started");
    assert!(count(|request| matches!(request, Request::Symlink { .. })) >= 3);
    assert!(count(|request| matches!(request, Request::Chmod { .. })) >= 1);
}

/// With a keeper of an older Kennel, a copy runs programs inside, and sends no request that the keeper does not know.
pub async fn copies_work_with_a_keeper_without_features(stage: &Stage) {
    if !stage.has_processes().await {
        return;
    }
    let sandbox = stage.running().await;
    let wire = Wire::recording(stage.provider(), Features::default());
    let through = stage.again(wire.clone(), &sandbox).await;
    copies_arrive(stage, &through).await;
    let files = files(&through).await;
    assert_eq!(code(files.symlink(at(&sandbox, "link"), "x", true).await), ErrorCode::Unsupported);
    assert_eq!(code(files.chmod(at(&sandbox, ""), 0o700, true).await), ErrorCode::Unsupported);
    let requests = wire.requests();
    assert!(requests.iter().any(|request| matches!(request, Request::Spawn(_))), "nothing was run inside");
    let unknown = |request: &Request| matches!(request, Request::Symlink { .. } | Request::Chmod { .. });
    assert!(!requests.iter().any(unknown), "{requests:?}");
}

/// Copies a host tree in, unpacks an archive, and copies the tree out.
async fn copies_arrive(stage: &Stage, sandbox: &Sandbox) {
    let files = files(sandbox).await;
    let (inside, out) = (at(sandbox, "in"), at(sandbox, "out"));
    let tree = stage.home().path().join("tree");
    std::fs::create_dir_all(tree.join("dir")).unwrap();
    std::fs::write(tree.join("dir/script"), "content").unwrap();
    std::fs::set_permissions(tree.join("dir/script"), std::fs::Permissions::from_mode(0o751)).unwrap();
    for (name, text) in [("link", "dir/script"), ("taken", "elsewhere"), ("full", "elsewhere"), ("empty", "elsewhere")]
    {
        symlink(text, tree.join(name)).unwrap();
    }
    files.write(format!("{inside}/taken"), b"", WriteOptions::default()).await.unwrap();
    files.write(format!("{inside}/full/file"), b"", WriteOptions::default()).await.unwrap();
    files.mkdir(format!("{inside}/empty"), false).await.unwrap();

    let skipped = Arc::new(Mutex::new(Vec::new()));
    let told = skipped.clone();
    let tell = move |progress: Progress<'_>| {
        if let Progress::Skipped { path, why } = progress {
            told.lock().unwrap().push(format!("{}: {why}", String::from_utf8_lossy(path)));
        }
    };
    let mut copier = Copier::new(sandbox, None, tell).await.unwrap();
    copier.copy_in(&tree.join("."), inside.as_bytes()).await.unwrap();
    let counts = copier.counts();
    assert_eq!((counts.files, counts.bytes, counts.skipped, counts.incomplete), (4, 7, 1, 0));
    assert_eq!(*skipped.lock().unwrap(), [format!("{inside}/full: there is a directory in its place")]);
    let script = files.stat(format!("{inside}/link"), true).await.unwrap();
    assert_eq!((script.kind, script.size, script.mode), (FileKind::File, 7, 0o751));
    for (name, text) in [("link", "dir/script"), ("taken", "elsewhere"), ("empty", "elsewhere")] {
        let stat = files.stat(format!("{inside}/{name}"), false).await.unwrap();
        assert_eq!(stat.target.as_deref(), Some(text.as_bytes()), "{name}");
    }

    files.make_dir(at(sandbox, "victim"), 0o755).await.unwrap();
    let archive = [
        entry("closed/", EntryType::Directory, 0o555, ""),
        entry("closed/file", EntryType::Regular, 0o640, ""),
        entry("closed/deeper/", EntryType::Directory, 0o500, ""),
        entry("link", EntryType::Symlink, 0o777, "closed/file"),
        // The symlink takes the directory's place, but its target does not get the directory's permissions.
        entry("swapped/", EntryType::Directory, 0, ""),
        entry("swapped", EntryType::Symlink, 0o777, "../victim"),
        vec![0; 1024],
    ];
    let archive = std::io::Cursor::new(archive.concat());
    copier.unpack_stream(archive, "memory", out.as_bytes(), "out").await.unwrap();
    let mode = async |path: &str| files.stat(at(sandbox, path), false).await.unwrap().mode;
    for (path, bits) in [("out/closed", 0o555), ("out/closed/deeper", 0o500), ("out/closed/file", 0o640)] {
        assert_eq!(mode(path).await, bits, "{path}");
    }
    assert_eq!(mode("victim").await, 0o755);
    for (path, text) in [("out/link", "closed/file"), ("out/swapped", "../victim")] {
        let target = files.stat(at(sandbox, path), false).await.unwrap().target;
        assert_eq!(target.as_deref(), Some(text.as_bytes()), "{path}");
    }

    // What was copied in comes out again.
    let back = stage.home().path().join("back");
    copier.copy_out(inside.as_bytes(), &back).await.unwrap();
    assert_eq!(std::fs::read_link(back.join("link")).unwrap(), Path::new("dir/script"));
    assert_eq!(std::fs::metadata(back.join("link")).unwrap().permissions().mode() & 0o7777, 0o751);
    let mut packed = Vec::new();
    copier.pack_stream(inside.as_bytes(), &mut packed, "memory").await.unwrap();
    let names: Vec<String> = tar::Archive::new(packed.as_slice())
        .entries()
        .unwrap()
        .map(|entry| entry.unwrap().path().unwrap().display().to_string())
        .collect();
    let expected = ["", "dir/", "dir/script", "empty", "full/", "full/file", "link", "taken"];
    assert_eq!(names, expected.map(|name| format!("in/{name}")));
}

/// Returns an entry of an archive, without content.
fn entry(name: &str, kind: EntryType, mode: u32, target: &str) -> Vec<u8> {
    let mut header = Header::new_gnu();
    header.set_path(name).unwrap();
    header.set_entry_type(kind);
    header.set_link_name_literal(target).unwrap();
    header.set_mode(mode);
    header.set_size(0);
    header.set_cksum();
    header.as_bytes().to_vec()
}
