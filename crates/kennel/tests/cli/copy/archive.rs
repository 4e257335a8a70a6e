//! `kennel cp --archive`, compared with the real `tar`.

use super::{clean, inside};
use crate::support::{Kennel, finish, on_every_provider, signal, wait};
use kennel_testkit::within_blocking;
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use tar::{EntryType, Header};

on_every_provider!(
    a_tree_goes_in_and_out,
    archives_of_tar_are_unpacked,
    an_archive_file_is_complete_or_absent,
    entries_that_lead_out_are_refused,
    damaged_archives_are_refused,
    later_entries_replace_symlinks,
    hard_links_are_copied,
    entries_that_cannot_be_archived_are_reported,
    changing_files_do_not_damage_the_archive,
    a_closed_output_pipe_ends_the_copy,
    ctrl_c_leaves_nothing,
);

/// Describes a tree: for each name its type, permissions, and content or target.
type Picture = BTreeMap<Vec<u8>, (char, u32, Vec<u8>)>;

fn picture(root: &Path) -> Picture {
    let mut found = Picture::new();
    let mut waiting = vec![root.to_owned()];
    while let Some(dir) = waiting.pop() {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let meta = std::fs::symlink_metadata(&path).unwrap();
            let what = match meta.mode() & 0o170_000 {
                0o100_000 => ('f', std::fs::read(&path).unwrap()),
                0o120_000 => ('l', std::fs::read_link(&path).unwrap().into_os_string().into_vec()),
                0o040_000 => ('d', Vec::new()),
                _ => ('?', Vec::new()),
            };
            let name = path.strip_prefix(root).unwrap().as_os_str().as_bytes().to_vec();
            found.insert(name, (what.0, meta.permissions().mode() & 0o7777, what.1));
            if what.0 == 'd' {
                waiting.push(path);
            }
        }
    }
    found
}

/// Asserts that two trees are the same, without printing megabytes of content.
#[track_caller]
fn same(found: &Picture, expected: &Picture) {
    let short = |picture: &Picture| -> Vec<String> {
        picture
            .iter()
            .map(|(name, (kind, mode, content))| {
                format!("{kind} {mode:o} {} {}", content.len(), String::from_utf8_lossy(name))
            })
            .collect()
    };
    assert_eq!(short(found), short(expected));
    assert!(found == expected, "the content differs");
}

/// Creates a tree with everything that is hard to copy.
fn tree(kennel: &Kennel) -> PathBuf {
    let tree = kennel.home.path().join("tree");
    let long = "n".repeat(150);
    let mode = |path: &Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    std::fs::create_dir_all(tree.join(&long).join(&long)).unwrap();
    std::fs::write(tree.join(&long).join(&long).join(&long), "far away").unwrap();
    std::fs::write(tree.join("m".repeat(100)), "as long as a name may be in a plain header").unwrap();
    for name in [&b"new\nline"[..], b" space ", b"-dash", b"\xff\xfe", b"a:b", b"back\\slash", b"'\"$(x)\x1b[31m"] {
        std::fs::write(tree.join(OsStr::from_bytes(name)), name).unwrap();
    }
    let large: Vec<u8> = (0..5_000_000u32).map(|number| ((number * 31) >> 3) as u8).collect();
    std::fs::write(tree.join("large"), large).unwrap();
    std::fs::write(tree.join("nothing"), "").unwrap();
    std::fs::write(tree.join("block"), [1; 512]).unwrap();
    mode(&tree.join("block"), 0o640);
    mode(&tree.join("nothing"), 0o711);
    for name in ["empty", "shared", "own", "closed", "closed/more"] {
        std::fs::create_dir(tree.join(name)).unwrap();
    }
    std::fs::write(tree.join("closed/file"), "in it").unwrap();
    for (name, bits) in [("shared", 0o775), ("own", 0o700), ("closed/more", 0o500), ("closed", 0o555)] {
        mode(&tree.join(name), bits);
    }
    symlink("large", tree.join("link")).unwrap();
    symlink("/nowhere/at all", tree.join("own/dangling")).unwrap();
    symlink("x/".repeat(150), tree.join("far")).unwrap();
    symlink(OsStr::from_bytes(b"\xfe"), tree.join(OsStr::from_bytes(b"link\n\xff"))).unwrap();
    tree
}

