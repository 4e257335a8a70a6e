//! Images from a real registry on loopback, and from one that sends malformed responses.

use crate::common::{Layer, Shelf, config, config_of, gzip, nobody, quiet, reference, wait, zstd};
use kennel_image::{Credentials, Digest, Image, LoadOptions, Progress, Proxies, PullOptions, Result};
use kennel_testkit::docker;
use kennel_testkit::registry::{LOGIN, Registry};
use kennel_types::{ErrorCode, NextStep, Pull};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex};

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";

/// Pushes to a real registry, as another program would.
struct Pusher<'a> {
    registry: &'a Registry,
    login: bool,
}

impl Pusher<'_> {
    fn send(&self, method: reqwest::Method, url: &str, kind: &str, body: Vec<u8>) -> reqwest::Response {
        let client = reqwest::Client::builder().no_proxy().danger_accept_invalid_certs(true).build().unwrap();
        let (user, password) = LOGIN;
        let mut request = client.request(method, url).header("content-type", kind).body(body);
        if self.login {
            request = request.basic_auth(user, Some(password));
        }
        let answer = wait(request.send()).unwrap();
        assert!(answer.status().is_success(), "{url}: {}", answer.status());
        answer
    }

    fn blob(&self, repository: &str, bytes: &[u8]) -> Value {
        let begin = format!("http://{}/v2/{repository}/blobs/uploads/", self.registry.address());
        let answer = self.send(reqwest::Method::POST, &begin, "text/plain", Vec::new());
        let place = answer.headers()["location"].to_str().unwrap().to_owned();
        let digest = Digest::compute(bytes);
        let join = if place.contains('?') { '&' } else { '?' };
        self.send(
            reqwest::Method::PUT,
            &format!("{place}{join}digest={digest}"),
            "application/octet-stream",
            bytes.to_vec(),
        );
        json!({ "mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", "digest": digest.to_string(), "size": bytes.len() })
    }

    fn manifest(&self, repository: &str, tag: &str, kind: &str, manifest: &Value) -> Digest {
        let text = serde_json::to_vec(manifest).unwrap();
        let url = format!("http://{}/v2/{repository}/manifests/{tag}", self.registry.address());
        self.send(reqwest::Method::PUT, &url, kind, text.clone());
        Digest::compute(&text)
    }

    /// Pushes an image with these compressed layers. Returns its name and the manifest's digest.
    fn image(&self, repository: &str, config: &[u8], layers: &[&[u8]]) -> (String, Digest) {
        let layers: Vec<Value> = layers.iter().map(|layer| self.blob(repository, layer)).collect();
        let mut config = self.blob(repository, config);
        config["mediaType"] = json!("application/vnd.oci.image.config.v1+json");
        let manifest = json!({ "schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": layers });
        let digest = self.manifest(repository, "latest", MANIFEST, &manifest);
        (self.registry.name(repository), digest)
    }
}

fn public(registry: &Registry) -> Pusher<'_> {
    // The test's HTTP client is the same as ours, and needs the same provider of cryptography.
    let _ = rustls::crypto::ring::default_provider().install_default();
    Pusher { registry, login: false }
}

fn options() -> PullOptions {
    PullOptions { attempts: 2, ..PullOptions::default() }
}

fn pull(shelf: &Shelf, name: &str, options: &PullOptions) -> Result<Image> {
    wait(shelf.store.pull(&reference(name), options, &quiet))
}

/// Bytes that cannot be compressed.
fn noise(count: usize) -> Vec<u8> {
    let mut state = 7u64;
    let next = |state: &mut u64| {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*state >> 56) as u8
    };
    (0..count).map(|_| next(&mut state)).collect()
}

