//! Any bytes as the packed block of an index whose checksums are right.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| reshard_tensor_bundle::testkit::snappy(bytes));
