//! Tests of the text for every next step, and that the library contains no such text.

use super::*;
use clap::CommandFactory;
use kennel_types::{Feature, ProviderKind};
use std::path::{Path, PathBuf};

#[test]
fn every_next_step_has_a_text() {
    let name = || "box".to_owned();
    let leave_out = |field| NextStep::LeaveOut { field };
    let steps = [
        (NextStep::ListSandboxes, "kennel ls --all"),
        (NextStep::StartSandbox { name: name() }, "kennel start box"),
        (NextStep::ResumeSandbox { name: name() }, "kennel unpause box"),
        (NextStep::StopOrRemoveSandbox { name: name() }, "kennel stop box, or kennel rm --force box"),
        (NextStep::RemoveSandbox { name: name(), force: false, volumes: false }, "kennel rm box"),
        (NextStep::RemoveSandbox { name: name(), force: true, volumes: true }, "kennel rm --force --volumes box"),
        (NextStep::InspectSandbox { name: name() }, "kennel inspect box"),
        (NextStep::ReadLogs { name: name() }, "kennel logs box"),
        (NextStep::AttachAgain { name: name() }, "kennel attach box"),
        (NextStep::ListVolumes, "kennel volume ls"),
        (NextStep::ListPools, "kennel pool ls"),
        (NextStep::FillPool, "kennel pool ls shows which members `kennel serve` keeps ready; or use --pool prefer"),
        (NextStep::CreateLastingSandbox, "use kennel create --start for a sandbox that stays"),
        (NextStep::CollectGarbage, "kennel gc, or kennel rm a sandbox"),
        (NextStep::set(Field::Name), "give the sandbox a --name"),
        (NextStep::set_to(Field::Userns, ["auto", "keep-id", "host"]), "use --userns auto, keep-id or host"),
        (NextStep::set_to(Field::Network, ["host"]), "use --network host"),
        (NextStep::ChooseAnother { field: Field::Name }, "choose another --name"),
        (leave_out(Field::Userns), "leave out --userns"),
        (leave_out(Field::Workspace), "leave it out with --no-workspace"),
        (
            NextStep::LeaveOutOneOf { fields: vec![Field::ProtectGit, Field::Nesting] },
            "leave out --protect-git or --nesting",
        ),
        (
            NextStep::CopyInstead { field: Field::Workspace },
            "leave it out with --no-workspace, and copy what is needed: kennel cp",
        ),
        (NextStep::CopyInstead { field: Field::Mounts }, "copy what is needed: kennel cp"),
        (NextStep::LeaveGitUnprotected, "leave the repository unprotected with --protect-git=false"),
        (NextStep::MountReadOnly, "mount it read-only with -v HOST:TARGET:ro"),
        (
            NextStep::PublishAtFreePort { port: Some("80/tcp".parse().unwrap()) },
            "leave the choice to Kennel: --publish 80/tcp",
        ),
        (NextStep::PublishAtFreePort { port: None }, "publish at another port, or name none outside: --publish INSIDE"),
        (NextStep::use_provider([ProviderKind::Docker, ProviderKind::Podman]), "use --provider docker or podman"),
        (NextStep::SetUpProvider { provider: ProviderKind::Docker }, "kennel setup docker"),
        (NextStep::ListAgents, "kennel agent ls"),
        (NextStep::ListProfiles, "kennel profile list"),
        (NextStep::StartProfile { name: name() }, "kennel profile start box"),
        (NextStep::EditProfile { name: name() }, "kennel profile edit box"),
        (NextStep::RestartProfile { name: name(), pull: false }, "kennel profile restart box"),
        (NextStep::RestartProfile { name: name(), pull: true }, "kennel profile restart --pull box"),
        (NextStep::RemoveFromSettings { file: "/p/kennel.toml".into() }, "remove it from /p/kennel.toml"),
        (NextStep::ChangeDirectory { path: "/p".into() }, "cd /p"),
        (NextStep::TrustProject, "read it, then: kennel config trust"),
        (NextStep::ShowSettings { key: None }, "kennel config show"),
        (NextStep::ShowSettings { key: Some("sandbox.image".into()) }, "kennel config show sandbox.image"),
        (NextStep::LookUpSettings, "kennel config schema"),
        (
            NextStep::ChooseWorkspace,
            "cd to a directory of your own, or use --no-workspace, or --workspace / if you mean it",
        ),
        (NextStep::ExplainFeature { feature: Feature::ReadOnly }, "kennel explain read_only"),
        (NextStep::UsePath { path: "/etc".into() }, "name /etc"),
        (NextStep::ListImages { ids: true }, "give more digits: kennel image ls --format id,name"),
        (NextStep::ListImages { ids: false }, "kennel image ls"),
        (NextStep::PullImage { image: "a:1".into() }, "kennel image pull a:1"),
        (NextStep::LoadImage, "kennel image load FILE"),
        (NextStep::NameLoadedImage { file: None }, "give it one: kennel image load --name NAME FILE"),
        (
            NextStep::NameLoadedImage { file: Some("/x.tar".into()) },
            "give it one: kennel image load --name NAME /x.tar",
        ),
        (NextStep::LoadUnderOwnNames, "load them under their own names, without --name"),
        (NextStep::BuildImage { image: "a:1".into() }, "build it: kennel build --tag a:1 DIR"),
        (NextStep::LogIn { program: "docker".into(), registry: None }, "log in: docker login"),
        (NextStep::LogIn { program: "podman".into(), registry: Some("r.io".into()) }, "log in: podman login r.io"),
        (NextStep::AllowLargerImages, "allow more, if you trust it: kennel config set --user images.maxSize 200g"),
        (
            NextStep::AllowInsecureRegistry { registry: "r:5000".into() },
            "if you trust the network: kennel config set --user images.insecure '[\"r:5000\"]'",
        ),
        (NextStep::FreeDiskSpace, "free some disk space, then try again: kennel image prune --all"),
        (
            NextStep::AllowLongerStart { seconds: 30 },
            "kennel config set sandbox.startupTimeout 30s; it applies to new sandboxes",
        ),
        (NextStep::UseOwnDirectory, "run Kennel as that user, or set KENNEL_HOME to a directory of your own"),
        (NextStep::CopyDirectory { from: "src".into(), to: "box:/x".into() }, "kennel cp src box:/x"),
        (NextStep::CopyFromStream, "pass it on standard input: kennel cp - ID:PATH < FILE"),
        (NextStep::ArchiveToFile, "name a file for the archive, or copy without --archive"),
        (
            NextStep::Decompress { program: "gzip".into(), file: None, target: "box:/x".into() },
            "gzip -dc FILE | kennel cp --archive - box:/x",
        ),
        (NextStep::ArchiveWithoutSparse, "make the archive without --sparse"),
        (NextStep::check_machine(), "kennel doctor"),
        (NextStep::CheckMachine { purpose: Some("get ids".into()) }, "get ids: kennel doctor"),
        (
            NextStep::InstallPackage { package: "nftables".into() },
            "install the package nftables; kennel doctor --fix gets it",
        ),
        (NextStep::InstallPackage { package: "iptables".into() }, "install the package iptables"),
        (NextStep::run_on_host("docker ps"), "docker ps"),
        (NextStep::run_on_host_to("check the name", "docker images"), "check the name: docker images"),
        (NextStep::EngineSays { engine: "Docker".into(), text: "no cgroups".into() }, "Docker says: no cgroups"),
        (NextStep::advice("wait"), "wait"),
        (NextStep::Text { text: "kennel explain".into() }, "kennel explain"),
        (
            NextStep::either([NextStep::set_to(Field::Network, ["bridge"]), leave_out(Field::Ports)]),
            "use --network bridge, or leave out --publish",
        ),
        (
            NextStep::either([NextStep::run_on_host_to("see who has it", "ss"), NextStep::advice("wait")]),
            "see who has it: ss; or wait",
        ),
        (NextStep::either([NextStep::advice("wait")]), "wait"),
    ];
    for (step, expected) in steps {
        assert_eq!(words(&step), expected);
    }
}

