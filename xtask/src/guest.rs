//! `cargo xtask guest`: runs the native provider's contract tests in a new virtual machine. It has Debian's kernel,
//! which is older than most, and only cgroups of version 2, like most machines.
//!
//! The machine is emulated in software, which is slow but works everywhere. Its disk contains only busybox and the
//! tests.

use crate::machine::{Machine, Package, apt_get, find, package};
use crate::stage::{Stages, cargo, root};
use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The packages that the guest needs.
pub(crate) const NEEDED: &[Package] = &[
    package("qemu-system-x86_64", "qemu-system-x86"),
    package("mke2fs", "e2fsprogs"),
    package("cpio", "cpio"),
    package("depmod", "kmod"),
    package("nft", "nftables"),
    package("ip", "iproute2"),
    package("pasta", "passt"),
    package("busybox", "busybox-static"),
];

/// The package that depends on Debian's current kernel.
const KERNEL: &str = "linux-image-cloud-amd64";
/// Kernel modules that are not built in, in the order in which they are loaded.
const MODULES: [&str; 8] = [
    "drivers/virtio/virtio",
    "drivers/virtio/virtio_ring",
    "drivers/virtio/virtio_pci_legacy_dev",
    "drivers/virtio/virtio_pci_modern_dev",
    "drivers/virtio/virtio_pci",
    "drivers/block/virtio_blk",
    "drivers/block/loop",
    "fs/overlayfs/overlay",
];
/// The test programs, by name.
const TESTS: [&str; 2] = ["contract", "contract_user"];
/// The time limit for the whole run of the guest.
const WITHIN: Duration = Duration::from_mins(20);

/// Runs the tests in the guest. Returns whether everything passed.
pub(crate) fn run() -> Result<bool> {
    let mut machine = Machine::here();
    let mut stages = Stages::default();
    stage(&mut machine, &mut stages)?;
    Ok(stages.conclude())
}

/// Runs the guest as a stage of a task.
pub(crate) fn stage(machine: &mut Machine, stages: &mut Stages) -> Result<()> {
    if std::env::consts::ARCH != "x86_64" {
        return machine.leave_out("the guest", "its kernel is for x86-64");
    }
    machine.install(NEEDED)?;
    let dir = root().join("target/guest");
    fs::create_dir_all(&dir)?;
    let kernel = kernel(&dir)?;
    let first = first(&dir, &kernel)?;
    let disk = disk(&dir, &kernel)?;
    let mut command = Command::new("qemu-system-x86_64");
    command
        // This machine type has a reference clock. Without one, booting sometimes hangs.
        .args(["-accel", "tcg", "-M", "q35", "-cpu", "max", "-smp", "2", "-m", "1G"])
        .args(["-nodefaults", "-no-user-config", "-nographic", "-serial", "stdio", "-no-reboot"])
        .args(["-append", "console=ttyS0 quiet panic=-1", "-device", "virtio-blk-pci,drive=disk"])
        .arg("-kernel")
        .arg(&kernel.image)
        .arg("-initrd")
        .arg(first)
        .arg("-drive")
        .arg(format!("id=disk,file={},format=raw,if=none", disk.display()))
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    stages.measure("guest", &mut command, watch)?;
    let _ = fs::remove_file(disk);
    Ok(())
}

/// Debian's kernel, unpacked.
struct Kernel {
    image: PathBuf,
    /// The directory of its modules and their dependencies.
    modules: PathBuf,
    version: String,
}

