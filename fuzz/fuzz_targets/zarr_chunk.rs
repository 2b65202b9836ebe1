//! Any bytes as a chunk of an array: damage, or a chunk of the right size.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| reshard_zarr::testkit::chunk(bytes));
