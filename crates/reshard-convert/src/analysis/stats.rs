//! What the numbers of each tensor are like.

use super::{
    blocks::{Unit, fold_blocks, read},
    numbers::{Moments, number},
};
use crate::Result;
use reshard::{Checkpoint, DType, ErrorKind, Region, TensorHandle, model::Dims, storage::Progress};
use std::{ops::ControlFlow, sync::Arc};

/// Of so many damaged tensors [`stats`] says why they can't be read. One more ends it: each costs more than a sound one.
const MOST_DAMAGED: usize = 10_000;

/// What the numbers of a tensor are like. A complex element counts as two numbers. `min`, `max`, `mean` and `norm` are of the finite ones.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct TensorStats {
    /// Key of the tensor.
    pub key: String,
    /// Element type.
    pub dtype: DType,
    /// The number of elements along each axis.
    pub shape: Dims,
    /// The numbers. `None` for elements that are no numbers (packed float4).
    pub stats: Option<Stats>,
}

/// Figures of numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Stats {
    /// How many numbers there are.
    pub numbers: u64,
    /// How many are zero.
    pub zeros: u64,
    /// How many are NaN.
    pub nans: u64,
    /// How many are infinite.
    pub infinite: u64,
    /// How many are closer to zero than the smallest normal number of the element type, and not zero.
    pub denormals: u64,
    /// The smallest one; `None` if none is finite.
    pub min: Option<f64>,
    /// The largest one; `None` if none is finite.
    pub max: Option<f64>,
    /// The mean; `None` if none is finite.
    pub mean: Option<f64>,
    /// The root of the sum of squares.
    pub norm: f64,
    /// How many rows of a tensor of two or more axes have only bits that are zero.
    pub dead_rows: u64,
}

/// A tensor of which something can't be read, because its bytes are damaged.
#[derive(Debug)]
#[non_exhaustive]
pub struct DamagedTensor {
    /// Key of the tensor.
    pub key: String,
    /// What is damaged.
    pub error: reshard::Error,
}

/// What is suspicious about weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::Display, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[non_exhaustive]
pub enum Flag {
    /// Some numbers are NaN.
    Nan,
    /// Some numbers are infinite.
    #[strum(to_string = "inf")]
    Infinite,
    /// All numbers are zero.
    AllZero,
    /// Some rows are zero, but not all.
    DeadRows,
    /// More than one number in a hundred is denormal.
    Denormal,
}

impl Flag {
    /// Its name: `nan`, `inf`, `all_zero`, `dead_rows`, `denormal`.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

impl Stats {
    /// What is suspicious, if these are weights.
    pub fn flags(&self) -> Vec<Flag> {
        let all_zero = self.zeros == self.numbers && self.numbers > 0;
        let flags = [
            (Flag::Nan, self.nans > 0),
            (Flag::Infinite, self.infinite > 0),
            (Flag::AllZero, all_zero),
            (Flag::DeadRows, self.dead_rows > 0 && !all_zero),
            (Flag::Denormal, self.denormals > self.numbers / 100),
        ];
        let set = flags.into_iter().filter(|(_, is)| *is);
        set.map(|(flag, _)| flag).collect()
    }

