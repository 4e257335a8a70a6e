//! What the server measures about itself and its sandboxes, for Prometheus.

use kennel_core::Result;
use kennel_engine::{PoolCounts, StoreUse};
use kennel_types::Stats;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

/// The upper bounds of the buckets of times, in seconds.
const SECONDS: [f64; 16] =
    [0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 60.0, 600.0];

/// What the server measures.
pub(crate) struct Metrics {
    create: Histogram,
    start: Histogram,
    exec: Histogram,
    store: Family<Used, Histogram>,
    oom_kills: Counter,
    requests: Family<Answered, Counter>,
}

/// A finished request.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answered {
    /// The operation, or empty if there is none at the path.
    operation: &'static str,
    status: u16,
}

/// How the store was used.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Used {
    operation: &'static str,
}

/// The sandboxes of a provider in a state.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct Counted {
    pub(crate) provider: String,
    pub(crate) status: String,
}

/// A running sandbox and what it uses.
pub(crate) struct Measured {
    pub(crate) sandbox: String,
    pub(crate) name: String,
    pub(crate) provider: String,
    pub(crate) stats: Stats,
}

impl Default for Metrics {
    fn default() -> Self {
        let times = || Histogram::new(SECONDS);
        Self {
            create: times(),
            start: times(),
            exec: times(),
            store: Family::new_with_constructor(times),
            oom_kills: Counter::default(),
            requests: Family::default(),
        }
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

    /// Records how long a use of the store took.
    pub(crate) fn store_took(&self, usage: StoreUse, time: Duration) {
        let operation = match usage {
            StoreUse::Read => "read",
            StoreUse::Write => "write",
        };
        self.store.get_or_create(&Used { operation }).observe(time.as_secs_f64());
    }

    /// Counts a command that was killed because memory ran out.
    pub(crate) fn oom_killed(&self) {
        self.oom_kills.inc();
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

    /// Returns everything in the text format of Prometheus, with the sandboxes now.
    pub(crate) fn text(&self, sandboxes: &[Counted], measured: &[Measured], pools: Option<&PoolCounts>) -> String {
        let mut registry = Registry::with_prefix("kennel");
        let gauges = Family::<Counted, Gauge>::default();
        for counted in sandboxes {
            gauges.get_or_create(counted).inc();
        }
        registry.register("sandboxes", "Sandboxes by provider and state", gauges);
        let times = [
            ("sandbox_create", "Time to create a sandbox", &self.create),
            ("sandbox_start", "Time to start a sandbox", &self.start),
            ("exec", "Time of commands that were run to their end", &self.exec),
        ];
        for (name, help, histogram) in times {
            registry.register_with_unit(name, help, Unit::Seconds, histogram.clone());
        }
        registry.register_with_unit("store", "Time of uses of the store", Unit::Seconds, self.store.clone());
        registry.register("oom_kills", "Commands that were killed because memory ran out", self.oom_kills.clone());
        registry.register("requests", "Requests by operation and status", self.requests.clone());
        if let Some(pools) = pools {
            registry.register("pool_hits", "Claims that found a member of a pool", ConstCounter::new(pools.hits()));
            registry.register(
                "pool_misses",
                "Claims that found no member of a pool",
                ConstCounter::new(pools.misses()),
            );
        }
        usage(&mut registry, measured);
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = encode(&mut text, &registry);
        text
    }
}

/// Adds what each running sandbox uses.
fn usage(registry: &mut Registry, measured: &[Measured]) {
    type Labels = Vec<(&'static str, String)>;
    let (cpu, memory) = (Family::<Labels, Gauge<f64, AtomicU64>>::default(), Family::<Labels, Gauge>::default());
    let oom = Family::<Labels, Gauge>::default();
    for Measured { sandbox, name, provider, stats } in measured {
        let labels = vec![("sandbox", sandbox.clone()), ("name", name.clone()), ("provider", provider.clone())];
        cpu.get_or_create(&labels).set(Duration::from_micros(stats.cpu_micros).as_secs_f64());
        memory.get_or_create(&labels).set(i64::try_from(stats.memory_bytes).unwrap_or(i64::MAX));
        if let Some(kills) = stats.oom_kills {
            oom.get_or_create(&labels).set(i64::try_from(kills).unwrap_or(i64::MAX));
        }
    }
    registry.register_with_unit("sandbox_cpu", "CPU time of a sandbox since its start", Unit::Seconds, cpu);
    registry.register_with_unit("sandbox_memory", "Memory that a sandbox uses", Unit::Bytes, memory);
    registry.register("sandbox_oom_kills", "Processes of a sandbox that were killed because memory ran out", oom);
}
