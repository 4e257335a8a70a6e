//! Tests of the request for the engine.

use super::keeper_config::signal;
use super::*;
use crate::mounts::own_mount;
use kennel_proto::{KeeperConfig, LogSink};
use kennel_types::{ByteSize, Limits};
use std::sync::LazyLock;

static PREFIX: LazyLock<NamePrefix> = LazyLock::new(NamePrefix::default);

fn facts<'a>(id: &'a SandboxId, image: &'a ImageConfig, uid: u32) -> Facts<'a> {
    Facts {
        id,
        installation: "here",
        prefix: &PREFIX,
        network: NetworkMode::None,
        image,
        owner: Owner { uid, gid: uid },
        created_ms: 7,
        mode: "docker, root",
        kind: EngineKind::Docker,
        keeper: KeeperSetup::Mounted { program: Some(Path::new("/programs/keeper")), run_dir: Path::new("/state/abc") },
        limits: true,
        filter: false,
        seccomp: Some("seccomp={}".into()),
        ids: Ids::Same,
        mounts: Vec::new(),
        volumes: Vec::new(),
    }
}

fn planned(spec: &SandboxSpec, image: &ImageConfig, uid: u32) -> Plan {
    let id = SandboxId::new("abc").unwrap();
    plan(spec, facts(&id, image, uid)).unwrap()
}

/// Returns the configuration in the keeper's command.
fn config(plan: &Plan) -> KeeperConfig {
    let command = plan.body.entrypoint.as_ref().unwrap();
    assert_eq!(command[..5], ["/.kennel/keeper", "serve", "--socket", "/.kennel/run/sock", "--config"]);
    let bytes: Vec<u8> =
        (0..command[5].len() / 2).map(|at| u8::from_str_radix(&command[5][at * 2..at * 2 + 2], 16).unwrap()).collect();
    minicbor::decode(&bytes).unwrap()
}

fn user_of(spec: &SandboxSpec, image: &ImageConfig, uid: u32) -> (Option<String>, Option<(u32, u32)>) {
    let config = config(&planned(spec, image, uid));
    (config.user, config.ensure_user)
}

#[test]
fn a_container_is_always_hardened() {
    let spec = SandboxSpec { image: Some("i".into()), tied: true, ..SandboxSpec::default() };
    let plan = planned(&spec, &ImageConfig::default(), 0);
    let host = plan.body.host_config.unwrap();
    assert_eq!(host.cap_drop.unwrap(), ["ALL"]);
    assert_eq!(host.cap_add.unwrap(), CAPABILITIES);
    assert_eq!(host.security_opt.unwrap(), ["no-new-privileges", "seccomp={}"]);
    assert_eq!((host.privileged, host.init, host.auto_remove), (Some(false), Some(false), Some(true)));
    assert_eq!((host.network_mode.as_deref(), host.ipc_mode.as_deref()), (Some("none"), Some("private")));
    let mounts = host.mounts.unwrap();
    let shape: Vec<_> = mounts.iter().map(|mount| (mount.target.as_deref().unwrap(), mount.read_only)).collect();
    assert_eq!(shape, [("/.kennel/keeper", Some(true)), ("/.kennel/run", Some(false))]);
    assert_eq!(plan.container, "kennel-abc");
}

#[test]
fn the_keeper_loads_firewall_rules_if_it_can() {
    let (id, image) = (SandboxId::new("abc").unwrap(), ImageConfig::default());
    let with = |filter| {
        let plan = plan(&SandboxSpec::default(), Facts { filter, ..facts(&id, &image, 0) }).unwrap();
        let added = plan.body.host_config.as_ref().unwrap().cap_add.clone().unwrap();
        (added.contains(&FIREWALL_CAPABILITY.to_owned()), config(&plan).firewall.map(|path| path.to_vec()))
    };
    assert_eq!(with(true), (true, Some(b"/.kennel/run/filter".to_vec())));
    assert_eq!(with(false), (false, None));
}

