//! Any bytes as a message of a TensorFlow checkpoint, as an object graph, a state file, strings or an object.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| reshard_tensor_bundle::testkit::protos(bytes));
