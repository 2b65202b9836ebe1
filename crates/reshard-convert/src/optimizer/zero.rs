//! The form `dp_zero_gather_scatter`: all state of a data-parallel group is in one object.

use super::stored::{At, Stored};
use crate::{ConvertError, Result};
use reshard::{
    Checkpoint, DType, Region, Tensor, Value,
    model::{BoxError, Dims, ObjectCodec as _, Payload, SourceError, TensorSource},
    storage::{Name, Store, wait},
};
use reshard_optim::{BucketParam, OptimizerKey, StoredOptimizer};
use reshard_torch_format::TorchSave;
use std::{collections::BTreeMap, sync::Arc};

/// The state of the buckets of all groups. Each object is decoded once, and only where its tensors lie is kept, so that one object at
/// a time is in memory.
pub(super) async fn read(
    checkpoint: &Checkpoint,
    optimizer: &StoredOptimizer,
    params: &BTreeMap<At, Vec<BucketParam>>,
) -> Result<BTreeMap<At, BTreeMap<String, Stored>>> {
    let mut out = BTreeMap::new();
    let keys: Vec<String> = checkpoint.objects().map(str::to_owned).collect();
    for key in keys {
        let Some(OptimizerKey::Group {
            prefix,
            dp_group,
            name: "param_state",
        }) = OptimizerKey::parse(&key)
        else {
            continue;
        };
        if *prefix != *optimizer.prefix {
            continue;
        }
        let payload = checkpoint
            .object_payload(&key)
            .await
            .map_err(ConvertError::Read)?;
        let wrong = |what: String| ConvertError::Optimizer {
            src: checkpoint.url().into(),
            what: format!("{key}: {what}"),
        };
        let Payload::Encoded { bytes, .. } = payload else {
            return Err(wrong("its bytes are not known".into()));
        };
        let value = TorchSave::default()
            .decode(&bytes)
            .map_err(|e| wrong(e.to_string()))?;
        let place = Place::of(checkpoint, &key, &bytes);
        for (gbuf, states) in buffers(&value).map_err(wrong)? {
            let group = Group {
                prefix,
                dp_group,
                gbuf,
                params,
            };
            for (name, state) in states {
                let found = group.find(&state).map_err(|what| ConvertError::Layout {
                    src: checkpoint.url().into(),
                    what: format!("{name} of {key}: {what}"),
                })?;
                for (at, tensor, start) in found {
                    let one = Stored {
                        dtype: tensor.dtype(),
                        from: place.source(tensor),
                        start,
                    };
                    let states: &mut BTreeMap<String, Stored> = out.entry(at).or_default();
                    states.insert(name.into(), one);
                }
            }
        }
    }
    Ok(out)
}

/// One state of all parameters of a buffer.
enum State<'v> {
    /// The buckets follow each other, without their padding at the end.
    Joined(&'v Tensor),
    /// A tensor for each bucket, with its padding, as up to Megatron Core 0.6. Where it says so, with the numbers of elements before the padding.
    ByBucket(Vec<&'v Tensor>, Option<Vec<u64>>),
}

type Buffers<'v> = Vec<(u64, Vec<(&'v str, State<'v>)>)>;

/// For each buffer of gradients its tensors by the name of the state.
fn buffers(value: &Value) -> Result<Buffers<'_>, String> {
    let value = match value {
        Value::List(cell) => cell.first().unwrap_or(&Value::None),
        other => other,
    };
    let entries = dict(value, || "it".into())?;
    let joined = value.get("buckets_coalesced") == Some(&Value::Bool(true));
    let mut out = Vec::new();
    for (gbuf, types) in entries {
        let Some(gbuf) = gbuf.as_int().and_then(|i| u64::try_from(i).ok()) else {
            continue;
        };
        let [(_, states)] = dict(types, || format!("buffer {gbuf}"))? else {
            return Err(format!("buffer {gbuf} should have one pair of types"));
        };
        let mut found = Vec::new();
        for (name, state) in dict(states, || format!("what buffer {gbuf} has for its types"))? {
            let state = match state {
                Value::Tensor(tensor) if joined => State::Joined(tensor),
                Value::List(tensors) if !joined => {
                    let tensors = tensors.iter().map(|t| t.as_tensor().ok_or(t.type_name()));
                    let tensors: Result<_, _> = tensors.collect();
                    let tensors = tensors.map_err(|other| {
                        format!(
                            "buffer {gbuf} should have a tensor for each bucket, but has a {other}"
                        )
                    })?;
                    State::ByBucket(tensors, unpadded(value, gbuf))
                }
                _ => continue,
            };
            if let Some(name) = name.as_str().filter(|name| *name != "step") {
                found.push((name, state));
            }
        }
        if found.is_empty() {
            let tensors = if joined {
                "tensors"
            } else {
                "lists of tensors, one for each bucket"
            };
            return Err(format!("buffer {gbuf} should have {tensors}, but has none"));
        }
        out.push((gbuf, found));
    }
    Ok(out)
}

fn dict(value: &Value, what: impl Fn() -> String) -> Result<&[(Value, Value)], String> {
    match value {
        Value::Dict(entries) => Ok(entries),
        other => Err(format!(
            "{} should be a dict, but is a {}",
            what(),
            other.type_name()
        )),
    }
}

