//! What is kept, what is removed, and what a crash leaves.

use crate::common::{Layer, Shelf, nobody, reference, saved};
use kennel_image::{Digest, Store, noted_below};
use kennel_types::{ErrorCode, NextStep};
use std::collections::HashSet;

fn two() -> (Shelf, Digest, Digest, Digest) {
    let shelf = Shelf::new();
    let base = Layer::new().file("base", &[1; 1000]).tar();
    let one = Layer::new().file("one", &[2; 100]).tar();
    let two = Layer::new().file("two", &[3; 10]).tar();
    shelf.load(&saved("one", &[&base, &one])).unwrap();
    shelf.load(&saved("two", &[&base, &two])).unwrap();
    (shelf, Digest::compute(&base), Digest::compute(&one), Digest::compute(&two))
}

fn layers(shelf: &Shelf) -> HashSet<String> {
    shelf.holds().into_iter().filter_map(|name| name.strip_prefix("layers/").map(ToOwned::to_owned)).collect()
}

#[test]
fn shared_layers_are_removed_with_the_last_image() {
    let (shelf, base, one, two) = two();
    let removed = shelf.store.remove(&["one"], &nobody).unwrap();
    assert_eq!((removed.images, removed.layers, removed.freed), (vec![reference("one")], 1, 100));
    assert_eq!(layers(&shelf), HashSet::from([base.hex(), two.hex()]), "{one}");
    let id = shelf.store.get(&reference("two")).unwrap().unwrap().id;
    let removed = shelf.store.remove(&[&id.short()], &nobody).unwrap();
    assert_eq!(removed.freed, 1010);
    shelf.is_empty();
}

#[test]
fn a_missing_image_prevents_all_removals() {
    let (shelf, ..) = two();
    let error = shelf.store.remove(&["one", "three"], &nobody).unwrap_err();
    assert_eq!(error.code(), ErrorCode::ImageNotFound);
    assert!(
        error.to_string().contains("three")
            && error.next_step().unwrap().options().contains(&NextStep::PullImage { image: "three".into() })
    );
    assert_eq!(shelf.store.list().unwrap().len(), 2);
    assert!(Shelf::new().store.remove(&["one"], &nobody).is_err());
}

#[test]
fn layers_used_by_a_sandbox_are_kept() {
    let (shelf, base, one, two) = two();
    let sandboxes = shelf.dir.path().join("sandboxes");
    let sandbox = sandboxes.join("abc");
    std::fs::create_dir_all(&sandbox).unwrap();
    std::fs::create_dir_all(sandboxes.join("without-an-image")).unwrap();
    std::fs::write(sandboxes.join("a-file"), "").unwrap();
    shelf.store.hold(&reference("one")).unwrap().unwrap().note(&sandbox).unwrap();
    let noted = || noted_below(&sandboxes);
    assert_eq!(noted().unwrap(), HashSet::from([base, one]));
    let pruned = shelf.store.prune(true, &noted).unwrap();
    assert_eq!(pruned.images, [reference("two")]);
    let removed = shelf.store.remove(&["one"], &noted).unwrap();
    assert_eq!((removed.layers, removed.in_use), (0, 2));
    assert_eq!(layers(&shelf), HashSet::from([base.hex(), one.hex()]), "{two}");
    // The layers are removed with the sandbox.
    std::fs::remove_dir_all(&sandbox).unwrap();
    assert_eq!(shelf.store.prune(false, &noted).unwrap().freed, 1100);
    shelf.is_empty();
}

#[test]
fn nothing_is_pruned_if_usage_is_unknown() {
    let (shelf, base, ..) = two();
    let unknown = || Err("sha256:x".parse::<Digest>().unwrap_err());
    assert!(shelf.store.prune(true, &unknown).is_err());
    assert_eq!(shelf.store.list().unwrap().len(), 2);
    let names = shelf.dir.path().join("images/names");
    let name = std::fs::read_dir(&names).unwrap().next().unwrap().unwrap().path();
    std::fs::write(&name, "{").unwrap();
    assert!(shelf.store.prune(false, &nobody).is_err());
    assert!(layers(&shelf).contains(&base.hex()));
    let sandbox = shelf.dir.path().join("sandboxes/abc");
    std::fs::create_dir_all(&sandbox).unwrap();
    std::fs::write(sandbox.join("image-layers"), "half a line").unwrap();
    assert!(noted_below(&shelf.dir.path().join("sandboxes")).is_err());
    std::fs::write(sandbox.join("image-layers"), "").unwrap();
    assert!(noted_below(&shelf.dir.path().join("sandboxes")).is_err());
}

