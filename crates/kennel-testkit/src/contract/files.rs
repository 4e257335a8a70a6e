//! File requests.

use crate::Stage;
use crate::inside::{SOON, at, code, files, ok};
use kennel_core::{FileWatch, WriteOptions};
use kennel_types::{Backing, ErrorCode, FileKind, Support, WatchKind};
use std::os::unix::fs::PermissionsExt;
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::io::AsyncReadExt;

const PLAIN: WriteOptions = WriteOptions { mode: None, parents: true };

/// A file of 64 MiB is written and read back unchanged.
pub async fn large_files_are_read_back_unchanged(stage: &Stage) {
    let sandbox = stage.running().await;
    let files = files(&sandbox).await;
    let bytes: Vec<u8> = (0u32..16 << 20).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    let path = at(&sandbox, "large");
    files.write(&path, &bytes, PLAIN).await.unwrap();
    assert_eq!(files.stat(&path, true).await.unwrap().size, bytes.len() as u64);
    let back = files.read(&path, bytes.len()).await.unwrap();
    assert!(back == bytes, "the bytes came back changed");
    assert_eq!(code(files.read(&path, bytes.len() - 1).await), ErrorCode::LimitExceeded);
    files.write(&path, b"", PLAIN).await.unwrap();
    assert_eq!(files.read(&path, 10).await.unwrap(), b"");
}

/// A read starts at the requested offset and returns at most the requested length.
pub async fn part_of_a_file_is_read(stage: &Stage) {
    let sandbox = stage.running().await;
    let files = files(&sandbox).await;
    let path = at(&sandbox, "digits");
    files.write(&path, b"0123456789", PLAIN).await.unwrap();
    for (offset, limit, expected) in
        [(3, Some(4), b"3456".as_slice()), (8, None, b"89"), (10, None, b""), (99, Some(5), b""), (0, Some(0), b"")]
    {
        let mut reader = files.open(&path, offset, limit).await.unwrap();
        let mut all = Vec::new();
        while let Some(bytes) = reader.chunk().await.unwrap() {
            all.extend(bytes);
        }
        assert_eq!(all, expected, "{offset} {limit:?}");
    }
}

/// A file name may contain any bytes that the filesystem allows.
pub async fn any_file_name_is_accepted(stage: &Stage) {
    let sandbox = stage.running().await;
    let files = files(&sandbox).await;
    let long = vec![b'l'; 255];
    let names: [&[u8]; 10] = [
        b"new\nline",
        b"\xff\xfe\x80",
        b"-rf",
        b" ",
        b"'\"`$(x);&|<>*?",
        "\u{202e}gnp.exe".as_bytes(),
        b"\x1b[31m",
        b"...",
        b"back\\slash",
        &long,
    ];
    let dir = at(&sandbox, "names");
    for name in names {
        let path = [dir.as_bytes(), b"/", name].concat();
        files.write(&path, name, PLAIN).await.unwrap();
        assert_eq!(files.read(&path, 1000).await.unwrap(), name);
    }
    let mut expected: Vec<Vec<u8>> = names.iter().map(|name| name.to_vec()).collect();
    expected.sort();
    let listed: Vec<Vec<u8>> = files.list(&dir).await.unwrap().into_iter().map(|entry| entry.name).collect();
    assert_eq!(listed, expected);
    for name in names {
        files.remove([dir.as_bytes(), b"/", name].concat(), false).await.unwrap();
    }
    assert_eq!(files.list(&dir).await.unwrap(), []);
    let too_long = at(&sandbox, &"l".repeat(256));
    assert_ne!(code(files.write(&too_long, b"", PLAIN).await), ErrorCode::Internal);
    for no_path in [b"".as_slice(), b"a\0b", &vec![b'p'; 5000]] {
        assert_eq!(code(files.stat(no_path, true).await), ErrorCode::InvalidConfig);
    }
}

