//! `kennel cp`, in both directions.

mod archive;
mod sparse;
mod symlinks;

use crate::support::{Kennel, finish, on_every_provider};
use expectrl::Expect;
use rustix::fs::{CWD, FileType, Mode};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

on_every_provider!(
    files_go_in_and_out,
    streams_go_in_and_out,
    file_names_may_contain_any_bytes,
    directories_are_copied_with_their_contents,
    entries_that_cannot_be_copied_are_reported,
    nothing_is_written_through_links,
    files_are_copied_as_another_user,
    symlinks_replace_files_and_symlinks,
    symlinks_swapped_in_during_a_copy_are_not_followed,
);

/// A directory inside that only this test uses. On `local`, the inside is the host.
fn inside(kennel: &Kennel) -> String {
    format!("/tmp/{}-inside", kennel.home.mark())
}

fn clean(kennel: &Kennel, id: &str) {
    kennel.kennel(&["exec", id, "--", "rm", "-rf", &inside(kennel)]).ok();
}

fn files_go_in_and_out(kennel: &Kennel) {
    let (id, dir) = (kennel.sandbox(), inside(kennel));
    let bytes: Vec<u8> = (0..2_000_000u32).map(|number| ((number * 31) >> 3) as u8).collect();
    let file = kennel.home.path().join("file");
    std::fs::write(&file, &bytes).unwrap();
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o751)).unwrap();
    let source = file.display().to_string();
    kennel.kennel(&["cp", &source, &format!("{id}:{dir}/")]).ok();
    assert_eq!(kennel.kennel(&["exec", &id, "--", "stat", "-c", "%a %s", &format!("{dir}/file")]).ok(), "751 2000000");
    kennel.kennel(&["cp", &source, &format!("{id}:{dir}/other")]).ok();
    let back = kennel.home.path().join("back");
    kennel.kennel(&["cp", &format!("{id}:{dir}/other"), &back.display().to_string()]).ok();
    assert!(std::fs::read(&back).unwrap() == bytes);
    assert_eq!(std::fs::metadata(&back).unwrap().permissions().mode() & 0o777, 0o751);
    // Into an existing directory, under its own name. An older file is replaced.
    std::fs::write(kennel.home.path().join("other"), "older").unwrap();
    kennel.kennel(&["cp", &format!("{id}:{dir}/other"), &kennel.home.path().display().to_string()]).ok();
    assert!(std::fs::read(kennel.home.path().join("other")).unwrap() == bytes);
    clean(kennel, &id);
}

fn streams_go_in_and_out(kennel: &Kennel) {
    let (id, dir) = (kennel.sandbox(), inside(kennel));
    let path = format!("{id}:{dir}/stream");
    let bytes: Vec<u8> = (0..600_000u32).map(|number| (number >> 4) as u8).collect();
    kennel.kennel_with(&["cp", "-", &path], &bytes).ok();
    let out = kennel.kennel(&["cp", &path, "-"]);
    assert!(out.status == 0 && out.stdout == bytes);
    kennel.kennel(&["cp", "-", &format!("{id}:{dir}")]).fails(125);
    kennel.kennel(&["cp", &format!("{id}:{dir}/nothing"), "-"]).fails(125);
    kennel.kennel(&["cp", "-", "-"]).fails(125);
    kennel.kennel(&["cp", "here", "there"]).fails(125);
    clean(kennel, &id);
}

fn file_names_may_contain_any_bytes(kennel: &Kennel) {
    let (id, dir) = (kennel.sandbox(), inside(kennel));
    let from = kennel.home.path().join("from");
    std::fs::create_dir(&from).unwrap();
    let names = [&b"new\nline"[..], b" space ", b"-dash", b"\xff\xfe", b"a:b", b"'\"$(x)\x1b[31m"];
    for name in names {
        std::fs::write(from.join(OsStr::from_bytes(name)), name).unwrap();
    }
    kennel.kennel(&["cp", &from.display().to_string(), &format!("{id}:{dir}")]).ok();
    let back = kennel.home.path().join("back");
    kennel.kennel(&["cp", &format!("{id}:{dir}"), &back.display().to_string()]).ok();
    for name in names {
        assert_eq!(std::fs::read(back.join(OsStr::from_bytes(name))).unwrap(), name);
        // One by one, by their names on the command line.
        let one = kennel.home.path().join("one");
        let mut source = format!("{id}:{dir}/").into_bytes();
        source.extend_from_slice(name);
        let mut call = kennel.call(&["cp"]);
        call.arg(OsStr::from_bytes(&source)).arg(&one);
        finish(call, None).ok();
        assert_eq!(std::fs::read(one).unwrap(), name);
    }
    clean(kennel, &id);
}

