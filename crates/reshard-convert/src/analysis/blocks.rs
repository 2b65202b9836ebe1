//! Blocks of tensors as tasks for several threads, whose results come in order.

use crate::{ConvertError, Result};
use futures::{StreamExt as _, stream};
use reshard::{
    Region, Tensor, TensorHandle,
    storage::{run_blocking, wait},
};
use std::{
    ops::ControlFlow,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

/// `diff` and `stats` read tensors in blocks of at most so many bytes.
pub const BLOCK: u64 = 4 << 20;

/// Neighbours that are smaller go into one task, up to so many bytes and so many of them.
const SMALL: u64 = 1 << 20;
const TOGETHER: usize = 128;

/// So many tasks are begun before the first of them is done.
const AHEAD: usize = 8;

/// A block of one of the tensors.
#[derive(Clone, Debug)]
pub(super) struct Unit {
    pub(super) tensor: usize,
    pub(super) region: Region,
}

/// All blocks of all tensors, in their order, and those that are read together. A tensor ends where `is_wanted` says no.
fn tasks(
    tensors: &[(u64, Region)],
    is_wanted: impl Fn(usize) -> bool + Clone,
) -> impl Iterator<Item = Vec<Unit>> {
    let units = tensors
        .iter()
        .enumerate()
        .flat_map(move |(tensor, (size, whole))| {
            let size = (*size).max(1);
            let is_wanted = is_wanted.clone();
            let blocks = whole.clone().blocks(BLOCK / size);
            let wanted = blocks.take_while(move |_| is_wanted(tensor));
            wanted.map(move |region| {
                let bytes = region.volume().unwrap_or(u64::MAX).saturating_mul(size);
                (Unit { tensor, region }, bytes)
            })
        });
    let mut units = units.peekable();
    std::iter::from_fn(move || {
        let (first, mut bytes) = units.next()?;
        let mut task = vec![first];
        while let Some((_, more)) = units.peek()
            && bytes.saturating_add(*more) <= SMALL
            && task.len() < TOGETHER
        {
            bytes = bytes.saturating_add(*more);
            task.extend(units.next().map(|(unit, _)| unit));
        }
        Some(task)
    })
}

/// Calls `look` for each block of the tensors, on several threads, and folds the results of each tensor into a sum, in order. If `fold` breaks,
/// the rest of the tensor is left out. `end` gets the sum of each tensor, also of one without elements. The tensors are given with the number
/// of bytes that an element takes in memory.
pub(super) async fn fold_blocks<T, S, L>(
    tensors: &[(u64, Region)],
    look: L,
    mut fold: impl FnMut(&mut S, &Unit, T) -> reshard::Result<ControlFlow<()>>,
    mut end: impl FnMut(usize, S) -> reshard::Result<()>,
) -> Result<()>
where
    T: Send + 'static,
    S: Default,
    L: Fn(&Unit) -> T + Clone + Send + 'static,
{
    let unwanted = AtomicUsize::new(usize::MAX);
    let is_wanted = |tensor: usize| unwanted.load(Relaxed) != tensor;
    let begun = tasks(tensors, is_wanted).map(|units| {
        let look = look.clone();
        async move {
            let look = move |unit: Unit| {
                let found = look(&unit);
                (unit, found)
            };
            let task = move || units.into_iter().map(look).collect::<Vec<_>>();
            run_blocking([task]).await
        }
    });
    let (mut at, mut sum) = (0, S::default());
    let mut end_before = |tensor: usize, sum: &mut S| {
        while at < tensor {
            end(at, std::mem::take(sum)).map_err(ConvertError::Read)?;
            at += 1;
        }
        Ok(())
    };
    let mut done = stream::iter(begun).buffered(AHEAD);
    while let Some(results) = done.next().await {
        let results = results.map_err(|e| ConvertError::Failed(e.into()))?;
        for (unit, found) in results.into_iter().flatten() {
            end_before(unit.tensor, &mut sum)?;
            // What was begun comes all the same.
            if !is_wanted(unit.tensor) {
                continue;
            }
            let flow = fold(&mut sum, &unit, found).map_err(ConvertError::Read)?;
            if flow.is_break() {
                unwanted.store(unit.tensor, Relaxed);
            }
        }
    }
    end_before(tensors.len(), &mut sum)
}

/// Reads a block, on the thread of a task.
pub(super) fn read(tensor: &TensorHandle, region: &Region) -> reshard::Result<Tensor> {
    wait(tensor.read(region.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn every_element_is_in_one_block_and_small_tensors_go_together() {
        let shapes: [&[u64]; 5] = [&[3000, 1000], &[], &[0, 4], &[7], &[5, 3 << 20]];
        let tensors: Vec<_> = shapes.iter().map(|s| (4, Region::whole(s))).collect();
        let mut seen = vec![0; shapes.len()];
        let all: Vec<Vec<Unit>> = tasks(&tensors, |_| true).collect();
        for task in &all {
            let bytes: u64 = task.iter().map(|u| u.region.volume().unwrap() * 4).sum();
            assert!(bytes <= BLOCK);
            for unit in task {
                seen[unit.tensor] += unit.region.volume().unwrap();
            }
        }
        assert_eq!(seen, [3_000_000, 1, 0, 7, 15 << 20]);
        assert!(all.iter().any(|task| task.len() > 1));
    }

    #[test]
    fn what_is_unwanted_of_an_endless_tensor_is_not_begun() {
        let shapes: [&[u64]; 3] = [&[3], &[1 << 60], &[2]];
        let tensors: Vec<_> = shapes.iter().map(|s| (1, Region::whole(s))).collect();
        let seen: Arc<[AtomicUsize; 3]> = Arc::default();
        let look = {
            let seen = Arc::clone(&seen);
            move |unit: &Unit| seen[unit.tensor].fetch_add(1, Relaxed)
        };
        let fold = |sum: &mut usize, unit: &Unit, _| {
            *sum += 1;
            Ok(match unit.tensor {
                1 => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            })
        };
        let mut sums = Vec::new();
        let end = |tensor, sum| {
            sums.push((tensor, sum));
            Ok(())
        };
        wait(fold_blocks(&tensors, look, fold, end)).unwrap();
        assert_eq!(sums, [(0, 1), (1, 1), (2, 1)]);
        let seen = [0, 1, 2].map(|tensor| seen[tensor].load(Relaxed));
        assert_eq!((seen[0], seen[2]), (1, 1));
        assert!((1..=1 + AHEAD).contains(&seen[1]), "{seen:?}");
    }
}
