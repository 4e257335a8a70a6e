//! A command or terminal over a WebSocket.
//!
//! A task owns the connection. It keeps the input that the server has not taken yet and knows how much output has arrived.
//! So it can connect again without losing a byte, if the caller wants that.

use crate::Client;
use crate::client::escape;
use crate::connection::Connection;
use crate::error::{self, Received};
use futures_util::{SinkExt as _, StreamExt as _};
use hyper::header::{AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL};
use kennel_api::TerminalSize;
use kennel_api::stream::{
    ClientMessage, Frame, PAYLOAD, SUBPROTOCOL, ServerMessage, StreamAttach, StreamChannel, StreamStart, WINDOW,
};
use kennel_types::{Error, ErrorCode, ExitStatus, Result};
use std::collections::VecDeque;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::http::HeaderValue;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{self, Message};

/// For how long a lost connection is tried to be restored.
const RESTORE_WITHIN: Duration = Duration::from_mins(1);
/// The time between two attempts.
const BETWEEN: Duration = Duration::from_millis(300);

/// What happens to a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandEvent {
    /// Output of a channel.
    Output(StreamChannel, Vec<u8>),
    /// This much output of a channel is lost.
    Lost(StreamChannel, u64),
    /// The command ended, and all its output has arrived.
    Exited(ExitStatus),
}

/// A running command. If it is dropped, the connection is closed.
pub struct CommandStream {
    process: u64,
    tty: bool,
    events: mpsc::UnboundedReceiver<Result<CommandEvent>>,
    input: Option<CommandInput>,
    control: CommandControl,
    /// What the caller has received and not acknowledged.
    unread: Option<(StreamChannel, usize)>,
    task: tokio::task::AbortHandle,
}

impl Drop for CommandStream {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Writes the standard input of a command.
pub struct CommandInput(mpsc::Sender<Option<Vec<u8>>>);

/// Sends signals and sizes to a command.
#[derive(Clone)]
pub struct CommandControl(mpsc::UnboundedSender<Control>);

enum Control {
    Say(ClientMessage),
    /// The caller has read this much of a channel.
    Read(StreamChannel, usize),
}

impl CommandInput {
    /// Writes input. It waits while the command takes no more. Fails if the command has ended.
    pub async fn write(&self, bytes: Vec<u8>) -> Result<()> {
        for piece in bytes.chunks(PAYLOAD) {
            self.0.send(Some(piece.to_vec())).await.map_err(|_| ended())?;
        }
        Ok(())
    }

    /// Ends the input: the command reads end of file.
    pub async fn close(&self) -> Result<()> {
        self.0.send(None).await.map_err(|_| ended())
    }
}

fn ended() -> Error {
    Error::new(ErrorCode::Stopped, "the command has ended")
}

impl CommandControl {
    /// Sends a signal to the command's process group.
    pub fn signal(&self, signal: i32) {
        let _ = self.0.send(Control::Say(ClientMessage::Signal { signal }));
    }

    /// Changes the size of the command's terminal.
    pub fn resize(&self, size: TerminalSize) {
        let _ = self.0.send(Control::Say(ClientMessage::Resize { rows: size.rows, cols: size.cols }));
    }
}

impl Client {
    /// Starts a command. Unless it ends with the connection, a lost connection is restored.
    pub async fn command(&self, sandbox: &str, start: StreamStart) -> Result<CommandStream> {
        let restores = !start.end_on_close;
        let writes = start.stdin || start.tty.is_some();
        self.open(sandbox, ClientMessage::Start(start), restores, writes).await
    }

    /// Attaches to a command. A lost connection is restored.
    pub async fn attach(&self, sandbox: &str, attach: StreamAttach) -> Result<CommandStream> {
        let writes = attach.write;
        self.open(sandbox, ClientMessage::Attach(attach), true, writes).await
    }

