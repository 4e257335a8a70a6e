//! Files of a sandbox. Contents are streamed.

use crate::client::{RequestBody, empty, query};
use crate::error::Received;
use crate::operations::of_sandbox;
use crate::{Client, error};
use base64::Engine as _;
use futures_util::StreamExt as _;
use http_body_util::{BodyExt, StreamBody};
use hyper::Method;
use hyper::body::{Bytes, Frame};
use kennel_api::{
    FileContent, FileContents, FileInfo, FileListing, FileMatches, MkdirRequest, MoveRequest, ReadFiles, WriteFiles,
    WrittenFile, WrittenFiles,
};
use kennel_types::{Error, ErrorCode, Result};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// The size of a piece of a body.
const PIECE: usize = 64 << 10;

impl Client {
    /// Writes the content of a file to a stream.
    pub async fn read_file(
        &self,
        sandbox: &str,
        path: &str,
        user: Option<&str>,
        to: impl AsyncWrite + Unpin,
    ) -> Result<()> {
        self.receive(&of_sandbox(sandbox, &format!("/files{}", at(path, user))), to).await
    }

    /// Writes a stream to a file, with missing parents. The file is replaced as a whole, or stays as it is.
    pub async fn write_file(
        &self,
        sandbox: &str,
        path: &str,
        user: Option<&str>,
        mode: Option<u32>,
        from: impl AsyncRead + Unpin + Send + 'static,
    ) -> Result<()> {
        let mode = mode.map(|mode| format!("{mode:o}"));
        let parameters = [("path", Some(path.to_owned())), ("user", user.map(ToOwned::to_owned)), ("mode", mode)];
        let path = of_sandbox(sandbox, &format!("/files{}", query(&parameters)));
        self.send(Method::PUT, &path, streamed(from), false).await.map(drop)
    }

    /// Writes a tar archive of a file or directory to a stream.
    pub async fn pack(&self, sandbox: &str, path: &str, user: Option<&str>, to: impl AsyncWrite + Unpin) -> Result<()> {
        self.receive(&of_sandbox(sandbox, &format!("/files/archive{}", at(path, user))), to).await
    }

    /// Unpacks a tar archive into a directory.
    pub async fn unpack(
        &self,
        sandbox: &str,
        path: &str,
        user: Option<&str>,
        from: impl AsyncRead + Unpin + Send + 'static,
    ) -> Result<()> {
        let path = of_sandbox(sandbox, &format!("/files/archive{}", at(path, user)));
        self.send(Method::PUT, &path, streamed(from), false).await.map(drop)
    }

    /// Returns the metadata of a file.
    pub async fn stat(&self, sandbox: &str, path: &str, user: Option<&str>) -> Result<FileInfo> {
        self.get(&of_sandbox(sandbox, &format!("/files/stat{}", at(path, user)))).await
    }

    /// Returns the entries of a directory.
    pub async fn list_files(&self, sandbox: &str, path: &str, user: Option<&str>) -> Result<FileListing> {
        self.get(&of_sandbox(sandbox, &format!("/files/list{}", at(path, user)))).await
    }

    /// Returns the contents of several files, 16 MiB at most. Each has its own error.
    pub async fn read_files(&self, sandbox: &str, request: &ReadFiles) -> Result<Vec<(String, Result<Vec<u8>>)>> {
        let path = of_sandbox(sandbox, "/files/read");
        let read: FileContents<Received> = self.call(Method::POST, &path, Some(request)).await?;
        let content = |file: FileContent<Received>| {
            let content = match (file.text, file.base64, file.error) {
                (_, _, Some(error)) => Err(error.into_error()),
                (Some(text), ..) => Ok(text.into_bytes()),
                (None, base64, None) => base64::engine::general_purpose::STANDARD
                    .decode(base64.unwrap_or_default())
                    .map_err(|error| Error::new(ErrorCode::Internal, format!("read {}: {error}", file.path))),
            };
            (file.path, content)
        };
        Ok(read.files.into_iter().map(content).collect())
    }

