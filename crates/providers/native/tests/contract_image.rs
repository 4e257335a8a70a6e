//! The cases of the contract about isolation, on native as root, with an image. It needs root.

use kennel_core::Provider;
use kennel_image::{LoadOptions, PullOptions, Store};
use kennel_native::Native;
use kennel_testkit::{Home, Net, Subject, busybox};
use kennel_types::{Mode, SandboxSpec};
use std::sync::Arc;

const IMAGE: &str = "kennel-test/busybox:latest";

struct Images {
    home: Home,
    /// A private network, so that no rule of this machine is changed.
    _net: Net,
}

impl Images {
    fn new() -> Self {
        let image = std::fs::read(busybox::archive()).unwrap();
        let images = Self { home: Home::new(), _net: Net::with_internet() };
        let archive = images.home.path().join("image.tar");
        std::fs::write(&archive, image).unwrap();
        let options = LoadOptions { name: Some(IMAGE.parse().unwrap()), ..LoadOptions::default() };
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(images.store().load(&archive, &options, &|_| {})).unwrap();
        images
    }

    fn store(&self) -> Store {
        Store::open(self.home.path().join("images")).unwrap()
    }

    fn native(&self) -> Native {
        Native::new(self.home.state(), self.home.programs())
            .hiding([self.home.settings()])
            .with_images(self.store(), PullOptions::default())
    }
}

impl Subject for Images {
    fn home(&self) -> &Home {
        &self.home
    }

    fn open(&self) -> Arc<dyn Provider> {
        Arc::new(self.native())
    }

    fn spec(&self) -> SandboxSpec {
        SandboxSpec { image: Some(IMAGE.into()), ..SandboxSpec::default() }
    }

    fn mode(&self, provider: &dyn Provider) -> &'static Mode {
        provider.modes()[1]
    }
}

kennel_testkit::isolation_contract!(Images::new());
