//! Compares Kennel's speed with that of similar tools, in one run on one machine.
//!
//! The compared programs take turns (A B A B …), so that a machine that slows down affects all of them. A promise is
//! checked against the median. With `--check`, a group of rows with a broken promise is measured again, and longer,
//! before it counts, because other load on the machine is not a defect of Kennel.

#![allow(clippy::cast_precision_loss)] // nothing that is measured here has more than fifteen digits

mod cold;
mod environment;
mod exec;
mod files;
mod many;
mod memory;
mod pool;
mod relay;
mod row;
mod sample;
mod server;
mod store;

use crate::Bench;
use anyhow::{Result, bail};
use environment::BenchEnvironment;
use row::Row;
use std::time::Instant;

/// A group of rows that are measured together.
struct Group {
    name: &'static str,
    measure: fn(&BenchEnvironment, Effort) -> Result<Vec<Row>>,
}

const GROUPS: &[Group] = &[
    Group { name: "cold run", measure: cold::light },
    Group { name: "cold run with bridge", measure: cold::bridge },
    Group { name: "cold run as a user", measure: cold::user },
    Group { name: "cold run compared with engines", measure: cold::heavy },
    Group { name: "help", measure: cold::help },
    Group { name: "settings", measure: cold::settings },
    Group { name: "native exec", measure: exec::native },
    Group { name: "native exec as a user", measure: exec::user },
    Group { name: "docker exec", measure: exec::docker },
    Group { name: "podman exec", measure: exec::podman },
    Group { name: "files", measure: files::large },
    Group { name: "idle memory", measure: memory::idle },
    Group { name: "slow reader memory", measure: memory::slow_reader },
    Group { name: "many", measure: many::live },
    Group { name: "many as a user", measure: many::user },
    Group { name: "server, commands", measure: server::exec },
    Group { name: "server, memory", measure: server::memory },
    Group { name: "server, terminals", measure: server::terminals },
    Group { name: "server, files", measure: server::files },
    Group { name: "store", measure: store::full },
    Group { name: "relay", measure: relay::message },
    Group { name: "pool (native)", measure: pool::native },
    Group { name: "pool (docker)", measure: pool::docker },
    Group { name: "pool, idle resident", measure: pool::idle },
];

/// How many samples are taken, relative to the usual number.
#[derive(Clone, Copy)]
struct Effort {
    factor: f64,
}

impl Effort {
    /// Returns the number of samples to take where `usual` is the normal number.
    fn times(self, usual: u32) -> u32 {
        ((f64::from(usual) * self.factor).round() as u32).max(3)
    }

    /// Whether fewer samples than usual are requested.
    fn is_small(self) -> bool {
        self.factor < 1.0
    }
}

/// Measures everything, and prints the results. Returns whether all promises hold, if they are checked.
pub(crate) fn run(options: &Bench) -> Result<bool> {
    if cfg!(debug_assertions) {
        bail!("what is built without optimization is not worth measuring: use cargo xtask bench");
    }
    let environment = BenchEnvironment::set_up()?;
    let usual = Effort { factor: if options.quick { 0.25 } else { 1.0 } };
    let mut rows = Vec::new();
    for group in GROUPS.iter().filter(|group| options.only.as_ref().is_none_or(|word| group.name.contains(word))) {
        let start = Instant::now();
        let mut measured = (group.measure)(&environment, usual)?;
        if options.check && measured.iter().any(Row::is_broken) {
            eprintln!("== {}: a promise is not held; measuring again, and longer", group.name);
            measured = (group.measure)(&environment, Effort { factor: usual.factor * 3.0 })?;
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
