//! Commands on a terminal, and someone who types.

use crate::Stage;
use crate::inside::{SIZE, Typist, code, run};
use kennel_core::Position;
use kennel_types::{Command, ErrorCode, ExecSpec, Support, TermSize};

/// Whether there are terminals. Where there are none, asking for one must be refused.
async fn has_terminals(stage: &Stage) -> bool {
    if stage.mode().processes == Support::Given {
        return true;
    }
    let sandbox = stage.running().await;
    let spec = ExecSpec { tty: Some(SIZE), ..ExecSpec::argv(["cat"]) };
    assert_eq!(code(sandbox.exec(&spec).await), ErrorCode::Unsupported);
    assert_eq!(code(sandbox.exec(&ExecSpec::new(Command::LoginShell)).await), ErrorCode::Unsupported);
    false
}

fn shell() -> ExecSpec {
    let mut spec = ExecSpec::argv(["sh", "-i"]);
    spec.env.insert("PS1".into(), "ready> ".into());
    spec
}

/// All three descriptors, and the size that was asked for. Without one there is none.
pub async fn it_is_a_terminal_of_its_size(stage: &Stage) {
    if !has_terminals(stage).await {
        return;
    }
    let sandbox = stage.running().await;
    let script = "test -t 0 && test -t 1 && test -t 2 && echo all; stty size; exit 4";
    let mut typist = Typist::start(&sandbox, ExecSpec::shell(script)).await;
    typist.sees("all\r\n24 80\r\n").await;
    assert_eq!(typist.leaves().await.code, Some(4));
    let none = ExecSpec::shell("test -t 0 || test -t 1 || test -t 2 || echo none");
    assert_eq!(run(&sandbox, &none).await.stdout_text(), "none\n");
}

/// By who asks, and by who is signalled.
pub async fn a_new_size_is_seen(stage: &Stage) {
    if !has_terminals(stage).await {
        return;
    }
    let sandbox = stage.running().await;
    let script = "trap 'stty size; exit 3' WINCH; echo ready; while :; do sleep 0.1; done";
    let mut typist = Typist::start(&sandbox, ExecSpec::shell(script)).await;
    typist.sees("ready\r\n").await;
    typist.exec.resize(TermSize { rows: 50, cols: 132 });
    typist.sees("50 132\r\n").await;
    assert_eq!(typist.leaves().await.code, Some(3));
}

/// The command in front, not the shell.
pub async fn control_c_interrupts(stage: &Stage) {
    if !has_terminals(stage).await {
        return;
    }
    let sandbox = stage.running().await;
    let sleep = Typist::start(&sandbox, ExecSpec::argv(["sleep", "1000"])).await;
    sleep.types("\x03").await;
    assert_eq!(sleep.leaves().await.signal, Some(2));

    let mut typist = Typist::start(&sandbox, shell()).await;
    typist.sees("ready> ").await;
    // Printed by the command itself: by then the terminal is its own.
    typist.types("sh -c 'echo be\\gun; exec sleep 1000'\n").await;
    typist.sees("begun\r\n").await;
    typist.types("\x03").await;
    typist.sees("ready> ").await;
    typist.types("echo status $?\n").await;
    typist.sees("status 130\r\n").await;
}

/// Job control, and the end of input.
pub async fn control_z_stops_and_control_d_ends(stage: &Stage) {
    if !has_terminals(stage).await {
        return;
    }
    let sandbox = stage.running().await;
    let mut typist = Typist::start(&sandbox, shell()).await;
    typist.sees("ready> ").await;
    // A shell that edits lines does not let the terminal echo: only once the command runs is it clear who does.
    typist.types("echo be\\gin; cat\n").await;
    typist.sees("begin\r\n").await;
    typist.types("said\\ twice\n").await;
    typist.sees("said\\ twice\r\nsaid\\ twice\r\n").await;
    typist.types("\x1a").await;
    typist.sees("ready> ").await;
    typist.types("jobs\n").await;
    typist.sees("Stopped").await;
    typist.sees("ready> ").await;
    typist.types("fg\n").await;
    typist.sees("cat").await;
    typist.types("in front\n").await;
    typist.sees("in front\r\nin front\r\n").await;
    typist.types("\x04").await;
    typist.sees("ready> ").await;
    typist.types("\x04").await;
    assert!(typist.leaves().await.success());
}

/// Whatever shell there is.
pub async fn a_login_shell_is_found(stage: &Stage) {
    if !has_terminals(stage).await {
        return;
    }
    let sandbox = stage.running().await;
    let mut typist = Typist::start(&sandbox, ExecSpec::new(Command::LoginShell)).await;
    typist.types("echo sum is $((20 + 22)); exit 8\n").await;
    typist.sees("sum is 42\r\n").await;
    assert_eq!(typist.leaves().await.code, Some(8));
    // What keeps users out is no shell, whoever says so.
    for no_shell in ["/bin/false", "/usr/bin/false", "/usr/sbin/nologin", "/sbin/nologin", "/bin/true", "/not/there"] {
        let mut spec = ExecSpec::new(Command::LoginShell);
        spec.env.insert("SHELL".into(), no_shell.into());
        let mut typist = Typist::start(&sandbox, spec).await;
        typist.types("echo sum is $((20 + 22)); exit 8\n").await;
        typist.sees("sum is 42\r\n").await;
        assert_eq!(typist.leaves().await.code, Some(8), "{no_shell}");
    }
}

/// The shell is the same, and so is what it printed meanwhile.
pub async fn a_dropped_terminal_is_found_again(stage: &Stage) {
    if !has_terminals(stage).await {
        return;
    }
    let sandbox = stage.running().await;
    let wire = stage.wire();
    let wired = stage.again(wire.clone(), &sandbox).await;
    let mut typist = Typist::start(&wired, ExecSpec { detached: true, ..shell() }).await;
    typist.sees("ready> ").await;
    typist.types("kept=treasure; echo no\\ted\n").await;
    typist.sees("noted\r\n").await;
    let (process, position) = (typist.exec.process(), typist.exec.position());
    typist.types("sleep 0.3; echo mean\\while\n").await;
    typist.sees("sleep").await;
    let position = Position { stdout: position.stdout.max(typist.exec.position().stdout), ..position };
    wire.cut();
    drop(typist);
    let size = TermSize { rows: 30, cols: 90 };
    let mut typist = Typist::new(sandbox.attach(process, position, Some(size)).await.unwrap());
    assert_eq!(typist.exec.lost(), 0);
    typist.sees("meanwhile\r\n").await;
    typist.types("echo $kept; stty size\n").await;
    typist.sees("treasure\r\n30 90\r\n").await;
}
