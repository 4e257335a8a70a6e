//! Ours beside its peers, in one run on one machine.
//!
//! Whoever is compared takes turns (A B A B …), so that a machine that slows down slows all of them. A promise is held by
//! the median. With `--check` a group of rows with a broken promise is measured once more, and longer, before it counts:
//! other people's work on the machine is no defect of ours.

#![allow(clippy::cast_precision_loss)] // nothing that is measured here has more than fifteen digits

mod arena;
mod cold;
mod exec;
mod files;
mod many;
mod memory;
mod row;
mod sample;

use crate::Bench;
use anyhow::{Result, bail};
use arena::Arena;
use row::Row;
use std::time::Instant;

/// Rows that are measured together.
struct Group {
    name: &'static str,
    measure: fn(&Arena, Effort) -> Result<Vec<Row>>,
}

const GROUPS: &[Group] = &[
    Group { name: "cold run", measure: cold::light },
    Group { name: "cold run beside engines", measure: cold::heavy },
    Group { name: "help", measure: cold::help },
    Group { name: "settings", measure: cold::settings },
    Group { name: "native exec", measure: exec::native },
    Group { name: "docker exec", measure: exec::docker },
    Group { name: "podman exec", measure: exec::podman },
    Group { name: "files", measure: files::large },
    Group { name: "idle memory", measure: memory::idle },
    Group { name: "slow reader memory", measure: memory::slow_reader },
    Group { name: "many", measure: many::live },
];

/// How often something is measured.
#[derive(Clone, Copy)]
struct Effort {
    factor: f64,
}

impl Effort {
    /// So many times, if nothing else was asked for.
    fn times(self, usual: u32) -> u32 {
        ((f64::from(usual) * self.factor).round() as u32).max(3)
    }

    /// Whether less will do.
    fn is_small(self) -> bool {
        self.factor < 1.0
    }
}

/// Measures everything; answers whether it is content.
pub(crate) fn run(options: &Bench) -> Result<bool> {
    if cfg!(debug_assertions) {
        bail!("what is built without optimization is not worth measuring: use cargo xtask bench");
    }
    let arena = Arena::set_up()?;
    let usual = Effort { factor: if options.quick { 0.25 } else { 1.0 } };
    let mut rows = Vec::new();
    for group in GROUPS.iter().filter(|group| options.only.as_ref().is_none_or(|word| group.name.contains(word))) {
        let start = Instant::now();
        let mut measured = (group.measure)(&arena, usual)?;
        if options.check && measured.iter().any(Row::is_broken) {
            eprintln!("== {}: a promise is not held; measuring again, and longer", group.name);
            measured = (group.measure)(&arena, Effort { factor: usual.factor * 3.0 })?;
        }
        eprintln!("== {} ({:.0} s)", group.name, start.elapsed().as_secs_f64());
        rows.extend(measured);
    }
    if options.json {
        row::print_json(&rows)?;
    } else {
        row::print_table(&rows);
    }
    let broken: Vec<&Row> = rows.iter().filter(|row| row.is_broken()).collect();
    for row in &broken {
        eprintln!("NOT HELD: {row}");
    }
    Ok(broken.is_empty() || !options.check)
}
