//! Compares the common state of ranks. The coordinator's is saved, so what another rank has instead is lost; that rank says so.
//!
//! Ranks exchange a SHA-256 of their values. Only if one differs, the coordinator sends its values, and each other rank finds its own
//! difference. Tensors in common state are compared elsewhere ([`alike`](crate::alike)).

use reshard_comm::{Comm, Rank};
use reshard_megatron::{decode_common, encode_common};
use reshard_model::{Construct, Difference, Opaque, Path, Value, ValueTree, diff};
use reshard_strategy::{ReadLimits, Result};
use sha2::{Digest as _, Sha256};
use std::{fmt, sync::Arc};

/// SHA-256 of values.
pub(crate) type Digest = [u8; 32];

/// A change of common state before it is compared, such as removing what may differ. It changes a copy.
pub(crate) type Preprocess = Arc<dyn Fn(&mut ValueTree) + Send + Sync>;

/// So many paths of each kind are named in a message.
const SHOWN: usize = 20;

/// The values of this rank's common state that are compared.
pub(crate) struct Values {
    values: ValueTree,
    bytes: bytes::Bytes,
    pub(crate) digest: Digest,
}

impl Values {
    /// `None` if they can't be encoded: then the save of them fails, or they are not saved.
    pub(crate) fn of(common: &ValueTree, preprocess: Option<&Preprocess>) -> Option<Self> {
        let mut values = common.clone();
        if let Some(preprocess) = preprocess {
            preprocess(&mut values);
        }
        let values = values.map(&mut without_tensors);
        let bytes = encode_common(&values).ok()?;
        let digest = Sha256::digest(&bytes).into();
        Some(Self {
            values,
            bytes,
            digest,
        })
    }
}

/// How the common state of a rank differs from the coordinator's, which is saved.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CommonDifference {
    /// This rank.
    pub rank: Rank,
    /// The rank whose common state is saved.
    pub coordinator: Rank,
    /// Left is the coordinator's, right is that of this rank. Types have Python's names.
    pub difference: Difference,
}

impl fmt::Display for CommonDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            rank,
            coordinator,
            difference,
        } = self;
        write!(
            f,
            "the common state of rank {rank} differs from that of rank {coordinator}, which is saved"
        )?;
        let paths = |paths: &[Path]| list(paths.iter().map(ToString::to_string));
        if !difference.only_left.is_empty() {
            let paths = paths(&difference.only_left);
            write!(f, "; only on rank {coordinator}: {paths}")?;
        }
        if !difference.only_right.is_empty() {
            write!(
                f,
                "; only on rank {rank}: {}",
                paths(&difference.only_right)
            )?;
        }
        if !difference.mismatch.is_empty() {
            let each = |(path, left, right): &(Path, String, String)| match left == right {
                true => format!("{path} ({left})"),
                false => format!("{path} ({left}, but {right} on rank {rank})"),
            };
            let all = list(difference.mismatch.iter().map(each));
            write!(f, "; different values: {all}")?;
        }
        Ok(())
    }
}

fn list(all: impl ExactSizeIterator<Item = String>) -> String {
    let more = match all.len().checked_sub(SHOWN) {
        None | Some(0) => String::new(),
        Some(more) => format!(" and {more} more"),
    };
    let shown: Vec<String> = all.take(SHOWN).collect();
    format!("{}{more}", shown.join(", "))
}

/// All ranks call this if any of their digests differs from the coordinator's. Returns how the values of this rank differ.
///
/// # Errors
/// Only those of the group: a difference is no error.
pub(crate) async fn difference(
    comm: &Comm<'_>,
    mine: Option<&Values>,
) -> Result<Option<CommonDifference>> {
    let coordinators = comm.is_coordinator().then(|| {
        let bytes = mine.map(|values| values.bytes.to_vec());
        Ok(bytes.unwrap_or_default())
    });
    let bytes: Vec<u8> = comm.broadcast("begin", coordinators).await?;
    let Some(mine) = mine.filter(|mine| *bytes != *mine.bytes) else {
        return Ok(None);
    };
    let theirs = match decode_common(bytes.into(), &ReadLimits::default()) {
        Ok(theirs) => theirs,
        Err(e) => {
            tracing::debug!(error = %e, "the coordinator's common state can't be compared");
            return Ok(None);
        }
    };
    let found = CommonDifference {
        rank: comm.rank(),
        coordinator: comm.coordinator(),
        difference: diff(&theirs, &mine.values),
    };
    // Only the order of keys may differ.
    if found.difference.is_empty() {
        return Ok(None);
    }
    tracing::warn!(rank = found.rank.0, "{found}");
    Ok(Some(found))
}

/// The value with `None` in place of tensors.
fn without_tensors(value: Value) -> Value {
    let all = |values: Vec<Value>| values.into_iter().map(without_tensors).collect();
    let pairs = |pairs: Vec<(Value, Value)>| {
        let each = pairs.into_iter();
        each.map(|(k, v)| (without_tensors(k), without_tensors(v)))
            .collect()
    };
    match value {
        Value::Tensor(_) | Value::Device(_) | Value::Local(_) => Value::None,
        Value::List(values) => Value::List(all(values)),
        Value::Tuple(values) => Value::Tuple(all(values)),
        Value::Set(values) => Value::Set(all(values)),
        Value::Dict(of) => Value::Dict(pairs(of)),
        Value::Opaque(opaque) => {
            let Opaque {
                construct,
                state,
                items,
                pairs: set,
                module,
                name,
            } = *opaque;
            let construct = match construct {
                Construct::Reduce(args) => Construct::Reduce(all(args)),
                Construct::NewObj(args) => Construct::NewObj(all(args)),
                Construct::NewObjEx(args, kwargs) => Construct::NewObjEx(all(args), pairs(kwargs)),
                other => other,
            };
            Value::Opaque(Box::new(Opaque {
                module,
                name,
                construct,
                state: state.map(without_tensors),
                items: all(items),
                pairs: pairs(set),
            }))
        }
        other => other,
    }
}
