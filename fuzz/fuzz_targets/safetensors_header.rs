//! Any bytes as a file of safetensors, of which only the header is read.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| reshard_safetensors::testkit::header(bytes));
