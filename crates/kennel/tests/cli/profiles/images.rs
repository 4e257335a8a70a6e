//! A profile or a pool whose image has changed since its sandbox was created.

use super::{delete, profile, sandbox_of, sh};
use crate::idle::Resident;
use crate::pools::until_filled;
use crate::support::Kennel;
use crate::terminal::terminal;
use expectrl::{Eof, Expect};
use kennel_testkit::busybox;
use kennel_testkit::docker::{docker as ask_docker, socket as docker_socket};
use kennel_testkit::podman::Service;
use std::path::PathBuf;
use std::process::Command;

on_providers! {
    changed_image_is_reported_and_used_on_request,
    changed_image_of_the_settings_is_reported,
}

/// An image that only this machine has. It is removed when this is dropped.
struct Image<'a> {
    kennel: &'a Kennel,
    name: String,
    /// The ids of all its versions on an engine.
    ids: Vec<String>,
}

impl<'a> Image<'a> {
    fn new(kennel: &'a Kennel) -> Self {
        // Nothing listens at that port, so a pull fails at once.
        let name = format!("127.0.0.1:1/changing-{}:latest", kennel.home.mark().to_lowercase());
        Self { kennel, name, ids: Vec::new() }
    }

    fn socket(&self) -> Option<PathBuf> {
        match self.kennel.provider {
            "docker" => Some(docker_socket()),
            "podman" => Some(Service::Root.socket()),
            _ => None,
        }
    }

    /// Makes the name refer to an image with this text in the file `/version`.
    fn make(&mut self, version: &str) {
        let (dir, archive) = (self.kennel.home.path(), self.kennel.home.path().join("image.tar"));
        std::fs::copy(busybox::archive(), &archive).unwrap();
        std::fs::write(dir.join("version"), version).unwrap();
        let append = ["--append", "--owner=0", "--group=0", "--file", "image.tar", "version"];
        assert!(Command::new("tar").args(append).current_dir(dir).status().unwrap().success());
        let archive = archive.to_str().unwrap();
        match self.socket() {
            Some(socket) => {
                let printed = ask_docker(&socket, &["import", archive, &self.name]);
                self.ids.extend(printed.split_whitespace().last().map(ToOwned::to_owned));
            }
            None => drop(self.kennel.kennel(&["image", "load", "--name", &self.name, archive]).ok()),
        }
    }
}

impl Drop for Image<'_> {
    fn drop(&mut self) {
        if let Some(socket) = self.socket().filter(|_| !std::thread::panicking()) {
            for id in &self.ids {
                ask_docker(&socket, &["rmi", "--force", id]);
            }
        }
    }
}

fn is_changed(kennel: &Kennel, name: &str) -> bool {
    profile(kennel, &["status", "--json", name]).json()["imageChanged"].as_bool().unwrap()
}

/// What a person sees.
fn shown(kennel: &Kennel, words: &[&str]) -> String {
    let mut session = terminal(kennel.call(&[&["profile"], words].concat()));
    String::from_utf8_lossy(session.expect(Eof).expect("kennel ends").as_bytes()).into_owned()
}

const NOTE: &str = "the image has changed since the sandbox was created; to use it: kennel profile restart --pull img";

fn changed_image_is_reported_and_used_on_request(kennel: &Kennel) {
    let mut image = Image::new(kennel);
    image.make("one");
    profile(kennel, &["create", "img", "--image", &image.name, "--data", "--network", "none"]).ok();
    assert_eq!(sh(kennel, "img", "echo kept > /.data/file; cat /version").ok(), "one");
    let id = sandbox_of(kennel, "img");
    assert!(!is_changed(kennel, "img"));

    image.make("two");
    assert!(is_changed(kennel, "img"));
    assert!(profile(kennel, &["list"]).ok().contains(" (changed)"));
    let shown = shown(kennel, &["exec", "img", "--", "cat", "/version"]);
    assert!(shown.contains(NOTE) && shown.ends_with("one"), "the sandbox that exists is not changed: {shown:?}");
    profile(kennel, &["restart", "img"]).ok();
    assert_eq!((sandbox_of(kennel, "img"), sh(kennel, "img", "cat /version").ok().as_str()), (id.clone(), "one"));

    profile(kennel, &["restart", "--pull", "img"]).ok();
    assert_ne!(sandbox_of(kennel, "img"), id);
    assert_eq!(sh(kennel, "img", "cat /version /.data/file").ok(), "twokept", "its volumes are kept");
    assert!(!is_changed(kennel, "img"));
    // Now a pull that fails is an error: there is no newer image either.
    assert!(profile(kennel, &["restart", "--pull", "img"]).fails(125).contains("127.0.0.1:1"));
    assert_eq!(sh(kennel, "img", "cat /version").ok(), "two");
    delete(kennel, "img");
}

/// A member of a pool with an older image is not handed out.
#[test]
fn pool_does_not_hand_out_an_older_image() {
    let kennel = Kennel::on("docker");
    let mut image = Image::new(&kennel);
    image.make("one");
    let resident = Resident::start(&kennel);
    let name = image.name.clone();
    let options = ["--image", &name, "--network", "none"];
    kennel.kennel(&[&["pool", "set", "old", "--session"], &options[..]].concat()).ok();
    until_filled(&kennel, "old");
    image.make("two");
    kennel.kennel(&[&["session", "create", "--name", "new", "--no-workspace"], &options[..]].concat()).ok();
    assert_eq!(kennel.kennel(&["session", "exec", "new", "--", "cat", "/version"]).ok(), "two");
    kennel.kennel(&["session", "rm", "--force", "new"]).ok();
    resident.end();
}

/// The image may also come from the settings, for all sandboxes.
fn changed_image_of_the_settings_is_reported(kennel: &Kennel) {
    let mut image = Image::new(kennel);
    image.make("one");
    let user = kennel.home.path().join("config/config.toml");
    std::fs::create_dir_all(user.parent().unwrap()).unwrap();
    std::fs::write(&user, format!("[sandbox]\nimage = \"{}\"\n", image.name)).unwrap();
    profile(kennel, &["create", "general", "--network", "none"]).ok();
    assert_eq!(sh(kennel, "general", "cat /version").ok(), "one");
    assert!(!is_changed(kennel, "general"));
    image.make("two");
    assert!(is_changed(kennel, "general"));
    profile(kennel, &["restart", "--pull", "general"]).ok();
    assert_eq!(sh(kennel, "general", "cat /version").ok(), "two");
    delete(kennel, "general");
}
