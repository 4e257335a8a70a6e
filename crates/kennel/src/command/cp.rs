//! `kennel cp`.

use crate::completion::places;
use crate::copy::{Inside, Place, Tally, copy_in, copy_out, copy_stream_in, copy_stream_out, join, pack, unpack};
use crate::providers::Providers;
use crate::report;
use crate::signals::Signals;
use kennel_core::{Error, Fence, Result};
use kennel_types::ErrorCode;
use std::ffi::OsString;

const EXAMPLES: &str = "\
Examples:
  kennel cp notes.txt box:/tmp/            copy a file
  kennel cp box:src ./copy                 copy a directory; `src` is relative to the working directory
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
/// Directories are copied with their contents, symlinks as symlinks. A symlink in a host path is followed only beneath the
/// current directory (for a relative path) and only beneath the workspace that contains it (for any path), because
/// processes in a sandbox can create symlinks there.
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
    pub(crate) async fn run(self, providers: &Providers) -> u8 {
        let done = match Signals::listen() {
            // What was begun is dropped, and takes away its half of a file.
            Ok(mut signals) => tokio::select! {
                done = self.copy(providers) => done,
                signal = signals.end() => Ok((128 + signal) as u8),
            },
            Err(error) => Err(error),
        };
        done.unwrap_or_else(|error| report::failed(&error))
    }

    async fn copy(&self, providers: &Providers) -> Result<u8> {
        let mut tally = Tally::begin();
        let mut status = 0;
        match (Place::read(&self.source), Place::read(&self.target)) {
            (Place::Inside { id, path }, to @ (Place::Host(_) | Place::Stream)) => {
                let (inside, path) = self.inside(providers, &id, &path).await?;
                let fences = fences(&inside, &to).await?;
                match to.file() {
                    file if self.archive => status = pack(&inside.files, &path, file, &fences, &mut tally).await?,
                    Some(file) => copy_out(&inside.files, &path, file, &fences, &mut tally).await?,
                    None => status = copy_stream_out(&inside.files, &path).await?,
                }
            }
            (from @ (Place::Host(_) | Place::Stream), Place::Inside { id, path }) => {
                let (inside, path) = self.inside(providers, &id, &path).await?;
                let fences = fences(&inside, &from).await?;
                match from.file() {
                    file if self.archive => unpack(&inside, file, &path, &self.target, &fences, &mut tally).await?,
                    Some(file) => copy_in(&inside, file, &path, &fences, &mut tally).await?,
                    None => copy_stream_in(&inside, &path).await?,
                }
            }
            _ => {
                let message = "exactly one of source and destination must be in a sandbox";
                return Err(Error::new(ErrorCode::InvalidConfig, message).hint("write it as ID:PATH"));
            }
        }
        if status != 0 {
            return Ok(status);
        }
        let mut wrong = Vec::new();
        if tally.left_out > 0 {
            wrong.push(format!("{} of {} entries were skipped", tally.left_out, tally.files + tally.left_out));
        }
        if tally.damaged > 0 {
            wrong.push(format!("{} of {} entries are incomplete", tally.damaged, tally.files + tally.left_out));
        }
        if wrong.is_empty() { Ok(0) } else { Err(Error::new(ErrorCode::Unsupported, wrong.join(", "))) }
    }

    /// The sandbox, and the path as seen from its root.
    async fn inside(&self, providers: &Providers, id: &str, path: &[u8]) -> Result<(Inside, Vec<u8>)> {
        let sandbox = providers.find(id).await?;
        let files = sandbox.files(self.user.as_deref()).await?;
        let path = join(sandbox.info().workdir.as_bytes(), path);
        Ok((Inside { sandbox, files, user: self.user.clone() }, path))
    }
}

/// The workspaces that a symlink must not lead out of: those of all sandboxes of the provider. What was removed is not known any
/// more.
async fn fences(inside: &Inside, here: &Place) -> Result<Vec<Fence>> {
    if here.file().is_none() {
        return Ok(Vec::new());
    }
    let listed = inside.sandbox.provider().list().await?;
    let workspaces = listed.iter().chain([inside.sandbox.info()]).filter_map(|info| info.workspace.as_deref());
    Ok(workspaces.filter_map(Fence::around).collect())
}
