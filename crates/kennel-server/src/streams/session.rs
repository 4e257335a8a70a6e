//! One client of a command, over a WebSocket.
//!
//! The session never blocks on one direction: it reads the client's messages while it waits to send, because among them are
//! the acknowledgements without which it sends no more. Each output channel has a window of its own. What the client has
//! not acknowledged stays in the keeper, so it survives the server.

use super::begin::Begun;
use super::outbox::Outbox;
use crate::app::AppState;
use crate::error::api_error;
use crate::request_id::RequestId;
use crate::revocation::{StreamEnd, Why};
use axum::extract::ws::{CloseFrame, Message, WebSocket, close_code};
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt as _, StreamExt as _};
use kennel_api::stream::{ClientMessage, Frame, ServerMessage, StreamChannel, WINDOW};
use kennel_core::{Error, FanOut, FanOutStdin, Result, Sandbox, Subscriber};
use kennel_types::{ErrorCode, LimitReason, TermSize};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

/// The time between two pings.
const PING: Duration = Duration::from_secs(20);
/// A client that sends nothing for this long, not even the reply to a ping, is gone.
const GONE: Duration = Duration::from_mins(1);
/// How long a new client may take for its first message.
const FIRST: Duration = Duration::from_secs(30);
/// How long the client may take to receive the last messages and to close the connection.
const LAST: Duration = Duration::from_secs(10);
/// Messages between the session and the task that sends them.
const SENDING: usize = 4;

/// Serves a client until its command ends or the connection is closed.
pub(super) async fn serve(socket: WebSocket, app: AppState, sandbox: Sandbox, id: RequestId, mut end: StreamEnd) {
    let (sink, mut messages) = socket.split();
    let (sender, receiver) = mpsc::channel(SENDING);
    let sending = tokio::spawn(send_all(sink, receiver));
    let stop = Arc::new(Notify::new());
    let result = async {
        let first = tokio::time::timeout(FIRST, next(&mut messages)).await.map_err(|_| {
            Error::new(ErrorCode::Timeout, format!("the first message did not arrive within {FIRST:?}"))
        })??;
        let Some(Received::Control(first)) = first else {
            return if first.is_none() { Ok(Ended::Gone) } else { Err(invalid("the first message must be text")) };
        };
        let begun = super::begin::begin(&app, &sandbox, first, &stop).await?;
        let mut session = Session::new(begun, stop.clone());
        session.run(&mut messages, &sender, &mut end).await
    };
    let last = match result.await {
        Ok(Ended::Gone) => None,
        Ok(Ended::Exited) => Some(closing(close_code::NORMAL, "the command ended")),
        Ok(Ended::TakenOver) => Some(closing(close_code::POLICY, "another client took over the standard input")),
        Ok(Ended::From(Why::ServerEnds)) => Some(closing(close_code::AWAY, "the server ends; attach again")),
        Ok(Ended::From(Why::Revoked)) => Some(closing(close_code::POLICY, "the token was revoked")),
        Err(error) => {
            let code = if error.code() == ErrorCode::InvalidConfig { close_code::PROTOCOL } else { close_code::ERROR };
            let message: ServerMessage = ServerMessage::Error { error: api_error(&error, id.as_str()) };
            let _ = tokio::time::timeout(LAST, sender.send(text(&message))).await;
            Some(closing(code, error.code().name()))
        }
    };
    if let Some(last) = last {
        let closed = async {
            let _ = sender.send(last).await;
            drop(sender);
            // If the socket were dropped while the client still sends, the client could lose the last messages.
            while let Some(Ok(_)) = messages.next().await {}
        };
        let _ = tokio::time::timeout(LAST, closed).await;
    }
    sending.abort();
}

/// Sends messages in order. It ends with the session.
async fn send_all(mut sink: SplitSink<WebSocket, Message>, mut messages: mpsc::Receiver<Message>) {
    while let Some(message) = messages.recv().await {
        if sink.send(message).await.is_err() {
            return;
        }
    }
}

/// Why a session ended, if it was not an error.
enum Ended {
    /// The client closed the connection, or is gone.
    Gone,
    /// The command ended, and the client was told.
    Exited,
    /// Another client writes now.
    TakenOver,
    /// The server ends, or the client lost its token.
    From(Why),
}

/// A message of the client.
enum Received {
    Control(ClientMessage),
    Data(axum::body::Bytes),
    /// A ping, or the reply to one.
    Alive,
}

