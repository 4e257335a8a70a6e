//! Finds the sockets of container engines. Whoever can connect to one controls the host.
//!
//! No directory tree is walked. The candidates are well-known sockets, sockets that the caller names, and sockets that
//! the kernel lists as listening below a mount. A well-known socket counts as an engine's without further checks. For
//! any other, a connection is opened on which nothing is sent: the kernel then reports which program listens. If the
//! socket is named like an engine's but another program listens (a forwarding ssh, systemd), it is sent `GET /_ping`.

mod listening;

use crate::socket::connect_file;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

/// The sockets of engines that run for the whole system.
const WELL_KNOWN: [&str; 15] = [
    "/run/docker.sock",
    "/run/docker-host.sock",
    "/run/docker/containerd/containerd.sock",
    "/run/podman/podman.sock",
    "/run/containerd/containerd.sock",
    "/run/crio/crio.sock",
    "/run/cri-dockerd.sock",
    "/run/buildkit/buildkitd.sock",
    "/run/k3s/containerd/containerd.sock",
    "/run/libvirt/libvirt-sock",
    "/run/libvirt/virtqemud-sock",
    "/run/incus/unix.socket",
    "/var/lib/incus/unix.socket",
    "/var/lib/lxd/unix.socket",
    "/var/snap/lxd/common/lxd/unix.socket",
];

/// The program names of engines. The kernel truncates names to fifteen bytes.
const PROGRAMS: [&str; 15] = [
    "dockerd",
    "com.docker.back",
    "cri-dockerd",
    "podman",
    "containerd",
    "containerd-shim",
    "crio",
    "buildkitd",
    "nerdctl",
    "rootlesskit",
    "k3s-server",
    "libvirtd",
    "virtqemud",
    "lxd",
    "incusd",
];

/// Parts of the names of engines' sockets or their directories. These engines reply to `GET /_ping`,
const HTTP: [&str; 2] = ["docker", "podman"];
/// and these do not.
const OTHERS: [&str; 7] = ["containerd", "crio", "buildkit", "libvirt", "incus", "lxd", "nerdctl"];

/// The timeout for one socket, and for all of them together. A socket that does not reply counts as an engine's.
const ONE: Duration = Duration::from_millis(250);
const ALL: Duration = Duration::from_secs(1);

/// Returns whether an engine listens at this real path. `named` are sockets that the caller knows to be engines'.
pub(crate) async fn is_engine(path: &Path, named: &[PathBuf]) -> bool {
    let Ok(found) = path.symlink_metadata() else { return false };
    if !found.file_type().is_socket() {
        return false;
    }
    let same = |known: &Path| known.metadata().is_ok_and(|known| identity(&known) == identity(&found));
    known(named).any(same) || asked(path, Instant::now() + ONE).await
}

/// Returns the engines' sockets below each of these directories, relative to it. A directory is given as it was named
/// and by its real path. `skip` tells which paths of a directory are hidden anyway.
pub(crate) async fn below(
    tops: &[(PathBuf, PathBuf)],
    named: &[PathBuf],
    skip: impl Fn(usize, &Path) -> bool,
) -> Vec<Vec<PathBuf>> {
    let mut found = vec![Vec::new(); tops.len()];
    let is_dir = |(_, real): &(PathBuf, PathBuf)| real.metadata().ok().filter(std::fs::Metadata::is_dir);
    let dirs: Vec<_> = tops.iter().map(|top| is_dir(top).map(|dir| identity(&dir))).collect();
    if dirs.iter().all(Option::is_none) {
        return found;
    }
    for socket in known(named) {
        let is_socket = socket.metadata().is_ok_and(|found| found.file_type().is_socket());
        let Some(real) = is_socket.then(|| socket.canonicalize().ok()).flatten() else { continue };
        // Directories are compared by device and inode, because the mount may be the same directory under another name.
        for above in real.ancestors().skip(1) {
            let above_is = above.metadata().ok().map(|dir| identity(&dir));
            for (index, dir) in dirs.iter().enumerate() {
                if let (true, Ok(rest)) = (dir.is_some() && *dir == above_is, real.strip_prefix(above))
                    && !skip(index, rest)
                {
                    found[index].push(rest.to_owned());
                }
            }
        }
    }
    let deadline = Instant::now() + ALL;
    for socket in bound_below(tops, &listening::paths()) {
        let is_socket = || socket.symlink_metadata().is_ok_and(|found| found.file_type().is_socket());
        let places: Vec<(usize, PathBuf)> = tops
            .iter()
            .enumerate()
            .filter(|(index, _)| dirs[*index].is_some())
            .filter_map(|(index, (_, top))| Some((index, socket.strip_prefix(top).ok()?.to_owned())))
            .filter(|(index, rest)| !found[*index].contains(rest) && !skip(*index, rest))
            .collect();
        if !places.is_empty() && is_socket() && asked(&socket, deadline).await {
            for (index, rest) in places {
                found[index].push(rest);
            }
        }
    }
    for sockets in &mut found {
        sockets.sort_unstable();
        sockets.dedup();
    }
    found
}

fn identity(file: &std::fs::Metadata) -> (u64, u64) {
    (file.dev(), file.ino())
}

fn known(named: &[PathBuf]) -> impl Iterator<Item = &Path> {
    WELL_KNOWN.iter().map(Path::new).chain(named.iter().map(PathBuf::as_path))
}