fn directories_are_copied_with_their_contents(kennel: &Kennel) {
    let (id, dir) = (kennel.sandbox(), inside(kennel));
    let tree = kennel.home.path().join("tree");
    std::fs::create_dir_all(tree.join("a/b/c")).unwrap();
    std::fs::create_dir(tree.join("empty")).unwrap();
    std::fs::write(tree.join("a/b/c/deep"), "deep").unwrap();
    std::fs::write(tree.join("top"), "top").unwrap();
    symlink("a/b/c/deep", tree.join("link")).unwrap();
    symlink("/nowhere/at all", tree.join("a/dangling")).unwrap();
    let source = tree.display().to_string();
    kennel.kennel(&["cp", &source, &format!("{id}:{dir}")]).ok();
    assert_eq!(kennel.kennel(&["exec", &id, "--", "cat", &format!("{dir}/link")]).ok(), "deep");
    // The directory exists now, so a second copy goes into it. With `/.`, only the content of the source is copied.
    kennel.kennel(&["cp", &source, &format!("{id}:{dir}")]).ok();
    assert_eq!(kennel.kennel(&["exec", &id, "--", "cat", &format!("{dir}/tree/top")]).ok(), "top");
    kennel.kennel(&["exec", &id, "--", "rm", "-r", &format!("{dir}/tree")]).ok();
    kennel.kennel(&["cp", &format!("{source}/."), &format!("{id}:{dir}")]).ok();
    let back = kennel.home.path().join("back");
    for _ in 0..2 {
        // The second copy overwrites the first.
        kennel.kennel(&["cp", &format!("{id}:{dir}/."), &back.display().to_string()]).ok();
    }
    assert_eq!(std::fs::read(back.join("a/b/c/deep")).unwrap(), b"deep");
    assert_eq!(std::fs::read(back.join("top")).unwrap(), b"top");
    assert!(back.join("empty").is_dir());
    assert_eq!(std::fs::read_link(back.join("link")).unwrap(), Path::new("a/b/c/deep"));
    assert_eq!(std::fs::read_link(back.join("a/dangling")).unwrap(), Path::new("/nowhere/at all"));
    assert_eq!(std::fs::read_dir(&back).unwrap().count(), 4, "and nothing else");
    clean(kennel, &id);
}

