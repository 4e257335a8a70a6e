//! A client of an agent over a WebSocket. One message is one text frame.

use crate::revocation::{StreamEnd, Why};
use axum::extract::ws::{CloseFrame, Message, WebSocket, close_code};
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt as _, StreamExt as _};
use kennel_acp::{Client, Outgoing, Sender, SessionEnded};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// The time between two pings.
const PING: Duration = Duration::from_secs(20);
/// A client that sends nothing for this long, not even the reply to a ping, is gone.
const GONE: Duration = Duration::from_mins(1);
/// How long the client may take to receive the last messages and to close the connection.
const LAST: Duration = Duration::from_secs(10);

/// Serves a client until it leaves, or the agent ends.
pub(super) async fn serve(socket: WebSocket, mut client: Client, mut end: StreamEnd) {
    let (mut sink, mut frames) = socket.split();
    let heard = watch::Sender::new(Instant::now());
    let close = {
        let receiving = receive(&mut frames, client.sender(), &heard);
        let sending = send(&mut sink, &mut client, heard.subscribe());
        tokio::pin!(receiving, sending);
        tokio::select! {
            refused = &mut receiving => refused,
            ended = &mut sending => ended,
            why = end.reached() => Some(match why {
                Why::ServerEnds => (close_code::AWAY, "the server ends; connect again"),
                Why::Revoked => (close_code::POLICY, "the token was revoked"),
            }),
        }
    };
    drop(client);
    if let Some((code, reason)) = close {
        let closed = async {
            let _ = sink.send(Message::Close(Some(CloseFrame { code, reason: reason.into() }))).await;
            // If the socket were dropped while the client still sends, the client could lose the last messages.
            while let Some(Ok(_)) = frames.next().await {}
        };
        let _ = tokio::time::timeout(LAST, closed).await;
    }
}

/// Passes the messages of a client to the relay. Returns how to close the connection, or `None` if the client has closed it.
async fn receive(
    frames: &mut SplitStream<WebSocket>,
    sender: Sender,
    heard: &watch::Sender<Instant>,
) -> Option<(u16, &'static str)> {
    while let Some(Ok(frame)) = frames.next().await {
        heard.send_replace(Instant::now());
        match frame {
            Message::Text(text) => {
                if sender.send(text.as_bytes().to_vec()).await.is_err() {
                    // The relay has ended. The other loop says so, after what is left.
                    std::future::pending::<()>().await;
                }
                heard.send_replace(Instant::now());
            }
            Message::Binary(_) => return Some((close_code::UNSUPPORTED, "a message is a text frame")),
            Message::Ping(_) | Message::Pong(_) => {}
            Message::Close(_) => return None,
        }
    }
    None
}

/// Sends what the relay has for a client. Returns how to close the connection, or `None` if it is broken.
async fn send(
    sink: &mut SplitSink<WebSocket, Message>,
    client: &mut Client,
    heard: watch::Receiver<Instant>,
) -> Option<(u16, &'static str)> {
    let mut ping = tokio::time::interval_at(Instant::now() + PING, PING);
    loop {
        let message = tokio::select! {
            next = client.next() => match next {
                Ok(Ok(message)) => Message::Text(text(&message).into()),
                Ok(Err(ended)) => return Some(closing(&ended)),
                Err(error) => {
                    tracing::warn!(%error, "could not read messages for a client");
                    return Some((close_code::ERROR, "the messages could not be read"));
                }
            },
            _ = ping.tick() => {
                if heard.borrow().elapsed() > GONE {
                    return None;
                }
                Message::Ping(axum::body::Bytes::new())
            }
        };
        if sink.send(message).await.is_err() {
            return None;
        }
    }
}

/// A message without its newline.
pub(super) fn text(message: &Outgoing) -> String {
    // The relay passes only UTF-8.
    String::from_utf8_lossy(message.bytes.trim_ascii_end()).into_owned()
}

fn closing(ended: &SessionEnded) -> (u16, &'static str) {
    match ended {
        SessionEnded::Agent => (close_code::NORMAL, "the agent ended"),
        SessionEnded::Failed(error) => (close_code::ERROR, error.code().name()),
        SessionEnded::Relay => (close_code::RESTART, "another relay has taken over; connect again"),
    }
}
