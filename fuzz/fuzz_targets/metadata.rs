//! Any bytes as a `.metadata`.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    drop(reshard_torch_dist::parse_metadata(bytes.to_vec()));
});
