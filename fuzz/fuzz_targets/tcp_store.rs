//! Any bytes as requests to a store, and as its answers.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| reshard_comm_tcp::testkit::requests(bytes));