#[test]
fn an_image_is_pulled_from_a_real_registry() {
    let registry = Registry::start();
    let pusher = public(&registry);
    let lower = Layer::new().file("etc/name", b"lower").tar();
    let upper = Layer::new().file("etc/.wh.name", b"").file("data", &noise(100_000)).tar();
    let (name, digest) = pusher.image("team/app", &config(&[&lower, &upper]), &[&gzip(&lower), &zstd(&upper)]);
    let shelf = Shelf::new();
    let told = Mutex::new(Vec::<Progress>::new());
    let image = wait(shelf.store.pull(&reference(&name), &options(), &|step| told.lock().unwrap().push(step))).unwrap();
    assert_eq!(image.manifest, Some(digest));
    assert_eq!(image.diff_ids, [Digest::compute(&lower), Digest::compute(&upper)]);
    assert_eq!(std::fs::read(image.layers[0].join("etc/name")).unwrap(), b"lower");
    let told: Vec<String> = told.into_inner().unwrap().iter().map(|step| step.doing.to_string()).collect();
    assert!(told.contains(&"downloading".to_owned()) && told.contains(&"done".to_owned()), "{told:?}");
    assert!(
        shelf.holds().iter().all(|name| name.starts_with("names/") || name.starts_with("layers/")),
        "{:?}",
        shelf.holds()
    );
    // By digest, and a second time: nothing is downloaded again.
    let by_digest = pull(&shelf, &format!("{}@{digest}", registry.name("team/app")), &options()).unwrap();
    assert_eq!(by_digest.layers, image.layers);
    drop(registry);
    assert_eq!(pull(&shelf, &name, &options()).unwrap(), image, "an image in the store needs no registry");
    let error = pull(&shelf, &name, &PullOptions { when: Pull::Always, ..options() }).unwrap_err();
    assert_eq!(error.code(), ErrorCode::NotAvailable);
    assert!(shelf.store.get(&reference(&name)).unwrap().is_some(), "the existing image is kept");
    let error = pull(&shelf, "other", &PullOptions { when: Pull::Never, ..options() }).unwrap_err();
    assert_eq!(error.code(), ErrorCode::ImageNotFound);
}

#[test]
fn an_image_pushed_or_saved_by_docker_is_the_same() {
    let socket = docker::socket();
    let image = docker::image_on(&socket);
    let registry = Registry::start();
    let _ = rustls::crypto::ring::default_provider().install_default();
    let name = registry.push(&socket, &image, "kennel/busybox:1");
    let shelf = Shelf::new();
    let pulled = pull(&shelf, &name, &options()).unwrap();
    assert!(pulled.config.env.contains(&"FROM_IMAGE=yes".to_owned()), "{:?}", pulled.config);
    let busybox = std::fs::metadata(pulled.layers[0].join("bin/busybox")).unwrap();
    assert!(busybox.len() > 500_000 && busybox.permissions().mode() & 0o111 == 0o111);
    assert_eq!(std::fs::read_link(pulled.layers[0].join("bin/sh")).unwrap(), Path::new("busybox"));
    let archive = shelf.dir.path().join("saved.tar");
    docker::docker(&socket, &["save", "--output", archive.to_str().unwrap(), &image]);
    let loaded = shelf.load_with(&archive, &LoadOptions::default()).unwrap().remove(0);
    assert_eq!(loaded.reference, reference(&image));
    assert_eq!((&loaded.id, &loaded.layers), (&pulled.id, &pulled.layers), "it is the same image");
    shelf.store.remove(&[name, image], &nobody).unwrap();
    shelf.is_empty();
}

#[test]
fn the_image_for_this_architecture_is_pulled() {
    let registry = Registry::start();
    let pusher = public(&registry);
    let layer = Layer::new().file("f", b"x").tar();
    let (name, digest) = pusher.image("app", &config(&[&layer]), &[&gzip(&layer)]);
    let size = std::fs::metadata(registry.blob(&digest.hex())).unwrap().len();
    let platform = |arch: &str| json!({ "os": "linux", "architecture": arch });
    let ours = oci_spec::image::Arch::default().to_string();
    let entry = |arch: &str| json!({ "mediaType": MANIFEST, "digest": digest.to_string(), "size": size, "platform": platform(arch) });
    let index = json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": [entry(&ours), entry("unknown")] });
    pusher.manifest("app", "many", INDEX, &index);
    let index = json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": [entry("s390x"), entry("mips64")] });
    pusher.manifest("app", "others", INDEX, &index);
    let shelf = Shelf::new();
    assert_eq!(pull(&shelf, &format!("{name}:many"), &options()).unwrap().manifest, Some(digest));
    let error = pull(&shelf, &format!("{name}:others"), &options()).unwrap_err();
    assert_eq!(error.code(), ErrorCode::ImageNotFound);
    assert!(error.to_string().contains("only for linux/mips64, linux/s390x"), "{error}");
}

