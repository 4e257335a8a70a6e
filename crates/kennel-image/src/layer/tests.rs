//! Unpacking changes nothing outside the target directory, whatever the archive contains.

use super::*;
use proptest::prelude::*;
use std::os::unix::fs::MetadataExt;
use tar::Header;

/// An entry of an archive. Its name is written to the header unchanged, so it can be one that no tool would write.
#[derive(Clone, Debug)]
struct Made {
    kind: u8,
    name: Vec<u8>,
    link: Vec<u8>,
    mode: u32,
    content: Vec<u8>,
}

fn archive(entries: &[Made]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for Made { kind, name, link, mode, content } in entries {
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::new(*kind));
        header.set_mode(*mode);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(1_000_000);
        let content: &[u8] = if *kind == b'0' { content } else { b"" };
        header.set_size(content.len() as u64);
        if let Some(gnu) = header.as_gnu_mut() {
            let fill = |to: &mut [u8; 100], from: &[u8]| {
                to[..from.len().min(100)].copy_from_slice(&from[..from.len().min(100)]);
            };
            fill(&mut gnu.name, name);
            fill(&mut gnu.linkname, link);
        }
        header.set_cksum();
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend_from_slice(content);
        bytes.resize(bytes.len().next_multiple_of(512), 0);
    }
    bytes.resize(bytes.len() + 1024, 0);
    bytes
}

fn word() -> impl Strategy<Value = Vec<u8>> {
    let words: Vec<&[u8]> = vec![
        b"a",
        b"b",
        b"c",
        b"..",
        b".",
        b"",
        b".wh.a",
        b".wh.b",
        b".wh..wh..opq",
        b".wh.",
        b".wh..",
        b".wh...",
        b"outside",
        b"secret",
        b"\xff",
        b"x\x1by",
    ];
    proptest::sample::select(words).prop_map(<[u8]>::to_vec)
}

fn path() -> impl Strategy<Value = Vec<u8>> {
    let begins = prop_oneof![4 => Just(""), 1 => Just("/"), 1 => Just("../../")];
    let parts = proptest::collection::vec(word(), 1..5);
    (begins, parts).prop_map(|(begin, parts)| [begin.as_bytes(), &parts.join(&b'/')].concat())
}

fn made() -> impl Strategy<Value = Made> {
    let kind = proptest::sample::select(b"0001122234567gxLZ".to_vec());
    let content = proptest::collection::vec(any::<u8>(), 0..40);
    (kind, path(), path(), 0u32..0o10000, content).prop_map(|(kind, name, link, mode, content)| Made {
        kind,
        name,
        link,
        mode,
        content,
    })
}

