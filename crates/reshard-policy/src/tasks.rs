use crate::Piece;
use std::collections::BTreeMap;

/// Positions of the pieces of each task, tasks in the order in which they come first.
pub(crate) fn by_task(pieces: &[Piece<'_>]) -> Vec<Vec<u32>> {
    groups(0..pieces.len() as u32, |i| pieces[i as usize].task)
}

/// Positions of the same group, groups in the order in which they come first.
pub(crate) fn groups<G: Ord>(
    positions: impl IntoIterator<Item = u32>,
    group: impl Fn(u32) -> G,
) -> Vec<Vec<u32>> {
    let mut out: Vec<Vec<u32>> = Vec::new();
    let mut numbers: BTreeMap<G, usize> = BTreeMap::new();
    for position in positions {
        let number = *numbers.entry(group(position)).or_insert(out.len());
        match out.get_mut(number) {
            Some(list) => list.push(position),
            None => out.push(vec![position]),
        }
    }
    out
}
