use crate::{ByteSize, KIB, PolicyError, Result};
use reshard_model::{DType, Dims};
use serde::{Deserialize, Serialize};
use std::fmt::Debug;

/// What a variable's elements are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElementType {
    /// Elements of one size.
    Fixed(DType),
    /// Strings. A partitioner only guesses their lengths.
    String,
}

impl From<DType> for ElementType {
    fn from(dtype: DType) -> Self {
        Self::Fixed(dtype)
    }
}

/// Decides into how many parts a variable is cut. Like a policy, it is data: `typetag` names the type in configuration.
///
/// ```
/// use reshard_model::{DType, Dims};
/// use reshard_policy::{PolicyError, Result, partition::{ElementType, Partitioner}};
/// use serde::{Deserialize, Serialize};
///
/// /// One part on each task, if every part gets enough rows.
/// #[derive(Debug, Serialize, Deserialize)]
/// #[serde(deny_unknown_fields)]
/// struct Spread { min_rows: u64 }
///
/// #[typetag::serde(name = "spread")]
/// impl Partitioner for Spread {
///     fn partitions(&self, tasks: u32, shape: &[u64], _: ElementType) -> Result<Dims> {
///         let mut parts = Dims::splat(1, shape.len());
///         if let Some(rows) = shape.first() && rows / u64::from(tasks) >= self.min_rows {
///             parts[0] = tasks.into();
///         }
///         Ok(parts)
///     }
/// }
///
/// let spread: Box<dyn Partitioner> = serde_json::from_str(r#"{ "type": "spread", "min_rows": 100 }"#).unwrap();
/// assert_eq!(*spread.partitions(4, &[1000, 8], DType::Float32.into())?, [4, 1]);
/// # Ok::<(), PolicyError>(())
/// ```
#[typetag::serde(tag = "type")]
pub trait Partitioner: Debug + Send + Sync + 'static {
    /// The number of parts per axis, for a variable of this shape on `tasks` tasks.
    ///
    /// # Errors
    /// Parameters that do not fit the shape.
    fn partitions(&self, tasks: u32, shape: &[u64], element: ElementType) -> Result<Dims>;
}

/// A given number of parts along an axis, but at most as many as the axis has indexes.
///
/// In TensorFlow this is `FixedShardsPartitioner`, and [`fixed_size_partitioner`] with an axis. For an axis of length 0
/// TensorFlow returns 0 parts; this partitioner returns 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FixedShardsPartitioner {
    /// The number of parts. `None` means one per task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub num_shards: Option<u64>,
    /// Which axis; negative ones count from the last, which is -1.
    #[serde(default)]
    pub axis: i64,
}

impl FixedShardsPartitioner {
    /// Makes so many parts along axis 0.
    pub fn new(num_shards: u64) -> Self {
        Self {
            num_shards: Some(num_shards),
            axis: 0,
        }
    }

    /// Makes one part per task along axis 0.
    pub fn per_task() -> Self {
        Self {
            num_shards: None,
            axis: 0,
        }
    }
}

#[typetag::serde(name = "fixed_shards_partitioner")]
impl Partitioner for FixedShardsPartitioner {
    fn partitions(&self, tasks: u32, shape: &[u64], _: ElementType) -> Result<Dims> {
        let wanted = self.num_shards.unwrap_or(tasks.into());
        positive("num_shards", wanted)?;
        along(self.axis, shape, |length| Ok(wanted.min(length)))
    }
}

/// Parts along an axis of about a minimal size each, up to a maximal number of parts. The number of parts is rounded up, so
/// parts may be smaller than the minimum.
///
/// In TensorFlow this is `MinSizePartitioner`, and [`min_max_variable_partitioner`] with an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MinSizePartitioner {
    /// The bytes that a part should have. The default is 256 KiB.
    #[serde(alias = "min_slice_size")]
    pub min_shard_bytes: ByteSize,
    /// The maximal number of parts. The default is 1.
    #[serde(alias = "max_partitions")]
    pub max_shards: u64,
    /// The assumed bytes of a string. The default is 16.
    #[serde(alias = "bytes_per_string_element")]
    pub bytes_per_string: u64,
    /// Which axis; negative ones count from the last, which is -1.
    pub axis: i64,
}

