//! Laws of whole saves and loads: what the tests in `tests/` are made of.
//!
//! - [`contents`]: the generators of random states, of ways to spread them over ranks, and of memory to load into;
//! - [`formats`]: all formats, with places for their checkpoints;
//! - [`zarrs`]: the formats of Zarr arrays, and which element types they have names for;
//! - [`ranks`]: saves and loads on threads of this process;
//! - [`place`]: stores that a test keeps a hand on, under URLs;
//! - [`observed`]: strategies with an observer on every hook.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

pub mod contents;
pub mod formats;
pub mod observed;
pub mod place;
pub mod ranks;
pub mod zarrs;

/// Returns the configuration of a law of whole saves and loads: a third of the cases, or as many as `PROPTEST_CASES` says.
pub fn law(cases: u32) -> proptest::test_runner::Config {
    let mut config = reshard_model::testkit::law(cases / 3);
    // A case is a whole save and load on threads: shrinking it for long would say little more.
    config.max_shrink_iters = 200;
    config
}
