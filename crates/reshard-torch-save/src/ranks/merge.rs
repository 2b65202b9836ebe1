//! Makes one table of the leaves of all ranks.

use super::{
    compare,
    gather::{Gathered, Held, Leaves},
    names::ranks,
    part::{OfRank, Parts},
};
use crate::{
    reader::TorchSaveReader,
    table::{Table, TableBuilder},
};
use reshard_model::{Path, Step};
use reshard_strategy::{ReadLimits, Refused, Result};
use reshard_torch_format::{ObjectAt, PartRef, TensorRef};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

impl Gathered {
    /// Merges the leaves: parts become one tensor, and what is equal on all ranks appears once.
    pub(super) async fn merge(
        mut self,
        reader: &TorchSaveReader,
        limits: &ReadLimits,
    ) -> Result<Table> {
        let mut tables = TableBuilder::default();
        let there: BTreeMap<Box<str>, BTreeSet<u32>> = self
            .files
            .iter()
            .map(|file| (file.item.clone(), self.ranks(&file.item)))
            .collect();
        let mut absent = self.absent_by_names(&there);

        let names = self.names();
        let leaves = std::mem::take(&mut self.leaves);
        let differing = compare::differing(reader, objects(&leaves)).await?;
        for (key, leaves) in leaves {
            if let Some(why) = leaves.refused {
                tables.table.refused.insert(key, why);
                continue;
            }
            let none = BTreeSet::new();
            let there = there.get(&leaves.item).unwrap_or(&none);
            let merged = self.sorted(&key, leaves);
            match merged {
                Err(why) => drop(tables.table.refused.insert(key, why)),
                Ok(Merged::Parts(path, all)) => match Parts::of(all, there, &mut tables.missing) {
                    Err(why) => drop(tables.table.refused.insert(key, why)),
                    Ok(parts) => {
                        absent.add(self.item_of(&path), &parts.missing);
                        tables.parts(&key, path, parts)?;
                    }
                },
                Ok(Merged::Tensors(path, all)) => {
                    let same = compare::tensors(reader, &key, &all).await?;
                    for (n, place, key) in self.places(&path, &key, all.len(), same, &all) {
                        if let Some((file, tensor)) = all.get(n) {
                            tables.whole(*file, key, place, (**tensor).clone())?;
                        }
                    }
                }
                Ok(Merged::Objects(path, all)) => {
                    let same = !differing.contains(&key);
                    for (n, place, key) in self.places(&path, &key, all.len(), same, &all) {
                        if let Some((file, at)) = all.get(n) {
                            tables.object(*file, key, place, *at)?;
                        }
                    }
                }
            }
        }
        tables.table.missing = absent.in_words();
        let broken = std::mem::take(&mut self.broken);
        tables.table.broken = broken.into_iter().map(|(_, why)| why).collect();
        let others = std::mem::take(&mut self.layouts.others);
        tables.table.others = others.into_iter().map(String::from).collect();
        let annotations = std::mem::take(&mut self.dicts).of_ranks(&names);
        tables.finish_with_paths(annotations, limits)
    }

    /// The ranks that names and `metadata.pkl` count, and whose files are not there.
    fn absent_by_names(&self, there: &BTreeMap<Box<str>, BTreeSet<u32>>) -> Absent {
        let mut absent = Absent::default();
        for (item, there) in there {
            let world = self.world(item).map_or(0..0, |n| 0..n);
            // They may claim any number, so only what is missing of a usual number is listed.
            let missing = world
                .filter(|rank| !there.contains(rank))
                .take(MOST_MISSING);
            let missing = Arc::new(missing.collect());
            let by_name = self
                .files
                .iter()
                .any(|f| f.item == *item && f.world().is_some());
            if by_name || self.item_has_parts(item) {
                absent.add(item.clone(), &missing);
            }
        }
        absent
    }

    fn item_has_parts(&self, item: &str) -> bool {
        let mut leaves = self.leaves.values().filter(|leaves| *leaves.item == *item);
        leaves.any(|leaves| {
            leaves
                .of
                .iter()
                .any(|(_, held)| matches!(held, Held::Part(_)))
        })
    }

