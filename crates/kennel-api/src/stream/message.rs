//! Text messages: JSON with the kind in `type`.

use super::StreamChannel;
use crate::{ApiError, Millis, TerminalSize};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A text message of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
pub enum ClientMessage {
    /// The first message: start a command.
    Start(StreamStart),
    /// The first message: attach to a command that runs, or has ended and is still known.
    Attach(StreamAttach),
    /// The terminal has a new size.
    Resize {
        /// Rows of text.
        rows: u16,
        /// Columns of text.
        cols: u16,
    },
    /// Send a signal to the command's process group.
    Signal {
        /// The number of the signal, 1 to 64.
        signal: i32,
    },
    /// The client has all bytes of an output channel before this offset. They will not be sent again, and the server may
    /// send as many more.
    Ack {
        /// `stdout` or `stderr`.
        channel: StreamChannel,
        /// The offset.
        offset: u64,
    },
    /// Standard input ends at this offset: the command reads end of file.
    Eof {
        /// The number of bytes of standard input.
        offset: u64,
    },
}

/// A command to start. Exactly one of `argv` and `shell` is given, or neither for an interactive shell on a terminal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct StreamStart {
    /// The program and its arguments, executed directly.
    pub argv: Option<Vec<String>>,
    /// A script for the sandbox's shell.
    pub shell: Option<String>,
    /// Variables that are added to the sandbox's environment.
    pub env: BTreeMap<String, String>,
    /// The working directory; defaults to that of the sandbox.
    pub cwd: Option<String>,
    /// The user: `name`, `uid`, `name:group` or `uid:gid`. Defaults to that of the sandbox.
    pub user: Option<String>,
    /// Run the command on a terminal of this size.
    pub tty: Option<TerminalSize>,
    /// Whether the client sends standard input. Otherwise the command reads end of file at once. A terminal has input.
    pub stdin: bool,
    /// The time after which the whole process tree is ended. There is no limit by default.
    pub timeout: Option<Millis>,
    /// A text of at most 256 bytes. The list of processes returns it.
    pub tag: Option<String>,
    /// Whether the command waits while nobody reads its output. Otherwise the oldest output beyond 256 KiB of each channel
    /// is lost.
    pub hold: bool,
    /// Whether the command ends when the connection is closed. Otherwise it continues, and can be attached again.
    pub end_on_close: bool,
}

/// A command to attach to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct StreamAttach {
    /// The id of the command, from `started` or the list of processes.
    pub process: u64,
    /// How much of standard output the client has. Without it, output starts at the oldest byte that is stored.
    pub stdout: Option<u64>,
    /// How much of standard error the client has. Without it, output starts at the oldest byte that is stored.
    pub stderr: Option<u64>,
    /// The size of the client's terminal.
    pub tty: Option<TerminalSize>,
    /// Whether the client writes standard input. Only one client at a time can; a second one gets the error `conflict`.
    pub write: bool,
    /// With `write`: closes the connection of the client that writes now. For a client whose own connection was lost.
    pub take_over: bool,
    /// What happens when the client is slower than the command. By default, the command waits for a client that writes,
    /// and other clients miss output.
    pub lag: Option<Lag>,
}

/// What happens when a client is slower than the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Lag {
    /// The command waits.
    Wait,
    /// The client misses the oldest output, and is told how much.
    Miss,
}