/// Downloads and unpacks Debian's kernel, once per version, without installing it.
fn kernel(dir: &Path) -> Result<Kernel> {
    let depends = || -> Result<Option<String>> {
        let output = Command::new("apt-cache").args(["depends", KERNEL]).output().context("run apt-cache")?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        Ok(text.lines().find_map(|line| line.trim().strip_prefix("Depends: linux-image-").map(ToOwned::to_owned)))
    };
    let version = match depends()? {
        Some(version) => version,
        None if apt_get(&["update"])? => depends()?.context("Debian has no kernel of that kind")?,
        None => bail!("apt-get could not update its lists"),
    };
    let unpacked = dir.join(&version);
    let image = unpacked.join("boot").join(format!("vmlinuz-{version}"));
    if !image.exists() {
        eprintln!("== fetching Debian's kernel {version}");
        let fetched = tempfile::tempdir_in(dir)?;
        let name = format!("linux-image-{version}");
        let fetch = || Command::new("apt-get").args(["download", "-qq", &name]).current_dir(&fetched).status();
        if !fetch()?.success() {
            ensure!(apt_get(&["update"])? && fetch()?.success(), "apt-get could not download {name}");
        }
        let package = fs::read_dir(&fetched)?.next().context("apt-get downloaded nothing")??.path();
        let done = Command::new("dpkg-deb").arg("-x").arg(package).arg(&unpacked).status()?;
        ensure!(done.success(), "dpkg-deb could not unpack {name}");
    }
    let done = Command::new("depmod").arg("--basedir").arg(&unpacked).arg(&version).status().context("run depmod")?;
    ensure!(done.success(), "depmod could not sort the modules");
    Ok(Kernel { image, modules: unpacked.join("lib/modules").join(&version), version })
}

/// Builds the initial RAM disk, which contains just enough to mount the guest's disk.
fn first(dir: &Path, kernel: &Kernel) -> Result<PathBuf> {
    let tree = tempfile::tempdir_in(dir)?;
    for sub in ["bin", "dev", "disk", "modules", "proc", "sys"] {
        fs::create_dir(tree.path().join(sub))?;
    }
    busybox(&tree.path().join("bin"))?;
    for module in MODULES {
        let file = kernel.modules.join("kernel").join(module).with_extension("ko");
        let name = file.file_name().context("a module has a name")?;
        fs::copy(&file, tree.path().join("modules").join(name)).with_context(|| format!("copy {}", file.display()))?;
    }
    program(&tree.path().join("init"), include_str!("../guest/first.sh"))?;
    let archive = dir.join("first.cpio");
    let pack = "find . | cpio --create --format=newc --quiet";
    let done = Command::new("sh").args(["-c", pack]).current_dir(&tree).stdout(fs::File::create(&archive)?).status()?;
    ensure!(done.success(), "cpio could not pack what the kernel starts with");
    Ok(archive)
}

/// Builds the guest's disk, with the tests.
fn disk(dir: &Path, kernel: &Kernel) -> Result<PathBuf> {
    let tree = tempfile::tempdir_in(dir)?;
    let at = |path: &str| tree.path().join(path.trim_start_matches('/'));
    for sub in ["bin", "dev", "etc", "home", "proc", "root", "run", "sbin", "sys", "tests", "usr/bin", "var/tmp"] {
        fs::create_dir_all(at(sub))?;
    }
    fs::create_dir(at("tmp"))?;
    fs::set_permissions(at("tmp"), std::os::unix::fs::PermissionsExt::from_mode(0o1777))?;
    busybox(&at("bin"))?;
    fs::write(at("etc/passwd"), "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n")?;
    fs::write(at("etc/group"), "root:x:0:\nnogroup:x:65534:\n")?;
    program(&at("init"), include_str!("../guest/init.sh"))?;
    for (name, test) in build()? {
        let done = Command::new("strip").arg("-o").arg(at("tests").join(name)).arg(&test).status()?;
        ensure!(done.success(), "strip could not take {}", test.display());
    }
    // The tests look for these programs in their build directory, which is the directory above them.
    kennel_testkit::programs::put_all(tree.path());
    for program in ["mkfs.ext4", "nft", "ip", "pasta"] {
        with_libraries(&find(program).with_context(|| format!("{program} is not here"))?, tree.path())?;
    }
    let modules = at("lib/modules");
    fs::create_dir_all(&modules)?;
    let done = Command::new("cp").arg("-r").arg(&kernel.modules).arg(modules.join(&kernel.version)).status()?;
    ensure!(done.success(), "the modules could not be copied");
    std::os::unix::fs::symlink("/bin/busybox", at("sbin/modprobe"))?;
    let disk = dir.join("disk.img");
    fs::File::create(&disk)?.set_len(1 << 30)?;
    let done = Command::new("mke2fs").args(["-q", "-F", "-t", "ext4", "-d"]).arg(tree.path()).arg(&disk).status()?;
    ensure!(done.success(), "mke2fs could not make the guest's disk");
    Ok(disk)
}

