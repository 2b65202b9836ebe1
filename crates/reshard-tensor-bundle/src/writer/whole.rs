//! Tensors of types that TensorFlow reads only if they are stored whole.

use super::item::Summed;
use crate::dtype;
use reshard_model::Region;
use reshard_plan::{Held, SavePlan, TensorWrite, WriteItem, place_item, take_items};
use reshard_strategy::{
    Elements, Piece, Resolve, Result, StrategyError, WriteData, mosaic, other_kind,
};
use std::collections::BTreeMap;

/// The tensor of an item that is stored whole, whatever part of it the item has.
pub(super) fn whole(item: &WriteItem) -> Option<&TensorWrite> {
    let tensor = item.tensor()?;
    (!dtype::is_sliced(tensor.dtype)).then_some(tensor)
}

/// The offsets of the first part of a tensor, and the rank and the file in which it lies.
type FirstPart = (Vec<u64>, (usize, usize));

/// An item with the file in which it lies: the rank, and the number of the file on it.
type ItemInFile = ((usize, usize), Held);

/// Brings all parts of tensors that are stored whole into the file of their first elements, whichever ranks hold them and however a policy
/// has cut them.
pub(super) fn bring_together(plans: &mut [SavePlan]) -> Result<()> {
    let parts = |plan: &SavePlan| {
        plan.items
            .iter()
            .filter(|item| whole(item).is_some())
            .count()
    };
    if plans.iter().map(parts).sum::<usize>() == 0 {
        return Ok(());
    }
    let by_policy: Vec<Vec<u32>> = plans.iter().map(|plan| plan.files.clone()).collect();
    let mut placed: Vec<ItemInFile> = Vec::new();
    for ((rank, items), files) in take_items(plans)?.into_iter().enumerate().zip(&by_policy) {
        let file_of = files.iter().enumerate();
        let mut file_of = file_of.flat_map(|(n, items)| std::iter::repeat_n(n, *items as usize));
        for held in items {
            placed.push(((rank, file_of.next().unwrap_or(0)), held));
        }
    }

    // The first elements of a tensor lie in the smallest of its regions.
    let mut first: BTreeMap<Box<str>, FirstPart> = BTreeMap::new();
    for (at, held) in &placed {
        if let Some(tensor) = whole(&held.item).filter(|t| !t.region.is_empty()) {
            let found = (tensor.region.offsets.to_vec(), *at);
            let known = first.entry(held.item.key.clone()).or_insert(found.clone());
            if found < *known {
                *known = found;
            }
        }
    }
    for (at, held) in &mut placed {
        if let Some((_, file)) = whole(&held.item).and_then(|_| first.get(&held.item.key)) {
            *at = *file;
        }
    }
    placed.sort_by_key(|(at, _)| *at);

    let mut files: Vec<Vec<u32>> = by_policy.iter().map(|f| vec![0; f.len()]).collect();
    for ((rank, file), held) in placed {
        let count = files.get_mut(rank).and_then(|files| files.get_mut(file));
        if let Some(count) = count {
            *count += 1;
        }
        place_item(plans, rank as u32, held)?;
    }
    for (plan, files) in plans.iter_mut().zip(files) {
        plan.files = files;
    }
    Ok(())
}

/// The bytes of a tensor of which these items are all parts.
pub(super) fn summed(items: &[&WriteItem], resolve: &Resolve<'_>) -> Result<Summed> {
    let internal =
        |what: &str| StrategyError::Internal(format!("a tensor that is stored whole {what}"));
    let first = items.first().and_then(|item| whole(item));
    let first = first.ok_or_else(|| internal("has no part"))?;
    let (shape, size) = (first.global_shape.clone(), first.dtype.size());
    let (mut pieces, mut covered) = (Vec::with_capacity(items.len()), 0u64);
    for item in items {
        let tensor = whole(item).ok_or_else(|| internal("has a part that is none"))?;
        let WriteData::Tensor(data) = resolve(item)? else {
            return Err(other_kind(item));
        };
        pieces.push(Piece::new(tensor.region.clone(), size, &data));
        covered = covered.saturating_add(tensor.region.volume().unwrap_or(0));
        // It checks that the data are as planned.
        drop(Elements::of(item, tensor, data)?);
    }
    let volume = Region::whole(&shape).volume();
    if volume != Some(covered) {
        let key = items.first().map_or("", |item| &*item.key);
        let what = format!(
            "{key}: its parts have {covered} elements, and the tensor {shape} has others; TensorFlow reads {} only if the tensor is stored whole",
            first.dtype
        );
        return Err(StrategyError::Invalid(what));
    }
    Ok(Summed::new(
        covered.saturating_mul(size),
        mosaic(shape, size, pieces),
    ))
}