/// Packs an archive with the real `tar`.
fn tar(options: &[&str], dir: &Path, what: &str) -> Vec<u8> {
    let mut call = Command::new("tar");
    call.arg("--create").args(options).arg("--directory").arg(dir).arg(what);
    let made = finish(call, None);
    assert_eq!(made.status, 0, "{made:?}");
    made.stdout
}

/// Unpacks an archive in a new directory with the real `tar`.
fn untar(kennel: &Kennel, archive: &[u8], name: &str) -> PathBuf {
    let dir = kennel.home.path().join(name);
    std::fs::create_dir(&dir).unwrap();
    let mut call = Command::new("tar");
    call.args(["--extract", "--preserve-permissions", "--directory"]).arg(&dir);
    let done = finish(call, Some(archive.to_vec()));
    assert!(done.status == 0 && done.stderr.is_empty(), "{done:?}");
    dir
}

fn entry(name: &str, kind: EntryType, content: &[u8], link: &str) -> Vec<u8> {
    let mut header = Header::new_gnu();
    header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
    header.set_link_name_literal(link).unwrap();
    header.set_entry_type(kind);
    header.set_mode(0o755);
    header.set_size(content.len() as u64);
    header.set_cksum();
    let mut out = [&header.as_bytes()[..], content].concat();
    out.resize(out.len().next_multiple_of(512), 0);
    out
}

fn file(name: &str, content: &str) -> Vec<u8> {
    entry(name, EntryType::Regular, content.as_bytes(), "")
}

fn link(name: &str, text: &str) -> Vec<u8> {
    entry(name, EntryType::Symlink, b"", text)
}

fn ended(entries: &[Vec<u8>]) -> Vec<u8> {
    [entries.concat(), vec![0; 1024]].concat()
}

fn a_tree_goes_in_and_out(kennel: &Kennel) {
    let (id, dir) = (kennel.sandbox(), inside(kennel));
    let tree = tree(kennel);
    let expected = picture(&tree);
    let unpack = ["cp", "--archive", "-", &format!("{id}:{dir}/made")];
    kennel.kennel_with(&unpack, &tar(&[], &tree, ".")).ok();
    kennel.kennel(&["exec", &id, "--", "touch", "-d", "@981173106", &format!("{dir}/made/block")]).ok();
    // The content of a directory, by `/.`. The second time, the archive overwrites what is there.
    for name in ["first", "second"] {
        let out = kennel.kennel(&["cp", "--archive", &format!("{id}:{dir}/made/."), "-"]);
        assert!(out.status == 0 && out.stderr.is_empty(), "{}", out.stderr);
        let back = untar(kennel, &out.stdout, name);
        same(&picture(&back), &expected);
        if name == "first" {
            assert_eq!(std::fs::metadata(back.join("block")).unwrap().mtime(), 981_173_106);
        }
        kennel.kennel_with(&unpack, &out.stdout).ok();
    }
    // The directory itself, by its name, and one file.
    let out = kennel.kennel(&["cp", "--archive", &format!("{id}:{dir}/made"), "-"]);
    same(&picture(&untar(kennel, &out.stdout, "named").join("made")), &expected);
    let out = kennel.kennel(&["cp", "--archive", &format!("{id}:{dir}/made/link"), "-"]);
    let one = picture(&untar(kennel, &out.stdout, "one"));
    assert_eq!(one.keys().collect::<Vec<_>>(), [b"link"]);
    assert!(one[&b"link"[..]].2 == expected[&b"large"[..]].2, "a symlink that is named is followed, as in every copy");
    clean(kennel, &id);
}

