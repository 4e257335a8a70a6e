//! Builds images: the directory is packed while it is sent, without what its `.dockerignore` names, and the engine's
//! output is passed on line by line.

use crate::Docker;
use crate::create::image_name;
use crate::dockerfile;
use crate::logins::packed;
use crate::streams::each_line;
use globset::{Glob, GlobBuilder, GlobMatcher};
use hyper::body::Bytes;
use hyper::header::CONTENT_TYPE;
use kennel_core::{Error, Fence, HostPath, ImageBuild, LastLink, Result, open_regular_file, printable};
use kennel_types::{ErrorCode, Field, NextStep};
use rustix::fs::{Mode, OFlags};
use serde::Deserialize;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use tokio::sync::mpsc;

/// The HTTP header for the logins of several registries.
const LOGINS: &str = "X-Registry-Config";

/// Bytes in the longest Dockerfile.
const LONGEST: u64 = 16 << 20;

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const LOOK: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The name, in the archive, of a Dockerfile from another directory.
const FOREIGN: &str = ".kennel-Dockerfile";

impl Docker {
    /// Lets the engine build an image.
    pub(crate) async fn build(&self, build: &ImageBuild, tell: &(dyn Fn(String) + Sync)) -> Result<()> {
        image_name(&build.tag)?;
        let context = Context::read(build)?;
        self.engine.api().await?;
        let path = format!("/build?{}", query(build, &context.file));
        let what = || format!("build the image {}", build.tag);
        let mut request = hyper::Request::post(path).header(CONTENT_TYPE, "application/x-tar");
        let images = dockerfile::images(&context.text, &build.args);
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

/// Handles a line of the engine's output: passes it on, or returns why the build failed.
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
        // Written by Docker, and by Podman.
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
    Error::new(ErrorCode::ExecFailed, message).advise("see the output of the build; each step runs in a new container")
}

fn query(build: &ImageBuild, file: &str) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.append_pair("t", &build.tag).append_pair("dockerfile", file).append_pair("rm", "true");
    // Also if a step fails.
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

/// The build context. A sandbox may have written to the directory, and may still do so: everything in it is opened by
/// descriptor, and no symlink is followed out of it.
struct Context {
    root: OwnedFd,
    /// The path of the Dockerfile, as the engine sees it.
    file: String,
    text: String,
    /// The Dockerfile itself, if it is outside the directory.
    foreign: Option<File>,
    ignored: Ignored,
}

impl Context {
    fn read(build: &ImageBuild) -> Result<Self> {
        let invalid = |message: String| Error::new(ErrorCode::InvalidConfig, message);
        let shown = build.context.display();
        let root = HostPath::resolve(&build.context, &[], LastLink::Follow)
            .and_then(|path| path.open(OFlags::RDONLY | OFlags::DIRECTORY));
        let root = root.map_err(|error| invalid(format!("build from {shown}: {error}")).caused_by(error))?;
        let place = real_path(&root).map_err(|error| Error::io(format!("build from {shown}"), error))?;
        let open = |path: &Path| HostPath::beneath(root.try_clone()?, place.display().to_string(), path).open_regular();
        let mut dockerfile = match &build.file {
            Some(path) => {
                let fences: Vec<Fence> = Fence::around(&place).into_iter().collect();
                open_regular_file(path, &fences).map_err(|error| unreadable(path, error))?
            }
            None => first(&["Dockerfile", "Containerfile"].map(PathBuf::from), open)?.ok_or_else(|| {
                invalid(format!("there is no Dockerfile or Containerfile in {shown}"))
                    .suggest(NextStep::set(Field::BuildFile))
            })?,
        };
        let real = real_path(&dockerfile).map_err(|error| Error::io("find the Dockerfile", error))?;
        let text = text_of(&mut dockerfile).map_err(|error| unreadable(&real, error))?;
        let inside = real.strip_prefix(&place).ok().and_then(|path| path.to_str()).map(ToOwned::to_owned);
        // A `.dockerignore` next to the Dockerfile applies only to it.
        let own_list = if let Some(file) = &inside {
            first(&[PathBuf::from(format!("{file}.dockerignore"))], open)?
        } else {
            let kept = |path: &Path| HostPath::resolve(path, &[], LastLink::Keep)?.open_regular();
            first(&[PathBuf::from(format!("{}.dockerignore", real.display()))], kept)?
        };
        let list = match own_list {
            None => first(&[".dockerignore", ".containerignore"].map(PathBuf::from), open)?,
            own_list => own_list,
        };
        let list = list.map(|mut list| text_of(&mut list)).transpose();
        let list = list.map_err(|error| Error::io("read .dockerignore", error))?.unwrap_or_default();
        let ignored = Ignored::parse(&list).map_err(|why| invalid(format!("read .dockerignore: {why}")))?;
        let foreign = if inside.is_none() { Some(dockerfile) } else { None };
        Ok(Self { root, file: inside.unwrap_or_else(|| FOREIGN.into()), text, foreign, ignored })
    }

