//! `kennel attach`: attaches this terminal to a running command.

mod remote;

use crate::completion::sandboxes;
use crate::interact::{Ending, Interaction, Sink, interact};
use crate::lifecycle::Deadline;
use crate::next_step::Hint;
use crate::{environment, input, report, terminal};
use kennel_core::{Error, Exec, Position, Result, Sandbox, printable};
use kennel_engine::Engine;
use kennel_types::{Command, ErrorCode, ExecSpec, TermSize};

const EXAMPLES: &str = "\
Examples:
  kennel attach box                 its main process, or a shell that stays when you detach
  kennel attach box --process 7     a command that `kennel exec -d` left running

Ctrl-P Ctrl-Q detaches and leaves the command running.";

/// Attach this terminal to a running command
///
/// Attaches to the main process if there is one, else to the only detached command that has a terminal, else to a
/// new shell. First shows what the command printed while nobody was attached. A lost connection is restored without
/// losing output.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Attach {
    /// Id or name of the sandbox
    #[arg(add = sandboxes())]
    id: String,
    /// Number of the command, as printed by `kennel exec --detach`
    #[arg(long, value_name = "N")]
    process: Option<u64>,
}

impl Attach {
    pub(crate) async fn run(self, engine: &Engine) -> u8 {
        let ending = self.attach(engine).await;
        self.conclude(ending)
    }

    fn conclude(&self, ending: Result<Ending>) -> u8 {
        match ending {
            Ok(Ending::Exited(status) | Ending::Aborted(status, _)) => status.shell_code() as u8,
            Ok(Ending::ReaderGone) => crate::output::BROKEN_PIPE,
            Ok(Ending::Detached) => {
                report::note(&format!(
                    "detached; the command keeps running; to attach again: kennel attach {}",
                    self.id
                ));
                0
            }
            Err(error) => report::failed(&error),
        }
    }

    async fn attach(&self, engine: &Engine) -> Result<Ending> {
        let mut deadline = Deadline::begin(None)?;
        let (sandbox, exec) = deadline.unless_ended(self.connect(engine)).await?;
        let typed = input::kind();
        let raw = exec.is_tty() && typed == input::StdinKind::Terminal;
        let interaction = Interaction { input: typed != input::StdinKind::Nothing, raw, visiting: true, until: None };
        let mut signals = if raw { deadline.signals.and_window()? } else { deadline.signals };
        interact(&sandbox, exec, interaction, &mut Sink::Pass, &mut signals).await
    }

    async fn connect(&self, engine: &Engine) -> Result<(Sandbox, Exec)> {
        let sandbox = crate::sandboxes::find(engine, &self.id).await?;
        let exec = match self.choose(&sandbox).await? {
            Some(process) => {
                // Output that an earlier client has read does not count as lost.
                let exec = sandbox.attach(process, Position::default(), Some(terminal::size())).await?;
                redraw(&exec);
                exec
            }
            None => self.shell(&sandbox).await?,
        };
        Ok((sandbox, exec))
    }

    /// Returns the process to attach to, or `None` if a new shell is needed.
    async fn choose(&self, sandbox: &Sandbox) -> Result<Option<u64>> {
        if self.process.is_some() {
            return Ok(self.process);
        }
        if let Some(main) = sandbox.main_process().await? {
            return Ok(Some(main));
        }
        let mut left = sandbox.processes().await?;
        left.retain(|process| process.running && process.detached && process.tty);
        match left.as_slice() {
            [] => Ok(None),
            [one] => Ok(Some(one.process)),
            several => {
                let list: Vec<String> = several
                    .iter()
                    .map(|it| {
                        let tag = it.tag.as_ref().map(|tag| format!(", {}", printable(tag))).unwrap_or_default();
                        format!("{} ({}{tag})", it.process, printable(&String::from_utf8_lossy(&it.program)))
                    })
                    .collect();
                let message = format!("{} commands can be attached to: {}", list.len(), list.join(", "));
                Err(Error::new(ErrorCode::InvalidConfig, message)
                    .hint(format!("kennel attach {} --process {}", self.id, several[0].process)))
            }
        }
    }

    /// Checks that there is a terminal for a new shell.
    fn check_shell(&self) -> Result<()> {
        if input::kind() == input::StdinKind::Terminal {
            return Ok(());
        }
        let message =
            format!("attach to {}: it has no command to attach to, and standard input is not a terminal", self.id);
        Err(Error::new(ErrorCode::AttachFailed, message).hint(format!("kennel exec {} -- COMMAND", self.id)))
    }

    /// Starts a new shell that keeps running when the user detaches.
    async fn shell(&self, sandbox: &Sandbox) -> Result<Exec> {
        self.check_shell()?;
        let mut spec = ExecSpec::new(Command::LoginShell);
        spec.tty = Some(terminal::size());
        spec.stdin = true;
        spec.detached = true;
        spec.env.extend(environment::term().map(|term| ("TERM".to_owned(), term)));
        sandbox.exec(&spec).await
    }
}

/// Makes a full-screen program redraw itself: changes the size of its terminal, and changes it back.
fn redraw(exec: &Exec) {
    if exec.is_tty() {
        let size = terminal::size();
        exec.resize(TermSize { rows: size.rows.saturating_add(1), ..size });
        exec.resize(size);
    }
}
