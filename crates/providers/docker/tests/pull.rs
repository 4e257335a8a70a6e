//! Images from a real registry, with and without a login: on Docker and on Podman.

mod engines;

use engines::{EngineKind, Fixture, alone, on_every_engine};
use kennel_core::{ImageBuild, Provider, PullProgress};
use kennel_docker::Docker;
use kennel_image::Credentials;
use kennel_testkit::registry::Registry;
use kennel_testkit::{docker, inside};
use kennel_types::{ErrorCode, NextStep, Pull, SandboxSpec};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

on_every_engine!(an_image_is_pulled_as_the_policy_says, a_private_registry_gets_the_login);

/// Pushes an image with new layers to a registry, because other layers may exist on the engine already.
fn pushed(fixture: &Fixture, registry: &Registry) -> String {
    let content = fixture.home.path().join("content");
    std::fs::create_dir_all(content.join("bin")).unwrap();
    std::fs::copy("/bin/busybox", content.join("bin/sh")).unwrap();
    std::fs::write(content.join("mark"), fixture.mark()).unwrap();
    let archive = fixture.home.path().join("image.tar");
    let packed = Command::new("tar").arg("cf").arg(&archive).arg("-C").arg(&content).arg(".").status();
    assert!(packed.unwrap().success());
    // Docker allows plain HTTP for a registry on loopback.
    let (by, local) = (docker::socket(), format!("kennel-test/pushed-{}", fixture.mark()));
    docker::docker(&by, &["import", archive.to_str().unwrap(), &local]);
    let image = registry.push(&by, &local, "kennel-test/pulled");
    docker::docker(&by, &["rmi", &local]);
    image
}

/// Pulls, and returns the reported progress.
async fn pull(provider: &Docker, image: &str, when: Pull) -> kennel_core::Result<Vec<PullProgress>> {
    let told = Mutex::new(Vec::new());
    provider.pull(image, when, &|progress| told.lock().unwrap().push(progress)).await?;
    Ok(told.into_inner().unwrap())
}

/// Podman reports progress only for downloads that take longer.
fn each_layer_is_told(fixture: &Fixture, told: &[PullProgress]) {
    assert!(told.iter().any(|progress| progress.doing == "Download complete"), "{told:?}");
    let counted = told.iter().any(|progress| progress.bytes.is_some_and(|(_, all)| all > 0));
    assert!(counted || fixture.kind == EngineKind::Podman, "{told:?}");
}

async fn an_image_is_pulled_as_the_policy_says(fixture: &Fixture) {
    let registry = Registry::start();
    let image = pushed(fixture, &registry);
    let provider = &fixture.provider;
    let spec = SandboxSpec { image: Some(image.clone()), ..fixture.spec() };
    pull(provider, &image, Pull::Never).await.unwrap();
    assert_eq!(
        provider.create(&kennel_core::new_id().unwrap(), &spec).await.unwrap_err().code(),
        ErrorCode::ImageNotFound
    );
    let told = pull(provider, &image, Pull::Missing).await.unwrap();
    each_layer_is_told(fixture, &told);
    let sandbox = fixture.started(&spec).await;
    assert_eq!(inside::ok(&sandbox, "read mark < /mark; echo $mark").await, fixture.mark());
    assert_eq!(pull(provider, &image, Pull::Missing).await.unwrap(), []);
    assert_ne!(pull(provider, &image, Pull::Always).await.unwrap(), []);
    for missing in [registry.name("kennel-test/none"), registry.name("kennel-test/pulled:none")] {
        let error = pull(provider, &missing, Pull::Missing).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::ImageNotFound, "{missing}: {error}");
    }
    drop(registry);
    let error = pull(provider, &image, Pull::Always).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::ImageNotFound, "{error}");
    assert!(error.to_string().contains("connection refused"), "{error}");
    fixture.clean(false).await;
    fixture.ask(&["rmi", &image]);
}

async fn a_private_registry_gets_the_login(fixture: &Fixture) {
    let registry = Registry::start_private();
    let image = pushed(fixture, &registry);
    let with = |files: Vec<PathBuf>| {
        let programs = vec![fixture.home.path().to_owned()];
        fixture.open(&fixture.socket, Credentials { files, programs })
    };
    let written = |name: &str, text: &str| {
        let file = fixture.home.path().join(name);
        std::fs::write(&file, text).unwrap();
        file
    };
    let address = registry.address();
    // ann:wrong
    let wrong = written("wrong.json", &format!(r#"{{"auths": {{"{address}": {{"auth": "YW5uOndyb25n"}}}}}}"#));
    for logins in [Vec::new(), vec![wrong]] {
        let error = pull(&with(logins), &image, Pull::Missing).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::PermissionDenied, "{error}");
        let step = error.next_step();
        assert!(
            matches!(step, Some(NextStep::LogIn { registry: Some(registry), .. }) if *registry == address),
            "{error:?}"
        );
        assert!(!error.to_string().contains("wrong"), "{error}");
    }
    let told = pull(&with(vec![registry.logins()]), &image, Pull::Missing).await.unwrap();
    each_layer_is_told(fixture, &told);
    fixture.ask(&["rmi", &image]);
    // Also for a build that is based on the image.
    let context = fixture.home.path().join("built");
    std::fs::create_dir(&context).unwrap();
    std::fs::write(context.join("Dockerfile"), "ARG BASE\nFROM $BASE\nENV BUILT=yes\n").unwrap();
    let args = [("BASE".to_owned(), image.clone())].into();
    let build = ImageBuild { context, tag: fixture.own_image(), args, ..alone() };
    with(Vec::new()).build_image(&build, &|_| {}).await.unwrap_err();
    with(vec![registry.logins()]).build_image(&build, &|_| {}).await.unwrap();
    fixture.ask(&["rmi", &fixture.own_image()]);
    let _ = Command::new("docker")
        .args(["--host", &format!("unix://{}", fixture.socket.display()), "rmi", &image])
        .output();
    // By a credential helper, for this registry or for all.
    helper(fixture.home.path());
    for said in [format!(r#"{{"credHelpers": {{"{address}": "test"}}}}"#), r#"{"credsStore": "test"}"#.to_owned()] {
        pull(&with(vec![written("helped.json", &said)]), &image, Pull::Missing).await.unwrap();
        fixture.ask(&["rmi", &image]);
    }
    let missing = written("missing.json", r#"{"credsStore": "nowhere"}"#);
    let error = pull(&with(vec![missing]), &image, Pull::Missing).await.unwrap_err();
    assert!(error.to_string().contains("docker-credential-nowhere is not installed"), "{error}");
    fixture.clean(false).await;
}

/// Creates a credential helper with one secret.
fn helper(dir: &Path) {
    let program = dir.join("docker-credential-test");
    std::fs::write(&program, "#!/bin/sh\nread server; echo '{\"Username\": \"ann\", \"Secret\": \"secret\"}'\n")
        .unwrap();
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
}