#[test]
fn on_podman_low_ports_need_no_capability() {
    let (id, image) = (SandboxId::new("abc").unwrap(), ImageConfig::default());
    let with = |kind, network| {
        let plan = plan(&SandboxSpec::default(), Facts { network, kind, ..facts(&id, &image, 0) }).unwrap();
        plan.body.host_config.unwrap().sysctls.map(|all| all["net.ipv4.ip_unprivileged_port_start"].clone())
    };
    assert_eq!(with(EngineKind::Podman, NetworkMode::None).as_deref(), Some("0"));
    assert_eq!(with(EngineKind::Podman, NetworkMode::Bridge).as_deref(), Some("0"));
    assert_eq!(with(EngineKind::Podman, NetworkMode::Host), None, "that would be the host's own setting");
    assert_eq!(with(EngineKind::Docker, NetworkMode::None), None, "it is Docker's default");
}

#[test]
fn ports_are_published_on_loopback_only() {
    let ports = ["80", "3000:80", "53/udp"].map(|port| port.parse().unwrap()).to_vec();
    let plan = planned(&SandboxSpec { ports, ..SandboxSpec::default() }, &ImageConfig::default(), 0);
    assert_eq!(plan.body.exposed_ports.unwrap(), ["80/tcp", "80/tcp", "53/udp"]);
    let bindings = plan.body.host_config.unwrap().port_bindings.unwrap();
    let at = |key: &str| -> Vec<(String, String)> {
        let bound = bindings[key].clone().unwrap().into_iter();
        bound.map(|binding| (binding.host_ip.unwrap(), binding.host_port.unwrap())).collect()
    };
    let here = |port: &str| ("127.0.0.1".to_owned(), port.to_owned());
    assert_eq!((at("80/tcp"), at("53/udp")), (vec![here(""), here("3000")], vec![here("")]));
}

#[test]
fn limits_are_passed_to_the_engine() {
    let limits = Limits { memory: Some(ByteSize(64 << 20)), millicpus: Some(1500), pids: Some(9), disk: None };
    let spec = SandboxSpec { limits, ..SandboxSpec::default() };
    let host = planned(&spec, &ImageConfig::default(), 0).body.host_config.unwrap();
    assert_eq!((host.memory, host.memory_swap), (Some(64 << 20), Some(64 << 20)));
    assert_eq!((host.nano_cpus, host.pids_limit), (Some(1_500_000_000), Some(9)));
    let host = planned(&SandboxSpec::default(), &ImageConfig::default(), 0).body.host_config.unwrap();
    assert_eq!((host.memory, host.pids_limit), (None, Some(4096)), "processes are always limited");
}

#[test]
fn commands_run_as_the_first_known_user() {
    let plain = ImageConfig::default();
    let node = ImageConfig { user: Some("node".into()), ..ImageConfig::default() };
    let nobody = SandboxSpec::default();
    let root = SandboxSpec { user: Some("root".into()), ..SandboxSpec::default() };
    assert_eq!(user_of(&root, &node, 1000), (Some("root".into()), None));
    assert_eq!(user_of(&nobody, &node, 1000), (Some("1000:1000".into()), Some((1000, 1000))));
    assert_eq!(user_of(&nobody, &node, 0), (Some("node".into()), None));
    assert_eq!(user_of(&nobody, &plain, 0), (Some("0:0".into()), None));
    let id = SandboxId::new("abc").unwrap();
    let of = |ids| config(&plan(&nobody, Facts { ids, ..facts(&id, &node, 1000) }).unwrap()).user;
    assert_eq!(of(Ids::Root).as_deref(), Some("0:0"), "root inside is the user who runs the engine");
    assert_eq!(of(Ids::Apart).as_deref(), Some("node"), "the user who runs the engine has no id inside");
}

#[test]
fn a_user_without_a_home_directory_gets_one() {
    let (id, image) = (SandboxId::new("abc").unwrap(), ImageConfig::default());
    let with = |spec: &SandboxSpec, ids| {
        let plan = plan(spec, Facts { ids, ..facts(&id, &image, 1000) }).unwrap();
        (config(&plan).env.pop().map(|(_, home)| home.to_vec()), plan.make_home.map(|home| home.owner.uid))
    };
    assert_eq!(with(&SandboxSpec::default(), Ids::Kept), (Some(DEFAULT_HOME.into()), Some(1000)));
    assert_eq!(with(&SandboxSpec::default(), Ids::Same), (None, None), "the keeper creates one");
    let root = SandboxSpec { user: Some("0".into()), ..SandboxSpec::default() };
    assert_eq!(with(&root, Ids::Kept), (None, None));
    let named = SandboxSpec { env: [("HOME".into(), "/named".into())].into(), ..SandboxSpec::default() };
    assert_eq!(with(&named, Ids::Kept), (Some(b"/named".to_vec()), None));
}

