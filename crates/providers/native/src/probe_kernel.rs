//! Finds out what the kernel allows here, by running the jail.

use crate::Native;
use kennel_core::{Error, Result};
use kennel_jail::{KernelSupport, PROBE_KERNEL};
use std::process::{Command, Stdio};

impl Native {
    /// Tries the features that sandboxes need, and leaves nothing behind. It waits for the jail, which takes a few
    /// milliseconds.
    pub fn probe_kernel(&self) -> Result<KernelSupport> {
        let jail = self.program()?;
        let failed = |error| Error::io(format!("try the kernel with {}", jail.display()), error);
        let mut command = Command::new(&jail);
        command.arg(PROBE_KERNEL).env_clear().stdin(Stdio::null()).stderr(Stdio::null());
        let told = command.output().map_err(failed)?;
        minicbor::decode(&told.stdout).map_err(|error| failed(std::io::Error::other(error)))
    }

    /// Why the kernel does not let this user create namespaces, if so.
    pub(crate) fn refused(&self) -> Option<String> {
        self.probe_kernel().map_or_else(|error| Some(error.to_string()), |support| support.user_namespace.err())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_probed() {
        let dir = tempfile::tempdir().unwrap();
        let native = Native::new(dir.path().join("state"), dir.path().join("programs"));
        let before = std::fs::read_link("/proc/self/ns/user").unwrap();
        let support = native.probe_kernel().unwrap();
        assert_eq!(support.user_namespace, Ok(()));
        assert!(support.landlock.as_ref().map_or_else(|why| !why.is_empty(), |version| *version > 0), "{support:?}");
        assert_eq!(
            std::fs::read_link("/proc/self/ns/user").unwrap(),
            before,
            "this process has not changed its namespace"
        );
    }
}
