//! The side of a copy that is in a sandbox: its files, and what the keeper has no call for, done by programs inside.

use kennel_core::{Error, Files, Output, Result, Sandbox};
use kennel_types::{ErrorCode, ExecSpec, FileKind};

/// A sandbox as one of its users sees it.
pub(crate) struct Inside {
    pub(crate) sandbox: Sandbox,
    pub(crate) files: Files,
    pub(crate) user: Option<String>,
}

impl Inside {
    pub(super) async fn is_dir(&self, path: &[u8]) -> Result<bool> {
        match self.files.stat(path, true).await {
            Ok(stat) => Ok(stat.kind == FileKind::Directory),
            Err(error) if error.code() == ErrorCode::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Makes a link with this text in place of a file or link. Answers why not, if it cannot be.
    pub(super) async fn make_link(&self, text: &[u8], path: &[u8]) -> Result<Result<(), String>> {
        // `ln` would put it into a directory that is there.
        match self.files.remove(path, false).await {
            Err(error) if error.code() == ErrorCode::AlreadyExists => {
                return Ok(Err("there is a directory in its place".into()));
            }
            Err(error) if error.code() != ErrorCode::NotFound => return Ok(Err(error.to_string())),
            _ => {}
        }
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

    /// Gives directories these permission bits, in this order.
    pub(super) async fn set_modes(&self, directories: &[(Vec<u8>, u32)]) -> Result<()> {
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
