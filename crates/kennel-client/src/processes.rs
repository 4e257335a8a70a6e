//! Commands that go on in a sandbox, without a WebSocket.

use crate::Client;
use crate::client::query;
use crate::operations::of_sandbox;
use crate::{client, error};
use http_body_util::{BodyExt as _, Full};
use hyper::Method;
use hyper::body::Bytes;
use kennel_api::{List, ProcessOutput, ProcessView, SignalRequest, StartProcess, StartedProcess, StdinTaken};
use kennel_types::Result;
use std::time::Duration;

fn of_process(sandbox: &str, process: u64, rest: &str) -> String {
    of_sandbox(sandbox, &format!("/processes/{process}{rest}"))
}

impl Client {
    /// Starts a command that keeps running.
    pub async fn start_process(&self, sandbox: &str, request: &StartProcess) -> Result<u64> {
        let started: StartedProcess =
            self.call(Method::POST, &of_sandbox(sandbox, "/processes"), Some(request)).await?;
        Ok(started.process)
    }

    /// Returns the commands of a sandbox.
    pub async fn processes(&self, sandbox: &str) -> Result<Vec<ProcessView>> {
        let list: List<ProcessView> = self.get(&of_sandbox(sandbox, "/processes")).await?;
        Ok(list.items)
    }

    /// Returns a command of a sandbox.
    pub async fn process(&self, sandbox: &str, process: u64) -> Result<ProcessView> {
        self.get(&of_process(sandbox, process, "")).await
    }

    /// Waits until a command has ended, or this time is over: at most ten minutes.
    pub async fn wait_for_process(&self, sandbox: &str, process: u64, within: Duration) -> Result<ProcessView> {
        let parameters = query(&[("timeoutMs", Some(within.as_millis().to_string()))]);
        self.get(&of_process(sandbox, process, &format!("/wait{parameters}"))).await
    }

    /// Returns what a command has printed after these offsets of standard output and standard error. If there is nothing, it
    /// waits for this time. What is before the offsets cannot be read again.
    pub async fn read_output(
        &self,
        sandbox: &str,
        process: u64,
        [stdout, stderr]: [u64; 2],
        wait: Duration,
    ) -> Result<ProcessOutput> {
        let parameters = query(&[
            ("stdout", Some(stdout.to_string())),
            ("stderr", Some(stderr.to_string())),
            ("waitMs", Some(wait.as_millis().to_string())),
        ]);
        self.get(&of_process(sandbox, process, &format!("/output{parameters}"))).await
    }

    /// Writes to the standard input of a command, at most 1 MiB. With an offset, the call can be repeated.
    pub async fn write_input(
        &self,
        sandbox: &str,
        process: u64,
        offset: Option<u64>,
        bytes: Vec<u8>,
        eof: bool,
    ) -> Result<StdinTaken> {
        let parameters =
            query(&[("offset", offset.map(|offset| offset.to_string())), ("eof", eof.then(|| "true".to_owned()))]);
        let path = of_process(sandbox, process, &format!("/stdin{parameters}"));
        let body = Full::new(Bytes::from(bytes)).map_err(|never| match never {}).boxed();
        let response = self.send(Method::POST, &path, body, false).await?;
        error::json(&client::whole(response).await?)
    }

    /// Sends a signal to the whole process tree of a command. 0 ends it.
    pub async fn signal(&self, sandbox: &str, process: u64, signal: i32) -> Result<()> {
        let path = of_process(sandbox, process, "/signal");
        self.done(Method::POST, &path, Some(&SignalRequest { signal })).await
    }
}
