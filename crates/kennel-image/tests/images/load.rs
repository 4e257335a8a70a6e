//! Loading archives, layouts and plain files: the result, and what is refused.

use crate::common::{
    Layer, Shelf, archive, config, config_of, gzip, layout, nobody, reference, saved, saved_with, spread, tight, zstd,
};
use kennel_image::{Digest, Image, Limits, LoadOptions, Reference};
use kennel_types::{ErrorCode, NextStep};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use tar::EntryType;

fn one(images: Vec<Image>) -> Image {
    assert_eq!(images.len(), 1, "{images:?}");
    images.into_iter().next().unwrap()
}

fn xattr(path: &Path, name: &str) -> Option<Vec<u8>> {
    let mut value = vec![0; 100];
    let size = rustix::fs::lgetxattr(path, name, value.as_mut_slice()).ok()?;
    value.truncate(size);
    Some(value)
}

fn is_whiteout(path: &Path) -> bool {
    let meta = std::fs::symlink_metadata(path).unwrap();
    meta.file_type().is_char_device() && meta.rdev() == 0
}

/// `cap_net_raw=ep`, as stored on disk.
const CAPABILITY: [u8; 20] = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// The attribute of opaque directories for the current user.
fn opaque() -> &'static str {
    if rustix::process::geteuid().is_root() { "trusted.overlay.opaque" } else { "user.overlay.opaque" }
}