    /// Creates the archive while it is sent.
    fn pack(self) -> impl futures_util::Stream<Item = io::Result<Bytes>> + Send + 'static {
        let (sender, receiver) = mpsc::channel(8);
        tokio::task::spawn_blocking(move || {
            let mut archive = tar::Builder::new(BufWriter::with_capacity(128 * 1024, Pipe(sender.clone())));
            let packed = self.pack_into(&mut archive).and_then(|()| archive.into_inner()?.flush());
            if let Err(error) = packed {
                // The receiver is gone, or learns why there is no more.
                let _ = sender.blocking_send(Err(error));
            }
        });
        futures_util::stream::unfold(receiver, async |mut receiver| Some((receiver.recv().await?, receiver)))
    }

    fn pack_into(self, archive: &mut tar::Builder<impl Write>) -> io::Result<()> {
        if let Some(mut foreign) = self.foreign {
            foreign.seek(SeekFrom::Start(0))?;
            archive.append_file(FOREIGN, &mut foreign)?;
        }
        // Directories are opened when they are reached, so that only those with unfinished children are open.
        let mut ahead = vec![(Rc::new(self.root), OsString::from("."), PathBuf::new())];
        while let Some((parent, name, path)) = ahead.pop() {
            let dir = Rc::new(rustix::fs::openat(&*parent, &name, DIRECTORY, Mode::empty())?);
            for name in names(&dir)? {
                let path = path.join(&name);
                let needed = path == Path::new(&self.file);
                let ignored = !needed && self.ignored.names(&path);
                let look = rustix::fs::openat(&*dir, &name, LOOK, Mode::empty())?;
                let meta = File::from(look.try_clone()?).metadata()?;
                let mut header = tar::Header::new_gnu();
                header.set_metadata(&meta);
                if meta.is_dir() {
                    if !ignored {
                        archive.append_data(&mut header, &path, io::empty())?;
                    }
                    // An exception may match something in it.
                    if !ignored || self.ignored.excepts {
                        ahead.push((dir.clone(), name, path));
                    }
                } else if !ignored && meta.is_symlink() {
                    let text = rustix::fs::readlinkat(&look, "", Vec::new())?.into_bytes();
                    header.set_size(0);
                    archive.append_link(&mut header, &path, OsStr::from_bytes(&text))?;
                } else if !ignored && meta.is_file() {
                    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
                    let mut file = File::from(rustix::fs::openat(&*dir, &name, flags, Mode::empty())?);
                    // The file may have been replaced by now.
                    if file.metadata()?.is_file() {
                        archive.append_file(&path, &mut file)?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// Returns the first of these files that exists.
fn first(paths: &[PathBuf], open: impl Fn(&Path) -> io::Result<File>) -> Result<Option<File>> {
    for path in paths {
        match open(path) {
            Ok(file) => return Ok(Some(file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(unreadable(path, error)),
        }
    }
    Ok(None)
}

fn unreadable(path: &Path, error: io::Error) -> Error {
    Error::new(ErrorCode::InvalidConfig, format!("read {}: {error}", path.display())).caused_by(error)
}

/// Returns the current path of an open file.
fn real_path(file: &impl AsRawFd) -> io::Result<PathBuf> {
    std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

fn text_of(file: &mut File) -> io::Result<String> {
    let mut text = Vec::new();
    file.take(LONGEST).read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Returns the names in a directory, sorted.
fn names(dir: &OwnedFd) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(OsStr::from_bytes(name).to_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// Writes to the channel from which the request body is sent.
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

/// What a `.dockerignore` excludes: the last pattern that matches a path, or a directory above it, decides.
#[derive(Default)]
struct Ignored {
    patterns: Vec<(bool, GlobMatcher)>,
    /// Whether there are exceptions (`!`).
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
    fn ignore_patterns_work_as_in_docker() {
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
    fn ignored_files_are_not_sent() {
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
        context.pack_into(&mut archive).unwrap();
        let bytes = archive.into_inner().unwrap();
        let mut read = tar::Archive::new(bytes.as_slice());
        let mut names: Vec<String> =
            read.entries().unwrap().map(|entry| entry.unwrap().path().unwrap().display().to_string()).collect();
        names.sort();
        assert_eq!(names, [".dockerignore", "Dockerfile", "big/keep", "link", "src", "src/a"]);
    }

    #[test]
    fn nothing_outside_is_read_through_symlinks_of_the_directory() {
        use std::os::unix::fs::symlink;
        let dir = tempfile::tempdir().unwrap();
        let (root, victim) = (dir.path().join("context"), dir.path().join("victim"));
        std::fs::create_dir_all(root.join("sub")).unwrap();
        std::fs::create_dir(&victim).unwrap();
        std::fs::write(victim.join("secret"), "FROM secret").unwrap();
        let read = |file: Option<&str>| {
            let file = file.map(|file| root.join(file));
            Context::read(&ImageBuild { context: root.clone(), file, tag: "t".into(), ..ImageBuild::default() })
        };
        let refused = |read: Result<Context>| {
            let error = read.err().expect("it is refused").to_string();
            assert!(error.contains("leads out of") && !error.contains("FROM"), "{error}");
        };
        symlink(victim.join("secret"), root.join("Dockerfile")).unwrap();
        symlink("../victim", root.join("out")).unwrap();
        assert_eq!(std::fs::read(root.join("Dockerfile")).unwrap(), b"FROM secret", "for others it leads out");
        refused(read(None));
        refused(read(Some("Dockerfile")));
        refused(read(Some("out/secret")));
        std::fs::remove_file(root.join("Dockerfile")).unwrap();
        // A symlink that stays within the directory is followed.
        std::fs::write(root.join("sub/real"), "FROM x").unwrap();
        symlink("sub/real", root.join("Dockerfile")).unwrap();
        assert_eq!(read(None).unwrap().file, "sub/real");
        for list in [".dockerignore", "sub/real.dockerignore"] {
            symlink(victim.join("secret"), root.join(list)).unwrap();
            refused(read(None));
            std::fs::remove_file(root.join(list)).unwrap();
        }
        rustix::fs::mknodat(rustix::fs::CWD, root.join(".dockerignore"), rustix::fs::FileType::Fifo, Mode::RUSR, 0)
            .unwrap();
        assert!(read(None).err().unwrap().to_string().contains("not a regular file"), "a FIFO is not waited for");
        std::fs::remove_file(root.join(".dockerignore")).unwrap();
        // A Dockerfile elsewhere is the user's to name, and symlinks are packed as such.
        let context = read(Some("../victim/secret")).unwrap();
        assert_eq!((context.file.as_str(), context.text.as_str()), (FOREIGN, "FROM secret"));
        let mut archive = tar::Builder::new(Vec::new());
        context.pack_into(&mut archive).unwrap();
        let bytes = archive.into_inner().unwrap();
        let mut packed = tar::Archive::new(bytes.as_slice());
        let kinds: Vec<_> = packed
            .entries()
            .unwrap()
            .map(|entry| {
                let entry = entry.unwrap();
                (entry.path().unwrap().display().to_string(), entry.header().entry_type().is_symlink())
            })
            .collect();
        assert!(kinds.contains(&("out".into(), true)) && kinds.contains(&("Dockerfile".into(), true)), "{kinds:?}");
        assert!(!kinds.iter().any(|(name, _)| name.contains("out/")), "{kinds:?}");
    }

    #[test]
    fn a_failed_build_names_its_step() {
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
