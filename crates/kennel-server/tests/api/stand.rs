//! A server on the mock provider, in a directory of its own.

use crate::client::{Call, Reply};
use kennel_core::Provider;
use kennel_engine::{Caller, Directories, Engine, NewToken, Resident, Store, TokenLimits, Tokens};
use kennel_mock::Mock;
use kennel_server::{Listen, Server, ServerOptions};
use kennel_types::Scope;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// A running server.
pub(crate) struct Stand {
    pub(crate) address: SocketAddr,
    pub(crate) mock: Mock,
    pub(crate) dir: tempfile::TempDir,
    pub(crate) admin: String,
    tokens: Tokens,
    end: Option<oneshot::Sender<()>>,
    task: JoinHandle<kennel_core::Result<()>>,
    _resident: Resident,
}

impl Stand {
    pub(crate) async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mock = Mock::new();
        let directories = Directories::new(dir.path().join("state"), dir.path().join("data"), None);
        let uid = rustix::process::geteuid().as_raw();
        let caller = Caller { current_dir: dir.path().to_owned(), uid, ..Caller::default() };
        let engine = Engine::with_providers(caller, directories.clone(), [Arc::new(mock.clone()) as Arc<dyn Provider>]);
        let resident = Resident::begin(&engine).await.unwrap();
        let store = Store::open(directories.database()).await.unwrap();
        let tokens = Tokens::new(store.clone());
        let listen = [Listen::Tcp("127.0.0.1:0".parse().unwrap()), Listen::Unix(directories.api_socket())];
        let server = Server::listen(engine, resident.events(), store, &listen, ServerOptions::default()).await.unwrap();
        let address = server.addresses()[0].strip_prefix("http://").unwrap().parse().unwrap();
        let (end, ended) = oneshot::channel();
        let task = tokio::spawn(server.run(async move {
            let _ = ended.await;
        }));
        let (admin, _) = tokens.create(new("admin", Scope::Admin, None)).await.unwrap();
        Self { address, mock, dir, admin, tokens, end: Some(end), task, _resident: resident }
    }

    /// Creates a token.
    pub(crate) async fn token(&self, name: &str, scope: Scope, project: Option<&str>) -> String {
        self.tokens.create(new(name, scope, project)).await.unwrap().0
    }

    /// Creates a token that allows what `change` says.
    pub(crate) async fn token_with(&self, name: &str, change: impl FnOnce(&mut NewToken)) -> String {
        let mut token = new(name, Scope::Create, None);
        change(&mut token);
        self.tokens.create(token).await.unwrap().0
    }

    pub(crate) async fn revoke(&self, name: &str) {
        self.tokens.revoke(name).await.unwrap();
    }

    /// Sends a request as admin.
    pub(crate) async fn send(&self, method: &str, path: &str, body: Option<Value>) -> Reply {
        self.send_as(&self.admin, method, path, body).await
    }

    /// Sends a request with a token.
    pub(crate) async fn send_as(&self, token: &str, method: &str, path: &str, body: Option<Value>) -> Reply {
        let call = Call::new(method, path).token(token);
        let call = match body {
            Some(body) => call.json(&body),
            None => call,
        };
        call.send(self.address).await
    }

    /// Creates a sandbox, and returns its id.
    pub(crate) async fn sandbox(&self, body: Value) -> String {
        self.send("POST", "/v1/sandboxes", Some(body)).await.ok(201)["id"].as_str().unwrap().to_owned()
    }

    /// Creates a directory on the host, and returns its path without symlinks.
    pub(crate) fn directory(&self, name: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::create_dir_all(&path).unwrap();
        path.canonicalize().unwrap()
    }

    /// The number of sandboxes.
    pub(crate) async fn count(&self) -> usize {
        self.mock.list().await.unwrap().len()
    }

    /// Ends the server, and waits for it.
    pub(crate) async fn end(mut self) {
        self.end.take().unwrap().send(()).unwrap();
        self.task.await.unwrap().unwrap();
    }
}

fn new(name: &str, scope: Scope, project: Option<&str>) -> NewToken {
    NewToken {
        name: name.into(),
        scope,
        project: project.map(ToOwned::to_owned),
        directories: Vec::new(),
        limits: TokenLimits::default(),
    }
}

/// A command that the mock runs.
pub(crate) fn echo(text: &str) -> Value {
    json!({"argv": ["echo", text]})
}
