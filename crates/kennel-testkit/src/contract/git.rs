//! Git repositories in the workspace and other mounts: what git on the host would run cannot be changed from inside.

use crate::Stage;
use crate::inside::{ok, sh};
use kennel_core::{Error, Sandbox};
use kennel_types::{ErrorCode, GitProtection, Mount, SandboxSpec, Support};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// Scripts that must fail on a repository whose hooks are protected, and that work on any other.
const ON_HOOKS: [&str; 13] = [
    "echo x > .git/hooks/post-commit",
    "echo x >> .git/hooks/pre-commit",
    "chmod 700 .git/hooks/pre-commit",
    "chmod 700 .git/hooks",
    "touch -d @1 .git/hooks/pre-commit",
    "rm .git/hooks/pre-commit",
    "ln .git/HEAD .git/hooks/hard",
    "ln .git/hooks/pre-commit hard && echo x >> hard",
    "ln -s /bin/sh .git/hooks/soft",
    "mv .git/hooks .git/other",
    "rm -r .git/hooks",
    "mv .git .x",
    "mv .git .x && ln -s .x .git",
];

/// Scripts that must fail on a repository whose settings are protected, and that work on any other.
const ON_CONFIG: [&str; 5] = [
    "echo x >> .git/config",
    "chmod 600 .git/config",
    "rm .git/config",
    "mv .git/config .git/other",
    "echo x > .git/config.lock && mv .git/config.lock .git/config",
];

/// Creates a repository like `git init`, with a hook.
fn repository(dir: &Path) {
    git_dir(&dir.join(".git"));
}

fn git_dir(git: &Path) {
    let _ = fs::remove_dir_all(git);
    for sub in ["objects", "refs", "hooks"] {
        fs::create_dir_all(git.join(sub)).unwrap();
    }
    fs::write(git.join("HEAD"), "ref: refs/heads/main\n").unwrap();
    fs::write(git.join("config"), "[core]\n").unwrap();
    fs::write(git.join("hooks/pre-commit"), "#!/bin/sh\n").unwrap();
    fs::set_permissions(git.join("hooks/pre-commit"), fs::Permissions::from_mode(0o755)).unwrap();
}

/// Returns all hooks and settings of a repository that git uses, with their attributes.
fn state(git: &Path) -> Vec<(PathBuf, u64, u32, i64, Vec<u8>)> {
    let mut paths = vec![git.to_owned(), git.join("hooks"), git.join("config")];
    paths.extend(fs::read_dir(git.join("hooks")).unwrap().map(|entry| entry.unwrap().path()));
    paths.sort();
    let look = |path: PathBuf| {
        let meta = fs::symlink_metadata(&path).unwrap();
        // Git changes the directory itself all the time.
        let modified = if path == git { 0 } else { meta.mtime() };
        (path.clone(), meta.ino(), meta.mode(), modified, fs::read(&path).unwrap_or_default())
    };
    paths.into_iter().map(look).collect()
}

/// Creates a directory in the stage's home.
fn directory(stage: &Stage, name: &str) -> PathBuf {
    let dir = stage.home().path().join(name);
    fs::create_dir_all(&dir).unwrap();
    dir
}

/// Whether the provider protects repositories. If the workspace is the host's own directory, a request for protection
/// must be refused.
async fn protects(stage: &Stage) -> bool {
    let workspace = Some(stage.home().workspace());
    let spec = SandboxSpec { workspace, protect_git: GitProtection::Config, ..stage.spec() };
    if stage.mode().workspace == Support::Refused || stage.mode().mounts == Support::Refused {
        stage.refuses(&spec).await;
        return false;
    }
    true
}

/// Creates and starts a sandbox with this workspace.
async fn started(stage: &Stage, workspace: &Path, protect_git: GitProtection) -> Sandbox {
    stage.started(&SandboxSpec { workspace: Some(workspace.to_owned()), protect_git, ..stage.spec() }).await
}

/// Returns the error for a refused sandbox. Some providers refuse it when it is created, some when it starts.
async fn refusal(stage: &Stage, spec: &SandboxSpec) -> Error {
    match stage.try_create(spec).await {
        Ok(sandbox) => sandbox.start().await.expect_err("it should have been refused"),
        Err(error) => error,
    }
}

/// Checks that all scripts fail and change nothing in the repository.
async fn fail(sandbox: &Sandbox, git: &Path, scripts: &[&str]) {
    let before = state(git);
    for script in scripts {
        let done = sh(sandbox, script).await;
        assert!(!done.status.success(), "{script} worked");
        assert!(state(git) == before, "{script} changed something");
    }
}

