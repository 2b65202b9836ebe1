//! Elements on their way from storage into lent buffers.

use super::lend::{Lent, local};
use crate::{LoadCx, ReadTensor, ReadTotals, Result, StorageReader, StrategyError};
use reshard_model::{FlatStateDict, LentBuffer, LentView, Region, RegionMut, Sharded, Tensor};
use reshard_plan::{Destination, LoadPlan, ReadItem, Selection, Stored, cast};
use std::collections::BTreeMap;

/// Most bytes that wait for a cast or a planner's transform at once.
const SCRATCH: u64 = 64 << 20;

pub(super) async fn read_all(
    lent: &mut Lent,
    plan: &LoadPlan,
    template: &FlatStateDict,
    from: &dyn StorageReader,
    cx: &LoadCx<'_>,
) -> Result<ReadTotals> {
    let mut direct: Vec<ReadTensor> = Vec::new();
    let mut scratch: Vec<(&ReadItem, Selection, RegionMut)> = Vec::new();
    let place: BTreeMap<u32, (usize, usize)> = lent
        .buffers
        .iter()
        .enumerate()
        .flat_map(|(l, (_, _, leaves))| leaves.iter().enumerate().map(move |(v, &leaf)| (leaf, (l, v))))
        .collect();
    // All regions of a buffer are asked for at once, those of fills too, so that a fill and a read never meet.
    enum Want<'p> {
        Read(&'p ReadItem),
        Fill,
    }
    let mut wants: Vec<Vec<(usize, Region, Want<'_>)>> = lent.buffers.iter().map(|_| Vec::new()).collect();
    for item in plan.items.iter().filter(|i| matches!(i.stored, Stored::Chunk(_))) {
        if let Some(&(l, v)) = place.get(&item.dest) {
            wants[l].push((v, local(template, item.dest, &item.dest_region), Want::Read(item)));
        }
    }
    for f in &plan.fills {
        if let Some(&(l, v)) = place.get(&f.dest) {
            wants[l].push((v, local(template, f.dest, &f.dest_region), Want::Fill));
        }
    }
    let metadata = from.metadata();
    for ((lent, views, _), wants) in lent.buffers.iter().zip(wants) {
        let regions: Vec<(&LentView, Region)> =
            wants.iter().map(|(v, r, _)| (&views[*v], r.clone())).collect();
        let lent_regions = lent.regions_mut(&regions)?;
        for ((_, _, want), into) in wants.into_iter().zip(lent_regions) {
            let Want::Read(item) = want else {
                let zeros = vec![0; into.bytes() as usize];
                into.fill(&zeros)?;
                continue;
            };
            let Some(selection) = item.selection(metadata)? else { continue };
            let dtype = match template.get_index(item.dest as usize) {
                Some((_, Sharded::Tensor(t))) => t.dtype,
                _ => continue,
            };
            let same = selection.dtype == dtype;
            if same && cx.planner.lookup_tensor(item)? == Destination::Leaf {
                direct.push(ReadTensor::new(selection, into));
            } else {
                scratch.push((item, selection, into));
            }
        }
    }
    let mut totals = from.read_tensors(direct, cx.verify, &cx.progress).await?;
    while !scratch.is_empty() {
        let mut bytes = 0;
        let n = scratch
            .iter()
            .take_while(|(.., c)| (bytes == 0, bytes += c.bytes()).0 || bytes <= SCRATCH)
            .count();
        let part = scratch.drain(..n.max(1)).collect();
        add(&mut totals, &through_scratch(part, template, from, cx).await?);
    }
    Ok(totals)
}

fn add(a: &mut ReadTotals, b: &ReadTotals) {
    a.needed += b.needed;
    a.read += b.read;
    a.headers += b.headers;
    a.requests += b.requests;
    a.verified += b.verified;
}

/// Reads into memory of its own, lets the planner transform and casts, then fills the regions.
async fn through_scratch(
    part: Vec<(&ReadItem, Selection, RegionMut)>,
    template: &FlatStateDict,
    from: &dyn StorageReader,
    cx: &LoadCx<'_>,
) -> Result<ReadTotals> {
    let (mut reads, mut waiting) = (Vec::new(), Vec::new());
    for (item, selection, into) in part {
        let scratch = Tensor::zeros(&item.piece.key, selection.dtype, into.shape())?;
        let (lent, views) = LentBuffer::new(&item.piece.key, vec![scratch]).map_err(|(e, _)| e)?;
        let whole = Region::whole(into.shape());
        let inner = lent.regions_mut(&[(&views[0], whole)])?;
        reads.extend(inner.into_iter().map(|inner| ReadTensor::new(selection.clone(), inner)));
        waiting.push((item, into, lent, views));
    }
    let totals = from.read_tensors(reads, cx.verify, &cx.progress).await?;
    for (item, into, lent, views) in waiting {
        let mut got =
            lent.reclaim(views).map_err(|_| StrategyError::Invalid("a store kept a buffer".into()))?;
        let Some(tensor) = got.pop() else { continue };
        let tensor = cx.planner.transform_tensor(item, tensor)?;
        let dtype = match template.get_index(item.dest as usize) {
            Some((_, Sharded::Tensor(t))) => t.dtype,
            _ => tensor.dtype(),
        };
        let elements = if tensor.dtype() == dtype {
            tensor.to_bytes().to_vec()
        } else {
            let mut out = vec![0; into.bytes() as usize];
            cast::convert(tensor.dtype(), &tensor.to_bytes(), dtype, &mut out)?;
            out
        };
        into.fill(&elements)?;
    }
    Ok(totals)
}