/// Returns the next message of the client, or `None` at the end of the connection.
async fn next(messages: &mut SplitStream<WebSocket>) -> Result<Option<Received>> {
    Ok(match messages.next().await {
        Some(Ok(Message::Text(text))) => {
            let message = crate::strict::message(&text).map_err(|error| invalid(format!("a text message: {error}")))?;
            Some(Received::Control(message))
        }
        Some(Ok(Message::Binary(bytes))) => Some(Received::Data(bytes)),
        Some(Ok(Message::Ping(_) | Message::Pong(_))) => Some(Received::Alive),
        Some(Ok(Message::Close(_)) | Err(_)) | None => None,
    })
}

/// A client that is connected to a command.
struct Session {
    /// Keeps the reader of the command alive.
    fan_out: FanOut,
    subscriber: Subscriber,
    input: Option<Input>,
    outbox: Outbox,
    stop: Arc<Notify>,
}

/// The standard input of a client that writes.
struct Input {
    stdin: Arc<FanOutStdin>,
    /// To the task that writes.
    queue: mpsc::UnboundedSender<Piece>,
    task: tokio::task::AbortHandle,
    /// The offset of the next byte from the client.
    received: u64,
    /// The client was told that the bytes before this offset are taken.
    taken: u64,
    ended: bool,
    /// Whether the command takes no more.
    refused: bool,
}

/// A part of the input.
enum Piece {
    Bytes(Vec<u8>),
    End,
}

impl Drop for Input {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Input {
    fn new(stdin: FanOutStdin, position: u64) -> Self {
        let stdin = Arc::new(stdin);
        let ended = stdin.is_closed();
        let (queue, pieces) = mpsc::unbounded_channel();
        let task = tokio::spawn(write_all(stdin.clone(), pieces)).abort_handle();
        Self { stdin, queue, task, received: position, taken: position, ended, refused: false }
    }

    /// Accepts bytes. Those that were received before are ignored.
    fn take(&mut self, frame: Frame<'_>) -> Result<()> {
        if frame.end() <= self.received {
            return Ok(());
        }
        if self.ended {
            return Err(invalid("standard input has ended already"));
        }
        let Some(skip) = self.received.checked_sub(frame.offset) else {
            let message = format!("standard input continues at {}, and not at {}", self.received, frame.offset);
            return Err(invalid(message));
        };
        if frame.end() - self.taken > WINDOW {
            let message = format!("more than {WINDOW} bytes of standard input are ahead of the last ack");
            return Err(Error::limit(LimitReason::TooManyRequests, message));
        }
        self.received = frame.end();
        // The task ends only with the session.
        let _ = self.queue.send(Piece::Bytes(frame.payload[skip as usize..].to_vec()));
        Ok(())
    }

    fn end(&mut self, offset: u64) -> Result<()> {
        if offset != self.received {
            let message = format!("standard input ends at {offset}, but {} bytes were received", self.received);
            return Err(invalid(message));
        }
        if !std::mem::replace(&mut self.ended, true) {
            let _ = self.queue.send(Piece::End);
        }
        Ok(())
    }
}

/// Writes the input as fast as the command takes it.
async fn write_all(stdin: Arc<FanOutStdin>, mut pieces: mpsc::UnboundedReceiver<Piece>) {
    while let Some(piece) = pieces.recv().await {
        match piece {
            // A command that ends without reading its input is no error; the client receives its exit.
            Piece::Bytes(bytes) => drop(stdin.write(&bytes).await),
            Piece::End => stdin.close(),
        }
    }
}

/// What the session waits for.
enum Woken {
    Message(Option<Received>),
    Event(kennel_core::FanOutEvent),
    Taken(Result<u64>),
    Ping,
    Sent,
    TakenOver,
    EndedFrom(Why),
}

impl Session {
    fn new(begun: Begun, stop: Arc<Notify>) -> Self {
        let Begun { fan_out, subscriber, stdin, message } = begun;
        let mut outbox = Outbox::new(subscriber.position());
        outbox.say(text(&message));
        let input = stdin.map(|(stdin, position)| Input::new(stdin, position));
        Self { fan_out, subscriber, input, outbox, stop }
    }