/// All entries of a directory, with their attributes.
fn state(dir: &std::path::Path) -> Vec<(PathBuf, u32, u64, i64, i64, u64)> {
    let mut all = Vec::new();
    let mut left = vec![dir.to_owned()];
    while let Some(path) = left.pop() {
        let meta = std::fs::symlink_metadata(&path).unwrap();
        all.push((path.clone(), meta.mode(), meta.len(), meta.mtime(), meta.mtime_nsec(), meta.nlink()));
        if meta.is_dir() {
            left.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
    all.sort();
    all
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn unpacking_changes_nothing_outside(entries in proptest::collection::vec(made(), 1..14)) {
        let home = tempfile::tempdir().unwrap();
        let outside = home.path().join("outside");
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(outside.join("secret"), "mine").unwrap();
        let inner = home.path().join("in/side");
        std::fs::create_dir_all(&inner).unwrap();
        let before = state(&outside);
        let done = unpack_layer(archive(&entries).as_slice(), &inner, &Limits::default());
        prop_assert_eq!(state(&outside), before);
        let names = |dir: &std::path::Path| std::fs::read_dir(dir).unwrap().count();
        prop_assert_eq!((names(home.path()), names(&home.path().join("in"))), (2, 1));
        for (path, mode, ..) in state(&inner) {
            let meta = std::fs::symlink_metadata(&path).unwrap();
            let kind = mode & 0o170_000;
            // A character device is a whiteout.
            prop_assert!(kind != 0o020_000 || meta.rdev() == 0, "{:?}", path);
            prop_assert!(kind != 0o060_000, "{:?}", path);
        }
        if let Err(error) = done {
            prop_assert!(!error.to_string().contains(char::is_control), "{:?}", error);
        }
        std::fs::remove_dir_all(&inner).unwrap();
    }

    /// Unpacking arbitrary bytes may fail, but never panics.
    #[test]
    fn garbage_is_refused(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
        let home = tempfile::tempdir().unwrap();
        let _ = unpack_layer(bytes.as_slice(), home.path(), &Limits::default());
    }
}

fn plain(kind: u8, name: &str, link: &str) -> Made {
    Made { kind, name: name.into(), link: link.into(), mode: 0o755, content: b"x".to_vec() }
}

fn unpacked_to(entries: &[Made]) -> (tempfile::TempDir, Result<Digest>) {
    let home = tempfile::tempdir().unwrap();
    let done = unpack_layer(archive(entries).as_slice(), home.path(), &Limits::default());
    (home, done)
}

#[test]
fn an_entry_through_a_symlink_stays_inside() {
    let (home, done) =
        unpacked_to(&[plain(b'2', "link", "/etc"), plain(b'5', "etc", ""), plain(b'0', "link/kennel-test", "")]);
    done.unwrap();
    assert_eq!(std::fs::read(home.path().join("etc/kennel-test")).unwrap(), b"x");
    assert!(!std::path::Path::new("/etc/kennel-test").exists());
    // A symlink to a directory that is missing inside is refused, and its target is not created.
    let (_home, done) = unpacked_to(&[plain(b'2', "link", "../../../../tmp"), plain(b'0', "link/x", "")]);
    assert!(done.unwrap_err().to_string().contains("a symlink to a missing directory"));
}

#[test]
fn later_entries_replace_earlier_ones() {
    let (home, done) = unpacked_to(&[
        plain(b'5', "d", ""),
        plain(b'0', "d/f", ""),
        plain(b'2', "d", "elsewhere"),
        plain(b'0', "d", ""),
    ]);
    done.unwrap();
    assert!(std::fs::symlink_metadata(home.path().join("d")).unwrap().is_file());
}

#[test]
fn depth_through_symlinks_is_limited() {
    let home = tempfile::tempdir().unwrap();
    let limits = Limits { depth: 8, ..Limits::default() };
    let mut entries = vec![plain(b'5', "a/a/a/a/a/a", ""), plain(b'2', "l", "a/a/a/a/a/a")];
    entries.push(plain(b'5', "l/b/b/b", ""));
    let error = unpack_layer(archive(&entries).as_slice(), home.path(), &limits);
    // Its parents are created one by one. The limit is reached before the last.
    let deepest = state(home.path()).iter().map(|(path, ..)| path.components().count()).max().unwrap();
    assert!(deepest <= home.path().components().count() + 10, "{deepest}");
    drop(error);
    entries.push(plain(b'0', "l/b/b/b/f", ""));
    let home = tempfile::tempdir().unwrap();
    let error = unpack_layer(archive(&entries).as_slice(), home.path(), &limits).unwrap_err();
    assert!(error.to_string().contains("too deep"), "{error}");
}

#[test]
fn too_long_names_are_refused() {
    // A long name of zeros, which is small when compressed.
    let mut header = Header::new_gnu();
    header.set_entry_type(EntryType::GNULongName);
    header.set_size(1 << 30);
    header.set_cksum();
    let bytes = header.as_bytes().chain(io::repeat(b'a').take(1 << 30));
    let home = tempfile::tempdir().unwrap();
    let error = unpack_layer(bytes, home.path(), &Limits::default()).unwrap_err();
    assert!(error.to_string().contains("too long"), "{error}");
}

#[test]
fn a_sparse_file_counts_with_its_full_size() {
    let mut header = Header::new_gnu();
    header.set_entry_type(EntryType::GNUSparse);
    header.set_path("big").unwrap();
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(0);
    header.as_gnu_mut().unwrap().realsize = *b"77777777777\0";
    header.set_cksum();
    let mut bytes = header.as_bytes().to_vec();
    bytes.resize(bytes.len() + 1024, 0);
    let home = tempfile::tempdir().unwrap();
    let limits = Limits { bytes: 1 << 20, ..Limits::default() };
    assert!(unpack_layer(bytes.as_slice(), home.path(), &limits).is_err());
    assert!(state(home.path()).iter().all(|(_, _, len, ..)| *len <= 2 << 20));
}

#[test]
fn modification_times_keep_their_fractions() {
    assert_eq!(time("12.5").map(|time| (time.tv_sec, time.tv_nsec)), Some((12, 500_000_000)));
    assert_eq!(time("-3").map(|time| time.tv_sec), Some(-3));
    for bad in ["", "x", "1.-5", "1.2.3"] {
        assert!(time(bad).is_none(), "{bad}");
    }
}
