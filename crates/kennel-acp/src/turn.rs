//! One turn of an agent, with this program as its client: a prompt, what the agent reports, and how it ends.

use crate::envelope::Envelope;
use crate::lines::{LINE, Line, Lines};
use crate::relay::{Agent, Watch, relay};
use kennel_core::{Error, Result, Sandbox, printable};
use kennel_types::ErrorCode;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::pin::pin;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// The buffer between the client and the relay.
const BUFFER: usize = 64 * 1024;
/// ACP's code for a missing login.
const AUTHENTICATION_REQUIRED: i64 = -32000;
/// JSON-RPC's code for an unknown method.
const NO_METHOD: i64 = -32601;

/// What an agent is asked to do.
#[derive(Clone, Debug)]
pub struct Prompt {
    /// The working directory inside.
    pub directory: String,
    /// The message.
    pub text: String,
}

/// A request of an agent for permission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permission {
    /// What the agent wants to do.
    pub title: String,
    /// The kind of tool: `read`, `edit`, `delete`, `move`, `search`, `execute`, `think`, `fetch`, or `other`.
    pub kind: String,
}

/// The decision on a request for permission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// Allow it, this time.
    Allow,
    /// Refuse it, this time.
    Deny,
}

/// Whoever follows a turn.
pub trait Audience: Send + Sync {
    /// The agent reports this: the `update` of ACP's `session/update`. It is not escaped.
    fn update(&self, update: Value) -> impl Future<Output = Result<()>> + Send;
    /// Decides on a request for permission.
    fn decide(&self, permission: &Permission) -> impl Future<Output = Result<Decision>> + Send;
}

/// Starts an agent in a sandbox, and plays one turn. Returns the reason for which the turn ended, such as `end_turn`. The turn
/// is cancelled when `cancel` is ready, and everything ends at once when `end` is.
pub async fn turn(
    sandbox: &Sandbox,
    agent: &Agent,
    prompt: &Prompt,
    audience: &impl Audience,
    watch: &dyn Watch,
    cancel: impl Future<Output = ()> + Send,
    end: impl Future<Output = ()> + Send,
) -> Result<String> {
    let (near, far) = tokio::io::duplex(BUFFER);
    let (from_client, to_client) = tokio::io::split(far);
    let (from_agent, to_agent) = tokio::io::split(near);
    let client = Client { lines: Lines::new(LINE), from_agent, to_agent, audience };
    // The client closes its side at its end, and then the relay ends.
    let (relayed, played) =
        tokio::join!(relay(sandbox, agent, from_client, to_client, watch, end), client.play(prompt, cancel));
    match (relayed, played) {
        (_, Ok(reason)) => Ok(reason),
        // The agent's failure is the reason for that of the turn.
        (Err(error), Err(_)) | (Ok(_), Err(error)) => Err(error),
    }
}

struct Client<'a, R, W, A> {
    lines: Lines,
    from_agent: R,
    to_agent: W,
    audience: &'a A,
}

/// A message of the agent.
#[derive(Deserialize)]
struct Message {
    #[serde(default)]
    params: Value,
    result: Option<Value>,
    error: Option<Problem>,
}

#[derive(Deserialize)]
struct Problem {
    #[serde(default)]
    code: i64,
    #[serde(default)]
    message: String,
}

