//! Lists the listening unix sockets of this network namespace, as the kernel reports them.

use rustix::buffer::spare_capacity;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Returns the paths as they were bound, absolute ones only. The list is empty if the kernel does not report it.
pub(crate) fn paths() -> Vec<PathBuf> {
    // A desktop has about a thousand sockets, of which a tenth listens. A netlink query for these takes a sixth of the
    // time of reading /proc/net/unix.
    by_netlink().or_else(|| Some(parse_table(&std::fs::read("/proc/net/unix").ok()?))).unwrap_or_default()
}

const HEADER: usize = 16;
const ENTRY: usize = 16;
const DONE: u16 = 3;
const BY_FAMILY: u16 = 20;
const NAME: u16 = 0;

fn by_netlink() -> Option<Vec<PathBuf>> {
    let flags = SocketFlags::CLOEXEC;
    let socket =
        rustix::net::socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, Some(netlink::SOCK_DIAG)).ok()?;
    // struct nlmsghdr: length, type, flags (a request for all), sequence number, port.
    let mut request = Vec::with_capacity(HEADER + 24);
    request.extend_from_slice(&40_u32.to_ne_bytes());
    request.extend_from_slice(&BY_FAMILY.to_ne_bytes());
    request.extend_from_slice(&0x301_u16.to_ne_bytes());
    request.extend_from_slice(&[0; 8]);
    // struct unix_diag_req: family, protocol, padding, states (listening), inode, what to return (the name), cookie.
    request.extend_from_slice(&[1, 0, 0, 0]);
    request.extend_from_slice(&(1_u32 << 10).to_ne_bytes());
    request.extend_from_slice(&0_u32.to_ne_bytes());
    request.extend_from_slice(&1_u32.to_ne_bytes());
    request.extend_from_slice(&[0xff; 8]);
    rustix::net::send(&socket, &request, SendFlags::empty()).ok()?;
    let mut paths = Vec::new();
    // Not filled with zeros: that would touch every page, and most replies are short.
    let mut buffer = Vec::with_capacity(32 * 1024);
    loop {
        buffer.clear();
        let (_, count) = rustix::net::recv(&socket, spare_capacity(&mut buffer), RecvFlags::TRUNC).ok()?;
        // A truncated or empty reply is not a valid list.
        if !read_messages(buffer.get(..count).filter(|bytes| !bytes.is_empty())?, &mut paths)? {
            return Some(paths);
        }
    }
}

/// Extracts the names from a netlink reply and returns whether more messages follow. Returns `None` for an invalid
/// reply.
fn read_messages(mut bytes: &[u8], paths: &mut Vec<PathBuf>) -> Option<bool> {
    while !bytes.is_empty() {
        let (message, rest) = split(bytes, u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?) as usize)?;
        match u16::from_ne_bytes(message.get(4..6)?.try_into().ok()?) {
            BY_FAMILY => paths.extend(name(message.get(HEADER + ENTRY..)?).and_then(absolute)),
            DONE => return Some(false),
            _ => return None,
        }
        bytes = rest;
    }
    Some(true)
}

/// Returns the attribute with the name, from the attributes of one entry.
fn name(mut attributes: &[u8]) -> Option<&[u8]> {
    while attributes.len() >= 4 {
        let length = u16::from_ne_bytes(attributes[..2].try_into().ok()?) as usize;
        let kind = u16::from_ne_bytes(attributes[2..4].try_into().ok()?);
        let (attribute, rest) = split(attributes, length)?;
        if kind == NAME {
            return attribute.get(4..);
        }
        attributes = rest;
    }
    None
}

/// Splits after `length` bytes, and skips the padding to a multiple of four.
fn split(bytes: &[u8], length: usize) -> Option<(&[u8], &[u8])> {
    let first = bytes.get(..length).filter(|_| length >= 4)?;
    Some((first, bytes.get(length.next_multiple_of(4)..).unwrap_or_default()))
}

/// Returns the name as an absolute path. Abstract names begin with a zero byte.
fn absolute(name: &[u8]) -> Option<PathBuf> {
    let name = name.split(|byte| *byte == 0).next().filter(|name| name.starts_with(b"/"))?;
    Some(Path::new(OsStr::from_bytes(name)).to_owned())
}

/// Extracts the listening sockets from `/proc/net/unix`.
fn parse_table(table: &[u8]) -> Vec<PathBuf> {
    const ACCEPTS: u32 = 1 << 16;
    let lines = table.split(|byte| *byte == b'\n').skip(1);
    let listening = lines.filter_map(|line| {
        // Num, RefCount, Protocol, Flags, Type, St, Inode, Path. A path may contain spaces.
        let mut rest = line;
        let mut flags = None;
        for field in 0..7 {
            let end = rest.iter().position(|byte| *byte == b' ')?;
            if field == 3 {
                flags = std::str::from_utf8(&rest[..end]).ok().and_then(|text| u32::from_str_radix(text, 16).ok());
            }
            rest = rest[end..].trim_ascii_start();
        }
        flags.filter(|flags| flags & ACCEPTS != 0).and_then(|_| absolute(rest))
    });
    listening.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::{UnixListener, UnixStream};

    #[test]
    fn both_sources_list_listening_sockets_only() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a b.sock");
        let _listener = UnixListener::bind(&path).unwrap();
        let _other = UnixStream::connect(&path).unwrap();
        let _datagrams = std::os::unix::net::UnixDatagram::bind(dir.path().join("d")).unwrap();
        let ours = |paths: Vec<PathBuf>| -> Vec<PathBuf> {
            paths.into_iter().filter(|path| path.starts_with(dir.path())).collect()
        };
        assert_eq!(ours(by_netlink().expect("this kernel tells")), std::slice::from_ref(&path));
        assert_eq!(ours(parse_table(&std::fs::read("/proc/net/unix").unwrap())), [path]);
    }

    #[test]
    fn truncated_lists_are_refused() {
        for bytes in [&[1_u8, 0, 0][..], &[200, 0, 0, 0, 20, 0], &[0; 16], &[16, 0, 0, 0, 2, 0, 0, 0]] {
            assert_eq!(read_messages(bytes, &mut Vec::new()), None, "{bytes:?}");
        }
        assert_eq!(parse_table(b"Num\n0000: 2 0 x"), Vec::<PathBuf>::new());
    }
}