    async fn open(&self, sandbox: &str, first: ClientMessage, restores: bool, writes: bool) -> Result<CommandStream> {
        let path = format!("/v1/sandboxes/{}/stream", escape(sandbox));
        let mut socket = self.socket(&path).await?;
        let (process, tty, place) = begin(&mut socket, &first).await?;
        let (events, received) = mpsc::unbounded_channel();
        let (input, pieces) = mpsc::channel(1);
        let (control, controls) = mpsc::unbounded_channel();
        let driver = Driver {
            client: self.clone(),
            path,
            process,
            restores,
            writes,
            received: place.output,
            read: place.output,
            unacked: VecDeque::new(),
            taken: place.stdin,
            ended: false,
            events,
        };
        let task = tokio::spawn(driver.run(socket, pieces, controls)).abort_handle();
        let control = CommandControl(control);
        Ok(CommandStream {
            process,
            tty,
            events: received,
            input: writes.then_some(CommandInput(input)),
            control,
            unread: None,
            task,
        })
    }

    async fn socket(&self, path: &str) -> Result<Socket> {
        let host = self.address().host();
        let invalid = |error: tungstenite::Error| error::broken("open a WebSocket", error);
        let mut request = format!("ws://{host}{path}").into_client_request().map_err(invalid)?;
        request.headers_mut().insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(SUBPROTOCOL));
        if let Some(value) = self.authorization()? {
            request.headers_mut().insert(AUTHORIZATION, value);
        }
        let stream = self.connect().await?;
        match tokio_tungstenite::client_async(request, stream).await {
            Ok((socket, _)) => Ok(socket),
            Err(tungstenite::Error::Http(response)) => {
                let body = response.body().as_deref().unwrap_or_default();
                Err(error::of_response(response.status().as_u16(), body))
            }
            Err(error) => Err(invalid(error)),
        }
    }
}

type Socket = WebSocketStream<Box<dyn Connection>>;

/// Where output and input continue.
#[derive(Clone, Copy, Default)]
struct Place {
    output: [u64; 2],
    stdin: u64,
    stdin_closed: bool,
}

/// Sends the first message, and waits for its reply.
async fn begin(socket: &mut Socket, first: &ClientMessage) -> Result<(u64, bool, Place)> {
    say(socket, first).await?;
    loop {
        match receive(socket).await? {
            Arrived::Said(ServerMessage::Started { process, tty }) => return Ok((process, tty, Place::default())),
            Arrived::Said(ServerMessage::Attached { process, tty, stdout, stderr, stdin_taken, stdin_closed }) => {
                let (stdin, stdin_closed) = (stdin_taken.unwrap_or_default(), stdin_closed.unwrap_or_default());
                return Ok((process, tty, Place { output: [stdout, stderr], stdin, stdin_closed }));
            }
            Arrived::Said(ServerMessage::Error { error }) => return Err(error.into_error()),
            Arrived::Said(_) | Arrived::Output(..) => {}
            Arrived::Closed(_) => return Err(broken()),
        }
    }
}

fn broken() -> Error {
    Error::new(ErrorCode::NotAvailable, "the connection to the server broke")
}

async fn say(socket: &mut Socket, message: &ClientMessage) -> Result<()> {
    // These types consist of numbers and text, so they can be written.
    let text = serde_json::to_string(message).unwrap_or_default();
    socket.send(Message::text(text)).await.map_err(|_| broken())
}

enum Arrived {
    Output(StreamChannel, u64, Vec<u8>),
    Said(ServerMessage<Received>),
    Closed(Option<CloseCode>),
}

async fn receive(socket: &mut Socket) -> Result<Arrived> {
    loop {
        return Ok(match socket.next().await {
            Some(Ok(Message::Binary(bytes))) => {
                let frame = Frame::decode(&bytes).map_err(|error| {
                    Error::new(ErrorCode::Internal, format!("read a message of the server: {error}"))
                })?;
                Arrived::Output(frame.channel, frame.offset, frame.payload.to_vec())
            }
            Some(Ok(Message::Text(text))) => Arrived::Said(error::json(text.as_bytes())?),
            Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => continue,
            Some(Ok(Message::Close(frame))) => Arrived::Closed(frame.map(|frame| frame.code)),
            Some(Err(_)) | None => Arrived::Closed(None),
        });
    }
}