    /// Writes several files. Each has its own error.
    pub async fn write_files(&self, sandbox: &str, request: &WriteFiles) -> Result<Vec<(String, Result<()>)>> {
        let path = of_sandbox(sandbox, "/files/write");
        let written: WrittenFiles<Received> = self.call(Method::POST, &path, Some(request)).await?;
        let result =
            |file: WrittenFile<Received>| (file.path, file.error.map_or(Ok(()), |error| Err(error.into_error())));
        Ok(written.files.into_iter().map(result).collect())
    }

    /// Finds files below a directory: those whose name fits, and lines with the text.
    pub async fn search_files(
        &self,
        sandbox: &str,
        path: &str,
        name: Option<&str>,
        text: Option<&str>,
    ) -> Result<FileMatches> {
        let parameters = [
            ("path", Some(path.to_owned())),
            ("name", name.map(ToOwned::to_owned)),
            ("text", text.map(ToOwned::to_owned)),
        ];
        self.get(&of_sandbox(sandbox, &format!("/files/search{}", query(&parameters)))).await
    }

    /// Creates a directory.
    pub async fn make_directory(&self, sandbox: &str, request: &MkdirRequest) -> Result<()> {
        self.done(Method::POST, &of_sandbox(sandbox, "/files/mkdir"), Some(request)).await
    }

    /// Moves a file or directory.
    pub async fn move_file(&self, sandbox: &str, request: &MoveRequest) -> Result<()> {
        self.done(Method::POST, &of_sandbox(sandbox, "/files/move"), Some(request)).await
    }

    /// Removes a file, or with `recursive` also a directory that is not empty.
    pub async fn remove_file(&self, sandbox: &str, path: &str, user: Option<&str>, recursive: bool) -> Result<()> {
        let parameters = [
            ("path", Some(path.to_owned())),
            ("user", user.map(ToOwned::to_owned)),
            ("recursive", Some(recursive.to_string())),
        ];
        let path = of_sandbox(sandbox, &format!("/files{}", query(&parameters)));
        self.done(Method::DELETE, &path, None::<&()>).await
    }

    /// Writes the body of a response to a stream.
    async fn receive(&self, path: &str, mut to: impl AsyncWrite + Unpin) -> Result<()> {
        let mut body = self.send(Method::GET, path, empty(), false).await?.into_body();
        let failed = |error: std::io::Error| kennel_types::Error::io("write what the server sent", error);
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| error::broken("receive a file", error))?;
            if let Ok(bytes) = frame.into_data() {
                to.write_all(&bytes).await.map_err(failed)?;
            }
        }
        to.flush().await.map_err(failed)
    }
}

fn at(path: &str, user: Option<&str>) -> String {
    query(&[("path", Some(path.to_owned())), ("user", user.map(ToOwned::to_owned))])
}

/// A stream as the body of a request.
pub(crate) fn streamed(from: impl AsyncRead + Unpin + Send + 'static) -> RequestBody {
    let pieces = futures_util::stream::unfold(Some(from), |from| async move {
        let mut from = from?;
        let mut piece = vec![0; PIECE];
        match from.read(&mut piece).await {
            Ok(0) => None,
            Ok(count) => {
                piece.truncate(count);
                Some((Ok(Bytes::from(piece)), Some(from)))
            }
            Err(error) => Some((Err(error), None)),
        }
    });
    // A boxed body can be shared between threads, and this stream can not.
    let pieces = SyncStream(std::sync::Mutex::new(Box::pin(pieces)));
    BodyExt::boxed(StreamBody::new(pieces.map(|piece| piece.map(Frame::data))))
}

type Pieces = std::pin::Pin<Box<dyn futures_util::Stream<Item = std::io::Result<Bytes>> + Send>>;

/// A stream that is used by one thread at a time.
struct SyncStream(std::sync::Mutex<Pieces>);

impl futures_util::Stream for SyncStream {
    type Item = std::io::Result<Bytes>;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        let pieces = self.0.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        pieces.as_mut().poll_next(context)
    }
}
