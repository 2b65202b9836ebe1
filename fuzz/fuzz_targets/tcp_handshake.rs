//! Any bytes in a handshake, on both sides: nobody gets in.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| reshard_comm_tcp::testkit::handshakes(bytes));
