//! Two ranks save rows of a weight and a counter; one rank loads all of it.
//!
//! `cargo run -p reshard --example save_and_load`

#![expect(
    clippy::print_stdout,
    clippy::expect_used,
    reason = "an example, which a test runs"
)]

use reshard::prelude::*;

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    let url = dir.path().join("step-100").display().to_string();

    // Ranks of this example are threads. In a job each process has a group of its own, and calls `save` once.
    std::thread::scope(|scope| {
        let ranks = LocalGroup::new(2).into_iter().map(|group| {
            let url = &url;
            scope.spawn(
                move || -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
                    let rank = u64::from(group.rank().0);
                    let mut state = StateDict::new();
                    // Row `rank` of two.
                    let row = Tensor::from_vec(&[1, 3], vec![rank as f32; 3])?;
                    state.insert(
                        "weight",
                        ShardedTensor::from_rank_offsets("layer.weight", row, &[(0, rank, 2)])?,
                    );
                    // Not sharded: common state, which the coordinator saves.
                    state.insert("step", 100);
                    blocking::run(save(&state, url).group(&group))?;
                    Ok(())
                },
            )
        });
        let ranks: Vec<_> = ranks.collect();
        ranks
            .into_iter()
            .try_for_each(|rank| rank.join().expect("a rank panicked"))
    })
    .map_err(|e| e as Box<dyn std::error::Error>)?;

    // A template says what is wanted. Memory is allocated, since none is given.
    let mut template = StateDict::new();
    template.insert(
        "weight",
        ShardedTensor::template("layer.weight", DType::Float32, &[2, 3]),
    );
    let state = blocking::load(template, &url)?;
    let leaf = |key: &str| state.get(key).and_then(|tree| tree.leaf());
    let weight = leaf("weight")
        .and_then(Value::as_tensor)
        .and_then(Tensor::to_vec::<f32>);
    assert_eq!(weight, Some(vec![0., 0., 0., 1., 1., 1.]));
    assert_eq!(leaf("step").and_then(Value::as_int), Some(100));
    println!("loaded step 100 from {url}");
    Ok(())
}
