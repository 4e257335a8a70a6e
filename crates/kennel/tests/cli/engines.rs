//! How engines are found: by variables, by Docker's contexts, and by a port; and how their kind is recognised.

use crate::support::{Finished, finish};
use kennel_testkit::front::Front;
use kennel_testkit::podman::Service;
use kennel_testkit::registry::Registry;
use kennel_testkit::{Home, docker, within_blocking};
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, mpsc};

/// Runs the program with its own home and only this environment.
fn call(home: &Home, env: &[(&str, &str)], args: &[&str]) -> Finished {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kennel"));
    command.current_dir(home.workspace()).env_clear().stdin(Stdio::null());
    command.env("PATH", "/usr/bin:/bin").env("KENNEL_HOME", home.path()).env("HOME", home.path());
    command.envs(env.iter().copied()).args(args);
    finish(command, None)
}

fn unix(socket: &Path) -> String {
    format!("unix://{}", socket.display())
}

/// Creates, uses and removes a sandbox. Returns the provider that it reports.
fn provider_of(home: &Home, env: &[(&str, &str)], provider: &[&str], image: &str) -> String {
    let args = [provider, &["create", "--json", "--start", "--no-workspace", "--network", "none", "--image", image]];
    let made = call(home, env, &args.concat());
    assert_eq!(made.status, 0, "{made:?}");
    let name = made.json()["name"].as_str().unwrap().to_owned();
    // A later process finds it without further options.
    assert_eq!(call(home, env, &["exec", &name, "--", "echo", "hello"]).ok(), "hello");
    let listed = call(home, env, &["ls", "--json"]).json();
    assert_eq!(listed.as_array().map(Vec::len), Some(1), "each engine is listed once: {listed}");
    call(home, env, &["rm", "--force", &name]).ok();
    made.json()["provider"].as_str().unwrap().to_owned()
}

#[test]
fn podman_is_recognised_at_any_socket() {
    let socket = Service::Root.socket();
    let image = docker::image_on(&socket);
    let host = unix(&socket);
    let home = Home::new();
    let podman = |env: &[(&str, &str)], provider: &[&str]| {
        assert_eq!(provider_of(&home, env, provider, &image), "podman", "{env:?} {provider:?}");
    };
    podman(&[("CONTAINER_HOST", &host)], &["--provider", "podman"]);
    // Found as Docker, it is recognised as Podman.
    podman(&[("DOCKER_HOST", &host)], &["--provider", "docker"]);
    // Without a name for the provider: native cannot run this image here.
    podman(&[("CONTAINER_HOST", &host), ("DOCKER_HOST", "unix:///nowhere")], &[]);
    podman(&[("CONTAINER_HOST", &host), ("DOCKER_HOST", &host)], &[]);
}

#[test]
fn the_current_docker_context_is_used() {
    let socket = docker::socket();
    let image = docker::image_on(&socket);
    let home = Home::new();
    let settings = home.path().join(".docker");
    // As Docker's client creates it.
    let docker = |args: &[&str]| {
        let mut command = Command::new("docker");
        command.args(args).env_clear().env("PATH", "/usr/bin:/bin:/usr/local/bin").env("HOME", home.path());
        assert!(command.stdout(Stdio::null()).status().unwrap().success(), "docker {args:?}");
    };
    docker(&["context", "create", "ours", "--docker", &format!("host={}", unix(&socket))]);
    assert_eq!(provider_of(&home, &[("DOCKER_CONTEXT", "ours")], &["--provider", "docker"], &image), "docker");
    docker(&["context", "use", "ours"]);
    assert_eq!(provider_of(&home, &[], &["--provider", "docker"], &image), "docker");
    let args = ["--provider", "docker", "ls"];
    let stderr = call(&home, &[("DOCKER_HOST", "unix:///nowhere")], &args).fails(125);
    assert!(stderr.contains("Cannot connect to Docker at /nowhere"), "the variable comes first: {stderr}");
    let stderr = call(&home, &[("DOCKER_CONTEXT", "theirs")], &args).fails(125);
    assert!(stderr.contains("there is no Docker context theirs"), "{stderr}");
    std::fs::write(settings.join("config.json"), "{").unwrap();
    assert!(call(&home, &[], &args).fails(125).contains("config.json"));
}

