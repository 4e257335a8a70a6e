//! The keeper's side of the protocol over a byte stream, for providers that replace the keeper: in a test, or where no
//! keeper can run. It takes connections apart into requests; the provider carries the requests out.

use kennel_proto::{Body, Decoder, Failure, Frame, Hello, Limit, Request, caps, encode};
use std::collections::HashMap;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Both directions of a stream: one request and everything that follows from it.
pub struct Link {
    /// The number of the stream.
    pub stream: u32,
    /// Frames to the host, of all streams.
    pub out: mpsc::Sender<Frame>,
    /// What the host sends on this stream. It ends with the connection.
    pub inbox: mpsc::UnboundedReceiver<Body>,
}

impl Link {
    /// Sends a frame on this stream. If the connection is gone, the task of this stream ends soon.
    pub async fn send(&self, body: Body) {
        let _ = self.out.send(Frame { stream: self.stream, body }).await;
    }
}

/// Reads the next frame. Returns `None` if the connection ends, or if the host breaks the protocol.
async fn read_frame(reader: &mut (impl AsyncRead + Unpin), decoder: &mut Decoder) -> Option<Frame> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        if let Some(frame) = decoder.next_frame().ok()? {
            return Some(frame);
        }
        match reader.read(&mut buffer).await {
            Ok(0) | Err(_) => return None,
            Ok(count) => decoder.feed(&buffer[..count]),
        }
    }
}

/// Reads the host's half of the handshake.
pub async fn read_hello(reader: &mut (impl AsyncRead + Unpin), decoder: &mut Decoder) -> Option<Hello> {
    match read_frame(reader, decoder).await? {
        Frame { stream: 0, body: Body::Hello(hello) } => Some(hello),
        _ => None,
    }
}

/// Serves a connection after the handshake, until it ends. Each request is answered in a task of its own, which ends
/// with the connection.
pub async fn serve<F: Future<Output = ()> + Send + 'static>(
    reader: &mut (impl AsyncRead + Unpin),
    decoder: &mut Decoder,
    out: &mpsc::Sender<Frame>,
    mut answer: impl FnMut(Request, Link) -> F,
) {
    let mut streams: HashMap<u32, mpsc::UnboundedSender<Body>> = HashMap::new();
    // Dropped with this connection, which ends every stream.
    let mut tasks = JoinSet::new();
    while let Some(Frame { stream, body }) = read_frame(reader, decoder).await {
        match body {
            Body::Ping if stream == 0 => drop(out.send(Frame { stream: 0, body: Body::Pong }).await),
            _ if stream == 0 => return,
            Body::Open(request) => {
                streams.retain(|_, inbox| !inbox.is_closed());
                while tasks.try_join_next().is_some() {}
                if streams.contains_key(&stream) {
                    return;
                }
                let (sender, inbox) = mpsc::unbounded_channel();
                let link = Link { stream, out: out.clone(), inbox };
                if streams.len() >= caps::STREAMS {
                    link.send(Body::Fail(too_many_requests())).await;
                    continue;
                }
                streams.insert(stream, sender);
                tasks.spawn(answer(*request, link));
            }
            body => {
                // Frames for a stream that has ended may still arrive.
                if let Some(inbox) = streams.get(&stream) {
                    let _ = inbox.send(body);
                }
            }
        }
    }
}

fn too_many_requests() -> Failure {
    Failure::limit(Limit::Requests, "too many requests at once")
}

/// Writes frames until there are no more, or the connection ends.
pub async fn write(writer: &mut (impl AsyncWrite + Unpin), mut frames: mpsc::Receiver<Frame>) {
    let mut bytes = Vec::new();
    while let Some(frame) = frames.recv().await {
        bytes.clear();
        encode(&frame, &mut bytes);
        if writer.write_all(&bytes).await.is_err() {
            return;
        }
    }
}