/// TensorFlow's defaults: one part.
impl Default for MinSizePartitioner {
    fn default() -> Self {
        Self {
            min_shard_bytes: ByteSize(256 * KIB),
            max_shards: 1,
            bytes_per_string: BYTES_PER_STRING,
            axis: 0,
        }
    }
}

impl MinSizePartitioner {
    /// Makes parts of about so many bytes along axis 0, up to a number of parts.
    pub fn new(min_shard_bytes: u64, max_shards: u64) -> Self {
        Self {
            min_shard_bytes: ByteSize(min_shard_bytes),
            max_shards,
            ..Self::default()
        }
    }
}

#[typetag::serde(name = "min_size_partitioner")]
impl Partitioner for MinSizePartitioner {
    fn partitions(&self, _: u32, shape: &[u64], element: ElementType) -> Result<Dims> {
        positive("min_shard_bytes", self.min_shard_bytes.0)?;
        positive("max_shards", self.max_shards)?;
        let item = item_size(element, self.bytes_per_string)?;
        along(self.axis, shape, |length| {
            let bytes = u128::from(volume(shape)?) * u128::from(item);
            let wanted = bytes.div_ceil(self.min_shard_bytes.0.into());
            Ok(u64::try_from(wanted)
                .unwrap_or(u64::MAX)
                .min(self.max_shards)
                .min(length))
        })
    }
}

/// As few parts along an axis as possible, each with at most a number of bytes. If a single index is larger, each part is one
/// index. A maximal number of parts takes precedence over the number of bytes.
///
/// In TensorFlow this is `MaxSizePartitioner`, and [`variable_axis_size_partitioner`] with an axis. For a shape without
/// elements TensorFlow divides by zero; this partitioner returns 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MaxSizePartitioner {
    /// The maximal bytes of a part.
    pub max_shard_bytes: ByteSize,
    /// The maximal number of parts. As in TensorFlow, 0 means no maximum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_shards: Option<u64>,
    /// The assumed bytes of a string. The default is 16.
    #[serde(default = "bytes_per_string", alias = "bytes_per_string_element")]
    pub bytes_per_string: u64,
    /// Which axis; negative ones count from the last, which is -1.
    #[serde(default)]
    pub axis: i64,
}

impl MaxSizePartitioner {
    /// Makes parts of at most so many bytes along axis 0.
    pub fn new(max_shard_bytes: u64) -> Self {
        let max_shard_bytes = ByteSize(max_shard_bytes);
        Self {
            max_shard_bytes,
            max_shards: None,
            bytes_per_string: BYTES_PER_STRING,
            axis: 0,
        }
    }
}

#[typetag::serde(name = "max_size_partitioner")]
impl Partitioner for MaxSizePartitioner {
    fn partitions(&self, _: u32, shape: &[u64], element: ElementType) -> Result<Dims> {
        positive("max_shard_bytes", self.max_shard_bytes.0)?;
        let item = item_size(element, self.bytes_per_string)?;
        along(self.axis, shape, |length| {
            let elements = volume(shape)?;
            if elements == 0 {
                return Ok(1);
            }
            let slice = u128::from(elements / length) * u128::from(item);
            let indexes = u64::try_from(u128::from(self.max_shard_bytes.0) / slice)
                .unwrap_or(u64::MAX)
                .max(1);
            let most = self.max_shards.filter(|&n| n > 0).unwrap_or(u64::MAX);
            Ok(length.div_ceil(indexes).min(most))
        })
    }
}

