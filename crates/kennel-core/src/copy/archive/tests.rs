//! Tests of reading tar archives: valid, truncated and malformed ones.

use super::*;
use crate::copy::pack::head;
use kennel_types::{FileKind, FileStat};
use tar::EntryType;
use tokio::io::AsyncReadExt;

type Found = Vec<(Entry, Vec<u8>)>;
type EntryContent = (Vec<u8>, EntryKind, Vec<u8>);

fn read(bytes: &[u8]) -> Result<Found> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let from = Box::new(std::io::Cursor::new(bytes.to_vec()));
    let mut archive = Archive::new(from, "it".into(), Some("it".into()), "box:/x".into());
    runtime.block_on(async {
        let mut found = Vec::new();
        while let Some(entry) = archive.next().await? {
            let mut content = Vec::new();
            let read = archive.content().read_to_end(&mut content).await;
            read.map_err(|error| archive.cut().unwrap_or_else(|| Error::io("read", error)))?;
            found.push((entry, content));
        }
        archive.drain().await?;
        Ok(found)
    })
}

fn entry(name: &[u8], kind: EntryType, content: &[u8], link: &[u8]) -> Vec<u8> {
    let stat =
        FileStat { kind: FileKind::Other, size: 0, mode: 0o4751, uid: 5, gid: u32::MAX, modified_ms: -1, target: None };
    let mut out = head(name, kind, &stat, content.len() as u64, link);
    out.extend_from_slice(content);
    out.resize(out.len().next_multiple_of(BLOCK), 0);
    out
}

fn ended(entries: &[Vec<u8>]) -> Vec<u8> {
    [entries.concat(), vec![0; 2 * BLOCK]].concat()
}

/// Returns an archive, and the name, kind and content of its entries.
fn sample() -> (Vec<u8>, Vec<EntryContent>) {
    let (long, longer) = ([b'n'; 101], b"/l\xff\n".repeat(200));
    let archive = ended(&[
        entry(b"d/", EntryType::Directory, b"", b""),
        entry(b"d/full", EntryType::Regular, &[7; BLOCK], b""),
        entry(&[b'm'; 100], EntryType::Regular, b"", b""),
        entry(&long, EntryType::Symlink, b"", &longer),
        entry(&longer, EntryType::Regular, &[9; 700], b""),
        entry(b"fifo", EntryType::Fifo, b"", b""),
    ]);
    let expected = vec![
        (b"d/".to_vec(), EntryKind::Directory, vec![]),
        (b"d/full".to_vec(), EntryKind::File, vec![7; BLOCK]),
        (vec![b'm'; 100], EntryKind::File, vec![]),
        (long.to_vec(), EntryKind::Symlink(longer.clone()), vec![]),
        (longer, EntryKind::File, vec![9; 700]),
        (b"fifo".to_vec(), EntryKind::Other("it is a FIFO, socket or device"), vec![]),
    ];
    (archive, expected)
}

#[test]
fn packed_archives_can_be_read() {
    let (archive, expected) = sample();
    let found = read(&archive).unwrap();
    assert!(found.iter().all(|(entry, _)| entry.mode == 0o751), "no set-user-id");
    let found: Vec<_> = found.into_iter().map(|(entry, content)| (entry.name, entry.kind, content)).collect();
    assert!(found == expected, "{:?}", found.iter().map(|(name, kind, _)| (name.len(), kind)).collect::<Vec<_>>());
    // An empty archive is valid, and bytes after its end are ignored.
    assert!(read(&[0; 2 * BLOCK]).unwrap().is_empty());
    assert_eq!(read(&[archive, vec![1; 100_000]].concat()).unwrap().len(), expected.len());
}

#[test]
fn truncated_archives_are_an_error() {
    let (archive, _) = sample();
    let whole = archive.len() - BLOCK;
    for cut in 0..whole {
        let error = read(&archive[..cut]).expect_err("it is not whole");
        assert_eq!(error.code(), ErrorCode::InvalidConfig, "{cut}: {error}");
        assert!(cut == 0 || error.to_string().contains("ends too early"), "{cut}: {error}");
    }
    assert!(read(&archive[..whole]).is_ok());
}

