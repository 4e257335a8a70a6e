//! The list of commands in `kennel --help`, in groups. Clap cannot group subcommands, so the list is part of a help
//! template.

use clap::Command;
use std::fmt::Write;

/// The commands of each group, most used first. Each command is in exactly one group.
const GROUPS: [(&str, &[&str]); 9] = [
    (
        "Sandboxes",
        &[
            "run", "create", "ls", "start", "stop", "rm", "inspect", "pause", "unpause", "rename", "wait", "stats",
            "events",
        ],
    ),
    ("Profiles and sessions", &["profile", "session"]),
    ("Agents", &["acp", "agent"]),
    ("Server", &["serve", "token", "pool"]),
    ("Commands and files", &["exec", "attach", "logs", "cp"]),
    ("Volumes", &["volume"]),
    ("Images", &["image", "build"]),
    ("Settings", &["config"]),
    ("This machine", &["doctor", "setup", "explain", "gc", "completions", "man", "version"]),
];

/// Adds the help template with the groups to the command that has all subcommands.
pub(crate) fn with_groups(command: Command) -> Command {
    let template = template(&command);
    command.help_template(template)
}

/// Returns clap's own template, with groups instead of its list of subcommands. It uses clap's styles, which clap
/// removes if colours are off.
fn template(command: &Command) -> String {
    let (header, literal) = (command.get_styles().get_header(), command.get_styles().get_literal());
    let width = command.get_subcommands().map(|subcommand| subcommand.get_name().len()).max().unwrap_or_default();
    let mut text = "{before-help}{about-with-newline}\n{usage-heading} {usage}\n".to_owned();
    for (group, names) in GROUPS {
        let _ = write!(text, "\n{header}{group}:{header:#}\n"); // a String takes everything
        for subcommand in names.iter().filter_map(|name| command.find_subcommand(name)) {
            let (name, about) = (subcommand.get_name(), subcommand.get_about().cloned().unwrap_or_default());
            let gap = " ".repeat(width - name.len());
            let _ = writeln!(text, "  {literal}{name}{literal:#}{gap}  {about}");
        }
    }
    let _ = write!(text, "\n{header}Options:{header:#}\n{{options}}{{after-help}}");
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::CommandFactory;

    #[test]
    fn every_command_is_in_exactly_one_group() {
        let cli = Cli::command();
        let all: Vec<&str> = cli.get_subcommands().map(Command::get_name).collect();
        let grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        // Both have the same order, so that the manual page and the reference list the commands like the help.
        assert_eq!(grouped, all);
    }

    #[test]
    fn every_command_is_listed_on_one_line() {
        const NARROW: usize = 80;
        let mut cli = with_groups(Cli::command());
        for help in [cli.render_help(), cli.render_long_help()].map(|help| help.to_string()) {
            for subcommand in cli.get_subcommands() {
                let about = subcommand.get_about().unwrap().to_string();
                let lines: Vec<&str> = help.lines().filter(|line| line.ends_with(&format!("  {about}"))).collect();
                assert_eq!(lines.len(), 1, "{about}: {lines:?}");
                assert_eq!(lines[0].split_whitespace().next(), Some(subcommand.get_name()));
                assert!(lines[0].len() <= NARROW, "{}", lines[0]);
            }
            assert!(help.contains("\nOptions:\n") && help.contains("--provider <NAME>"), "{help}");
        }
    }
}
