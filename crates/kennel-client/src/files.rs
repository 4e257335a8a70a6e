//! Files of a sandbox. Contents are streamed.

use crate::client::{RequestBody, empty, query};
use crate::operations::of_sandbox;
use crate::{Client, error};
use futures_util::StreamExt as _;
use http_body_util::{BodyExt, StreamBody};
use hyper::Method;
use hyper::body::{Bytes, Frame};
use kennel_api::{FileInfo, FileListing, MkdirRequest, MoveRequest};
use kennel_types::Result;
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
fn streamed(from: impl AsyncRead + Unpin + Send + 'static) -> RequestBody {
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