fn archives_of_tar_are_unpacked(kennel: &Kennel) {
    let (id, dir) = (kennel.sandbox(), inside(kennel));
    let tree = tree(kennel);
    let file = kennel.home.path().join("made.tar");
    for options in [&["--format=gnu"][..], &["--format=posix"], &["--format=posix", "--xattrs"], &["--format=oldgnu"]] {
        std::fs::write(&file, tar(options, &tree, ".")).unwrap();
        kennel.kennel(&["cp", "--archive", &file.display().to_string(), &format!("{id}:{dir}/made")]).ok();
        let out = kennel.kennel(&["cp", "--archive", &format!("{id}:{dir}/made/."), "-"]);
        same(&picture(&untar(kennel, &out.stdout, "back")), &picture(&tree));
        for made in [kennel.home.path().join("back"), file.clone()] {
            drop(std::fs::remove_dir_all(&made).or_else(|_| std::fs::remove_file(&made)));
        }
        clean(kennel, &id);
    }
    // Another tar, with simpler headers. It does not support longer names.
    let plain = tree.join("shared");
    std::fs::write(plain.join("file"), "file").unwrap();
    kennel.kennel_with(&["cp", "--archive", "-", &format!("{id}:{dir}")], &tar(&["--format=v7"], &tree, "shared")).ok();
    let found = kennel.kennel(&["exec", &id, "--", "stat", "-c", "%a", &format!("{dir}/shared")]).ok();
    assert_eq!(found, "775");
    assert_eq!(kennel.kennel(&["cp", &format!("{id}:{dir}/shared/file"), "-"]).ok(), "file");
    clean(kennel, &id);
}

fn an_archive_file_is_complete_or_absent(kennel: &Kennel) {
    let (id, dir) = (kennel.sandbox(), inside(kennel));
    kennel.kennel(&["exec", &id, "-c", &format!("mkdir {dir}; echo x > {dir}/x")]).ok();
    let (source, here) = (format!("{id}:{dir}/x"), kennel.here());
    let names = || -> Vec<_> { std::fs::read_dir(&here).unwrap().map(|entry| entry.unwrap().file_name()).collect() };
    std::fs::write(here.join("x.tar"), "older").unwrap();
    kennel.kennel(&["cp", "--archive", &source, "x.tar"]).ok();
    assert_eq!(names(), ["x.tar"]);
    let archive = std::fs::read(here.join("x.tar")).unwrap();
    assert_eq!(std::fs::read(untar(kennel, &archive, "back").join("x")).unwrap(), b"x\n");
    kennel.kennel(&["cp", "--archive", &format!("{source}/nothing"), "x.tar"]).fails(125);
    assert!(std::fs::read(here.join("x.tar")).unwrap() == archive, "the older file stays");
    let stderr = kennel.kennel(&["cp", "--archive", &source, "."]).fails(125);
    assert!(stderr.contains("is a directory"), "{stderr}");
    symlink("x.tar", here.join("link")).unwrap();
    kennel.kennel(&["cp", "--archive", &source, "link"]).fails(125);
    assert!(std::fs::read(here.join("x.tar")).unwrap() == archive, "nothing is written through a symlink");
    std::fs::remove_file(here.join("link")).unwrap();
    assert_eq!(names(), ["x.tar"]);
    kennel.kennel(&["cp", "--archive", "x.tar", "y.tar"]).fails(125);
    clean(kennel, &id);
}

