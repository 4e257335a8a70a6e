//! `kennel version`.

use crate::output::{print, print_json};

const EXAMPLES: &str = "\
Examples:
  kennel version
  kennel version --json | jq -r .version";

/// Show the version
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Version {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Version {
    pub(crate) fn run(&self) -> u8 {
        const VERSION: &str = env!("CARGO_PKG_VERSION");
        if self.json {
            return print_json(&serde_json::json!({
                "version": VERSION,
                "protocol": kennel_proto::GENERATION,
                "os": std::env::consts::OS,
                "arch": std::env::consts::ARCH,
            }));
        }
        print(&format!("kennel {VERSION}"))
    }
}