/// TensorFlow 1's `fixed_size_partitioner`.
pub fn fixed_size_partitioner(num_shards: u64, axis: i64) -> FixedShardsPartitioner {
    FixedShardsPartitioner {
        num_shards: Some(num_shards),
        axis,
    }
}

/// TensorFlow 1's `min_max_variable_partitioner`. Its defaults are 1, 0, 262,144 and 16.
pub fn min_max_variable_partitioner(
    max_partitions: u64,
    axis: i64,
    min_slice_size: u64,
    bytes_per_string_element: u64,
) -> MinSizePartitioner {
    MinSizePartitioner {
        min_shard_bytes: ByteSize(min_slice_size),
        max_shards: max_partitions,
        bytes_per_string: bytes_per_string_element,
        axis,
    }
}

/// TensorFlow 1's `variable_axis_size_partitioner`. Its defaults are axis 0, 16 bytes and no maximum of parts.
pub fn variable_axis_size_partitioner(
    max_shard_bytes: u64,
    axis: i64,
    bytes_per_string_element: u64,
    max_shards: Option<u64>,
) -> MaxSizePartitioner {
    MaxSizePartitioner {
        max_shard_bytes: ByteSize(max_shard_bytes),
        max_shards,
        bytes_per_string: bytes_per_string_element,
        axis,
    }
}

const BYTES_PER_STRING: u64 = 16;

fn bytes_per_string() -> u64 {
    BYTES_PER_STRING
}

fn positive(name: &str, value: u64) -> Result<()> {
    if value > 0 {
        return Ok(());
    }
    Err(PolicyError::invalid(format!(
        "{name} is 0; it must be at least 1"
    )))
}

fn item_size(element: ElementType, bytes_per_string: u64) -> Result<u64> {
    positive("bytes_per_string", bytes_per_string)?;
    Ok(match element {
        ElementType::Fixed(dtype) => dtype.size(),
        ElementType::String => bytes_per_string,
    })
}

fn volume(shape: &[u64]) -> Result<u64> {
    let shape = Dims::from(shape);
    shape
        .volume()
        .ok_or_else(|| PolicyError::invalid(format!("shape {shape} has more than 2^64 elements")))
}