/// A reader sees either the whole old content or the whole new content of a file that is replaced.
pub async fn replacing_a_file_is_atomic(stage: &Stage) {
    let sandbox = stage.running().await;
    let path = at(&sandbox, "flips");
    let (old, new) = (vec![b'o'; 700_000], vec![b'n'; 900_000]);
    let files = files(&sandbox).await;
    files.write(&path, &old, PLAIN).await.unwrap();
    let write = async {
        for _ in 0..10 {
            files.write(&path, &new, PLAIN).await.unwrap();
            files.write(&path, &old, PLAIN).await.unwrap();
        }
    };
    let reader = stage.again(stage.reopen(), &sandbox).await;
    let (read_files, mut seen) = (crate::inside::files(&reader).await, 0);
    tokio::pin!(write);
    loop {
        tokio::select! {
            () = &mut write => break,
            bytes = read_files.read(&path, 1_000_000) => {
                let bytes = bytes.unwrap();
                assert!(bytes == old || bytes == new, "half a file: {} bytes", bytes.len());
                seen += 1;
            }
        }
    }
    assert!(seen > 0, "nothing was read meanwhile");
}

/// An aborted write keeps the old file, and leaves no other file.
pub async fn aborted_write_leaves_no_file(stage: &Stage) {
    let sandbox = stage.running().await;
    let files = files(&sandbox).await;
    let (dir, path) = (at(&sandbox, "aborted"), at(&sandbox, "aborted/file"));
    files.write(&path, b"old", PLAIN).await.unwrap();
    // Content that starts and never ends.
    let endless = b"new".as_slice().chain(tokio::io::repeat(b'x').take(300_000)).chain(Pending);
    let write = files.write_from(&path, endless, PLAIN);
    assert!(tokio::time::timeout(std::time::Duration::from_millis(500), write).await.is_err());
    crate::eventually("only the old file is there", async || {
        files.list(&dir).await.unwrap().iter().map(|entry| entry.name.as_slice()).collect::<Vec<_>>() == [b"file"]
    })
    .await;
    assert_eq!(files.read(&path, 1000).await.unwrap(), b"old");
}

/// A reader that neither returns bytes nor ends.
struct Pending;

impl tokio::io::AsyncRead for Pending {
    fn poll_read(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
        _: &mut tokio::io::ReadBuf<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        std::task::Poll::Pending
    }
}

/// A write creates missing parent directories only on request.
pub async fn missing_parents_are_created(stage: &Stage) {
    let sandbox = stage.running().await;
    let files = files(&sandbox).await;
    let path = at(&sandbox, "a/b/c/file");
    let alone = WriteOptions { mode: None, parents: false };
    assert_eq!(code(files.write(&path, b"x", alone).await), ErrorCode::NotFound);
    assert_eq!(code(files.stat(at(&sandbox, "a"), true).await), ErrorCode::NotFound);
    files.write(&path, b"x", PLAIN).await.unwrap();
    assert_eq!(files.read(&path, 10).await.unwrap(), b"x");
    // A file cannot be a parent directory.
    let below = at(&sandbox, "a/b/c/file/below");
    assert_ne!(code(files.write(&below, b"x", PLAIN).await), ErrorCode::Internal);
}

/// A written file has the requested permissions, else those of the replaced file, else the default ones.
pub async fn permission_bits_are_kept(stage: &Stage) {
    let sandbox = stage.running().await;
    let files = files(&sandbox).await;
    let path = at(&sandbox, "script");
    let mode = async || files.stat(&path, true).await.unwrap().mode & 0o7777;
    files.write(&path, b"1", PLAIN).await.unwrap();
    assert_eq!(mode().await, 0o644);
    files.write(&path, b"2", WriteOptions { mode: Some(0o750), parents: true }).await.unwrap();
    assert_eq!(mode().await, 0o750);
    files.write(&path, b"3", PLAIN).await.unwrap();
    assert_eq!(mode().await, 0o750, "an overwritten file keeps its bits");
}

