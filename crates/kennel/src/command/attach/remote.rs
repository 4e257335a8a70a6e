//! `kennel attach` to a command in a sandbox of a server.

use super::Attach;
use crate::interact::{Ending, Interaction, Sink, interact_at, terminal as api_size};
use crate::lifecycle::Deadline;
use crate::next_step::Hint;
use crate::{environment, input, terminal};
use kennel_api::stream::{StreamAttach, StreamStart};
use kennel_client::{Client, CommandStream};
use kennel_core::{Error, Result, printable};
use kennel_types::ErrorCode;

impl Attach {
    pub(crate) async fn run_at(self, client: &Client) -> u8 {
        let ending = self.attach_at(client).await;
        self.conclude(ending)
    }

    async fn attach_at(&self, client: &Client) -> Result<Ending> {
        let mut deadline = Deadline::begin(None)?;
        let (id, stream) = deadline.unless_ended(self.connect_at(client)).await?;
        let typed = input::kind();
        let raw = stream.is_tty() && typed == input::StdinKind::Terminal;
        let interaction = Interaction { input: typed != input::StdinKind::Nothing, raw, visiting: true, until: None };
        let mut signals = if raw { deadline.signals.and_window()? } else { deadline.signals };
        interact_at(client, &id, stream, interaction, &mut Sink::Pass, &mut signals).await
    }

    async fn connect_at(&self, client: &Client) -> Result<(String, CommandStream)> {
        let id = client.sandbox(&self.id).await?.id;
        let stream = match self.choose_at(client, &id).await? {
            Some(process) => {
                let tty = Some(api_size(terminal::size()));
                let write = input::kind() != input::StdinKind::Nothing;
                client.attach(&id, StreamAttach { process, tty, write, ..StreamAttach::default() }).await?
            }
            None => self.shell_at(client, &id).await?,
        };
        Ok((id, stream))
    }

    /// Returns the process to attach to, or `None` if a new shell is needed.
    async fn choose_at(&self, client: &Client, id: &str) -> Result<Option<u64>> {
        if self.process.is_some() {
            return Ok(self.process);
        }
        let mut left = client.processes(id).await?;
        left.retain(|process| process.running && process.detached && (process.terminal || process.main));
        if let Some(main) = left.iter().find(|process| process.main) {
            return Ok(Some(main.process));
        }
        match left.as_slice() {
            [] => Ok(None),
            [one] => Ok(Some(one.process)),
            several => {
                let list: Vec<String> =
                    several.iter().map(|it| format!("{} ({})", it.process, printable(&it.argv.join(" ")))).collect();
                let message = format!("{} commands can be attached to: {}", list.len(), list.join(", "));
                Err(Error::new(ErrorCode::InvalidConfig, message)
                    .hint(format!("kennel attach {} --process {}", self.id, several[0].process)))
            }
        }
    }

    /// Starts a new shell that keeps running when the user detaches.
    async fn shell_at(&self, client: &Client, id: &str) -> Result<CommandStream> {
        self.check_shell()?;
        let start = StreamStart {
            tty: Some(api_size(terminal::size())),
            stdin: true,
            env: environment::term().map(|term| ("TERM".to_owned(), term)).into_iter().collect(),
            ..StreamStart::default()
        };
        client.command(id, start).await
    }
}