/// The control: checks that all scripts succeed on an unprotected repository. Each gets a new one.
async fn work_unprotected(stage: &Stage, scripts: &[&str]) {
    let dir = directory(stage, "unprotected");
    let sandbox = started(stage, &dir, GitProtection::None).await;
    for script in scripts {
        repository(&dir);
        ok(&sandbox, "rm -rf hard .x").await;
        ok(&sandbox, script).await;
        ok(&sandbox, "if [ -L .git ]; then rm .git; fi").await;
    }
}

/// Hooks cannot be written, linked or renamed inside, nor can their directory. All other git operations work.
pub async fn hooks_cannot_be_changed(stage: &Stage) {
    if !protects(stage).await {
        return;
    }
    let workspace = stage.home().workspace();
    repository(&workspace);
    let sandbox = started(stage, &workspace, GitProtection::Hooks).await;
    fail(&sandbox, &workspace.join(".git"), &ON_HOOKS).await;
    fail(&sandbox, &workspace.join(".git"), &["umount .git/hooks", "umount .git", "mount -o remount,rw .git/hooks"])
        .await;
    assert_eq!(ok(&sandbox, "cat .git/hooks/pre-commit").await, "#!/bin/sh");
    for script in ON_CONFIG {
        ok(&sandbox, script).await;
        fs::write(workspace.join(".git/config"), "[core]\n").unwrap();
    }
    ok(&sandbox, "echo x > .git/index.lock && mv .git/index.lock .git/index && mkdir .git/objects/aa").await;
    assert_eq!(fs::read(workspace.join(".git/index")).unwrap(), b"x\n");
    // Git on the host can still change the hooks.
    fs::write(workspace.join(".git/hooks/by-host"), "").unwrap();
    assert_eq!(ok(&sandbox, "ls .git/hooks").await, "by-host\npre-commit");
    work_unprotected(stage, &ON_HOOKS).await;
}

/// On request, the settings of a repository cannot be changed inside either.
pub async fn git_settings_can_be_protected(stage: &Stage) {
    if !protects(stage).await {
        return;
    }
    let workspace = stage.home().workspace();
    repository(&workspace);
    let sandbox = started(stage, &workspace, GitProtection::Config).await;
    fail(&sandbox, &workspace.join(".git"), &ON_HOOKS).await;
    fail(&sandbox, &workspace.join(".git"), &ON_CONFIG).await;
    ok(&sandbox, "rm .git/config.lock && echo x > .git/index").await;
    work_unprotected(stage, &ON_CONFIG).await;
    if stage.mode().nesting == Support::Given {
        // With nesting, a process inside could see the files without these mounts.
        let spec = SandboxSpec { protect_git: GitProtection::Config, nesting: true, ..stage.spec() };
        assert_eq!(refusal(stage, &spec).await.code(), ErrorCode::InvalidConfig);
    }
}

/// A symlink that an earlier sandbox put in place of a part of the repository is refused.
pub async fn symlinks_in_a_repository_are_refused(stage: &Stage) {
    if !protects(stage).await {
        return;
    }
    let (workspace, elsewhere) = (stage.home().workspace(), directory(stage, "elsewhere"));
    repository(&elsewhere);
    let before = state(&elsewhere.join(".git"));
    let spec = SandboxSpec { workspace: Some(workspace.clone()), ..stage.spec() };
    let off = SandboxSpec { protect_git: GitProtection::None, ..spec.clone() };
    symlink(elsewhere.join(".git"), workspace.join(".git")).unwrap();
    let error = refusal(stage, &spec).await;
    assert_eq!(error.code(), ErrorCode::InvalidConfig, "{error}");
    assert!(error.to_string().contains(".git: it is a symlink"), "{error}");
    let sandbox = stage.started(&off).await;
    assert!(!sh(&sandbox, "ls .git/hooks").await.status.success(), "it leads nowhere inside");
    fs::remove_file(workspace.join(".git")).unwrap();
    repository(&workspace);
    fs::remove_dir_all(workspace.join(".git/hooks")).unwrap();
    symlink(elsewhere.join(".git/hooks"), workspace.join(".git/hooks")).unwrap();
    let error = refusal(stage, &spec).await;
    assert!(error.to_string().contains("hooks: it is a symlink"), "{error}");
    fs::remove_file(workspace.join(".git/hooks")).unwrap();
    fs::write(workspace.join(".git/commondir"), elsewhere.join(".git").to_str().unwrap()).unwrap();
    let error = refusal(stage, &spec).await;
    assert!(
        error.to_string().contains("commondir: git would read hooks and settings from another directory"),
        "{error}"
    );
    assert!(state(&elsewhere.join(".git")) == before);
}

