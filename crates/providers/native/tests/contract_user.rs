//! The contract, on the kernel's own namespaces, made by an ordinary user who has one id to give: its own.

use kennel_core::Provider;
use kennel_native::Native;
use kennel_testkit::{Home, NOBODYS_IDS, Subject, become_ordinary_user};
use std::sync::Arc;

struct Rootless {
    home: Home,
}

impl Rootless {
    fn new() -> Self {
        become_ordinary_user(NOBODYS_IDS);
        Self { home: Home::new() }
    }
}

impl Subject for Rootless {
    fn home(&self) -> &Home {
        &self.home
    }

    fn open(&self) -> Arc<dyn Provider> {
        Arc::new(Native::new(self.home.state(), self.home.path().join("programs")))
    }
}

kennel_testkit::contract_suite!(Rootless::new());
