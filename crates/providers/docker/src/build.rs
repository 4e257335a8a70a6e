//! Building images: the directory is packed as it is sent, without what its `.dockerignore` names, and what the engine says is
//! passed on line by line.

use crate::Docker;
use crate::create::image_name;
use crate::dockerfile;
use crate::logins::packed;
use crate::streams::each_line;
use globset::{Glob, GlobBuilder, GlobMatcher};
use hyper::body::Bytes;
use hyper::header::CONTENT_TYPE;
use kennel_core::{Error, ImageBuild, Result, printable};
use kennel_types::ErrorCode;
use serde::Deserialize;
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use tokio::sync::mpsc;

/// What an engine takes the logins of several registries in.
const LOGINS: &str = "X-Registry-Config";

/// The longest file that says how an image is built.
const LONGEST: u64 = 16 << 20;

/// What a file of another directory is called on its way.
const FOREIGN: &str = ".kennel-Dockerfile";

impl Docker {
    /// Has the engine build an image.
    pub(crate) async fn build(&self, build: &ImageBuild, tell: &(dyn Fn(String) + Sync)) -> Result<()> {
        image_name(&build.tag)?;
        let context = Context::read(build)?;
        self.engine.api().await?;
        let path = format!("/build?{}", query(build, &context.file));
        let what = || format!("build the image {}", build.tag);
        let mut request = hyper::Request::post(path).header(CONTENT_TYPE, "application/x-tar");
        let images = dockerfile::images(&context.text()?, &build.args);
        if let Some(logins) = self.logins(images, tell).await? {
            request = request.header(LOGINS, packed(&logins));
        }
        let request = request.body(bollard::body_try_stream(context.pack()));
        let request = request.map_err(|error| self.engine.error(what(), error.into()))?;
        let answer = self.engine.post(request).await;
        let answer = answer.map_err(|error| self.engine.error(what(), error))?;
        let mut step = None;
        each_line(&self.engine, &what(), answer, |line| {
            hear(line, &mut step, tell).map_err(|why| failed(&what(), step.as_deref(), &why))
        })
        .await
    }
}

/// Takes what the engine says: a line to pass on, or why it gave up.
fn hear(line: &[u8], step: &mut Option<String>, tell: &(dyn Fn(String) + Sync)) -> Result<(), String> {
    #[derive(Deserialize)]
    struct Said {
        stream: Option<String>,
        status: Option<String>,
        error: Option<String>,
    }
    let Ok(said) = serde_json::from_slice::<Said>(line) else { return Ok(()) };
    if let Some(error) = said.error {
        return Err(error);
    }
    for line in said.stream.or(said.status).unwrap_or_default().lines().filter(|line| !line.is_empty()) {
        // Docker's word, and Podman's.
        if let Some(rest) = line.strip_prefix("Step ").or_else(|| line.strip_prefix("STEP ")) {
            *step = Some(printable(rest));
        }
        tell(printable(line));
    }
    Ok(())
}

fn failed(what: &str, step: Option<&str>, why: &str) -> Error {
    let step = step.map(|step| format!(" at step {step}")).unwrap_or_default();
    let message = format!("{what}: it failed{step}: {}", printable(why.trim()));
    Error::new(ErrorCode::ExecFailed, message).hint("see what it said before that; each step runs in a fresh container")
}

fn query(build: &ImageBuild, file: &str) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.append_pair("t", &build.tag).append_pair("dockerfile", file).append_pair("rm", "true");
    // Also where a step fails.
    query.append_pair("forcerm", "true");
    if build.no_cache {
        query.append_pair("nocache", "true");
    }
    if build.pull {
        query.append_pair("pull", "true");
    }
    if !build.args.is_empty() {
        query.append_pair("buildargs", &serde_json::json!(build.args).to_string());
    }
    if let Some(memory) = build.limits.memory {
        query.append_pair("memory", &memory.0.to_string()).append_pair("memswap", &memory.0.to_string());
    }
    if let Some(millis) = build.limits.millicpus {
        query.append_pair("cpuperiod", "100000").append_pair("cpuquota", &(u64::from(millis) * 100).to_string());
    }
    query.finish()
}