fn entries_that_lead_out_are_refused(kennel: &Kennel) {
    let (id, dir) = (kennel.sandbox(), inside(kennel));
    kennel.kennel(&["exec", &id, "-c", &format!("mkdir -p {dir}/victim; echo theirs > {dir}/victim/file")]).ok();
    let target = format!("{id}:{dir}/new/target");
    let victim = format!("{dir}/victim");
    let hard = |name: &str, to: &str| entry(name, EntryType::Link, b"", to);
    for (archive, message) in [
        (
            ended(&[file("fine", ""), file("../../victim/file", "ours")]),
            "../../victim/file is refused: its path contains ..",
        ),
        (ended(&[file("a/../../x", "ours")]), "a/../../x is refused"),
        (
            ended(&[link("way", &victim), file("way/file", "ours")]),
            "way/file is refused: its path goes through way, a symlink",
        ),
        (ended(&[link("a/way", "../../../victim"), file("./a//way/file", "ours")]), "its path goes through a/way"),
        (ended(&[link("way", &victim), link("way/x", "y")]), "way/x is refused"),
        (ended(&[link("way", &victim), entry("way/x/", EntryType::Directory, b"", "")]), "way/x/ is refused"),
        (ended(&[hard("hard", "../../victim/file")]), "hard is refused: it is a hard link to ../../victim/file"),
        (ended(&[link("way", &victim), hard("hard", "way/file")]), "hard is refused: it is a hard link to way/file"),
        (ended(&[hard("hard", "later"), file("later", "")]), "to later, which is not there yet"),
        (ended(&[file(".", "ours")]), ". is refused: it has no name"),
    ] {
        let stderr = kennel.kennel_with(&["cp", "--archive", "-", &target], &archive).fails(125);
        assert!(stderr.contains(message), "{message}: {stderr}");
        let list = format!("cat {victim}/*; ls -A {victim} {dir}");
        assert_eq!(kennel.kennel(&["exec", &id, "-c", &list]).ok().replace('\n', " "), {
            format!("theirs {dir}: new victim  {victim}: file")
        });
        kennel.kennel(&["exec", &id, "--", "rm", "-rf", &format!("{dir}/new")]).ok();
    }
    // An absolute name is unpacked below the target.
    kennel.kennel_with(&["cp", "--archive", "-", &target], &ended(&[file("//abs/./file", "below")])).ok();
    assert_eq!(kennel.kennel(&["cp", &format!("{target}/abs/file"), "-"]).ok(), "below");
    clean(kennel, &id);
}

fn damaged_archives_are_refused(kennel: &Kennel) {
    let (id, dir) = (kennel.sandbox(), inside(kennel));
    let target = format!("{id}:{dir}");
    let archive = ended(&[file("first", "whole"), file("second", &"x".repeat(3000))]);
    let unpack = |bytes: &[u8]| kennel.kennel_with(&["cp", "--archive", "-", &target], bytes).fails(125);
    for (start, program) in [(&b"\x1f\x8b\x08\0"[..], "gzip"), (b"\x28\xb5\x2f\xfd\0", "zstd")] {
        let stderr = unpack(start);
        assert!(stderr.contains(&format!("{program} -dc FILE | kennel cp --archive - {target}")), "{stderr}");
        let name = kennel.here().join("some.tar.z");
        std::fs::write(&name, [start, &archive].concat()).unwrap();
        let stderr = kennel.kennel(&["cp", "--archive", "some.tar.z", &target]).fails(125);
        assert!(stderr.contains(&format!("{program} -dc some.tar.z | kennel cp --archive - {target}")), "{stderr}");
    }
    for (bytes, message) in
        [(&b""[..], "empty"), (&[b'x'; 2000], "not a tar archive"), (&archive[..300], "ends too early")]
    {
        let stderr = unpack(bytes);
        assert!(stderr.contains(message), "{stderr}");
    }
    kennel.kennel(&["cp", "--archive", ".", &target]).fails(125);
    kennel.kennel(&["cp", "--archive", "nothing-here", &target]).fails(125);
    kennel.kennel(&["exec", &id, "--", "ls", &dir]).fails(if kennel.provider == "docker" { 1 } else { 2 });
    // The earlier entries are there, and the incomplete one is not.
    let mut damaged = archive.clone();
    damaged[1024] ^= 1;
    for (bytes, message) in [
        (&archive[..2000], "ends too early, within second, after 1 entry and 2000 bytes"),
        (&archive[..1024], "ends too early, after 1 entry and 1024 bytes"),
        (&damaged[..], "damaged: the next entry is not valid, after 1 entry and 1536 bytes"),
    ] {
        let stderr = unpack(bytes);
        assert!(stderr.contains(message), "{stderr}");
        let gone = within_blocking(Duration::from_secs(90), || {
            kennel.kennel(&["exec", &id, "--", "ls", "-A", &dir]).ok() == "first"
        });
        assert!(gone, "{}", kennel.kennel(&["exec", &id, "--", "ls", "-A", &dir]).ok());
        assert_eq!(kennel.kennel(&["cp", &format!("{target}/first"), "-"]).ok(), "whole");
    }
    clean(kennel, &id);
}

