//! Commands on a terminal.

use crate::Stage;
use crate::inside::{SIZE, Typist, code, run};
use kennel_core::Position;
use kennel_types::{Command, ErrorCode, ExecSpec, Support, TermSize};

/// Whether the mode supports terminals. If not, a request for one must be refused.
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

/// With a terminal, all three standard streams are a terminal of the requested size. Otherwise none is.
pub async fn terminal_has_the_requested_size(stage: &Stage) {
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

/// A program on a resized terminal gets SIGWINCH, and reads the new size.
pub async fn terminal_resize_is_seen(stage: &Stage) {
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

/// Ctrl-C interrupts the foreground command, not the shell.
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
    // The command itself prints this, so it is in the foreground by then.
    typist.types("sh -c 'echo be\\gun; exec sleep 1000'\n").await;
    typist.sees("begun\r\n").await;
    typist.types("\x03").await;
    typist.sees("ready> ").await;
    typist.types("echo status $?\n").await;
    typist.sees("status 130\r\n").await;
}

/// Ctrl-Z stops the foreground command, and Ctrl-D ends the input.
pub async fn control_z_stops_and_control_d_ends(stage: &Stage) {
    if !has_terminals(stage).await {
        return;
    }
    let sandbox = stage.running().await;
    let mut typist = Typist::start(&sandbox, shell()).await;
    typist.sees("ready> ").await;
    // A shell with line editing turns off the terminal's echo. Wait until the command runs, when the terminal echoes.
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

/// A login shell starts, whatever shell the sandbox has.
pub async fn login_shell_starts(stage: &Stage) {
    if !has_terminals(stage).await {
        return;
    }
    let sandbox = stage.running().await;
    let mut typist = Typist::start(&sandbox, ExecSpec::new(Command::LoginShell)).await;
    typist.types("echo sum is $((20 + 22)); exit 8\n").await;
    typist.sees("sum is 42\r\n").await;
    assert_eq!(typist.leaves().await.code, Some(8));
    // Programs that keep users out are never used as a shell, even if `SHELL` names them.
    for no_shell in ["/bin/false", "/usr/bin/false", "/usr/sbin/nologin", "/sbin/nologin", "/bin/true", "/not/there"] {
        let mut spec = ExecSpec::new(Command::LoginShell);
        spec.env.insert("SHELL".into(), no_shell.into());
        let mut typist = Typist::start(&sandbox, spec).await;
        typist.types("echo sum is $((20 + 22)); exit 8\n").await;
        typist.sees("sum is 42\r\n").await;
        assert_eq!(typist.leaves().await.code, Some(8), "{no_shell}");
    }
}

/// After a cut connection, a client attaches to the same shell again, and sees its output of the meantime.
pub async fn terminal_is_reattached_after_a_cut_connection(stage: &Stage) {
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
