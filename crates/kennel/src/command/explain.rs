//! `kennel explain`: shows the mode table, for a provider or for a feature.

mod syscalls;

use crate::next_step::{Hint, hint, words};
use crate::output::{print, print_json};
use crate::report;
use comfy_table::{Table, presets};
use kennel_core::{Error, printable};
use kennel_engine::Engine;
use kennel_types::{Availability, Backing, ErrorCode, IsolationLayer, MODES, Mode, NetworkMode, ProviderKind, Support};
use serde::Serialize;
use syscalls::Syscalls;

const EXAMPLES: &str = "\
Examples:
  kennel explain                  compare all providers
  kennel explain native           what isolates a native sandbox
  kennel explain limits           which providers enforce limits
  kennel explain seccomp          which providers filter system calls, what they allow, and why
  kennel explain seccomp --json";

/// Show what providers enforce and support
///
/// Shows all providers, one provider, or which providers support a feature. A provider refuses what it does not
/// support: a sandbox is never weaker than requested. For a provider that is not available on this machine, shows
/// the reason and the command to run. For the feature seccomp, also lists the system calls that sandboxes may make,
/// with the reason for each group.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Explain {
    /// A provider or a feature
    #[arg(value_name = "PROVIDER|FEATURE")]
    subject: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A feature that a mode supports or refuses.
struct Feature {
    name: String,
    what: &'static str,
    given: Box<dyn Fn(&Mode) -> bool>,
}

/// A mode, and whether its provider is available on this machine.
#[derive(Serialize)]
struct Here {
    #[serde(flatten)]
    mode: &'static Mode,
    here: Found,
}

/// Whether a provider is available on this machine, as text.
#[derive(Clone, Serialize)]
struct Found {
    available: bool,
    /// The version of the backend, or what is missing.
    detail: String,
    /// The command that makes the provider available.
    fix: Option<String>,
}

impl From<Availability> for Found {
    fn from(Availability { available, detail, next_step }: Availability) -> Self {
        Self { available, detail, fix: next_step.as_ref().map(words) }
    }
}

impl Explain {
    pub(crate) async fn run(&self, engine: &Engine) -> u8 {
        let mut rows = Vec::new();
        for name in Engine::PROVIDERS {
            let (here, can_be) = match engine.provider(name) {
                Ok(provider) => (Found::from(provider.probe().await), provider.modes()),
                Err(error) => (
                    Found { available: false, detail: error.to_string(), fix: hint(&error) },
                    vec![Mode::first_of(name)],
                ),
            };
            // For an engine, only its current mode is shown, unless the user names the engine.
            let is_engine = matches!(name, ProviderKind::Podman | ProviderKind::Docker);
            let asked = is_engine && self.subject.as_deref() == Some(name.name());
            let wanted =
                |mode: &&Mode| mode.key.provider == name && (asked || can_be.iter().any(|can| can.key == mode.key));
            rows.extend(MODES.iter().filter(wanted).map(|mode| Here { mode, here: here.clone() }));
        }
        let Some(subject) = self.subject.as_deref() else {
            return if self.json { print_json(&rows) } else { print(&matrix(&features(), &rows)) };
        };
        if MODES.iter().any(|mode| mode.provider() == subject && mode.backing != Backing::Memory) {
            rows.retain(|row| row.mode.provider() == subject);
            let text = || rows.iter().map(describe).collect::<Vec<_>>().join("\n");
            return if self.json { print_json(&rows) } else { print(&text()) };
        }
        let wanted = subject.replace('-', "_");
        let found: Vec<Feature> = features().into_iter().filter(|feature| feature.name == wanted).collect();
        if found.is_empty() {
            let known: Vec<String> = features().into_iter().map(|feature| feature.name).collect();
            let message = format!("unknown provider or feature {subject:?}: the features are {}", known.join(", "));
            return report::failed(&Error::new(ErrorCode::InvalidConfig, message).hint("kennel explain"));
        }
        let syscalls = (wanted == IsolationLayer::Seccomp.name()).then(Syscalls::new);
        if self.json {
            let given: Vec<_> = rows
                .iter()
                .map(|Here { mode, here }| {
                    serde_json::json!({
                        "mode": mode.name(), "provider": mode.provider(), "given": (found[0].given)(mode), "here": here,
                    })
                })
                .collect();
            return match syscalls {
                Some(syscalls) => print_json(&serde_json::json!({ "modes": given, "systemCalls": syscalls })),
                None => print_json(&given),
            };
        }
        let syscalls = syscalls.map(|syscalls| format!("\n\n{}", syscalls.text())).unwrap_or_default();
        print(&format!("{}\n\n{}{syscalls}", found[0].what, matrix(&found, &rows)))
    }
}

