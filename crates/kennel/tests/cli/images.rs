//! Kennel's own image store, from a user's point of view.

use crate::support::{Kennel, finish};
use kennel_testkit::registry::{LOGIN, Registry};
use kennel_testkit::{docker, within_blocking};
use std::path::PathBuf;
use std::time::Duration;

/// Lists the files of the store, without the contents of layers.
fn store(kennel: &Kennel) -> Vec<String> {
    let root = kennel.home.path().join("data/images");
    let parts = ["names", "layers", "blobs", "tmp"].map(|part| (part, root.join(part)));
    let list = |(part, dir): (&str, PathBuf)| {
        let found = std::fs::read_dir(dir).into_iter().flatten();
        found.map(|entry| format!("{part}/{}", entry.unwrap().file_name().display())).collect::<Vec<_>>()
    };
    parts.into_iter().flat_map(list).collect()
}

#[test]
fn an_image_is_pulled_shown_and_removed() {
    let kennel = Kennel::among_others("local");
    let socket = docker::socket();
    let image = docker::image_on(&socket);
    let registry = Registry::start();
    let name = registry.push(&socket, &image, "team/busybox:1");
    assert_eq!(kennel.kennel(&["image", "ls", "-q"]).ok(), "");
    assert_eq!(kennel.kennel(&["image", "pull", &name]).ok(), name);
    let pulled = kennel.kennel(&["image", "pull", "--json", &name]).json();
    assert_eq!(pulled["reference"], name.as_str());
    assert_eq!(pulled["config"]["cmd"][0], "sh");
    let layer = PathBuf::from(pulled["layers"][0].as_str().unwrap());
    assert!(layer.join("bin/busybox").is_file());
    let shown = kennel.kennel(&["image", "ls"]).ok();
    let id = &pulled["id"].as_str().unwrap()["sha256:".len()..][..12];
    assert!(
        shown.starts_with("NAME") && shown.contains(&name) && shown.contains(id) && shown.contains(" MiB"),
        "{shown}"
    );
    let columns = kennel.kennel(&["image", "ls", "--format", "name,size"]).ok();
    assert_eq!(columns, format!("{name}\t{}", pulled["size"]));
    assert_eq!(kennel.kennel(&["image", "ls", "-q"]).ok(), id);
    assert_eq!(kennel.kennel(&["image", "ls", "--json"]).json()[0], pulled);
    assert_eq!(kennel.kennel(&["image", "rm", id]).ok(), name);
    assert_eq!(store(&kennel), Vec::<String>::new());
    let gone = kennel.kennel(&["image", "pull", "--json", &registry.name("nothing")]);
    assert_eq!((gone.status, gone.json()["error"]["code"].as_str()), (125, Some("image_not_found")));
}

#[test]
fn a_saved_image_comes_through_a_pipe() {
    let kennel = Kennel::among_others("local");
    let socket = docker::socket();
    let image = docker::image_on(&socket);
    let archive = kennel.here().join("saved.tar");
    docker::docker(&socket, &["save", "--output", archive.to_str().unwrap(), &image]);
    let bytes = std::fs::read(&archive).unwrap();
    let full = format!("docker.io/{image}");
    assert_eq!(kennel.kennel_with(&["image", "load", "-"], &bytes).ok(), full);
    assert_eq!(kennel.kennel(&["image", "load", "--name", "mine", "saved.tar"]).ok(), "docker.io/library/mine:latest");
    let removed = kennel.kennel(&["image", "rm", "--json", "mine"]).json();
    assert_eq!(
        (removed["layers"].as_u64(), removed["freed"].as_u64()),
        (Some(0), Some(0)),
        "the other image still has them"
    );
    let pruned = kennel.kennel(&["image", "prune"]).ok();
    assert_eq!(pruned, "freed 0 B");
    let pruned = kennel.kennel(&["image", "prune", "--all"]).ok();
    assert!(pruned.starts_with(&format!("{full}\nfreed ")) && pruned.ends_with(" MiB"), "{pruned}");
    assert_eq!(store(&kennel), Vec::<String>::new());
}

