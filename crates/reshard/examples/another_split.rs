//! A matrix that four ranks saved by rows is loaded by two ranks that want columns, into memory that they have already.
//!
//! `cargo run -p reshard --example another_split`

#![expect(
    clippy::print_stdout,
    clippy::expect_used,
    reason = "an example, which a test runs"
)]

use reshard::prelude::*;

const ROWS: u64 = 8;
const COLUMNS: u64 = 6;

/// What element `(row, column)` is.
fn element(row: u64, column: u64) -> i32 {
    (row * COLUMNS + column) as i32
}

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    let place = dir.path().join("matrix");

    on_ranks(4, |group| {
        let rank = u64::from(group.rank().0);
        let rows = ROWS / 4;
        let elements =
            (rank * rows..(rank + 1) * rows).flat_map(|r| (0..COLUMNS).map(move |c| element(r, c)));
        let mine = Tensor::from_vec(&[rows, COLUMNS], elements.collect())?;
        let mut state = StateDict::new();
        state.insert_piece(ShardedTensor::from_rank_offsets(
            "m",
            mine,
            &[(0, rank, 4)],
        )?);
        blocking::run(save(&state, &place).group(&group))?;
        Ok(())
    })?;

    on_ranks(2, |group| {
        let rank = u64::from(group.rank().0);
        let columns = COLUMNS / 2;
        // Memory of the model, which the load fills in place.
        let mine = Tensor::zeros("m", DType::Int32, &[ROWS, columns])?;
        let mut template = StateDict::new();
        template.insert_piece(ShardedTensor::from_rank_offsets(
            "m",
            mine,
            &[(1, rank, 2)],
        )?);
        let loaded = blocking::run(load(template, &place).group(&group))?;
        let mine = loaded.tensor("m")?.to_vec::<i32>()?;
        let first = rank * columns;
        let want = (0..ROWS).flat_map(|r| (first..first + columns).map(move |c| element(r, c)));
        assert!(want.eq(mine));
        Ok(())
    })?;
    println!("4 ranks wrote rows, 2 ranks read columns");
    Ok(())
}

/// Runs ranks on threads of this process.
fn on_ranks(
    ranks: u32,
    rank: impl Fn(LocalGroup) -> Result<(), Box<dyn std::error::Error + Send + Sync>> + Sync,
) -> Result<(), Box<dyn std::error::Error>> {
    std::thread::scope(|scope| {
        let all: Vec<_> = LocalGroup::new(ranks)
            .into_iter()
            .map(|g| scope.spawn(|| rank(g)))
            .collect();
        all.into_iter()
            .try_for_each(|rank| rank.join().expect("a rank panicked"))
    })
    .map_err(|e| e as Box<dyn std::error::Error>)
}