/// Builds the test programs. Returns their names and paths.
fn build() -> Result<Vec<(&'static str, PathBuf)>> {
    let mut command = cargo(&["test", "--package", "kennel-native", "--no-run", "--message-format", "json"]);
    command.args(TESTS.iter().flat_map(|test| ["--test", test])).stdout(Stdio::piped());
    let output = command.spawn()?.wait_with_output()?;
    ensure!(output.status.success(), "the tests could not be built");
    let messages: Vec<serde_json::Value> =
        String::from_utf8_lossy(&output.stdout).lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let find = |test: &'static str| {
        let mut of = messages.iter().filter(|message| message["target"]["name"] == test);
        let program = of.find_map(|message| message["executable"].as_str());
        program.map(|program| (test, PathBuf::from(program))).with_context(|| format!("cargo named no program {test}"))
    };
    TESTS.into_iter().map(find).collect()
}

/// Installs busybox with a symlink for each of its programs.
fn busybox(bin: &Path) -> Result<()> {
    let busybox = Path::new("/bin/busybox");
    fs::copy(busybox, bin.join("busybox")).context("copy busybox")?;
    let list = Command::new(busybox).arg("--list").output()?;
    for name in String::from_utf8_lossy(&list.stdout).lines().filter(|name| *name != "busybox") {
        std::os::unix::fs::symlink("busybox", bin.join(name))?;
    }
    Ok(())
}

fn program(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text)?;
    fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    Ok(())
}

/// Copies a program of this machine to the guest, with the libraries that it needs.
fn with_libraries(program: &Path, tree: &Path) -> Result<()> {
    let output = Command::new("ldd").arg(program).output().context("run ldd")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let libraries = text.split_whitespace().filter(|word| word.starts_with('/')).map(Path::new);
    for path in libraries {
        let to = tree.join(path.strip_prefix("/")?);
        fs::create_dir_all(to.parent().context("a library is in a directory")?)?;
        fs::copy(path, to).with_context(|| format!("copy {}", path.display()))?;
    }
    // This directory comes before that of busybox, which may have a program of the same name.
    let name = program.file_name().context("a program has a name")?;
    fs::copy(program, tree.join("usr/bin").join(name)).with_context(|| format!("copy {}", program.display()))?;
    Ok(())
}

/// Prints the guest's output, and returns whether all tests passed in it. A guest that takes too long is killed.
fn watch(command: &mut Command) -> Result<bool> {
    let mut guest = Running(command.spawn().context("start qemu-system-x86_64")?);
    let output = guest.0.stdout.take().context("its output is ours")?;
    let (send, said) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let lines = BufReader::new(output).split(b'\n').map_while(Result::ok);
        lines.map(|line| String::from_utf8_lossy(&line).trim_end().to_owned()).try_for_each(|line| send.send(line))
    });
    let end = std::time::Instant::now() + WITHIN;
    let mut passed = 0;
    loop {
        match said.recv_timeout(end.saturating_duration_since(std::time::Instant::now())) {
            Ok(line) => {
                eprintln!("  {}", line.escape_debug().to_string().replace("\\\"", "\"").replace("\\'", "'"));
                passed += usize::from(line.starts_with("KENNEL ") && line.ends_with(" 0"));
            }
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => break,
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {
                eprintln!("  the guest does not come to an end within {WITHIN:?}");
                return Ok(false);
            }
        }
    }
    Ok(passed == TESTS.len())
}

/// The emulator. It is killed when this is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
