//! Parses the command line. Each command declares its options in its own file.

use crate::command::{
    acp, agent, attach, build, completions, config, cp, create, doctor, events, exec, explain, gc, image, inspect,
    logs, ls, pause, pool, profile, rename, rm, run, serve, session, setup, start, stats, stop, token, version, volume,
    wait,
};
use crate::provider_name::ProviderName;
use crate::{environment, help, remote, report};
use clap::error::{ContextKind, ContextValue};
use clap::{CommandFactory, FromArgMatches, Parser};
use kennel_core::{Result as KennelResult, printable_path};
use kennel_engine::{EarlyJail, Engine};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

const EXAMPLES: &str = "\
Examples:
  kennel run -- make test                run a command in a new sandbox
  kennel run                             start a shell in a new sandbox
  kennel run --network none -c 'a | b'   run a shell command without network access
  kennel create --name box --start       create and start a sandbox that stays
  kennel exec box -- ls -l               run a command in it
  kennel ls                              list running sandboxes

`kennel COMMAND --help` describes a command.";

/// Let your agents off the leash, inside the kennel.
#[derive(clap::Parser)]
#[command(name = "kennel", version, after_help = EXAMPLES, disable_help_subcommand = true, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Option<Command>,
}

/// Options of every command.
#[derive(clap::Args)]
struct Global {
    /// The provider to use [default: the first that works, but never local]
    #[arg(long, global = true, value_enum, value_name = "NAME", help_heading = "Global options")]
    provider: Option<ProviderName>,
    /// Use the sandboxes of a server: http://HOST:PORT, https://HOST:PORT or unix:PATH [default: KENNEL_URL; without it, this machine's own]
    #[arg(long, global = true, value_name = "URL", help_heading = "Global options")]
    server: Option<String>,
    /// Do not print progress and notes
    #[arg(long, global = true, help_heading = "Global options")]
    quiet: bool,
}

/// A parser for a single command. It is much faster than the one for all commands.
#[derive(clap::Parser)]
struct Only<T: clap::Args> {
    #[command(flatten)]
    global: Global,
    #[command(flatten)]
    command: T,
}

impl<T: clap::Args> Only<T> {
    /// Parses the arguments if they are valid for this command. Otherwise returns `None`.
    fn parse(arguments: &[OsString], command: fn(T) -> Command) -> Option<Cli> {
        let only = Self::try_parse_from(arguments).ok()?;
        Some(Cli { global: only.global, command: Some(command(only.command)) })
    }
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Run(run::Run),
    Create(create::Create),
    Ls(ls::Ls),
    Start(start::Start),
    Stop(stop::Stop),
    Rm(rm::Rm),
    Inspect(inspect::Inspect),
    Pause(pause::Pause),
    Unpause(pause::Unpause),
    Rename(rename::Rename),
    Wait(wait::Wait),
    Stats(stats::Stats),
    Events(events::Events),
    Profile(profile::Profile),
    Session(session::SessionCommand),
    Acp(Box<acp::Acp>),
    Agent(agent::AgentCommand),
    Serve(serve::Serve),
    Token(token::Token),
    Pool(pool::PoolCommand),
    Exec(exec::Exec),
    Attach(attach::Attach),
    Logs(logs::Logs),
    Cp(cp::Cp),
    Volume(volume::Volume),
    Image(image::Image),
    Build(build::Build),
    Config(config::Config),
    Doctor(doctor::Doctor),
    Setup(setup::Setup),
    Explain(explain::Explain),
    Gc(gc::Gc),
    Completions(completions::Completions),
    Man(completions::Man),
    Version(version::Version),
}

impl Command {
    /// Whether the command works with sandboxes. The others do the same with and without a server.
    fn is_about_sandboxes(&self) -> bool {
        !matches!(self, Self::Completions(_) | Self::Man(_) | Self::Version(_))
    }