impl CommandStream {
    /// The id of the command in its sandbox.
    pub fn process(&self) -> u64 {
        self.process
    }

    /// Whether the command runs on a terminal.
    pub fn is_tty(&self) -> bool {
        self.tty
    }

    /// Takes the input of the command. Later calls return `None`, as for a client that does not write.
    pub fn take_input(&mut self) -> Option<CommandInput> {
        self.input.take()
    }

    /// What sends signals and sizes to the command.
    pub fn control(&self) -> CommandControl {
        self.control.clone()
    }

    /// Waits for the next event. When this is called again, the server may send as much more as the event before had. So a
    /// slow caller slows the command down. Nothing is lost if the future is dropped.
    pub async fn next(&mut self) -> Result<CommandEvent> {
        if let Some((channel, bytes)) = self.unread.take() {
            let _ = self.control.0.send(Control::Read(channel, bytes));
        }
        let event = self.events.recv().await.unwrap_or_else(|| Err(broken()))?;
        if let CommandEvent::Output(channel, bytes) = &event {
            self.unread = Some((*channel, bytes.len()));
        }
        Ok(event)
    }
}

/// The task that owns the connection.
struct Driver {
    client: Client,
    path: String,
    process: u64,
    restores: bool,
    writes: bool,
    /// How much of each output channel has arrived.
    received: [u64; 2],
    /// How much of each output channel the caller has read.
    read: [u64; 2],
    /// Input after `taken` that the command has not taken.
    unacked: VecDeque<u8>,
    taken: u64,
    /// Whether the input has ended.
    ended: bool,
    events: mpsc::UnboundedSender<Result<CommandEvent>>,
}

impl Driver {
    async fn run(
        mut self,
        mut socket: Socket,
        mut pieces: mpsc::Receiver<Option<Vec<u8>>>,
        mut controls: mpsc::UnboundedReceiver<Control>,
    ) {
        loop {
            let done = self.drive(&mut socket, &mut pieces, &mut controls).await;
            let error = match done {
                Ok(()) => return,
                Err(Broken::For(error)) => error,
                Err(Broken::Lost) if !self.restores => broken(),
                Err(Broken::Lost) => match self.restore().await {
                    Ok(restored) => {
                        socket = restored;
                        continue;
                    }
                    Err(error) => error,
                },
            };
            let _ = self.events.send(Err(error));
            return;
        }
    }

    /// Connects again, for a while.
    async fn restore(&mut self) -> Result<Socket> {
        let attach = ClientMessage::Attach(StreamAttach {
            process: self.process,
            stdout: Some(self.received[0]),
            stderr: Some(self.received[1]),
            write: self.writes,
            take_over: self.writes,
            ..StreamAttach::default()
        });
        let until = tokio::time::Instant::now() + RESTORE_WITHIN;
        loop {
            let attempt = async {
                let mut socket = self.client.socket(&self.path).await?;
                let (_, _, place) = begin(&mut socket, &attach).await?;
                Ok::<_, Error>((socket, place))
            };
            match attempt.await {
                Ok((mut socket, place)) => {
                    if self.writes {
                        self.forget_taken(place.stdin);
                        let missing: Vec<u8> = self.unacked.iter().copied().collect();
                        if self.send(&mut socket, self.taken, &missing).await.is_err()
                            || (self.ended && !place.stdin_closed && self.say_end(&mut socket).await.is_err())
                        {
                            continue;
                        }
                    }
                    return Ok(socket);
                }
                Err(error) if error.code() != ErrorCode::NotAvailable || tokio::time::Instant::now() > until => {
                    return Err(error);
                }
                Err(_) => tokio::time::sleep_until(tokio::time::Instant::now() + BETWEEN).await,
            }
        }
    }

    fn forget_taken(&mut self, taken: u64) {
        let count = usize::try_from(taken.saturating_sub(self.taken)).unwrap_or(usize::MAX).min(self.unacked.len());
        self.unacked.drain(..count);
        self.taken += count as u64;
    }

