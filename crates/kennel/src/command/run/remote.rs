//! `kennel run` on a server. The sandbox has a time to live, which this program renews. So the server removes it also if
//! this program is killed.

use super::Run;
use super::upload::{Upload, WORKSPACE};
use crate::command::exec::AtServer;
use crate::interact::Ending;
use crate::lifecycle::Deadline;
use crate::options::TimeLimit;
use crate::progress::while_waiting;
use crate::provider_name::ProviderName;
use crate::report;
use crate::result::{CommandReport, Phase};
use kennel_api::{CreateSandbox, Millis};
use kennel_client::Client;
use kennel_core::{Error, Result};
use kennel_types::{Command, ErrorCode, ExecSpec};
use std::time::Duration;

/// The time limit, if the user sets none: that of a run on this machine.
const USUAL: Duration = Duration::from_mins(5);
/// How long a sandbox stays if this program is killed.
const LEASE: Duration = Duration::from_mins(3);
/// The time between two renewals.
const RENEW: Duration = Duration::from_mins(1);

impl Run {
    pub(crate) async fn run_at(self, client: &Client, provider: Option<ProviderName>) -> u8 {
        let mut record = CommandReport::begin(self.json);
        let mut cleanup = Ok(());
        let outcome = self.outcome_at(client, provider, &mut record, &mut cleanup).await;
        record.conclude(outcome, cleanup)
    }

    async fn outcome_at(
        &self,
        client: &Client,
        provider: Option<ProviderName>,
        record: &mut CommandReport,
        cleanup: &mut Result<()>,
    ) -> Result<Ending> {
        if self.profile.is_some() {
            return Err(Error::new(ErrorCode::Unsupported, "--profile does not work through a server"));
        }
        let limit = match self.timeout {
            Some(TimeLimit(limit)) => limit,
            None => (!self.program.wants_tty()).then_some(USUAL),
        };
        let upload = if self.upload { Some(Upload::of_current_dir()?) } else { None };
        let mut request = self.sandbox.request(provider, self.upload)?;
        request.ttl = (!self.keep).then_some(Millis(LEASE.as_millis() as u64));
        let mut deadline = Deadline::begin(limit)?;
        let creating = while_waiting("creating the sandbox", deadline.unless_ended(client.create(&request)));
        let sandbox = creating.await?;
        record.ended(Phase::Create);
        let lease = (!self.keep).then(|| Lease::begin(client, &sandbox.id));
        let outcome = self.inside_at(client, &sandbox.id, upload, &request, record, deadline).await;
        record.timeout = limit;
        if lease.is_none() {
            report::note(&format!("sandbox {} keeps running; to remove it: kennel rm --force {0}", sandbox.name));
        } else {
            drop(lease);
            *cleanup = match client.remove(&sandbox.id, true, false).await {
                Err(error) if error.code() == ErrorCode::NotFound => Ok(()),
                done => done,
            };
            record.ended(Phase::Remove);
        }
        outcome
    }
}

impl Run {
    /// Copies the directory, if that was requested, and runs the command.
    async fn inside_at(
        &self,
        client: &Client,
        sandbox: &str,
        upload: Option<Upload>,
        request: &CreateSandbox,
        record: &mut CommandReport,
        mut deadline: Deadline,
    ) -> Result<Ending> {
        let mut spec = ExecSpec::new(Command::LoginShell);
        if let Some(upload) = upload {
            deadline.unless_ended(upload.copy(client, sandbox)).await?;
            spec.cwd = request.workdir.is_none().then(|| WORKSPACE.to_owned());
        }
        spec.timeout = deadline.left()?;
        let run = AtServer { client, sandbox, program: &self.program, spec, json: self.json, how: "kennel run" };
        run.run(record, deadline).await
    }
}

/// Renews a sandbox until it is dropped.
struct Lease(tokio::task::AbortHandle);

impl Lease {
    fn begin(client: &Client, id: &str) -> Self {
        let (client, id) = (client.clone(), id.to_owned());
        let renewing = async move {
            loop {
                tokio::time::sleep_until(tokio::time::Instant::now() + RENEW).await;
                // A server that is away for a moment can be asked again before the time is over.
                let _ = client.renew(&id, LEASE).await;
            }
        };
        Self(tokio::spawn(renewing).abort_handle())
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.0.abort();
    }
}
