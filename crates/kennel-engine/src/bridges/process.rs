//! The process that serves the bridges of one sandbox.

use super::{Entry, open_sockets};
use crate::{Caller, Directories, Engine, endpoint, lock_file};
use kennel_core::{Bridges, Error, Result, Sandbox, printable};
use kennel_types::{ErrorCode, SandboxId};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

/// The longest instructions.
const LONGEST: usize = 1 << 20;

/// What the process is told: the sandbox, and where its records are.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Instructions {
    id: SandboxId,
    state: PathBuf,
    data: PathBuf,
    config: Option<PathBuf>,
}

impl Instructions {
    pub(super) fn write(id: &SandboxId, directories: &Directories) -> Result<Vec<u8>> {
        let (state, data, config) = directories.parts();
        let instructions = Self { id: id.clone(), state, data, config };
        serde_json::to_vec(&instructions)
            .map_err(|error| Error::new(ErrorCode::Internal, format!("write instructions: {error}")))
    }

    fn read(line: &mut UnixStream) -> Result<Self> {
        let failed = |error| Error::io("read the instructions", error);
        let mut length = [0; 4];
        line.read_exact(&mut length).map_err(failed)?;
        let mut text = vec![0; (u32::from_le_bytes(length) as usize).min(LONGEST)];
        line.read_exact(&mut text).map_err(failed)?;
        serde_json::from_slice(&text).map_err(|error| failed(error.into()))
    }
}

/// Serves the bridges of a sandbox until that ends. This is all that a [`BridgeProgram`](super::BridgeProgram) does. It
/// gets its instructions on `line`, which is its standard input, and replies there once the sockets inside exist.
pub async fn serve_bridges(caller: Caller, mut line: UnixStream) -> Result<()> {
    let opened = open(caller, &mut line).await;
    let reply = match &opened {
        Ok(_) => "ok".to_owned(),
        Err(error) => format!("error {}", printable(&error.to_string())),
    };
    let _ = line.write_all(reply.as_bytes()).and_then(|()| line.shutdown(Shutdown::Both));
    let Serving { bridges, sandbox, file, engine, .. } = opened?;
    let error = bridges.serve().await;
    tracing::debug!(sandbox = %sandbox.id(), %error, "the bridges of a sandbox have ended");
    // If the sandbox removed itself, nobody else removes its file.
    if sandbox.inspect().await.is_err_and(|error| error.code() == ErrorCode::NotFound) {
        engine.bridges()?.remove(sandbox.id());
    }
    drop(file);
    Ok(())
}

/// Open bridges, and the lock that says so.
struct Serving {
    bridges: Bridges,
    sandbox: Sandbox,
    file: File,
    engine: Engine,
}

async fn open(caller: Caller, line: &mut UnixStream) -> Result<Serving> {
    let Instructions { id, state, data, config } = Instructions::read(line)?;
    let engines = endpoint::sockets(&caller);
    let engine = Engine::with_directories(caller, Directories::new(state, data, config));
    let dir = engine.bridges()?;
    let failed = |error| Error::io(format!("lock the sockets of sandbox {id}"), error);
    let file = File::open(dir.path(&id)).map_err(failed)?;
    if !lock_file::try_lock(&file).map_err(failed)? {
        return Err(Error::new(ErrorCode::AlreadyExists, format!("the sockets of sandbox {id} are served already")));
    }
    let Entry { provider, sockets } =
        dir.entry(&id)?.ok_or_else(|| Error::new(ErrorCode::NotFound, format!("sandbox {id} has no sockets")))?;
    let sockets = open_sockets(&sockets, &engines).await?;
    // A provider that never wakes or starts the sandbox.
    let sandbox = Sandbox::find(engine.bare_provider(provider)?, id.as_str()).await?;
    let bridges = sandbox.bridge(sockets).await?;
    Ok(Serving { bridges, sandbox, file, engine })
}
