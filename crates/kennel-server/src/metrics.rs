//! What the server measures about itself, for Prometheus.

use kennel_core::Result;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use std::time::{Duration, Instant};

/// The upper bounds of the buckets of times, in seconds.
const SECONDS: [f64; 16] =
    [0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 60.0, 600.0];

/// What the server measures.
pub(crate) struct Metrics {
    create: Histogram,
    start: Histogram,
    exec: Histogram,
    requests: Family<Answered, Counter>,
}

/// A finished request.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answered {
    /// The operation, or empty if there is none at the path.
    operation: &'static str,
    status: u16,
}

/// The sandboxes of a provider in a state.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct Counted {
    pub(crate) provider: String,
    pub(crate) status: String,
}

impl Default for Metrics {
    fn default() -> Self {
        let times = || Histogram::new(SECONDS);
        Self { create: times(), start: times(), exec: times(), requests: Family::default() }
    }
}

impl Metrics {
    /// Records how long the creation of a sandbox took.
    pub(crate) fn create_took(&self, time: Duration) {
        self.create.observe(time.as_secs_f64());
    }

    /// Records how long a command took that was run to its end.
    pub(crate) fn exec_took(&self, time: Duration) {
        self.exec.observe(time.as_secs_f64());
    }

    /// Waits for the start of a sandbox, and records how long it took if it succeeded.
    pub(crate) async fn time_start(&self, start: impl Future<Output = Result<()>>) -> Result<()> {
        let began = Instant::now();
        start.await?;
        self.start.observe(began.elapsed().as_secs_f64());
        Ok(())
    }

    /// Counts a finished request.
    pub(crate) fn answered(&self, operation: &'static str, status: u16) {
        self.requests.get_or_create(&Answered { operation, status }).inc();
    }

    /// Returns everything in the text format of Prometheus, with the number of sandboxes now.
    pub(crate) fn text(&self, sandboxes: &[Counted]) -> String {
        let mut registry = Registry::with_prefix("kennel");
        let gauges = Family::<Counted, Gauge>::default();
        for counted in sandboxes {
            gauges.get_or_create(counted).inc();
        }
        registry.register("sandboxes", "Sandboxes by provider and state", gauges);
        registry.register_with_unit("sandbox_create", "Time to create a sandbox", Unit::Seconds, self.create.clone());
        registry.register_with_unit("sandbox_start", "Time to start a sandbox", Unit::Seconds, self.start.clone());
        registry.register_with_unit(
            "exec",
            "Time of commands that were run to their end",
            Unit::Seconds,
            self.exec.clone(),
        );
        registry.register("requests", "Requests by operation and status", self.requests.clone());
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = encode(&mut text, &registry);
        text
    }
}
