//! Any bytes as a pickle, and as a tensor's description.
#![no_main]

use libfuzzer_sys::fuzz_target;
use reshard_torch_format::{Limits, TensorRef, pickle};

fuzz_target!(|bytes: &[u8]| {
    let mut graph = pickle::Graph::default();
    drop(pickle::run(bytes, &mut graph, &Limits::default()));
    drop(TensorRef::parse(bytes, &Limits::default()));
});
