//! State by bucket, cut into parameters.

use super::{
    stored::{At, Stored},
    zero,
};
use crate::{
    ConvertError, Result,
    tensor::{Carried, Made, Part, has_places},
};
use reshard::{
    Checkpoint, Region, TensorHandle,
    model::{BoxFault, Dims, first_fault},
    plan::Entry,
};
use reshard_optim::{BucketLayout, BucketParam, OptimizerKey, ShardingType, StoredOptimizer};
use std::{collections::BTreeMap, sync::Arc};

/// All buckets, with what lies in them.
pub(super) struct Buckets {
    stored: BTreeMap<At, BTreeMap<String, Stored>>,
    params: BTreeMap<At, Vec<BucketParam>>,
}

impl Buckets {
    pub(super) async fn of(
        checkpoint: &Checkpoint,
        optimizers: &[StoredOptimizer],
        layout: &BucketLayout,
    ) -> Result<Self> {
        let src = checkpoint.url();
        let wrong = |what: String| ConvertError::Layout {
            src: src.into(),
            what,
        };
        layout.validate().map_err(|e| wrong(e.to_string()))?;
        let mut params: BTreeMap<At, Vec<BucketParam>> = BTreeMap::new();
        for param in &layout.params {
            params.entry(param.place()).or_default().push(param.clone());
        }
        for list in params.values_mut() {
            list.sort_by_key(|p| p.start);
        }

        let mut stored: BTreeMap<At, BTreeMap<String, Stored>> = BTreeMap::new();
        for entry in checkpoint.metadata().entries() {
            let Some(OptimizerKey::Bucket {
                prefix,
                bucket,
                name,
                ..
            }) = OptimizerKey::parse(entry.key())
            else {
                continue;
            };
            let of = |o: &&StoredOptimizer| *o.prefix == *prefix && o.sharding_type.is_by_bucket();
            let (Some(optimizer), Entry::Tensor(_)) = (optimizers.iter().find(of), entry) else {
                continue;
            };
            let tensor = checkpoint.tensor(entry.key()).map_err(ConvertError::Read)?;
            has_places(&tensor)?;
            let at = (prefix.to_owned(), bucket);
            let list = params.get(&at).map_or(&[][..], Vec::as_slice);
            // Whole cells of its grid are stored in zarr, so nothing tells where ranks had cut.
            let cut = &*checkpoint.backend().backend != "zarr";
            fits(&tensor, list, optimizer.sharding_type, cut).map_err(wrong)?;
            let one = Stored {
                dtype: tensor.dtype(),
                from: tensor.source(..).map_err(ConvertError::Read)?,
                start: 0,
            };
            if stored
                .entry(at)
                .or_default()
                .insert(name.into(), one)
                .is_some()
            {
                return Err(wrong(format!(
                    "{} is not the only tensor that is stored of its bucket and state",
                    entry.key()
                )));
            }
        }
        for optimizer in optimizers {
            if optimizer.sharding_type == ShardingType::DpZeroGatherScatter {
                let found = zero::read(checkpoint, optimizer, &params).await?;
                for (at, states) in found {
                    stored.entry(at).or_default().extend(states);
                }
            }
        }
        let out = Self { stored, params };
        out.agree().map_err(wrong)?;
        Ok(out)
    }

    /// Each bucket of the layout is stored, and the other way round.
    fn agree(&self) -> Result<(), String> {
        let named = |(prefix, id): &At| {
            format!(
                "bucket {} of buffer {} of {prefix}group {}",
                id.bucket, id.gbuf, id.dp_group
            )
        };
        if let Some(at) = self.params.keys().find(|at| !self.stored.contains_key(*at)) {
            return Err(format!(
                "the layout has {}, but it is not stored",
                named(at)
            ));
        }
        for (at, params) in &self.params {
            if let Some((start, end)) = gap(params) {
                return Err(format!(
                    "elements {start}..{end} of {} belong to no parameter; that is too much for padding",
                    named(at)
                ));
            }
        }
        match self.stored.keys().find(|at| !self.params.contains_key(*at)) {
            None => Ok(()),
            Some(at) => Err(format!(
                "{} is stored, but the layout does not have it",
                named(at)
            )),
        }
    }

    /// The tensors by parameter and state.
    pub(super) fn made(&self, src: &str) -> Result<Vec<Carried>> {
        let wrong = |what: String| ConvertError::Layout {
            src: src.into(),
            what,
        };
        let mut made: BTreeMap<String, Made> = BTreeMap::new();
        for (at, states) in &self.stored {
            for param in self.params.get(at).into_iter().flatten() {
                for (name, state) in states {
                    add(&mut made, name, state, param).map_err(wrong)?;
                }
            }
        }
        let complete = |(key, made): (String, Made)| {
            let range = |i: usize, axis: usize| {
                let region = &made.parts[i].region;
                region.offsets[axis]..region.end(axis)
            };
            let fault = first_fault(&Region::whole(&made.shape), made.parts.len(), range);
            match fault {
                None => Ok(Carried::made(&key, made)),
                Some(BoxFault::Hole(region)) => Err(wrong(format!(
                    "no bucket has the part {region} of {key}, which has shape {}",
                    made.shape
                ))),
                Some(BoxFault::Overlap(a, b)) => Err(wrong(format!(
                    "{key}: the parts {} and {} overlap; only one copy of several is main",
                    made.parts[a].region, made.parts[b].region
                ))),
            }
        };
        made.into_iter().map(complete).collect()
    }
}