    async fn run(
        &mut self,
        messages: &mut SplitStream<WebSocket>,
        sender: &mpsc::Sender<Message>,
        end: &mut StreamEnd,
    ) -> Result<Ended> {
        let mut ping = tokio::time::interval_at(Instant::now() + PING, PING);
        let mut heard = Instant::now();
        loop {
            if self.outbox.has_said_everything() {
                return Ok(Ended::Exited);
            }
            let (has_message, reads) = (self.outbox.has_message(), self.outbox.has_room());
            let input = self.input.as_ref().filter(|input| !input.refused && input.taken < input.received);
            let taken = async {
                match input {
                    Some(input) => input.stdin.taken(input.taken).await,
                    None => std::future::pending().await,
                }
            };
            let woken = tokio::select! {
                message = next(messages) => Woken::Message(message?),
                permit = sender.reserve(), if has_message => match permit {
                    Ok(permit) => {
                        if let Some(message) = self.outbox.take() {
                            permit.send(message);
                        }
                        Woken::Sent
                    }
                    // The connection is broken.
                    Err(_) => return Ok(Ended::Gone),
                },
                event = self.subscriber.next(), if reads => Woken::Event(event?),
                taken = taken => Woken::Taken(taken),
                _ = ping.tick() => Woken::Ping,
                () = self.stop.notified() => Woken::TakenOver,
                why = end.reached() => Woken::EndedFrom(why),
            };
            match woken {
                Woken::Message(None) => return Ok(Ended::Gone),
                Woken::Message(Some(message)) => {
                    heard = Instant::now();
                    self.take(message)?;
                }
                Woken::Event(event) => self.outbox.push(event),
                Woken::Taken(taken) => self.tell_taken(&taken),
                Woken::Ping if heard.elapsed() > GONE => return Ok(Ended::Gone),
                Woken::Ping => self.outbox.say(Message::Ping(axum::body::Bytes::new())),
                Woken::Sent => {}
                Woken::TakenOver => return Ok(Ended::TakenOver),
                Woken::EndedFrom(why) => return Ok(Ended::From(why)),
            }
        }
    }

    fn take(&mut self, message: Received) -> Result<()> {
        match message {
            Received::Alive => {}
            Received::Data(bytes) => {
                let frame = Frame::decode(&bytes).map_err(|error| invalid(error.to_string()))?;
                if frame.channel != StreamChannel::Stdin {
                    return Err(invalid("a client sends only channel 0, standard input"));
                }
                self.input()?.take(frame)?;
            }
            Received::Control(ClientMessage::Eof { offset }) => self.input()?.end(offset)?,
            Received::Control(ClientMessage::Ack { channel, offset }) => {
                let acknowledged = self.outbox.acknowledge(channel, offset)?;
                self.subscriber.acknowledge(acknowledged)?;
            }
            Received::Control(ClientMessage::Resize { rows, cols }) => self.fan_out.resize(TermSize { rows, cols }),
            Received::Control(ClientMessage::Signal { signal: signal @ 1..=64 }) => self.fan_out.signal(signal),
            Received::Control(ClientMessage::Signal { signal }) => {
                return Err(invalid(format!("invalid signal {signal}: expected 1 to 64")));
            }
            Received::Control(ClientMessage::Start(_) | ClientMessage::Attach(_)) => {
                return Err(invalid("`start` and `attach` are only for the first message"));
            }
        }
        Ok(())
    }

    fn input(&mut self) -> Result<&mut Input> {
        let missing = || invalid("this client does not write standard input: `stdin`, `tty` or `write` is missing");
        self.input.as_mut().ok_or_else(missing)
    }

    fn tell_taken(&mut self, taken: &Result<u64>) {
        let Some(input) = &mut self.input else { return };
        match taken {
            Ok(taken) => {
                // The end of a terminal's input is a byte too, which is not the client's.
                input.taken = input.received.min(*taken);
                let message: ServerMessage = ServerMessage::Ack { channel: StreamChannel::Stdin, offset: input.taken };
                self.outbox.say_instead(text(&message));
            }
            // The command ended; its exit follows.
            Err(_) => input.refused = true,
        }
    }
}

pub(super) fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorCode::InvalidConfig, message)
}

fn text(message: &ServerMessage) -> Message {
    // These types consist of numbers and text, so they can be written.
    Message::Text(serde_json::to_string(message).unwrap_or_default().into())
}

fn closing(code: u16, reason: &'static str) -> Message {
    Message::Close(Some(CloseFrame { code, reason: reason.into() }))
}