#[test]
fn a_missing_image_or_registry_is_reported() {
    let registry = Registry::start();
    let _ = rustls::crypto::ring::default_provider().install_default();
    let shelf = Shelf::new();
    let error = pull(&shelf, &registry.name("nothing:here"), &options()).unwrap_err();
    assert_eq!(error.code(), ErrorCode::ImageNotFound);
    assert!(error.to_string().contains("nothing:here") && error.next_step().is_some(), "{error}");
    let address = registry.address();
    drop(registry);
    let error = pull(&shelf, &format!("{address}/app"), &options()).unwrap_err();
    assert_eq!(error.code(), ErrorCode::NotAvailable);
    shelf.is_empty();
}

#[test]
fn a_private_registry_requires_a_login() {
    let registry = Registry::start_private();
    let pusher = Pusher { login: true, ..public(&registry) };
    let layer = Layer::new().file("f", b"x").tar();
    let (name, _) = pusher.image("app", &config(&[&layer]), &[&gzip(&layer)]);
    let shelf = Shelf::new();
    let error = pull(&shelf, &name, &options()).unwrap_err();
    assert_eq!(error.code(), ErrorCode::PermissionDenied);
    let logs_in =
        |step: &NextStep| matches!(step, NextStep::LogIn { registry: Some(host), .. } if host.starts_with("127.0.0.1"));
    assert!(error.next_step().unwrap().options().iter().any(logs_in), "{error:?}");
    let with = |text: String| {
        let file = shelf.file("config.json", text.as_bytes());
        let credentials = Credentials { files: vec![file], programs: vec![shelf.dir.path().to_owned()] };
        pull(&shelf, &name, &PullOptions { credentials, when: Pull::Always, ..options() })
    };
    let address = registry.address();
    // ann:wrong
    let error = with(format!(r#"{{"auths": {{"{address}": {{"auth": "YW5uOndyb25n"}}}}}}"#)).unwrap_err();
    assert_eq!(error.code(), ErrorCode::PermissionDenied);
    shelf.is_empty();
    // ann:secret
    with(format!(r#"{{"auths": {{"{address}": {{"auth": "YW5uOnNlY3JldA=="}}}}}}"#)).unwrap();
    shelf.store.remove(&[&name], &nobody).unwrap();
    let helper = shelf.file(
        "docker-credential-test",
        br#"#!/bin/sh
read server; echo "$server" > "$0.asked"; echo '{"Username": "ann", "Secret": "secret"}'
"#,
    );
    std::fs::set_permissions(&helper, PermissionsExt::from_mode(0o755)).unwrap();
    with(format!(r#"{{"credHelpers": {{"{address}": "test"}}}}"#)).unwrap();
    let asked = std::fs::read_to_string(shelf.dir.path().join("docker-credential-test.asked")).unwrap();
    assert_eq!(asked.trim(), address);
}

#[test]
fn corrupt_blobs_are_refused_and_leave_nothing() {
    let layer = Layer::new().file("data", &noise(50_000)).tar();
    let other = Layer::new().file("other", b"x").tar();
    let packed = gzip(&layer);
    type Spoil = fn(&mut Vec<u8>);
    let ways: [(Spoil, &str); 3] = [
        (|bytes| bytes[20_000] ^= 1, "does not match"),
        (|bytes| bytes.truncate(30_000), "announces 30000 bytes: expected"),
        (|bytes| bytes.extend([0; 100]), "bytes: expected"),
    ];
    for (spoil, why) in ways {
        let registry = Registry::start();
        let (name, _) = public(&registry).image("app", &config(&[&other, &layer]), &[&gzip(&other), &packed]);
        let file = registry.blob(&Digest::compute(&packed).hex());
        let mut bytes = std::fs::read(&file).unwrap();
        spoil(&mut bytes);
        std::fs::write(&file, bytes).unwrap();
        let shelf = Shelf::new();
        let error = pull(&shelf, &name, &options()).unwrap_err();
        assert!(error.to_string().contains(why), "{error}");
        shelf.is_empty();
    }
    // A configuration that does not match the manifest, and content that does not match the configuration.
    let registry = Registry::start();
    let text = config(&[&layer]);
    let (name, _) = public(&registry).image("app", &text, &[&packed]);
    let file = registry.blob(&Digest::compute(&text).hex());
    std::fs::write(&file, String::from_utf8(text).unwrap().replace("A=b", "A=c")).unwrap();
    let shelf = Shelf::new();
    let error = pull(&shelf, &name, &options()).unwrap_err();
    assert!(error.to_string().contains("the digest of the configuration does not match"), "{error}");
    shelf.is_empty();
    let (name, _) = public(&registry).image("liar", &config_of(&[Digest::compute(b"else").to_string()]), &[&packed]);
    let error = pull(&shelf, &name, &options()).unwrap_err();
    assert!(error.to_string().contains("does not match"), "{error}");
    shelf.is_empty();
    // An entry that leads outside, and a decompression bomb.
    let out = Layer::new().raw(tar::EntryType::Regular, "../out", "").tar();
    let (name, _) = public(&registry).image("out", &config(&[&other, &out]), &[&gzip(&other), &gzip(&out)]);
    let error = pull(&shelf, &name, &options()).unwrap_err();
    assert!(error.to_string().contains("its path contains .."), "{error}");
    shelf.is_empty();
    let bomb = Layer::new().file("zeros", &vec![0; 4 << 20]).tar();
    let (name, _) = public(&registry).image("bomb", &config(&[&bomb]), &[&gzip(&bomb)]);
    let limits = crate::common::tight(1 << 20);
    let error = pull(&shelf, &name, &PullOptions { limits, ..options() }).unwrap_err();
    assert_eq!(error.code(), ErrorCode::LimitExceeded);
    shelf.is_empty();
}

/// A proxy that closes the connection in the middle of a long response.
struct Cutter {
    port: u16,
    heard: Arc<Mutex<String>>,
}

impl Cutter {
    fn before(address: String, after: usize, mut times: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let heard = Arc::new(Mutex::new(String::new()));
        let log = heard.clone();
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let Ok(mut client) = client else { return };
                let Ok(mut server) = TcpStream::connect(&address) else { continue };
                let (mut asks, mut to, log) = (client.try_clone().unwrap(), server.try_clone().unwrap(), log.clone());
                std::thread::spawn(move || {
                    let mut buffer = [0; 4096];
                    while let Ok(count @ 1..) = asks.read(&mut buffer) {
                        log.lock().unwrap().push_str(&String::from_utf8_lossy(&buffer[..count]));
                        let _ = to.write_all(&buffer[..count]);
                    }
                    let _ = to.shutdown(std::net::Shutdown::Both);
                });
                let cut = times > 0;
                let (done, answered) = std::sync::mpsc::channel();
                std::thread::spawn(move || {
                    let mut buffer = [0; 4096];
                    let mut count = 0;
                    while let Ok(got @ 1..) = server.read(&mut buffer) {
                        count += got;
                        if client.write_all(&buffer[..got]).is_err() || (cut && count > after) {
                            break;
                        }
                    }
                    let _ = client.shutdown(std::net::Shutdown::Both);
                    let _ = server.shutdown(std::net::Shutdown::Both);
                    let _ = done.send(count > after);
                });
                // One request at a time, so that the number of closed connections is known.
                if cut && answered.recv() == Ok(true) {
                    times -= 1;
                }
            }
        });
        Self { port, heard }
    }

    fn name(&self, image: &str) -> String {
        format!("127.0.0.1:{}/{image}", self.port)
    }

    fn continued(&self) -> usize {
        self.heard.lock().unwrap().to_lowercase().matches("range: bytes=").count()
    }
}

#[test]
fn an_interrupted_download_is_continued() {
    let registry = Registry::start();
    let layer = Layer::new().file("data", &noise(400_000)).tar();
    let (_, digest) = public(&registry).image("app", &config(&[&layer]), &[&gzip(&layer)]);
    let cutter = Cutter::before(registry.address(), 100_000, 3);
    let shelf = Shelf::new();
    let image = pull(&shelf, &cutter.name("app"), &options()).unwrap();
    assert_eq!(image.manifest, Some(digest));
    assert!(cutter.continued() >= 2, "{}", cutter.continued());
    // An aborted pull keeps what was downloaded, and the next one continues there.
    let cutter = Cutter::before(registry.address(), 6_000, usize::MAX);
    let shelf = Shelf::new();
    let blob = Digest::compute(&gzip(&layer));
    let half = shelf.dir.path().join("images/blobs").join(blob.hex());
    let stopped = wait(async {
        let seen = Mutex::new(0);
        let tell = |step: Progress| *seen.lock().unwrap() = step.bytes.map_or(0, |(done, _)| done);
        let (name, options) = (reference(&cutter.name("app")), options());
        tokio::select! {
            done = shelf.store.pull(&name, &options, &tell) => Some(done),
            () = async { while *seen.lock().unwrap() == 0 { tokio::task::yield_now().await } } => None,
        }
    });
    assert!(stopped.is_none(), "it was aborted in the middle: {stopped:?}");
    let kept = std::fs::metadata(&half).unwrap().len();
    assert!(kept > 0 && kept < gzip(&layer).len() as u64, "{kept}");
    let through = Cutter::before(registry.address(), 0, 0);
    pull(&shelf, &through.name("app"), &options()).unwrap();
    assert!(
        through.heard.lock().unwrap().to_lowercase().contains(&format!("range: bytes={kept}-")),
        "it goes on at {kept}"
    );
    assert!(!half.exists());
}

#[test]
fn a_corrupt_partial_download_is_started_again() {
    let registry = Registry::start();
    let layer = Layer::new().file("data", &noise(40_000)).tar();
    let packed = gzip(&layer);
    let (name, _) = public(&registry).image("app", &config(&[&layer]), &[&packed]);
    let shelf = Shelf::new();
    let blobs = shelf.dir.path().join("images/blobs");
    std::fs::create_dir_all(&blobs).unwrap();
    for half in [vec![7; 1000], vec![7; packed.len()], vec![7; packed.len() + 9]] {
        std::fs::write(blobs.join(Digest::compute(&packed).hex()), half).unwrap();
        pull(&shelf, &name, &options()).unwrap();
        shelf.store.remove(&[&name], &nobody).unwrap();
        shelf.is_empty();
    }
}

#[test]
fn concurrent_pulls_download_once() {
    let registry = Registry::start();
    let layer = Layer::new().file("data", &noise(300_000)).tar();
    public(&registry).image("app", &config(&[&layer]), &[&gzip(&layer)]);
    let through = Cutter::before(registry.address(), 0, 0);
    let shelf = Shelf::new();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| pull(&shelf, &through.name("app"), &options()).unwrap());
        }
    });
    let asked = through.heard.lock().unwrap().matches(&format!("blobs/{}", Digest::compute(&gzip(&layer)))).count();
    assert_eq!(asked, 1);
    assert_eq!(shelf.holds().len(), 2, "{:?}", shelf.holds());
}

