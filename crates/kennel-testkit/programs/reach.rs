//! Tries to reach an address from inside, or listens on one. It is compiled separately, without any crate.
//!
//! `reach tcp|udp|icmp ADDRESS` prints `reached`, or the reason. `reach serve ADDRESS` replies to all connections and
//! datagrams at that address, and prints when it is ready.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::FromRawFd;
use std::time::Duration;

// SAFETY: as the C library declares it.
unsafe extern "C" {
    fn socket(domain: i32, kind: i32, protocol: i32) -> i32;
}

const PATIENCE: Duration = Duration::from_secs(2);

fn tcp(address: SocketAddr) -> std::io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"hello")?;
    stream.read_exact(&mut [0; 5])
}

fn exchange(socket: &UdpSocket, message: &[u8]) -> std::io::Result<()> {
    socket.set_read_timeout(Some(PATIENCE / 2))?;
    socket.send(message)?;
    socket.recv(&mut [0; 100]).map(drop)
}

fn udp(address: SocketAddr) -> std::io::Result<()> {
    let socket = UdpSocket::bind(if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" })?;
    socket.connect(address)?;
    exchange(&socket, b"hello")
}

fn icmp(address: SocketAddr) -> std::io::Result<()> {
    // SAFETY: plain numbers: internet, datagrams, ICMP.
    let number = unsafe { socket(2, 2, 1) };
    if number < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: it is open, and used nowhere else.
    let socket = unsafe { UdpSocket::from_raw_fd(number) };
    socket.connect(address)?;
    // An echo request. The kernel sets its identifier and checksum.
    exchange(&socket, &[8, 0, 0, 0, 0, 0, 0, 1, b'h', b'i'])
}

fn serve(address: SocketAddr) -> std::io::Result<()> {
    let (listener, datagrams) = (TcpListener::bind(address)?, UdpSocket::bind(address)?);
    println!("ready");
    std::io::stdout().flush()?;
    std::thread::spawn(move || {
        let mut buffer = [0; 65536];
        while let Ok((count, from)) = datagrams.recv_from(&mut buffer) {
            let _ = datagrams.send_to(&buffer[..count], from);
        }
    });
    for stream in listener.incoming() {
        std::thread::spawn(move || {
            let mut stream = stream?;
            let mut buffer = [0; 4096];
            loop {
                match stream.read(&mut buffer)? {
                    0 => return Ok::<(), std::io::Error>(()),
                    count => stream.write_all(&buffer[..count])?,
                }
            }
        });
    }
    Ok(())
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [how, address] = &arguments[..] else { panic!("usage: reach tcp|udp|icmp|serve ADDRESS") };
    let address = address.parse().expect("an address and a port");
    let done = match how.as_str() {
        "tcp" => tcp(address),
        "udp" => udp(address),
        "icmp" => icmp(address),
        "serve" => serve(address),
        _ => panic!("cannot {how}"),
    };
    match done {
        Ok(()) => println!("reached"),
        Err(error) => println!("not reached: {error}"),
    }
}
