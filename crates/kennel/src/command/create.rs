//! `kennel create`.

use crate::life::{Watch, create, remove, say_ports};
use crate::options::SandboxOptions;
use crate::output::{print, print_json};
use crate::progress::{pull, while_waiting};
use crate::providers::Providers;
use crate::report;
use crate::result::JsonError;
use crate::settings::Settings;
use kennel_core::{Result, Sandbox, printable};

const EXAMPLES: &str = "\
Examples:
  kennel create --name box --start        a sandbox that waits for `kennel exec`
  kennel create --start -- ./server       one that runs a command, and ends with it
  kennel create --start -p 8080 -- ./server   reachable at a port of 127.0.0.1 that is told
  kennel create --image debian --memory 1G --network none
  kennel create --start --image agent --image-command --data --cache npm:/root/.npm";

/// Make a sandbox that stays
///
/// Prints its name, or its id if it has none. The command is its main process: it starts with the
/// sandbox, and the sandbox ends with it. Without one the sandbox waits for `kennel exec`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Create {
    /// Start it too
    #[arg(long)]
    start: bool,
    /// Print what `kennel inspect` would
    #[arg(long)]
    json: bool,
    /// Without a command, let the image's own be the main process
    #[arg(long, conflicts_with = "command")]
    image_command: bool,
    #[command(flatten)]
    sandbox: SandboxOptions,
    /// The main process and its arguments
    #[arg(value_name = "CMD", trailing_var_arg = true)]
    command: Vec<String>,
}

impl Create {
    pub(crate) async fn run(self, providers: &Providers) -> u8 {
        match self.made(providers).await {
            Ok(status) => status,
            Err(error) => {
                if self.json {
                    print_json(&serde_json::json!({ "error": JsonError::of(&error) }));
                    return report::exit_status(&error);
                }
                report::failed(&error)
            }
        }
    }

    async fn made(&self, providers: &Providers) -> Result<u8> {
        let mut watch = Watch::begin(None)?;
        let settings = Settings::in_force()?;
        let image = self.sandbox.image(&settings);
        let provider = watch.unless_ended(providers.for_new(&settings, image)).await?;
        let mut spec = self.sandbox.spec(&settings, provider.mode())?;
        if !self.command.is_empty() {
            spec.command = Some(self.command.clone());
        }
        if self.image_command {
            spec.command = None;
        }
        let set = settings.sandbox.image_command && spec.image.is_some() && spec.command.is_none();
        spec.image_main = self.image_command || set;
        if let Some(image) = &spec.image {
            watch.unless_ended(pull(&*provider, image, self.sandbox.pull(&settings))).await?;
        }
        let sandbox = create(provider, &spec, &mut watch).await?;
        if self.start {
            self.start(&sandbox, &mut watch).await?;
            say_ports(&sandbox, &spec).await?;
        }
        Ok(if self.json { print_json(&sandbox.inspect().await?) } else { print(&printable(&sandbox.info().name)) })
    }

    async fn start(&self, sandbox: &Sandbox, watch: &mut Watch) -> Result<()> {
        let started = while_waiting("starting the sandbox", watch.unless_ended(sandbox.start())).await;
        if started.is_err()
            && let Err(error) = remove(sandbox).await
        {
            report::error(&error);
        }
        started
    }
}
