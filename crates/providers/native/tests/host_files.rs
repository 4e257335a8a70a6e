//! A sandbox of root on the host's files: files that other users of the host may not read cannot be read inside. All
//! other files are visible, and package managers work.

use kennel_core::{Provider, RemoveOptions, Sandbox, WriteOptions};
use kennel_native::Native;
use kennel_testkit::{Home, Net, inside};
use kennel_types::{NetworkMode, SandboxSpec};
use rustix::mount::{MountFlags, mount};
use std::collections::hash_map::RandomState;
use std::fs::{self, Permissions};
use std::hash::BuildHasher;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

/// Paths of files that contain secrets on real machines. The test creates each under another name in the same
/// directory, so that no file of the host is changed.
const CANARIES: [&str; 76] = [
    "/boot/grub/grub.cfg",
    "/etc/NetworkManager/system-connections/office.nmconnection",
    "/etc/acme/account.key",
    "/etc/ansible/vault.pass",
    "/etc/apache2/ssl/site.key",
    "/etc/apt/auth.conf.d/company.conf",
    "/etc/at.deny",
    "/etc/bareos/bareos-dir.conf",
    "/etc/bind/rndc.key",
    "/etc/borgmatic/config.yaml",
    "/etc/ceph/ceph.client.admin.keyring",
    "/etc/chrony/chrony.keys",
    "/etc/cni/net.d/calico-kubeconfig",
    "/etc/consul.d/consul.hcl",
    "/etc/credstore/password",
    "/etc/crypttab.d/key",
    "/etc/davfs2/secrets",
    "/etc/docker/key.json",
    "/etc/dovecot/private/dovecot.pem",
    "/etc/exim4/passwd.client",
    "/etc/fail2ban/jail.local",
    "/etc/freeradius/clients.conf",
    "/etc/gitlab/gitlab-secrets.json",
    "/etc/gitlab-runner/config.toml",
    "/etc/grafana/grafana.ini",
    "/etc/haproxy/certs/site.pem",
    "/etc/ipsec.secrets",
    "/etc/iscsi/iscsid.conf",
    "/etc/krb5.keytab",
    "/etc/ldap/secret",
    "/etc/letsencrypt/archive/site/privkey1.pem",
    "/etc/letsencrypt/live/site/privkey.pem",
    "/etc/libvirt/secrets/disk.xml",
    "/etc/luks/key",
    "/etc/msmtprc",
    "/etc/mysql/debian.cnf",
    "/etc/nginx/ssl/site.key",
    "/etc/nut/upsd.users",
    "/etc/openvpn/server/server.key",
    "/etc/pam_ldap.secret",
    "/etc/postfix/sasl_passwd",
    "/etc/ppp/chap-secrets",
    "/etc/puppetlabs/puppet/ssl/private_keys/host.pem",
    "/etc/rancher/k3s/k3s.yaml",
    "/etc/redis/redis.conf",
    "/etc/restic/password",
    "/etc/rsyncd.secrets",
    "/etc/salt/pki/minion/minion.pem",
    "/etc/samba/credentials",
    "/etc/security/opasswd",
    "/etc/shadow.old",
    "/etc/ssh/ssh_host_ed25519_key",
    "/etc/ssl/private/site.key",
    "/etc/sudoers.d/admin",
    "/etc/swanctl/private/key.pem",
    "/etc/tinc/net/rsa_key.priv",
    "/etc/vault.d/vault.hcl",
    "/etc/wireguard/wg0.conf",
    "/etc/wpa_supplicant/wpa_supplicant.conf",
    "/opt/app/.env",
    "/opt/vendor/license.key",
    "/srv/backup/dump.sql",
    "/srv/git/config",
    "/usr/local/etc/api.token",
    "/usr/local/lib/app/credentials",
    "/var/backups/shadow.bak",
    "/var/cache/app/session",
    "/var/lib/cloud/instance/user-data.txt",
    "/var/lib/kennel-test-service/key",
    "/var/lib/rancher/k3s/server/token",
    "/var/lib/samba/private/secrets.tdb",
    "/var/lib/sss/secrets/key",
    "/var/lib/vault/raft/vault.db",
    "/var/log/app/requests.log",
    "/var/spool/cron/crontabs/root",
    "/var/www/site/config.php",
];

