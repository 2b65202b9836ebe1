//! Any bytes as an index of safetensors.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| reshard_safetensors::testkit::index(bytes));
