//! For tests, of this crate and of others: the contracts that strategies and planners keep, a way to drive them without the
//! facade, and a [`Observer`] on every hook, to record calls or to make them fail.
//!
//! A crate with a strategy of its own runs the suites in a test, with the feature `testkit` of this crate among its
//! `dev-dependencies`:
//!
//! ```text
//! #[test]
//! fn the_strategy_keeps_its_contract() {
//!     reshard_strategy::testkit::save_load_contract(&MyConfig::default(), &MyLoadConfig::default());
//! }
//! ```

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod checks;
mod claims;
mod common;
mod drive;
mod exchange;
mod exchange_of_saves;
mod flat;
mod kept;
mod left;
mod meter;
mod moved;
pub mod numbered;
mod observer;
mod phases;
mod planners;
mod sample;
mod strategies;

pub use common::common_contract;
pub use drive::{Rank, load_on_ranks, save_on_ranks, save_staged_on_ranks};
pub use kept::metadata_contract;
pub use moved::Moved;
pub use observer::{Observed, Observer};
pub use planners::{load_planner_contract, save_planner_contract};
pub use sample::{Cut, check_sample, sample, sample_template};
pub use strategies::save_load_contract;

/// The JSON of a strategy with a layer around it.
///
/// # Panics
/// `base` is no JSON of a strategy.
pub fn layered(layer: serde_json::Value, base: &serde_json::Value) -> serde_json::Value {
    let mut strategy = base.as_object().expect("a strategy").clone();
    let format = strategy.remove("format").expect("the name of a format");
    let layers = strategy.remove("layers").unwrap_or_default();
    let settings = match strategy.remove("settings") {
        Some(settings) => settings,
        // The flat form.
        None => strategy.into(),
    };
    let inner = layers.as_array().into_iter().flatten().cloned();
    let layers: Vec<serde_json::Value> = std::iter::once(layer).chain(inner).collect();
    serde_json::json!({ "format": format, "settings": settings, "layers": layers })
}
