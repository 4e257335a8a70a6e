//! Measures whether sessions take longer if the store has many. Their sandboxes are in memory, so that only the store
//! makes a difference.

use super::Effort;
use super::environment::BenchEnvironment;
use super::row::Row;
use super::sample::{once, take_turns};
use anyhow::{Context, Result};
use kennel_core::{Error, Provider, RemoveOptions};
use kennel_engine::{OpenSession, SessionFilter, Sessions, Store};
use kennel_mock::Mock;
use kennel_types::{ErrorCode, SandboxSpec};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The number of sessions in a store with many; a tenth of it with `--quick`.
const MANY: usize = 10_000;
/// The number of sessions in the store that it is compared with.
const FEW: usize = 10;
/// The longest time that filling a store may take.
const FILL: Duration = Duration::from_mins(5);

/// Compares operations on a store with many sessions and on one with few. Lists have a page that both can fill, because
/// a longer list takes longer for another reason.
pub(super) fn full(environment: &BenchEnvironment, effort: Effort) -> Result<Vec<Row>> {
    let many = if effort.is_small() { MANY / 10 } else { MANY };
    let dir = tempfile::tempdir_in(environment.path()).context("make a directory for stores")?;
    let (full_path, small_path) = (dir.path().join("full/kennel.db"), dir.path().join("small/kennel.db"));
    let full = environment.wait(filled(&full_path, many))?;
    let small = environment.wait(filled(&small_path, FEW))?;
    let act = |sessions: &Sessions, what: Operation| environment.wait(what.run(sessions.clone()));
    let mut rows = Vec::new();
    for what in [Operation::List, Operation::Show, Operation::Open] {
        let turns = effort.times(400);
        let [ours, theirs] = take_turns(turns, [once(|| act(&full, what)), once(|| act(&small, what))])?;
        let label = format!("{} of {many} in the store", what.name());
        rows.push(Row::times(&label, &ours, &format!("the same of {FEW}"), &theirs).at_most(1.5));
    }
    let open = |path: &Path| environment.wait(Store::open(path)).map(drop);
    let [ours, theirs] = take_turns(effort.times(40), [once(|| open(&full_path)), once(|| open(&small_path))])?;
    let label = format!("open a store with {many} sessions");
    rows.push(Row::times(&label, &ours, &format!("one with {FEW}"), &theirs));
    Ok(rows)
}

/// An operation on sessions.
#[derive(Clone, Copy)]
enum Operation {
    /// List the first page.
    List,
    /// Show one that was opened early.
    Show,
    /// Open one, and remove it again.
    Open,
}

impl Operation {
    fn name(self) -> &'static str {
        match self {
            Self::List => "list the last 10 sessions",
            Self::Show => "show a session by name",
            Self::Open => "open and remove a session",
        }
    }

    async fn run(self, sessions: Sessions) -> kennel_core::Result<()> {
        match self {
            Self::List => {
                let page = SessionFilter { limit: Some(FEW), ..SessionFilter::default() };
                let listed = sessions.list(&page).await?;
                if listed.len() == FEW { Ok(()) } else { Err(wrong(&format!("{} sessions listed", listed.len()))) }
            }
            Self::Show => sessions.show(&name(FEW / 2)).await.map(drop),
            Self::Open => {
                let opened = sessions.open(request("measured".into())).await?;
                let options = RemoveOptions { force: true, volumes: true };
                sessions.remove(opened.summary.id.as_str(), options).await
            }
        }
    }
}

/// Returns a store with this many sessions. Their sandboxes are forgotten, so that none of them is in the way.
async fn filled(path: &Path, count: usize) -> kennel_core::Result<Sessions> {
    let fill = async {
        let mut sessions = on_new_mock(path.to_owned()).await?;
        for number in 0..count {
            // A mock with many sandboxes is slow.
            if number % 500 == 0 {
                sessions = on_new_mock(path.to_owned()).await?;
            }
            sessions.open(request(name(number))).await?;
        }
        on_new_mock(path.to_owned()).await
    };
    tokio::time::timeout(FILL, fill).await.map_err(|_| wrong(&format!("{count} sessions took longer than {FILL:?}")))?
}

async fn on_new_mock(path: PathBuf) -> kennel_core::Result<Sessions> {
    let mock: Arc<dyn Provider> = Arc::new(Mock::new());
    Ok(Sessions::new(Store::open(path).await?, vec![mock]))
}

fn request(name: String) -> OpenSession {
    let spec = SandboxSpec { project: Some("/project".into()), ..SandboxSpec::default() };
    OpenSession { name: Some(name), provider: "mock".into(), spec, ..OpenSession::default() }
}

fn name(number: usize) -> String {
    format!("session-{number}")
}

fn wrong(message: &str) -> Error {
    Error::new(ErrorCode::Internal, message.to_owned())
}