    /// What the files have of a key, which is of one kind in all of them.
    fn sorted(&self, key: &str, leaves: Leaves) -> Result<Merged<'_>, Refused> {
        let Leaves { path, of, .. } = leaves;
        let (mut parts, mut tensors, mut objects) = (Vec::new(), Vec::new(), Vec::new());
        let mut first: Option<(&'static str, u32)> = None;
        for (n, held) in of {
            let (kind, by) = *first.get_or_insert((held.name(), n));
            if kind != held.name() {
                let what = format!(
                    "{key} is {} here, but {kind} in {}; the files are not of one save",
                    held.name(),
                    self.name(by)
                );
                return Err(Refused::damaged(what).in_file(self.name(n)));
            }
            match held {
                Held::Part(part) => parts.push((n, part)),
                Held::Tensor(tensor) => tensors.push((n, tensor)),
                Held::Object(at) => objects.push((n, at)),
            }
        }
        Ok(match (parts.is_empty(), tensors.is_empty()) {
            (false, _) => {
                let of = |(n, part): (u32, Box<PartRef>)| OfRank {
                    file: n,
                    name: self.name(n),
                    rank: self.files.get(n as usize).map(|file| file.rank),
                    part,
                };
                Merged::Parts(path, parts.into_iter().map(of).collect())
            }
            (true, false) => Merged::Tensors(path, tensors),
            (true, true) => Merged::Objects(path, objects),
        })
    }

    fn name(&self, n: u32) -> &str {
        self.files.get(n as usize).map_or("", |file| &file.name)
    }

    fn item_of(&self, path: &Path) -> Box<str> {
        let only = || {
            self.files
                .first()
                .map_or_else(Box::default, |f| f.item.clone())
        };
        match path.0.first() {
            Some(Step::Key(item)) if self.has_items() => item.clone(),
            _ => only(),
        }
    }

    /// Where values of ranks go: once under their key if they are equal, and otherwise each under its rank.
    fn places<T>(
        &self,
        path: &Path,
        key: &str,
        count: usize,
        same: bool,
        all: &[(u32, T)],
    ) -> Vec<(usize, Path, Box<str>)> {
        if same {
            return vec![(0, path.clone(), key.into())];
        }
        let of = |n: usize| {
            let (file, _) = all.get(n)?;
            let rank = self.files.get(*file as usize)?.rank;
            let mut path = path.clone();
            path.0.push(Step::Key(format!("rank_{rank}").into()));
            let key = path.to_string().into();
            Some((n, path, key))
        };
        (0..count).filter_map(of).collect()
    }
}

/// The objects of each file.
fn objects(leaves: &BTreeMap<Box<str>, Leaves>) -> BTreeMap<u32, Vec<(&str, ObjectAt)>> {
    let mut out: BTreeMap<u32, Vec<(&str, ObjectAt)>> = BTreeMap::new();
    for (key, leaves) in leaves {
        for (n, held) in &leaves.of {
            if let Held::Object(at) = held {
                out.entry(*n).or_default().push((key, *at));
            }
        }
    }
    out
}

/// The ranks of each item whose files are missing.
#[derive(Default)]
struct Absent {
    ranks: BTreeMap<Box<str>, BTreeSet<u32>>,
    /// The ranks that were added last: most tensors of an item lack the same ones.
    last: Option<(Box<str>, Arc<BTreeSet<u32>>)>,
}

impl Absent {
    fn add(&mut self, item: Box<str>, missing: &Arc<BTreeSet<u32>>) {
        if let Some((of, last)) = &self.last
            && *of == item
            && Arc::ptr_eq(last, missing)
        {
            return;
        }
        let all = self.ranks.entry(item.clone()).or_default();
        all.extend(&**missing);
        self.last = Some((item, Arc::clone(missing)));
    }

    fn in_words(&self) -> Vec<String> {
        let some = self.ranks.iter().filter(|(_, ranks)| !ranks.is_empty());
        let words = |item: &str, missing: &BTreeSet<u32>| {
            let missing = ranks(missing.iter().copied());
            match item.is_empty() {
                true => format!("the files of {missing} are missing"),
                false => format!("the files of {item} of {missing} are missing"),
            }
        };
        some.map(|(item, missing)| words(item, missing)).collect()
    }
}

/// So many missing ranks are listed.
const MOST_MISSING: usize = 1 << 16;

/// A key of all ranks.
enum Merged<'n> {
    Parts(Path, Vec<OfRank<'n>>),
    Tensors(Path, Vec<(u32, Box<TensorRef>)>),
    Objects(Path, Vec<(u32, ObjectAt)>),
}