#[test]
fn concurrent_pulls_of_shared_layers_do_not_deadlock() {
    let registry = Registry::start();
    let pusher = public(&registry);
    let layers: Vec<Vec<u8>> =
        (0..8).map(|index| Layer::new().file(&format!("f{index}"), &noise(30_000 + index)).tar()).collect();
    let image = |name: &str, order: Vec<usize>| {
        let plain: Vec<&[u8]> = order.iter().map(|&index| layers[index].as_slice()).collect();
        let packed: Vec<Vec<u8>> = plain.iter().map(|layer| gzip(layer)).collect();
        pusher.image(name, &config(&plain), &packed.iter().map(Vec::as_slice).collect::<Vec<_>>()).0
    };
    let names = [
        image("up", (0..8).collect()),
        image("down", (0..8).rev().collect()),
        image("odd", vec![5, 1, 7, 0, 3]),
        image("twice", vec![2, 6, 2]),
    ];
    let shelf = Shelf::new();
    std::thread::scope(|scope| {
        for name in &names {
            scope.spawn(|| pull(&shelf, name, &options()).unwrap());
        }
    });
    assert_eq!(shelf.holds().len(), 8 + names.len(), "{:?}", shelf.holds());
    // If one blob were two layers, its holder would wait for itself.
    let (plain, packed) = (&layers[0], gzip(&layers[0]));
    let lie = config_of(&[Digest::compute(plain).to_string(), Digest::compute(b"else").to_string()]);
    let (name, _) = pusher.image("lie", &lie, &[&packed, &packed]);
    let error = pull(&Shelf::new(), &name, &options()).unwrap_err();
    assert!(error.to_string().contains("two different diff ids"), "{error}");
}

