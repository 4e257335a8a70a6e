//! Finds out why an engine does not respond.

use super::fix::Problem;
use super::host::{Program, user};
use crate::environment;
use kennel_engine::Engine;
use kennel_engine::caller::{CONTAINER_HOST, DOCKER_HOST};
use kennel_types::ProviderKind;
use rustix::fs::{Access, access};
use rustix::io::Errno;

/// Returns what is missing for an engine to respond, as far as this process can tell.
pub(super) fn problems(engine: &Engine, name: ProviderKind) -> Vec<Problem> {
    let Ok(endpoint) = engine.endpoint(name) else { return Vec::new() };
    let Some(socket) = endpoint.socket() else { return Vec::new() };
    if name == ProviderKind::Podman {
        // An engine that the user has named may not be the one that the system starts.
        if environment::is_set(CONTAINER_HOST) {
            return Vec::new();
        }
        let program = Program::Podman.find().is_none().then_some(Problem::Program(Program::Podman));
        return program.into_iter().chain([Problem::PodmanService]).collect();
    }
    let seen = access(socket, Access::READ_OK | Access::WRITE_OK);
    why(Program::Docker.find().is_some(), seen, environment::is_set(DOCKER_HOST), user())
}

fn why(installed: bool, socket: Result<(), Errno>, named: bool, user: Option<String>) -> Vec<Problem> {
    if socket == Err(Errno::ACCESS) {
        return user.map(|user| Problem::DockerGroup { user }).into_iter().collect();
    }
    // A socket shows that there is an engine, wherever its program is.
    let here = installed || socket.is_ok();
    let program = (!here).then_some(Problem::Program(Program::Docker));
    // An engine that the user has named may not be the one that the system starts.
    let answer = if named { Problem::DockerHost } else { Problem::DockerService };
    program.into_iter().chain([answer]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_for_an_unreachable_engine_are_found() {
        let (gone, forbidden) = (Err(Errno::NOENT), Err(Errno::ACCESS));
        let program = Problem::Program(Program::Docker);
        assert_eq!(why(false, gone, false, None), [program.clone(), Problem::DockerService]);
        assert_eq!(why(true, gone, false, None), [Problem::DockerService]);
        assert_eq!(why(false, Ok(()), false, None), [Problem::DockerService]);
        assert_eq!(why(false, gone, true, None), [program, Problem::DockerHost]);
        assert_eq!(why(true, Ok(()), true, None), [Problem::DockerHost]);
        assert_eq!(why(true, forbidden, false, Some("ann".into())), [Problem::DockerGroup { user: "ann".into() }]);
        assert_eq!(why(true, forbidden, false, None), []);
    }
}
