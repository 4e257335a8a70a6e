//! The contract, on the mock.

use kennel_core::Provider;
use kennel_mock::Mock;
use kennel_testkit::{Home, Subject};
use std::sync::Arc;

struct Memory {
    home: Home,
    mock: Mock,
}

impl Subject for Memory {
    fn home(&self) -> &Home {
        &self.home
    }

    fn open(&self) -> Arc<dyn Provider> {
        Arc::new(self.mock.clone())
    }
}

kennel_testkit::contract_suite!(Memory { home: Home::new(), mock: Mock::new() });