#[test]
fn any_header_is_read_or_refused() {
    let (archive, _) = sample();
    // Numbers, the kind of the entry, and the kind of the archive.
    let fields = |at: &usize| matches!(at % BLOCK, 100..=156 | 257..=264);
    for at in (0..archive.len()).filter(fields) {
        for value in [0, b' ', b'7', b'L', b'S', b'x', 0x80, 0xff] {
            let mut other = archive.clone();
            other[at] = value;
            // Correct the checksum of the header.
            let start = at - at % BLOCK;
            let block: &mut [u8; BLOCK] = (&mut other[start..start + BLOCK]).try_into().unwrap();
            let sum = format!("{:06o}\0 ", sum_of(block));
            block[148..156].copy_from_slice(sum.as_bytes());
            if let Err(error) = read(&other) {
                assert_eq!(error.code(), ErrorCode::InvalidConfig, "{at} {value}: {error}");
            }
        }
    }
    let mut other = archive;
    other[0] = b'e';
    assert_eq!(read(&other).unwrap_err().to_string(), "it is not a tar archive");
}

#[test]
fn posix_extended_headers_are_understood() {
    let with = |text: &[u8]| {
        ended(&[
            entry(b"g", EntryType::XGlobalHeader, b"12 comment=x\n", b""),
            entry(b"x", EntryType::XHeader, text, b""),
            entry(b"short", EntryType::Symlink, b"", b"short"),
            entry(b"next", EntryType::Regular, b"n", b""),
        ])
    };
    let record = |text: &[u8]| [format!("{} ", text.len() + 4).as_bytes(), text, b"\n"].concat();
    let records = [&b"path=a\nb=c"[..], b"linkpath=\xff to it", b"mtime=1234567.89"].map(record).concat();
    let found = read(&with(&records)).unwrap();
    assert_eq!((&found[0].0.name[..], &found[0].0.kind), (&b"a\nb=c"[..], &EntryKind::Symlink(b"\xff to it".to_vec())));
    assert_eq!((&found[1].0.name[..], &found[1].1[..]), (&b"next"[..], &b"n"[..]), "only for one entry");
    for bad in [
        &b"14 path=ab\n"[..],
        b"x path=ab\n",
        b"11 path=ab ",
        b"9 pathab\n",
        b"0 \n",
        b"3 path=ab\n",
        b"99999999999999999999 path=ab\n",
        b"11 size=-1\n",
        b"29 size=99999999999999999999\n",
        b"path",
    ] {
        let error = read(&with(bad)).unwrap_err().to_string();
        assert!(error.contains("an extended header cannot be read, after 0 entries"), "{error}");
    }
    let error = read(&with(&record(b"GNU.sparse.major=1"))).unwrap_err();
    assert!(error.to_string().contains("stored as a sparse file"), "{error}");
    let large = ended(&[
        entry(b"x", EntryType::XHeader, &record(b"size=600"), b""),
        entry(b"large", EntryType::Regular, b"", b""),
        vec![b'c'; 600],
        vec![0; 424],
    ]);
    assert_eq!(read(&large).unwrap()[0].1, [b'c'; 600]);
}

#[test]
fn a_claimed_size_allocates_no_memory() {
    let mut header = Header::new_gnu();
    header.set_entry_type(EntryType::GNULongName);
    for size in [EXTENDED + 1, 1 << 40, i64::MAX as u64, u64::MAX] {
        header.set_size(size);
        header.set_cksum();
        assert_eq!(read(header.as_bytes()).unwrap_err().code(), ErrorCode::InvalidConfig);
    }
}

#[test]
fn compressed_archives_are_named_in_the_error() {
    for (start, program) in [(&b"\x1f\x8b\x08"[..], "gzip"), (b"\x28\xb5\x2f\xfd", "zstd"), (b"BZh9", "bzip2")] {
        let error = read(start).unwrap_err();
        assert_eq!(error.to_string(), format!("it is compressed with {program}"));
        let step = NextStep::Decompress { program: program.into(), file: Some("it".into()), target: "box:/x".into() };
        assert_eq!(error.next_step(), Some(&step));
    }
    assert_eq!(read(b"").unwrap_err().to_string(), "it is empty, not an archive");
}
