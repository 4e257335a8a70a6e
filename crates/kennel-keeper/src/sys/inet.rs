//! Addresses of TCP connections that the kernel has redirected.

use rustix::fd::{AsFd, AsRawFd};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

/// `IP6T_SO_ORIGINAL_DST`, which libc does not define for every target.
const IP6T_SO_ORIGINAL_DST: libc::c_int = 80;

/// Returns the address that the peer of an accepted connection connected to, before the firewall redirected it. Returns
/// `None` if the kernel does not track connections.
pub fn original_destination(socket: impl AsFd, ipv6: bool) -> Option<SocketAddr> {
    let fd = socket.as_fd().as_raw_fd();
    if ipv6 {
        // SAFETY: all zeros is a valid value of this plain structure.
        let mut address: libc::sockaddr_in6 = unsafe { std::mem::zeroed() };
        let mut size = size_of::<libc::sockaddr_in6>() as libc::socklen_t;
        // SAFETY: `address` and `size` are valid for the call and match each other.
        let result = unsafe {
            libc::getsockopt(fd, libc::SOL_IPV6, IP6T_SO_ORIGINAL_DST, (&raw mut address).cast(), &raw mut size)
        };
        let ip = Ipv6Addr::from(address.sin6_addr.s6_addr);
        (result == 0).then(|| SocketAddr::new(ip.into(), u16::from_be(address.sin6_port)))
    } else {
        // SAFETY: all zeros is a valid value of this plain structure.
        let mut address: libc::sockaddr_in = unsafe { std::mem::zeroed() };
        let mut size = size_of::<libc::sockaddr_in>() as libc::socklen_t;
        // SAFETY: `address` and `size` are valid for the call and match each other.
        let result = unsafe {
            libc::getsockopt(fd, libc::SOL_IP, libc::SO_ORIGINAL_DST, (&raw mut address).cast(), &raw mut size)
        };
        let ip = Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr));
        (result == 0).then(|| SocketAddr::new(ip.into(), u16::from_be(address.sin_port)))
    }
}
