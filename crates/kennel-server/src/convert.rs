//! Converts the engine's descriptions to those of the API.

use kennel_api::{FileInfo, FileKind, LimitsView, Network, PublishedPort, SandboxStats, SandboxStatus, SandboxView};
use kennel_engine::labels;
use kennel_types::{FileStat, NetworkMode, Protocol, SandboxInfo, Stats, Status};
use serde::Serialize;

/// Converts the description of a sandbox.
pub(crate) fn sandbox(info: SandboxInfo) -> SandboxView {
    let label = |name: &str| info.labels.get(name).cloned();
    let limits = info.enforcement.limits;
    SandboxView {
        project: label(labels::PROJECT),
        profile: label(labels::PROFILE),
        session: label(labels::SESSION),
        id: info.id.to_string(),
        name: info.name,
        provider: info.provider,
        status: status(info.status),
        created_ms: info.created_ms,
        exit_code: info.exit_code,
        end_cause: info.end_cause.map(|cause| name_of(&cause)),
        image: info.image,
        workdir: info.workdir,
        workspace: info.workspace.map(|path| path.display().to_string()),
        network: match info.network {
            NetworkMode::Bridge => Network::Bridge,
            NetworkMode::Host => Network::Host,
            NetworkMode::None => Network::None,
        },
        address: info.ports.iter().find(|port| port.protocol == Protocol::Tcp).map(|port| port.address.to_string()),
        ports: info
            .ports
            .into_iter()
            .map(|port| PublishedPort {
                inside: port.inside,
                address: port.address.to_string(),
                protocol: port.protocol.to_string(),
            })
            .collect(),
        mode: info.enforcement.mode,
        layers: info.enforcement.layers.iter().map(name_of).collect(),
        limits: LimitsView {
            memory_bytes: limits.memory.map(|size| size.0),
            millicpus: limits.millicpus,
            pids: limits.pids,
            disk_bytes: limits.disk.map(|size| size.0),
        },
        expires_at: info.labels.get(labels::EXPIRES).and_then(|time| time.parse().ok()),
        labels: info.labels,
    }
}

/// Converts the state of a sandbox.
pub(crate) fn status(status: Status) -> SandboxStatus {
    match status {
        Status::Created => SandboxStatus::Created,
        Status::Running => SandboxStatus::Running,
        Status::Paused => SandboxStatus::Paused,
        Status::Stopped => SandboxStatus::Stopped,
    }
}

/// Converts resource usage.
pub(crate) fn stats(stats: Stats) -> SandboxStats {
    SandboxStats {
        cpu_micros: stats.cpu_micros,
        memory_bytes: stats.memory_bytes,
        memory_limit_bytes: stats.memory_limit_bytes,
        pids: stats.pids,
        read_bytes: stats.read_bytes,
        written_bytes: stats.written_bytes,
        oom_kills: stats.oom_kills,
    }
}

/// Converts the metadata of a file.
pub(crate) fn file(stat: FileStat) -> FileInfo {
    FileInfo {
        kind: file_kind(stat.kind),
        size_bytes: stat.size,
        mode: stat.mode,
        uid: stat.uid,
        gid: stat.gid,
        modified_ms: stat.modified_ms,
        target: stat.target.map(|target| String::from_utf8_lossy(&target).into_owned()),
    }
}

/// Converts the kind of a file.
pub(crate) fn file_kind(kind: kennel_types::FileKind) -> FileKind {
    match kind {
        kennel_types::FileKind::File => FileKind::File,
        kennel_types::FileKind::Directory => FileKind::Directory,
        kennel_types::FileKind::Symlink => FileKind::Symlink,
        kennel_types::FileKind::Other => FileKind::Other,
    }
}

/// The name of a unit variant in JSON.
pub(crate) fn name_of(value: &impl Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|value| value.as_str().map(ToOwned::to_owned)).unwrap_or_default()
}
