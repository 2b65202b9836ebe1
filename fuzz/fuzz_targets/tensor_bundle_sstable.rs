//! Any bytes as the index of a TensorFlow checkpoint: a table, and the entries in it.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| reshard_tensor_bundle::testkit::sstable(bytes));
