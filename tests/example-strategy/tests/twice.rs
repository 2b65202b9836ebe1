//! A program that links two crates which claim the same names: every save and load says so, and names both.

use reshard::{
    Registry, StateDict, Stores,
    storage::{LocalStore, StoreScheme},
    strategy::{Make, Registration},
};
use reshard_example as _;
use std::sync::Arc;

inventory::submit! { Registration {
    backend: "example",
    version: 1,
    origin: "somebody-else",
    origin_version: "0.1.0",
    make: Make::SaveSharded(reshard::strategy::save_format::<reshard::torch_dist::TorchDistConfig>),
} }

inventory::submit! {
    StoreScheme::new("example", "somebody-else", "1.0.0", |url| Ok(Arc::new(LocalStore::open(url)?)))
}

#[test]
fn two_crates_that_claim_one_key_are_an_error_that_names_both() {
    let both = |e: String| {
        assert!(
            e.contains("reshard-example") && e.contains("somebody-else"),
            "{e}"
        )
    };
    both(Registry::linked().unwrap_err().to_string());
    both(Stores::linked().unwrap_err().to_string());
    let dir = tempfile::tempdir().unwrap();
    let url = dir.path().join("x").display().to_string();
    let e = reshard::blocking::save(&StateDict::new(), &url).unwrap_err();
    both(e.strategy_error().to_string());
    assert!(!dir.path().join("x").exists());
}
