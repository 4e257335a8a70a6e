//! Measures reading and writing a large file through the keeper, compared with `cp` of the file in the same sandbox.

use super::Effort;
use super::environment::BenchEnvironment;
use super::row::Row;
use super::sample::{once, take_turns};
use anyhow::{Result, bail};
use kennel_core::{Sandbox, WriteOptions};
use kennel_types::ExecSpec;

const SIZE: usize = 64 * 1024 * 1024;
const FILE: &str = "/tmp/file";
const COPY: &str = "/tmp/copy";

/// Writes, reads and copies a large file, in turns.
pub(super) fn large(environment: &BenchEnvironment, effort: Effort) -> Result<Vec<Row>> {
    let sandbox = environment.sandbox(environment.native(), None)?;
    let content = noise();
    environment.wait(write(&sandbox, FILE, &content))?;
    if environment.wait(async { sandbox.files(None).await?.read(FILE, SIZE).await })? != content {
        bail!("the file came back changed");
    }
    let write = || environment.wait(write(&sandbox, "/tmp/written", &content));
    let read = || {
        let bytes = environment.wait(read(&sandbox))?;
        if bytes == SIZE { Ok(()) } else { bail!("{bytes} bytes were read instead of {SIZE}") }
    };
    let copy = || {
        let output = environment.wait(sandbox.run(&ExecSpec::argv(["cp", FILE, COPY]), None, 1024))?;
        if output.status.success() { Ok(()) } else { bail!("cp failed: {}", output.stderr_text()) }
    };
    let [written, read, copied] = take_turns(effort.times(12), [once(write), once(read), once(copy)])?;
    environment.remove(&sandbox)?;
    Ok(vec![
        Row::times("64 MiB written by a file call (native)", &written, "cp inside", &copied).at_least_one_in(3.0),
        Row::times("64 MiB read by a file call (native)", &read, "cp inside", &copied).at_least_one_in(3.0),
    ])
}

async fn write(sandbox: &Sandbox, path: &str, content: &[u8]) -> kennel_core::Result<()> {
    sandbox.files(None).await?.write(path, content, WriteOptions::default()).await
}

/// Reads the file in chunks and keeps nothing, like a program that passes it on. Returns its size.
async fn read(sandbox: &Sandbox) -> kennel_core::Result<usize> {
    let mut reader = sandbox.files(None).await?.open(FILE, 0, None).await?;
    let mut count = 0;
    while let Some(bytes) = reader.chunk().await? {
        count += bytes.len();
    }
    Ok(count)
}

/// Returns bytes that cannot be compressed or stored as a hole.
fn noise() -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let words = (0..SIZE / 8).flat_map(|_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    words.collect()
}