/// What is built from.
struct Context {
    root: PathBuf,
    /// The file that says how, as the engine will know it.
    file: String,
    /// That file, if it is not in the directory.
    foreign: Option<PathBuf>,
    ignored: Ignored,
}

impl Context {
    fn read(build: &ImageBuild) -> Result<Self> {
        let invalid = |message: String| Error::new(ErrorCode::InvalidConfig, message);
        let root = build.context.canonicalize().ok().filter(|root| root.is_dir());
        let root = root.ok_or_else(|| invalid(format!("build from {}: not a directory", build.context.display())))?;
        let file = match &build.file {
            Some(file) => file.clone(),
            None => ["Dockerfile", "Containerfile"]
                .map(|name| root.join(name))
                .into_iter()
                .find(|file| file.is_file())
                .ok_or_else(|| {
                    invalid(format!("there is no Dockerfile or Containerfile in {}", root.display()))
                        .hint("name it with --file")
                })?,
        };
        let real = file.canonicalize().ok().filter(|file| file.is_file());
        let real = real.ok_or_else(|| invalid(format!("there is no file {}", file.display())))?;
        let inside = real.strip_prefix(&root).ok().and_then(|path| path.to_str()).map(ToOwned::to_owned);
        let foreign = if inside.is_none() { Some(real.clone()) } else { None };
        // One that is beside the file counts for it alone.
        let beside = PathBuf::from(format!("{}.dockerignore", real.display()));
        let places = [beside, root.join(".dockerignore"), root.join(".containerignore")];
        let list = places.iter().find(|path| path.is_file());
        let text = match list {
            Some(path) => {
                std::fs::read_to_string(path).map_err(|error| Error::io(format!("read {}", path.display()), error))?
            }
            None => String::new(),
        };
        let ignored = Ignored::parse(&text).map_err(|why| invalid(format!("read .dockerignore: {why}")))?;
        Ok(Self { root, file: inside.unwrap_or_else(|| FOREIGN.into()), foreign, ignored })
    }

    /// The file that says how.
    fn text(&self) -> Result<String> {
        let path = self.foreign.clone().unwrap_or_else(|| self.root.join(&self.file));
        let mut text = Vec::new();
        let read = std::fs::File::open(&path).and_then(|file| file.take(LONGEST).read_to_end(&mut text));
        read.map_err(|error| Error::io(format!("read {}", path.display()), error))?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// The archive, made while it is sent.
    fn pack(self) -> impl futures_util::Stream<Item = io::Result<Bytes>> + Send + 'static {
        let (sender, receiver) = mpsc::channel(8);
        tokio::task::spawn_blocking(move || {
            let mut archive = tar::Builder::new(BufWriter::with_capacity(128 * 1024, Pipe(sender.clone())));
            archive.follow_symlinks(false);
            let packed = self.pack_into(&mut archive).and_then(|()| archive.into_inner()?.flush());
            if let Err(error) = packed {
                // Whoever reads has gone, or learns why there is no more.
                let _ = sender.blocking_send(Err(error));
            }
        });
        futures_util::stream::unfold(receiver, async |mut receiver| Some((receiver.recv().await?, receiver)))
    }

    fn pack_into(&self, archive: &mut tar::Builder<impl Write>) -> io::Result<()> {
        if let Some(foreign) = &self.foreign {
            archive.append_path_with_name(foreign, FOREIGN)?;
        }
        let mut ahead = vec![PathBuf::new()];
        while let Some(dir) = ahead.pop() {
            let mut entries: Vec<_> = std::fs::read_dir(self.root.join(&dir))?.collect::<io::Result<_>>()?;
            entries.sort_by_key(std::fs::DirEntry::file_name);
            for entry in entries {
                let path = dir.join(entry.file_name());
                let kind = entry.file_type()?;
                let needed = path == Path::new(&self.file);
                let ignored = !needed && self.ignored.names(&path);
                if kind.is_dir() {
                    // What is in it may be excepted.
                    if !ignored || self.ignored.excepts {
                        ahead.push(path.clone());
                    }
                    if !ignored {
                        archive.append_path_with_name(entry.path(), &path)?;
                    }
                } else if !ignored && (kind.is_file() || kind.is_symlink()) {
                    archive.append_path_with_name(entry.path(), &path)?;
                }
            }
        }
        Ok(())
    }
}

