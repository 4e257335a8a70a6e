//! Requests to the server that schemathesis generates from its OpenAPI document, for each operation and for sequences of
//! operations: no response has status 500, or a status or a body that the document does not declare.
//!
//! The token has no scope `admin`, so that no generated path of the host becomes a workspace.

use crate::server::Serving;
use crate::support::Kennel;
use kennel_testkit::python;
use serde_json::json;
use std::process::{Command, Stdio};

/// Operations whose responses go on without an end, or as long as the request says.
const ENDLESS: [&str; 5] = ["streamEvents", "streamCommand", "followLogs", "watchFiles", "waitForSandbox"];
/// What is checked about each response.
/// The document declares which failures there can be; status 500 is not among them.
const CHECKS: &str =
    "status_code_conformance,content_type_conformance,response_schema_conformance,unsupported_method,ignored_auth";
/// The time for the requests of one run.
const SECONDS: u32 = 60;

#[test]
fn native() {
    let kennel = Kennel::among_others("native");
    fuzz(&kennel, "");
}

#[test]
fn docker() {
    let kennel = Kennel::on("docker");
    // Names of images are generated too, and there is no registry that has them.
    let image = kennel.image().expect("docker has an image");
    fuzz(&kennel, &format!("[sandbox]\nimage = \"{image}\"\npull = \"never\"\n"));
}

fn fuzz(kennel: &Kennel, settings: &str) {
    python::install().expect("install schemathesis");
    let config = kennel.home.path().join("config/config.toml");
    std::fs::create_dir_all(config.parent().unwrap()).unwrap();
    std::fs::write(config, settings).unwrap();
    let log = kennel.home.path().join("log");
    let mut call = kennel.call(&["serve", "--listen", "127.0.0.1:0", "--log-level", "warn"]);
    let server = Serving::start_by(kennel, call.stderr(std::fs::File::create(&log).unwrap()));
    let token = kennel.kennel(&["token", "create", "fuzz", "--scope", "create", "--sandboxes", "50"]).ok();
    let admin = server.token();
    for _ in 0..2 {
        let made = server.post(&admin, "/v1/sandboxes", &json!({"network": "none", "data": true}), 201);
        let path = format!("/v1/sandboxes/{}/exec", made["id"].as_str().unwrap());
        server.post(&admin, &path, &json!({"shell": "mkdir -p a/b; echo hi > a/b/c"}), 200);
    }
    for token in [Some(token.as_str()), None] {
        let mut command = Command::new(python::schemathesis());
        command.arg("run").arg(format!("{}/openapi.json", server.url)).args(["--checks", CHECKS]);
        // One worker: with threads, Python 3.11 sometimes fails to parse the source of a lambda.
        command.args(["--phases", "coverage,fuzzing,stateful", "--max-examples", "10", "--workers", "1"]);
        // A command may take its whole time limit, which is 60 seconds by default.
        command.args(["--max-time", &SECONDS.to_string(), "--request-timeout", "90", "--continue-on-failure"]);
        // The same requests in each run, so that a failure can be repeated. Another seed finds other things.
        command.args(["--seed", "1"]);
        command.args(["--no-shrink", "--warnings", "off", "--output-truncate", "false"]);
        for id in ENDLESS {
            command.args(["--exclude-operation-id", id]);
        }
        if let Some(token) = token {
            command.args(["--header", &format!("Authorization: Bearer {token}")]);
        }
        // It writes its examples to the current directory.
        let done = command.current_dir(kennel.home.path()).stdin(Stdio::null()).output().unwrap();
        let text = String::from_utf8_lossy(&done.stdout);
        let log = std::fs::read_to_string(&log).unwrap();
        assert!(done.status.success(), "{text}\n{}\n{log}", String::from_utf8_lossy(&done.stderr));
        assert!(text.contains("Stateful"), "{text}");
        assert!(!log.contains("panicked"), "{log}");
    }
    assert_eq!(server.curl("", &[], "/healthz").0, 200, "it still runs");
    // It finishes what it creates or removes for requests that were given up. Otherwise that would be left behind.
    kennel.kennel(&["serve", "stop"]).ok();
    let volumes = kennel.kennel(&["volume", "ls", "-q"]).text();
    for volume in volumes.lines() {
        kennel.kennel(&["volume", "rm", volume]);
    }
}