    async fn send(&self, socket: &mut Socket, mut offset: u64, bytes: &[u8]) -> Result<()> {
        for payload in bytes.chunks(PAYLOAD) {
            let frame = Frame { channel: StreamChannel::Stdin, offset, payload }.encode();
            socket.send(Message::binary(frame)).await.map_err(|_| broken())?;
            offset += payload.len() as u64;
        }
        Ok(())
    }

    async fn say_end(&self, socket: &mut Socket) -> Result<()> {
        say(socket, &ClientMessage::Eof { offset: self.taken + self.unacked.len() as u64 }).await
    }

    async fn drive(
        &mut self,
        socket: &mut Socket,
        pieces: &mut mpsc::Receiver<Option<Vec<u8>>>,
        controls: &mut mpsc::UnboundedReceiver<Control>,
    ) -> std::result::Result<(), Broken> {
        loop {
            let has_room = self.unacked.len() + PAYLOAD <= WINDOW as usize && !self.ended;
            tokio::select! {
                arrived = receive(socket) => {
                    if self.take(arrived?)? {
                        return Ok(());
                    }
                }
                Some(piece) = pieces.recv(), if has_room => if let Some(bytes) = piece {
                    let offset = self.taken + self.unacked.len() as u64;
                    self.unacked.extend(&bytes);
                    self.send(socket, offset, &bytes).await?;
                } else {
                    self.ended = true;
                    self.say_end(socket).await?;
                },
                Some(control) = controls.recv() => match control {
                    Control::Say(message) => say(socket, &message).await?,
                    Control::Read(channel, bytes) => {
                        let index = usize::from(channel == StreamChannel::Stderr);
                        self.read[index] += bytes as u64;
                        say(socket, &ClientMessage::Ack { channel, offset: self.read[index] }).await?;
                    }
                },
            }
        }
    }

    /// Handles what has arrived. Returns whether the command has ended.
    fn take(&mut self, arrived: Arrived) -> std::result::Result<bool, Broken> {
        let event = match arrived {
            Arrived::Output(channel, offset, bytes) => {
                let received = &mut self.received[usize::from(channel == StreamChannel::Stderr)];
                if offset != *received {
                    let message = format!("output continues at {offset}, and not at {received}");
                    return Err(Broken::For(Error::new(ErrorCode::Internal, message)));
                }
                *received += bytes.len() as u64;
                CommandEvent::Output(channel, bytes)
            }
            Arrived::Said(ServerMessage::Lost { channel, bytes, .. }) => {
                let index = usize::from(channel == StreamChannel::Stderr);
                self.received[index] += bytes;
                self.read[index] += bytes;
                CommandEvent::Lost(channel, bytes)
            }
            Arrived::Said(ServerMessage::Ack { offset, .. }) => {
                self.forget_taken(offset);
                return Ok(false);
            }
            Arrived::Said(ServerMessage::Exit { exit_code, signal, timed_out, oom_killed }) => {
                let code = (signal.is_none() && !timed_out).then_some(exit_code);
                let _ = self.events.send(Ok(CommandEvent::Exited(ExitStatus { code, signal, timed_out, oom_killed })));
                return Ok(true);
            }
            Arrived::Said(ServerMessage::Error { error }) => return Err(Broken::For(error.into_error())),
            Arrived::Said(_) => return Ok(false),
            Arrived::Closed(Some(CloseCode::Policy)) => {
                let message = "the server closed the connection: another client took over, or the token was revoked";
                return Err(Broken::For(Error::new(ErrorCode::PermissionDenied, message)));
            }
            Arrived::Closed(_) => return Err(Broken::Lost),
        };
        // If nobody receives it, the task is about to be aborted.
        let _ = self.events.send(Ok(event));
        Ok(false)
    }
}

/// Why a connection cannot be used any more.
enum Broken {
    /// It was lost, and another may work.
    Lost,
    /// Another would not help.
    For(Error),
}

impl From<Error> for Broken {
    fn from(error: Error) -> Self {
        if error.code() == ErrorCode::NotAvailable { Self::Lost } else { Self::For(error) }
    }
}