/// `stat` and `list` return type, size and time, and report symlinks as symlinks.
pub async fn stat_and_list_report_metadata(stage: &Stage) {
    let sandbox = stage.running().await;
    let files = files(&sandbox).await;
    let dir = at(&sandbox, "truth");
    files.write(format!("{dir}/file"), b"12345", PLAIN).await.unwrap();
    files.mkdir(format!("{dir}/dir"), false).await.unwrap();
    let file = files.stat(format!("{dir}/file"), true).await.unwrap();
    assert_eq!((file.kind, file.size), (FileKind::File, 5));
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as i64;
    assert!((now - file.modified_ms).abs() < 60_000, "{} is not now, {now}", file.modified_ms);
    assert_eq!(files.stat(&dir, true).await.unwrap().kind, FileKind::Directory);
    let mut expected = vec![("dir", FileKind::Directory), ("file", FileKind::File)];
    if stage.mode().processes == Support::Given {
        ok(&sandbox, "cd truth; ln -s file link; ln -s nowhere dangling; mkfifo pipe").await;
        expected.extend([("link", FileKind::Symlink), ("dangling", FileKind::Symlink), ("pipe", FileKind::Other)]);
        let link = files.stat(format!("{dir}/link"), false).await.unwrap();
        assert_eq!((link.kind, link.target.as_deref()), (FileKind::Symlink, Some(b"file".as_slice())));
        assert_eq!(files.stat(format!("{dir}/link"), true).await.unwrap().size, 5);
        assert_eq!(code(files.stat(format!("{dir}/dangling"), true).await), ErrorCode::NotFound);
    }
    expected.sort_by_key(|entry| entry.0);
    let listed = files.list(&dir).await.unwrap();
    let listed: Vec<_> =
        listed.iter().map(|entry| (std::str::from_utf8(&entry.name).unwrap(), entry.stat.kind)).collect();
    assert_eq!(listed, expected);
    // A long list needs more than one flow control window.
    for number in 0..50 {
        files.write(at(&sandbox, &format!("many/{}{number}", "n".repeat(200))), b"", PLAIN).await.unwrap();
    }
    assert_eq!(files.list(at(&sandbox, "many")).await.unwrap().len(), 50);
    assert_ne!(code(files.list(format!("{dir}/file")).await), ErrorCode::Internal);
    assert_ne!(code(files.read(&dir, 10).await), ErrorCode::Internal);
}

/// `mkdir` creates one directory, or on request all missing parents.
pub async fn directories_are_created(stage: &Stage) {
    let sandbox = stage.running().await;
    let files = files(&sandbox).await;
    let deep = at(&sandbox, "x/y/z");
    assert_eq!(code(files.mkdir(&deep, false).await), ErrorCode::NotFound);
    files.mkdir(&deep, true).await.unwrap();
    files.mkdir(&deep, true).await.unwrap();
    assert_eq!(code(files.mkdir(&deep, false).await), ErrorCode::AlreadyExists);
    assert_eq!(files.stat(&deep, true).await.unwrap().kind, FileKind::Directory);
    // An existing directory is no error, not even the root.
    files.mkdir("/", true).await.unwrap();
    files.mkdir(format!("{deep}/."), true).await.unwrap();
    let open = format!("{deep}/open");
    files.make_dir(&open, 0o775).await.unwrap();
    assert_eq!(files.stat(&open, true).await.unwrap().mode, 0o775, "nothing is taken away");
    assert_eq!(code(files.make_dir(&open, 0o775).await), ErrorCode::AlreadyExists);
}

/// Symlinks are created with any text. Something else is replaced only on request, and a directory never.
pub async fn symlinks_are_created(stage: &Stage) {
    let sandbox = stage.running().await;
    let files = files(&sandbox).await;
    let path = |name: &str| at(&sandbox, name);
    if stage.mode().processes == Support::Refused {
        assert_eq!(code(files.symlink(path("link"), "file", false).await), ErrorCode::Unsupported);
        return;
    }
    files.write(path("in/file"), b"content", PLAIN).await.unwrap();
    let text = async |name: &str| files.stat(path(name), false).await.unwrap().target.unwrap();
    let odd: &[u8] = b"-s \n\xff/../..";
    for (name, target) in [("in/link", b"file".as_slice()), ("in/dangling", b"/no/such/place"), ("in/odd", odd)] {
        files.symlink(path(name), target, false).await.unwrap();
        assert_eq!(text(name).await, target);
    }
    assert_eq!(files.read(path("in/link"), 100).await.unwrap(), b"content");
    // A symlink at the path is not followed, and stays unless it may be replaced.
    for name in ["in/file", "in/link", "in/dangling"] {
        assert_eq!(code(files.symlink(path(name), "new", false).await), ErrorCode::AlreadyExists, "{name}");
    }
    files.symlink(path("in/link"), "dangling", true).await.unwrap();
    files.symlink(path("in/fresh"), "file", true).await.unwrap();
    assert_eq!((text("in/link").await, text("in/fresh").await), (b"dangling".to_vec(), b"file".to_vec()));
    assert_eq!(files.read(path("in/file"), 100).await.unwrap(), b"content");
    files.symlink(path("in/file"), "was a file", true).await.unwrap();
    assert_eq!(text("in/file").await, b"was a file");
    files.mkdir(path("in/empty"), false).await.unwrap();
    assert_eq!(code(files.symlink(path("in/empty"), "x", true).await), ErrorCode::AlreadyExists);
    assert_eq!(files.stat(path("in/empty"), false).await.unwrap().kind, FileKind::Directory);
    assert_eq!(code(files.symlink(path("absent/link"), "x", true).await), ErrorCode::NotFound);
    for none in [b"".as_slice(), b"a\0b", &[b'p'; 4096]] {
        assert_eq!(code(files.symlink(path("in/none"), none, true).await), ErrorCode::InvalidConfig);
    }
    let listed: Vec<Vec<u8>> = files.list(path("in")).await.unwrap().into_iter().map(|entry| entry.name).collect();
    assert_eq!(listed, ["dangling", "empty", "file", "fresh", "link", "odd"].map(|name| name.as_bytes().to_vec()));
}