#[test]
fn docker_on_another_machine_is_reached_by_tls() {
    let socket = docker::socket();
    let image = docker::image_on(&socket);
    let front = Front::start(&socket);
    let home = Home::new();
    let host = format!("tcp://localhost:{}", front.port());
    let certificates = home.path().join("certificates");
    std::fs::create_dir(&certificates).unwrap();
    let path = certificates.to_str().unwrap();
    let env = [("DOCKER_HOST", host.as_str()), ("DOCKER_TLS_VERIFY", "1"), ("DOCKER_CERT_PATH", path)];
    let args = ["--provider", "docker", "ls"];
    assert!(call(&home, &env, &args).fails(125).contains("ca.pem"));
    std::fs::write(certificates.join("ca.pem"), front.authority()).unwrap();
    // The engine requires a client certificate.
    call(&home, &env, &args).fails(125);
    let (certificate, key) = front.identity();
    std::fs::write(certificates.join("cert.pem"), certificate).unwrap();
    std::fs::write(certificates.join("key.pem"), key).unwrap();
    assert_eq!(provider_of(&home, &env, &["--provider", "docker"], &image), "docker");
    // Without TLS, or with the wrong certificate authority, no connection is made.
    call(&home, &env[..1], &args).fails(125);
    let stranger = Front::start(&socket);
    std::fs::write(certificates.join("ca.pem"), stranger.authority()).unwrap();
    let stderr = call(&home, &env, &args).fails(125);
    assert!(stderr.contains("certificate"), "{stderr}");
    let stderr = call(&home, &[env[0], ("DOCKER_TLS", "1")], &args).fails(125);
    assert!(stderr.contains("DOCKER_TLS_VERIFY"), "{stderr}");
    // Files of this machine do not exist on the engine's machine.
    std::fs::write(certificates.join("ca.pem"), front.authority()).unwrap();
    let run = ["--provider", "docker", "run", "--image", &image, "--", "true"];
    let stderr = call(&home, &env, &run).fails(125);
    assert!(stderr.contains("on another machine") && stderr.contains("--no-workspace"), "{stderr}");
}

#[test]
fn an_image_is_built_and_run() {
    let socket = docker::socket();
    let image = docker::image_on(&socket);
    let home = Home::new();
    let host = unix(&socket);
    let env = [("DOCKER_HOST", host.as_str())];
    let tag = format!("kennel-test/built-{}", home.mark().to_lowercase());
    let file = home.workspace().join("Dockerfile");
    std::fs::write(&file, format!("FROM {image}\nARG WORD\nRUN echo \"$WORD\" > /word\nCMD [\"cat\", \"/word\"]\n"))
        .unwrap();
    let provider = ["--provider", "docker"];
    let build = |more: &[&str]| call(&home, &env, &[&provider[..], &["build", "-t", &tag], more].concat());
    let done = build(&["--build-arg", "WORD=hello", "--memory", "256m"]);
    assert!(done.stderr.contains("RUN echo"), "{done:?}");
    assert_eq!(done.ok(), tag);
    let run = ["run", "--network", "none", "--image", &tag];
    assert_eq!(call(&home, &env, &[&provider[..], &run].concat()).ok(), "hello");
    std::fs::write(&file, format!("FROM {image}\nRUN exit 9\n")).unwrap();
    let stderr = build(&[]).fails(126);
    assert!(stderr.contains("at step 2/2 : RUN exit 9"), "{stderr}");
    let stderr = call(&home, &env, &["--provider", "native", "build", "-t", &tag]).fails(125);
    assert!(stderr.contains("does not support building images"), "{stderr}");
    docker::docker(&socket, &["rmi", &tag]);
}