const SECRET: &str = "a secret of root's";

/// Files on the host, which are removed at the end with the directories that were created for them.
#[derive(Default)]
struct Placed {
    files: Vec<PathBuf>,
    dirs: Vec<PathBuf>,
}

impl Placed {
    fn dir(&mut self, dir: &Path) {
        let missing: Vec<&Path> = dir.ancestors().take_while(|dir| !dir.exists()).collect();
        for dir in missing.into_iter().rev() {
            // Another test may create the same directory.
            if fs::create_dir(dir).is_ok() {
                fs::set_permissions(dir, Permissions::from_mode(0o755)).unwrap();
                self.dirs.push(dir.to_owned());
            }
        }
    }

    fn file(&mut self, path: PathBuf, text: &str, mode: u32) -> PathBuf {
        self.dir(path.parent().unwrap());
        self.files.push(path.clone());
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        path
    }
}

impl Drop for Placed {
    fn drop(&mut self) {
        for file in &self.files {
            let _ = fs::remove_file(file);
        }
        for dir in self.dirs.iter().rev() {
            let _ = fs::remove_dir(dir);
        }
    }
}

fn native(home: &Home) -> Arc<dyn Provider> {
    Arc::new(Native::new(home.state(), home.programs()))
}

async fn started(home: &Home) -> Sandbox {
    let spec = SandboxSpec { network: Some(NetworkMode::None), ..SandboxSpec::default() };
    let sandbox = Sandbox::create(native(home), &spec).await.unwrap();
    sandbox.start().await.unwrap();
    sandbox
}

async fn end(sandbox: Sandbox) {
    sandbox.remove(RemoveOptions { volumes: true, force: true }).await.unwrap();
}

/// Returns which of these files root inside can read.
async fn readable(sandbox: &Sandbox, files: &[PathBuf]) -> Vec<String> {
    let lines: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
    inside::files(sandbox)
        .await
        .write("/tmp/list", lines.join("\n").as_bytes(), WriteOptions::default())
        .await
        .unwrap();
    let script = r#"while IFS= read -r f || [ -n "$f" ]; do head -c 1 -- "$f" >/dev/null 2>&1 && printf '%s\n' "$f"; done </tmp/list; true"#;
    inside::ok(sandbox, script).await.lines().map(ToOwned::to_owned).collect()
}

#[tokio::test]
async fn files_of_root_cannot_be_read_inside() {
    let (home, _net) = (Home::new(), Net::alone());
    let mut placed = Placed::default();
    let mark = format!("kennel-test-{}", std::process::id());
    let files: Vec<PathBuf> = CANARIES.iter().map(|path| PathBuf::from(format!("{path}.{mark}"))).collect();
    for file in &files {
        placed.file(file.clone(), SECRET, 0o600);
    }
    // Only permissions count, not the path: a file that everyone may read is visible.
    let open = placed.file(format!("/etc/wireguard/open.{mark}").into(), "for all", 0o644);
    for file in &files {
        assert_eq!(fs::read_to_string(file).unwrap(), SECRET, "a plain process of root reads it");
    }
    let sandbox = started(&home).await;
    assert_eq!(readable(&sandbox, &files).await, Vec::<String>::new());
    assert_eq!(inside::ok(&sandbox, &format!("cat {}", open.display())).await, "for all");
    // Neither a copy that root inside makes, nor a change of permissions, makes it readable.
    let [first, ..] = &files[..] else { unreachable!() };
    for file in [first, &files[10], &files[57]] {
        let file = file.display();
        let script = format!(
            "chmod 666 {file}; chown 0:0 {file}; cat {file}; cp -a {file} /tmp/x && cat /tmp/x; mv {file} {file}.moved; cat {file}.moved; true"
        );
        let output = inside::sh(&sandbox, &script).await;
        assert!(!output.stdout_text().contains(SECRET), "{file}: {}", output.stdout_text());
    }
    end(sandbox).await;
}

