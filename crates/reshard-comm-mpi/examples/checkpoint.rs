//! All ranks of an MPI job save a matrix by rows. Any number of ranks loads it by columns.
//!
//! `mpirun -n 4 target/debug/examples/checkpoint save DIR`, then `mpirun -n 2 target/debug/examples/checkpoint load DIR`

#![expect(clippy::print_stdout, reason = "an example, which a test runs")]

use reshard::{Dialect, prelude::*};
use reshard_comm_mpi::MpiGroup;

const ROWS: u64 = 8;
const COLUMNS: u64 = 12;

/// What element `(row, column)` is.
fn element(row: u64, column: u64) -> f32 {
    (row * COLUMNS + column) as f32
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [command, url] = &words[..] else {
        return Err("needs a command and a directory: save DIR, or load DIR".into());
    };
    let group = MpiGroup::init()?;
    let (rank, ranks) = (u64::from(group.rank().0), u64::from(group.size()));
    if !ROWS.is_multiple_of(ranks) || !COLUMNS.is_multiple_of(ranks) {
        return Err(
            format!("{ROWS} rows and {COLUMNS} columns don't divide by {ranks} ranks").into(),
        );
    }
    match command.as_str() {
        "save" => {
            let mine = rank * (ROWS / ranks)..(rank + 1) * (ROWS / ranks);
            let elements =
                mine.flat_map(|row| (0..COLUMNS).map(move |column| element(row, column)));
            let tensor = Tensor::from_vec(&[ROWS / ranks, COLUMNS], elements.collect())?;
            let mut state = StateDict::new();
            state.insert(
                "m",
                ShardedTensor::from_rank_offsets("m", tensor, &[(0, rank, ranks)])?,
            );
            blocking::run(save(&state, url).group(&group).dialect(Dialect::Dcp))?;
            println!("rank {rank} of {ranks} saved its rows");
        }
        "load" => {
            let tensor = Tensor::zeros("m", DType::Float32, &[ROWS, COLUMNS / ranks])?;
            let mut template = StateDict::new();
            template.insert(
                "m",
                ShardedTensor::from_rank_offsets("m", tensor, &[(1, rank, ranks)])?,
            );
            let state = blocking::run(load(template, url).group(&group))?;
            let mine = rank * (COLUMNS / ranks)..(rank + 1) * (COLUMNS / ranks);
            let wanted =
                (0..ROWS).flat_map(|row| mine.clone().map(move |column| element(row, column)));
            let loaded = state.tensor("m")?.to_vec::<f32>()?;
            if !wanted.eq(loaded) {
                return Err("the columns are not what was saved".into());
            }
            println!("rank {rank} of {ranks} loaded its columns");
        }
        other => return Err(format!("there is no command {other}").into()),
    }
    Ok(())
}
