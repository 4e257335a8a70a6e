//! A server in a directory of its own: on the mock provider, or on native.

use crate::client::{Call, Reply};
use kennel_core::{Provider, RemoveOptions};
use kennel_engine::{Caller, Directories, Engine, NewToken, Resident, Store, TokenLimits, Tokens};
use kennel_mock::Mock;
use kennel_native::Native;
use kennel_server::{Listen, Server, ServerOptions};
use kennel_testkit::{Home, eventually, host};
use kennel_types::Scope;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// A running server on the mock provider.
pub(crate) struct Stand {
    pub(crate) mock: Mock,
    pub(crate) dir: tempfile::TempDir,
    served: Served,
}

impl Deref for Stand {
    type Target = Served;

    fn deref(&self) -> &Served {
        &self.served
    }
}

impl Stand {
    pub(crate) async fn new() -> Self {
        Self::with_options(ServerOptions::default()).await
    }

    pub(crate) async fn with_options(options: ServerOptions) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mock = Mock::new();
        let directories = Directories::new(dir.path().join("state"), dir.path().join("data"), None);
        let served = Served::start(dir.path(), directories, Arc::new(mock.clone()), options).await;
        Self { mock, dir, served }
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
    pub(crate) async fn end(self) {
        self.served.end().await;
    }
}

/// A running server on the native provider.
pub(crate) struct NativeStand {
    pub(crate) home: Home,
    served: Served,
}

impl Deref for NativeStand {
    type Target = Served;

    fn deref(&self) -> &Served {
        &self.served
    }
}

impl NativeStand {
    pub(crate) async fn new() -> Self {
        let home = Home::new();
        let directories = Directories::new(home.path().join("engine"), home.path().join("data"), None);
        let served = Served::start(home.path(), directories, Self::provider(&home), ServerOptions::default()).await;
        Self { home, served }
    }

    fn provider(home: &Home) -> Arc<dyn Provider> {
        Arc::new(Native::new(home.state(), home.programs()))
    }

    /// The settings of a sandbox without a network, by whose processes a leftover is recognised.
    pub(crate) fn sandbox_body(&self) -> Value {
        json!({"network": "none", "env": {"KENNEL_TEST_HOME": self.home.mark()}})
    }

    /// Creates a sandbox with this name, and returns its path in the API.
    pub(crate) async fn make(&self, name: &str) -> String {
        let mut body = self.sandbox_body();
        body["name"] = name.into();
        self.send("POST", "/v1/sandboxes", Some(body)).await.ok(201);
        format!("/v1/sandboxes/{name}")
    }

    /// Ends the server, removes all sandboxes, and checks that nothing is left of them.
    pub(crate) async fn clean_up(self) {
        let Self { home, served } = self;
        served.end().await;
        let provider = Self::provider(&home);
        let mut ids = Vec::new();
        for info in provider.list().await.unwrap() {
            provider.remove(&info.id, RemoveOptions { force: true, volumes: true }).await.unwrap();
            ids.push(info.id.to_string());
        }
        eventually("nothing is left", async || host::leftovers(&home.mark(), &ids, &home.state()).is_empty()).await;
    }
}

/// A running server.
pub(crate) struct Served {
    pub(crate) address: SocketAddr,
    pub(crate) admin: String,
    tokens: Tokens,
    end: oneshot::Sender<()>,
    task: JoinHandle<kennel_core::Result<()>>,
    end_resident: oneshot::Sender<()>,
    resident: JoinHandle<kennel_core::Result<()>>,
}

impl Served {
    async fn start(
        current_dir: &Path,
        directories: Directories,
        provider: Arc<dyn Provider>,
        options: ServerOptions,
    ) -> Self {
        let uid = rustix::process::geteuid().as_raw();
        let caller = Caller { current_dir: current_dir.to_owned(), uid, ..Caller::default() };
        let engine = Engine::with_providers(caller, directories.clone(), [provider]);
        let resident = Resident::begin(&engine).await.unwrap();
        let store = Store::open(directories.database()).await.unwrap();
        let tokens = Tokens::new(store.clone());
        let listen = [Listen::Tcp("127.0.0.1:0".parse().unwrap()), Listen::Unix(directories.api_socket())];
        let server = Server::listen(engine, resident.events(), store, &listen, options).await.unwrap();
        let address = server.addresses()[0].strip_prefix("http://").unwrap().parse().unwrap();
        let (end, ended) = oneshot::channel();
        let task = tokio::spawn(server.run(async move {
            let _ = ended.await;
        }));
        let (end_resident, resident_ends) = oneshot::channel();
        let resident = tokio::spawn(resident.run(async move {
            let _ = resident_ends.await;
        }));
        let (admin, _) = tokens.create(new("admin", Scope::Admin, None)).await.unwrap();
        Self { address, admin, tokens, end, task, end_resident, resident }
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

    /// Ends the server, and waits for it.
    async fn end(self) {
        self.end.send(()).unwrap();
        self.task.await.unwrap().unwrap();
        self.end_resident.send(()).unwrap();
        self.resident.await.unwrap().unwrap();
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
