//! A command in a sandbox that is there already: one round trip to its keeper.

use super::Effort;
use super::arena::Arena;
use super::row::Row;
use super::sample::{once, succeed, take_turns};
use anyhow::{Result, bail};
use kennel_core::Sandbox;
use kennel_types::ExecSpec;

fn call(arena: &Arena, sandbox: &Sandbox, spec: &ExecSpec) -> Result<()> {
    let output = arena.wait(sandbox.run(spec, None, 1024))?;
    if !output.status.success() {
        bail!("{:?} failed: {:?}", spec.command, output.status);
    }
    Ok(())
}

/// In a native sandbox, beside the same program on the host.
pub(super) fn native(arena: &Arena, effort: Effort) -> Result<Vec<Row>> {
    let sandbox = arena.sandbox(arena.native(), None)?;
    let spec = ExecSpec::argv([arena.busybox(), "true"]);
    let id = sandbox.id().to_string();
    let cli = || succeed(&mut arena.kennel(&["--provider", "native", "exec", &id, "--", arena.busybox(), "true"]));
    let [library, cli, host] =
        take_turns(effort.times(300), [once(|| call(arena, &sandbox, &spec)), once(cli), once(|| arena.host_true())])?;
    arena.remove(&sandbox)?;
    let beside = "spawn on the host";
    Ok(vec![
        Row::times("exec of true by library call (native)", &library, beside, &host).at_most_more(1.0),
        Row::times("kennel exec -- true (native)", &cli, beside, &host),
    ])
}

/// In a container, beside the engine's own way.
pub(super) fn docker(arena: &Arena, effort: Effort) -> Result<Vec<Row>> {
    let Some(docker) = arena.docker() else { return Ok(Vec::new()) };
    let sandbox = arena.sandbox(&docker.provider, Some(&docker.image))?;
    let spec = ExecSpec::argv(["true"]);
    let id = sandbox.id().to_string();
    let container = format!("kennel-{}", sandbox.info().name);
    let cli = || succeed(&mut arena.kennel(&["--provider", "docker", "exec", &id, "--", "true"]));
    let theirs = || succeed(&mut docker.command(&["exec", &container, "true"]));
    let native = arena.sandbox(arena.native(), None)?;
    let native_id = native.id().to_string();
    let native_words = ["--provider", "native", "exec", &native_id, "--", arena.busybox(), "true"];
    let native_cli = || succeed(&mut arena.kennel(&native_words));
    let [library, cli, native_cli, theirs] = take_turns(
        effort.times(30),
        [once(|| call(arena, &sandbox, &spec)), once(cli), once(native_cli), once(theirs)],
    )?;
    arena.remove(&sandbox)?;
    arena.remove(&native)?;
    let beside = "docker exec";
    Ok(vec![
        Row::times("exec of true by library call (docker)", &library, beside, &theirs).at_most_one_in(30.0),
        Row::times("kennel exec -- true (docker)", &cli, beside, &theirs).at_most_one_in(15.0),
        Row::times("kennel exec -- true (native)", &native_cli, beside, &theirs).at_most_one_in(8.0),
    ])
}

/// The same in a container of Podman's.
pub(super) fn podman(arena: &Arena, effort: Effort) -> Result<Vec<Row>> {
    let Some(podman) = arena.podman() else { return Ok(Vec::new()) };
    let sandbox = arena.sandbox(&podman.provider, Some(&podman.image))?;
    let spec = ExecSpec::argv(["true"]);
    let container = format!("kennel-{}", sandbox.info().name);
    let theirs = || succeed(&mut podman.command(&["exec", &container, "true"]));
    let [library, theirs] = take_turns(effort.times(30), [once(|| call(arena, &sandbox, &spec)), once(theirs)])?;
    arena.remove(&sandbox)?;
    Ok(vec![Row::times("exec of true by library call (podman)", &library, "podman exec", &theirs).at_most_one_in(30.0)])
}
