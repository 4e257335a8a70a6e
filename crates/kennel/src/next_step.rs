//! Hints: what the user can do about an error. The library returns the next step as data, and only this file turns it
//! into commands and flags.

use kennel_core::Error;
use kennel_types::{Field, NextStep};

/// Adds a hint to an error that the command line itself creates.
pub(crate) trait Hint {
    /// Adds a hint that says what to do next.
    #[must_use]
    fn hint(self, text: impl Into<String>) -> Self;
}

impl Hint for Error {
    fn hint(self, text: impl Into<String>) -> Self {
        self.suggest(NextStep::Text { text: text.into() })
    }
}

/// Returns the hint of an error, if it has one. It may contain untrusted text, so it must be escaped before display.
pub(crate) fn hint(error: &Error) -> Option<String> {
    error.next_step().map(words)
}

/// Converts a next step to text for the command line. It may contain untrusted text, so it must be escaped before
/// display.
pub(crate) fn words(step: &NextStep) -> String {
    match step {
        NextStep::ListSandboxes => "kennel ls --all".into(),
        NextStep::StartSandbox { name } => format!("kennel start {name}"),
        NextStep::ResumeSandbox { name } => format!("kennel unpause {name}"),
        NextStep::StopOrRemoveSandbox { name } => format!("kennel stop {name}, or kennel rm --force {name}"),
        NextStep::RemoveSandbox { name, force, volumes } => {
            let flag = |given: bool, flag| if given { flag } else { "" };
            format!("kennel rm {}{}{name}", flag(*force, "--force "), flag(*volumes, "--volumes "))
        }
        NextStep::InspectSandbox { name } => format!("kennel inspect {name}"),
        NextStep::ReadLogs { name } => format!("kennel logs {name}"),
        NextStep::AttachAgain { name } => format!("kennel attach {name}"),
        NextStep::ListVolumes => "kennel volume ls".into(),
        NextStep::ListPools => "kennel pool ls".into(),
        NextStep::FillPool => {
            "kennel pool ls shows which members `kennel serve` keeps ready; or use --pool prefer".into()
        }
        NextStep::CreateLastingSandbox => "use kennel create --start for a sandbox that stays".into(),
        NextStep::CollectGarbage => "kennel gc, or kennel rm a sandbox".into(),
        NextStep::ListSessions => "kennel session ls".into(),
        NextStep::StartSession { name } => format!("kennel session start {name}"),
        NextStep::StopOrRemoveSession { name } => {
            format!("kennel session stop {name}, or kennel session rm --force {name}")
        }
        NextStep::ShowSession { name } => format!("kennel session show {name}"),
        NextStep::AdoptSandboxes => "kennel session adopt".into(),

        NextStep::Set { field, values } if values.is_empty() => set(*field),
        NextStep::Set { field, values } => format!("use {} {}", flag(*field), one_of(values)),
        NextStep::ChooseAnother { field } => format!("choose another {}", flag(*field)),
        NextStep::LeaveOut { field: Field::Workspace } => "leave it out with --no-workspace".into(),
        NextStep::LeaveOut { field } => format!("leave out {}", flag(*field)),
        NextStep::LeaveOutOneOf { fields } => {
            let flags: Vec<&str> = fields.iter().map(|field| flag(*field)).collect();
            format!("leave out {}", one_of(&flags))
        }
        NextStep::CopyInstead { field: Field::Workspace } => {
            "leave it out with --no-workspace, and copy what is needed: kennel cp".into()
        }
        NextStep::CopyInstead { .. } => "copy what is needed: kennel cp".into(),
        NextStep::ChooseWorkspace => {
            "cd to a directory of your own, or use --no-workspace, or --workspace / if you mean it".into()
        }
        NextStep::LeaveGitUnprotected => "leave the repository unprotected with --protect-git=false".into(),
        NextStep::MountReadOnly => "mount it read-only with -v HOST:TARGET:ro".into(),
        NextStep::PublishAtFreePort { port: Some(port) } => format!("leave the choice to Kennel: --publish {port}"),
        NextStep::PublishAtFreePort { port: None } => {
            "publish at another port, or name none outside: --publish INSIDE".into()
        }
        NextStep::UseProvider { providers } => {
            let names: Vec<&str> = providers.iter().map(|provider| provider.name()).collect();
            format!("use --provider {}", one_of(&names))
        }
        NextStep::SetUpProvider { provider } => format!("kennel setup {}", provider.name()),
        NextStep::ListAgents => "kennel agent ls".into(),
        NextStep::ListProfiles => "kennel profile list".into(),
        NextStep::StartProfile { name } => format!("kennel profile start {name}"),
        NextStep::EditProfile { name } => format!("kennel profile edit {name}"),
        NextStep::RestartProfile { name, pull: true } => format!("kennel profile restart --pull {name}"),
        NextStep::RestartProfile { name, pull: false } => format!("kennel profile restart {name}"),
        NextStep::RemoveFromSettings { file } => format!("remove it from {}", file.display()),
        NextStep::ChangeDirectory { path } => format!("cd {}", path.display()),
        NextStep::TrustProject => "read it, then: kennel config trust".into(),
        NextStep::ShowSettings { key } => {
            key.as_ref().map_or_else(|| "kennel config show".into(), |key| format!("kennel config show {key}"))
        }
        NextStep::LookUpSettings => "kennel config schema".into(),
        NextStep::ExplainFeature { feature } => format!("kennel explain {}", feature.name()),
        NextStep::UsePath { path } => format!("name {}", path.display()),

        NextStep::ListImages { ids: true } => "give more digits: kennel image ls --format id,name".into(),
        NextStep::ListImages { ids: false } => "kennel image ls".into(),
        NextStep::PullImage { image } => format!("kennel image pull {image}"),
        NextStep::LoadImage => "kennel image load FILE".into(),
        NextStep::NameLoadedImage { file } => {
            let file = file.as_ref().map_or_else(|| "FILE".into(), |file| file.display().to_string());
            format!("give it one: kennel image load --name NAME {file}")
        }
        NextStep::LoadUnderOwnNames => "load them under their own names, without --name".into(),
        NextStep::BuildImage { image } => format!("build it: kennel build --tag {image} DIR"),
        NextStep::LogIn { program, registry: Some(registry) } => format!("log in: {program} login {registry}"),
        NextStep::LogIn { program, registry: None } => format!("log in: {program} login"),
        NextStep::AllowLargerImages => {
            "allow more, if you trust it: kennel config set --user images.maxSize 200g".into()
        }
        NextStep::AllowInsecureRegistry { registry } => {
            format!("if you trust the network: kennel config set --user images.insecure '[\"{registry}\"]'")
        }
        NextStep::FreeDiskSpace => "free some disk space, then try again: kennel image prune --all".into(),
        NextStep::AllowLongerStart { seconds } => {
            format!("kennel config set sandbox.startupTimeout {seconds}s; it applies to new sandboxes")
        }
        NextStep::UseOwnDirectory => "run Kennel as that user, or set KENNEL_HOME to a directory of your own".into(),

        NextStep::CopyDirectory { from, to } => format!("kennel cp {from} {to}"),
        NextStep::CopyFromStream => "pass it on standard input: kennel cp - ID:PATH < FILE".into(),
        NextStep::ArchiveToFile => "name a file for the archive, or copy without --archive".into(),
        NextStep::Decompress { program, file, target } => {
            format!("{program} -dc {} | kennel cp --archive - {target}", file.as_deref().unwrap_or("FILE"))
        }
        NextStep::ArchiveWithoutSparse => "make the archive without --sparse".into(),

        NextStep::CheckMachine { purpose } => with_purpose(purpose.as_deref(), "kennel doctor"),
        NextStep::InstallPackage { package } if package == "nftables" => {
            "install the package nftables; kennel doctor --fix gets it".into()
        }
        NextStep::InstallPackage { package } => format!("install the package {package}"),
        NextStep::RunOnHost { purpose, command } => with_purpose(purpose.as_deref(), command),
        NextStep::EngineSays { engine, text } => format!("{engine} says: {text}"),
        NextStep::Advice { text } | NextStep::Text { text } => text.clone(),
        NextStep::Either { steps } => either(&steps.iter().map(words).collect::<Vec<_>>()),
    }
}

