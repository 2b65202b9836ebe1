//! Which elements of a bucket belong to which parameter. Checkpoints by bucket don't say that.

use crate::{BucketId, ModelParam, OptimError, Result, param::Declared};
use reshard_model::{Dims, Region, Sharded, ShardedTensor};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Megatron Core lets parameters begin at multiples of so many elements of their bucket.
const ALIGNMENT: u64 = 64;

/// Which elements of each bucket of gradients belong to which parameter.
///
/// The forms [by bucket](crate::ShardingType::is_by_bucket) store buckets as Megatron Core's buffers of gradients have them, and
/// not what lies in them. That follows from the order of the parameters in the training program, so the program has to say it.
/// `docs/optimizer.md` has the lines of Python that write it as JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BucketLayout {
    /// All parameters of all data-parallel groups, in any order.
    pub params: Vec<BucketParam>,
}

/// Where the state of a parameter lies in a bucket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BucketParam {
    /// Index of the optimizer in a chain; none if there is only one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chained: Option<u64>,
    /// Index of the data-parallel group: its rank within the model-parallel group.
    pub dp_group: u64,
    /// Index of the buffer of gradients.
    pub gbuf: u64,
    /// Index of the bucket in the buffer.
    pub bucket: u64,
    /// The first element in the bucket.
    pub start: u64,
    /// What the elements are, one after the other. A parameter has several pieces if it is stored in several parts, as the halves of
    /// a gated linear unit.
    pub pieces: Vec<BucketPiece>,
}

/// A box of a global tensor whose elements lie in a bucket in row-major order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BucketPiece {
    /// Key of the model's tensor.
    pub key: Box<str>,
    /// Shape of the box, prepended axes (of extent 1) included.
    pub shape: Dims,
    /// Shape of the model's tensor.
    pub global_shape: Dims,
    /// First element of the box.
    pub global_offset: Dims,
    /// Whether it is the copy that is stored, of several.
    #[serde(default = "yes")]
    pub main: bool,
}

fn yes() -> bool {
    true
}

impl BucketPiece {
    fn of(tensor: &ShardedTensor) -> Self {
        let region = tensor.region();
        Self {
            key: tensor.key.clone(),
            shape: region.lengths,
            global_shape: tensor.global_shape.clone(),
            global_offset: region.offsets,
            main: tensor.replica_id.is_main(),
        }
    }

    /// The box.
    pub fn region(&self) -> Region {
        Region {
            offsets: self.global_offset.clone(),
            lengths: self.shape.clone(),
        }
    }
}

impl BucketParam {
    /// The bucket, and the prefix of its keys: `chained_{i}.` or nothing.
    pub fn place(&self) -> (String, BucketId) {
        let prefix = self.chained.map(|i| format!("chained_{i}."));
        let bucket = BucketId {
            dp_group: self.dp_group,
            gbuf: self.gbuf,
            bucket: self.bucket,
        };
        (prefix.unwrap_or_default(), bucket)
    }

    /// The number of elements; `None` if they are too many to count.
    pub fn elements(&self) -> Option<u64> {
        let mut sizes = self.pieces.iter().map(|p| p.shape.volume());
        sizes.try_fold(0, |sum: u64, n| sum.checked_add(n?))
    }

    /// One past the last element in the bucket; `None` if that is too large to count.
    pub fn end(&self) -> Option<u64> {
        self.start.checked_add(self.elements()?)
    }
}

impl BucketLayout {
    /// A layout without parameters.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a bucket with these parameters. They lie in it in this order, which in Megatron Core is the reverse of that in which the
    /// model has made them, and each begins at a multiple of 64 elements.
    ///
    /// # Errors
    /// A factory that does not build tensors; too many elements.
    pub fn add_bucket<'a>(
        &mut self,
        chained: Option<u64>,
        bucket: BucketId,
        params: impl IntoIterator<Item = &'a ModelParam>,
    ) -> Result<()> {
        let mut start = 0;
        for param in params {
            let param = BucketParam {
                chained,
                dp_group: bucket.dp_group,
                gbuf: bucket.gbuf,
                bucket: bucket.bucket,
                start,
                pieces: pieces(param)?,
            };
            let next = param
                .end()
                .and_then(|end| end.checked_next_multiple_of(ALIGNMENT));
            start = next.ok_or_else(|| too_large(&param))?;
            self.params.push(param);
        }
        Ok(())
    }

    /// Checks that pieces lie in their tensors, that parameters of a bucket do not overlap, and that nothing is too large.
    ///
    /// # Errors
    /// [`OptimError::Layout`] with the parameter and both values.
    pub fn validate(&self) -> Result<()> {
        let mut buckets: BTreeMap<_, Vec<(u64, u64, &BucketParam)>> = BTreeMap::new();
        for param in &self.params {
            for piece in &param.pieces {
                if !piece.region().fits(&piece.global_shape) {
                    // Shape and offset may differ in length, so they are no box yet.
                    let what = format!(
                        "{}: the layout has a piece of shape {} at {} of a tensor of shape {}",
                        piece.key, piece.shape, piece.global_offset, piece.global_shape
                    );
                    return Err(OptimError::Layout { what });
                }
            }
            let end = param.end().ok_or_else(|| too_large(param))?;
            buckets
                .entry(param.place())
                .or_default()
                .push((param.start, end, param));
        }
        for ((prefix, id), mut params) in buckets {
            params.sort_by_key(|(start, end, _)| (*start, *end));
            for pair in params.windows(2) {
                let [(_, end, a), (start, _, b)] = pair else {
                    continue;
                };
                if start < end {
                    let what = format!(
                        "{} ends at element {end} of bucket {} of buffer {} of {prefix}group {}, where {} begins at {start}",
                        named(a),
                        id.bucket,
                        id.gbuf,
                        id.dp_group,
                        named(b)
                    );
                    return Err(OptimError::Layout { what });
                }
            }
        }
        Ok(())
    }
}

/// The pieces of a parameter, in the order in which its elements lie.
fn pieces(param: &ModelParam) -> Result<Vec<BucketPiece>> {
    let factory = match &param.declared {
        Declared::Tensor(tensor) => return Ok(vec![BucketPiece::of(tensor)]),
        Declared::Factory(factory) => factory,
    };
    let parts = factory.build()?.into_nested_values();
    let piece = |part: Sharded| match part {
        Sharded::Tensor(tensor) => Ok(BucketPiece::of(&tensor)),
        Sharded::Object(_) => Err(OptimError::Layout {
            what: format!(
                "{} is stored as an object, which can't lie in a bucket",
                param.key()
            ),
        }),
    };
    parts.into_iter().map(piece).collect()
}

fn named(param: &BucketParam) -> &str {
    param
        .pieces
        .first()
        .map_or("a parameter without pieces", |p| &p.key)
}

fn too_large(param: &BucketParam) -> OptimError {
    OptimError::Layout {
        what: format!("{} has too many elements", named(param)),
    }
}
