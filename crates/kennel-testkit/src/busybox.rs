//! A small filesystem for images. It contains only busybox, the test programs and the user `nobody`.

use crate::programs::{self, KNOCK};
use std::path::{Path, PathBuf};
use std::process::Command;

const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n";

/// Returns the filesystem as an archive that everyone can read. It is created once per build.
pub fn archive() -> PathBuf {
    let archive = crate::home::build().join(format!("kennel-test-busybox-{}.tar", fingerprint()));
    if !archive.exists() {
        // Not the lock of the image: the process that creates the image holds that one, and needs this archive.
        let _only_one = crate::docker::lock("archive");
        if !archive.exists() {
            make(&archive);
        }
    }
    archive
}

/// Returns a hash of the filesystem's content.
pub(crate) fn fingerprint() -> String {
    let busybox = std::fs::read(program()).expect("read busybox");
    programs::fingerprint(&[&busybox, KNOCK.as_bytes(), PASSWD.as_bytes()])
}

/// Returns the path of a static busybox.
fn program() -> PathBuf {
    let found =
        ["/bin/busybox", "/usr/bin/busybox", "/bin/busybox-static"].map(PathBuf::from).into_iter().find(|path| {
            // A static program has no interpreter.
            std::fs::read(path).is_ok_and(|bytes| !bytes.windows(7).take(4096).any(|window| window == b"/ld-lin"))
        });
    found.expect("no static busybox to make an image of: apt-get install busybox-static")
}

fn make(archive: &Path) {
    let dir = tempfile::tempdir_in(archive.parent().expect("an archive is in a directory")).expect("a directory");
    let root = dir.path().join("root");
    for sub in ["bin", "dev", "etc", "home", "mnt", "proc", "root", "run", "sys", "tmp", "usr", "var"] {
        std::fs::create_dir_all(root.join(sub)).expect("make a directory of the image");
    }
    let busybox = program();
    std::fs::copy(&busybox, root.join("bin/busybox")).expect("copy busybox");
    std::fs::write(root.join("etc/passwd"), PASSWD).expect("write the image's users");
    std::fs::write(root.join("etc/group"), "root:x:0:\nnogroup:x:65534:\n").expect("write the image's groups");
    let list = Command::new(&busybox).arg("--list").output().expect("ask busybox for its programs");
    for program in String::from_utf8_lossy(&list.stdout).lines().filter(|program| *program != "busybox") {
        std::os::unix::fs::symlink("busybox", root.join("bin").join(program)).expect("link a program");
    }
    programs::compile(KNOCK, &root.join("bin/knock"));
    Command::new("chmod").arg("1777").arg(root.join("tmp")).status().expect("open the image's /tmp");
    let packed = dir.path().join("packed.tar");
    let mut tar = Command::new("tar");
    tar.args(["--create", "--owner=0", "--group=0", "--numeric-owner", "--file"]).arg(&packed);
    let done = tar.arg("--directory").arg(&root).arg(".").status();
    assert!(done.is_ok_and(|status| status.success()), "the image could not be packed");
    std::fs::rename(packed, archive).expect("put the archive in its place");
}
