//! Programs in a home directory can be read and run inside. The rest of the home directory is not visible.

use kennel_core::{Provider, RemoveOptions, Sandbox};
use kennel_native::Native;
use kennel_testkit::{Home, NOBODYS_IDS, Net, become_ordinary_user};
use kennel_types::{Cache, ExecSpec, NetworkMode, SandboxSpec, Toolchains};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

/// A home directory with a tool, and with secrets.
fn furnish(person: &Path) {
    for (file, text) in [
        (".cargo/bin/hello", "#!/bin/sh\necho hello from $0\n"),
        (".cargo/credentials.toml", "secret"),
        (".ssh/id_ed25519", "secret"),
        (".nvm/versions/node/v22/bin/node", "#!/bin/sh\necho v22\n"),
        (".nvm/versions/node/v22/etc/npmrc", "secret"),
        ("tools/mine", "#!/bin/sh\necho mine\n"),
    ] {
        let path = person.join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
}

async fn shows_programs_and_no_secrets(home: &Home) {
    // Not in Kennel's own directories.
    let elsewhere = Home::new();
    let person = elsewhere.path().join("person");
    furnish(&person);
    let native: Arc<dyn Provider> = Arc::new(Native::new(home.state(), home.path().join("programs")));
    let toolchains = Toolchains {
        home: person.clone(),
        more: vec!["tools".into()],
        search: vec![person.join(".nvm/versions/node/v22/bin")],
    };
    let cache = Cache::new("registry", format!("{}/.cargo/registry", person.display()));
    let network = Some(NetworkMode::None);
    let spec = SandboxSpec { toolchains: Some(toolchains), caches: vec![cache], network, ..SandboxSpec::default() };
    let sandbox = Sandbox::create(native.clone(), &spec).await.unwrap();
    sandbox.start().await.unwrap();
    let sh = async |script: &str| {
        let output = sandbox.run(&ExecSpec::shell(script), None, 1 << 16).await.unwrap();
        format!("{}{}", output.stdout_text(), output.stderr_text()).replace(&*person.to_string_lossy(), "~")
    };
    assert_eq!(sh("hello; node; mine").await, "hello from ~/.cargo/bin/hello\nv22\nmine\n");
    let at = person.display();
    assert_eq!(sh(&format!("cd {at}; find . -name '*secret*' -o -name id_ed25519 -o -name 'credentials*'")).await, "");
    assert_eq!(sh(&format!("cat {at}/.nvm/versions/node/v22/etc/npmrc")).await, "", "it is there, and empty");
    assert_eq!(sh(&format!("grep -r secret {at} || echo none")).await, "none\n");
    // Files that a tool writes next to its programs stay in the sandbox or in a volume.
    assert!(sh(&format!("echo x > {at}/.cargo/bin/hello")).await.contains("Read-only"));
    assert_eq!(
        sh(&format!("echo x > {at}/.cargo/config && echo y > {at}/.cargo/registry/index && echo ok")).await,
        "ok\n"
    );
    assert!(!person.join(".cargo/config").exists() && !person.join(".cargo/registry").exists());
    sandbox.remove(RemoveOptions { volumes: true, force: true }).await.unwrap();
    // Shared files are there for the next sandbox.
    let sandbox = Sandbox::create(native, &spec).await.unwrap();
    sandbox.start().await.unwrap();
    let output = sandbox.run(&ExecSpec::shell(format!("cat {at}/.cargo/registry/index")), None, 100).await.unwrap();
    assert_eq!(output.stdout_text(), "y\n", "{}", output.stderr_text());
    sandbox.remove(RemoveOptions { volumes: true, force: true }).await.unwrap();
}

#[tokio::test]
async fn toolchains_of_the_home_directory_run_inside() {
    let _net = Net::alone();
    shows_programs_and_no_secrets(&Home::new()).await;
}

#[tokio::test]
async fn toolchains_of_an_ordinary_users_home_directory_run_inside() {
    let _net = Net::alone();
    become_ordinary_user(NOBODYS_IDS);
    shows_programs_and_no_secrets(&Home::new()).await;
}