#[test]
fn the_image_stop_signal_applies_to_its_own_command() {
    let image = ImageConfig {
        entrypoint: Some(vec!["/agent".into()]),
        cmd: Some(vec!["--serve".into()]),
        stop_signal: Some("SIGQUIT".into()),
        ..ImageConfig::default()
    };
    let main = |spec: &SandboxSpec| config(&planned(spec, &image, 0)).main;
    let own = main(&SandboxSpec { image_main: true, ..SandboxSpec::default() }).unwrap();
    assert!(matches!(own.command, kennel_proto::SpawnCommand::Argv(argv) if argv.len() == 2));
    assert_eq!(own.stop_signal, Some(3));
    let given = SandboxSpec { image_main: true, command: Some(vec!["sh".into()]), ..SandboxSpec::default() };
    assert_eq!(main(&given).unwrap().stop_signal, None, "other programs end with TERM");
    assert_eq!(main(&SandboxSpec::default()), None);
    for (text, number) in [("3", Some(3)), ("SIGRTMIN+3", Some(37)), ("usr1", Some(10)), ("SIGNO", None), ("0", None)] {
        assert_eq!(signal(text), number, "{text}");
    }
}

#[test]
fn a_read_only_root_filesystem_has_temporary_directories() {
    let spec = SandboxSpec { read_only: true, ..SandboxSpec::default() };
    let plan = planned(&spec, &ImageConfig::default(), 1000);
    assert_eq!(plan.make_workdir, None);
    let host = plan.body.host_config.unwrap();
    assert_eq!(host.readonly_rootfs, Some(true));
    let mounts = host.mounts.unwrap();
    let targets: Vec<_> = mounts.iter().filter_map(|mount| mount.target.as_deref()).collect();
    assert_eq!(targets[2..], ["/tmp", "/run", "/workspace"]);
}

#[test]
fn home_comes_from_the_spec_or_the_image() {
    let image = ImageConfig { env: Some(vec!["A=b".into(), "HOME=/image".into()]), ..ImageConfig::default() };
    let spec = SandboxSpec { env: [("HOME".to_owned(), "/spec".to_owned())].into(), ..SandboxSpec::default() };
    let home = |spec: &SandboxSpec, image: &ImageConfig| config(&planned(spec, image, 1000)).env.pop();
    let named = |value: &str| Some((b"HOME".to_vec().into(), value.as_bytes().to_vec().into()));
    assert_eq!(home(&spec, &image), named("/spec"));
    assert_eq!(home(&SandboxSpec::default(), &image), named("/image"));
    assert_eq!(home(&SandboxSpec::default(), &ImageConfig::default()), None);
}

#[test]
fn the_engine_creates_no_directory_in_the_workspace() {
    let image = ImageConfig { working_dir: Some("/app".into()), ..ImageConfig::default() };
    let id = SandboxId::new("abc").unwrap();
    let workspace = own_mount(Path::new("/home/user/project"), WORKSPACE, false).unwrap();
    let with = |workdir: Option<&str>| {
        let spec = SandboxSpec {
            workspace: Some("/home/user/project".into()),
            workdir: workdir.map(Into::into),
            ..SandboxSpec::default()
        };
        plan(&spec, Facts { mounts: vec![workspace.clone()], ..facts(&id, &image, 1000) }).unwrap()
    };
    assert_eq!(with(None).body.working_dir.as_deref(), Some("/workspace"));
    assert_eq!(with(None).make_workdir, None);
    assert_eq!(with(Some("/workspace/new")).body.working_dir.as_deref(), Some("/"));
    assert_eq!(config(&with(Some("/workspace/new"))).cwd.unwrap().as_slice(), b"/workspace/new");
    assert_eq!(with(Some("/workspaces")).body.working_dir.as_deref(), Some("/workspaces"));
}

