//! The disk of a sandbox with a size limit.

use kennel_core::{Error, Result};
use kennel_jail::DISK;
use kennel_types::{ByteSize, ErrorCode, NextStep, format_bytes};
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Stdio;

/// The smallest size. A smaller disk would be filled by the filesystem itself.
const LEAST: u64 = 1 << 20;

/// Creates the disk: a sparse file that contains a filesystem.
pub(crate) async fn make(dir: &Path, size: ByteSize) -> Result<()> {
    if size.0 < LEAST {
        let message =
            format!("a disk limit of {} is too small: the minimum is {}", format_bytes(size.0), format_bytes(LEAST));
        return Err(Error::new(ErrorCode::InvalidConfig, message));
    }
    let path = dir.join(DISK);
    let failed = |error| Error::io(format!("make {}", path.display()), error);
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).map_err(failed)?;
    file.set_len(size.0).map_err(failed)?;
    // No journal is needed, because a sandbox does not continue after a crash of the machine.
    let output = tokio::process::Command::new("mkfs.ext4")
        .args(["-q", "-F", "-m", "0", "-O", "^has_journal", "-E", "lazy_itable_init=1,nodiscard"])
        .arg(&path)
        .env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin")
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await;
    match output {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            Err(Error::new(
                ErrorCode::StartFailed,
                format!("make a disk of {}: mkfs.ext4: {why}", format_bytes(size.0)),
            ))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let message = "a disk limit needs mkfs.ext4, which is not installed";
            Err(Error::new(ErrorCode::NotAvailable, message)
                .suggest(NextStep::run_on_host("apt-get install e2fsprogs")))
        }
        Err(error) => Err(Error::io("run mkfs.ext4", error)),
    }
}