/// Adds the pieces of a parameter to the tensors of one state.
fn add(
    made: &mut BTreeMap<String, Made>,
    name: &str,
    state: &Stored,
    param: &BucketParam,
) -> Result<(), String> {
    let mut start = state.start.saturating_add(param.start);
    for piece in &param.pieces {
        let elements = piece.shape.volume().unwrap_or(0);
        let key = format!("optimizer.state.{name}.{}", piece.key);
        // A copy names the tensor, too, so that one whose main copies are missing is noticed.
        let tensor = made.entry(key.clone()).or_insert_with(|| Made {
            dtype: state.dtype,
            shape: piece.global_shape.clone(),
            parts: Vec::new(),
        });
        let said = (state.dtype, &piece.global_shape);
        if (tensor.dtype, &tensor.shape) != said {
            return Err(format!(
                "{key} has type {} and shape {} in one place, and {} and {} in another",
                tensor.dtype, tensor.shape, said.0, said.1
            ));
        }
        if piece.main && elements > 0 {
            tensor.parts.push(Part {
                region: piece.region(),
                from: Arc::clone(&state.from),
                start,
            });
        }
        start = start.saturating_add(elements);
    }
    Ok(())
}

/// Megatron Core pads up to the next multiple of 64 elements. So many between two parameters would be one that was left out.
const TOO_MUCH_PADDING: u64 = 256;

/// The first elements of a bucket that no parameter has, if they are too many for padding. `params` are in order.
fn gap(params: &[BucketParam]) -> Option<(u64, u64)> {
    let mut end = 0;
    for param in params {
        if param.start.saturating_sub(end) >= TOO_MUCH_PADDING {
            return Some((end, param.start));
        }
        end = param.end()?;
    }
    None
}

/// Checks that a stored bucket is cut as the layout says: each stored part belongs to one parameter, or to the padding between
/// them. A wrong layout would give parameters the state of others. If not `cut`, stored parts are not those of ranks.
fn fits(
    tensor: &TensorHandle,
    params: &[BucketParam],
    form: ShardingType,
    cut: bool,
) -> Result<(), String> {
    let key = tensor.key();
    let [elements] = **tensor.shape() else {
        return Err(format!(
            "{key} should have one axis, but its shape is {}",
            tensor.shape()
        ));
    };
    let ends: Vec<(u64, u64)> = params
        .iter()
        .map(|p| (p.start, p.end().unwrap_or(u64::MAX)))
        .collect();
    let last = ends.last().map_or(0, |(_, end)| *end);
    let complete = match form {
        // Its padding at the end is cut off.
        ShardingType::DpReshardable => last == elements,
        _ => last <= elements,
    };
    if !complete && !params.is_empty() {
        return Err(format!(
            "{key} has {elements} elements, but its parameters end at {last}"
        ));
    }
    let cells = tensor.flattened_shape();
    let chunks = tensor.chunks();
    for chunk in chunks.into_iter().filter(|_| cut) {
        let Some((start, end)) = interval(&chunk.region, cells.as_ref()) else {
            continue;
        };
        let at = ends.partition_point(|(_, param_end)| *param_end <= start);
        let fits = match ends.get(at) {
            None => true,
            Some((param, _)) if start < *param => end <= *param,
            Some((_, param_end)) => end <= *param_end,
        };
        if !fits {
            let name = |p: &BucketParam| {
                p.pieces
                    .first()
                    .map_or_else(String::new, |p| p.key.to_string())
            };
            let which = params.get(at).map(name).unwrap_or_default();
            return Err(format!(
                "{key} is stored in a part {start}..{end}, which would be partly of {which} by the layout ({}..{})",
                ends[at].0, ends[at].1
            ));
        }
    }
    Ok(())
}

/// The elements of a stored chunk; none if it is empty or of several cells.
fn interval(region: &Region, cells: Option<&Dims>) -> Option<(u64, u64)> {
    let start = match (cells, &*region.offsets, &*region.lengths) {
        (None, [start], _) => *start,
        (Some(cells), [cell, start], [1, _]) => {
            cell.checked_mul(*cells.get(1)?)?.checked_add(*start)?
        }
        _ => return None,
    };
    let length = *region.lengths.last()?;
    (length > 0).then_some((start, start.checked_add(length)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use reshard_optim::BucketPiece;

    #[test]
    fn a_parameter_that_was_left_out_is_noticed_by_its_gap() {
        let param = |start: u64, n: u64| BucketParam {
            chained: None,
            dp_group: 0,
            gbuf: 0,
            bucket: 0,
            start,
            pieces: vec![BucketPiece {
                key: "w".into(),
                shape: [n].into(),
                global_shape: [n].into(),
                global_offset: [0].into(),
                main: true,
            }],
        };
        assert_eq!(gap(&[param(0, 1), param(64, 10), param(128 + 64, 5)]), None);
        assert_eq!(gap(&[param(0, 1), param(257, 10)]), Some((1, 257)));
        assert_eq!(gap(&[param(256, 10)]), Some((0, 256)));
    }
}