/// Permissions of files and directories are set, without set-id bits on files. Symlinks are followed only on request.
pub async fn permissions_are_set(stage: &Stage) {
    let sandbox = stage.running().await;
    let files = files(&sandbox).await;
    let path = |name: &str| at(&sandbox, &format!("permissions{name}"));
    let (file, dir) = (&path("/file"), &path(""));
    files.write(file, b"content", PLAIN).await.unwrap();
    let mode = async |path: &str| files.stat(path, false).await.unwrap().mode;
    for (asked, got) in [(0o750, 0o750), (0o6755, 0o755), (0o4711, 0o711), (0o2070, 0o070), (0, 0), (0o600, 0o600)] {
        files.chmod(file, asked, false).await.unwrap();
        assert_eq!(mode(file).await, got, "{asked:o}");
    }
    for bits in [0o2775, 0o1777, 0o500, 0, 0o755] {
        files.chmod(dir, bits, true).await.unwrap();
        assert_eq!(mode(dir).await, bits, "a directory keeps all bits");
    }
    assert_eq!(files.read(file, 100).await.unwrap(), b"content");
    assert_eq!(code(files.chmod(path("/absent"), 0o644, true).await), ErrorCode::NotFound);
    if stage.mode().processes == Support::Refused {
        return;
    }
    let link = &path("/link");
    files.symlink(link, "file", false).await.unwrap();
    assert_eq!(code(files.chmod(link, 0o666, false).await), ErrorCode::PermissionDenied);
    assert_eq!(mode(file).await, 0o600);
    files.chmod(link, 0o4640, true).await.unwrap();
    assert_eq!(mode(file).await, 0o640);
    ok(&sandbox, "mkfifo permissions/pipe").await;
    for other in [path("/pipe"), "/dev/null".into(), "/proc/self/fd/0".into()] {
        assert_eq!(code(files.chmod(&other, 0o666, true).await), ErrorCode::PermissionDenied, "{other}");
    }
    // A symlink that was made outside, to a file outside.
    let secret = stage.home().path().join("secret");
    std::fs::write(&secret, "outside").unwrap();
    std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
    std::os::unix::fs::symlink(&secret, stage.home().workspace().join("out")).unwrap();
    if stage.mode().backing != Backing::Host {
        let _ = files.chmod(at(&sandbox, "out"), 0o666, true).await;
        assert_eq!(std::fs::metadata(&secret).unwrap().permissions().mode() & 0o7777, 0o600);
    }
}

