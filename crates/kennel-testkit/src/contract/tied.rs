//! Tied sandboxes, which live as long as the connection of their creator.

use crate::inside::{code, ok};
use crate::{Stage, eventually, host};
use kennel_core::{Keeper, RemoveOptions};
use kennel_types::{EndCause, ErrorCode, ExecSpec, SandboxSpec, Status, Support};

fn tied(stage: &Stage) -> SandboxSpec {
    SandboxSpec { tied: true, ..stage.spec() }
}

/// A tied sandbox and all its processes end soon after the connection of its owner is cut.
pub async fn tied_sandbox_ends_with_its_owner(stage: &Stage) {
    let wire = stage.wire();
    let sandbox = kennel_core::Sandbox::create(wire.clone(), &tied(stage)).await.unwrap();
    stage.note(sandbox.id());
    sandbox.start().await.unwrap();
    let mut spec = ExecSpec { detached: true, ..ExecSpec::argv(["sleep", "1000"]) };
    let mark = stage.mark(&mut spec, "tied");
    let _exec = sandbox.exec(&spec).await.unwrap();
    if stage.mode().processes == Support::Given {
        eventually("its command runs", async || !host::marked(&mark).is_empty()).await;
    }
    wire.cut();
    eventually("its processes are gone", async || host::marked(&mark).is_empty()).await;
    let provider = stage.provider();
    eventually("it is gone", async || {
        provider.get(sandbox.id().as_str()).await.is_err_and(|error| error.code() == ErrorCode::NotFound)
    })
    .await;
    assert_eq!(provider.list().await.unwrap(), []);
}

/// A tied sandbox ends with its last command. Start, connection and command follow without a wait, as in `kennel run`.
pub async fn tied_sandbox_ends_with_its_last_command(stage: &Stage) {
    let sandbox = stage.create(&tied(stage)).await;
    let line = sandbox.launch().await.unwrap();
    let script = match stage.mode().processes {
        Support::Given => "nohup sleep 1000 >/dev/null 2>&1 & echo done; exit 3",
        Support::Refused => "echo done; exit 3",
    };
    let mut spec = ExecSpec { last: true, ..ExecSpec::shell(script) };
    let mark = stage.mark(&mut spec, "last");
    let output = sandbox.run(&spec, None, 100).await.unwrap();
    assert_eq!((output.status.code, output.stdout_text()), (Some(3), "done\n".to_owned()));
    line.closed().await;
    assert!(host::marked(&mark).is_empty(), "when the keeper closes the connection, nothing runs any more");
    sandbox.remove(RemoveOptions { volumes: true, force: true }).await.unwrap();
    drop(line);
    eventually("it is gone", async || sandbox.inspect().await.is_err()).await;
}

/// A tied sandbox ends if its creator disconnects before the handshake with the keeper.
pub async fn tied_sandbox_ends_if_its_owner_leaves_during_start(stage: &Stage) {
    let sandbox = stage.create(&tied(stage)).await;
    drop(sandbox.launch().await.unwrap());
    sandbox.hang_up().await;
    match sandbox.remove(RemoveOptions { volumes: true, force: true }).await {
        Err(error) if error.code() != ErrorCode::NotFound => panic!("{error}"),
        _ => {}
    }
    eventually("it is gone", async || sandbox.inspect().await.is_err()).await;
}

/// A tied sandbox keeps running when the connection of another client closes.
pub async fn tied_sandbox_survives_other_connections(stage: &Stage) {
    let sandbox = stage.started(&tied(stage)).await;
    assert_eq!(ok(&sandbox, "echo mine").await, "mine");
    let later = stage.again(stage.reopen(), &sandbox).await;
    assert_eq!(ok(&later, "echo theirs").await, "theirs");
    later.hang_up().await;
    drop(later);
    for _ in 0..20 {
        assert_eq!(ok(&sandbox, "echo mine").await, "mine");
    }
    sandbox.hang_up().await;
    eventually("it is gone", async || sandbox.inspect().await.is_err()).await;
    assert_eq!(code(sandbox.exec(&ExecSpec::argv(["true"])).await), ErrorCode::NotFound);
}

/// A running sandbox can be tied to a connection, and untied. A restart unties it.
pub async fn running_sandbox_is_tied_and_untied(stage: &Stage) {
    let sandbox = stage.running().await;
    let provider = stage.provider();
    let connect = async || Keeper::connect(provider.dial(sandbox.id()).await.unwrap()).await.unwrap();
    let keeper = connect().await;
    keeper.tie(true).await.unwrap();
    keeper.tie(false).await.unwrap();
    drop(keeper);
    assert_eq!(ok(&sandbox, "echo untied").await, "untied");

    let keeper = connect().await;
    keeper.tie(true).await.unwrap();
    sandbox.hang_up().await;
    drop(keeper);
    let is_stopped = async || sandbox.inspect().await.unwrap().status == Status::Stopped;
    eventually("it ends with the connection", is_stopped).await;
    assert_eq!(sandbox.inspect().await.unwrap().end_cause, Some(EndCause::OwnerGone));
    sandbox.start().await.unwrap();
    drop(connect().await);
    assert_eq!(ok(&sandbox, "echo again").await, "again");
}
