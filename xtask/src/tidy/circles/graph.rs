//! Circles of a directed graph.

use std::collections::{BTreeMap, BTreeSet};

type Arrows = BTreeMap<usize, BTreeSet<usize>>;

/// The largest sets of two nodes or more that all reach each other, in order of their least node.
pub(super) fn circles(arrows: &Arrows) -> Vec<BTreeSet<usize>> {
    let mut back = Arrows::new();
    for (from, tos) in arrows {
        for to in tos {
            back.entry(*to).or_default().insert(*from);
        }
    }
    let mut done: BTreeSet<usize> = BTreeSet::new();
    let mut all = Vec::new();
    for start in arrows.keys() {
        if done.contains(start) {
            continue;
        }
        let ahead = reached(*start, arrows);
        let circle: BTreeSet<usize> = reached(*start, &back)
            .intersection(&ahead)
            .copied()
            .collect();
        done.extend(&circle);
        if circle.len() > 1 {
            all.push(circle);
        }
    }
    all
}

/// A node, and all that arrows lead to from it.
fn reached(start: usize, arrows: &Arrows) -> BTreeSet<usize> {
    let mut found = BTreeSet::from([start]);
    let mut next = vec![start];
    while let Some(node) = next.pop() {
        for to in arrows.get(&node).into_iter().flatten() {
            if found.insert(*to) {
                next.push(*to);
            }
        }
    }
    found
}
