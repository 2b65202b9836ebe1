//! Policies that only set the number of files: those of DCP's FileSystemWriter.

use crate::{Content, Piece, Result, ShardingPolicy, Shards, by_task::put, tasks::by_task};
use serde::{Deserialize, Serialize};
use std::{cmp::Reverse, collections::BinaryHeap};

/// Spreads the pieces of each task over a fixed number of files, by size: DCP's `thread_count`. It cuts nothing.
///
/// Objects go round robin. Tensors go, largest first, to the file with the fewest bytes of tensors, or the first of several
/// equal ones. Within a file objects come first, then tensors, both in their order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ByFiles {
    /// The number of files of each task. 0 means 1.
    pub files: u32,
}

impl ByFiles {
    /// Sets the number of files of each task.
    pub fn new(files: u32) -> Self {
        Self { files }
    }
}

#[typetag::serde(name = "by_files")]
impl ShardingPolicy for ByFiles {
    fn description(&self) -> String {
        match self.files {
            0 | 1 => "one file per task".into(),
            n => format!("{n} files per task, filled by size"),
        }
    }

    fn plan_settings(&self) -> Option<String> {
        Some(format!("{self:?}"))
    }

    fn shard(&self, pieces: &[Piece<'_>], out: &mut Shards) -> Result<()> {
        let files = self.files_per_task() as usize;
        by_task(pieces)
            .into_iter()
            .try_for_each(|task| put(pieces, spread(pieces, task, files), out))
    }

    fn files_per_task(&self) -> u32 {
        self.files.max(1)
    }
}

/// One file per piece: DCP's `single_file_per_rank=False`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ByItem {}

impl ByItem {
    /// One file per piece.
    pub fn new() -> Self {
        Self {}
    }
}

#[typetag::serde(name = "by_item")]
impl ShardingPolicy for ByItem {
    fn description(&self) -> String {
        "one file for each item".into()
    }

    fn plan_settings(&self) -> Option<String> {
        Some(format!("{self:?}"))
    }

    fn shard(&self, pieces: &[Piece<'_>], out: &mut Shards) -> Result<()> {
        put(pieces, (0..pieces.len()).map(|i| [i]), out)
    }
}

/// Files of one task. Nothing follows one that is empty, so that no more are needed than there are pieces.
fn spread(pieces: &[Piece<'_>], task: Vec<usize>, files: usize) -> Vec<Vec<usize>> {
    let piece = |i: usize| &pieces[i];
    let files = files.min(task.len());
    let (objects, mut tensors): (Vec<usize>, Vec<usize>) = task
        .into_iter()
        .partition(|&i| piece(i).content == Content::Object);
    if files == 1 {
        return vec![objects.into_iter().chain(tensors).collect()];
    }
    let mut out = vec![Vec::new(); files];
    for (n, i) in objects.into_iter().enumerate() {
        out[n % files].push(i);
    }
    tensors.sort_by_key(|&i| Reverse(piece(i).bytes));
    let mut lightest: BinaryHeap<Reverse<(u64, usize)>> =
        (0..files).map(|file| Reverse((0, file))).collect();
    for i in tensors {
        if let Some(mut least) = lightest.peek_mut() {
            let Reverse((bytes, file)) = &mut *least;
            out[*file].push(i);
            *bytes = bytes.saturating_add(piece(i).bytes);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ShardByTask, Then,
        testing::{Owned, decided, told},
    };

    #[test]
    fn objects_go_round_robin_and_tensors_to_the_lightest_file_as_in_dcp() {
        let state = [
            Owned::f32("a", &[1]),
            Owned::object("x", 900),
            Owned::f32("b", &[5]),
            Owned::object("y", 1),
            Owned::f32("c", &[3]),
            Owned::f32("d", &[3]),
            Owned::object("z", 1),
            Owned::f32("e", &[2]).task(1),
        ];
        assert_eq!(told(&ByFiles::new(2), &state), ["x z b a", "y c d", "e"]);
        assert_eq!(told(&ByFiles::new(1), &state), ["x y z a b c d", "e"]);
        assert_eq!(told(&ByFiles::new(0), &state), ["x y z a b c d", "e"]);
        assert_eq!(told(&ByItem::new(), &state).len(), state.len());
    }

    #[test]
    fn a_number_of_files_that_must_be_a_mistake_is_refused() {
        assert!(decided(&ByFiles::new(65_537), &[]).is_err());
        assert_eq!(
            decided(&ByFiles::new(65_536), &[]).unwrap().files_per_task,
            65_536
        );
        // In another policy nothing is promised, and no memory is taken for files that stay empty.
        let most = Then::new(ShardByTask::new(), ByFiles::new(u32::MAX));
        assert_eq!(
            told(&most, &[Owned::f32("a", &[1]), Owned::f32("b", &[2])]),
            ["b", "a"]
        );
    }
}
