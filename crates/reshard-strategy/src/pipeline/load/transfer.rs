//! Elements on their way from storage into lent buffers.

use super::lend::{Exchanged, Place, Places};
use crate::{LoadCx, ReadCx, ReadTensor, Result, StorageReader, StrategyError, Traffic};
use reshard_model::{DType, Layout, LentBuffer, LentView, Region, RegionMut, Tensor};
use reshard_plan::{ReadItem, Selection, cast};
use std::sync::Arc;

/// The most bytes that are in temporary memory for a cast or a planner's transform.
const SCRATCH: u64 = 64 << 20;
/// Zeros that are written at once.
const ZEROS: [u8; 16 << 10] = [0; 16 << 10];

/// An item that goes through temporary memory instead of straight to its leaf.
struct Detour<'p> {
    item: &'p ReadItem,
    selection: Selection,
    dtype: DType,
    into: RegionMut,
}

/// Fills all places that this rank reads only for itself. Returns the places of the exchange.
pub(super) async fn transfer<'p>(
    places: Places<'p>,
    from: &dyn StorageReader,
    how: &ReadCx<'_>,
    cx: &LoadCx<'_>,
) -> Result<(Traffic, Exchanged<'p>)> {
    places.zeros.into_iter().try_for_each(zero)?;
    let (mut direct, mut detours) = (Vec::new(), Vec::new());
    for mut place in places.reads {
        let Some(selection) = place.item.selection(from.metadata())? else {
            continue;
        };
        let straight = place.goes_straight(selection.dtype, cx)?;
        let Place {
            item, dtype, into, ..
        } = place;
        if straight {
            direct.push(ReadTensor::new(selection, into));
        } else {
            detours.push(Detour {
                item,
                selection,
                dtype,
                into,
            });
        }
    }
    let mut totals = from.read_tensors(direct, how).await?;
    while !detours.is_empty() {
        let round = detours.drain(..round(&detours)).collect();
        totals += through_scratch(round, from, how, cx).await?;
    }
    Ok((totals, places.exchanged))
}

/// How many of them fit into temporary memory together. At least one, even if it is larger.
fn round(detours: &[Detour<'_>]) -> usize {
    let mut bytes = 0u64;
    for (n, detour) in detours.iter().enumerate() {
        bytes = bytes.saturating_add(detour.selection.bytes());
        if bytes > SCRATCH {
            return n.max(1);
        }
    }
    detours.len()
}

fn zero(into: RegionMut) -> Result<()> {
    let bytes = into.bytes();
    let Some(dense) = Layout::contiguous(into.item(), into.shape()) else {
        return Ok(());
    };
    let mut copy = into.strided_copy(&dense)?;
    let mut at = 0;
    while at < bytes {
        let n = (bytes - at).min(ZEROS.len() as u64);
        copy.feed(at, &ZEROS[..n as usize]);
        at += n;
    }
    Ok(())
}

/// Reads into temporary memory, lets the planner transform the elements, casts them, and fills the places.
async fn through_scratch(
    detours: Vec<Detour<'_>>,
    from: &dyn StorageReader,
    how: &ReadCx<'_>,
    cx: &LoadCx<'_>,
) -> Result<Traffic> {
    let (mut reads, mut waiting) = (Vec::new(), Vec::new());
    for Detour {
        item,
        selection,
        dtype,
        into,
    } in detours
    {
        let (read, lent, views) = scratch(&item.piece.key, selection, into.shape())?;
        reads.push(read);
        waiting.push((item, dtype, into, lent, views));
    }
    let totals = from.read_tensors(reads, how).await?;
    for (item, dtype, into, lent, views) in waiting {
        put(item, reclaimed(lent, views)?, dtype, into, cx)?;
    }
    Ok(totals)
}

/// A read into temporary memory.
pub(super) fn scratch(
    key: &str,
    selection: Selection,
    shape: &[u64],
) -> Result<(ReadTensor, Arc<LentBuffer>, Vec<LentView>)> {
    let memory = Tensor::zeros(key, selection.dtype, shape)?;
    let (lent, views) = LentBuffer::new(key, vec![memory]).map_err(|(e, _)| e)?;
    let whole: Vec<_> = views
        .iter()
        .map(|view| (view, Region::whole(shape)))
        .collect();
    let none = || StrategyError::Internal(format!("{key}: memory of one view has no region"));
    let inner = lent.regions_mut(&whole)?.pop().ok_or_else(none)?;
    Ok((ReadTensor::new(selection, inner), lent, views))
}

/// Takes the temporary memory back once it is filled.
pub(super) fn reclaimed(lent: Arc<LentBuffer>, views: Vec<LentView>) -> Result<Tensor> {
    let kept = || StrategyError::Internal("a store kept a buffer".into());
    lent.reclaim(views)
        .ok()
        .and_then(|mut all| all.pop())
        .ok_or_else(kept)
}

/// Lets the planner transform elements, in the shape of their place. Casts them and puts them into the place.
pub(super) fn put(
    item: &ReadItem,
    read: Tensor,
    dtype: DType,
    into: RegionMut,
    cx: &LoadCx<'_>,
) -> Result<()> {
    let tensor = cx.planner.transform_tensor(item, read)?;
    if tensor.dtype() == dtype {
        return Ok(into.fill(&tensor.to_bytes())?);
    }
    let mut out = vec![0; into.bytes() as usize];
    cast::convert(tensor.dtype(), &tensor.to_bytes(), dtype, &mut out)?;
    Ok(into.fill(&out)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_fill_a_region_of_many_blocks_and_nothing_else() {
        let (rows, columns) = (300, 200);
        let ones =
            Tensor::from_vec(&[rows, columns], vec![1u8; (rows * columns) as usize]).unwrap();
        let (lent, views) = LentBuffer::new("w", vec![ones]).unwrap();
        let inner = Region::new([1, 3], [rows - 1, columns - 3]);
        lent.regions_mut(&[(&views[0], inner)])
            .unwrap()
            .into_iter()
            .try_for_each(zero)
            .unwrap();
        let filled = lent
            .reclaim(views)
            .ok()
            .unwrap()
            .remove(0)
            .to_vec::<u8>()
            .unwrap();
        for (i, &byte) in (0u64..).zip(&filled) {
            let outside = i / columns < 1 || i % columns < 3;
            assert_eq!(byte, u8::from(outside), "element {i}");
        }
    }
}