#[test]
fn every_named_flag_exists() {
    fn flags(command: &clap::Command, all: &mut Vec<String>) {
        all.extend(command.get_arguments().filter_map(|argument| argument.get_long()).map(|flag| format!("--{flag}")));
        command.get_subcommands().for_each(|command| flags(command, all));
    }
    let mut known = vec!["--".to_owned()];
    flags(&crate::cli::Cli::command(), &mut known);
    let fields = [
        Field::BuildFile,
        Field::Caches,
        Field::Command,
        Field::Image,
        Field::ImageCommand,
        Field::Memory,
        Field::Mounts,
        Field::Name,
        Field::Nesting,
        Field::Network,
        Field::Ports,
        Field::ProtectGit,
        Field::Runtime,
        Field::Timeout,
        Field::Userns,
        Field::Volumes,
        Field::Workspace,
    ];
    for field in fields {
        assert!(known.iter().any(|flag| flag == super::flag(field)), "{field:?}");
    }
}

/// The library must fit every front end, so its text names no command and no flag of this one. Comments and tests may.
#[test]
fn the_library_names_no_command_and_no_flag() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let commands: Vec<String> =
        crate::cli::Cli::command().get_subcommands().map(|command| format!("kennel {}", command.get_name())).collect();
    let mut files = Vec::new();
    for entry in [crates, &crates.join("providers")].into_iter().flat_map(|dir| std::fs::read_dir(dir).unwrap()) {
        let dir = entry.unwrap().path();
        // The command line itself, the tests' own crate, and a crate without text.
        let others = ["kennel", "kennel-testkit", "kennel-keeper-bin", "providers"];
        if !others.iter().any(|other| dir.ends_with(other)) {
            sources(&dir.join("src"), &mut files);
        }
    }
    sources(&crates.join("providers/native/jail/src"), &mut files);
    assert!(files.len() > 100, "{}", files.len());
    let mut found = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
        for (at, line) in code.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//")) {
            let named = commands.iter().any(|command| contains_words(line, command)) || has_flag(line);
            if named && !is_of_another_program(line) {
                found.push(format!("{}:{}: {}", file.display(), at + 1, line.trim()));
            }
        }
    }
    assert!(found.is_empty(), "use NextStep for:\n{}", found.join("\n"));
}

