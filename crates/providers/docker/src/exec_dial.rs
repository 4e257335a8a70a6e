//! Connects to a keeper through the engine, if its socket is on another machine. The engine starts a program inside
//! that connects and copies bytes. Its output is in the engine's own frames, which the client library decodes.

use crate::Docker;
use crate::engine::status;
use crate::info::Container;
use crate::keeper::{AttemptError, NotConnected};
use crate::mounts::{KEEPER, OURS};
use crate::plan::SOCKET;
use bollard::container::LogOutput;
use bollard::exec::{StartExecOptions, StartExecResults};
use bollard::models::ExecConfig;
use futures_util::{Stream, StreamExt};
use kennel_core::{ByteStream, Error, printable};
use kennel_proto::dial::{LINE, REACHED, REFUSED};
use kennel_types::ErrorCode;
use std::pin::Pin;
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf};

/// Bytes in transit in one direction.
const WINDOW: usize = 256 * 1024;

type Output = Pin<Box<dyn Stream<Item = Result<LogOutput, bollard::errors::Error>> + Send>>;
type Input = Pin<Box<dyn AsyncWrite + Send>>;

impl Docker {
    /// Copies the keeper program into a stopped container. This is done before each start, because processes inside may
    /// have changed it.
    pub(crate) async fn put_keeper(&self, container: &Container) -> kennel_core::Result<()> {
        let what = "put the keeper's program into the sandbox";
        let mut archive = tar::Builder::new(Vec::new());
        let entries = [
            ("keeper", tar::EntryType::Regular, 0o555, kennel_keeper_bin::KEEPER.bytes()),
            ("run", tar::EntryType::Directory, 0o700, &[]),
        ];
        for (name, kind, mode, bytes) in entries {
            let mut header = tar::Header::new_ustar();
            header.set_entry_type(kind);
            header.set_mode(mode);
            header.set_uid(0);
            header.set_gid(0);
            header.set_size(bytes.len() as u64);
            archive.append_data(&mut header, name, bytes).map_err(|error| Error::io(what, error))?;
        }
        self.put(&container.engine_id, OURS, archive, what).await
    }

    /// Connects to the keeper through the engine.
    pub(crate) async fn connect_by_engine(&self, container: &Container) -> Result<Box<dyn ByteStream>, AttemptError> {
        let what = || format!("reach the keeper of sandbox {} through the engine", container.info.name);
        let failed = |error| match status(&error) {
            // It is gone, or no longer running. The next attempt shows which.
            Some(404 | 409 | 500) => AttemptError::Retry(self.engine.error(what(), error)),
            _ => AttemptError::Final(NotConnected::Failed(self.engine.error(what(), error))),
        };
        let api = self.engine.api().await.map_err(|error| AttemptError::Final(error.into()))?;
        let command = [KEEPER, "dial", "--socket", &format!("{OURS}/run/{SOCKET}")];
        let config = ExecConfig {
            attach_stdin: Some(true),
            attach_stdout: Some(true),
            attach_stderr: Some(true),
            tty: Some(false),
            user: Some("0:0".into()),
            working_dir: Some("/".into()),
            cmd: Some(command.map(ToOwned::to_owned).into()),
            ..ExecConfig::default()
        };
        let made = api.create_exec(&container.engine_id, config).await.map_err(failed)?;
        let options = StartExecOptions { detach: false, tty: false, output_capacity: Some(WINDOW) };
        let StartExecResults::Attached { mut output, input } =
            api.start_exec(&made.id, Some(options)).await.map_err(failed)?
        else {
            let message = format!("{}: the engine did not attach", what());
            return Err(AttemptError::Final(NotConnected::Failed(Error::new(ErrorCode::Internal, message))));
        };
        let (how, why, rest) = first_line(&mut output).await;
        if how == Some(REACHED) {
            let (ours, theirs) = tokio::io::duplex(WINDOW);
            tokio::spawn(pass_on(theirs, output, input, rest));
            return Ok(Box::new(ours));
        }
        let message = format!("{}: {}", what(), printable(why.trim()));
        Err(match how {
            Some(REFUSED) => {
                AttemptError::Final(NotConnected::Failed(Error::new(ErrorCode::PermissionDenied, message)))
            }
            _ => AttemptError::Retry(Error::new(ErrorCode::NotAvailable, message)),
        })
    }
}

/// Reads the program's first line: the result, the reason, and the bytes after it.
async fn first_line(output: &mut Output) -> (Option<char>, String, Vec<u8>) {
    let (mut out, mut complaint) = (Vec::new(), Vec::new());
    while let Some(Ok(part)) = output.next().await {
        match part {
            LogOutput::StdOut { message } => out.extend_from_slice(&message),
            LogOutput::StdErr { message } => complaint.extend_from_slice(&message),
            _ => {}
        }
        if let Some(end) = out.iter().position(|byte| *byte == b'\n') {
            let line = String::from_utf8_lossy(&out[..end]).into_owned();
            let mut chars = line.chars();
            return (chars.next(), chars.as_str().to_owned(), out.split_off(end + 1));
        }
        if out.len() > LINE || complaint.len() > LINE {
            break;
        }
    }
    // The engine reports there what it could not start.
    complaint.extend(out);
    (None, String::from_utf8_lossy(&complaint).into_owned(), Vec::new())
}

/// Copies bytes until both sides have closed, or ours is gone.
async fn pass_on(ours: DuplexStream, output: Output, input: Input, rest: Vec<u8>) {
    let (from_us, to_us) = tokio::io::split(ours);
    tokio::join!(send(from_us, input), receive(output, to_us, rest));
}

async fn send(mut from_us: ReadHalf<DuplexStream>, mut input: Input) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(read @ 1..) = from_us.read(&mut buffer).await {
        if input.write_all(&buffer[..read]).await.is_err() || input.flush().await.is_err() {
            return;
        }
    }
    let _ = input.shutdown().await;
}

async fn receive(mut output: Output, mut to_us: WriteHalf<DuplexStream>, rest: Vec<u8>) {
    if to_us.write_all(&rest).await.is_err() {
        return;
    }
    while let Some(Ok(part)) = output.next().await {
        if let LogOutput::StdOut { message } = part
            && to_us.write_all(&message).await.is_err()
        {
            return;
        }
    }
    let _ = to_us.shutdown().await;
}