fn entries_that_cannot_be_copied_are_reported(kennel: &Kennel) {
    let (id, dir) = (kennel.sandbox(), inside(kennel));
    let make = format!("mkdir {dir}; mkfifo {dir}/fifo; echo x > {dir}/file");
    kennel.kennel(&["exec", &id, "-c", &make]).ok();
    let back = kennel.home.path().join("back");
    let stderr = kennel.kennel(&["cp", &format!("{id}:{dir}"), &back.display().to_string()]).fails(125);
    assert!(stderr.contains("/fifo is skipped") && stderr.contains("1 of 2"), "{stderr}");
    assert_eq!(std::fs::read(back.join("file")).unwrap(), b"x\n");
    let from = kennel.home.path().join("from");
    std::fs::create_dir(&from).unwrap();
    rustix::fs::mknodat(CWD, from.join("fifo"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    let stderr = kennel.kennel(&["cp", &from.display().to_string(), &format!("{id}:{dir}/from")]).fails(125);
    assert!(stderr.contains("/fifo is skipped"), "{stderr}");
    clean(kennel, &id);
}

fn nothing_is_written_through_links(kennel: &Kennel) {
    let (id, dir) = (kennel.sandbox(), inside(kennel));
    let victim = kennel.home.path().join("victim");
    std::fs::create_dir(&victim).unwrap();
    std::fs::write(victim.join("file"), "theirs").unwrap();
    let back = kennel.home.path().join("back");
    std::fs::create_dir(&back).unwrap();
    symlink(&victim, back.join("sub")).unwrap();
    symlink(victim.join("file"), back.join("file")).unwrap();
    let make = format!("mkdir -p {dir}/sub; echo ours > {dir}/sub/file; echo ours > {dir}/file");
    kennel.kennel(&["exec", &id, "-c", &make]).ok();
    let stderr = kennel.kennel(&["cp", &format!("{id}:{dir}/."), &back.display().to_string()]).fails(125);
    assert!(stderr.contains("/sub is skipped"), "{stderr}");
    assert_eq!(std::fs::read(victim.join("file")).unwrap(), b"theirs");
    assert_eq!(std::fs::read(back.join("file")).unwrap(), b"ours\n", "the link was replaced");
    symlink(victim.join("file"), kennel.home.path().join("named")).unwrap();
    let named = kennel.home.path().join("named").display().to_string();
    kennel.kennel(&["cp", &format!("{id}:{dir}/file"), &named]).fails(125);
    assert_eq!(std::fs::read(victim.join("file")).unwrap(), b"theirs");
    clean(kennel, &id);
}

/// A directory of the workspace is replaced by a symlink out of it again and again, while files are copied through it
/// in both directions.
fn symlinks_swapped_in_during_a_copy_are_not_followed(kennel: &Kennel) {
    if kennel.provider == "local" {
        return; // its inside is the host, where symlinks lead out
    }
    let id = kennel.sandbox();
    let victim = kennel.home.path().join("victim");
    std::fs::create_dir(&victim).unwrap();
    std::fs::write(victim.join("file"), "theirs").unwrap();
    let (away, mark) = (victim.display(), kennel.home.mark());
    let swap = format!(
        "while :; do mkdir d && echo ours > d/file; mv d aside; ln -s {away} d; echo {mark} > told; rm d; rm -r aside; done"
    );
    let mut swapping = kennel.call(&["exec", &id, "-c", &swap]).spawn().unwrap();
    let told = kennel.here().join("told");
    assert!(kennel_testkit::within_blocking(std::time::Duration::from_secs(90), || told.exists()), "it swaps");
    let source = kennel.home.path().join("source");
    std::fs::write(&source, "from outside").unwrap();
    let source = source.display().to_string();
    for round in 0..12 {
        let back = kennel.home.path().join(format!("back{round}"));
        // The copy may fail, depending on the moment.
        let _ = kennel.kennel(&["cp", &format!("{id}:/workspace/d/file"), &back.display().to_string()]);
        assert_ne!(std::fs::read(&back).unwrap_or_default(), b"theirs");
        let _ = kennel.kennel(&["cp", &format!("{id}:/workspace/d"), &format!("{}-all", back.display())]);
        let all = kennel.home.path().join(format!("back{round}-all"));
        assert_ne!(std::fs::read(all.join("file")).unwrap_or_default(), b"theirs");
        let _ = kennel.kennel(&["cp", &source, &format!("{id}:/workspace/d/file")]);
        let _ = kennel.kennel(&["cp", &source, &format!("{id}:/workspace/d/new")]);
        assert_eq!(std::fs::read(victim.join("file")).unwrap(), b"theirs");
        assert_eq!(std::fs::read_dir(&victim).unwrap().count(), 1, "nothing was put there");
    }
    assert!(swapping.try_wait().unwrap().is_none(), "it kept swapping");
    kennel.kennel(&["rm", "--force", &id]).ok();
    swapping.wait().unwrap();
}

fn files_are_copied_as_another_user(kennel: &Kennel) {
    let (id, dir) = (kennel.sandbox(), inside(kennel));
    let tree = kennel.home.path().join("tree");
    std::fs::create_dir(&tree).unwrap();
    symlink("nowhere", tree.join("link")).unwrap();
    let make = format!("mkdir -p {dir}/closed; chmod 777 {dir}; chmod 700 {dir}/closed; echo x > {dir}/file");
    kennel.kennel(&["exec", &id, "-c", &make]).ok();
    let copy = |from: &str, to: &str| kennel.kennel(&["cp", "--user", "nobody", from, to]);
    let into = copy(&tree.display().to_string(), &format!("{id}:{dir}/tree"));
    if kennel.provider == "local" {
        let stderr = into.fails(125);
        assert!(stderr.contains("as another user"), "{stderr}");
        return clean(kennel, &id);
    }
    into.ok();
    assert_eq!(kennel.kennel(&["exec", &id, "--", "stat", "-c", "%U", &format!("{dir}/tree/link")]).ok(), "nobody");
    // A directory without read permission does not affect the others.
    let back = kennel.home.path().join("back");
    let stderr = copy(&format!("{id}:{dir}"), &back.display().to_string()).fails(125);
    assert!(stderr.contains("/closed is skipped") && stderr.contains("1 of 3"), "{stderr}");
    assert_eq!(std::fs::read(back.join("file")).unwrap(), b"x\n");
    let archive = kennel.kennel(&["cp", "--user", "nobody", "--archive", &format!("{id}:{dir}"), "-"]);
    assert!(archive.fails(125).contains("/closed is skipped"));
    clean(kennel, &id);
}

fn symlinks_replace_files_and_symlinks(kennel: &Kennel) {
    let (id, dir) = (kennel.sandbox(), inside(kennel));
    let tree = kennel.home.path().join("tree");
    std::fs::create_dir(&tree).unwrap();
    for name in [&b"file"[..], b"full", b"link", b"odd\n\xff"] {
        symlink(OsStr::from_bytes(&[b"to \xfe ", name].concat()), tree.join(OsStr::from_bytes(name))).unwrap();
    }
    let make = format!("mkdir -p {dir}/full; echo x > {dir}/full/x; echo x > {dir}/file; ln -s full {dir}/link");
    kennel.kennel(&["exec", &id, "-c", &make]).ok();
    let stderr = kennel.kennel(&["cp", &format!("{}/.", tree.display()), &format!("{id}:{dir}")]).fails(125);
    assert!(stderr.contains("/full is skipped: there is a directory in its place"), "{stderr}");
    let back = kennel.home.path().join("back");
    kennel.kennel(&["cp", &format!("{id}:{dir}"), &back.display().to_string()]).ok();
    for name in [&b"file"[..], b"link", b"odd\n\xff"] {
        let text = std::fs::read_link(back.join(OsStr::from_bytes(name))).unwrap();
        assert_eq!(text.as_os_str().as_bytes(), [b"to \xfe ", name].concat());
    }
    assert_eq!(std::fs::read_dir(back.join("full")).unwrap().count(), 1, "nothing was put into it");
    clean(kennel, &id);
}

/// Progress is shown on a terminal, unless `--quiet` is given.
#[test]
fn a_quiet_copy_shows_no_progress() {
    let kennel = Kennel::on("local");
    let (id, dir) = (kennel.sandbox(), inside(&kennel));
    std::fs::write(kennel.here().join("file"), vec![7; 300_000]).unwrap();
    let mut tar = std::process::Command::new("tar");
    tar.args(["-cf", "file.tar", "file"]).current_dir(kennel.here());
    finish(tar, None).ok();
    let shown = |words: &[&str]| {
        let call = kennel.call(&[words, &["--archive", "-", &format!("{id}:{dir}")]].concat());
        // The archive takes longer than the delay before progress is shown.
        let slow = "(head -c 200000 file.tar; sleep 1.3; tail -c +200001 file.tar) | \"$@\"";
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", slow, "sh"]).arg(call.get_program()).args(call.get_args()).current_dir(kennel.here());
        shell.envs(call.get_envs().filter_map(|(key, value)| Some((key, value?))));
        let mut session = crate::terminal::terminal(shell);
        let seen = session.expect(expectrl::Eof).expect("it ends");
        String::from_utf8_lossy(seen.as_bytes()).into_owned()
    };
    assert!(shown(&["cp"]).contains(" in 1 files"), "{:?}", shown(&["cp"]));
    assert_eq!(shown(&["cp", "--quiet"]), "");
    clean(&kennel, &id);
    kennel.kennel(&["rm", "--force", &id]).ok();
}