#[test]
fn a_data_volume_is_removed_on_request() {
    let socket = docker::socket();
    let image = docker::image_on(&socket);
    let home = Home::new();
    let host = unix(&socket);
    let env = [("DOCKER_HOST", host.as_str())];
    let name = format!("data-{}", home.mark().to_lowercase());
    let on_docker = |args: &[&str]| call(&home, &env, &[&["--provider", "docker"], args].concat());
    let run = |script: &str| {
        on_docker(&["run", "--network", "none", "--image", &image, "--name", &name, "--data", "-c", script])
    };
    run("echo kept > /.data/file").ok();
    assert_eq!(run("cat /.data/file").ok(), "kept", "it outlives the sandbox");
    on_docker(&["create", "--network", "none", "--image", &image, "--name", &name, "--data"]).ok();
    on_docker(&["rm", "--volumes", &name]).ok();
    assert_eq!(run("ls /.data").ok(), "");
    on_docker(&["create", "--network", "none", "--image", &image, "--name", &name, "--data"]).ok();
    on_docker(&["rm", "--volumes", &name]).ok();
    let left = docker::docker(&socket, &["volume", "ls", "-q", "--filter", &format!("name={name}")]);
    assert_eq!(left, "");
}

#[test]
fn settings_for_engines_take_effect() {
    let socket = docker::socket();
    let image = docker::image_on(&socket);
    let home = Home::new();
    let host = unix(&socket);
    let env = [("DOCKER_HOST", host.as_str())];
    let name = format!("set-{}", home.mark().to_lowercase());
    let settings = format!(
        "[sandbox]\nprovider = \"docker\"\nnetwork = \"none\"\nimage = \"{image}\"\nreadOnly = true\ndata = true\n\
         imageCommand = true\ncaches = {{ shared = \"/cache\" }}\n"
    );
    std::fs::write(home.workspace().join("kennel.toml"), settings).unwrap();
    let run = |more: &[&str]| call(&home, &env, &[&["run"], more].concat());
    run(&["-c", "echo x > /etc/new"]).fails(1);
    run(&["-c", "test -e /.data"]).fails(1);
    run(&["--name", &name, "-c", "echo kept > /.data/file; echo shared > /cache/file"]).ok();
    assert_eq!(run(&["--name", &name, "-c", "cat /.data/file /cache/file"]).ok(), "kept\nshared");
    // The command line has precedence.
    assert_eq!(run(&["--cache", "shared:/other", "-c", "cat /other/file; ls /cache 2>&1 | wc -l"]).ok(), "shared\n1");
    // The image's own command is a shell, which has no input.
    call(&home, &env, &["create", "--start", "--name", &name]).ok();
    assert_eq!(call(&home, &env, &["wait", &name]).ok(), "0");
    call(&home, &env, &["rm", "--volumes", &name]).ok();
    let label = format!("label=kennel.installation={}", installation(&home));
    let caches = docker::docker(&socket, &["volume", "ls", "-q", "--filter", &label]);
    assert_eq!(caches.lines().count(), 1, "the shared one stays: {caches}");
    docker::docker(&socket, &["volume", "rm", caches.trim()]);
}

/// The installation id of a home's sandboxes.
fn installation(home: &Home) -> String {
    let id = std::fs::read_to_string(home.path().join("state/installation")).unwrap();
    id.trim().to_owned()
}

#[test]
fn a_login_of_docker_or_podman_is_passed_on() {
    let (docker, podman) = (docker::socket(), Service::Root.socket());
    let home = Home::new();
    let local = format!("kennel-test/login-{}", home.mark().to_lowercase());
    // A new layer that exists nowhere yet.
    let archive = home.path().join("image.tar");
    std::fs::write(home.path().join("mark"), home.mark()).unwrap();
    let mut pack = Command::new("tar");
    pack.arg("cf").arg(&archive).arg("-C").arg(home.path()).arg("mark").args(["-C", "/", "bin/busybox"]);
    assert!(pack.status().unwrap().success());
    docker::docker(&docker, &["import", archive.to_str().unwrap(), &local]);
    let registry = Registry::start_private();
    let image = registry.push(&docker, &local, "kennel-test/login");
    docker::docker(&docker, &["rmi", &local]);
    let logins = registry.logins();
    let by_docker = ("DOCKER_CONFIG", logins.parent().and_then(Path::to_str).unwrap());
    let by_podman = ("REGISTRY_AUTH_FILE", logins.to_str().unwrap());
    for (provider, variable, socket, login) in
        [("docker", "DOCKER_HOST", &docker, by_docker), ("podman", "CONTAINER_HOST", &podman, by_podman)]
    {
        let host = unix(socket);
        let args = ["--provider", provider, "run", "--network", "none", "--image", &image, "--"];
        let args = [&args[..], &["/bin/busybox", "cat", "/mark"]].concat();
        let refused = call(&home, &[(variable, &host)], &args).fails(125);
        assert!(refused.contains(&format!("log in: {provider} login {}", registry.address())), "{refused}");
        assert_eq!(call(&home, &[(variable, &host), login], &args).ok(), home.mark());
        docker::docker(socket, &["rmi", &image]);
    }
}