/// Returns files of this machine that other users may not read.
fn private_files() -> Vec<PathBuf> {
    const ENOUGH: usize = 20_000;
    let mut found = Vec::new();
    let mut dirs: Vec<(PathBuf, bool)> =
        ["/etc", "/var", "/usr", "/opt", "/root", "/boot", "/srv"].map(|dir| (dir.into(), false)).into();
    while let Some((dir, shut)) = dirs.pop() {
        let Ok(own) = fs::metadata(&dir) else { continue };
        let shut = shut || own.mode() & 0o001 == 0;
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            let Ok(meta) = entry.metadata() else { continue };
            let path = entry.path();
            let plain = path.to_str().is_some_and(|path| !path.contains('\n'));
            if meta.is_dir() && meta.dev() == own.dev() {
                dirs.push((path, shut));
            } else if meta.is_file() && meta.len() > 0 && plain && (shut || meta.mode() & 0o004 == 0) {
                found.push(path);
            }
        }
        if found.len() > ENOUGH {
            break;
        }
    }
    found
}

#[tokio::test]
async fn unreadable_host_files_cannot_be_read_inside() {
    let (home, _net) = (Home::new(), Net::alone());
    let mut placed = Placed::default();
    let mut all = private_files();
    // A new machine has few of them.
    let dir = PathBuf::from(format!("/var/cache/kennel-test-{}", std::process::id()));
    for number in 0..200_usize.saturating_sub(all.len()) {
        all.push(placed.file(dir.join(number.to_string()), SECRET, 0o600));
    }
    let random = RandomState::new();
    all.sort_by_cached_key(|path| random.hash_one(path));
    all.truncate(200);
    assert!(all.iter().all(|file| fs::File::open(file).is_ok()), "a plain process of root reads them");
    let sandbox = started(&home).await;
    assert_eq!(readable(&sandbox, &all).await, Vec::<String>::new());
    end(sandbox).await;
}

#[tokio::test]
async fn directories_with_data_are_not_visible() {
    let (home, _net) = (Home::new(), Net::alone());
    let mut placed = Placed::default();
    let mark = format!("kennel-test-{}", std::process::id());
    let data = ["/srv", "/mnt", "/media", "/var/backups", "/home", "/var/lib/libvirt"];
    let files: Vec<PathBuf> = data.iter().map(|dir| Path::new(dir).join(&mark)).collect();
    for file in &files {
        placed.file(file.clone(), "for all", 0o644);
    }
    // The data of a service is not visible, even if everyone may read it.
    let service = PathBuf::from(format!("/var/lib/{mark}"));
    placed.dir(&service);
    let of_service = placed.file(service.join("state"), "for all", 0o644);
    std::os::unix::fs::chown(&service, Some(65_534), None).unwrap();
    let roots = placed.file(format!("/var/lib/{mark}-system/state").into(), "for all", 0o644);
    let sandbox = started(&home).await;
    assert_eq!(readable(&sandbox, &[files, vec![of_service]].concat()).await, Vec::<String>::new());
    assert_eq!(readable(&sandbox, std::slice::from_ref(&roots)).await, [roots.display().to_string()]);
    end(sandbox).await;
}

#[tokio::test]
async fn only_filesystems_of_the_system_are_visible() {
    // In a separate mount namespace.
    let (home, _net) = (Home::new(), Net::alone());
    let mut placed = Placed::default();
    let mark = format!("kennel-test-{}", std::process::id());
    let (system, inner) = (PathBuf::from(format!("/opt/{mark}")), PathBuf::from(format!("/opt/{mark}/inner")));
    let other = PathBuf::from(format!("/{mark}"));
    for dir in [&system, &other] {
        placed.dir(dir);
    }
    for dir in [&system, &inner, &other] {
        fs::create_dir_all(dir).unwrap();
        mount("none", dir, "tmpfs", MountFlags::empty(), None).unwrap();
        fs::write(dir.join("file"), "for all").unwrap();
        fs::write(dir.join("secret"), SECRET).unwrap();
        fs::set_permissions(dir.join("secret"), Permissions::from_mode(0o600)).unwrap();
    }
    let sandbox = started(&home).await;
    for dir in [&system, &inner] {
        let dir = dir.display();
        assert_eq!(inside::ok(&sandbox, &format!("cat {dir}/file")).await, "for all");
        assert!(!inside::sh(&sandbox, &format!("cat {dir}/secret")).await.status.success());
        assert_eq!(inside::ok(&sandbox, &format!("echo mine > {dir}/file; cat {dir}/file")).await, "mine");
        assert_eq!(fs::read_to_string(Path::new(&dir.to_string()).join("file")).unwrap(), "for all");
    }
    assert_eq!(inside::ok(&sandbox, &format!("ls -A {}", other.display())).await, "");
    // After a restart of the sandbox, the written files are still there.
    sandbox.stop(std::time::Duration::ZERO).await.unwrap();
    sandbox.start().await.unwrap();
    assert_eq!(inside::ok(&sandbox, &format!("cat {}/file", inner.display())).await, "mine");
    end(sandbox).await;
    for dir in [&inner, &system, &other] {
        rustix::mount::unmount(dir, rustix::mount::UnmountFlags::DETACH).unwrap();
    }
}

