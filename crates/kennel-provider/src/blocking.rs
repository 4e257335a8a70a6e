//! Runs file work where it does not block other tasks.

use kennel_core::{Error, Result};
use kennel_types::ErrorCode;
use tokio::runtime::{Handle, RuntimeFlavor};

/// Runs `work`, which may block on files. On a runtime with several threads it runs on a thread for blocking work. On
/// a runtime with one thread it runs in place: there it delays nobody but its caller, and a new thread would take
/// longer than the work.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let several = Handle::try_current().is_ok_and(|runtime| runtime.runtime_flavor() != RuntimeFlavor::CurrentThread);
    if !several {
        return work();
    }
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(_) => Err(Error::new(ErrorCode::Aborted, "the program ends")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Which thread does the work, from a task of a runtime.
    fn runs_elsewhere(runtime: &tokio::runtime::Runtime) -> bool {
        runtime.block_on(async {
            let here = std::thread::current().id();
            blocking(move || Ok(std::thread::current().id() != here)).await.unwrap()
        })
    }

    #[test]
    fn only_a_runtime_with_several_threads_uses_another_one() {
        let one = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let several = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
        assert!(!runs_elsewhere(&one));
        assert!(runs_elsewhere(&several));
    }
}