/// Symlinks are created and permissions are set with the rights of the given user.
pub async fn symlinks_and_permissions_as_another_user(stage: &Stage) {
    let sandbox = stage.running().await;
    let theirs = sandbox.files(Some("65534:65534")).await.unwrap();
    if stage.mode().users == Support::Refused {
        assert_eq!(code(theirs.chmod(at(&sandbox, ""), 0o777, true).await), ErrorCode::Unsupported);
        assert_eq!(code(theirs.symlink(at(&sandbox, "link"), "x", true).await), ErrorCode::Unsupported);
        return;
    }
    let root = sandbox.files(Some("0:0")).await.unwrap();
    for (dir, bits) in [("/var/theirs", 0o777), ("/var/ours", 0o755)] {
        root.mkdir(dir, true).await.unwrap();
        root.chmod(dir, bits, false).await.unwrap();
    }
    root.write("/var/theirs/of-root", b"", WriteOptions { mode: Some(0o644), parents: false }).await.unwrap();
    assert_eq!(code(theirs.chmod("/var/theirs/of-root", 0o666, false).await), ErrorCode::PermissionDenied);
    assert_eq!(code(theirs.chmod("/var/ours", 0o777, false).await), ErrorCode::PermissionDenied);
    assert_eq!(code(theirs.symlink("/var/ours/link", "x", true).await), ErrorCode::PermissionDenied);
    theirs.symlink("/var/theirs/link", "/etc/passwd", true).await.unwrap();
    theirs.write("/var/theirs/file", b"", WriteOptions { mode: Some(0o000), parents: false }).await.unwrap();
    theirs.chmod("/var/theirs/file", 0o6600, false).await.unwrap();
    for (path, mode) in [("/var/theirs/link", 0o777), ("/var/theirs/file", 0o600)] {
        let stat = theirs.stat(path, false).await.unwrap();
        assert_eq!((stat.uid, stat.gid, stat.mode), (65534, 65534, mode), "{path}");
    }
}

/// Files and directories are moved. An existing target is replaced only on request.
pub async fn files_are_moved(stage: &Stage) {
    let sandbox = stage.running().await;
    let files = files(&sandbox).await;
    let path = |name: &str| at(&sandbox, name);
    files.write(path("from/deep/file"), b"content", PLAIN).await.unwrap();
    files.rename(path("from"), path("to"), false).await.unwrap();
    assert_eq!(code(files.stat(path("from"), true).await), ErrorCode::NotFound);
    assert_eq!(files.read(path("to/deep/file"), 100).await.unwrap(), b"content");
    files.write(path("other"), b"other", PLAIN).await.unwrap();
    assert_eq!(code(files.rename(path("to/deep/file"), path("other"), false).await), ErrorCode::AlreadyExists);
    assert_eq!(files.read(path("other"), 100).await.unwrap(), b"other");
    files.rename(path("to/deep/file"), path("other"), true).await.unwrap();
    assert_eq!(files.read(path("other"), 100).await.unwrap(), b"content");
    assert_eq!(code(files.rename(path("absent"), path("anywhere"), true).await), ErrorCode::NotFound);
    assert_ne!(code(files.rename(path("to"), path("to/deep/itself"), true).await), ErrorCode::Internal);
}

/// Files are removed. A directory that is not empty is removed only on request.
pub async fn files_are_removed(stage: &Stage) {
    let sandbox = stage.running().await;
    let files = files(&sandbox).await;
    let path = |name: &str| at(&sandbox, name);
    for number in 0..30 {
        files.write(path(&format!("full/sub{}/file{number}", number % 3)), b"", PLAIN).await.unwrap();
    }
    files.remove(path("full/sub0/file0"), false).await.unwrap();
    assert_ne!(code(files.remove(path("full"), false).await), ErrorCode::Internal);
    assert_eq!(files.list(path("full")).await.unwrap().len(), 3);
    files.remove(path("full"), true).await.unwrap();
    assert_eq!(code(files.stat(path("full"), true).await), ErrorCode::NotFound);
    assert_eq!(code(files.remove(path("full"), true).await), ErrorCode::NotFound);
    files.mkdir(path("empty"), false).await.unwrap();
    files.remove(path("empty"), false).await.unwrap();
}

/// Reads changes until one of these kinds is reported for the path.
async fn sees(watch: &mut FileWatch, kinds: &[WatchKind], path: &str) {
    let mut seen = Vec::new();
    let reading = async {
        loop {
            let event = watch.next().await.unwrap().expect("the watch goes on");
            let found = kinds.contains(&event.kind) && event.path == path.as_bytes();
            seen.push(event);
            if found {
                return;
            }
        }
    };
    let in_time = tokio::time::timeout(SOON, reading).await.is_ok();
    assert!(in_time, "no {kinds:?} of {path:?} in {seen:?}");
}