#[test]
fn the_working_directory_belongs_to_the_user() {
    let image = ImageConfig::default();
    let plan = planned(&SandboxSpec::default(), &image, 1000);
    assert_eq!(plan.body.working_dir.as_deref(), Some("/workspace"));
    let owner = Owner { uid: 1000, gid: 1000 };
    assert_eq!(plan.make_workdir, Some(Workdir { path: "/workspace".into(), owner, if_missing: false }));
    assert_eq!(planned(&SandboxSpec::default(), &image, 0).make_workdir, None);
}

#[test]
fn on_podman_kennel_creates_the_working_directory() {
    let (id, image) = (SandboxId::new("abc").unwrap(), ImageConfig::default());
    let spec = SandboxSpec { workdir: Some("/srv".into()), ..SandboxSpec::default() };
    let plan = plan(&spec, Facts { kind: EngineKind::Podman, ..facts(&id, &image, 1000) }).unwrap();
    assert_eq!(plan.body.working_dir.as_deref(), Some("/"));
    let owner = Owner { uid: 0, gid: 0 };
    assert_eq!(plan.make_workdir, Some(Workdir { path: "/srv".into(), owner, if_missing: true }));
}

#[test]
fn a_copied_keeper_needs_no_mount_from_this_machine() {
    let (id, image) = (SandboxId::new("abc").unwrap(), ImageConfig::default());
    let spec = SandboxSpec { tied: true, ..SandboxSpec::default() };
    let plan = plan(&spec, Facts { keeper: KeeperSetup::Copied, ..facts(&id, &image, 1000) }).unwrap();
    let config = config(&plan);
    assert_eq!((config.by_engine, config.owner_holds), (true, None));
    let mounts = plan.body.host_config.unwrap().mounts.unwrap();
    let shape: Vec<_> = mounts.iter().map(|mount| (mount.source.as_deref(), mount.target.as_deref())).collect();
    assert_eq!(shape, [(None, Some("/.kennel"))]);
}

#[test]
fn labels_store_what_the_engine_has_no_field_for() {
    let image = ImageConfig {
        entrypoint: Some(vec!["/agent".into()]),
        cmd: Some(vec!["--serve".into()]),
        ..ImageConfig::default()
    };
    let spec = SandboxSpec {
        name: Some("box".into()),
        command: Some(vec!["sh".into()]),
        labels: [("team".to_owned(), "a".to_owned())].into(),
        project: Some("/home/user/project".into()),
        ..SandboxSpec::default()
    };
    let plan = planned(&spec, &image, 1000);
    assert_eq!(plan.container, "kennel-box");
    let mut found: Vec<String> =
        plan.body.labels.as_ref().unwrap().iter().map(|(key, value)| format!("{key}={value}")).collect();
    found.sort();
    assert_eq!(
        found,
        [
            "kennel.auto-remove=false",
            "kennel.created-ms=7",
            "kennel.data=",
            "kennel.id=abc",
            "kennel.image-command=[\"/agent\",\"--serve\"]",
            "kennel.image=",
            "kennel.installation=here",
            "kennel.main=true",
            "kennel.mode=docker, root",
            "kennel.name-prefix=kennel-",
            "kennel.name=box",
            "kennel.owner=1000:1000",
            "kennel.pool=",
            "kennel.profile=",
            "kennel.project=/home/user/project",
            "kennel.session=",
            "kennel.startup-ms=10000",
            "kennel.store=",
            "kennel.workdir=/workspace",
            "kennel=true",
            "team=a",
        ]
    );
    let config = config(&plan);
    assert!(matches!(config.main.unwrap().command, kennel_proto::SpawnCommand::Argv(argv) if argv.len() == 1));
    assert_eq!((config.inherit_env, config.log, config.tied), (true, LogSink::Passthrough, false));
}

#[test]
fn invalid_environment_and_working_directory_are_refused() {
    let id = SandboxId::new("abc").unwrap();
    let image = ImageConfig::default();
    let refused = |spec: SandboxSpec| plan(&spec, facts(&id, &image, 0)).unwrap_err().code();
    let env = [("A=B".to_owned(), String::new())].into();
    assert_eq!(refused(SandboxSpec { env, ..SandboxSpec::default() }), ErrorCode::InvalidConfig);
    let workdir = Some("relative".into());
    assert_eq!(refused(SandboxSpec { workdir, ..SandboxSpec::default() }), ErrorCode::InvalidConfig);
}
