//! Another OCI runtime than the engine's default, if the engine has it.

mod engines;

use engines::{ALL, EngineKind, Fixture};
use kennel_core::{Provider, Sandbox};
use kennel_testkit::docker::Private;
use kennel_testkit::inside;
use kennel_types::{ErrorCode, NetworkMode, SandboxSpec};
use std::os::unix::fs::PermissionsExt;

#[tokio::test]
async fn the_requested_runtime_is_used() {
    // By another name: only the engine knows which runtime it is.
    let engine = Private::start_with(&["--add-runtime", "other=/usr/sbin/runc"]);
    let fixture = Fixture::on(EngineKind::Docker, engine.socket());
    let spec = SandboxSpec { network: Some(NetworkMode::None), ..fixture.spec() };
    let format = "{{.HostConfig.Runtime}}";
    for (asked, runtime) in [(Some("other"), "other"), (None, "runc")] {
        let spec = SandboxSpec { runtime: asked.map(ToOwned::to_owned), ..spec.clone() };
        let sandbox = fixture.started(&spec).await;
        assert_eq!(inside::ok(&sandbox, "echo hello").await, "hello");
        let container = format!("kennel-{}", sandbox.info().name);
        assert_eq!(fixture.ask(&["inspect", "--format", format, &container]), runtime);
    }
    fixture.clean(false).await;
}

/// Creates a runtime that adds a failing hook to every start, until as many starts have failed as the file `failures`
/// has lines.
const FAILING_HOOK: &str = r#"#!/bin/sh
cd "$(dirname "$0")"
case " $* " in
*" create "*)
    if [ -s failures ]; then
        sed -i 1d failures
        bundle=$(echo "$*" | sed 's/.*--bundle \([^ ]*\).*/\1/')
        sed -i 's#"prestart":\[#"prestart":[{"path":"/bin/false"},#' "$bundle/config.json"
    fi
esac
exec /usr/sbin/runc "$@"
"#;

#[tokio::test]
async fn a_start_is_attempted_again_if_a_hook_of_the_engine_fails() {
    let dir = tempfile::tempdir().unwrap();
    let runtime = dir.path().join("runtime");
    std::fs::write(&runtime, FAILING_HOOK).unwrap();
    std::fs::set_permissions(&runtime, PermissionsExt::from_mode(0o755)).unwrap();
    let argument: &'static str = format!("hooked={}", runtime.display()).leak();
    let engine = Private::start_with(vec!["--add-runtime", argument].leak());
    let fixture = Fixture::on(EngineKind::Docker, engine.socket());
    let spec = SandboxSpec { runtime: Some("hooked".into()), ..fixture.spec() };
    for (failures, starts) in [("1\n2\n", true), ("1\n2\n3\n", false)] {
        std::fs::write(dir.path().join("failures"), failures).unwrap();
        let sandbox = Sandbox::create(fixture.provider.clone(), &spec).await.unwrap();
        let started = sandbox.start().await;
        assert_eq!(std::fs::read_to_string(dir.path().join("failures")).unwrap(), "", "the hooks were run");
        if starts {
            started.unwrap();
            assert_eq!(inside::ok(&sandbox, "echo hello").await, "hello");
        } else {
            let error = started.unwrap_err();
            assert_eq!(error.code(), ErrorCode::StartFailed, "{error}");
            assert!(error.to_string().contains("OCI runtime create failed"), "{error}");
        }
        fixture.provider.remove(&sandbox.info().id, ALL).await.unwrap();
    }
}
