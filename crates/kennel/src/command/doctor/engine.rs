//! Finds out why an engine does not respond.

use super::fix::Lack;
use super::host::{Program, user};
use crate::environment;
use kennel_engine::Engine;
use kennel_engine::caller::{CONTAINER_HOST, DOCKER_HOST};
use kennel_types::ProviderKind;
use rustix::fs::{Access, access};
use rustix::io::Errno;

/// Returns what is missing for an engine to respond, as far as this process can tell.
pub(super) fn lacks(engine: &Engine, name: ProviderKind) -> Vec<Lack> {
    let Ok(endpoint) = engine.endpoint(name) else { return Vec::new() };
    let Some(socket) = endpoint.socket() else { return Vec::new() };
    if name == ProviderKind::Podman {
        // An engine that the user has named may not be the one that the system starts.
        if environment::is_set(CONTAINER_HOST) {
            return Vec::new();
        }
        let program = Program::Podman.find().is_none().then_some(Lack::Program(Program::Podman));
        return program.into_iter().chain([Lack::PodmanService]).collect();
    }
    let seen = access(socket, Access::READ_OK | Access::WRITE_OK);
    why(Program::Docker.find().is_some(), seen, environment::is_set(DOCKER_HOST), user())
}

fn why(installed: bool, socket: Result<(), Errno>, named: bool, user: Option<String>) -> Vec<Lack> {
    if socket == Err(Errno::ACCESS) {
        return user.map(|user| Lack::DockerGroup { user }).into_iter().collect();
    }
    // A socket shows that there is an engine, wherever its program is.
    let here = installed || socket.is_ok();
    let program = (!here).then_some(Lack::Program(Program::Docker));
    // An engine that the user has named may not be the one that the system starts.
    let answer = if named { Lack::DockerHost } else { Lack::DockerService };
    program.into_iter().chain([answer]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn why_nobody_answers() {
        let (gone, forbidden) = (Err(Errno::NOENT), Err(Errno::ACCESS));
        let program = Lack::Program(Program::Docker);
        assert_eq!(why(false, gone, false, None), [program.clone(), Lack::DockerService]);
        assert_eq!(why(true, gone, false, None), [Lack::DockerService]);
        assert_eq!(why(false, Ok(()), false, None), [Lack::DockerService]);
        assert_eq!(why(false, gone, true, None), [program, Lack::DockerHost]);
        assert_eq!(why(true, Ok(()), true, None), [Lack::DockerHost]);
        assert_eq!(why(true, forbidden, false, Some("ann".into())), [Lack::DockerGroup { user: "ann".into() }]);
        assert_eq!(why(true, forbidden, false, None), []);
    }
}
