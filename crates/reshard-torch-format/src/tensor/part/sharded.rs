//! ShardedTensors, as FSDP1 stores them with `SHARDED_STATE_DICT`.

use super::{
    super::parse::{Wrapped, dims, tensor_of},
    pieces::{PartRef, field, wrong},
};
use crate::{
    Budget, Result,
    pickle::{Graph, Id},
};
use reshard_model::{DType, Dims, Region};
use std::{collections::BTreeSet, sync::Arc};

/// Reads the state of a ShardedTensor: the local shards, the metadata of all shards, the state of the process group, …
pub(super) fn part(
    graph: &Graph<'_>,
    state: Id,
    (dtype, shape): (DType, Dims),
    budget: &mut Budget,
) -> Result<PartRef> {
    let of = |id: Id, name: &str| {
        field(graph, id, name)?.ok_or_else(|| wrong(&format!("its shards have no {name}")))
    };
    let Some(&[locals, metadata, group, ..]) = graph.as_seq(state) else {
        return Err(wrong(
            "the state of a ShardedTensor is not a tuple of shards",
        ));
    };
    let all = of(metadata, "shards_metadata")?;
    let all = graph.as_seq(all).unwrap_or_default();
    let takes = all.len() * size_of::<(Region, u32)>() * 2;
    graph.draw(metadata, takes as u64, budget)?;
    let mut shards: BTreeSet<(Dims, Dims)> = BTreeSet::new();
    let mut ranks: BTreeSet<u32> = BTreeSet::new();
    for shard in all {
        let region = region(graph, *shard, &shape)?;
        shards.insert((region.offsets, region.lengths));
        let device = of(*shard, "placement")?;
        let rank = field(graph, device, "_rank")?.and_then(|rank| graph.as_int(rank));
        ranks.extend(rank.and_then(|rank| u32::try_from(rank).ok()));
    }

    let mut pieces = Vec::new();
    for shard in graph.as_seq(locals).unwrap_or_default() {
        let (local, described) = (of(*shard, "tensor")?, of(*shard, "metadata")?);
        let region = region(graph, described, &shape)?;
        if !shards.contains(&(region.offsets.clone(), region.lengths.clone())) {
            return Err(wrong(&format!(
                "its shard {region} is not one of those it lists"
            )));
        }
        let Some(local) = tensor_of(graph, local, Wrapped::Any)? else {
            return Err(
                graph.unsupported(local, "a ShardedTensor whose shard is not a dense tensor")
            );
        };
        if (local.dtype, &local.shape) != (dtype, &region.lengths) {
            let what = format!(
                "its shard {region} of {dtype} has a tensor of shape {} of {}",
                local.shape, local.dtype
            );
            return Err(wrong(&what));
        }
        if region.volume() != Some(0) {
            pieces.push((region, local));
        }
    }
    let rank = field(graph, group, "global_rank")?.and_then(|rank| graph.as_int(rank));
    let rank = rank.and_then(|rank| u32::try_from(rank).ok());
    // A rank without shards is not listed.
    let rank = rank.filter(|rank| !pieces.is_empty() || ranks.contains(rank));
    let layout = format!("ShardedTensor of {} shards", all.len());
    Ok(PartRef {
        dtype,
        shape,
        requires_grad: false,
        pieces,
        rank,
        ranks: Arc::from_iter(ranks),
        layout: layout.into(),
    })
}

/// The box of a `ShardMetadata`.
fn region(graph: &Graph<'_>, id: Id, shape: &Dims) -> Result<Region> {
    let of = |name: &str| -> Result<Dims> {
        let list = field(graph, id, name)?.and_then(|list| dims(graph, list));
        let fits = list.filter(|list| list.len() == shape.len());
        fits.ok_or_else(|| wrong(&format!("a shard has no {name} that fit its shape")))
    };
    let region = Region::new(of("shard_offsets")?, of("shard_sizes")?);
    match region.fits(shape) {
        true => Ok(region),
        false => Err(wrong(&format!(
            "its shard {region} lies outside of {shape}"
        ))),
    }
}
