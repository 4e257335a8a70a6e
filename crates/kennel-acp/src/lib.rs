//! The relay between an ACP client and an agent in a sandbox.
//!
//! ACP (Agent Client Protocol) is what editors and coding agents speak: JSON-RPC messages, one per line. The relay starts
//! the agent in a sandbox and passes messages in both directions, unchanged. It parses only their envelope, with two
//! exceptions. Requests of the agent for files and terminals are served from its own sandbox and never reach the client,
//! so an agent cannot read a file of the host through its editor. And `initialize` is changed, so that it states what the
//! relay serves.
//!
//! Everything that an agent sends is hostile. A message that two parsers could read differently is refused.

mod envelope;
mod failure;
mod image;
mod inside;
mod lines;
mod paths;
mod preset;
mod relay;
mod session;
mod splice;
mod tail;
mod to_client;
mod turn;
mod workspace;

pub use image::{AgentImage, REGISTRY};
pub use lines::LINE;
pub use paths::PathMap;
pub use preset::Preset;
pub use relay::{Agent, Ended, Served, Watch, refuse, relay};
pub use session::{
    Client, Ended as SessionEnded, Join, Liveness, NewAgent, Outgoing, Relays, Sender, SessionAgent, SessionRelay,
};
pub use to_client::ToClient;
pub use turn::{Audience, Decision, Permission, Prompt, turn};
pub use workspace::{at_chosen_path, at_own_path};
