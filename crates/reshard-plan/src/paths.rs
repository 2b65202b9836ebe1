//! The paths of keys, after a planner has renamed them.

use crate::SavePlan;
use reshard_model::{FlatStateDict, Path, PathOfKey, Sharded, Step};
use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
};

/// The path of each key under which a rank saves: DCP's `planner_data`. `paths` are those of the keys before planning, as
/// [`split`](reshard_model::split) makes them. A planner may have renamed leaves of the `state`, or items of the `plan`; their paths
/// go with them. A key that is made of several leaves with different paths has none.
pub fn paths_of_plan(paths: &PathOfKey, plan: &SavePlan, state: &FlatStateDict) -> PathOfKey {
    let unchanged = |(path, leaf): (&Path, &Sharded)| {
        paths
            .get(&*leaf.unique_key())
            .is_some_and(|known| known.0.len() == path.0.len() && text(known).eq(text(path)))
    };
    let named = |source: u32| {
        state
            .get_index(source as usize)
            .map(|(_, leaf)| leaf.unique_key())
    };
    if state.iter().all(unchanged)
        && plan
            .items
            .iter()
            .all(|i| named(i.source).is_some_and(|k| *k == *i.key))
    {
        return paths.clone();
    }
    // Paths in a flat state do not distinguish list indices from int keys, so they are compared as text.
    let known: BTreeMap<Vec<Cow<'_, str>>, &Path> =
        paths.values().map(|p| (text(p).collect(), p)).collect();
    let mut names: Vec<BTreeSet<&str>> = vec![BTreeSet::new(); state.len()];
    for item in &plan.items {
        if let Some(names) = names.get_mut(item.source as usize) {
            names.insert(&item.key);
        }
    }
    let (mut out, mut several) = (PathOfKey::new(), BTreeSet::<Box<str>>::new());
    for ((path, leaf), names) in state.iter().zip(names) {
        let own = leaf.unique_key();
        let same = known.get(&text(path).collect::<Vec<_>>()).copied();
        let path = same.or_else(|| paths.get(&*own)).unwrap_or(path);
        // A leaf without items is written by another rank, or by none.
        let names = if names.is_empty() {
            BTreeSet::from([&*own])
        } else {
            names
        };
        for name in names {
            match out.get(name) {
                None => drop(out.insert(name.into(), path.clone())),
                // Pieces of one tensor have one key, and the path of the first.
                Some(other) if other == path || *name == *own => {}
                Some(_) => drop(several.insert(name.into())),
            }
        }
    }
    out.retain(|name, _| !several.contains(name));
    out
}

fn text(path: &Path) -> impl Iterator<Item = Cow<'_, str>> {
    path.0.iter().map(|step| match step {
        Step::Key(key) => Cow::Borrowed(&**key),
        Step::Index(i) => Cow::Owned(i.to_string()),
    })
}