    /// Runs the command with the sandboxes of a server, and returns the exit status.
    async fn run_at(self, server: &str, provider: Option<ProviderName>, engine: &Engine) -> u8 {
        let client = match remote::client(server, engine) {
            Ok(client) => client,
            Err(error) => return report::failed(&error),
        };
        match self {
            Self::Run(command) => command.run_at(&client, provider).await,
            Self::Exec(command) => command.run_at(&client).await,
            Self::Attach(command) => command.run_at(&client).await,
            Self::Cp(command) => command.run_at(&client).await,
            Self::Ls(command) => command.run_at(&client).await,
            Self::Inspect(command) => command.run_at(&client).await,
            Self::Logs(command) => command.run_at(&client).await,
            Self::Stop(command) => command.run_at(&client).await,
            Self::Rm(command) => command.run_at(&client).await,
            _ => report::failed(&remote::only_here(server)),
        }
    }
}

/// Whether this is `kennel run`, given the words after the name of the program, and its first words name neither a server
/// nor another provider than native.
pub(crate) fn is_native_run<'a>(words: impl IntoIterator<Item = &'a [u8]>) -> bool {
    let FirstWords { name, provider, server, .. } = FirstWords::read(words);
    name == Some(b"run") && provider.is_none_or(|name| name == b"native") && !server
}

/// Returns the index of the command's name.
fn verb(arguments: &[OsString]) -> usize {
    1 + FirstWords::read(arguments.iter().skip(1).map(|word| word.as_bytes())).before
}

/// The command's name, and the global options before it.
#[derive(Default)]
struct FirstWords<'a> {
    /// The number of words before the name.
    before: usize,
    name: Option<&'a [u8]>,
    provider: Option<&'a [u8]>,
    server: bool,
}

impl<'a> FirstWords<'a> {
    fn read(words: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut words = words.into_iter();
        let mut first = Self::default();
        loop {
            match words.next() {
                Some(option @ (b"--provider" | b"--server")) => {
                    let value = words.next();
                    if option == b"--server" {
                        first.server = true;
                    } else {
                        first.provider = value;
                    }
                    first.before += 2;
                }
                Some(b"--quiet") => first.before += 1,
                Some(word) if word.starts_with(b"--server=") => {
                    first.server = true;
                    first.before += 1;
                }
                Some(word) if word.starts_with(b"--provider=") => {
                    first.provider = word.strip_prefix(b"--provider=");
                    first.before += 1;
                }
                name => return Self { name, ..first },
            }
        }
    }
}

/// Adds the command that was probably meant, because clap does not recognise two swapped letters. A command within a
/// command is named as it must be typed.
fn suggest(mut error: clap::Error, arguments: &[OsString]) -> clap::Error {
    const CLOSE: usize = 2;
    let Some(ContextValue::String(typed)) = error.get(ContextKind::InvalidSubcommand).cloned() else { return error };
    let (above, within) = command_before(&typed, arguments, Cli::command());
    let found_by_clap = match error.get(ContextKind::SuggestedSubcommand) {
        Some(ContextValue::Strings(names)) => names.clone(),
        _ => Vec::new(),
    };
    let away = |name: &str| strsim::damerau_levenshtein(name, &typed);
    let nearest = within.get_subcommands().map(clap::Command::get_name).min_by_key(|name| away(name));
    let nearest = nearest.filter(|name| away(name) <= CLOSE && away(name) < typed.len()).map(ToOwned::to_owned);
    let names = if found_by_clap.is_empty() { Vec::from_iter(nearest) } else { found_by_clap };
    if !names.is_empty() {
        let full = |name: String| if above.is_empty() { name } else { format!("kennel {above} {name}") };
        let names = names.into_iter().map(full).collect();
        error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(names));
    }
    error
}

/// Returns the command that the user typed before an unknown word, with its name, such as `profile`.
fn command_before(unknown: &str, arguments: &[OsString], all: clap::Command) -> (String, clap::Command) {
    let (mut names, mut command) = (Vec::new(), all);
    for word in arguments.iter().skip(1).filter_map(|word| word.to_str()).take_while(|word| *word != unknown) {
        if let Some(next) = command.find_subcommand(word).cloned() {
            names.push(next.get_name().to_owned());
            command = next;
        }
    }
    (names.join(" "), command)
}

