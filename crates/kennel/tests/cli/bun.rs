//! The tests of a real project in a profile: `bun test` with npm's `bun` package prints the same and ends with the same
//! exit code as outside. This runs only on native, which has this machine's libraries: bun needs glibc, and the test
//! image of engines has only a static busybox.

use crate::support::{Finished, Kennel, finish};
use kennel_testkit::bun;
use std::path::Path;
use std::process::{Command, Stdio};

const FILES: [(&str, &str); 4] = [
    (
        "package.json",
        r#"{ "name": "durations", "version": "1.0.0", "type": "module", "scripts": { "test": "bun test" } }"#,
    ),
    (
        "src/duration.ts",
        r"const units: Record<string, number> = { ms: 1, s: 1000, m: 60_000, h: 3_600_000 };

export function parse(text: string): number {
  const found = /^(\d+)(ms|s|m|h)$/.exec(text);
  if (!found) throw new TypeError(`not a duration: ${text}`);
  return Number(found[1]) * units[found[2]];
}

export function format(milliseconds: number): string {
  const fits = Object.entries(units).reverse().find(([, size]) => milliseconds % size === 0);
  return `${milliseconds / fits![1]}${fits![0]}`;
}
",
    ),
    (
        "src/duration.test.ts",
        r#"import { describe, expect, test } from "bun:test";
import { format, parse } from "./duration";

describe("parse", () => {
  test.each([["5ms", 5], ["30s", 30_000], ["2m", 120_000], ["1h", 3_600_000]])("%s", (text, expected) => {
    expect(parse(text)).toBe(expected);
  });
  test("refuses anything else", () => {
    expect(() => parse("soon")).toThrow("not a duration: soon");
  });
});

test("format reverses parse, often enough to be compiled", () => {
  for (let n = 1; n < 200_000; n++) {
    if (parse(format(n)) !== n) throw new Error(`${n}`);
  }
});
"#,
    ),
    (
        "src/runtime.test.ts",
        r#"import { expect, test } from "bun:test";
import { Database } from "bun:sqlite";
import { mkdtemp, rm } from "node:fs/promises";
import { join } from "node:path";

test("files are written to the project and read back", async () => {
  const dir = await mkdtemp(join(import.meta.dir, "scratch-"));
  await Bun.write(join(dir, "a.txt"), "kept");
  expect(await Bun.file(join(dir, "a.txt")).text()).toBe("kept");
  await rm(dir, { recursive: true });
});

test("a child process runs", async () => {
  const child = Bun.spawn(["sh", "-c", "echo from the child; exit 3"], { stdout: "pipe" });
  expect(await new Response(child.stdout).text()).toBe("from the child\n");
  expect(await child.exited).toBe(3);
});

test("a server is reached on loopback", async () => {
  using server = Bun.serve({ hostname: "127.0.0.1", port: 0, fetch: () => new Response("served") });
  expect(await (await fetch(server.url)).text()).toBe("served");
});

test("a worker thread answers", async () => {
  const source = "self.onmessage = (event) => postMessage(event.data * 2);";
  const worker = new Worker(URL.createObjectURL(new Blob([source])));
  const answer = new Promise((resolve) => (worker.onmessage = (event) => resolve(event.data)));
  worker.postMessage(21);
  expect(await answer).toBe(42);
  worker.terminate();
});

test("a database in memory works", () => {
  const database = new Database(":memory:");
  expect(database.query("select 6 * 7 as answer").get()).toEqual({ answer: 42 });
});
"#,
    ),
];

const BROKEN: &str = r#"import { expect, test } from "bun:test";
import { parse } from "./duration";

test("holds", () => expect(parse("1s")).toBe(1000));
test("does not hold", () => expect(parse("1s")).toBe(1));
"#;

#[test]
fn bun_test_in_a_profile_prints_the_same_as_outside() {
    let package = bun::directory();
    assert!(bun::is_installed(), "npm's bun is not in {}: cargo xtask test installs it", package.display());
    let kennel = Kennel::on("native");
    for (path, text) in FILES {
        write(&kennel.here().join(path), text);
    }
    let volume = format!("{}:/opt/bun:ro", package.display());
    let path = format!("PATH=/opt/bun/{}:/usr/bin:/bin", bun::PROGRAMS);
    let options = ["--network", "none", "-v", &volume, "-e", &path, "-e", "HOME=/tmp"];
    assert_eq!(kennel.kennel(&[&["profile", "create", "bun"], &options[..]].concat()).ok(), "bun");

    let (inside, outside) = (test_inside(&kennel), test_outside(&kennel, &package));
    assert_eq!(told(&inside, &kennel), told(&outside, &kennel));
    assert_eq!(inside.status, 0, "{inside:?}");
    assert!(inside.stderr.contains("\n 11 pass\n 0 fail\n"), "{inside:?}");

    write(&kennel.here().join("src/broken.test.ts"), BROKEN);
    let (inside, outside) = (test_inside(&kennel), test_outside(&kennel, &package));
    assert_eq!(told(&inside, &kennel), told(&outside, &kennel));
    assert_eq!(inside.status, 1, "{inside:?}");
    assert!(inside.stderr.contains("(fail) does not hold") && inside.stderr.contains("\n 12 pass\n 1 fail\n"));

    kennel.kennel(&["profile", "delete", "--force", "--volumes", "bun"]).ok();
}

fn test_inside(kennel: &Kennel) -> Finished {
    kennel.kennel(&["profile", "exec", "bun", "--", "bun", "test"])
}

fn test_outside(kennel: &Kennel, package: &Path) -> Finished {
    let mut command = Command::new(package.join(bun::PROGRAMS).join("bun"));
    command.arg("test").current_dir(kennel.here()).env_clear().stdin(Stdio::null());
    command.env("PATH", "/usr/bin:/bin").env("HOME", kennel.home.path());
    finish(command, None)
}

/// The exit code and output of a run, without durations and paths. The order of files may differ.
fn told(run: &Finished, kennel: &Kennel) -> (i32, String, Vec<String>) {
    let here = kennel.here();
    let line = |line: &str| {
        let (said, rest) = line.rsplit_once(" [").unwrap_or((line, ""));
        let said = if rest.ends_with("ms]") || rest.ends_with("s]") { said } else { line };
        said.replace(here.to_str().expect("a path that is text"), "/workspace")
    };
    let mut lines: Vec<String> = run.stderr.lines().map(line).collect();
    lines.sort();
    (run.status, run.text(), lines)
}

fn write(path: &Path, text: &str) {
    std::fs::create_dir_all(path.parent().expect("a file is in a directory")).expect("make a directory");
    std::fs::write(path, text).expect("write a file of the project");
}