fn later_entries_replace_symlinks(kennel: &Kennel) {
    let (id, dir) = (kennel.sandbox(), inside(kennel));
    kennel.kennel(&["exec", &id, "-c", &format!("mkdir -p {dir}/victim; echo theirs > {dir}/victim/file")]).ok();
    let victim = format!("{dir}/victim");
    let archive = ended(&[
        link("a", &format!("{victim}/file")),
        file("a", "ours"),
        link("b", &victim),
        entry("b/", EntryType::Directory, b"", ""),
        file("b/file", "ours"),
        link("c", "a"),
        link("c", "b"),
        file("d/x", ""),
        link("d", "a"),
    ]);
    let target = format!("{dir}/target");
    let stderr = kennel.kennel_with(&["cp", "--archive", "-", &format!("{id}:{target}")], &archive).fails(125);
    assert!(stderr.contains("/d is skipped: there is a directory") && stderr.contains("1 of 8"), "{stderr}");
    let show = format!("cat {victim}/file {target}/a {target}/b/file; echo; readlink {target}/c; ls {target}/d");
    assert_eq!(kennel.kennel(&["exec", &id, "-c", &show]).ok(), "theirs\noursours\nb\nx");
    clean(kennel, &id);
}

fn hard_links_are_copied(kennel: &Kennel) {
    let (id, dir) = (kennel.sandbox(), inside(kennel));
    let from = kennel.home.path().join("from");
    std::fs::create_dir(&from).unwrap();
    std::fs::write(from.join("one"), vec![b'h'; 300_000]).unwrap();
    std::fs::set_permissions(from.join("one"), PermissionsExt::from_mode(0o751)).unwrap();
    std::fs::hard_link(from.join("one"), from.join("two")).unwrap();
    symlink("one", from.join("link")).unwrap();
    rustix::fs::linkat(
        rustix::fs::CWD,
        from.join("link"),
        rustix::fs::CWD,
        from.join("other"),
        rustix::fs::AtFlags::empty(),
    )
    .unwrap();
    let archive = tar(&["--sort=name"], &from, ".");
    kennel.kennel_with(&["cp", "--archive", "-", &format!("{id}:{dir}")], &archive).ok();
    let out = kennel.kennel(&["cp", "--archive", &format!("{id}:{dir}/."), "-"]);
    same(&picture(&untar(kennel, &out.stdout, "back")), &picture(&from));
    clean(kennel, &id);
}

fn entries_that_cannot_be_archived_are_reported(kennel: &Kennel) {
    let (id, dir) = (kennel.sandbox(), inside(kennel));
    kennel.kennel(&["exec", &id, "-c", &format!("mkdir {dir}; mkfifo {dir}/fifo; echo x > {dir}/file")]).ok();
    let out = kennel.kennel(&["cp", "--archive", &format!("{id}:{dir}/."), "-"]);
    let back = picture(&untar(kennel, &out.stdout, "back"));
    assert_eq!(back.keys().collect::<Vec<_>>(), [b"file"]);
    let stderr = out.fails(125);
    assert!(stderr.contains("/fifo is skipped: it is a FIFO") && stderr.contains("1 of 2"), "{stderr}");
    let special = [EntryType::Fifo, EntryType::Char, EntryType::Block, EntryType::new(b'?')];
    let special = special.map(|kind| entry("special", kind, b"", ""));
    let archive = ended(&[special.concat(), file("after", "x")]);
    let stderr = kennel.kennel_with(&["cp", "--archive", "-", &format!("{id}:{dir}/new")], &archive).fails(125);
    assert!(stderr.contains("special is skipped") && stderr.contains("4 of 5"), "{stderr}");
    assert_eq!(kennel.kennel(&["exec", &id, "--", "ls", "-A", &format!("{dir}/new")]).ok(), "after");
    clean(kennel, &id);
}