/// A text message of the server. A client in Rust may read the error as another type, for example
/// `serde_json::Value`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum ServerMessage<E = ApiError> {
    /// The command runs.
    Started {
        /// Its id, for a later `attach`.
        process: u64,
        /// Whether it runs on a terminal.
        tty: bool,
    },
    /// The client is attached to the command. Output continues at these offsets, after any `lost` messages.
    Attached {
        /// The id of the command.
        process: u64,
        /// Whether it runs on a terminal.
        tty: bool,
        /// The offset of the next byte of standard output.
        stdout: u64,
        /// The offset of the next byte of standard error.
        stderr: u64,
        /// How much of standard input was taken: the client sends it again from here. Only for a client that writes.
        stdin_taken: Option<u64>,
        /// Whether standard input has ended already. Only for a client that writes.
        stdin_closed: Option<bool>,
    },
    /// The command has taken all bytes of standard input before this offset. The client need not keep them.
    Ack {
        /// `stdin`.
        channel: StreamChannel,
        /// The offset.
        offset: u64,
    },
    /// Output that the client has not received is lost.
    Lost {
        /// `stdout` or `stderr`.
        channel: StreamChannel,
        /// The offset of the first lost byte.
        offset: u64,
        /// The number of lost bytes.
        bytes: u64,
    },
    /// The command ended, and all its output was sent. The server closes the connection.
    Exit {
        /// The exit code that a shell would show: the command's own, 124 for a timeout, 128+n for signal n.
        exit_code: i32,
        /// The signal that ended the command.
        signal: Option<i32>,
        /// Whether it timed out.
        timed_out: bool,
        /// Whether it was killed because memory ran out.
        oom_killed: bool,
    },
    /// The server cannot continue, and closes the connection.
    Error {
        /// What went wrong.
        error: E,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn client() -> impl Strategy<Value = ClientMessage> {
        let start = (
            proptest::option::of(prop::collection::vec(".{0,5}", 0..3)),
            proptest::option::of(".{0,9}"),
            any::<[bool; 3]>(),
            proptest::option::of(0..1_000_000_u64),
            proptest::option::of((any::<u16>(), any::<u16>())),
        );
        let start = start.prop_map(|(argv, shell, [stdin, hold, end_on_close], timeout, size)| {
            let tty = size.map(|(rows, cols)| TerminalSize { rows, cols });
            let timeout = timeout.map(Millis);
            ClientMessage::Start(StreamStart {
                argv,
                shell,
                tty,
                stdin,
                timeout,
                hold,
                end_on_close,
                ..StreamStart::default()
            })
        });
        let attach = (any::<u64>(), proptest::option::of(any::<u64>()), any::<bool>());
        let attach = attach.prop_map(|(process, stdout, write)| {
            ClientMessage::Attach(StreamAttach { process, stdout, write, ..StreamAttach::default() })
        });
        prop_oneof![
            start,
            attach,
            (any::<u16>(), any::<u16>()).prop_map(|(rows, cols)| ClientMessage::Resize { rows, cols }),
            any::<i32>().prop_map(|signal| ClientMessage::Signal { signal }),
            any::<u64>().prop_map(|offset| ClientMessage::Ack { channel: StreamChannel::Stderr, offset }),
            any::<u64>().prop_map(|offset| ClientMessage::Eof { offset }),
        ]
    }

    fn server() -> impl Strategy<Value = ServerMessage<Value>> {
        prop_oneof![
            (any::<u64>(), any::<bool>()).prop_map(|(process, tty)| ServerMessage::Started { process, tty }),
            (any::<[u64; 3]>(), proptest::option::of(any::<u64>())).prop_map(
                |([process, stdout, stderr], stdin_taken)| ServerMessage::Attached {
                    process,
                    tty: false,
                    stdout,
                    stderr,
                    stdin_taken,
                    stdin_closed: None,
                }
            ),
            any::<[u64; 2]>().prop_map(|[offset, bytes]| ServerMessage::Lost {
                channel: StreamChannel::Stdout,
                offset,
                bytes
            }),
            any::<i32>().prop_map(|exit_code| ServerMessage::Exit {
                exit_code,
                signal: None,
                timed_out: false,
                oom_killed: true
            }),
            ".*".prop_map(|text| ServerMessage::Error { error: json!({"message": text}) }),
        ]
    }

    proptest! {
        #[test]
        fn messages_of_clients_are_decoded_as_they_were_encoded(message in client()) {
            let text = serde_json::to_string(&message).unwrap();
            prop_assert_eq!(serde_json::from_str::<ClientMessage>(&text).unwrap(), message);
        }

        #[test]
        fn messages_of_the_server_are_decoded_as_they_were_encoded(message in server()) {
            let text = serde_json::to_string(&message).unwrap();
            prop_assert_eq!(serde_json::from_str::<ServerMessage<Value>>(&text).unwrap(), message);
        }

        #[test]
        fn any_text_is_a_message_or_an_error(text in ".*") {
            let _ = serde_json::from_str::<ClientMessage>(&text);
        }
    }

    #[test]
    fn unknown_fields_and_kinds_are_refused_by_name() {
        let error = |value: Value| serde_json::from_value::<ClientMessage>(value).unwrap_err().to_string();
        assert!(error(json!({"type": "ack", "channel": "stdout", "offset": 1, "extra": 2})).contains("extra"));
        assert!(error(json!({"type": "start", "argv": ["a"], "comand": 1})).contains("comand"));
        assert!(error(json!({"type": "attach", "process": 1, "stdot": 1})).contains("stdot"));
        assert!(error(json!({"type": "dance"})).contains("dance"));
    }

    #[test]
    fn messages_look_as_documented() {
        let message = ClientMessage::Ack { channel: StreamChannel::Stdout, offset: 7 };
        assert_eq!(serde_json::to_value(&message).unwrap(), json!({"type": "ack", "channel": "stdout", "offset": 7}));
        let start: ClientMessage =
            serde_json::from_value(json!({"type": "start", "shell": "top", "tty": {"rows": 24, "cols": 80}})).unwrap();
        let tty = Some(TerminalSize { rows: 24, cols: 80 });
        let expected = StreamStart { shell: Some("top".into()), tty, ..StreamStart::default() };
        assert_eq!(start, ClientMessage::Start(expected));
        let exit: ServerMessage =
            ServerMessage::Exit { exit_code: 0, signal: None, timed_out: false, oom_killed: false };
        let value = serde_json::to_value(&exit).unwrap();
        assert_eq!(
            value,
            json!({"type": "exit", "exitCode": 0, "signal": null, "timedOut": false, "oomKilled": false})
        );
    }
}