#[test]
fn an_engine_of_another_architecture_runs_plain_commands() {
    let engine = docker::Private::start_as("i686");
    let image = docker::image_on(&engine.socket());
    let front = Front::start(engine.socket());
    let home = Home::new();
    let certificates = home.path().join("certificates");
    std::fs::create_dir(&certificates).unwrap();
    let (certificate, key) = front.identity();
    for (name, content) in [("ca.pem", front.authority()), ("cert.pem", certificate), ("key.pem", key)] {
        std::fs::write(certificates.join(name), content).unwrap();
    }
    let host = format!("tcp://localhost:{}", front.port());
    let path = certificates.to_str().unwrap();
    let env = [("DOCKER_HOST", host.as_str()), ("DOCKER_TLS_VERIFY", "1"), ("DOCKER_CERT_PATH", path)];
    let docker = |args: &[&str]| call(&home, &env, &[&["--provider", "docker"], args].concat());
    let made = ["--no-workspace", "--network", "none", "--image", &image];
    docker(&[&["create", "--start", "--name", "far"], &made[..]].concat()).ok();
    let inspected = docker(&["inspect", "far"]).json();
    let inspected = inspected.as_array().map_or(&inspected, |all| &all[0]);
    assert_eq!(inspected["enforcement"]["mode"], "docker, root, remote, no keeper", "{inspected}");
    docker(&["exec", "far", "-c", "echo out; exit 3"]).fails(3);
    std::fs::create_dir(home.workspace().join("project")).unwrap();
    std::fs::write(home.workspace().join("project/file"), "content\n").unwrap();
    docker(&["cp", "project", "far:/workspace"]).ok();
    assert_eq!(docker(&["exec", "far", "--", "cat", "/workspace/project/file"]).ok(), "content");
    docker(&["cp", "far:/workspace/project/file", "back"]).ok();
    assert_eq!(std::fs::read_to_string(home.workspace().join("back")).unwrap(), "content\n");
    for refused in [&["exec", "--timeout", "5s", "far", "--", "true"][..], &["exec", "--tty", "far", "--", "true"]] {
        let stderr = docker(refused).fails(125);
        assert!(stderr.contains("there is no keeper in this sandbox"), "{refused:?}: {stderr}");
    }
    let stderr = docker(&[&["run"], &made[..], &["--", "true"]].concat()).fails(125);
    assert!(
        stderr.contains("no keeper runs on that engine's machine") && stderr.contains("explain keeper"),
        "{stderr}"
    );
    docker(&["rm", "--force", "far"]).ok();
}

/// The first lines of the requests on each connection.
type Requests = Arc<Mutex<Vec<Vec<String>>>>;

/// Listens at a socket, forwards everything to an engine, and records the requests.
fn recording(engine: PathBuf, socket: &Path) -> Requests {
    let listener = UnixListener::bind(socket).unwrap();
    let requests = Requests::default();
    let recorded = requests.clone();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let (mut client, mut there) = (client.unwrap(), UnixStream::connect(&engine).unwrap());
            let number = {
                let mut connections = recorded.lock().unwrap();
                connections.push(Vec::new());
                connections.len() - 1
            };
            let (mut back, mut here) = (there.try_clone().unwrap(), client.try_clone().unwrap());
            std::thread::spawn(move || std::io::copy(&mut back, &mut here));
            let recorded = recorded.clone();
            std::thread::spawn(move || {
                let mut bytes = vec![0; 65536];
                while let Ok(count @ 1..) = client.read(&mut bytes) {
                    let text = String::from_utf8_lossy(&bytes[..count]).into_owned();
                    let lines = text.lines().filter_map(|line| line.strip_suffix(" HTTP/1.1")).map(ToOwned::to_owned);
                    recorded.lock().unwrap()[number].extend(lines);
                    there.write_all(&bytes[..count]).unwrap();
                }
                let _ = there.shutdown(std::net::Shutdown::Write);
            });
        }
    });
    requests
}