#[test]
fn a_saved_image_is_loaded_completely() {
    let shelf = Shelf::new();
    let lower = Layer::new().dir("etc", 0o755).file("etc/a", b"one").file("etc/b", b"two").tar();
    let upper = Layer::new()
        .dir("bin", 0o755)
        .moded("bin/su", 0o4755, b"program")
        .raw(EntryType::Link, "bin/sudo", "bin/su")
        .symlink("bin/sh", "/bin/su")
        .special(EntryType::Fifo, "pipe")
        .special(EntryType::Char, "dev-null")
        .special(EntryType::Block, "disk")
        .file("etc/.wh.a", b"")
        .dir("closed", 0o000)
        .file("closed/.wh..wh..opq", b"")
        .xattrs(&[
            ("user.note", b"kept"),
            ("user.overlay.opaque", b"y"),
            ("trusted.overlay.redirect", b"/etc"),
            ("security.capability", &CAPABILITY),
            ("security.selinux", b"any"),
        ])
        .file("noted", b"x")
        .tar();
    let image = one(shelf.load(&saved("debian:12", &[&lower, &upper])).unwrap());
    assert_eq!(image.reference, reference("docker.io/library/debian:12"));
    assert_eq!(image.diff_ids, [Digest::compute(&lower), Digest::compute(&upper)]);
    assert_eq!((image.config.env, image.config.cmd), (vec!["A=b".to_owned()], vec!["sh".to_owned()]));
    assert_eq!(image.config.labels["team"], "red");
    assert_eq!(image.size, 3 + 3 + 7 + 1);
    assert_eq!(image.created, Some(1_767_323_045));
    assert_eq!(shelf.store.get(&reference("debian:12")).unwrap().unwrap().layers, image.layers);
    let [lower, upper] = &image.layers[..] else { panic!("{image:?}", image = image.layers) };
    assert_eq!(std::fs::read(lower.join("etc/a")).unwrap(), b"one");
    let root = std::fs::metadata(upper).unwrap();
    assert_eq!(root.mode() & 0o7777, 0o755, "otherwise other users could not enter the sandbox's root");
    let su = std::fs::symlink_metadata(upper.join("bin/su")).unwrap();
    assert_eq!((su.mode() & 0o7777, su.mtime(), su.nlink()), (0o4755, 1_700_000_000, 2));
    let owner = if rustix::process::geteuid().is_root() {
        (1234, 4321)
    } else {
        (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
    };
    assert_eq!((su.uid(), su.gid()), owner);
    assert_eq!(std::fs::metadata(upper.join("bin/sudo")).unwrap().ino(), su.ino());
    assert_eq!(std::fs::read_link(upper.join("bin/sh")).unwrap(), Path::new("/bin/su"));
    assert!(std::fs::symlink_metadata(upper.join("pipe")).unwrap().file_type().is_fifo());
    for device in ["dev-null", "disk"] {
        assert!(std::fs::symlink_metadata(upper.join(device)).is_err(), "{device} is left out");
    }
    assert!(is_whiteout(&upper.join("etc/a")));
    assert_eq!(xattr(&upper.join("closed"), opaque()), Some(b"y".to_vec()));
    assert_eq!(
        std::fs::metadata(upper.join("bin")).unwrap().mtime(),
        1_700_000_000,
        "times of directories are set last"
    );
    assert_eq!(xattr(&upper.join("noted"), "user.note"), Some(b"kept".to_vec()));
    for dropped in ["trusted.overlay.redirect", "user.overlay.opaque", "security.selinux"] {
        assert_eq!(xattr(&upper.join("noted"), dropped), None, "{dropped}");
    }
    let capability = rustix::process::geteuid().is_root().then(|| CAPABILITY.to_vec());
    assert_eq!(xattr(&upper.join("noted"), "security.capability"), capability);
    let images = shelf.dir.path().join("images");
    assert_eq!(
        std::fs::metadata(images).unwrap().mode() & 0o7777,
        0o700,
        "set-user-id programs are accessible only to the owner"
    );
}

#[test]
fn whiteouts_and_files_of_one_layer_are_combined() {
    let shelf = Shelf::new();
    let layer = Layer::new()
        .file(".wh.gone", b"")
        .file(".wh.again", b"")
        .dir("again", 0o755)
        .file("again/file", b"x")
        .file(".wh.parent", b"")
        .file("parent/file", b"x")
        .dir("kept", 0o755)
        .file("kept/file", b"x")
        .file(".wh.kept", b"")
        .file("plain", b"x")
        .file(".wh.plain", b"")
        .file(".wh..wh.plnk/1.2", b"x")
        .tar();
    let image = one(shelf.load(&saved("a", &[&layer])).unwrap());
    let root = &image.layers[0];
    assert!(is_whiteout(&root.join("gone")));
    for dir in ["again", "parent", "kept"] {
        assert_eq!(std::fs::read(root.join(dir).join("file")).unwrap(), b"x", "{dir}");
        assert_eq!(xattr(&root.join(dir), opaque()), Some(b"y".to_vec()), "{dir}: lower layers are hidden");
    }
    assert_eq!(std::fs::read(root.join("plain")).unwrap(), b"x");
    assert!(!root.join(".wh..wh.plnk").exists());
}

/// Returns the paths that are visible in a kernel overlay of these layers.
fn seen(image: &Image) -> String {
    let point = tempfile::tempdir().unwrap();
    let layers: Vec<&str> = image.layers.iter().rev().map(|layer| layer.to_str().unwrap()).collect();
    let mut call = std::process::Command::new("unshare");
    let (namespaces, marks): (&[&str], _) = if rustix::process::geteuid().is_root() {
        (&["--mount"], "")
    } else {
        (&["--mount", "--user", "--map-root-user"], ",userxattr")
    };
    let options = format!("ro,lowerdir={}{marks}", layers.join(":"));
    let script = r#"mount -t overlay none -o "$1" "$2" && cd "$2" && find . | LC_ALL=C sort"#;
    call.args(namespaces).args(["sh", "-c", script, "sh"]).arg(options).arg(point.path());
    let done = call.output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8_lossy(&done.stdout).split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn the_kernel_understands_the_whiteouts() {
    let shelf = Shelf::new();
    let lower = Layer::new()
        .file("a/gone", b"")
        .file("a/kept", b"")
        .file("b/one", b"")
        .file("b/two", b"")
        .file("c/old", b"")
        .file("d", b"")
        .tar();
    let upper = Layer::new()
        .file("a/.wh.gone", b"")
        .dir("b", 0o755)
        .file("b/.wh..wh..opq", b"")
        .file("b/new", b"")
        .file(".wh.c", b"")
        .file("c/new", b"")
        .file(".wh.d", b"")
        .tar();
    let image = one(shelf.load(&saved("a", &[&lower, &upper])).unwrap());
    assert_eq!(seen(&image), ". ./a ./a/kept ./b ./b/new ./c ./c/new");
    // A repeated layer is used once, because the kernel would refuse it twice.
    let again = one(shelf.load(&saved("b", &[&lower, &upper, &lower])).unwrap());
    assert_eq!(again.layers.len(), 2);
    assert_eq!(seen(&again), ". ./a ./a/gone ./a/kept ./b ./b/new ./b/one ./b/two ./c ./c/new ./c/old ./d");
}

#[test]
fn layers_are_unpacked_once_and_shared() {
    let shelf = Shelf::new();
    let base = Layer::new().file("base", b"x").tar();
    let more = Layer::new().file("more", b"y").tar();
    let first = one(shelf.load(&saved("first", &[&base])).unwrap());
    let before = std::fs::metadata(&first.layers[0]).unwrap();
    let second = one(shelf.load(&saved("second", &[&base, &more])).unwrap());
    assert_eq!(first.layers[0], second.layers[0]);
    let after = std::fs::metadata(&first.layers[0]).unwrap();
    assert_eq!((before.ino(), before.ctime_nsec()), (after.ino(), after.ctime_nsec()));
    assert_eq!(shelf.holds().iter().filter(|name| name.starts_with("layers/")).count(), 2);
}

#[test]
fn layouts_in_every_form() {
    let plain = Layer::new().file("file", b"content").tar();
    for (how, packed) in [("gzip", gzip(&plain)), ("zstd", zstd(&plain)), ("not packed", plain.clone())] {
        let files = layout("registry.example/app:1", &[(&plain, &packed)]);
        let shelf = Shelf::new();
        spread(&shelf.dir.path().join("layout"), &files);
        let from_dir = one(shelf.load_with(&shelf.dir.path().join("layout"), &LoadOptions::default()).unwrap());
        assert_eq!(from_dir.reference, reference("registry.example/app:1"), "{how}");
        assert_eq!(std::fs::read(from_dir.layers[0].join("file")).unwrap(), b"content");
        for whole in [archive(&files), gzip(&archive(&files)), zstd(&archive(&files))] {
            let shelf = Shelf::new();
            let from_archive = one(shelf.load(&whole).unwrap());
            assert_eq!((from_archive.id, from_archive.manifest), (from_dir.id, from_dir.manifest), "{how}");
        }
    }
}

#[test]
fn plain_files_are_loaded_under_a_name() {
    let shelf = Shelf::new();
    let files = shelf.dir.path().join("rootfs");
    spread(&files, &[("bin/program".into(), b"x".to_vec()), (".wh.literal".into(), b"y".to_vec())]);
    std::os::unix::fs::symlink("/nowhere", files.join("link")).unwrap();
    std::fs::hard_link(files.join("bin/program"), files.join("bin/twin")).unwrap();
    let image = one(shelf.load_named(&files, "mine").unwrap());
    let root = &image.layers[0];
    assert_eq!(std::fs::read(root.join(".wh.literal")).unwrap(), b"y", "plain files have no whiteouts");
    assert_eq!(std::fs::metadata(root.join("bin/twin")).unwrap().nlink(), 2);
    assert_eq!(std::fs::read_link(root.join("link")).unwrap(), Path::new("/nowhere"));
    let again = one(shelf.load_named(&files, "other").unwrap());
    assert_eq!((again.id, &again.layers), (image.id, &image.layers), "the same files are the same image");
    let packed = shelf.file("rootfs.tar.gz", &gzip(&Layer::new().file("f", b"z").tar()));
    let image = one(shelf.load_named(&packed, "packed").unwrap());
    assert_eq!(std::fs::read(image.layers[0].join("f")).unwrap(), b"z");
    let error = shelf.load_with(&packed, &LoadOptions::default()).unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidConfig);
    assert!(matches!(error.next_step(), Some(NextStep::NameLoadedImage { .. })), "{error:?}");
}

#[test]
fn unreadable_archives_are_refused() {
    let shelf = Shelf::new();
    shelf.refuses(b"", "it is empty");
    shelf.refuses(&[7; 5000], "not a readable tar archive");
    shelf.refuses(&gzip(b"x")[..12], "cannot be read");
    let missing = shelf.load_with(Path::new("/nowhere.tar"), &LoadOptions::default()).unwrap_err();
    assert_eq!(missing.code(), ErrorCode::NotFound);
}

#[test]
fn corrupt_layers_and_wrong_digests_leave_nothing() {
    let shelf = Shelf::new();
    let sound = Layer::new().file("sound", b"x").tar();
    let layer = Layer::new().file("a", &[7; 3000]).tar();
    let diff = Digest::compute(&layer).to_string();
    // The content does not match the configuration. The valid layer below it is removed too.
    let mut other = layer.clone();
    other[600] ^= 1;
    let both = config_of(&[Digest::compute(&sound).to_string(), diff.clone()]);
    shelf.refuses(&saved_with("a", &both, &[&sound, &other]), "does not match: expected sha256:");
    // A truncated stream, and a damaged one.
    let packed = gzip(&layer);
    for damaged in [packed[..packed.len() - 20].to_vec(), {
        let mut bytes = packed.clone();
        bytes[30] ^= 0xff;
        bytes
    }] {
        shelf.refuses(&saved_with("a", &config_of(std::slice::from_ref(&diff)), &[&damaged]), "layer ");
    }
    shelf.refuses(
        &saved_with("a", &config_of(std::slice::from_ref(&diff)), &[&layer[..1200]]),
        "ends before the end of its content",
    );
    // Numbers of layers that do not match.
    shelf.refuses(&saved_with("a", &config_of(&[diff.clone(), diff.clone()]), &[&layer]), "has 1 layers");
    // A configuration whose digest does not match.
    let mut archive_bytes = saved("a", &[&layer]);
    let at = archive_bytes.windows(3).position(|window| window == b"A=b").unwrap();
    archive_bytes[at] = b'Z';
    shelf.refuses(&archive_bytes, "the digest of the configuration does not match");
}

#[test]
fn a_layout_with_wrong_digests_is_refused() {
    let plain = Layer::new().file("file", b"content").tar();
    let packed = gzip(&plain);
    let good = layout("app:1", &[(&plain, &packed)]);
    for index in 1..good.len() - 1 {
        let mut files = good.clone();
        let last = files[index].1.len() - 2;
        files[index].1[last] ^= 1;
        let shelf = Shelf::new();
        let error = shelf.load(&archive(&files)).expect_err(&files[index].0);
        assert!(
            error.to_string().contains("does not match") || error.to_string().contains("cannot be read"),
            "{error}"
        );
        shelf.is_empty();
        // A missing blob, and one that is too short.
        let mut files = good.clone();
        files.remove(index);
        shelf.refuses(&archive(&files), "does not contain");
        let mut files = good.clone();
        files[index].1.pop();
        let error = shelf.load(&archive(&files)).expect_err(&files[index].0);
        assert!(error.to_string().contains("bytes: expected"), "{error}");
        shelf.is_empty();
    }
}

#[test]
fn an_image_for_another_architecture_is_refused() {
    let shelf = Shelf::new();
    let plain = Layer::new().file("file", b"x").tar();
    let files: Vec<(String, Vec<u8>)> = layout("app:1", &[(&plain, &plain)])
        .into_iter()
        .map(|(name, bytes)| {
            let text = String::from_utf8_lossy(&bytes).into_owned();
            if name == "index.json" {
                let mut index: serde_json::Value = serde_json::from_str(&text).unwrap();
                index["manifests"][0]["platform"] = serde_json::json!({ "os": "linux", "architecture": "s390x" });
                return (name, serde_json::to_vec(&index).unwrap());
            }
            (name, bytes)
        })
        .collect();
    let error = shelf.refuses(&archive(&files), "only for linux/s390x");
    assert_eq!(error.code(), ErrorCode::ImageNotFound);
}

#[test]
fn layers_cannot_write_outside() {
    let outside = tempfile::tempdir().unwrap();
    let target = outside.path().join("target");
    std::fs::write(&target, "mine").unwrap();
    let target_name = target.to_str().unwrap();
    let sound = Layer::new().file("sound", b"x");
    let shelf = Shelf::new();
    let up = "../".repeat(12);
    let refused: Vec<(Layer, &str)> = vec![
        (sound.raw(EntryType::Regular, "../escaped", ""), "its path contains .."),
        (Layer::new().raw(EntryType::Regular, "a/../../escaped", ""), "its path contains .."),
        (Layer::new().raw(EntryType::Directory, "..", ""), "its path contains .."),
        (Layer::new().raw(EntryType::Symlink, &format!("{up}tmp/escaped"), "x"), "its path contains .."),
        (
            Layer::new().raw(EntryType::Link, "passwd", "../../../../etc/passwd"),
            "hard link to ../../../../etc/passwd: its path contains ..",
        ),
        (Layer::new().raw(EntryType::Link, "passwd", "/etc/passwd"), "not in the same layer"),
        (Layer::new().raw(EntryType::Link, "taken", target_name), "not in the same layer"),
        (Layer::new().raw(EntryType::Link, "d", "."), "not in the same layer"),
        (
            Layer::new().symlink("out", target_name).raw(EntryType::Regular, "out/x", ""),
            "its path contains out, a symlink",
        ),
        (Layer::new().symlink("out", "/").raw(EntryType::Link, "x", "out/etc/passwd"), "not in the same layer"),
        (Layer::new().dir("d", 0o755).raw(EntryType::Link, "e", "d"), "a directory"),
        (Layer::new().file("f", b"x").raw(EntryType::Regular, "f/g", ""), "which is not a directory"),
        (Layer::new().raw(EntryType::new(b'Q'), "odd", ""), "unknown type 'Q'"),
        (Layer::new().file(".wh...", b""), "a whiteout without a file name"),
    ];
    for (layer, why) in refused {
        let error = shelf.refuses(&saved("a", &[&layer.tar()]), why);
        assert_eq!(error.code(), ErrorCode::InvalidConfig, "{error}");
    }
    // A leading slash means the root of the layer. A symlink is kept unchanged, and never followed out of the layer.
    let layer = Layer::new()
        .raw(EntryType::Regular, "/rooted", "")
        .symlink("link", target_name)
        .raw(EntryType::Regular, "link", "")
        .tar();
    let image = one(shelf.load(&saved("a", &[&layer])).unwrap());
    assert_eq!(std::fs::read(image.layers[0].join("rooted")).unwrap(), b"escaped");
    assert!(!std::fs::symlink_metadata(image.layers[0].join("link")).unwrap().is_symlink());
    assert!(!Path::new("/rooted").exists());
    assert_eq!(std::fs::read_to_string(&target).unwrap(), "mine");
    assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 1);
}