/// Parses the arguments with the parser for all commands.
fn parse(arguments: &[OsString]) -> Result<Cli, clap::Error> {
    let mut matches = Cli::with_help().try_get_matches_from(arguments)?;
    Cli::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut Cli::with_help()))
}

/// Returns clap's error without terminal control characters. An argument may be a file name that a shell has expanded,
/// and clap repeats it unchanged. So the arguments are escaped and parsed again.
fn safe(error: clap::Error, arguments: &[OsString]) -> clap::Error {
    let printable: Vec<OsString> = arguments.iter().map(|argument| printable_path(argument).into()).collect();
    if printable == arguments {
        return error;
    }
    let unclear = || clap::Error::raw(error.kind(), "an argument is invalid, and cannot be displayed\n");
    parse(&printable).err().unwrap_or_else(unclear)
}

impl Cli {
    /// Returns the clap command with all subcommands. Its help lists them in groups.
    pub(crate) fn with_help() -> clap::Command {
        help::with_groups(Self::command())
    }

    /// Parses the arguments. Building the parser for all commands takes longer than parsing, so the commands that must
    /// be fast are tried first with a parser of their own. The full parser handles everything else.
    pub(crate) fn read(arguments: &[OsString]) -> Result<Self, clap::Error> {
        let at = verb(arguments);
        let without_verb = || [&arguments[..at], &arguments[at + 1..]].concat();
        let quick = match arguments.get(at).and_then(|word| word.to_str()) {
            Some("run") => Only::parse(&without_verb(), Command::Run),
            Some("exec") => Only::parse(&without_verb(), Command::Exec),
            _ => None,
        };
        quick.map_or_else(|| parse(arguments).map_err(|error| suggest(safe(error, arguments), arguments)), Ok)
    }

    /// Whether the command goes to a server.
    fn is_remote(&self) -> bool {
        self.global.server.is_some() || environment::server().is_some()
    }

    /// Returns the engine with the providers that the command may use. For `run`, it already starts to prepare a
    /// sandbox, so that this overlaps with other work.
    pub(crate) fn engine(&self, early: Option<EarlyJail>) -> KennelResult<Engine> {
        report::set_quiet(self.global.quiet);
        let mut engine = Engine::new(environment::caller()?);
        if let Some(program) = crate::serve_bridges::program() {
            engine = engine.with_bridge_program(program);
        }
        if let Some(provider) = self.global.provider {
            engine = provider.restrict(engine);
        }
        if let Some(Command::Run(run)) = &self.command
            && !self.is_remote()
        {
            run.prepare(&mut engine, early);
        }
        Ok(engine)
    }