/// Creates a sandbox, and runs a command in it through a proxy. Returns the requests on each connection, with `NAME` for
/// the name of the sandbox.
fn requests_of_exec(engine: PathBuf, variable: &str, options: &[&str], has_name: bool) -> Vec<Vec<String>> {
    let home = Home::new();
    let image = docker::image_on(&engine);
    let (direct, socket) = (unix(&engine), home.path().join("recording.sock"));
    // No other engine is contacted.
    let nowhere = [("DOCKER_HOST", "unix:///nowhere"), ("CONTAINER_HOST", "unix:///nowhere")];
    let env = |host: &str| [nowhere[0], nowhere[1], (variable, host)].map(|(key, value)| (key, value.to_owned()));
    let on = |host: &str, args: &[&str]| {
        let env = env(host);
        call(&home, &env.each_ref().map(|(key, value)| (*key, value.as_str())), args)
    };
    let chosen = format!("few-{}", home.mark().to_lowercase());
    let create = ["create", "--start", "--no-workspace", "--network", "none", "--image", &image];
    let named: &[&str] = if has_name { &["--name", &chosen] } else { &[] };
    let provider = if variable == "DOCKER_HOST" { "docker" } else { "podman" };
    let name = on(&direct, &[&["--provider", provider], &create[..], named].concat()).ok();
    assert_eq!(name == chosen, has_name, "{name}");
    let requests = recording(engine, &socket);
    assert_eq!(on(&unix(&socket), &[options, &["exec", &name, "--", "echo", "hi"]].concat()).ok(), "hi");
    on(&direct, &["rm", "--force", &name]).ok();
    let requests = requests.lock().unwrap();
    requests.iter().map(|lines| lines.iter().map(|line| line.replace(&name, "NAME")).collect()).collect()
}

/// A command in a running container takes one connection and one request: the inspection that finds the container and
/// its first process. Docker needs many times longer for its version information than for this.
#[test]
fn a_command_on_docker_takes_one_request() {
    for options in [&["--provider", "docker"][..], &[]] {
        for has_name in [true, false] {
            let requests = requests_of_exec(docker::socket(), "DOCKER_HOST", options, has_name);
            assert_eq!(requests, [["GET /containers/kennel-NAME/json"]], "{options:?} {has_name}");
        }
    }
}

/// On Podman there is one more request: only its own API reports the capabilities.
#[test]
fn a_command_on_podman_takes_two_requests() {
    let requests = requests_of_exec(Service::Root.socket(), "CONTAINER_HOST", &[], true);
    let inspections = ["GET /containers/kennel-NAME/json", "GET /v4.0.0/libpod/containers/kennel-NAME/json"];
    assert_eq!(requests, [inspections]);
}

/// Listens at a socket and forwards everything to an engine, but holds back requests to create a container. Sends a message
/// for each, and forwards it when there is a reply, also if the client is gone by then.
fn holding_creations(engine: PathBuf, socket: &Path) -> (mpsc::Receiver<()>, mpsc::Sender<()>) {
    let listener = UnixListener::bind(socket).unwrap();
    let ((arrived, arrivals), (release, released)) = (mpsc::channel(), mpsc::channel());
    let released = Arc::new(Mutex::new(released));
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let (mut client, mut there) = (client.unwrap(), UnixStream::connect(&engine).unwrap());
            let (mut back, mut here) = (there.try_clone().unwrap(), client.try_clone().unwrap());
            let (arrived, released) = (arrived.clone(), released.clone());
            std::thread::spawn(move || std::io::copy(&mut back, &mut here));
            std::thread::spawn(move || {
                let (mut bytes, mut is_held) = (vec![0; 65536], false);
                while let Ok(count @ 1..) = client.read(&mut bytes) {
                    let text = String::from_utf8_lossy(&bytes[..count]);
                    if text.starts_with("POST ") && text.contains("/containers/create") {
                        is_held = true;
                        let _ = arrived.send(());
                        let _ = released.lock().unwrap().recv();
                    }
                    there.write_all(&bytes[..count]).unwrap();
                }
                // The engine still works on a request that was held back. It would notice that nobody waits for it.
                if !is_held {
                    let _ = there.shutdown(std::net::Shutdown::Write);
                }
            });
        }
    });
    (arrivals, release)
}

