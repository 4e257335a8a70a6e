//! `kennel logs`.

use crate::completion::sandboxes;
use crate::output::{BROKEN_PIPE, Stream};
use crate::report;
use futures_util::StreamExt;
use kennel_api::stream::StreamChannel;
use kennel_client::Client;
use kennel_core::{Error, LogOptions, Result, Sandbox};
use kennel_engine::Engine;
use kennel_proto::Channel;
use rustix::io::Errno;

const EXAMPLES: &str = "\
Examples:
  kennel logs box
  kennel logs --tail 50 -f box";

/// Show the output of the main process
///
/// Writes its standard output and standard error to those of this program.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Logs {
    /// Id or name of the sandbox
    #[arg(add = sandboxes())]
    id: String,
    /// Follow the output until the sandbox ends
    #[arg(short, long)]
    follow: bool,
    /// Show only the last COUNT lines
    #[arg(short = 'n', long, value_name = "COUNT")]
    tail: Option<usize>,
}

impl Logs {
    pub(crate) async fn run(self, engine: &Engine) -> u8 {
        self.show(engine).await.unwrap_or_else(|error| report::failed(&error))
    }

    pub(crate) async fn run_at(self, client: &Client) -> u8 {
        self.show_at(client).await.unwrap_or_else(|error| report::failed(&error))
    }

    /// Shows the log of a sandbox of a server.
    async fn show_at(&self, client: &Client) -> Result<u8> {
        let mut log = client.logs(&self.id, self.tail, self.follow).await?;
        while let Some((channel, bytes)) = log.next().await? {
            let stream = if channel == StreamChannel::Stderr { Stream::Stderr } else { Stream::Stdout };
            match stream.write(bytes).await {
                Ok(()) => {}
                Err(Errno::PIPE) => return Ok(BROKEN_PIPE),
                Err(error) => return Err(Error::io("write the log", error)),
            }
        }
        Ok(0)
    }

    async fn show(&self, engine: &Engine) -> Result<u8> {
        let sandbox = crate::sandboxes::find(engine, &self.id).await?;
        show(&sandbox, self.follow, self.tail).await
    }
}

/// Prints the log of a sandbox's main process.
pub(crate) async fn show(sandbox: &Sandbox, follow: bool, tail: Option<usize>) -> Result<u8> {
    let mut log = sandbox.logs(LogOptions { tail, follow }).await?;
    while let Some(chunk) = log.next().await {
        let chunk = chunk?;
        let stream = if chunk.channel == Channel::Stderr { Stream::Stderr } else { Stream::Stdout };
        match stream.write(chunk.bytes).await {
            Ok(()) => {}
            Err(Errno::PIPE) => return Ok(BROKEN_PIPE),
            Err(error) => return Err(Error::io("write the log", error)),
        }
    }
    Ok(0)
}