/// A watch reports created, changed and removed files, on request also in subdirectories.
pub async fn changes_are_reported(stage: &Stage) {
    use WatchKind::{Created, Modified, Removed};
    let sandbox = stage.running().await;
    let files = files(&sandbox).await;
    let dir = at(&sandbox, "watched");
    files.mkdir(format!("{dir}/sub"), true).await.unwrap();
    let mut flat = files.watch(&dir, false).await.unwrap();
    let mut deep = files.watch(&dir, true).await.unwrap();
    files.write(format!("{dir}/sub/below"), b"1", PLAIN).await.unwrap();
    sees(&mut deep, &[Created], "sub/below").await;
    files.write(format!("{dir}/file"), b"1", PLAIN).await.unwrap();
    sees(&mut flat, &[Created], "file").await;
    sees(&mut deep, &[Created], "file").await;
    files.write(format!("{dir}/file"), b"2", PLAIN).await.unwrap();
    // A replaced file may be reported as a new one.
    sees(&mut flat, &[Created, Modified], "file").await;
    if stage.mode().processes == Support::Given {
        ok(&sandbox, "echo more >> watched/file").await;
        sees(&mut flat, &[Modified], "file").await;
        ok(&sandbox, "mkdir -p watched/new/deeper; echo x > watched/new/deeper/file").await;
        sees(&mut deep, &[Created], "new/deeper/file").await;
    }
    files.rename(format!("{dir}/file"), format!("{dir}/sub/moved"), false).await.unwrap();
    sees(&mut flat, &[Removed], "file").await;
    sees(&mut deep, &[Created], "sub/moved").await;
    files.remove(&dir, true).await.unwrap();
    sees(&mut deep, &[Removed], "sub/moved").await;
    let ends = async { while deep.next().await.unwrap().is_some() {} };
    tokio::time::timeout(SOON, ends).await.expect("a watch ends with what it watches");
    assert_eq!(code(files.watch(&dir, true).await), ErrorCode::NotFound);
}

/// A file request has the permissions of its user, and new files belong to that user.
pub async fn file_requests_have_the_rights_of_their_user(stage: &Stage) {
    let sandbox = stage.running().await;
    let theirs = sandbox.files(Some("65534:65534")).await.unwrap();
    if stage.mode().users == Support::Refused {
        assert_eq!(code(theirs.stat("/", true).await), ErrorCode::Unsupported);
        return;
    }
    let root = sandbox.files(Some("0:0")).await.unwrap();
    root.mkdir("/var/open", true).await.unwrap();
    let chmod = kennel_types::ExecSpec {
        user: Some("0:0".into()),
        ..kennel_types::ExecSpec::argv(["chmod", "0777", "/var/open"])
    };
    assert!(crate::inside::run(&sandbox, &chmod).await.status.success());
    root.write("/var/open/secret", b"s", WriteOptions { mode: Some(0o600), parents: false }).await.unwrap();
    root.mkdir("/var/closed", false).await.unwrap();
    assert_eq!(code(theirs.read("/var/open/secret", 10).await), ErrorCode::PermissionDenied);
    assert_eq!(code(theirs.write("/var/closed/file", b"", PLAIN).await), ErrorCode::PermissionDenied);
    assert_eq!(code(theirs.remove("/var/closed", true).await), ErrorCode::PermissionDenied);
    theirs.write("/var/open/mine/file", b"m", PLAIN).await.unwrap();
    for path in ["/var/open/mine", "/var/open/mine/file"] {
        let stat = theirs.stat(path, true).await.unwrap();
        assert_eq!((stat.uid, stat.gid), (65534, 65534), "{path}");
    }
    assert_eq!(root.read("/var/open/mine/file", 10).await.unwrap(), b"m");
}

/// Every file request for a missing path fails with "not found".
pub async fn missing_path_is_not_found(stage: &Stage) {
    let sandbox = stage.running().await;
    let files = files(&sandbox).await;
    let path = at(&sandbox, "absent");
    assert_eq!(code(files.open(&path, 0, None).await), ErrorCode::NotFound);
    assert_eq!(code(files.list(&path).await), ErrorCode::NotFound);
    assert_eq!(code(files.stat(&path, false).await), ErrorCode::NotFound);
    assert_eq!(code(files.remove(&path, false).await), ErrorCode::NotFound);
    assert_eq!(code(files.watch(&path, false).await), ErrorCode::NotFound);
}

