//! `kennel create`.

use crate::lifecycle::{Deadline, create, say_idle_pause, say_ports};
use crate::options::{LastingOptions, PoolOptions};
use crate::output::{print, print_json};
use crate::progress::{pull, while_waiting};
use crate::report;
use crate::result::JsonError;
use crate::sandboxes::{choose, settings};
use kennel_core::{Result, Sandbox, printable};
use kennel_engine::{Claimed, Engine, PoolResult, PoolUse, discard};
use kennel_types::{ErrorCode, SandboxInfo};

const EXAMPLES: &str = "\
Examples:
  kennel create --name box --start        a sandbox that waits for `kennel exec`
  kennel create --start -- ./server       a sandbox that stops when its command ends
  kennel create --start -p 8080 -- ./web  publish port 8080 at a free port of 127.0.0.1
  kennel create --start --rm -- ./job     a sandbox that is removed when its command ends
  kennel create --start --pool require    a sandbox from a pool (see `kennel pool`), or an error
  kennel create --image debian --memory 1G --network none
  kennel create --start --image agent --image-command --data --cache npm:/root/.npm";

/// Create a sandbox that stays until it is removed
///
/// Prints the name of the sandbox, or its id if it has no name. The command becomes the main process: it starts
/// with the sandbox, and the sandbox stops when it ends. Without a command, the sandbox waits for `kennel exec`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Create {
    /// Also start the sandbox
    #[arg(long)]
    start: bool,
    /// Print the sandbox as JSON, as `kennel inspect` does, and whether it came from a pool
    #[arg(long)]
    json: bool,
    /// Remove the sandbox when its main process ends or it is stopped
    #[arg(long)]
    rm: bool,
    #[command(flatten)]
    pool: PoolOptions,
    /// Main process and its arguments
    #[arg(value_name = "CMD", trailing_var_arg = true)]
    command: Vec<String>,
    #[command(flatten)]
    options: LastingOptions,
}

/// A new sandbox, and whether it came from a pool.
#[derive(serde::Serialize)]
struct Created<'a> {
    #[serde(flatten)]
    sandbox: &'a SandboxInfo,
    /// `null` if no pool was asked.
    pool: Option<&'a PoolResult>,
}

impl Create {
    pub(crate) async fn run(self, engine: &Engine) -> u8 {
        match self.made(engine).await {
            Ok(status) => status,
            Err(error) => {
                if self.json {
                    print_json(&serde_json::json!({ "error": JsonError::from_error(&error) }));
                    return report::exit_status(&error);
                }
                report::failed(&error)
            }
        }
    }

    async fn made(&self, engine: &Engine) -> Result<u8> {
        let mut deadline = Deadline::begin(None)?;
        let mut settings = settings(engine)?;
        let image = self.options.sandbox.image(&settings).map(ToOwned::to_owned);
        let provider = deadline.unless_ended(choose(engine, &mut settings, image.as_deref())).await?;
        let mut spec = self.options.sandbox.spec(engine, &settings, provider.mode())?;
        self.options.complete(&mut spec, &self.command, settings.sandbox.image_command)?;
        // The built-in default is for `run`. A sandbox of `create` is removed only if this is set explicitly.
        let set = settings.said("sandbox.autoRemove", settings.sandbox.auto_remove);
        spec.auto_remove = self.rm || set.unwrap_or(false);
        if let Some(image) = &spec.image {
            deadline.unless_ended(pull(&*provider, image, self.options.sandbox.pull(&settings))).await?;
        }
        let claimed = match (self.start, self.pool.is_given()) {
            (true, _) => self.pool.claim(engine, &*provider, &spec, PoolUse::Prefer).await?,
            (false, false) => Claimed::none()?,
            (false, true) => Claimed::impossible("it is not started at once", self.pool.usage(PoolUse::Prefer))?,
        };
        let (sandbox, pool) = create(claimed, provider, &spec, &mut deadline).await?;
        if !self.json {
            self.pool.report(pool.as_ref());
        }
        say_idle_pause(engine, spec.idle_pause_ms.is_some());
        if self.start {
            // A container from a pool runs.
            if !sandbox.info().status.is_up() {
                self.start(&sandbox, &mut deadline).await?;
            }
            say_ports(&sandbox, &spec).await?;
        }
        if !self.json {
            return Ok(print(&printable(&sandbox.info().name)));
        }
        match sandbox.inspect().await {
            // Its main process has already ended, so the sandbox was removed.
            Err(error) if error.code() == ErrorCode::NotFound && spec.auto_remove => {
                Ok(print_json(&Created { sandbox: sandbox.info(), pool: pool.as_ref() }))
            }
            info => Ok(print_json(&Created { sandbox: &info?, pool: pool.as_ref() })),
        }
    }

    async fn start(&self, sandbox: &Sandbox, deadline: &mut Deadline) -> Result<()> {
        let started = while_waiting("starting the sandbox", deadline.unless_ended(sandbox.start())).await;
        if started.is_err()
            && let Err(error) = discard(sandbox).await
        {
            report::error(&error);
        }
        started
    }
}
