//! Measures a command in a running sandbox, which takes one round trip to its keeper.

use super::Effort;
use super::environment::BenchEnvironment;
use super::row::Row;
use super::sample::{once, succeed, take_turns};
use anyhow::{Result, bail};
use kennel_core::Sandbox;
use kennel_types::ExecSpec;

fn call(environment: &BenchEnvironment, sandbox: &Sandbox, spec: &ExecSpec) -> Result<()> {
    let output = environment.wait(sandbox.run(spec, None, 1024))?;
    if !output.status.success() {
        bail!("{:?} failed: {:?}", spec.command, output.status);
    }
    Ok(())
}

/// Measures a command in a native sandbox, compared with the same program on the host.
pub(super) fn native(environment: &BenchEnvironment, effort: Effort) -> Result<Vec<Row>> {
    let sandbox = environment.sandbox(environment.native(), None)?;
    let spec = ExecSpec::argv([environment.busybox(), "true"]);
    let id = sandbox.id().to_string();
    let cli = || {
        succeed(&mut environment.kennel(&["--provider", "native", "exec", &id, "--", environment.busybox(), "true"]))
    };
    let [library, cli, host] = take_turns(
        effort.times(300),
        [once(|| call(environment, &sandbox, &spec)), once(cli), once(|| environment.host_true())],
    )?;
    environment.remove(&sandbox)?;
    let (who, baseline) = (environment.who(), "spawn on the host");
    Ok(vec![
        Row::times(&format!("exec of true by library call ({who})"), &library, baseline, &host).at_most_more(1.0),
        Row::times(&format!("kennel exec -- true ({who})"), &cli, baseline, &host),
    ])
}

/// Measures a command in a native sandbox of an ordinary user, compared with the same program on the host.
pub(super) fn user(environment: &BenchEnvironment, effort: Effort) -> Result<Vec<Row>> {
    environment.as_user(|environment| native(environment, effort))
}

/// Measures a command in a Docker container, compared with `docker exec`.
pub(super) fn docker(environment: &BenchEnvironment, effort: Effort) -> Result<Vec<Row>> {
    let Some(docker) = environment.docker() else { return Ok(Vec::new()) };
    let sandbox = environment.sandbox(&docker.provider, Some(&docker.image))?;
    let spec = ExecSpec::argv(["true"]);
    let id = sandbox.id().to_string();
    let container = format!("kennel-{}", sandbox.info().name);
    let cli = || succeed(&mut environment.kennel(&["--provider", "docker", "exec", &id, "--", "true"]));
    let theirs = || succeed(&mut docker.command(&["exec", &container, "true"]));
    let native = environment.sandbox(environment.native(), None)?;
    let native_id = native.id().to_string();
    let native_words = ["--provider", "native", "exec", &native_id, "--", environment.busybox(), "true"];
    let native_cli = || succeed(&mut environment.kennel(&native_words));
    let [library, cli, native_cli, theirs] = take_turns(
        effort.times(30),
        [once(|| call(environment, &sandbox, &spec)), once(cli), once(native_cli), once(theirs)],
    )?;
    environment.remove(&sandbox)?;
    environment.remove(&native)?;
    let baseline = "docker exec";
    Ok(vec![
        Row::times("exec of true by library call (docker)", &library, baseline, &theirs).at_most_one_in(30.0),
        Row::times("kennel exec -- true (docker)", &cli, baseline, &theirs).at_most_one_in(15.0),
        Row::times("kennel exec -- true (native)", &native_cli, baseline, &theirs).at_most_one_in(8.0),
    ])
}

/// Measures a command in a Podman container, compared with `podman exec`.
pub(super) fn podman(environment: &BenchEnvironment, effort: Effort) -> Result<Vec<Row>> {
    let Some(podman) = environment.podman() else { return Ok(Vec::new()) };
    let sandbox = environment.sandbox(&podman.provider, Some(&podman.image))?;
    let spec = ExecSpec::argv(["true"]);
    let container = format!("kennel-{}", sandbox.info().name);
    let theirs = || succeed(&mut podman.command(&["exec", &container, "true"]));
    let [library, theirs] = take_turns(effort.times(30), [once(|| call(environment, &sandbox, &spec)), once(theirs)])?;
    environment.remove(&sandbox)?;
    Ok(vec![Row::times("exec of true by library call (podman)", &library, "podman exec", &theirs).at_most_one_in(30.0)])
}