/// A part of a file is written in place: the rest stays, a missing file is created, and a gap is filled with zeros.
pub async fn part_of_a_file_is_written(stage: &Stage) {
    let sandbox = stage.running().await;
    let files = files(&sandbox).await;
    let path = at(&sandbox, "part");
    let options = WriteOptions::default();
    let content = async || files.read(&path, 1 << 21).await.unwrap();
    files.write_at(&path, 3, &b"abc"[..], options).await.unwrap();
    assert_eq!(content().await, b"\0\0\0abc", "it is created");
    assert_eq!(files.stat(&path, false).await.unwrap().mode, 0o644);
    files.chmod(&path, 0o640, true).await.unwrap();
    files.write_at(&path, 1, &b"12"[..], options).await.unwrap();
    assert_eq!(content().await, b"\x0012abc");
    assert_eq!(files.stat(&path, false).await.unwrap().mode, 0o640, "its permissions stay");
    let large: Vec<u8> = (0..1 << 20).map(|at: u32| (at % 253) as u8).collect();
    files.write_at(&path, 5, &large[..], options).await.unwrap();
    assert_eq!(content().await, [b"\x0012ab", &large[..]].concat());
    files.write_at(&path, 0, &b""[..], options).await.unwrap();
    assert_eq!(content().await.len(), 5 + large.len(), "nothing is cut off");
    assert!(files.write_at(&path, u64::MAX, &b"x"[..], options).await.is_err());
    files.mkdir(at(&sandbox, "dir"), false).await.unwrap();
    assert_eq!(code(files.write_at(at(&sandbox, "dir"), 0, &b"x"[..], options).await), ErrorCode::PermissionDenied);
    let closed = WriteOptions { parents: false, ..options };
    assert_eq!(code(files.write_at(at(&sandbox, "none/x"), 0, &b"x"[..], closed).await), ErrorCode::NotFound);
    assert!(files.list(at(&sandbox, "")).await.unwrap().iter().all(|entry| !entry.name.starts_with(b".kennel")));
}

/// A listing descends to its depth, follows no symlink, and says which directories it cannot read.
pub async fn directories_are_listed_to_a_depth(stage: &Stage) {
    let sandbox = stage.running().await;
    let files = files(&sandbox).await;
    let root = at(&sandbox, "tree");
    for path in ["a/b/c/deep", "a/b/file", "a-b", "top"] {
        files.write(format!("{root}/{path}"), b"12", WriteOptions::default()).await.unwrap();
    }
    let linked = files.symlink(format!("{root}/link"), "a", false).await.is_ok();
    let list = async |depth| {
        let entries = files.list_tree(&root, depth).await.unwrap();
        assert!(entries.iter().all(|entry| !entry.unreadable));
        let names = entries.iter().map(|entry| String::from_utf8(entry.path.clone()).unwrap());
        names.filter(|name| name != "link").collect::<Vec<_>>()
    };
    assert_eq!(list(1).await, ["a", "a-b", "top"]);
    assert_eq!(list(2).await, ["a", "a-b", "a/b", "top"]);
    assert_eq!(list(3).await, ["a", "a-b", "a/b", "a/b/c", "a/b/file", "top"]);
    assert_eq!(list(64).await, ["a", "a-b", "a/b", "a/b/c", "a/b/c/deep", "a/b/file", "top"]);
    let all = files.list_tree(&root, 64).await.unwrap();
    assert_eq!(all.iter().any(|entry| entry.path == b"link"), linked);
    let deep = all.iter().find(|entry| entry.path == b"a/b/c/deep").unwrap();
    assert_eq!((deep.stat.kind, deep.stat.size), (FileKind::File, 2));
    for depth in [0, 65] {
        assert_eq!(code(files.list_tree(&root, depth).await), ErrorCode::InvalidConfig);
    }
    assert_eq!(code(files.list_tree(format!("{root}/none"), 2).await), ErrorCode::NotFound);
}