/// A repository without a hooks directory gets an empty, protected one. A repository that is created inside is
/// protected from the next start on.
pub async fn missing_hooks_directory_cannot_be_created(stage: &Stage) {
    if !protects(stage).await {
        return;
    }
    let workspace = stage.home().workspace();
    let sandbox = started(stage, &workspace, GitProtection::Hooks).await;
    ok(&sandbox, "mkdir -p .git/objects .git/refs && echo x > .git/HEAD && echo x > .git/config").await;
    let sandbox = started(stage, &workspace, GitProtection::Hooks).await;
    let (hooks, git) = (workspace.join(".git/hooks"), fs::metadata(workspace.join(".git")).unwrap());
    let made = fs::metadata(&hooks).unwrap();
    assert_eq!((made.uid(), made.gid()), (git.uid(), git.gid()));
    fail(&sandbox, &workspace.join(".git"), &["echo x > .git/hooks/pre-commit", "rmdir .git/hooks", "mv .git .x"])
        .await;
    let plain = directory(stage, "unprotected");
    fs::create_dir_all(plain.join(".git/hooks")).unwrap();
    ok(&started(stage, &plain, GitProtection::None).await, "rmdir .git/hooks").await;
}

/// A work tree whose `.git` is a file cannot be pointed to another git directory.
pub async fn git_file_cannot_be_redirected(stage: &Stage) {
    const ACTS: [&str; 4] = ["echo x > .git", "chmod 600 .git", "mv .git .x", "rm .git"];
    if !protects(stage).await {
        return;
    }
    let workspace = stage.home().workspace();
    fs::write(workspace.join(".git"), "gitdir: /elsewhere\n").unwrap();
    let sandbox = started(stage, &workspace, GitProtection::Hooks).await;
    for script in ACTS {
        assert!(!sh(&sandbox, script).await.status.success(), "{script}");
    }
    assert_eq!(ok(&sandbox, "cat .git").await, "gitdir: /elsewhere");
    assert_eq!(fs::read(workspace.join(".git")).unwrap(), b"gitdir: /elsewhere\n");
    let plain = directory(stage, "unprotected");
    let sandbox = started(stage, &plain, GitProtection::None).await;
    for script in ACTS {
        fs::write(plain.join(".git"), "gitdir: /elsewhere\n").unwrap();
        ok(&sandbox, script).await;
    }
}

/// A workspace that is a subdirectory of a repository does not show the rest of it.
pub async fn repository_subdirectory_is_a_workspace(stage: &Stage) {
    if !protects(stage).await {
        return;
    }
    let (whole, part) = (directory(stage, "whole"), directory(stage, "whole/part"));
    repository(&whole);
    let before = state(&whole.join(".git"));
    let sandbox = started(stage, &part, GitProtection::Config).await;
    for script in ["cat ../.git/config", "cat .git/config"] {
        assert!(!sh(&sandbox, script).await.status.success(), "{script}");
    }
    ok(&sandbox, "mkdir .git && echo x > .git/config").await;
    assert!(state(&whole.join(".git")) == before);
}

/// Repositories in every writable mount are protected, also bare ones. A requested mount within a repository is not
/// changed.
pub async fn repositories_in_other_mounts_are_protected(stage: &Stage) {
    if !protects(stage).await {
        return;
    }
    let (project, bare, hooks) = (directory(stage, "project"), directory(stage, "bare"), directory(stage, "hooks"));
    let read = directory(stage, "read");
    repository(&project);
    git_dir(&bare);
    repository(&read);
    repository(&stage.home().workspace());
    let mount =
        |host: &Path, target: &str, read_only| Mount { host: host.to_owned(), target: target.into(), read_only };
    let mounts = vec![
        mount(&project, "/project", false),
        mount(&bare, "/bare", false),
        mount(&read, "/read", true),
        mount(&hooks, "/workspace/.git/hooks", false),
    ];
    let sandbox = stage.started(&SandboxSpec { mounts, ..stage.spec() }).await;
    let in_project: Vec<String> = ON_HOOKS.iter().map(|script| format!("cd /project && {script}")).collect();
    fail(&sandbox, &project.join(".git"), &in_project.iter().map(String::as_str).collect::<Vec<_>>()).await;
    fail(&sandbox, &bare, &["echo x > /bare/hooks/update", "mv /bare/hooks /bare/other", "rm -r /bare/hooks"]).await;
    fail(&sandbox, &read.join(".git"), &["echo x > /read/.git/hooks/update", "mv /read/.git /read/x"]).await;
    ok(&sandbox, "echo x > /bare/config && echo x > /project/.git/config").await;
    ok(&sandbox, "echo x > .git/hooks/update").await;
    assert_eq!(fs::read(hooks.join("update")).unwrap(), b"x\n");
    assert!(!sh(&sandbox, "mv .git .x").await.status.success());
    assert!(!stage.home().workspace().join(".git/hooks/update").exists());
}
