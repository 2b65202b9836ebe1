//! Policies that only count files: those of DCP's FileSystemWriter.

use crate::{Content, Piece, PolicyError, Result, ShardingPolicy, Shards};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;

/// So many files for each task, over which its pieces are spread by size: DCP's `thread_count`. Nothing is cut.
///
/// Objects go round robin; tensors, largest first, to the file with the fewest bytes of tensors, of equal ones the first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ByFiles {
    /// Files of each task; 0 means 1.
    pub files: u32,
}

impl ByFiles {
    /// So many files for each task.
    pub fn new(files: u32) -> Self {
        Self { files }
    }
}

#[typetag::serde(name = "by_files")]
impl ShardingPolicy for ByFiles {
    fn description(&self) -> String {
        match self.files {
            0 | 1 => "one file a task".into(),
            n => format!("{n} files a task, filled by size"),
        }
    }

    fn shard(&self, pieces: &[Piece<'_>], out: &mut Shards) -> Result<()> {
        for (from, of_task) in by_task(pieces) {
            let files = self.files_per_task() as usize;
            if files > pieces.len().saturating_add(MAX_EMPTY) {
                let what = format!("{files} files for {} pieces; take fewer", pieces.len());
                return Err(PolicyError::invalid(what));
            }
            let (objects, mut tensors): (Vec<usize>, Vec<usize>) =
                (0..of_task.len()).partition(|&i| of_task[i].content == Content::Object);
            let mut buckets: Vec<(u64, Vec<usize>)> = vec![(0, Vec::new()); files];
            for (n, i) in objects.into_iter().enumerate() {
                buckets[n % files].1.push(i);
            }
            tensors.sort_by_key(|&i| Reverse(of_task[i].bytes));
            for i in tensors {
                let lightest = (0..files).min_by_key(|&f| buckets[f].0).unwrap_or(0);
                buckets[lightest].0 += of_task[i].bytes;
                buckets[lightest].1.push(i);
            }
            for (_, bucket) in buckets {
                out.start();
                for i in bucket {
                    out.push(from + i, of_task[i].region.clone())?;
                }
            }
        }
        Ok(())
    }

    fn files_per_task(&self) -> u32 {
        self.files.max(1)
    }
}

/// More empty files than that are surely a mistake.
const MAX_EMPTY: usize = 65_536;

/// A file for each piece: DCP's `single_file_per_rank=False`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ByItem {}

impl ByItem {
    /// A file for each piece.
    pub fn new() -> Self {
        Self {}
    }
}

#[typetag::serde(name = "by_item")]
impl ShardingPolicy for ByItem {
    fn description(&self) -> String {
        "a file for each item".into()
    }

    fn shard(&self, pieces: &[Piece<'_>], out: &mut Shards) -> Result<()> {
        for (i, piece) in pieces.iter().enumerate() {
            out.start();
            out.push(i, piece.region.clone())?;
        }
        Ok(())
    }
}

/// Runs of pieces of one task, each with the position of its first.
fn by_task<'p, 'a>(pieces: &'p [Piece<'a>]) -> impl Iterator<Item = (usize, &'p [Piece<'a>])> {
    let mut at = 0;
    pieces.chunk_by(|a, b| a.task == b.task).map(move |run| {
        at += run.len();
        (at - run.len(), run)
    })
}