fn features() -> Vec<Feature> {
    let layers = IsolationLayer::ALL.iter().map(|layer| {
        let layer = *layer;
        Feature {
            name: layer.name().into(),
            what: layer.meaning(),
            given: Box::new(move |mode| mode.layers.contains(&layer)),
        }
    });
    let networks = [
        (NetworkMode::Bridge, "Its own network, with access to the outside."),
        (NetworkMode::None, "No network except its own loopback."),
        (NetworkMode::Host, "The host's network, without isolation."),
    ];
    let networks = networks.map(|(network, what)| Feature {
        name: format!("network_{network}"),
        what,
        given: Box::new(move |mode: &Mode| mode.networks.contains(&network)),
    });
    let support = |name: &str, what, of: fn(&Mode) -> Support| Feature {
        name: name.to_owned(),
        what,
        given: Box::new(move |mode: &Mode| of(mode) == Support::Given),
    };
    let supports = [
        support("limits", "Memory, CPU and process limits. Creation fails if one cannot be enforced.", |mode| {
            mode.limits
        }),
        support("mounts", "Bind mounts of the workspace and other host paths.", |mode| mode.mounts),
        support("ports", "Ports published at 127.0.0.1, with network bridge.", |mode| mode.ports),
        support("sockets", "Unix sockets of the host that programs inside can connect to.", |mode| mode.sockets),
        support("volumes", "A volume that outlives the sandbox, and volumes that sandboxes share.", |mode| {
            mode.volumes
        }),
        support(
            "keeper",
            "A keeper inside, for terminals, timeouts, signals and run. Without it: plain commands and files.",
            |mode| mode.keeper,
        ),
        support("read_only", "A read-only root filesystem, except the workspace, mounts, volumes and /tmp.", |mode| {
            mode.read_only
        }),
        support("disk", "A limit on what is written to the sandbox's own files.", |mode| mode.disk),
        support("nesting", "Nested sandboxes, for example those of bubblewrap.", |mode| mode.nesting),
        support("pause", "All processes can be paused and resumed.", |mode| mode.pause),
        support("users", "Commands as a user other than the sandbox's own.", |mode| mode.users),
    ];
    let images = Feature {
        name: "images".into(),
        what: "A root filesystem from an image, instead of the host's.",
        given: Box::new(|mode| mode.backing == Backing::Image),
    };
    layers.chain(networks).chain(supports).chain([images]).collect()
}

fn matrix(features: &[Feature], rows: &[Here]) -> String {
    let yes = |given: bool| if given { "yes" } else { "-" };
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(std::iter::once("FEATURE".to_owned()).chain(rows.iter().map(|row| row.mode.name())));
    table.add_row(std::iter::once("available here").chain(rows.iter().map(|row| yes(row.here.available))));
    for feature in features {
        let cells = rows.iter().map(|row| yes((feature.given)(row.mode)));
        table.add_row(std::iter::once(feature.name.as_str()).chain(cells));
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 3));
    }
    let mut text = table.trim_fmt();
    for row in rows.iter().filter(|row| !row.here.available) {
        text.extend(["\n\n".to_owned(), format!("{}: {}", row.mode.provider(), why(&row.here))]);
    }
    text
}

/// Returns why a provider is not available, and what to do about it.
fn why(here: &Found) -> String {
    let fix = here.fix.as_ref().map(|fix| format!("\n  try: {}", printable(fix)));
    format!("{}{}", printable(&here.detail), fix.unwrap_or_default())
}

fn describe(Here { mode, here }: &Here) -> String {
    let mut text = format!("{}\n", mode.name());
    let mut line = |name: &str, value: &str| text.extend([format!("  {name:<16} "), value.to_owned(), "\n".to_owned()]);
    let root = match mode.backing {
        Backing::HostOverlay => "the host's, with a private writable layer",
        Backing::HostParts => "the host's, with a private writable layer for each top-level directory",
        Backing::Image => "an image",
        Backing::Host => "the host itself",
        Backing::Memory => "memory",
    };
    let state = if here.available { format!("yes: {}", printable(&here.detail)) } else { format!("no: {}", why(here)) };
    line("available here", &state);
    line("root", root);
    line("ids", mode.ids);
    line("workspace files", &format!("belong to {}", mode.workspace_files));
    let networks: Vec<String> = mode.networks.iter().map(ToString::to_string).collect();
    let default = if networks.len() > 1 { " (the first is the default)" } else { "" };
    line("network", &format!("{}{default}", networks.join(", ")));
    let support = |support| if support == Support::Given { "supported" } else { "refused" };
    line("ports", support(mode.ports));
    line("sockets", support(mode.sockets));
    line("limits", support(mode.limits));
    line("disk limit", support(mode.disk));
    line("sandboxes inside", support(mode.nesting));
    line("mounts", support(mode.mounts));
    line("other users", support(mode.users));
    line("volumes", support(mode.volumes));
    line("read-only root", support(mode.read_only));
    line("pause", support(mode.pause));
    line("keeper", support(mode.keeper));
    if mode.layers.is_empty() {
        line("isolation", "none: it isolates nothing");
    }
    for (at, layer) in mode.layers.iter().enumerate() {
        line(if at == 0 { "isolation" } else { "" }, &format!("{:<20} {}", layer.name(), layer.meaning()));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_feature_of_a_suggestion_can_be_explained() {
        let known: Vec<String> = features().into_iter().map(|feature| feature.name).collect();
        for feature in kennel_types::Feature::ALL {
            assert!(known.iter().any(|name| name == feature.name()), "{feature:?}");
        }
    }
}
