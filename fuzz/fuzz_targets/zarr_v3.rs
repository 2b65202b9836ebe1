//! Any bytes as a `zarr.json`.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| reshard_zarr::testkit::v3_metadata(bytes));
