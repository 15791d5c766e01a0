//! Any document: taken or refused, never a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate::config::Config;

fuzz_target!(|document: &[u8]| {
    if let Err(error) = Config::parse(document) {
        assert!(!error.to_string().is_empty());
    }
});
