//! The use of the library, as the README shows it.
#![expect(clippy::print_stdout, reason = "an example prints what it found")]

use kennel_core::{RUN_OUTPUT_CAP, RemoveOptions, Result, Sandbox, WriteOptions};
use kennel_engine::{Engine, Settings};
use kennel_types::{ExecSpec, NetworkMode, SandboxSpec};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let engine = Engine::below("/var/lib/example");
    let choice = engine.choose(&mut Settings::default(), None).await?;
    let spec = SandboxSpec { network: Some(NetworkMode::None), ..SandboxSpec::default() };
    let sandbox = Sandbox::create(choice.provider, &spec).await?;
    sandbox.start().await?;

    let files = sandbox.files(None).await?;
    files.write("/root/numbers", b"3\n1\n2\n", WriteOptions::default()).await?;
    let output = sandbox.run(&ExecSpec::argv(["sort", "/root/numbers"]), None, RUN_OUTPUT_CAP).await?;
    print!("{}", output.stdout_text());

    sandbox.remove(RemoveOptions { force: true, ..RemoveOptions::default() }).await
}
