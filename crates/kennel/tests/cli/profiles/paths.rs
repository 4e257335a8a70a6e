//! The paths of a profile: resolved once, when it is created, and never followed elsewhere later.

use super::{create, delete, profile, sh};
use crate::support::{Kennel, finish};
use std::os::unix::fs::symlink;

on_providers! {
    relative_paths_are_resolved_at_creation,
    replaced_path_is_refused,
}

fn relative_paths_are_resolved_at_creation(kennel: &Kennel) {
    for dir in ["data", "below", "below/data"] {
        std::fs::create_dir(kennel.here().join(dir)).unwrap();
    }
    std::fs::write(kennel.here().join("data/file"), "here\n").unwrap();
    std::fs::write(kennel.here().join("below/data/file"), "below\n").unwrap();
    create(kennel, "paths", &["--network", "none", "--volume", "./data:/data"]);
    let shown = profile(kennel, &["show", "paths"]).json();
    let here = kennel.here().canonicalize().unwrap();
    assert_eq!(shown["volumes"][0]["host"], here.join("data").to_str().unwrap(), "{shown}");
    assert_eq!(shown["workspace"], here.to_str().unwrap(), "{shown}");
    // It is created by a use from elsewhere in the workspace.
    let mut call = kennel.call(&["profile", "exec", "paths", "--", "cat", "/data/file", "data/file"]);
    call.current_dir(kennel.here().join("below"));
    assert_eq!(finish(call, None).ok(), "here\nbelow");
    delete(kennel, "paths");
}

/// What runs inside can put a symlink in place of a directory of the workspace. The next start does not mount what it leads
/// to.
fn replaced_path_is_refused(kennel: &Kennel) {
    let (data, victim) = (kennel.here().join("data"), kennel.home.path().join("victim"));
    for dir in [&data, &victim] {
        std::fs::create_dir(dir).unwrap();
    }
    std::fs::write(victim.join("secret"), "secret\n").unwrap();
    create(kennel, "swap", &["--network", "none", "--volume", "./data:/data"]);
    let swap = format!("mv /workspace/data /workspace/old && ln -s {} /workspace/data", victim.display());
    sh(kennel, "swap", &swap).ok();
    // Control: a plain process of the host is led there.
    assert_eq!(std::fs::read_to_string(data.join("secret")).unwrap(), "secret\n");
    profile(kennel, &["stop", "swap"]).ok();
    for verb in ["start", "restart"] {
        let stderr = profile(kennel, &[verb, "swap"]).fails(125);
        assert!(stderr.contains(&format!("{} leads to {} now", data.display(), victim.display())), "{verb}: {stderr}");
    }
    let json = profile(kennel, &["exec", "--json", "swap", "--", "cat", "/data/secret"]).json();
    assert_eq!((&json["error"]["code"], &json["stdout"]), (&"permission_denied".into(), &"".into()), "{json}");
    // It is used again when the directory is back. A symlink that existed at the creation is resolved then.
    std::fs::remove_file(&data).unwrap();
    std::fs::rename(kennel.here().join("old"), &data).unwrap();
    assert_eq!(sh(kennel, "swap", "ls /data").ok(), "");
    delete(kennel, "swap");
    symlink(&victim, kennel.here().join("link")).unwrap();
    let volume = format!("{}:/data", kennel.here().join("link").display());
    create(kennel, "named", &["--network", "none", "--volume", &volume]);
    assert_eq!(sh(kennel, "named", "cat /data/secret").ok(), "secret", "the user named it in full");
    delete(kennel, "named");
}