/// Kills a program while the engine creates its container, so that it cannot remove the container. It appears later, and is a
/// leftover: nobody has it, and nobody has checked what the engine made.
fn container_of_a_killed_program_is_swept(words: &[&str], name: Option<&str>) {
    let home = Home::new();
    let (engine, socket) = (docker::socket(), home.path().join("holding.sock"));
    let image = docker::image_on(&engine);
    let (arrivals, release) = holding_creations(engine.clone(), &socket);
    let host = unix(&socket);
    let env = [("DOCKER_HOST", host.as_str()), ("CONTAINER_HOST", "unix:///nowhere")];
    let name = name.map(|name| format!("{name}-{}", home.mark().to_lowercase()));
    let mut options = vec!["--network", "none", "--image", &image];
    options.extend(name.iter().flat_map(|name| ["--name", name]));
    let words = [&["--provider", "docker"], &words[..1], &options, &words[1..]].concat();
    let mut killed = Command::new(env!("CARGO_BIN_EXE_kennel"));
    killed.current_dir(home.workspace()).env_clear().stdin(Stdio::null()).stdout(Stdio::null());
    killed.env("PATH", "/usr/bin:/bin").env("KENNEL_HOME", home.path()).env("HOME", home.path()).envs(env);
    let mut killed = killed.args(&words).spawn().unwrap();
    arrivals.recv_timeout(crate::support::CALL).expect("it creates a container");
    killed.kill().unwrap();
    killed.wait().unwrap();
    let on_docker = |words: &[&str]| call(&home, &env, &[&["--provider", "docker"], words].concat());
    let sandboxes = || {
        let rows = on_docker(&["gc", "--dry-run", "--json"]).json();
        let rows = rows.as_array().unwrap().iter().filter(|row| row["kind"] == "sandbox");
        rows.map(|row| row["id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(sandboxes(), Vec::<String>::new(), "it is not there yet");
    release.send(()).unwrap();
    assert!(within_blocking(crate::support::CALL, || !sandboxes().is_empty()), "the container never appears");
    let found = sandboxes();
    let [id] = &found[..] else { panic!("{found:?}") };
    let label = format!("label=kennel.id={id}");
    let containers = || docker::docker(&engine, &["ps", "--all", "--quiet", "--filter", &label]).lines().count();
    assert_eq!(containers(), 1, "a dry run removes nothing");
    assert_eq!(on_docker(&["ls", "--all", "--ids"]).ok(), "", "nobody has it");
    if let Some(name) = &name {
        assert!(on_docker(&["start", name]).fails(125).contains("there is no sandbox"));
        // The name is free, so a later program can use it.
        release.send(()).unwrap();
        assert_eq!(on_docker(&words[2..]).ok(), *name);
        assert_eq!(containers(), 0);
        on_docker(&["rm", name]).ok();
    } else {
        assert!(on_docker(&["gc"]).ok().contains(&format!("removed sandbox {id} of docker")));
    }
    assert_eq!(containers(), 0);
    assert_eq!(on_docker(&["gc", "--json"]).json(), serde_json::json!([]), "nothing else is left");
}

#[test]
fn container_of_a_killed_run_is_swept() {
    container_of_a_killed_program_is_swept(&["run", "--", "true"], None);
}

#[test]
fn container_of_a_killed_create_is_swept() {
    container_of_a_killed_program_is_swept(&["create"], None);
}

#[test]
fn name_of_a_killed_create_is_free() {
    container_of_a_killed_program_is_swept(&["create"], Some("box"));
}