/// Returns the paths, without symlinks, that may be below one of the directories.
fn bound_below(tops: &[(PathBuf, PathBuf)], paths: &[PathBuf]) -> Vec<PathBuf> {
    let is_below = |path: &Path| tops.iter().any(|(named, real)| path.starts_with(named) || path.starts_with(real));
    let mut parents: HashMap<&Path, Option<PathBuf>> = HashMap::new();
    let real = paths.iter().filter_map(|path| {
        let (parent, name) = (path.parent()?, path.file_name()?);
        // Most sockets are in `/run`, and no symlink leads out of it.
        if parent.starts_with("/run") && !is_below(parent) {
            return None;
        }
        let parent = parents.entry(parent).or_insert_with(|| parent.canonicalize().ok()).as_ref()?;
        is_below(parent).then(|| parent.join(name))
    });
    let mut real: Vec<PathBuf> = real.collect();
    real.sort_unstable();
    real.dedup();
    real
}

/// Returns whether an engine listens on a socket, by connecting to it.
async fn asked(path: &Path, deadline: Instant) -> bool {
    use std::io::ErrorKind::{ConnectionRefused, NotFound};
    let (http, other) = (is_called(path, &HTTP), is_called(path, &OTHERS));
    let stream = match connect_file(path).await {
        Ok(stream) => stream,
        // No process listens, or it is not a stream socket.
        Err(error) if matches!(error.kind(), ConnectionRefused | NotFound) => return false,
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::PROTOTYPE.raw_os_error()) => return false,
        // If the caller cannot use the socket, the sandbox must not use it either.
        Err(_) => return true,
    };
    let program = stream.peer_cred().ok().and_then(|peer| peer.pid()).filter(|pid| *pid != 0).and_then(|pid| {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
        Some(name.trim_end().to_owned())
    });
    match program {
        Some(program) if PROGRAMS.contains(&program.as_str()) => true,
        _ if other => true,
        _ if http => {
            let left = deadline.saturating_duration_since(Instant::now()).min(ONE);
            // A process that does not reply may be a busy engine.
            tokio::time::timeout(left, answers_as_engine(stream)).await.unwrap_or(true)
        }
        _ => false,
    }
}

fn is_called(path: &Path, names: &[&str]) -> bool {
    let own = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
    let dir = path.parent().and_then(Path::file_name).and_then(OsStr::to_str).unwrap_or_default();
    names.iter().any(|name| own.contains(name) || dir == *name)
}

/// Returns whether the reply to `GET /_ping` has the headers of Docker or Podman.
async fn answers_as_engine(mut stream: UnixStream) -> bool {
    const HEADERS: [&str; 3] = ["\r\napi-version:", "\r\nlibpod-api-version:", "\r\ndocker-experimental:"];
    if stream.write_all(b"GET /_ping HTTP/1.0\r\nHost: localhost\r\n\r\n").await.is_err() {
        return false;
    }
    let mut answer = Vec::new();
    let mut part = [0; 1024];
    // The peer may send without end.
    while answer.len() < 4096 && !answer.windows(4).any(|end| end == b"\r\n\r\n") {
        match stream.read(&mut part).await {
            Ok(count) if count > 0 => answer.extend_from_slice(&part[..count]),
            _ => break,
        }
    }
    let answer = String::from_utf8_lossy(&answer).to_ascii_lowercase();
    answer.starts_with("http/") && HEADERS.iter().any(|header| answer.contains(header))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::UnixListener;

    /// Sends this reply to every connection.
    fn serve(path: &Path, answer: &'static str) {
        let listener = UnixListener::bind(path).unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = [0; 64];
                if stream.read(&mut request).await.is_ok_and(|count| count > 0) {
                    let _ = stream.write_all(answer.as_bytes()).await;
                }
            }
        });
    }

    #[tokio::test]
    async fn sockets_of_engines_are_recognised() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().canonicalize().unwrap();
        std::fs::create_dir_all(top.join("run/podman")).unwrap();
        const ENGINE: &str = "HTTP/1.0 200 OK\r\nApi-Version: 1.41\r\n\r\nOK";
        serve(&top.join("run/docker.sock"), ENGINE);
        serve(&top.join("run/podman/api"), ENGINE);
        serve(&top.join("docker-not.sock"), "HTTP/1.0 404 Not Found\r\n\r\n");
        serve(&top.join("app.sock"), ENGINE);
        serve(&top.join("named.sock"), ENGINE);
        serve(&top.join("containerd.sock"), "");
        let _silent = UnixListener::bind(top.join("docker-silent.sock")).unwrap();
        drop(UnixListener::bind(top.join("docker-gone.sock")).unwrap());
        std::fs::hard_link(top.join("named.sock"), top.join("other.sock")).unwrap();
        let named = [top.join("named.sock"), top.join("run/../named.sock")];
        let [found] = below(&[(top.clone(), top.clone())], &named, |_, _| false).await.try_into().unwrap();
        let expected = ["containerd.sock", "docker-silent.sock", "named.sock", "run/docker.sock", "run/podman/api"]
            .map(PathBuf::from);
        assert_eq!(found, expected);
        for (socket, engine) in [("run/docker.sock", true), ("app.sock", false), ("other.sock", true)] {
            assert_eq!(is_engine(&top.join(socket), &named).await, engine, "{socket}");
        }
        let [found] =
            below(&[(top.clone(), top.clone())], &[], |_, rest| rest.starts_with("run")).await.try_into().unwrap();
        assert_eq!(found, ["containerd.sock", "docker-silent.sock"].map(PathBuf::from));
    }

    #[tokio::test]
    async fn a_socket_bound_through_a_symlink_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().canonicalize().unwrap();
        std::fs::create_dir(top.join("real")).unwrap();
        std::os::unix::fs::symlink("real", top.join("link")).unwrap();
        let _silent = UnixListener::bind(top.join("link/docker.sock")).unwrap();
        let real = top.join("real");
        let [found] = below(&[(real.clone(), real)], &[], |_, _| false).await.try_into().unwrap();
        assert_eq!(found, [PathBuf::from("docker.sock")]);
    }
}
