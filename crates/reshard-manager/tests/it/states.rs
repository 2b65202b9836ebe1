//! Small states that tell their step, and checks of what lies in a directory.

use reshard::{
    DType, LocalGroup, ShardedTensor, StateDict, Tensor,
    blocking::{self, Checkpoint},
    storage::Progress,
};
use reshard_manager::{Result, Saved, Saver};
use std::path::Path;

/// The part of one of so many ranks.
pub(crate) fn part(step: u64, rank: u64, ranks: u64) -> StateDict {
    let rows = Tensor::from_vec(&[2, 3], vec![step as f32; 6]).unwrap();
    let mut state = StateDict::new();
    state.insert_piece(ShardedTensor::from_rank_offsets("w", rows, &[(0, rank, ranks)]).unwrap());
    state.insert("step", i64::try_from(step).unwrap());
    state
}

pub(crate) fn state(step: u64) -> StateDict {
    part(step, 0, 1)
}

/// Saves from several ranks, which have a saver each.
pub(crate) fn save_in(groups: &[LocalGroup], savers: &[Saver], step: u64) -> Vec<Result<Saved>> {
    std::thread::scope(|scope| {
        let ranks = groups.iter().zip(savers).zip(0u64..);
        let threads: Vec<_> = ranks
            .map(|((group, saver), rank)| {
                scope.spawn(move || {
                    let state = part(step, rank, groups.len() as u64);
                    let saved = saver.save(step, &state, |save| save.group(group));
                    reshard::storage::wait(saved)
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

/// How far apart the calls are at which storage fails: with `RESHARD_THOROUGH` it fails at each of them.
pub(crate) fn stride() -> u64 {
    reshard_model::testkit::one_in(10) as u64
}

/// The complete checkpoints.
pub(crate) fn steps(dir: &Path) -> Vec<u64> {
    let steps = reshard_manager::blocking::steps(dir).unwrap();
    steps.iter().map(|step| step.number).collect()
}

/// All names in a directory, hidden ones too.
pub(crate) fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let mut names: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// That the newest checkpoint is of this step, whole, and has the right values.
pub(crate) fn newest_is(dir: &Path, want: u64) {
    let newest = reshard_manager::blocking::latest(dir).unwrap().unwrap();
    assert_eq!(newest.number, want);
    let checkpoint = Checkpoint::open(&newest).unwrap();
    let found = checkpoint.verify(true, Progress::default()).unwrap();
    assert_eq!(found.damage, []);
    let tensor = checkpoint.tensor("w").unwrap();
    let whole = tensor.shape().to_vec();
    let mut template = StateDict::new();
    template.insert_piece(ShardedTensor::template("w", DType::Float32, &whole));
    let loaded = blocking::load(template, &newest).unwrap();
    let elements = loaded.tensor("w").unwrap().to_vec::<f32>().unwrap();
    assert!(elements.iter().all(|e| *e == want as f32), "{elements:?}");
    assert_eq!(loaded.int("step").unwrap(), i64::try_from(want).unwrap());
}