/// One part along every axis but one. A scalar has no axis and is one part.
fn along(axis: i64, shape: &[u64], parts: impl FnOnce(u64) -> Result<u64>) -> Result<Dims> {
    let mut out = Dims::splat(1, shape.len());
    if shape.is_empty() {
        return Ok(out);
    }
    let from_first = if axis < 0 {
        axis.checked_add_unsigned(shape.len() as u64)
    } else {
        Some(axis)
    };
    let at = from_first
        .and_then(|a| usize::try_from(a).ok())
        .filter(|&a| a < shape.len())
        .ok_or_else(|| {
            PolicyError::invalid(format!(
                "shape {} has no axis {axis}, so it can't be cut along that axis",
                Dims::from(shape)
            ))
        })?;
    out[at] = parts(shape[at])?.max(1);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::partition::PartitionSpec;
    use proptest::prelude::*;

    const F32: ElementType = ElementType::Fixed(DType::Float32);

    fn says(result: Result<Dims>, what: &str) {
        let message = result.unwrap_err().to_string();
        assert!(message.contains(what), "{message}");
    }

    #[test]
    fn parameters_that_cannot_be_are_named() {
        says(
            FixedShardsPartitioner::new(0).partitions(1, &[4], F32),
            "num_shards is 0",
        );
        says(
            FixedShardsPartitioner::per_task().partitions(0, &[4], F32),
            "num_shards is 0",
        );
        says(
            MinSizePartitioner::new(0, 1).partitions(1, &[4], F32),
            "min_shard_bytes is 0",
        );
        says(
            MinSizePartitioner::new(1, 0).partitions(1, &[4], F32),
            "max_shards is 0",
        );
        says(
            MaxSizePartitioner::new(0).partitions(1, &[4], F32),
            "max_shard_bytes is 0",
        );
        let no_length = variable_axis_size_partitioner(1, 0, 0, None);
        says(
            no_length.partitions(1, &[4], ElementType::String),
            "bytes_per_string is 0",
        );
        for (axis, what) in [(2, "no axis 2"), (-3, "no axis -3")] {
            let outside = variable_axis_size_partitioner(1, axis, 16, None);
            says(outside.partitions(1, &[4, 4], F32), what);
        }
        says(
            MaxSizePartitioner::new(1).partitions(1, &[1 << 40, 1 << 40], F32),
            "more than 2^64",
        );
    }

    #[test]
    fn scalars_and_shapes_without_elements_are_one_part() {
        let all: [&dyn Partitioner; 3] = [
            &FixedShardsPartitioner::new(3),
            &MinSizePartitioner::new(1, 4),
            &MaxSizePartitioner::new(10),
        ];
        for p in all {
            assert_eq!(*p.partitions(2, &[], F32).unwrap(), [0u64; 0]);
            assert_eq!(*p.partitions(2, &[0, 4], F32).unwrap(), [1, 1]);
        }
    }

    #[test]
    fn one_part_a_task_follows_the_number_of_tasks() {
        let p = FixedShardsPartitioner {
            axis: -1,
            ..FixedShardsPartitioner::per_task()
        };
        assert_eq!(*p.partitions(3, &[2, 8], F32).unwrap(), [1, 3]);
        assert_eq!(*p.partitions(30, &[2, 8], F32).unwrap(), [1, 8]);
    }

    #[test]
    fn configuration_names_them_and_refuses_unknown_fields() {
        let parse =
            |s: &str| serde_json::from_str::<Box<dyn Partitioner>>(s).map_err(|e| e.to_string());
        let max =
            parse(r#"{"type": "max_size_partitioner", "max_shard_bytes": "1 KiB", "axis": 1}"#)
                .unwrap();
        assert_eq!(*max.partitions(1, &[2, 1024], F32).unwrap(), [1, 8]);
        let min =
            parse(r#"{"type": "min_size_partitioner", "min_slice_size": 4, "max_partitions": 7}"#)
                .unwrap();
        assert_eq!(*min.partitions(1, &[9], F32).unwrap(), [7]);
        let per_task = parse(r#"{"type": "fixed_shards_partitioner"}"#).unwrap();
        assert_eq!(*per_task.partitions(5, &[9], F32).unwrap(), [5]);
        let text = serde_json::to_string(&max).unwrap();
        assert_eq!(format!("{:?}", parse(&text).unwrap()), format!("{max:?}"));
        assert!(
            parse(r#"{"type": "fixed_shards_partitioner", "shards": 3}"#)
                .unwrap_err()
                .contains("shards")
        );
        assert!(
            parse(r#"{"type": "max_size_partitioner"}"#)
                .unwrap_err()
                .contains("max_shard_bytes")
        );
        assert!(parse(r#"{"type": "no_partitioner"}"#).is_err());
    }

    proptest! {
        #![proptest_config(reshard_model::testkit::law(256))]
        #[test]
        fn what_a_partitioner_says_can_be_done(
            shape in prop::collection::vec(prop_oneof![0u64..40, any::<u64>()], 0..4),
            (n, bytes, axis) in (0u64..50, 0u64..5000, -4i64..4),
        ) {
            let all: [&dyn Partitioner; 3] = [
                &fixed_size_partitioner(n, axis),
                &min_max_variable_partitioner(n, axis, bytes, 16),
                &variable_axis_size_partitioner(bytes, axis, 16, Some(n + 1)),
            ];
            for p in all {
                if let Ok(parts) = p.partitions(4, &shape, F32) {
                    prop_assert!(PartitionSpec::Partitions(parts).grid(&shape).is_ok());
                }
            }
        }
    }
}
