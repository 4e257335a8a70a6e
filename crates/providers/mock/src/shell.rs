//! The toy commands. They are enough to test commands, streams and exit codes; there is no shell, and no program is
//! run.

use crate::process::Process;
use crate::script::{Answer, Step};
use crate::tree::{Tree, fail};
use kennel_proto::{Channel, ExitReport, Failure, FailureKind, Spawn, SpawnCommand};
use kennel_types::ErrorCode;
use std::collections::BTreeMap;
use std::time::Duration;

/// A command that can be run.
pub(crate) struct Program {
    pub(crate) argv: Vec<String>,
    work: Work,
    env: BTreeMap<Vec<u8>, Vec<u8>>,
    cwd: String,
}

enum Work {
    Scripted(Answer),
    /// Simple commands, one after the other.
    Toy(Vec<Simple>),
}

struct Simple {
    words: Vec<String>,
    to_stderr: bool,
}

const KNOWN: [&str; 9] = ["echo", "cat", "true", "false", "pwd", "env", "printenv", "sleep", "sh"];

/// The words of a request, as a script sees them.
pub(crate) fn argv(spawn: &Spawn) -> Result<Vec<String>, Failure> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match &spawn.command {
        SpawnCommand::Argv(argv) if argv.is_empty() => Err(fail(FailureKind::Invalid, "no program is named")),
        SpawnCommand::Argv(argv) => Ok(argv.iter().map(|word| text(word)).collect()),
        SpawnCommand::Shell(script) => Ok(vec!["sh".into(), "-c".into(), text(script)]),
        SpawnCommand::LoginShell => Err(fail(FailureKind::Unsupported, "the mock has no interactive shell")),
    }
}

/// Looks up a command: scripted, a toy command, or not found.
pub(crate) fn find(
    argv: Vec<String>,
    answer: Option<Answer>,
    spawn: &Spawn,
    base: &BTreeMap<Vec<u8>, Vec<u8>>,
    tree: &Tree,
    cwd: &str,
) -> Result<Program, Failure> {
    if spawn.tty.is_some() {
        return Err(fail(FailureKind::Unsupported, "the mock has no terminals"));
    }
    if spawn.user.is_some() {
        return Err(fail(FailureKind::Unsupported, "the mock has no users"));
    }
    let cwd = spawn.cwd.as_ref().map_or(cwd.to_owned(), |cwd| String::from_utf8_lossy(cwd).into_owned());
    if !tree.is_directory(cwd.as_bytes()) {
        return Err(fail(FailureKind::NotExecutable, format!("working directory {cwd}: it is not there")));
    }
    let work = match answer {
        Some(Answer { fails: Some(ErrorCode::ExecFailed), .. }) => {
            return Err(fail(FailureKind::NotExecutable, "scripted: cannot be run"));
        }
        Some(Answer { fails: Some(_), .. }) => return Err(fail(FailureKind::NotFound, "scripted: not found")),
        Some(answer) => Work::Scripted(answer),
        None if argv[0] == "sh" => Work::Toy(parse(argv.get(2).map_or("", String::as_str))),
        None if KNOWN.contains(&argv[0].as_str()) => Work::Toy(vec![Simple { words: argv.clone(), to_stderr: false }]),
        None if argv[0].contains('/') && tree.stat(argv[0].as_bytes()).is_ok() => {
            return Err(fail(FailureKind::NotExecutable, "the mock runs no files"));
        }
        None => return Err(fail(FailureKind::NotFound, "no such program")),
    };
    let mut env = base.clone();
    env.extend(spawn.env.iter().map(|(key, value)| (key.to_vec(), value.to_vec())));
    Ok(Program { argv, work, env, cwd })
}

impl Program {
    /// Runs the command to its end.
    pub(crate) async fn run(self, process: &Process) -> ExitReport {
        let mut code = 0;
        match &self.work {
            Work::Scripted(answer) => {
                for step in &answer.steps {
                    match step {
                        Step::Stdout(bytes) => process.print(Channel::Stdout, bytes).await,
                        Step::Stderr(bytes) => process.print(Channel::Stderr, bytes).await,
                        Step::Hold(gate) => gate.passed().await,
                    }
                }
                code = answer.exit;
            }
            Work::Toy(commands) => {
                for command in commands {
                    if command.words[0] == "exit" {
                        code = command.words.get(1).and_then(|word| word.parse().ok()).unwrap_or(code);
                        break;
                    }
                    code = self.simple(command, process).await;
                }
            }
        }
        ExitReport { code: Some(code & 0xff), ..ExitReport::default() }
    }

    async fn simple(&self, command: &Simple, process: &Process) -> i32 {
        let out = if command.to_stderr { Channel::Stderr } else { Channel::Stdout };
        let words = &command.words;
        match words[0].as_str() {
            "echo" => process.print(out, format!("{}\n", words[1..].join(" ")).as_bytes()).await,
            "cat" => {
                while let Some(bytes) = process.read().await {
                    process.print(out, &bytes).await;
                }
            }
            "true" => {}
            "false" => return 1,
            "pwd" => process.print(out, format!("{}\n", self.cwd).as_bytes()).await,
            "env" => {
                for (name, value) in &self.env {
                    process.print(out, &[name, b"=".as_slice(), value, b"\n"].concat()).await;
                }
            }
            "printenv" => match words.get(1).and_then(|name| self.env.get(name.as_bytes())) {
                Some(value) => process.print(out, &[value.as_slice(), b"\n"].concat()).await,
                None => return 1,
            },
            "sleep" => {
                let seconds = words.get(1).and_then(|word| word.parse().ok()).unwrap_or(0.0);
                let time = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
                let _ = tokio::time::timeout(time, std::future::pending::<()>()).await;
            }
            unknown => {
                process.print(Channel::Stderr, format!("{unknown}: not found\n").as_bytes()).await;
                return 127;
            }
        }
        0
    }
}

/// Splits a string into simple commands at `;` and newlines, and these into words. Quotes keep words together.
fn parse(script: &str) -> Vec<Simple> {
    let mut commands = Vec::new();
    let (mut words, mut word, mut quote): (Vec<String>, Option<String>, Option<char>) = (Vec::new(), None, None);
    for character in script.chars().chain([';']) {
        match (character, quote) {
            (c, Some(open)) if c == open => quote = None,
            ('\'' | '"', None) => {
                quote = Some(character);
                word.get_or_insert_default();
            }
            (' ' | '\t', None) => words.extend(word.take()),
            (';' | '\n', None) => {
                words.extend(word.take());
                let to_stderr = words.iter().any(|word| word == ">&2");
                words.retain(|word| word != ">&2");
                if !words.is_empty() {
                    commands.push(Simple { words: std::mem::take(&mut words), to_stderr });
                }
            }
            (c, _) => word.get_or_insert_default().push(c),
        }
    }
    commands
}
