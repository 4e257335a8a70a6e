//! `kennel cp`.

mod endpoint;
mod progress;
mod remote;

use crate::completion::places;
use crate::input;
use crate::next_step::Hint;
use crate::output::{BROKEN_PIPE, Stdout};
use crate::report;
use crate::signals::Signals;
use endpoint::CopyEndpoint;
use kennel_core::copy::{Copier, Counts, PipeReader};
use kennel_core::{Error, Result};
use kennel_engine::Engine;
use kennel_types::ErrorCode;
use progress::Shown;
use std::ffi::OsString;
use std::io::IsTerminal;

const EXAMPLES: &str = "\
Examples:
  kennel cp notes.txt box:/tmp/            copy a file
  kennel cp box:src ./copy                 copy a directory (relative to the working directory)
  kennel cp box:src/. ./copy               copy the contents of a directory
  kennel cp box:/etc/hosts - | grep box    write the content to standard output
  date | kennel cp - box:/tmp/date         read the content from standard input
  kennel cp --archive box:src - | tar tv   write a tar archive to standard output
  kennel cp --archive box:src src.tar      write a tar archive to a file
  kennel cp --archive src.tar box:/work    unpack a tar archive in the sandbox
  tar c . | kennel cp --archive - box:/work

Write a host path that contains a colon as ./a:b.";

/// Copy files into or out of a sandbox
///
/// Directories are copied with their contents, symlinks as symlinks. Processes in a sandbox can create symlinks in its
/// workspace. So a symlink in a host path must not lead out of the workspace that contains it nor, in a relative path,
/// out of the current directory.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Cp {
    /// Source: PATH, ID:PATH, or - for standard input
    #[arg(value_name = "SRC", add = places())]
    source: OsString,
    /// Destination: PATH, ID:PATH, or - for standard output
    #[arg(value_name = "DST", add = places())]
    target: OsString,
    /// Treat the host path as a tar archive: pack files of the sandbox into it, or unpack it in the sandbox
    ///
    /// Packing records owners and times; unpacking ignores them. A directory that exists already keeps its permissions.
    /// Nothing is unpacked outside the destination directory.
    #[arg(long)]
    archive: bool,
    /// Access the files of the sandbox as this user
    #[arg(short, long)]
    user: Option<String>,
}

impl Cp {
    pub(crate) async fn run(self, engine: &Engine) -> u8 {
        let done = match Signals::listen() {
            // A copy that is dropped removes its incomplete file.
            Ok(mut signals) => tokio::select! {
                done = self.copy(engine) => done,
                signal = signals.end() => Ok((128 + signal) as u8),
            },
            Err(error) => Err(error),
        };
        done.unwrap_or_else(|error| report::failed(&error))
    }

    async fn copy(&self, engine: &Engine) -> Result<u8> {
        match (CopyEndpoint::read(&self.source), CopyEndpoint::read(&self.target)) {
            (CopyEndpoint::Inside { id, path }, to @ (CopyEndpoint::Host(_) | CopyEndpoint::Stream)) => {
                let mut copier = self.copier(engine, &id).await?;
                let mut stdout = Stdout::default();
                let done = match to.file() {
                    Some(file) if self.archive => copier.pack(&path, file).await,
                    Some(file) => copier.copy_out(&path, file).await,
                    None if self.archive => {
                        refuse_terminal()?;
                        copier.pack_stream(&path, &mut stdout, "standard output").await
                    }
                    None => copier.stream_out(&path, &mut stdout, "standard output").await,
                };
                if stdout.reader_left() {
                    return Ok(BROKEN_PIPE);
                }
                done.and_then(|()| all_copied(copier.counts()))
            }
            (from @ (CopyEndpoint::Host(_) | CopyEndpoint::Stream), CopyEndpoint::Inside { id, path }) => {
                let mut copier = self.copier(engine, &id).await?;
                let target = self.target.display().to_string();
                match from.file() {
                    Some(file) if self.archive => copier.unpack(file, &path, &target).await?,
                    Some(file) => copier.copy_in(file, &path).await?,
                    None if self.archive => {
                        let stdin = archive_on_stdin(&target)?;
                        copier.unpack_stream(stdin, "standard input", &path, &target).await?;
                    }
                    None => copier.stream_in(input::open(), "standard input", &path).await?,
                }
                all_copied(copier.counts())
            }
            _ => {
                let message = "exactly one of source and destination must be in a sandbox";
                Err(Error::new(ErrorCode::InvalidConfig, message).hint("write it as ID:PATH"))
            }
        }
    }

    async fn copier(&self, engine: &Engine, id: &str) -> Result<Copier> {
        let sandbox = crate::sandboxes::find(engine, id).await?;
        let mut shown = Shown::begin();
        Copier::new(&sandbox, self.user.as_deref(), move |progress| shown.show(progress)).await
    }
}

/// Reports as an error that something was not copied, or not as it was.
fn all_copied(counts: Counts) -> Result<u8> {
    let all = counts.files + counts.skipped;
    let mut wrong = Vec::new();
    if counts.skipped > 0 {
        wrong.push(format!("{} of {all} entries were skipped", counts.skipped));
    }
    if counts.incomplete > 0 {
        wrong.push(format!("{} of {all} entries are incomplete", counts.incomplete));
    }
    if wrong.is_empty() { Ok(0) } else { Err(Error::new(ErrorCode::Unsupported, wrong.join(", "))) }
}

fn refuse_terminal() -> Result<()> {
    if !std::io::stdout().is_terminal() {
        return Ok(());
    }
    let message = "cannot write an archive to a terminal";
    Err(Error::new(ErrorCode::InvalidConfig, message).hint("name a file, or use a pipe: ... | tar tv"))
}

fn archive_on_stdin(target: &str) -> Result<PipeReader> {
    if input::kind() != input::StdinKind::Terminal {
        return Ok(input::open());
    }
    let message = "standard input is a terminal, not an archive";
    Err(Error::new(ErrorCode::InvalidConfig, message).hint(format!("tar c . | kennel cp --archive - {target}")))
}
