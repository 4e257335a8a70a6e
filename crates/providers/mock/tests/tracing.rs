//! Spans and events that programs can collect.

use kennel_core::Sandbox;
use kennel_mock::Mock;
use kennel_types::{ExecSpec, SandboxSpec};
use std::fmt::{Debug, Write};
use std::sync::{Arc, Mutex};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Collects the fields of all spans and events.
#[derive(Clone, Default)]
struct Collected(Arc<Mutex<Vec<String>>>);

struct Fields(String);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = write!(self.0, " {}={value:?}", field.name());
    }
}

impl Collected {
    fn add(&self, metadata: &Metadata<'_>, record: impl FnOnce(&mut Fields)) {
        if metadata.target().starts_with("kennel_core") {
            let mut fields = Fields(metadata.name().to_owned());
            record(&mut fields);
            self.0.lock().unwrap().push(fields.0);
        }
    }

    fn has(&self, parts: &[&str]) -> bool {
        self.0.lock().unwrap().iter().any(|line| parts.iter().all(|part| line.contains(part)))
    }
}

impl Subscriber for Collected {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        self.add(span.metadata(), |fields| span.record(fields));
        Id::from_u64(1)
    }

    fn event(&self, event: &Event<'_>) {
        self.add(event.metadata(), |fields| event.record(fields));
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[tokio::test]
async fn calls_of_the_provider_and_requests_to_the_keeper_are_traced() {
    let collected = Collected::default();
    let _guard = tracing::subscriber::set_default(collected.clone());
    let sandbox = Sandbox::create(Arc::new(Mock::new()), &SandboxSpec::default()).await.unwrap();
    sandbox.start().await.unwrap();
    sandbox.run(&ExecSpec::argv(["true"]), None, 10).await.unwrap();
    sandbox.processes().await.unwrap();
    let id = format!("sandbox={:?}", sandbox.id().as_str());
    for call in ["create", "start", "dial"] {
        let call = format!("call={call:?}");
        assert!(collected.has(&["provider=\"mock\"", &call, &id]), "{call}: {:?}", collected.0.lock().unwrap());
    }
    assert!(collected.has(&["connected to the keeper", "generation="]));
    assert!(collected.has(&["sent a request to the keeper", "request=\"spawn\""]));
    assert!(collected.has(&["keeper", "request=\"processes\""]));
}
