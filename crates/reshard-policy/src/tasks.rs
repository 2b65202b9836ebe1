use crate::Piece;
use std::collections::BTreeMap;

/// The positions of the pieces of each task. Tasks are in the order in which they first occur. A shard holds pieces of one
/// task, so most policies start with this call.
pub fn by_task(pieces: &[Piece<'_>]) -> Vec<Vec<usize>> {
    groups(0..pieces.len(), |i| pieces[i].task)
}

/// The positions of each group. Groups are in the order in which they first occur.
pub(crate) fn groups<G: Ord>(
    positions: impl IntoIterator<Item = usize>,
    group: impl Fn(usize) -> G,
) -> Vec<Vec<usize>> {
    let mut out: Vec<Vec<usize>> = Vec::new();
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
