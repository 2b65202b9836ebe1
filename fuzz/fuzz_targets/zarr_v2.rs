//! Any bytes as a `.zarray` and a `.zmetadata`.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| reshard_zarr::testkit::v2_metadata(bytes));
