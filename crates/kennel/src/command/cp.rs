//! `kennel cp`.

use crate::completion::places;
use crate::copy::{Place, Tally, copy_in, copy_out, copy_stream_in, copy_stream_out, join};
use crate::providers::Providers;
use crate::report;
use kennel_core::{Error, Files, Result, Sandbox};
use kennel_types::ErrorCode;
use std::ffi::OsString;

const EXAMPLES: &str = "\
Examples:
  kennel cp notes.txt box:/tmp/            a file
  kennel cp box:src ./copy                 a directory; `src` counts from the working directory
  kennel cp box:src/. ./copy               what is in it
  kennel cp box:/etc/hosts - | grep box    the content
  date | kennel cp - box:/tmp/date

A name here that has a colon in it is written ./a:b.";

/// Copy files into or out of a sandbox
///
/// Directories are copied with all that is in them. Links are copied as links, never followed.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Cp {
    /// From where: PATH, ID:PATH or - for standard input
    #[arg(value_name = "SRC", add = places())]
    source: OsString,
    /// To where: PATH, ID:PATH or - for standard output
    #[arg(value_name = "DST", add = places())]
    target: OsString,
    /// Read or write inside as this user
    #[arg(short, long)]
    user: Option<String>,
}

impl Cp {
    pub(crate) async fn run(self, providers: &Providers) -> u8 {
        self.copy(providers).await.unwrap_or_else(|error| report::failed(&error))
    }

    async fn copy(&self, providers: &Providers) -> Result<u8> {
        let mut tally = Tally::begin();
        match (Place::read(&self.source), Place::read(&self.target)) {
            (Place::Inside { id, path }, Place::Host(target)) => {
                let (_, files, path) = self.inside(providers, &id, &path).await?;
                copy_out(&files, &path, &target, &mut tally).await?;
            }
            (Place::Inside { id, path }, Place::Stream) => {
                let (_, files, path) = self.inside(providers, &id, &path).await?;
                return copy_stream_out(&files, &path).await;
            }
            (Place::Host(source), Place::Inside { id, path }) => {
                let (sandbox, files, path) = self.inside(providers, &id, &path).await?;
                copy_in(&sandbox, &files, &source, &path, &mut tally).await?;
            }
            (Place::Stream, Place::Inside { id, path }) => {
                let (_, files, path) = self.inside(providers, &id, &path).await?;
                copy_stream_in(&files, &path).await?;
            }
            _ => {
                let message = "exactly one of the two places must be in a sandbox";
                return Err(Error::new(ErrorCode::InvalidConfig, message).hint("write it as ID:PATH"));
            }
        }
        match tally.left_out {
            0 => Ok(0),
            count => {
                let message = format!("{count} of {} entries were left out", tally.files + count);
                Err(Error::new(ErrorCode::Unsupported, message))
            }
        }
    }

    /// The sandbox, its files, and the path as seen from its root.
    async fn inside(&self, providers: &Providers, id: &str, path: &[u8]) -> Result<(Sandbox, Files, Vec<u8>)> {
        let sandbox = providers.find(id).await?;
        let files = sandbox.files(self.user.as_deref()).await?;
        let path = join(sandbox.info().workdir.as_bytes(), path);
        Ok((sandbox, files, path))
    }
}