#[test]
fn bombs_are_refused_while_they_stream() {
    let zeros = vec![0; 8 << 20];
    let layer = Layer::new().file("zeros", &zeros).tar();
    let packed = gzip(&layer);
    let bomb = saved_with("a", &config(&[&layer]), &[&packed]);
    let shelf = Shelf::new();
    let load = |limits: Limits| {
        let path = shelf.file("bomb.tar", &bomb);
        shelf.load_with(&path, &LoadOptions { limits, name: None }).map(drop)
    };
    let too_large = load(tight(1 << 20)).unwrap_err();
    assert_eq!(too_large.code(), ErrorCode::LimitExceeded);
    assert_eq!(too_large.next_step(), Some(&NextStep::AllowLargerImages));
    shelf.is_empty();
    let grows = load(Limits { ratio: 10, ratio_from: 1 << 20, ..Limits::default() }).unwrap_err();
    assert!(grows.to_string().contains("times its compressed size"), "{grows}");
    shelf.is_empty();
    load(Limits::default()).expect("it is small enough for most");
    let many = (0..50).fold(Layer::new(), |layer, index| layer.file(&format!("f{index}"), b"")).tar();
    let shelf = Shelf::new();
    let path = shelf.file("many.tar", &saved("a", &[&many]));
    let limits = Limits { entries: 49, ..Limits::default() };
    let error = shelf.load_with(&path, &LoadOptions { limits, name: None }).unwrap_err();
    assert!(error.to_string().contains("more than 49 files"), "{error}");
    shelf.is_empty();
    let long = Layer::new().file(&vec!["x".repeat(200); 30].join("/"), b"").tar();
    shelf.refuses(&saved("a", &[&long]), "too long");
    let deep = Layer::new().file(&vec!["d"; 300].join("/"), b"").tar();
    shelf.refuses(&saved("a", &[&deep]), "too long");
    // An archive that is itself a decompression bomb.
    let path = shelf.file("bomb.tar.gz", &packed);
    let limits = tight(1 << 20);
    let error = shelf.load_with(&path, &LoadOptions { limits, name: Some(reference("a")) }).unwrap_err();
    assert_eq!(error.code(), ErrorCode::LimitExceeded);
    shelf.is_empty();
}

