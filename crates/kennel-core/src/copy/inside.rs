//! The side of a copy that is in a sandbox.
//!
//! A keeper without requests for symlinks and permissions, such as one that was started by an older Kennel, is replaced
//! in this by programs inside: `ln`, `chmod` and `xargs`.

use super::join;
use crate::{Error, Features, Fence, Files, Output, Result, Sandbox};
use kennel_types::{ErrorCode, ExecSpec, FileKind};

/// A sandbox as one of its users sees it.
pub(super) struct Inside {
    pub(super) sandbox: Sandbox,
    pub(super) files: Files,
    pub(super) user: Option<String>,
}

impl Inside {
    /// Returns a path inside, from the root.
    pub(super) fn path(&self, path: &[u8]) -> Vec<u8> {
        join(self.sandbox.info().workdir.as_bytes(), path)
    }

    /// Returns the workspaces that a symlink must not lead out of: those of all sandboxes of the provider. Workspaces
    /// of removed sandboxes are not known any more.
    pub(super) async fn fences(&self) -> Result<Vec<Fence>> {
        let listed = self.sandbox.provider().list().await?;
        let workspaces = listed.iter().chain([self.sandbox.info()]).filter_map(|info| info.workspace.as_deref());
        Ok(workspaces.filter_map(Fence::around).collect())
    }

    pub(super) async fn is_dir(&self, path: &[u8]) -> Result<bool> {
        match self.files.stat(path, true).await {
            Ok(stat) => Ok(stat.kind == FileKind::Directory),
            Err(error) if error.code() == ErrorCode::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Creates a symlink with this text, in place of anything but a directory with entries. If this is not possible,
    /// returns the reason.
    pub(super) async fn make_link(&self, text: &[u8], path: &[u8]) -> Result<Result<(), String>> {
        if !self.files.features().await?.contains(Features::SYMLINK) {
            return match self.make_room(path).await {
                Ok(()) => self.run_ln(text, path).await,
                Err(why) => Ok(Err(why)),
            };
        }
        let mut made = self.files.symlink(path, text, true).await;
        if made.as_ref().is_err_and(|error| error.code() == ErrorCode::AlreadyExists) {
            // A directory is there. It may be empty.
            if let Err(why) = self.make_room(path).await {
                return Ok(Err(why));
            }
            made = self.files.symlink(path, text, true).await;
        }
        match made {
            Ok(()) => Ok(Ok(())),
            // The connection is lost, and with it the rest of the copy.
            Err(error) if error.code() == ErrorCode::Stopped => Err(error),
            Err(error) => Ok(Err(error.to_string())),
        }
    }

    /// Removes what is at a path. If this is not possible, returns the reason.
    async fn make_room(&self, path: &[u8]) -> Result<(), String> {
        match self.files.remove(path, false).await {
            Err(error) if error.code() == ErrorCode::AlreadyExists => Err("there is a directory in its place".into()),
            Err(error) if error.code() != ErrorCode::NotFound => Err(error.to_string()),
            _ => Ok(()),
        }
    }

    /// Sets the permission bits of directories, in this order.
    pub(super) async fn set_modes(&self, directories: &[(Vec<u8>, u32)]) -> Result<()> {
        if !self.files.features().await?.contains(Features::CHMOD) {
            return self.run_chmod(directories).await;
        }
        for (path, mode) in directories {
            self.files.chmod(path, *mode, false).await?;
        }
        Ok(())
    }

    async fn run_ln(&self, text: &[u8], path: &[u8]) -> Result<Result<(), String>> {
        let made = match (std::str::from_utf8(text), std::str::from_utf8(path)) {
            (Ok(text), Ok(path)) => self.run(&["ln", "-sn", "--", text, path], None).await,
            _ => self.run(&["xargs", "-0", "ln", "-sn", "--"], Some(&[text, b"\0", path].concat())).await,
        };
        match made {
            Ok(output) if output.status.success() => Ok(Ok(())),
            Ok(output) => Ok(Err(said(&output))),
            Err(error) if error.code() == ErrorCode::ExecFailed => Ok(Err(error.to_string())),
            Err(error) => Err(error),
        }
    }

    async fn run_chmod(&self, directories: &[(Vec<u8>, u32)]) -> Result<()> {
        for same in directories.chunk_by(|a, b| a.1 == b.1) {
            let paths: Vec<&[u8]> = same.iter().map(|(path, _)| path.as_slice()).collect();
            let mode = format!("{:o}", same[0].1);
            let output = self.run(&["xargs", "-0", "chmod", &mode], Some(&paths.join(&0))).await?;
            if !output.status.success() {
                let message = format!("set the permissions of directories: {}", said(&output));
                return Err(Error::new(ErrorCode::PermissionDenied, message));
            }
        }
        Ok(())
    }

    async fn run(&self, argv: &[&str], stdin: Option<&[u8]>) -> Result<Output> {
        let spec = ExecSpec { user: self.user.clone(), ..ExecSpec::argv(argv.iter().copied()) };
        self.sandbox.run(&spec, stdin, 4096).await
    }
}

fn said(output: &Output) -> String {
    output.stderr_text().trim_end().to_owned()
}
