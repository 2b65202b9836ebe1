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
    let place = dir.path().join("step-100");

    // Ranks of this example are threads. In a job each process has a group of its own, and calls `save` once.
    std::thread::scope(|scope| {
        let ranks = LocalGroup::new(2).into_iter().map(|group| {
            let place = &place;
            scope.spawn(
                move || -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
                    let rank = u64::from(group.rank().0);
                    let mut state = StateDict::new();
                    // Row `rank` of two.
                    let row = Tensor::from_vec(&[1, 3], vec![rank as f32; 3])?;
                    state.insert_piece(ShardedTensor::from_rank_offsets(
                        "layer.weight",
                        row,
                        &[(0, rank, 2)],
                    )?);
                    // Not sharded: common state, which the coordinator saves.
                    state.insert("step", 100);
                    blocking::run(save(&state, place).group(&group))?;
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
    template.insert_piece(ShardedTensor::template(
        "layer.weight",
        DType::Float32,
        &[2, 3],
    ));
    let state = blocking::load(template, &place)?;
    let weight = state.tensor("layer.weight")?.to_vec::<f32>()?;
    assert_eq!(weight, [0., 0., 0., 1., 1., 1.]);
    assert_eq!(state.int("step")?, 100);
    println!("loaded step 100 from {}", place.display());
    Ok(())
}
