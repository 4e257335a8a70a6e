//! `kennel token`: manages the tokens of the HTTP API.

use crate::output::{print, print_json, table};
use crate::report;
use kennel_core::{Result, printable};
use kennel_engine::{Engine, NewToken, Store, TokenInfo, TokenLimits, Tokens};
use kennel_types::{ByteSize, Scope, parse_cpus};
use serde::Serialize;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  kennel token create ci --scope create --project shop
  kennel token create agent --scope exec --project shop
  kennel token create dev --scope create --directory /srv/work --memory 4G --sandboxes 10
  kennel token ls
  kennel token revoke ci

`kennel serve` serves the API.";

/// Create, list and revoke tokens of the HTTP API
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
pub(crate) struct Token {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    Create(Create),
    Ls(Ls),
    Revoke(Revoke),
}

/// Create a token, and print it
///
/// The token is printed once: Kennel keeps only its hash. The scopes are read, exec (commands and files in existing
/// sandboxes), create (also create and remove sandboxes) and admin (everything). Each includes those before it.
#[derive(Debug, clap::Args)]
struct Create {
    /// A name, for `kennel token ls` and `kennel token revoke`
    name: String,
    /// What the token allows: read, exec, create or admin
    #[arg(long, value_name = "SCOPE")]
    scope: Scope,
    /// Allow only sandboxes of this project
    #[arg(long, value_name = "PROJECT")]
    project: Option<String>,
    /// Allow workspaces and mounts below this directory; without the scope admin, no others are allowed
    #[arg(long = "directory", value_name = "DIR")]
    directories: Vec<PathBuf>,
    /// The largest memory limit of a sandbox, which is also the default
    #[arg(long, value_name = "SIZE")]
    memory: Option<ByteSize>,
    /// The largest CPU limit of a sandbox, which is also the default
    #[arg(long, value_name = "COUNT", value_parser = parse_cpus)]
    cpus: Option<u32>,
    /// The largest number of sandboxes that the token can see, before it creates another
    #[arg(long, value_name = "COUNT")]
    sandboxes: Option<u32>,
    /// Print the token and its description as JSON
    #[arg(long)]
    json: bool,
}

/// List tokens
#[derive(Debug, clap::Args)]
struct Ls {
    /// Print the tokens as JSON
    #[arg(long)]
    json: bool,
}

/// Revoke a token: the server refuses it from now on
#[derive(Debug, clap::Args)]
struct Revoke {
    /// The name or the id of the token
    token: String,
}

#[derive(Serialize)]
struct Created {
    token: String,
    #[serde(flatten)]
    info: TokenInfo,
}

impl Token {
    pub(crate) async fn run(self, engine: &Engine) -> u8 {
        let done = match self.action {
            Action::Create(command) => command.run(engine).await,
            Action::Ls(command) => command.run(engine).await,
            Action::Revoke(command) => command.run(engine).await,
        };
        done.unwrap_or_else(|error| report::failed(&error))
    }
}

async fn tokens(engine: &Engine) -> Result<Tokens> {
    Ok(Tokens::new(Store::open(engine.directories()?.database()).await?))
}

impl Create {
    async fn run(self, engine: &Engine) -> Result<u8> {
        let mut directories = Vec::new();
        for dir in &self.directories {
            let real =
                dir.canonicalize().map_err(|error| kennel_engine::request::missing_path(dir, "--directory", error))?;
            directories.push(real.display().to_string());
        }
        let new = NewToken {
            name: self.name,
            scope: self.scope,
            project: self.project,
            directories,
            limits: TokenLimits {
                memory_bytes: self.memory.map(|size| size.0),
                millicpus: self.cpus,
                sandboxes: self.sandboxes,
            },
        };
        let (token, info) = tokens(engine).await?.create(new).await?;
        Ok(if self.json { print_json(&Created { token, info }) } else { print(&token) })
    }
}

impl Ls {
    async fn run(self, engine: &Engine) -> Result<u8> {
        let tokens = tokens(engine).await?.list().await?;
        if self.json {
            return Ok(print_json(&tokens));
        }
        let text = |text: &Option<String>| text.as_deref().map_or_else(|| "-".to_owned(), printable);
        let rows = tokens.iter().map(|token| {
            let directories = if token.directories.is_empty() { None } else { Some(token.directories.join(", ")) };
            [
                token.id.clone(),
                printable(&token.name),
                token.scope.to_string(),
                text(&token.project),
                text(&directories),
            ]
        });
        Ok(print(&table(["ID", "NAME", "SCOPE", "PROJECT", "DIRECTORIES"], rows)))
    }
}

impl Revoke {
    async fn run(self, engine: &Engine) -> Result<u8> {
        let revoked = tokens(engine).await?.revoke(&self.token).await?;
        Ok(print(&printable(&revoked.name)))
    }
}
