//! The contract, on native as root. It needs root.

use kennel_core::Provider;
use kennel_native::Native;
use kennel_testkit::net::sandbox_interfaces;
use kennel_testkit::{Home, Net, Subject};
use std::sync::Arc;

struct Namespaces {
    home: Home,
    /// A private network, so that no rule of this machine is changed.
    _net: Net,
}

impl Subject for Namespaces {
    fn home(&self) -> &Home {
        &self.home
    }

    fn leftovers(&self) -> Vec<String> {
        sandbox_interfaces().into_iter().map(|name| format!("interface {name}")).collect()
    }

    fn open(&self) -> Arc<dyn Provider> {
        Arc::new(Native::new(self.home.state(), self.home.programs()).hiding([self.home.settings()]))
    }
}

kennel_testkit::contract_suite!(Namespaces { home: Home::new(), _net: Net::with_internet() });
