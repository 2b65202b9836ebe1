//! Any bytes as a shard: damage, or inner chunks that lie in it.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| reshard_zarr::testkit::shard(bytes));
