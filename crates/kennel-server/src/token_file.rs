//! A file with a token for the programs of the server's own user.

use kennel_core::{Error, Result};
use kennel_engine::{NewToken, Store, TokenLimits, Tokens};
use kennel_types::{ErrorCode, Scope};
use std::fs::{File, OpenOptions, Permissions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

/// The name of the token in the file.
const NAME: &str = "local";

/// Makes sure that the file has a token that the server accepts, with all rights. Only the user can read the file.
pub async fn keep_token_file(store: &Store, path: &Path) -> Result<()> {
    let tokens = Tokens::new(store.clone());
    if let Some(token) = read(path)?
        && tokens.verify(&token).await?.is_some()
    {
        return Ok(());
    }
    match tokens.revoke(NAME).await {
        Err(error) if error.code() != ErrorCode::NotFound => return Err(error),
        _ => {}
    }
    let new = NewToken {
        name: NAME.into(),
        scope: Scope::Admin,
        project: None,
        directories: Vec::new(),
        limits: TokenLimits::default(),
    };
    let (token, _) = tokens.create(new).await?;
    write(path, &token).map_err(|error| Error::io(format!("write {}", path.display()), error))
}

/// Reads the file, and makes it private if it is not.
fn read(path: &Path) -> Result<Option<String>> {
    let failed = |error| Error::io(format!("read {}", path.display()), error);
    let file = match File::open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        file => file.map_err(failed)?,
    };
    if file.metadata().map_err(failed)?.permissions().mode() & 0o077 != 0 {
        file.set_permissions(Permissions::from_mode(0o600)).map_err(failed)?;
    }
    let mut text = String::new();
    file.take(1024).read_to_string(&mut text).map_err(failed)?;
    Ok(Some(text.trim_end().to_owned()))
}

fn write(path: &Path, token: &str) -> std::io::Result<()> {
    let partial = path.with_extension("partial");
    let _ = std::fs::remove_file(&partial);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&partial)?;
    writeln!(file, "{token}")?;
    std::fs::rename(partial, path)
}
