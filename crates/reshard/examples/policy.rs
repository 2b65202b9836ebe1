//! A sharding policy decides how tensors are cut into files: here no file is larger than 1 MiB.
//!
//! `cargo run -p reshard --example policy`

#![expect(clippy::print_stdout, reason = "an example, which a test runs")]

use reshard::{policy::MaxShardSize, prelude::*};

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    let url = dir.path().join("ckpt").display().to_string();

    let mut state = StateDict::new();
    let table = Tensor::zeros("table", DType::Float32, &[10_000, 64])?;
    state.insert("table", ShardedTensor::full("table", table));
    let report = blocking::run(save(&state, &url).policy(MaxShardSize::new(1 << 20)))?;

    let metrics = report.policy.ok_or("the policy was not asked")?;
    println!(
        "{}: {} files, the largest of {} bytes",
        metrics.description, metrics.shards, metrics.largest
    );
    assert!(metrics.largest <= 1 << 20);

    // It is one tensor all the same: whoever loads it sees nothing of the cuts.
    let table = blocking::Checkpoint::open(&url)?.tensor("table")?;
    assert_eq!(*table.shape(), [10_000, 64].into());
    assert!(table.chunks().len() > 1);
    Ok(())
}