#[test]
fn layers_of_a_sandbox_are_kept() {
    let kennel = Kennel::among_others("local");
    std::fs::create_dir_all(kennel.here().join("rootfs")).unwrap();
    std::fs::write(kennel.here().join("rootfs/file"), "x").unwrap();
    kennel.kennel(&["image", "load", "--name", "mine", "rootfs"]).ok();
    // As the native provider does.
    let images = kennel_image::Store::open(kennel.home.path().join("data/images")).unwrap();
    let sandbox = kennel.home.path().join("state/native/abc");
    std::fs::create_dir_all(&sandbox).unwrap();
    images.hold(&"mine".parse().unwrap()).unwrap().unwrap().note(&sandbox).unwrap();
    assert_eq!(kennel.kennel(&["image", "prune", "--all"]).ok(), "freed 0 B");
    let removed = kennel.kennel(&["image", "rm", "mine"]);
    assert!(removed.stderr.contains("sandboxes use 1 of the layers"), "{removed:?}");
    assert_eq!(store(&kennel).len(), 1);
    std::fs::remove_dir_all(&sandbox).unwrap();
    assert_eq!(kennel.kennel(&["image", "prune"]).ok(), "freed 1 B");
    assert_eq!(store(&kennel), Vec::<String>::new());
}

#[test]
fn logins_of_docker_and_podman_are_used() {
    let kennel = Kennel::among_others("local");
    let socket = docker::socket();
    let registry = Registry::start_private();
    let address = registry.address();
    let (user, password) = LOGIN;
    // The engine's login, in its own file.
    let theirs = kennel.home.path().join("docker-login");
    let name = registry.name("app");
    let engine = |arguments: &[&str]| {
        let mut call = std::process::Command::new("docker");
        call.arg("--config").arg(&theirs).arg("--host").arg(format!("unix://{}", socket.display())).args(arguments);
        finish(call, None).ok()
    };
    engine(&["login", "--username", user, "--password", password, &address]);
    engine(&["tag", &docker::image_on(&socket), &name]);
    engine(&["push", "--quiet", &name]);
    engine(&["rmi", &name]);
    let denied = kennel.kennel(&["image", "pull", &name]).fails(125);
    assert!(denied.contains("denies access") && denied.contains("docker login"), "{denied}");
    let mut call = kennel.call(&["image", "pull", &name]);
    call.env("DOCKER_CONFIG", &theirs);
    finish(call, None).ok();
    kennel.kennel(&["image", "rm", &name]).ok();
    let mut call = kennel.call(&["image", "pull", &name]);
    call.env("REGISTRY_AUTH_FILE", theirs.join("config.json"));
    finish(call, None).ok();
}

#[test]
fn a_project_cannot_set_mirrors_without_trust() {
    let kennel = Kennel::among_others("local");
    let registry = Registry::start();
    let socket = docker::socket();
    registry.push(&socket, &docker::image_on(&socket), "library/app");
    let text = format!("[images.mirrors]\n\"docker.io\" = [\"http://{}\"]\n", registry.address());
    std::fs::write(kennel.here().join("kennel.toml"), &text).unwrap();
    let denied = kennel.kennel(&["image", "pull", "app"]).fails(125);
    assert!(denied.contains("where your images come from") && denied.contains("kennel config trust"), "{denied}");
    std::fs::remove_file(kennel.here().join("kennel.toml")).unwrap();
    std::fs::create_dir_all(kennel.home.path().join("config")).unwrap();
    std::fs::write(kennel.home.path().join("config/config.toml"), &text).unwrap();
    assert_eq!(kennel.kennel(&["image", "pull", "app"]).ok(), "docker.io/library/app:latest");
    // The size of an image is limited by the settings.
    let mut call = kennel.call(&["image", "pull", "--json", &registry.name("library/app")]);
    call.env("KENNEL_IMAGES_MAX_SIZE", "1k");
    let large = finish(call, None);
    assert_eq!(large.json()["error"]["code"], "limit_exceeded", "{large:?}");
}