/// A registry that sends the given responses.
fn lying(answer: impl Fn(&str) -> Vec<u8> + Send + Sync + 'static) -> u16 {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let answer = Arc::new(answer);
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let (Ok(mut client), answer) = (client, answer.clone()) else { return };
            std::thread::spawn(move || {
                let mut head = Vec::new();
                let mut byte = [0];
                while !head.ends_with(b"\r\n\r\n") && head.len() < 10_000 {
                    match client.read(&mut byte) {
                        // A TLS handshake.
                        Ok(1) if head.is_empty() && byte[0] == 0x16 => return,
                        Ok(1) => head.push(byte[0]),
                        _ => return,
                    }
                }
                let _ = client.write_all(&answer(&String::from_utf8_lossy(&head)));
            });
        }
    });
    port
}

fn http(status: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("HTTP/1.1 {status}\r\n{headers}content-length: {}\r\nconnection: close\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

#[test]
fn malformed_registry_responses_are_refused() {
    let digest = Digest::compute(b"x");
    type Answer = Box<dyn Fn(&str) -> Vec<u8> + Send + Sync>;
    let endless = |_: &str| http("200 OK", "", &vec![b' '; 5 << 20]);
    let lies: Vec<(&str, Answer, &str, ErrorCode)> = vec![
        ("app", Box::new(endless), "is too large: expected at most", ErrorCode::LimitExceeded),
        ("app", Box::new(|_| http("200 OK", "", b"{}")), "parse the manifest", ErrorCode::InvalidConfig),
        (
            "app",
            Box::new(|_| http("200 OK", "", br#"{"schemaVersion":1,"layers":[]}"#)),
            "version 1",
            ErrorCode::InvalidConfig,
        ),
        (
            "app",
            Box::new(|_| http("200 OK", "", br#"{"schemaVersion":2}"#)),
            "invalid manifest",
            ErrorCode::InvalidConfig,
        ),
        ("app", Box::new(|_| b"garbage\r\n\r\n".to_vec()), "request to ", ErrorCode::NotAvailable),
        ("app", Box::new(|_| http("500 Oops", "", b"")), "is not available now", ErrorCode::NotAvailable),
        (
            "app",
            Box::new(|_| {
                http("429 Slow", "", br#"{"errors":[{"code":"TOOMANYREQUESTS","message":"slow \u001b[31m down"}]}"#)
            }),
            "slow \\u{1b}[31m down",
            ErrorCode::LimitExceeded,
        ),
        ("app", Box::new(|_| http("401 No", "", b"")), "requires a login", ErrorCode::PermissionDenied),
        (
            "app",
            Box::new(|_| http("401 No", "www-authenticate: Bearer realm=\"ftp://x/\"\r\n", b"")),
            "which does not use HTTPS",
            ErrorCode::InvalidConfig,
        ),
        (
            "app",
            Box::new(|head| {
                let host = head.lines().find_map(|line| line.strip_prefix("host: ")).unwrap_or("").to_owned();
                if head.contains("/token") {
                    return http("200 OK", "", br#"{"token":"a\nb"}"#);
                }
                http("401 No", &format!("www-authenticate: Bearer realm=\"http://{host}/token\"\r\n"), b"")
            }),
            "not a valid HTTP header",
            ErrorCode::InvalidConfig,
        ),
        (
            "app",
            Box::new(|_| http("302 There", "location: /v2/\r\n", b"")),
            "too many redirects",
            ErrorCode::NotAvailable,
        ),
        (
            "named",
            Box::new(|_| http("200 OK", "", br#"{"schemaVersion":2,"layers":[]}"#)),
            "does not match",
            ErrorCode::InvalidConfig,
        ),
    ];
    for (name, answer, why, code) in lies {
        let port = lying(answer);
        let name = if name == "named" { format!("app@{digest}") } else { name.to_owned() };
        let shelf = Shelf::new();
        let error = pull(&shelf, &format!("127.0.0.1:{port}/{name}"), &options()).unwrap_err();
        assert!(error.to_string().contains(why), "{why}: {error}");
        assert_eq!(error.code(), code, "{error}");
        assert!(!error.to_string().contains('\x1b'));
        shelf.is_empty();
    }
}

#[test]
fn a_login_is_exchanged_for_a_token() {
    let registry = Registry::start();
    let layer = Layer::new().file("f", b"x").tar();
    public(&registry).image("app", &config(&[&layer]), &[&gzip(&layer)]);
    let behind = registry.address();
    // A proxy in front of a real registry that requires a token, and returns one for a login.
    let door = lying(move |head| {
        let host = head.lines().find_map(|line| line.strip_prefix("host: ")).unwrap_or("").to_owned();
        if head.starts_with("GET /token?") {
            assert!(head.contains("scope=repository%3Aapp%3Apull") && head.contains("service=door"), "{head}");
            if !head.contains("authorization: Basic YW5uOnNlY3JldA==") {
                return http("401 No", "", br#"{"errors":[{"message":"who are you?"}]}"#);
            }
            return http("200 OK", "", br#"{"access_token":"key"}"#);
        }
        if !head.contains("authorization: Bearer key") {
            let challenge = format!("www-authenticate: Bearer realm=\"http://{host}/token\",service=\"door\"\r\n");
            return http("401 No", &challenge, b"");
        }
        let mut server = TcpStream::connect(&behind).unwrap();
        server.write_all(head.replace("\r\n\r\n", "\r\nconnection: close\r\n\r\n").as_bytes()).unwrap();
        let mut answer = Vec::new();
        server.read_to_end(&mut answer).unwrap();
        answer
    });
    let shelf = Shelf::new();
    let name = format!("127.0.0.1:{door}/app");
    let error = pull(&shelf, &name, &options()).unwrap_err();
    assert_eq!(error.code(), ErrorCode::PermissionDenied);
    assert!(error.to_string().contains("who are you?"), "{error}");
    let text = format!(r#"{{"auths": {{"127.0.0.1:{door}": {{"auth": "YW5uOnNlY3JldA=="}}}}}}"#);
    let credentials = Credentials { files: vec![shelf.file("config.json", text.as_bytes())], programs: Vec::new() };
    pull(&shelf, &name, &PullOptions { credentials, ..options() }).unwrap();
}

#[test]
fn mirrors_without_the_image_are_skipped() {
    let (empty, full) = (Registry::start(), Registry::start());
    let layer = Layer::new().file("f", b"x").tar();
    let pusher = public(&full);
    pusher.image("hub/library/app", &config(&[&layer]), &[&gzip(&layer)]);
    let gone = { Registry::start().address() };
    let places =
        vec![format!("http://{gone}"), format!("http://{}", empty.address()), format!("{}/hub", full.address())];
    let options = PullOptions { mirrors: [("docker.io".to_owned(), places)].into(), ..options() };
    let shelf = Shelf::new();
    let image = pull(&shelf, "app", &options).unwrap();
    assert_eq!(image.reference, reference("docker.io/library/app:latest"));
}

#[test]
fn configured_proxies_are_used() {
    let registry = Registry::start();
    let layer = Layer::new().file("f", b"x").tar();
    let (name, _) = public(&registry).image("app", &config(&[&layer]), &[&gzip(&layer)]);
    let asked = Arc::new(Mutex::new(0));
    let count = asked.clone();
    let proxy = lying(move |_| {
        *count.lock().unwrap() += 1;
        http("502 No", "", b"")
    });
    let proxies = Proxies { http: Some(format!("http://127.0.0.1:{proxy}")), ..Proxies::default() };
    let shelf = Shelf::new();
    let error = pull(&shelf, &name, &PullOptions { proxies: proxies.clone(), ..options() }).unwrap_err();
    assert_eq!(error.code(), ErrorCode::NotAvailable);
    assert!(*asked.lock().unwrap() > 0);
    let proxies = Proxies { none: Some("127.0.0.1".into()), ..proxies };
    pull(&shelf, &name, &PullOptions { proxies, ..options() }).unwrap();
}