/// Returns how to set a field that has too many possible values to list.
fn set(field: Field) -> String {
    match field {
        Field::BuildFile => "name it with --file".into(),
        Field::Caches => "use NAME:TARGET, for example npm:/root/.npm".into(),
        Field::Command => "name one, after --".into(),
        Field::Image => "name one with --image IMAGE".into(),
        Field::Memory => "allow it more with --memory".into(),
        Field::Name => "give the sandbox a --name".into(),
        Field::Timeout => "give it more time with --timeout, or --timeout none".into(),
        other => format!("use {}", flag(other)),
    }
}

/// Returns the flag that sets a field.
fn flag(field: Field) -> &'static str {
    match field {
        Field::BuildFile => "--file",
        Field::Caches => "--cache",
        Field::Command => "--",
        Field::Image => "--image",
        Field::ImageCommand => "--image-command",
        Field::Memory => "--memory",
        Field::Mounts => "--volume",
        Field::Name => "--name",
        Field::Nesting => "--nesting",
        Field::Network => "--network",
        Field::Ports => "--publish",
        Field::ProtectGit => "--protect-git",
        Field::Runtime => "--runtime",
        Field::Sockets => "--socket",
        Field::Timeout => "--timeout",
        Field::Userns => "--userns",
        Field::Volumes => "--data",
        Field::Workspace => "--workspace",
    }
}

fn with_purpose(purpose: Option<&str>, command: &str) -> String {
    purpose.map_or_else(|| command.to_owned(), |purpose| format!("{purpose}: {command}"))
}

/// Joins values: "a, b or c".
fn one_of(values: &[impl AsRef<str>]) -> String {
    let values: Vec<&str> = values.iter().map(AsRef::as_ref).collect();
    match values.split_last() {
        Some((last, first)) if !first.is_empty() => format!("{} or {last}", first.join(", ")),
        _ => values.concat(),
    }
}

/// Joins steps: "a, or b". If any step but the last contains a comma or a colon, semicolons separate them.
fn either(steps: &[String]) -> String {
    let Some((last, first)) = steps.split_last().filter(|(_, first)| !first.is_empty()) else { return steps.concat() };
    let comma = if first.iter().any(|step| step.contains([',', ':'])) { "; " } else { ", " };
    format!("{}{comma}or {last}", first.join(comma))
}

#[cfg(test)]
mod tests;