#[test]
fn malformed_manifests_are_refused() {
    for text in
        ["", "[]", "{}", "[{}]", "null", r#"[{"Config":"../../../../etc/passwd","RepoTags":["a"],"Layers":[]}]"#]
    {
        let shelf = Shelf::new();
        let files = [("manifest.json".to_owned(), text.as_bytes().to_vec())];
        assert!(shelf.load(&archive(&files)).is_err(), "{text}");
        spread(&shelf.dir.path().join("dir"), &files);
        assert!(shelf.load_with(&shelf.dir.path().join("dir"), &LoadOptions::default()).is_err(), "{text}");
        shelf.is_empty();
    }
}

#[test]
fn an_unnamed_image_needs_a_name() {
    let shelf = Shelf::new();
    let layer = Layer::new().file("f", b"x").tar();
    let text = String::from_utf8(saved("zzz", &[&layer])).unwrap().replace(r#"["zzz"]"#, "null   ");
    let error = shelf.refuses(text.as_bytes(), "an image without a name");
    assert_eq!(error.next_step(), Some(&NextStep::NameLoadedImage { file: None }));
    let path = shelf.file("unnamed.tar", text.as_bytes());
    assert_eq!(one(shelf.load_named(&path, "mine:1").unwrap()).reference, reference("mine:1"));
}

#[test]
fn concurrent_loads_create_one_layer() {
    let shelf = Shelf::new();
    let layer = Layer::new().file("f", b"x").tar();
    let path = shelf.file("a.tar", &saved("a", &[&layer]));
    std::thread::scope(|scope| {
        for index in 0..6 {
            let (shelf, path) = (&shelf, &path);
            scope.spawn(move || {
                let store = kennel_image::Store::open(shelf.dir.path().join("images")).unwrap();
                let options = LoadOptions { name: Some(reference(&format!("a:{index}"))), ..LoadOptions::default() };
                crate::common::wait(store.load(path, &options, &crate::common::quiet)).unwrap();
                store.prune(false, &nobody).unwrap();
            });
        }
    });
    let names: Vec<Reference> = shelf.store.list().unwrap().into_iter().map(|image| image.reference).collect();
    assert_eq!(names.len(), 6);
    assert_eq!(shelf.holds().iter().filter(|name| name.starts_with("layers/")).count(), 1);
    assert!(shelf.holds().iter().all(|name| !name.starts_with("tmp/")), "{:?}", shelf.holds());
}