fn sources(dir: &Path, all: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, all);
        } else if path.extension().is_some_and(|extension| extension == "rs") && !path.ends_with("tests.rs") {
            all.push(path);
        }
    }
}

/// Whether the line contains exactly these words, and not only as the beginning of a longer word.
fn contains_words(line: &str, words: &str) -> bool {
    line.match_indices(words).any(|(at, _)| !line[at + words.len()..].starts_with(|next: char| next.is_alphanumeric()))
}

/// Whether the line contains a flag within a text. A string that is nothing but a flag is an argument for a program.
fn has_flag(line: &str) -> bool {
    let is_name = |next: char| next.is_ascii_lowercase() || next == '-';
    line.match_indices("--").any(|(at, _)| {
        let (before, after) = (&line[..at], &line[at + 2..]);
        let rest = after.trim_start_matches(is_name);
        rest.len() < after.len() && (before.ends_with(' ') || before.ends_with('"') && rest.starts_with(' '))
    })
}

/// Whether the line is about a program that is not Kennel's command line.
fn is_of_another_program(line: &str) -> bool {
    ["\"podman --url ", "\"systemctl --user ", "kennel-keeper ", " -m conntrack ", "apt-get install ", "npm install "]
        .iter()
        .any(|program| line.contains(program))
}
