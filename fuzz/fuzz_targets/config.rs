//! Parses arbitrary bytes as settings in each format: the result is a tree or an error, and never a panic. Settings
//! that pass the check can be used.
#![no_main]

use kennel_config::{Environment, Format, Layered, SettingsLayer, check_text};
use libfuzzer_sys::fuzz_target;
use std::path::Path;

fuzz_target!(|input: &[u8]| {
    let text = String::from_utf8_lossy(input);
    let environment = Environment::from([("A".to_owned(), "1".to_owned())]);
    for format in [Format::Json, Format::Yaml, Format::Toml] {
        match check_text(&text, format, Path::new("/project/kennel"), SettingsLayer::Project, &environment) {
            Ok(tree) => {
                let layered = Layered::new([tree]);
                layered.config().expect("what passed the check can be used");
                let _ = layered.show();
            }
            Err(error) => {
                let told = error.to_string();
                assert!(!told.contains(|char: char| char.is_control() && char != '\n'), "{told:?}");
            }
        }
    }
});