#[test]
fn nothing_is_removed_while_an_image_is_held() {
    let (shelf, ..) = two();
    let held = shelf.store.hold(&reference("one")).unwrap().unwrap();
    let (begun, begin) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let pruning = scope.spawn(|| {
            begun.send(()).unwrap();
            shelf.store.prune(true, &nobody).unwrap()
        });
        begin.recv().unwrap();
        assert!(held.image.layers.iter().all(|layer| layer.is_dir()));
        drop(held);
        assert_eq!(pruning.join().unwrap().images.len(), 2);
    });
    shelf.is_empty();
}

#[test]
fn leftovers_of_a_crash_are_removed() {
    let (shelf, ..) = two();
    let tmp = shelf.dir.path().join("images/tmp/0123456789abcdef/0/fs");
    std::fs::create_dir_all(&tmp).unwrap();
    std::fs::write(tmp.join("half"), "x").unwrap();
    std::fs::write(shelf.dir.path().join("images/blobs/half"), [0; 77]).unwrap();
    let pruned = shelf.store.prune(false, &nobody).unwrap();
    assert_eq!((pruned.downloads, pruned.freed, pruned.layers), (1, 77, 0));
    assert!(shelf.holds().iter().all(|name| name.starts_with("names/") || name.starts_with("layers/")));
}

#[test]
fn work_of_a_running_process_is_kept() {
    let (shelf, ..) = two();
    let theirs = shelf.dir.path().join("images/tmp/0123456789abcdef");
    std::fs::create_dir_all(&theirs).unwrap();
    let lock = std::fs::File::open(&theirs).unwrap();
    lock.lock().unwrap();
    let one = shelf.store.get(&reference("one")).unwrap().unwrap();
    std::fs::write(theirs.join("needs.json"), serde_json::to_string(&one.diff_ids).unwrap()).unwrap();
    shelf.store.remove(&["one", "two"], &nobody).unwrap();
    assert!(theirs.exists() && one.layers.iter().all(|layer| layer.is_dir()));
    drop(lock);
    assert_eq!(shelf.store.prune(false, &nobody).unwrap().layers, 2);
    shelf.is_empty();
}

#[test]
fn an_incomplete_image_is_not_listed() {
    let (shelf, base, ..) = two();
    std::fs::remove_dir_all(shelf.dir.path().join("images/layers").join(base.hex())).unwrap();
    assert!(shelf.store.get(&reference("one")).unwrap().is_none());
    assert!(shelf.store.hold(&reference("one")).unwrap().is_none());
}

#[test]
fn a_missing_store_is_empty() {
    let shelf = Shelf::new();
    assert!(shelf.store.get(&reference("one")).unwrap().is_none());
    assert!(shelf.store.hold(&reference("one")).unwrap().is_none());
    assert!(shelf.store.list().unwrap().is_empty());
    assert_eq!(shelf.store.prune(true, &nobody).unwrap(), kennel_image::Removed::default());
    assert!(!shelf.dir.path().join("images").exists(), "reading creates nothing");
}

#[test]
fn a_store_of_another_user_is_refused() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let shelf = Shelf::new();
    let theirs = shelf.dir.path().join("theirs");
    std::fs::create_dir(&theirs).unwrap();
    std::os::unix::fs::chown(&theirs, Some(65534), None).unwrap();
    let error = Store::open(&theirs).unwrap_err();
    assert_eq!(error.code(), ErrorCode::PermissionDenied);
}

/// Runs everything again as an ordinary user: this program, called by `nobody`.
#[test]
fn an_ordinary_user_can_have_a_store() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    const NOBODY: u32 = 65534;
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o777)).unwrap();
    let copy = dir.path().join("program");
    std::fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
    for only in ["load::", "store::shared_layers"] {
        let mut call = std::process::Command::new(&copy);
        call.arg(only).env("TMPDIR", dir.path()).uid(NOBODY).gid(NOBODY).current_dir(dir.path());
        let done = call.output().unwrap();
        let said = String::from_utf8_lossy(&done.stdout);
        assert!(
            done.status.success() && !said.contains(" 0 passed"),
            "{said}\n{}",
            String::from_utf8_lossy(&done.stderr)
        );
    }
}
