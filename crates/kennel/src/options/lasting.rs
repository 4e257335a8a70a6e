//! The options of a sandbox that stays.

use super::{SandboxOptions, TimeLimit};
use kennel_core::{Error, Result};
use kennel_types::{ErrorCode, Field, NextStep, SandboxSpec};

/// Options of `create` and `session create`.
#[derive(Debug, clap::Args)]
pub(crate) struct LastingOptions {
    /// Stop the sandbox after this time without a command, for example 30m, or `none` [default: none]
    #[arg(long, value_name = "TIME")]
    idle_timeout: Option<TimeLimit>,
    /// Pause the sandbox after this time without a command, for example 1m, or `none`; needs `kennel serve` [default:
    /// none]
    #[arg(long, value_name = "TIME")]
    idle_pause: Option<TimeLimit>,
    /// Without CMD, run the image's command as the main process
    #[arg(long, conflicts_with = "command")]
    image_command: bool,
    #[command(flatten)]
    pub(crate) sandbox: SandboxOptions,
}

impl LastingOptions {
    /// Adds the main process and the idle time to a specification. `command` is what the user gave. If it is empty,
    /// `image_command` says whether the image's command is the default.
    pub(crate) fn complete(&self, spec: &mut SandboxSpec, command: &[String], image_command: bool) -> Result<()> {
        if self.image_command {
            spec.command = None;
            if spec.image.is_none() {
                return Err(Error::new(ErrorCode::InvalidConfig, "--image-command needs an image")
                    .suggest(NextStep::set(Field::Image)));
            }
        }
        if !command.is_empty() {
            (spec.command, spec.image_main) = (Some(command.to_vec()), false);
        }
        let by_default = image_command && spec.image.is_some();
        spec.image_main |= spec.command.is_none() && (self.image_command || by_default);
        if let Some(TimeLimit(limit)) = self.idle_timeout {
            spec.idle_seconds = limit.map(|limit| limit.as_secs().max(1));
        }
        if let Some(TimeLimit(limit)) = self.idle_pause {
            spec.idle_pause_ms = limit.map(|limit| limit.as_millis().try_into().unwrap_or(u64::MAX));
        }
        Ok(())
    }
}
