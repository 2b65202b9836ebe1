//! The form `dp_zero_gather_scatter`: all state of a data-parallel group is in one object.

use super::stored::{At, Stored};
use crate::{ConvertError, Result};
use reshard::{
    Checkpoint, Region, Tensor, Value,
    model::{BoxError, ObjectCodec as _, Payload, SourceError, TensorSource},
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
            for (name, tensor) in states {
                let starts = group.starts(tensor).map_err(|what| ConvertError::Layout {
                    src: checkpoint.url().into(),
                    what: format!("{name} of {key}: {what}"),
                })?;
                let from = place.source(tensor);
                for (at, start) in starts {
                    let one = Stored {
                        dtype: tensor.dtype(),
                        from: Arc::clone(&from),
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

type Buffers<'v> = Vec<(u64, Vec<(&'v str, &'v Tensor)>)>;

/// For each buffer of gradients its tensors by the name of the state.
fn buffers(value: &Value) -> Result<Buffers<'_>, String> {
    let value = match value {
        Value::List(cell) => cell.first().unwrap_or(&Value::None),
        other => other,
    };
    let Value::Dict(entries) = value else {
        return Err(format!(
            "it should be a dict, but is a {}",
            value.type_name()
        ));
    };
    if value.get("buckets_coalesced") != Some(&Value::Bool(true)) {
        return Err(
            "its buckets are not joined, as before February 2024; Megatron's `--ckpt-convert-update-legacy-dist-opt-format` updates it"
                .into(),
        );
    }
    let mut out = Vec::new();
    for (gbuf, types) in entries {
        let Some(gbuf) = gbuf.as_int().and_then(|i| u64::try_from(i).ok()) else {
            continue;
        };
        let Value::Dict(types) = types else {
            return Err(format!(
                "buffer {gbuf} should be a dict, but is a {}",
                types.type_name()
            ));
        };
        let [(_, states)] = &types[..] else {
            return Err(format!(
                "buffer {gbuf} should have one pair of types, but has {}",
                types.len()
            ));
        };
        let Value::Dict(states) = states else {
            return Err(format!(
                "buffer {gbuf} should have a dict of states, but has a {}",
                states.type_name()
            ));
        };
        let tensors = states
            .iter()
            .filter_map(|(name, state)| Some((name.as_str()?, state.as_tensor()?)));
        out.push((gbuf, tensors.filter(|(name, _)| *name != "step").collect()));
    }
    Ok(out)
}

/// A buffer of a group.
struct Group<'a> {
    prefix: &'a str,
    dp_group: u64,
    gbuf: u64,
    params: &'a BTreeMap<At, Vec<BucketParam>>,
}

impl Group<'_> {
    /// Where each bucket begins in a tensor: the buckets follow each other, without their padding at the end.
    fn starts(&self, tensor: &Tensor) -> Result<Vec<(At, u64)>, String> {
        let Self {
            prefix,
            dp_group,
            gbuf,
            params,
        } = self;
        let (mut out, mut start) = (Vec::new(), 0u64);
        for (at, list) in *params {
            if *at.0 != **prefix || (at.1.dp_group, at.1.gbuf) != (*dp_group, *gbuf) {
                continue;
            }
            out.push((at.clone(), start));
            let end = list.last().and_then(BucketParam::end).unwrap_or(0);
            start = start.saturating_add(end);
        }
        let shape = tensor.shape();
        if **shape != [start] {
            return Err(format!(
                "by the layout it should have {start} elements, but its shape is {shape}"
            ));
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
                    item,
                })
            }
            _ => Arc::new(InMemory(tensor.clone())),
        }
    }
}

/// Elements of one axis in a file.
struct InFile {
    store: Arc<dyn Store>,
    file: Name,
    start: u64,
    item: u64,
}

impl TensorSource for InFile {
    fn read(&self, region: &Region, out: &mut [u8]) -> Result<(), BoxError> {
        let first = region.offsets.first().copied().unwrap_or(0);
        let start = first
            .checked_mul(self.item)
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

/// Elements of one axis in memory.
struct InMemory(Tensor);

impl TensorSource for InMemory {
    fn read(&self, region: &Region, out: &mut [u8]) -> Result<(), BoxError> {
        let got = self.0.narrow(region).to_bytes();
        if got.len() != out.len() {
            return Err("a range is not in the tensor".into());
        }
        out.copy_from_slice(&got);
        Ok(())
    }
}
