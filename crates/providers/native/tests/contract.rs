//! The contract, on the kernel's own namespaces. It needs root.

use kennel_core::Provider;
use kennel_native::Native;
use kennel_testkit::{Home, Subject};
use std::sync::Arc;

struct Namespaces {
    home: Home,
}

impl Subject for Namespaces {
    fn home(&self) -> &Home {
        &self.home
    }

    fn open(&self) -> Arc<dyn Provider> {
        Arc::new(Native::new(self.home.state(), self.home.programs()))
    }
}

kennel_testkit::contract_suite!(Namespaces { home: Home::new() });
