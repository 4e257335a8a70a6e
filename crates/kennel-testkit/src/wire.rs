//! A provider whose connections can be cut, like those of a broken network or a killed program. It can also record the
//! requests, and hide features of the keepers.

use kennel_core::{
    ByteStream, Dialed, EventStream, LogOptions, LogStream, Provider, PullProgress, RemoveOptions, Result,
};
use kennel_proto::{Body, Decoder, Features, Frame, GENERATION, Request, encode};
use kennel_types::{Availability, Limits, Mode, Pull, SandboxId, SandboxInfo, SandboxSpec};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::task::AbortHandle;

/// Forwards all calls to a provider, and can cut all connections that it has opened.
pub struct Wire {
    provider: Arc<dyn Provider>,
    connections: Mutex<Vec<AbortHandle>>,
    /// Set if frames are decoded.
    recording: Option<Recording>,
}

/// The newest generation and the features that are passed on, and the recorded requests.
#[derive(Clone)]
struct Recording {
    generation: u32,
    features: Features,
    requests: Requests,
}

type Requests = Arc<Mutex<Vec<Request>>>;

impl Wire {
    /// Creates a wire to this provider.
    pub fn new(provider: Arc<dyn Provider>) -> Arc<Self> {
        Arc::new(Self { provider, connections: Mutex::default(), recording: None })
    }

    /// Creates a wire to this provider that records all requests, and passes on only these features of the keepers.
    pub fn recording(provider: Arc<dyn Provider>, features: Features) -> Arc<Self> {
        Self::older(provider, GENERATION, features)
    }

    /// Creates a wire to this provider that records all requests, and makes the keepers look like those of an older
    /// generation with these features.
    pub fn older(provider: Arc<dyn Provider>, generation: u32, features: Features) -> Arc<Self> {
        let recording = Recording { generation, features, requests: Requests::default() };
        Arc::new(Self { provider, connections: Mutex::default(), recording: Some(recording) })
    }

    /// Returns the requests since the last call, if they are recorded.
    pub fn requests(&self) -> Vec<Request> {
        let Some(Recording { requests, .. }) = &self.recording else { return Vec::new() };
        std::mem::take(&mut *requests.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Cuts all connections, without a message to either side.
    pub fn cut(&self) {
        for connection in self.connections.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            connection.abort();
        }
    }
}

#[async_trait::async_trait]
impl Provider for Wire {
    fn mode(&self) -> &'static Mode {
        self.provider.mode()
    }

    async fn probe(&self) -> Availability {
        self.provider.probe().await
    }

    async fn create(&self, id: &SandboxId, spec: &SandboxSpec) -> Result<SandboxInfo> {
        self.provider.create(id, spec).await
    }

    async fn start(&self, id: &SandboxId) -> Result<()> {
        self.provider.start(id).await
    }

    async fn stop(&self, id: &SandboxId, grace: Duration) -> Result<()> {
        self.provider.stop(id, grace).await
    }

    async fn remove(&self, id: &SandboxId, options: RemoveOptions) -> Result<()> {
        self.provider.remove(id, options).await
    }

    async fn pull(&self, image: &str, when: Pull, tell: &(dyn Fn(PullProgress) + Sync)) -> Result<()> {
        self.provider.pull(image, when, tell).await
    }

    async fn pause(&self, id: &SandboxId) -> Result<()> {
        self.provider.pause(id).await
    }

    async fn unpause(&self, id: &SandboxId) -> Result<()> {
        self.provider.unpause(id).await
    }

    async fn rename(&self, id: &SandboxId, name: &str) -> Result<()> {
        self.provider.rename(id, name).await
    }

    async fn change_limits(&self, id: &SandboxId, limits: Limits) -> Result<()> {
        self.provider.change_limits(id, limits).await
    }

    async fn get(&self, id_or_name: &str) -> Result<SandboxInfo> {
        self.provider.get(id_or_name).await
    }

    async fn list(&self) -> Result<Vec<SandboxInfo>> {
        self.provider.list().await
    }

    async fn dial(&self, id: &SandboxId) -> Result<Dialed> {
        let Dialed { mut stream, token, owner } = self.provider.dial(id).await?;
        let (ours, mut theirs) = tokio::io::duplex(64 * 1024);
        // Aborting this task drops both ends.
        let pump = match self.recording.clone() {
            None => tokio::spawn(async move { drop(tokio::io::copy_bidirectional(&mut theirs, &mut stream).await) }),
            Some(recording) => tokio::spawn(record(theirs, stream, recording)),
        };
        self.connections.lock().unwrap_or_else(PoisonError::into_inner).push(pump.abort_handle());
        Ok(Dialed { stream: Box::new(ours), token, owner })
    }

    async fn logs(&self, id: &SandboxId, options: LogOptions) -> Result<LogStream> {
        self.provider.logs(id, options).await
    }

    async fn watch(&self) -> Result<EventStream> {
        self.provider.watch().await
    }
}

async fn record(host: DuplexStream, keeper: Box<dyn ByteStream>, recording: Recording) {
    let Recording { generation, features, requests } = recording;
    let (host_reader, host_writer) = tokio::io::split(host);
    let (keeper_reader, keeper_writer) = tokio::io::split(keeper);
    let to_keeper = relay(host_reader, keeper_writer, |frame| {
        if let Body::Open(request) = &frame.body {
            requests.lock().unwrap_or_else(PoisonError::into_inner).push((**request).clone());
        }
    });
    let to_host = relay(keeper_reader, host_writer, |frame| {
        if let Body::Welcome(welcome) = &mut frame.body {
            welcome.generation = welcome.generation.min(generation);
            welcome.features = welcome.features.intersection(features);
        }
    });
    tokio::select! {
        () = to_keeper => {}
        () = to_host => {}
    }
}

/// Forwards frames until either side is gone.
async fn relay(
    mut from: impl tokio::io::AsyncRead + Unpin,
    mut to: impl tokio::io::AsyncWrite + Unpin,
    mut see: impl FnMut(&mut Frame),
) {
    let mut decoder = Decoder::new();
    let (mut buffer, mut bytes) = (vec![0; 64 * 1024], Vec::new());
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        decoder.feed(&buffer[..count]);
        bytes.clear();
        while let Some(mut frame) = decoder.next_frame().expect("both sides speak the protocol") {
            see(&mut frame);
            encode(&frame, &mut bytes);
        }
        if to.write_all(&bytes).await.is_err() {
            return;
        }
    }
}