    fn of(m: &Moments, dead_rows: u64) -> Self {
        let finite = m.numbers - m.nans - m.infinite;
        Self {
            numbers: m.numbers,
            zeros: m.zeros,
            nans: m.nans,
            infinite: m.infinite,
            denormals: m.denormals,
            min: m.range.map(|(min, _)| min),
            max: m.range.map(|(_, max)| max),
            mean: (finite > 0).then_some(m.sum / finite.max(1) as f64),
            norm: m.squares.sqrt(),
            dead_rows,
        }
    }
}

/// Looks at the numbers of the chosen tensors of a checkpoint, on several threads, in memory that does not depend on their size. `each` gets
/// the figures of each tensor, in the order of keys. `progress` is told how many bytes were read. Checksums are not checked. Tensors that can't be read,
/// because their bytes are damaged, are returned; there are no figures of them.
///
/// ```
/// use reshard::{ShardedTensor, StateDict, Tensor, blocking};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let url = dir.path().join("ckpt").display().to_string();
/// let mut state = StateDict::new();
/// let weight = Tensor::from_vec(&[2, 2], vec![3f32, -4.0, 0.0, 0.0])?;
/// state.insert("w", ShardedTensor::full("w", weight));
/// blocking::save(&state, &url)?;
///
/// let checkpoint = blocking::Checkpoint::open(&url)?;
/// let mut seen = Vec::new();
/// let stats = reshard_convert::stats(&checkpoint, |_| true, Default::default(), |t| seen.push(t));
/// assert!(blocking::run(stats)?.is_empty());
/// let w = seen[0].stats.unwrap();
/// assert_eq!((w.norm, w.min, w.max, w.dead_rows), (5.0, Some(-4.0), Some(3.0), 1));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`ConvertError::Read`](crate::ConvertError::Read): the first tensor that can't be read for another reason than damage, or the 10,001st that is damaged.
pub async fn stats(
    checkpoint: &Checkpoint,
    chosen: impl Fn(&str) -> bool,
    progress: Progress,
    mut each: impl FnMut(TensorStats),
) -> Result<Vec<DamagedTensor>> {
    let tensors: Vec<TensorHandle> = checkpoint.tensors().filter(|t| chosen(t.key())).collect();
    let sizes: Vec<(u64, Region)> = tensors
        .iter()
        .map(|t| (t.dtype().size(), Region::whole(t.shape())))
        .collect();
    let tensors = Arc::new(tensors);
    let look = {
        let tensors = Arc::clone(&tensors);
        move |unit: &Unit| {
            let found = match tensors.get(unit.tensor) {
                Some(tensor) => look(tensor, &unit.region)?,
                None => Block::default(),
            };
            progress.add(found.bytes);
            Ok(found)
        }
    };
    let fold = |sum: &mut Sum, _: &Unit, found: reshard::Result<Block>| match found {
        Ok(found) => {
            sum.add(&found);
            Ok(ControlFlow::Continue(()))
        }
        Err(e) if e.kind() == ErrorKind::Corrupt => {
            sum.damage = Some(e);
            Ok(ControlFlow::Break(()))
        }
        Err(e) => Err(e),
    };
    let mut damaged = Vec::new();
    let end = |at: usize, sum: Sum| {
        let Some(t) = tensors.get(at) else {
            return Ok(());
        };
        match sum.done(t) {
            Ok(stats) => each(stats),
            Err(error) if damaged.len() < MOST_DAMAGED => damaged.push(DamagedTensor {
                key: t.key().into(),
                error,
            }),
            Err(error) => return Err(error),
        }
        Ok(())
    };
    fold_blocks(&sizes, look, fold, end).await?;
    Ok(damaged)
}

/// What was found in a block.
#[derive(Clone, Copy, Debug, Default)]
struct Block {
    bytes: u64,
    moments: Moments,
    rows: Rows,
}

/// The rows in a block.
#[derive(Clone, Copy, Debug, Default)]
struct Rows {
    /// How many whole rows are zero.
    dead: u64,
    /// If the block is a part of one row: which row, and whether the part is zero.
    part: Option<(u64, bool)>,
}

fn look(tensor: &TensorHandle, region: &Region) -> reshard::Result<Block> {
    let bytes = read(tensor, region)?.to_bytes();
    let moments = match number(tensor.dtype()) {
        Some(number) => Moments::of(number, &bytes),
        None => Moments::default(),
    };
    Ok(Block {
        bytes: bytes.len() as u64,
        moments,
        rows: rows(tensor, region, &bytes),
    })
}

fn rows(tensor: &TensorHandle, region: &Region, bytes: &[u8]) -> Rows {
    let mut rows = Rows::default();
    let (Some(first), Some(many)) = (region.offsets.first(), region.lengths.first()) else {
        return rows;
    };
    if region.ndim() < 2 || bytes.is_empty() {
        return rows;
    }
    let whole = region.lengths[1..] == tensor.shape()[1..];
    if !whole {
        rows.part = Some((*first, is_zero(bytes)));
        return rows;
    }
    let row = bytes.len() / usize::try_from(*many).unwrap_or(usize::MAX).max(1);
    let dead = bytes.chunks(row.max(1)).filter(|row| is_zero(row));
    rows.dead = dead.count() as u64;
    rows
}

fn is_zero(bytes: &[u8]) -> bool {
    let (words, rest) = bytes.as_chunks::<64>();
    words
        .iter()
        .all(|w| w.iter().fold(0, |all, b| all | b) == 0)
        && rest.iter().all(|b| *b == 0)
}

/// The figures of the blocks of one tensor so far.
#[derive(Debug, Default)]
struct Sum {
    moments: Moments,
    dead: u64,
    /// The row of which parts were seen, and whether they are all zero.
    row: Option<(u64, bool)>,
    /// Why a block can't be read.
    damage: Option<reshard::Error>,
}

impl Sum {
    fn add(&mut self, block: &Block) {
        self.moments.merge(&block.moments);
        self.dead += block.rows.dead;
        match (block.rows.part, &mut self.row) {
            (Some((row, zero)), Some((same, all))) if row == *same => *all &= zero,
            (part, _) => {
                self.end_row();
                self.row = part;
            }
        }
    }

    fn end_row(&mut self) {
        if let Some((_, true)) = self.row.take() {
            self.dead += 1;
        }
    }

    fn done(mut self, t: &TensorHandle) -> reshard::Result<TensorStats> {
        self.end_row();
        match self.damage {
            Some(e) => Err(e),
            None => Ok(TensorStats {
                key: t.key().into(),
                dtype: t.dtype(),
                shape: t.shape().clone(),
                stats: number(t.dtype()).map(|_| Stats::of(&self.moments, self.dead)),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_in_several_blocks_is_dead_if_all_its_parts_are_zero() {
        let mut sum = Sum::default();
        for (row, zero) in [
            (0, true),
            (0, true),
            (1, true),
            (1, false),
            (2, false),
            (3, true),
        ] {
            let rows = Rows {
                dead: 0,
                part: Some((row, zero)),
            };
            sum.add(&Block {
                rows,
                ..Block::default()
            });
        }
        sum.end_row();
        assert_eq!(sum.dead, 2);
    }

    #[test]
    fn what_is_suspicious_is_flagged() {
        let plain = Stats::of(&Moments::default(), 0);
        let of = |change: fn(&mut Stats)| {
            let mut s = Stats {
                numbers: 200,
                ..plain
            };
            change(&mut s);
            s.flags()
        };
        assert_eq!(of(|_| {}), []);
        assert_eq!(plain.flags(), []);
        assert_eq!(of(|s| s.nans = 1), [Flag::Nan]);
        assert_eq!(of(|s| s.infinite = 1), [Flag::Infinite]);
        assert_eq!(of(|s| (s.zeros, s.dead_rows) = (200, 2)), [Flag::AllZero]);
        assert_eq!(of(|s| (s.zeros, s.dead_rows) = (100, 1)), [Flag::DeadRows]);
        assert_eq!(of(|s| s.denormals = 2), []);
        assert_eq!(of(|s| s.denormals = 3), [Flag::Denormal]);
    }
}
