//! Unpacks layers and parses image metadata from arbitrary bytes: the result is a success or an error, never a panic,
//! never a change outside the directory, and never memory above the caps.
//!
//! The first byte says what the rest is: a layer, an archive, or one of its metadata files.
#![no_main]

use kennel_image::{Limits, LoadOptions, Store, unpack_layer};
use libfuzzer_sys::fuzz_target;
use std::path::Path;

/// Small limits, because a fuzzer soon finds out how to fill a disk.
const LIMITS: Limits = Limits {
    bytes: 1 << 20,
    entries: 200,
    layers: 8,
    path: 512,
    depth: 16,
    ratio: 100,
    ratio_from: 1 << 16,
};

fuzz_target!(|input: &[u8]| {
    let Some((what, bytes)) = input.split_first() else { return };
    let home = tempfile::tempdir().expect("a directory");
    let inside = home.path().join("in/side");
    std::fs::create_dir_all(&inside).expect("a directory in it");
    std::fs::write(home.path().join("secret"), "mine").expect("a file beside it");
    let failed = match what % 5 {
        0 | 1 => unpack_layer(bytes, &inside, &LIMITS).err(),
        2 => {
            let archive = home.path().join("archive");
            std::fs::write(&archive, bytes).expect("write the archive");
            load(home.path(), &archive)
        }
        what => {
            let layout = home.path().join("layout");
            std::fs::create_dir(&layout).expect("a layout");
            let name = if what == 3 { "manifest.json" } else { "index.json" };
            std::fs::write(layout.join(name), bytes).expect("write the description");
            std::fs::write(layout.join("config"), bytes).expect("write the configuration");
            load(home.path(), &layout)
        }
    };
    if let Some(error) = failed {
        let told = error.to_string();
        assert!(!told.contains(char::is_control), "{told:?}");
    }
    assert_eq!(std::fs::read(home.path().join("secret")).expect("it is there"), b"mine");
    let count = |dir: &Path| std::fs::read_dir(dir).expect("it is there").count();
    assert!(count(home.path()) <= 4 && count(&home.path().join("in")) == 1, "something is outside");
});

fn load(home: &Path, from: &Path) -> Option<kennel_image::Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime without I/O");
    let store = Store::open(home.join("images")).expect("nothing is there yet");
    let name = Some("fuzzed".parse().expect("it is a name"));
    runtime.block_on(store.load(from, &LoadOptions { name, limits: LIMITS }, &|_| {})).err()
}