    /// Runs the command, and returns the exit status.
    pub(crate) async fn run(self, engine: &Engine) -> u8 {
        let Some(command) = self.command else {
            return crate::output::print(&Self::with_help().render_help().ansi().to_string());
        };
        if let Some(server) = self.global.server.or_else(environment::server)
            && command.is_about_sandboxes()
        {
            return Box::pin(command.run_at(&server, self.global.provider, engine)).await;
        }
        match command {
            Command::Run(command) => command.run(engine).await,
            Command::Create(command) => command.run(engine).await,
            Command::Start(command) => command.run(engine).await,
            Command::Stop(command) => command.run(engine).await,
            Command::Pause(command) => command.run(engine).await,
            Command::Unpause(command) => command.run(engine).await,
            Command::Rename(command) => command.run(engine).await,
            Command::Build(command) => command.run(engine).await,
            Command::Rm(command) => command.run(engine).await,
            Command::Ls(command) => command.run(engine).await,
            Command::Inspect(command) => command.run(engine).await,
            Command::Profile(command) => Box::pin(command.run(engine)).await,
            Command::Session(command) => Box::pin(command.run(engine)).await,
            Command::Exec(command) => command.run(engine).await,
            Command::Attach(command) => command.run(engine).await,
            Command::Logs(command) => command.run(engine).await,
            Command::Cp(command) => command.run(engine).await,
            Command::Stats(command) => command.run(engine).await,
            Command::Events(command) => command.run(engine).await,
            Command::Wait(command) => command.run(engine).await,
            Command::Serve(command) => Box::pin(command.run(engine)).await,
            Command::Pool(command) => Box::pin(command.run(engine)).await,
            Command::Token(command) => command.run(engine).await,
            Command::Acp(command) => Box::pin(command.run(engine)).await,
            Command::Agent(command) => Box::pin(command.run(engine)).await,
            Command::Gc(command) => command.run(engine).await,
            Command::Volume(command) => command.run(engine).await,
            Command::Image(command) => command.run(engine).await,
            Command::Config(command) => command.run(engine),
            Command::Doctor(command) => command.run(engine).await,
            Command::Setup(command) => command.run(engine).await,
            Command::Explain(command) => command.run(engine).await,
            Command::Completions(command) => command.run(),
            Command::Man(command) => command.run(),
            Command::Version(command) => command.run(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_definition_is_valid() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_jail_is_forked_only_for_a_native_run() {
        let is_native = |line: &str| is_native_run(line.split(' ').map(str::as_bytes));
        for line in ["run", "run true", "--quiet --provider native run", "--provider=native run -- ls"] {
            assert!(is_native(line), "{line}");
        }
        for line in [
            "exec box",
            "--quiet",
            "--provider docker run",
            "--provider=podman run true",
            "--server unix:/s run",
            "--server=unix:/s run",
        ] {
            assert!(!is_native(line), "{line}");
        }
    }

    #[test]
    fn parsing_one_command_equals_parsing_with_all_commands() {
        let told = |line: &str| {
            let arguments: Vec<OsString> = line.split(' ').map(Into::into).collect();
            let (quick, whole) = (Cli::read(&arguments), parse(&arguments));
            let text = |read: Result<Cli, clap::Error>| match read {
                Ok(Cli { global, command }) => {
                    format!("{:?} {:?} {} {command:?}", global.provider, global.server, global.quiet)
                }
                Err(error) => error.to_string(),
            };
            (text(quick), text(whole))
        };
        for line in [
            "kennel run",
            "kennel run -- ls -l",
            "kennel run --network none --provider local -c true",
            "kennel --provider local run -it -- sh",
            "kennel --provider=docker exec box -- ls",
            "kennel exec --provider native box ls -l",
            "kennel --quiet --provider local run true",
            "kennel run --quiet true",
            "kennel --quiet",
            "kennel --server http://127.0.0.1:7070 run true",
            "kennel --server=unix:/a exec box -- ls",
            "kennel run --server http://h:1 --no-workspace true",
            "kennel run --provider",
            "kennel run --nonsense",
            "kennel --provider run run",
            "kennel --provider",
            "kennel exec",
            "kennel run --help",
            "kennel exec -h",
            "kennel --help",
            "kennel rum",
            "kennel",
        ] {
            let (quick, whole) = told(line);
            assert_eq!(quick, whole, "{line}");
        }
    }

    #[test]
    fn suggestions_name_the_whole_subcommand() {
        let said = |line: &str| {
            let arguments: Vec<OsString> = line.split(' ').map(Into::into).collect();
            Cli::read(&arguments).err().map(|error| error.to_string()).unwrap_or_default()
        };
        for (line, suggested) in [
            ("kennel profile lst", "'kennel profile list'"),
            ("kennel --provider local profile satrt x", "'kennel profile start'"),
            ("kennel session shwo fix", "'kennel session show'"),
            ("kennel rnu", "'run'"),
        ] {
            assert!(said(line).contains(suggested), "{line}: {}", said(line));
        }
        assert!(!said("kennel profile nonsense").contains("similar"), "{}", said("kennel profile nonsense"));
    }

    #[test]
    fn every_error_code_is_in_the_troubleshooting_guide() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/troubleshooting.md");
        let text = std::fs::read_to_string(path).unwrap();
        for code in kennel_types::ErrorCode::all() {
            assert!(text.contains(&format!("\n## {code}\n")), "{code}");
        }
    }

    #[test]
    fn every_command_has_examples() {
        for command in Cli::command().get_subcommands() {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("kennel "), "{} has no examples", command.get_name());
        }
    }
}
