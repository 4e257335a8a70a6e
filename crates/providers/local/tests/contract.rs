//! The contract, on plain processes.

use kennel_core::Provider;
use kennel_local::Local;
use kennel_testkit::{Home, Subject};
use std::sync::Arc;

struct Plain {
    home: Home,
}

impl Subject for Plain {
    fn home(&self) -> &Home {
        &self.home
    }

    fn open(&self) -> Arc<dyn Provider> {
        Arc::new(Local::new(self.home.state(), self.home.programs()))
    }
}

kennel_testkit::contract_suite!(Plain { home: Home::new() });
