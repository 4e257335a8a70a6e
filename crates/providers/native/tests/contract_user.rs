//! The cases of the contract about isolation, on native as an ordinary user without subordinate ids.

use kennel_core::Provider;
use kennel_native::Native;
use kennel_testkit::{Home, NOBODYS_IDS, Net, Subject, become_ordinary_user, programs};
use std::sync::Arc;

struct Rootless {
    home: Home,
    /// A private network, so that no rule of this machine is changed.
    _net: Net,
}

impl Rootless {
    fn new() -> Self {
        programs::prepare();
        let net = Net::for_users();
        become_ordinary_user(NOBODYS_IDS);
        Self { home: Home::new(), _net: net }
    }
}

impl Subject for Rootless {
    fn home(&self) -> &Home {
        &self.home
    }

    fn open(&self) -> Arc<dyn Provider> {
        Arc::new(Native::new(self.home.state(), self.home.path().join("programs")).hiding([self.home.settings()]))
    }
}

kennel_testkit::isolation_contract!(Rootless::new());
kennel_testkit::sockets_contract!(Rootless::new());
