//! The tests of a real project: those of Python's standard library, as packaged by Debian, on an image made of this
//! machine's files. Output and exit code are the same inside and outside.

use crate::support::{Finished, finish};
use kennel_testkit::podman::Service;
use kennel_testkit::{Home, docker};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The tests of the library that are run: hundreds, in seconds.
const TESTS: [&str; 3] = ["test.test_json", "test.test_textwrap", "test.test_shlex"];
/// The files of the test directory that they need.
const FILES: [&str; 5] = ["__init__.py", "support", "test_json", "test_textwrap.py", "test_shlex.py"];
/// Environment variables, the same inside and outside.
const ENV: [(&str, &str); 3] = [("PYTHONDONTWRITEBYTECODE", "1"), ("PYTHONHASHSEED", "0"), ("LANG", "C.UTF-8")];

#[test]
fn a_real_test_suite_passes_on_docker() {
    the_suite_runs("docker", "DOCKER_HOST", &docker::socket());
}

#[test]
fn a_real_test_suite_passes_on_podman() {
    the_suite_runs("podman", "CONTAINER_HOST", &Service::Root.socket());
}

fn the_suite_runs(provider: &str, variable: &str, socket: &Path) {
    let home = Home::new();
    let image = format!("kennel-test/python-{}", home.mark().to_lowercase());
    let archive = pack(&home);
    docker::docker(socket, &["import", archive.to_str().unwrap(), &image]);
    let host = format!("unix://{}", socket.display());
    let inside = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kennel"));
        command.current_dir(home.workspace()).env_clear().stdin(Stdio::null()).env(variable, &host);
        command.env("PATH", "/usr/bin:/bin").env("KENNEL_HOME", home.path()).env("HOME", home.path());
        command.args(["--provider", provider, "run", "--network", "none", "--image", &image]);
        command.args(ENV.iter().flat_map(|(key, value)| ["--env".to_owned(), format!("{key}={value}")]));
        command.args(["--", "python3"]).args(arguments);
        finish(command, None)
    };
    let outside = |arguments: &[&str]| {
        let mut command = Command::new("python3");
        command.current_dir(home.workspace()).env_clear().stdin(Stdio::null()).envs(ENV);
        command.env("PATH", "/usr/bin:/bin").args(arguments);
        finish(command, None)
    };

    let all = [&["-m", "unittest", "-v"][..], &TESTS].concat();
    let (ours, theirs) = (inside(&all), outside(&all));
    assert_eq!(told(&ours, &home), told(&theirs, &home));
    assert!(theirs.status == 0 && theirs.stderr.matches(" ... ok\n").count() > 200, "{theirs:?}");

    let broken =
        "import unittest\n\nclass Broken(unittest.TestCase):\n    def test_it(self):\n        self.assertEqual(1, 2)\n";
    std::fs::write(home.workspace().join("broken.py"), broken).unwrap();
    let failing = ["-m", "unittest", "broken"];
    let (ours, theirs) = (inside(&failing), outside(&failing));
    assert_eq!(told(&ours, &home), told(&theirs, &home));
    assert!(theirs.status == 1 && theirs.stderr.contains("1 != 2"), "{theirs:?}");
    docker::docker(socket, &["rmi", &image]);
}

/// The exit code and output of a run, without durations and paths.
fn told(run: &Finished, home: &Home) -> (i32, String, String) {
    let lines = run.stderr.lines().map(|line| match line.split_once(" tests in ").or(line.split_once(" test in ")) {
        Some((ran, _)) => ran.to_owned(),
        None => line.replace(home.workspace().to_str().unwrap(), "/workspace"),
    });
    (run.status, run.text(), lines.collect::<Vec<_>>().join("\n"))
}

/// Creates an image with this machine's Python, its shared libraries, its standard library and some of the tests.
fn pack(home: &Home) -> PathBuf {
    let said = |program: &str, arguments: &[&str]| {
        let output = Command::new(program).args(arguments).env_clear().env("PATH", "/usr/bin:/bin").output().unwrap();
        assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let library = said("python3", &["-c", "import sysconfig; print(sysconfig.get_path('stdlib'))"]);
    let library = library.trim().trim_start_matches('/');
    let tests = Path::new("/").join(library).join("test");
    let missing = "apt-get install libpython3.11-testsuite";
    assert!(FILES.iter().all(|file| tests.join(file).exists()), "{} is not whole: {missing}", tests.display());
    let linked = said("ldd", &["/usr/bin/python3"]);
    let linked = linked.split_whitespace().filter_map(|word| word.strip_prefix('/')).map(ToOwned::to_owned);

    let archive = home.path().join("python.tar");
    let mut command = Command::new("tar");
    command.args(["--create", "--dereference", "--directory", "/", "--file"]).arg(&archive);
    for left_out in ["__pycache__", "config-*", "idlelib", "lib2to3", "dist-packages"] {
        command.arg(format!("--exclude={left_out}"));
    }
    command.args(linked).arg("usr/bin/python3");
    let parts = std::fs::read_dir(Path::new("/").join(library)).unwrap().flatten().map(|entry| entry.file_name());
    command.args(parts.filter(|name| name != "test").map(|name| Path::new(library).join(name)));
    command.args(FILES.map(|file| Path::new(library).join("test").join(file)));
    assert!(command.status().unwrap().success(), "{command:?}");
    archive
}