fn changing_files_do_not_damage_the_archive(kennel: &Kennel) {
    let id = kennel.sandbox();
    // Files of the kernel report a wrong size: zero, or a page.
    for (path, size, message) in
        [("/proc/version", 0, "grew"), ("/sys/kernel/mm/transparent_hugepage/enabled", 4096, "shrank")]
    {
        let out = kennel.kennel(&["cp", "--archive", &format!("{id}:{path}"), "-"]);
        let name = path.rsplit('/').next().unwrap();
        let back = std::fs::read(untar(kennel, &out.stdout, name).join(name)).unwrap();
        assert_eq!(back.len(), size);
        let stderr = out.fails(125);
        assert!(stderr.contains(message) && stderr.contains("1 of 1 entries are incomplete"), "{stderr}");
    }
}

fn a_closed_output_pipe_ends_the_copy(kennel: &Kennel) {
    let (id, dir) = (kennel.sandbox(), inside(kennel));
    kennel.kennel(&["exec", &id, "-c", &format!("mkdir {dir}; head -c 3000000 /dev/zero > {dir}/zeros")]).ok();
    let mut call = kennel.call(&["cp", "--archive", &format!("{id}:{dir}"), "-"]);
    let mut child = call.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdout.take().unwrap().read_exact(&mut [0; 10]).unwrap();
    assert_eq!(wait(&mut child, "cp"), 141);
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(said, "");
    clean(kennel, &id);
}

fn ctrl_c_leaves_nothing(kennel: &Kennel) {
    let (id, dir) = (kennel.sandbox(), inside(kennel));
    // With data, which takes a while to copy. Holes would be copied at once.
    let large = format!("mkdir {dir}; dd if=/dev/zero of={dir}/large bs=1048576 count=512 2>&1");
    kennel.kennel(&["exec", &id, "-c", &large]).ok();
    let names = || std::fs::read_dir(kennel.here()).unwrap().count();
    for archive in [&["--archive"][..], &[]] {
        let mut call = kennel.call(&[&["cp"], archive, &[&format!("{id}:{dir}/large"), "here"]].concat());
        let mut child = call.stderr(Stdio::piped()).spawn().unwrap();
        assert!(within_blocking(Duration::from_secs(90), || names() == 1), "it begins");
        signal(&child, Signal::INT);
        assert_eq!(wait(&mut child, "cp"), 130);
        let mut said = String::new();
        child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert_eq!((said.as_str(), names()), ("", 0));
    }
    // Into the sandbox: half a file, and then no more input.
    let half = &file("half", &"x".repeat(200_000))[..100_000];
    let mut call = kennel.call(&["cp", "--archive", "-", &format!("{id}:{dir}/new")]);
    let mut child = call.stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(half).unwrap();
    let list = ["exec", &id, "--", "ls", "-A", &format!("{dir}/new")];
    let begun = within_blocking(Duration::from_secs(90), || kennel.kennel(&list).text().contains(".kennel-"));
    assert!(begun, "it begins");
    signal(&child, Signal::INT);
    assert_eq!(wait(&mut child, "cp"), 130);
    assert!(within_blocking(Duration::from_secs(90), || kennel.kennel(&list).ok().is_empty()), "nothing is left");
    clean(kennel, &id);
}