impl<R: AsyncRead + Unpin + Send, W: AsyncWrite + Unpin + Send, A: Audience> Client<'_, R, W, A> {
    async fn play(mut self, prompt: &Prompt, cancel: impl Future<Output = ()> + Send) -> Result<String> {
        let mut cancel = pin!(cancel);
        let about = json!({ "name": "kennel", "version": env!("CARGO_PKG_VERSION") });
        let params = json!({ "protocolVersion": 1, "clientInfo": about, "clientCapabilities": {} });
        self.call(0, "initialize", params, None, &mut cancel).await?;
        let params = json!({ "cwd": prompt.directory, "mcpServers": [] });
        let opened = self.call(1, "session/new", params, None, &mut cancel).await?;
        let Some(session) = opened["sessionId"].as_str().map(ToOwned::to_owned) else {
            return Err(Error::new(ErrorCode::ExecFailed, "the agent opened a session without an id"));
        };
        let text = json!([{ "type": "text", "text": prompt.text }]);
        let params = json!({ "sessionId": session, "prompt": text });
        let ended = self.call(2, "session/prompt", params, Some(&session), &mut cancel).await?;
        Ok(ended["stopReason"].as_str().unwrap_or("unknown").to_owned())
    }

    /// Sends a request, and handles everything that arrives until its response. If `session` is given, that session is
    /// cancelled when `cancel` is ready; otherwise, the call fails.
    async fn call<C: Future<Output = ()> + Send>(
        &mut self,
        id: u32,
        method: &str,
        params: Value,
        session: Option<&str>,
        cancel: &mut std::pin::Pin<&mut C>,
    ) -> Result<Value> {
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })).await?;
        let own = id.to_string();
        let mut cancelled = false;
        loop {
            let line = tokio::select! {
                line = self.receive() => line?,
                () = &mut *cancel, if !cancelled => {
                    cancelled = true;
                    let Some(session) = session else {
                        return Err(Error::new(ErrorCode::Aborted, "cancelled before the turn began"));
                    };
                    let params = json!({ "sessionId": session });
                    self.send(&json!({ "jsonrpc": "2.0", "method": "session/cancel", "params": params })).await?;
                    continue;
                }
            };
            // The relay has checked that it is one message.
            let Ok(envelope) = Envelope::read(&line) else { continue };
            let Ok(message) = serde_json::from_slice::<Message>(&line) else { continue };
            match (envelope.method.as_deref(), &envelope.id) {
                (None, Some(id)) if *id == own => return answer(method, message),
                (Some("session/update"), None) => {
                    let mut params = message.params;
                    let update = params.get_mut("update").map(Value::take).unwrap_or_default();
                    self.audience.update(update).await?;
                }
                (Some("session/request_permission"), Some(id)) => {
                    let outcome = if cancelled {
                        json!({ "outcome": "cancelled" })
                    } else {
                        tokio::select! {
                            outcome = permit(self.audience, &message.params) => outcome?,
                            () = &mut *cancel => {
                                cancelled = true;
                                let params = json!({ "sessionId": session });
                                let notice = json!({ "jsonrpc": "2.0", "method": "session/cancel", "params": params });
                                self.send(&notice).await?;
                                json!({ "outcome": "cancelled" })
                            }
                        }
                    };
                    self.respond(id, "result", &json!({ "outcome": outcome })).await?;
                }
                (Some(method), Some(id)) => {
                    let problem = json!({ "code": NO_METHOD, "message": format!("unknown method {method:?}") });
                    self.respond(id, "error", &problem).await?;
                }
                _ => {}
            }
        }
    }

    async fn respond(&mut self, id: &str, key: &str, value: &Value) -> Result<()> {
        self.write(&format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"{key}\":{value}}}\n")).await
    }

    async fn send(&mut self, message: &Value) -> Result<()> {
        self.write(&format!("{message}\n")).await
    }

    async fn write(&mut self, line: &str) -> Result<()> {
        self.to_agent.write_all(line.as_bytes()).await.map_err(|error| Error::io("send a message to the agent", error))
    }

    /// Returns the next message.
    async fn receive(&mut self) -> Result<Vec<u8>> {
        let mut buffer = vec![0; BUFFER];
        loop {
            match self.lines.next() {
                Some(Line::Message(line)) => return Ok(line),
                Some(Line::TooLong(_)) => continue,
                None => {}
            }
            let count = self.from_agent.read(&mut buffer).await.unwrap_or(0);
            if count == 0 {
                return Err(Error::new(ErrorCode::Aborted, "the agent ended before the turn did"));
            }
            self.lines.push(&buffer[..count]);
        }
    }
}

fn answer(method: &str, message: Message) -> Result<Value> {
    let Some(problem) = message.error else { return Ok(message.result.unwrap_or_default()) };
    let text = format!("{method}: the agent replied with error {}: {}", problem.code, printable(&problem.message));
    if problem.code == AUTHENTICATION_REQUIRED {
        return Err(Error::new(ErrorCode::PermissionDenied, text)
            .advise("log in to the agent inside its sandbox, or pass its key in a variable"));
    }
    Err(Error::new(ErrorCode::ExecFailed, text))
}

/// Returns the outcome of a request for permission.
async fn permit(audience: &impl Audience, params: &Value) -> Result<Value> {
    let call = &params["toolCall"];
    let text = |value: &Value, otherwise: &str| value.as_str().unwrap_or(otherwise).to_owned();
    let permission = Permission { title: text(&call["title"], "a tool call"), kind: text(&call["kind"], "other") };
    let decision = audience.decide(&permission).await?;
    // A decision holds for this request. An agent that offers no such choice gets none.
    let kinds: &[&str] = match decision {
        Decision::Allow => &["allow_once"],
        Decision::Deny => &["reject_once", "reject_always"],
    };
    let options = params["options"].as_array().map(Vec::as_slice).unwrap_or_default();
    let chosen = kinds.iter().find_map(|kind| options.iter().find(|option| option["kind"] == *kind));
    Ok(match chosen {
        Some(option) => json!({ "outcome": "selected", "optionId": option["optionId"] }),
        None => json!({ "outcome": "cancelled" }),
    })
}
