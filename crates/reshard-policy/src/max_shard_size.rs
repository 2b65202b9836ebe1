use crate::{
    ByteSize, Content, Piece, PolicyError, Result, ShardingPolicy, Shards, tasks::by_task,
};
use reshard_model::DType;
use serde::{Deserialize, Serialize};

mod fill;
mod tensorflow;

/// Makes shards of at most a given number of bytes on disk, and cuts larger tensors.
///
/// The pieces of each task, in their order, fill as few shards as possible, each up to the limit. As many of these shards as
/// possible end between two tensors, so few tensors are cut (if all elements have one size, as few as possible). A cut lies
/// between two indexes of the first axis if possible, else of the second axis, and so on. Every slice is contiguous in its
/// piece, so it is written without a copy. If a single element, string, object or tensor that the format stores whole is
/// larger than the limit, it gets a shard of its own, after the others, and a warning. Tensors without elements are kept.
///
/// The limit counts all bytes of a file: elements, strings, encoded objects, and the [`Overhead`](crate::Overhead) of the
/// format (headers, alignment, pickles). A save fails rather than write a larger file of several items. It does not count
/// files that describe the checkpoint, such as an index.
///
/// ```
/// use reshard_policy::{MIB, MaxShardSize, ShardingPolicy};
/// let policy = MaxShardSize::new(500 * MIB);
/// let json = r#"{ "type": "max_shard_size", "max_shard_size": "500 MiB" }"#;
/// let same: Box<dyn ShardingPolicy> = serde_json::from_str(json).unwrap();
/// assert_eq!(same.description(), policy.description());
///
/// # use reshard_model::{DType, Region};
/// # use reshard_policy::{Content, Limits, Overhead, Piece, decide};
/// # let region = Region::whole(&[10_000_000_000]);
/// # let table = Piece {
/// #     key: "k", name: "k", content: Content::Tensor(DType::Float32), global_shape: &[10_000_000_000], region: &region,
/// #     task: 0, device: "cpu", owner: "", tag: None, bytes: 40_000_000_000, whole: false,
/// #     overhead: Overhead::default(),
/// # };
/// let sharding = decide(&policy, &[table], Limits::default())?; // one tensor of 40 GB
/// assert_eq!((sharding.metrics.shards, sharding.metrics.slices), (77, 77));
/// # Ok::<(), reshard_policy::PolicyError>(())
/// ```
///
/// [`MaxShardSizeMode::TensorFlow`] makes the same cuts as TensorFlow's policy of this name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MaxShardSize {
    /// The limit in bytes.
    pub max_shard_size: ByteSize,
    /// How shards are filled.
    #[serde(default)]
    pub mode: MaxShardSizeMode,
    /// Does not cut tensors whose slices TensorFlow 2.21 can't join: strings, float16, uint16, uint32, uint64, and some
    /// others. Such tensors may be larger than the limit.
    #[serde(default)]
    pub readable_by_tensorflow: bool,
}

/// How [`MaxShardSize`] fills shards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum MaxShardSizeMode {
    /// As few shards as possible, with few cuts.
    #[default]
    Fill,
    /// As TensorFlow 2.21's `MaxShardSizePolicy`: it cuts into balanced parts along one axis at a time, and counts each
    /// string as long as the longest. You get an error where TensorFlow never returns, because no slice of one index fits,
    /// and where it raises (empty vectors of strings, most arrays of strings). Where TensorFlow leaves out tensors without
    /// elements, this mode does too, and [`decide`](crate::decide) refuses that. As in TensorFlow, the limit counts neither
    /// the object graph nor overhead, so files may be larger.
    #[serde(rename = "tensorflow")]
    TensorFlow,
}

impl MaxShardSize {
    /// Makes shards of at most so many bytes.
    pub fn new(max_shard_size: u64) -> Self {
        let max_shard_size = ByteSize(max_shard_size);
        Self {
            max_shard_size,
            mode: MaxShardSizeMode::Fill,
            readable_by_tensorflow: false,
        }
    }

    /// Makes shards of at most so many bytes, with the same cuts as TensorFlow.
    pub fn tensorflow(max_shard_size: u64) -> Self {
        Self {
            mode: MaxShardSizeMode::TensorFlow,
            ..Self::new(max_shard_size)
        }
    }

    /// Does not cut tensors whose slices TensorFlow can't join.
    pub fn readable_by_tensorflow(self) -> Self {
        Self {
            readable_by_tensorflow: true,
            ..self
        }
    }

    fn keeps_whole(&self, piece: &Piece<'_>) -> bool {
        match piece.content {
            _ if piece.is_whole() => true,
            Content::Tensor(dtype) => {
                self.readable_by_tensorflow && !COPIED_BY_TENSORFLOW.contains(&dtype)
            }
            Content::Strings(_) | Content::Object => self.readable_by_tensorflow,
        }
    }
}

/// Types of which TensorFlow 2.21 can copy slices together.
const COPIED_BY_TENSORFLOW: [DType; 11] = [
    DType::Float32,
    DType::Float64,
    DType::BFloat16,
    DType::Int8,
    DType::Int16,
    DType::Int32,
    DType::Int64,
    DType::UInt8,
    DType::Bool,
    DType::Complex64,
    DType::Complex128,
];

#[typetag::serde(name = "max_shard_size")]
impl ShardingPolicy for MaxShardSize {
    fn description(&self) -> String {
        let mode = match self.mode {
            MaxShardSizeMode::Fill => "",
            MaxShardSizeMode::TensorFlow => ", as TensorFlow cuts",
        };
        let readable = if self.readable_by_tensorflow {
            ", readable by TensorFlow"
        } else {
            ""
        };
        format!("shards of at most {}{mode}{readable}", self.max_shard_size)
    }

    fn plan_settings(&self) -> Option<String> {
        Some(format!("{self:?}"))
    }

    fn max_file_bytes(&self) -> Option<u64> {
        (self.mode == MaxShardSizeMode::Fill).then_some(self.max_shard_size.0)
    }

    fn shard(&self, pieces: &[Piece<'_>], out: &mut Shards) -> Result<()> {
        let limit = self.max_shard_size.0;
        if limit == 0 && self.mode == MaxShardSizeMode::Fill {
            return Err(PolicyError::invalid(
                "max_shard_size is 0; nothing fits into such a shard",
            ));
        }
        for task in by_task(pieces) {
            out.start();
            match self.mode {
                MaxShardSizeMode::Fill => fill::fill(self, pieces, &task, out)?,
                MaxShardSizeMode::TensorFlow => tensorflow::fill(self, pieces, &task, out)?,
            }
        }
        Ok(())
    }
}

/// Says that a shard will be larger than wanted.
fn warn_too_large(piece: &Piece<'_>, bytes: u64, limit: u64) {
    tracing::warn!(
        key = piece.key,
        region = %piece.region,
        bytes,
        limit,
        "something that can't be cut is larger than the limit, and becomes a shard of its own"
    );
}