/// The image settings apply to native sandboxes too, wherever the image is named.
#[test]
fn pull_settings_apply_to_sandboxes() {
    let kennel = Kennel::among_others("native");
    let socket = docker::socket();
    let registry = Registry::start_private();
    registry.push(&socket, &docker::image_on(&socket), "library/app");
    let config = kennel.home.path().join("config");
    std::fs::create_dir_all(&config).unwrap();
    let logins = registry.logins();
    let login = [("REGISTRY_AUTH_FILE", logins.to_str().unwrap())];
    // In the settings, and on the command line.
    for typed in [false, true] {
        let run = |image: &str, images: &str, env: &[(&str, &str)]| {
            let set = if typed { String::new() } else { format!("[sandbox]\nimage = \"{image}\"\n") };
            std::fs::write(config.join("config.toml"), format!("{set}{images}")).unwrap();
            let words = if typed { &["--image", image][..] } else { &[] };
            let mut call = kennel.call(&[&["run", "--json", "--network", "none"], words, &["-c", "echo hi"]].concat());
            // There is no other way to a registry.
            call.env("HTTPS_PROXY", "http://127.0.0.1:9").envs(env.iter().copied());
            finish(call, None)
        };
        let mirrors = format!("[images.mirrors]\n\"docker.io\" = [\"http://{}\"]\n", registry.address());
        let denied = run("app", &mirrors, &[]);
        assert_ne!(denied.status, 0, "{typed}: {denied:?}");
        let large = run(&registry.name("library/app"), "[images]\nmaxSize = \"1k\"\n", &login);
        assert_eq!(large.json()["error"]["code"], "limit_exceeded", "{typed}: {}", large.text());
        let done = run("app", &mirrors, &login);
        assert_eq!((done.status, &done.json()["stdout"]), (0, &"hi\n".into()), "{typed}: {}", done.text());
        kennel.kennel(&["image", "rm", "app"]).ok();
    }
}

#[test]
fn an_interrupted_pull_keeps_its_download() {
    use std::io::{Read, Write};
    let kennel = Kennel::among_others("local");
    // A registry that sends half of a layer and then nothing.
    let layer = vec![7; 100_000];
    let digest = kennel_image::Digest::compute(&layer);
    let config = format!(
        r#"{{"architecture":"{}","os":"linux","rootfs":{{"type":"layers","diff_ids":["{digest}"]}}}}"#,
        if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" }
    );
    let config_digest = kennel_image::Digest::compute(config.as_bytes());
    let manifest = format!(
        r#"{{"schemaVersion":2,"config":{{"mediaType":"a","digest":"{config_digest}","size":{}}},"layers":[{{"mediaType":"b","digest":"{digest}","size":{}}}]}}"#,
        config.len(),
        layer.len()
    );
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let mut open = Vec::new();
        for client in listener.incoming() {
            let mut client = client.unwrap();
            let mut head = Vec::new();
            let mut byte = [0];
            while !head.ends_with(b"\r\n\r\n") && client.read(&mut byte).is_ok_and(|count| count == 1) {
                head.push(byte[0]);
            }
            let head = String::from_utf8_lossy(&head).into_owned();
            let (body, sent): (&[u8], usize) = if head.contains("/manifests/") {
                (manifest.as_bytes(), manifest.len())
            } else if head.contains(&config_digest.to_string()) {
                (config.as_bytes(), config.len())
            } else if head.contains("/blobs/") {
                (&layer, 50_000)
            } else {
                (b"", 0)
            };
            let _ = write!(client, "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
            let _ = client.write_all(&body[..sent]);
            if sent < body.len() {
                open.push(client);
            }
        }
    });
    let mut child = kennel.call(&["image", "pull", &format!("127.0.0.1:{port}/app")]).spawn().unwrap();
    let half = kennel.home.path().join("data/images/blobs").join(digest.hex());
    let size = || std::fs::metadata(&half).map_or(0, |meta| meta.len());
    assert!(within_blocking(Duration::from_secs(90), || size() == 50_000), "{}", size());
    crate::support::signal(&child, rustix::process::Signal::INT);
    assert_eq!(crate::support::wait(&mut child, "the pull"), 130);
    assert_eq!(size(), 50_000, "the next pull continues there");
    let pruned = kennel.kennel(&["image", "prune", "--json"]).json();
    assert_eq!((pruned["downloads"].as_u64(), pruned["freed"].as_u64()), (Some(1), Some(50_000)));
    assert_eq!(store(&kennel), Vec::<String>::new());
}