/// How many elements each bucket of a buffer has before its padding, if that is stored.
fn unpadded(value: &Value, gbuf: u64) -> Option<Vec<u64>> {
    let Value::List(buffers) = value.get("per_bucket_numel_unpadded")? else {
        return None;
    };
    let Value::Dict(types) = buffers.get(usize::try_from(gbuf).ok()?)? else {
        return None;
    };
    let [(_, Value::List(numels))] = &types[..] else {
        return None;
    };
    let numels = numels.iter().map(|n| n.as_int()?.try_into().ok());
    numels.collect()
}

/// A buffer of a group.
struct Group<'a> {
    prefix: &'a str,
    dp_group: u64,
    gbuf: u64,
    params: &'a BTreeMap<At, Vec<BucketParam>>,
}

impl Group<'_> {
    /// The layout's buckets and where each ends.
    fn buckets(&self) -> impl Iterator<Item = (&At, u64)> {
        let mine = self.params.iter().filter(|(at, _)| {
            *at.0 == *self.prefix && (at.1.dp_group, at.1.gbuf) == (self.dp_group, self.gbuf)
        });
        mine.map(|(at, list)| (at, list.last().and_then(BucketParam::end).unwrap_or(0)))
    }

    /// Where each bucket lies: its tensor, and where it begins there.
    fn find<'v>(&self, state: &State<'v>) -> Result<Vec<(At, &'v Tensor, u64)>, String> {
        let mut out = Vec::new();
        match state {
            State::Joined(tensor) => {
                let mut start = 0u64;
                for (at, end) in self.buckets() {
                    out.push((at.clone(), *tensor, start));
                    start = start.saturating_add(end);
                }
                let shape = tensor.shape();
                if **shape != [start] {
                    return Err(format!(
                        "by the layout it should have {start} elements, but its shape is {shape}"
                    ));
                }
            }
            State::ByBucket(tensors, unpadded) => {
                if self.buckets().count() != tensors.len() {
                    return Err(format!(
                        "it has {} buckets, but the layout has {}",
                        tensors.len(),
                        self.buckets().count()
                    ));
                }
                for (i, ((at, end), tensor)) in self.buckets().zip(tensors).enumerate() {
                    let shape = tensor.shape();
                    let stored = unpadded.as_ref().and_then(|u| u.get(i)).copied();
                    if !matches!(&**shape, [n] if *n >= end) || stored.is_some_and(|n| n != end) {
                        let stored = stored.map(|n| format!(", {n} of them before the padding"));
                        return Err(format!(
                            "by the layout bucket {} has {end} elements, but its shape is {shape}{}",
                            at.1.bucket,
                            stored.unwrap_or_default()
                        ));
                    }
                    out.push((at.clone(), *tensor, 0));
                }
            }
        }
        Ok(out)
    }
}

/// Where the bytes of an object lie.
struct Place {
    file: Option<(Arc<dyn Store>, Name, u64)>,
    bytes: std::ops::Range<usize>,
}

impl Place {
    fn of(checkpoint: &Checkpoint, key: &str, bytes: &bytes::Bytes) -> Self {
        // An item in several parts, or transformed on its way, does not lie in a file as it was decoded.
        let file = match &checkpoint.object_parts(key)[..] {
            [part] if part.length() == bytes.len() as u64 => {
                let store = Arc::clone(checkpoint.store());
                Some((store, part.file.clone(), part.range.start))
            }
            _ => None,
        };
        let start = bytes.as_ptr() as usize;
        Self {
            file,
            bytes: start..start + bytes.len(),
        }
    }

    /// Reads the tensor from the file, if it lies there as it is in memory; else from memory.
    fn source(&self, tensor: &Tensor) -> Arc<dyn TensorSource> {
        let item = tensor.dtype().size();
        let buffer = tensor.buffer_bytes().as_ptr_range();
        let (from, to) = (buffer.start as usize, buffer.end as usize);
        let inside = self.bytes.contains(&from) && to <= self.bytes.end;
        match &self.file {
            Some((store, file, start)) if inside && tensor.layout().is_contiguous() => {
                let skipped = (from - self.bytes.start) as u64 + tensor.layout().start() * item;
                Arc::new(InFile {
                    store: Arc::clone(store),
                    file: file.clone(),
                    start: start.saturating_add(skipped),
                    dtype: tensor.dtype(),
                    shape: tensor.shape().clone(),
                })
            }
            _ => Arc::new(tensor.clone()),
        }
    }
}

/// Elements of one axis in a file.
struct InFile {
    store: Arc<dyn Store>,
    file: Name,
    start: u64,
    dtype: DType,
    shape: Dims,
}

impl TensorSource for InFile {
    fn dtype(&self) -> DType {
        self.dtype
    }

    fn shape(&self) -> Dims {
        self.shape.clone()
    }

    fn read(&self, region: &Region, out: &mut [u8]) -> Result<(), BoxError> {
        let first = region.offsets.first().copied().unwrap_or(0);
        let start = first
            .checked_mul(self.dtype.size())
            .and_then(|n| n.checked_add(self.start));
        let end = start.and_then(|start| start.checked_add(out.len() as u64));
        let (Some(start), Some(end)) = (start, end) else {
            return Err("an offset is too large".into());
        };
        let got = wait(self.store.read(&self.file, start..end))
            .map_err(|e| SourceError::new(e.kind(), e))?;
        if got.len() != out.len() {
            return Err(format!("{} ends before byte {end}", self.file).into());
        }
        out.copy_from_slice(&got);
        Ok(())
    }
}