/// Writes to whoever sends.
struct Pipe(mpsc::Sender<io::Result<Bytes>>);

impl Write for Pipe {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let gone = |_| io::Error::from(io::ErrorKind::BrokenPipe);
        self.0.blocking_send(Ok(Bytes::copy_from_slice(bytes))).map_err(gone)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What a `.dockerignore` leaves out: the last pattern that matches a path, or a directory above it, decides.
#[derive(Default)]
struct Ignored {
    patterns: Vec<(bool, GlobMatcher)>,
    /// Whether something is let in again.
    excepts: bool,
}

impl Ignored {
    fn parse(text: &str) -> Result<Self, globset::Error> {
        let mut ignored = Self::default();
        for line in text.lines() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (excepted, pattern) = match line.strip_prefix('!') {
                Some(rest) => (true, rest.trim()),
                None => (false, line),
            };
            let parts: Vec<&str> = pattern.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
            if parts.is_empty() {
                continue;
            }
            let glob: Glob =
                GlobBuilder::new(&parts.join("/")).literal_separator(true).backslash_escape(true).build()?;
            ignored.excepts |= excepted;
            ignored.patterns.push((excepted, glob.compile_matcher()));
        }
        Ok(ignored)
    }

    fn names(&self, path: &Path) -> bool {
        let mut ignored = false;
        for (excepted, pattern) in &self.patterns {
            if path.ancestors().filter(|path| !path.as_os_str().is_empty()).any(|path| pattern.is_match(path)) {
                ignored = !excepted;
            }
        }
        ignored
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_count_as_docker_has_them() {
        let text = "# a comment\n*.log\n**/*.tmp\n/target\nnode_modules/\n!keep.log\ndocs/*.md\n!docs/README.md\n";
        let ignored = Ignored::parse(text).unwrap();
        for named in ["a.log", "deep/x.tmp", "x.tmp", "target/debug/x", "node_modules/a/b", "docs/a.md"] {
            assert!(ignored.names(Path::new(named)), "{named}");
        }
        for kept in ["keep.log", "deep/a.log", "src/target", "docs/README.md", "docs/deep/a.md", "main.rs"] {
            assert!(!ignored.names(Path::new(kept)), "{kept}");
        }
        assert!(Ignored::parse("[").is_err());
    }

    #[test]
    fn what_is_ignored_is_not_sent() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str| {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, name).unwrap();
        };
        for name in ["Dockerfile", "src/a", "src/secret", "big/x", "big/keep"] {
            put(name);
        }
        std::fs::write(dir.path().join(".dockerignore"), "Dockerfile\n**/secret\nbig\n!big/keep\n").unwrap();
        std::os::unix::fs::symlink("/etc/passwd", dir.path().join("link")).unwrap();
        let build = ImageBuild { context: dir.path().into(), tag: "t".into(), ..ImageBuild::default() };
        let context = Context::read(&build).unwrap();
        assert_eq!(context.file, "Dockerfile");
        let mut archive = tar::Builder::new(Vec::new());
        archive.follow_symlinks(false);
        context.pack_into(&mut archive).unwrap();
        let bytes = archive.into_inner().unwrap();
        let mut read = tar::Archive::new(bytes.as_slice());
        let mut names: Vec<String> =
            read.entries().unwrap().map(|entry| entry.unwrap().path().unwrap().display().to_string()).collect();
        names.sort();
        assert_eq!(names, [".dockerignore", "Dockerfile", "big/keep", "link", "src", "src/a"]);
    }

    #[test]
    fn a_failure_names_its_step() {
        let mut step = None;
        let lines = [r#"{"stream":"Step 2/3 : RUN false\n"}"#, r#"{"stream":" ---> Running\n"}"#, "noise"];
        for line in lines {
            hear(line.as_bytes(), &mut step, &|_| {}).unwrap();
        }
        let why = hear(br#"{"error":"returned a non-zero code: 1"}"#, &mut step, &|_| {}).unwrap_err();
        let error = failed("build the image t", step.as_deref(), &why);
        assert_eq!(
            error.to_string(),
            "build the image t: it failed at step 2/3 : RUN false: returned a non-zero code: 1"
        );
    }
}