/// Builds a package on the host: it adds users, and has a set-user-id program, a program that asks for capabilities as that
/// of iputils-ping does, and a file that only root may read.
fn package(home: &Home) -> Vec<u8> {
    let (root, built) = (home.path().join("package"), home.path().join("package.deb"));
    let control = "Package: kennel-test\nVersion: 1\nArchitecture: all\nMaintainer: none\nDescription: none\n";
    let postinst = "#!/bin/sh\nset -e\nuseradd --system kennel-test-user\ngroupadd kennel-test-group\n\
        setcap cap_net_raw+ep /usr/bin/kennel-test-ping || chmod u+s /usr/bin/kennel-test-ping\n";
    for (path, text, mode) in [
        ("DEBIAN/control", control, 0o644),
        ("DEBIAN/postinst", postinst, 0o755),
        ("usr/share/kennel-test/file", "data", 0o644),
        ("usr/bin/kennel-test-sudo", "#!/bin/sh\n", 0o4755),
        ("usr/bin/kennel-test-ping", "#!/bin/sh\n", 0o755),
        ("etc/ppp/chap-secrets", "from the package", 0o600),
    ] {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
    }
    let mut build = Command::new("dpkg-deb");
    assert!(build.arg("--build").arg(&root).arg(&built).stdout(Stdio::null()).status().unwrap().success());
    let listed = Command::new("dpkg-deb").arg("--contents").arg(&built).output().unwrap();
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(listed.lines().any(|line| line.starts_with("-rws") && line.ends_with("kennel-test-sudo")), "{listed}");
    fs::read(built).unwrap()
}

/// What installing packages does to files that the host keeps to root: locks, password files, caches, and files that the
/// package replaces. Set-id bits and capabilities of programs are left out, and the installation succeeds.
#[tokio::test]
async fn packages_users_and_caches_can_be_changed_inside() {
    let (home, _net) = (Home::new(), Net::alone());
    let mut placed = Placed::default();
    let replaced = PathBuf::from("/etc/ppp/chap-secrets");
    if !replaced.exists() {
        placed.file(replaced.clone(), SECRET, 0o600);
    }
    let before = fs::read(&replaced).unwrap();
    let package = package(&home);
    let sandbox = started(&home).await;
    inside::files(&sandbox).await.write("/tmp/p.deb", &package, WriteOptions::default()).await.unwrap();
    let script = "set -e
        dpkg -i --force-confnew /tmp/p.deb
        apt-get check
        ldconfig
        printf 'kennel-test-user:secret\\n' | chpasswd
        grep -q '^kennel-test-user:.\\{5,\\}:' /etc/shadow
        id kennel-test-user
        test \"$(stat -c %a /usr/bin/kennel-test-sudo /usr/bin/kennel-test-ping | tr '\\n' ' ')\" = '755 755 '
        test -z \"$(getcap /usr/bin/kennel-test-ping 2>/dev/null)\"
        test \"$(cat /etc/ppp/chap-secrets)\" = 'from the package'
        dpkg -r kennel-test";
    let output = inside::sh(&sandbox, script).await;
    assert!(output.status.success(), "{}\n{}", output.stdout_text(), output.stderr_text());
    assert!(!fs::read_to_string("/etc/passwd").unwrap().contains("kennel-test-user"));
    assert_eq!(fs::read(&replaced).unwrap(), before, "the host's own is as it was");
    end(sandbox).await;
}
