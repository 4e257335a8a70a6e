//! Sparse files: a file of one terabyte with a few blocks of data is copied in both directions, and the copy has only a
//! few blocks.

use super::{clean, inside};
use crate::support::{Kennel, on_every_provider};
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

on_every_provider!(
    a_terabyte_of_holes_goes_both_ways,
    a_directory_and_an_archive_keep_the_holes,
    small_files_with_holes
);

const TERABYTE: u64 = 1 << 40;
/// Where there is data: at the start, across the border of a block in the middle, and at the very end.
const PLACES: [(u64, &[u8]); 3] = [(0, b"first"), (TERABYTE / 2 - 3, b"middle"), (TERABYTE - 4, b"last")];
/// More than the blocks with data and the filesystem's metadata, and far less than the size of the file.
const FEW: u64 = 1 << 20;

fn huge(path: &Path) {
    let file = File::create(path).unwrap();
    file.set_len(TERABYTE).unwrap();
    for (at, bytes) in PLACES {
        file.write_all_at(bytes, at).unwrap();
    }
    let meta = file.metadata().unwrap();
    assert!(meta.size() == TERABYTE && meta.blocks() * 512 < FEW, "the control: {meta:?}");
}

#[track_caller]
fn is_huge(path: &Path) {
    let file = File::open(path).unwrap();
    let meta = file.metadata().unwrap();
    assert_eq!(meta.size(), TERABYTE);
    assert!(meta.blocks() * 512 < FEW, "it takes {} blocks", meta.blocks());
    for (at, bytes) in PLACES {
        // With the zeros around it.
        let before = at.min(10);
        let mut found = vec![1; (before as usize + bytes.len() + 10).min((TERABYTE - at + before) as usize)];
        file.read_exact_at(&mut found, at - before).unwrap();
        let mut expected = vec![0; found.len()];
        expected[before as usize..before as usize + bytes.len()].copy_from_slice(bytes);
        assert_eq!(found, expected, "at {at}");
    }
    let mut elsewhere = [1; 4096];
    file.read_exact_at(&mut elsewhere, TERABYTE / 3).unwrap();
    assert_eq!(elsewhere, [0; 4096]);
}

/// Size and blocks as seen inside.
fn seen_inside(kennel: &Kennel, id: &str, path: &str) -> (u64, u64) {
    let told = kennel.kennel(&["exec", id, "--", "stat", "-c", "%s %b", path]).ok();
    let (size, blocks) = told.split_once(' ').unwrap();
    (size.parse().unwrap(), blocks.parse().unwrap())
}

fn a_terabyte_of_holes_goes_both_ways(kennel: &Kennel) {
    let (id, dir) = (kennel.sandbox(), inside(kennel));
    let source = kennel.home.path().join("huge");
    huge(&source);
    kennel.kennel(&["cp", &source.display().to_string(), &format!("{id}:{dir}/huge")]).ok();
    let (size, blocks) = seen_inside(kennel, &id, &format!("{dir}/huge"));
    assert!(size == TERABYTE && blocks * 512 < FEW, "{size} bytes, {blocks} blocks");
    let back = kennel.home.path().join("back");
    kennel.kennel(&["cp", &format!("{id}:{dir}/huge"), &back.display().to_string()]).ok();
    is_huge(&back);
    clean(kennel, &id);
}

fn a_directory_and_an_archive_keep_the_holes(kennel: &Kennel) {
    let (id, dir) = (kennel.sandbox(), inside(kennel));
    let tree = kennel.home.path().join("tree");
    std::fs::create_dir(&tree).unwrap();
    huge(&tree.join("huge"));
    std::fs::write(tree.join("small"), "small").unwrap();
    kennel.kennel(&["cp", &tree.display().to_string(), &format!("{id}:{dir}")]).ok();
    let back = kennel.home.path().join("back");
    kennel.kennel(&["cp", &format!("{id}:{dir}"), &back.display().to_string()]).ok();
    is_huge(&back.join("huge"));
    assert_eq!(std::fs::read(back.join("small")).unwrap(), b"small");
    // An archive in a file has the holes too. A stream cannot have holes.
    let archive = kennel.home.path().join("tar");
    kennel.kennel(&["cp", "--archive", &format!("{id}:{dir}"), &archive.display().to_string()]).ok();
    let meta = std::fs::metadata(&archive).unwrap();
    assert!(meta.size() > TERABYTE && meta.blocks() * 512 < FEW, "{meta:?}");
    let mut read = tar::Archive::new(File::open(&archive).unwrap());
    let mut entries = read.entries_with_seek().unwrap();
    let names: Vec<_> = entries.by_ref().map(|entry| entry.unwrap().path().unwrap().into_owned()).collect();
    assert_eq!(names.len(), 3, "what follows the holes is where it belongs: {names:?}");
    let stream = kennel.kennel(&["cp", "--archive", &format!("{id}:{dir}"), "-"]);
    assert!(stream.stdout.len() < 2_000_000, "{}", stream.stdout.len());
    assert!(stream.fails(125).contains("of holes"));
    clean(kennel, &id);
}

/// All layouts: holes at the start, at the end and everywhere, and data that ends within a block.
fn small_files_with_holes(kennel: &Kennel) {
    let (id, dir) = (kennel.sandbox(), inside(kennel));
    let from = kennel.home.path().join("from");
    std::fs::create_dir(&from).unwrap();
    /// A file: its name, its size, and the offset and length of its data.
    type Case<'a> = (&'a str, u64, &'a [(u64, u64)]);
    let cases: [Case<'_>; 6] = [
        ("hole", 1 << 20, &[]),
        ("start", 300_000, &[(200_000, 100_000)]),
        ("end", 1_000_001, &[(0, 12_345)]),
        ("odd", 777_777, &[(5000, 1), (300_000, 270_000), (777_776, 1)]),
        ("byte", 1 << 24, &[(1 << 23, 1)]),
        ("full", 70_000, &[(0, 70_000)]),
    ];
    for (name, size, places) in cases {
        let file = File::create(from.join(name)).unwrap();
        file.set_len(size).unwrap();
        for (at, length) in places {
            let bytes: Vec<u8> = (0..*length).map(|number| (number % 251) as u8 + 1).collect();
            file.write_all_at(&bytes, *at).unwrap();
        }
    }
    kennel.kennel(&["cp", &from.display().to_string(), &format!("{id}:{dir}")]).ok();
    let back = kennel.home.path().join("back");
    kennel.kennel(&["cp", &format!("{id}:{dir}"), &back.display().to_string()]).ok();
    for (name, size, _) in cases {
        let same = std::process::Command::new("cmp").arg(from.join(name)).arg(back.join(name)).status().unwrap();
        assert!(same.success(), "{name}");
        let (old, new) = (std::fs::metadata(from.join(name)).unwrap(), std::fs::metadata(back.join(name)).unwrap());
        assert_eq!(new.size(), size);
        assert!(new.blocks() <= old.blocks() + 16, "{name}: {} blocks, were {}", new.blocks(), old.blocks());
    }
    clean(kennel, &id);
}
