//! Streams of the server, with real WebSocket clients, real sandboxes, and a server process that is killed.

mod agents;
mod changes;
mod clients;
mod events;
mod killed;
mod lines;
mod ports;
mod revoked;
mod rust_client;
mod support;
mod terminal;
mod tickets;

/// The server, in a process of its own, so that it can be killed. Other tests start it; it needs what they tell it.
#[test]
#[ignore = "the other tests start this in a process of its own"]
fn the_server() {
    support::be_the_server(|address| println!("\nlistening {address}"));
}
