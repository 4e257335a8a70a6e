//! A server for the inside of a sandbox: it sends back the head and the body of each request, with headers that would
//! concern the whole origin. Plain Rust: it is compiled by itself.

use std::io::{Read, Write};
use std::net::TcpListener;

fn main() {
    let port = std::env::args().nth(1).expect("a port");
    let listener = TcpListener::bind(format!("127.0.0.1:{port}")).expect("the port is free");
    println!("ready");
    for stream in listener.incoming() {
        let mut stream = stream.expect("a connection");
        std::thread::spawn(move || {
            let mut head = Vec::new();
            let mut byte = [0];
            while !head.ends_with(b"\r\n\r\n") && stream.read_exact(&mut byte).is_ok() {
                head.push(byte[0]);
            }
            let text = String::from_utf8_lossy(&head).to_lowercase();
            let length = text.lines().find_map(|line| line.strip_prefix("content-length: ")?.trim().parse().ok());
            let mut body = vec![0; length.unwrap_or(0)];
            let _ = stream.read_exact(&mut body);
            let answer = [head, body].concat();
            let _ = write!(
                stream,
                "HTTP/1.1 418 I'm a teapot\r\nContent-Type: text/html\r\nContent-Length: {}\r\n\
                 Set-Cookie: a=1; Domain=localhost; Path=/\r\nSet-Cookie: kennel-preview=stolen\r\n\
                 Clear-Site-Data: \"*\"\r\nService-Worker-Allowed: /\r\nX-Own: kept\r\nConnection: close\r\n\r\n",
                answer.len()
            );
            let _ = stream.write_all(&answer);
        });
    }
}
