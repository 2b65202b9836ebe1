//! Any bytes as the frames that a member sends to another rank.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| reshard_comm_tcp::testkit::frames(bytes));
