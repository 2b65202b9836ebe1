//! Keys of optimizer state, and layouts of buckets.
#![no_main]

use libfuzzer_sys::fuzz_target;
use reshard_optim::{BucketLayout, OptimizerKey, StoredKey, stored_optimizers};

fuzz_target!(|text: &str| {
    let _ = OptimizerKey::parse(text);
    let keys = text.lines().map(|key| StoredKey {
        key,
        flattened: key.len() % 2 == 0,
    });
    for optimizer in stored_optimizers(keys, None) {
        let _ = optimizer.to_string();
    }
    if let Ok(layout) = serde_json::from_str::<BucketLayout>(text) {
        let _ = layout.validate();
    }
});
