//! `kennel cp` with a sandbox of a server: files and archives. Directories are copied as archives.

use super::endpoint::CopyEndpoint;
use super::{Cp, archive_on_stdin, refuse_terminal};
use crate::input;
use crate::next_step::Hint;
use crate::output::{BROKEN_PIPE, Stdout};
use crate::report;
use crate::signals::Signals;
use kennel_api::FileKind;
use kennel_client::Client;
use kennel_core::copy::PipeReader;
use kennel_core::{Error, Result};
use kennel_types::ErrorCode;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::AsyncWrite;

impl Cp {
    pub(crate) async fn run_at(self, client: &Client) -> u8 {
        let done = match Signals::listen() {
            Ok(mut signals) => tokio::select! {
                done = self.copy_at(client) => done,
                signal = signals.end() => Ok((128 + signal) as u8),
            },
            Err(error) => Err(error),
        };
        done.unwrap_or_else(|error| report::failed(&error))
    }

    async fn copy_at(&self, client: &Client) -> Result<u8> {
        let user = self.user.as_deref();
        match (CopyEndpoint::read(&self.source), CopyEndpoint::read(&self.target)) {
            (CopyEndpoint::Inside { id, path }, CopyEndpoint::Stream) => {
                let (path, mut stdout) = (text(path)?, Stdout::default());
                let done = if self.archive {
                    refuse_terminal()?;
                    client.pack(&id, &path, user, &mut stdout).await
                } else {
                    client.read_file(&id, &path, user, &mut stdout).await
                };
                if stdout.reader_left() { Ok(BROKEN_PIPE) } else { done.map(|()| 0) }
            }
            (CopyEndpoint::Inside { id, path }, CopyEndpoint::Host(target)) => {
                let path = text(path)?;
                let mut file = if self.archive {
                    HostFile::create(&target)?
                } else {
                    self.refuse_directory(client.stat(&id, &path, user).await?.kind)?;
                    HostFile::create(&named(&target, path.rsplit('/').next().unwrap_or_default())?)?
                };
                if self.archive {
                    client.pack(&id, &path, user, &mut file).await?;
                } else {
                    client.read_file(&id, &path, user, &mut file).await?;
                }
                file.keep().map(|()| 0)
            }
            (CopyEndpoint::Stream, CopyEndpoint::Inside { id, path }) => {
                let path = text(path)?;
                if self.archive {
                    let stdin = archive_on_stdin(&self.target.display().to_string())?;
                    client.unpack(&id, &path, user, stdin).await?;
                } else {
                    client.write_file(&id, &path, user, None, input::open()).await?;
                }
                Ok(0)
            }
            (CopyEndpoint::Host(source), CopyEndpoint::Inside { id, path }) => {
                let path = text(path)?;
                let failed = |error| Error::io(format!("read {}", source.display()), error);
                let file = std::fs::File::open(&source).map_err(failed)?;
                let about = file.metadata().map_err(failed)?;
                if self.archive {
                    client.unpack(&id, &path, user, PipeReader::new(file)).await?;
                    return Ok(0);
                }
                self.refuse_directory(if about.is_dir() { FileKind::Directory } else { FileKind::File })?;
                let mode = std::os::unix::fs::PermissionsExt::mode(&about.permissions()) & 0o777;
                let name = source.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
                let is_directory = path.is_empty()
                    || path.ends_with('/')
                    || client.stat(&id, &path, user).await.is_ok_and(|found| found.kind == FileKind::Directory);
                let base = if path.is_empty() { "." } else { path.trim_end_matches('/') };
                let path = if is_directory { format!("{base}/{name}") } else { path };
                client.write_file(&id, &path, user, Some(mode), PipeReader::new(file)).await?;
                Ok(0)
            }
            _ => {
                let message = "exactly one of source and destination must be in a sandbox";
                Err(Error::new(ErrorCode::InvalidConfig, message).hint("write it as ID:PATH"))
            }
        }
    }

    fn refuse_directory(&self, kind: FileKind) -> Result<()> {
        if kind != FileKind::Directory {
            return Ok(());
        }
        let message = format!("{}: through a server, a directory is copied as an archive", self.source.display());
        let hint = format!("kennel cp --archive {} {}", self.source.display(), "FILE.tar");
        Err(Error::new(ErrorCode::Unsupported, message).hint(hint))
    }
}

/// A path inside. The API has paths in UTF-8 only.
fn text(path: Vec<u8>) -> Result<String> {
    String::from_utf8(path).map_err(|_| Error::new(ErrorCode::Unsupported, "through a server, paths must be UTF-8"))
}

/// The file to write: the target, or a file of this name in it.
fn named(target: &Path, name: &str) -> Result<PathBuf> {
    if !target.is_dir() {
        return Ok(target.to_owned());
    }
    // The name comes from the command line, but must not lead elsewhere.
    if matches!(name, "" | "." | "..") {
        return Err(Error::new(ErrorCode::InvalidConfig, format!("{}: a file name is missing", target.display())));
    }
    Ok(target.join(name))
}

/// A new file, which appears at its place when it is complete.
struct HostFile {
    file: tempfile::NamedTempFile,
    target: PathBuf,
}

impl HostFile {
    fn create(target: &Path) -> Result<Self> {
        let dir = target.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let file = tempfile::Builder::new().prefix(".kennel-cp-").tempfile_in(dir);
        let file = file.map_err(|error| Error::io(format!("create {}", target.display()), error))?;
        Ok(Self { file, target: target.to_owned() })
    }

    fn keep(self) -> Result<()> {
        use std::os::unix::fs::PermissionsExt as _;
        let failed = |error| Error::io(format!("write {}", self.target.display()), error);
        self.file.as_file().set_permissions(std::fs::Permissions::from_mode(0o644)).map_err(failed)?;
        self.file.persist(&self.target).map(drop).map_err(|error| failed(error.error))
    }
}

impl AsyncWrite for HostFile {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        Poll::Ready(self.file.write(bytes))
    }

    fn poll_flush(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(self.file.flush())
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        self.poll_flush(context)
    }
}
