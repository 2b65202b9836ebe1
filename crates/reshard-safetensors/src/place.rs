//! Which rank writes which tensors into which file.

use crate::{
    header, names,
    overhead::{entry_bytes, header_bytes},
    settings::SafetensorsConfig,
};
use bytes::Bytes;
use reshard_model::{DType, Dims, SafetensorsDType};
use reshard_plan::{Held, SavePlan, TensorWrite, WriteItem, place_item, take_items};
use reshard_strategy::{Result, StrategyError};
use serde::{Deserialize, Serialize};
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
};

/// What the plan of a rank says to the writer.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Files {
    /// The names of this rank's files.
    pub(crate) names: Vec<String>,
    /// The number of the file of each key. If ranks write their pieces to files of their own, it is empty: then the first piece of each
    /// key lies in the first file, the second in the second, and so on.
    pub(crate) of: BTreeMap<Box<str>, u32>,
    /// Tensors without elements. They go into the first file of all, so only one plan has them.
    pub(crate) empty: Vec<Empty>,
    /// What `__metadata__` of every file says in addition.
    pub(crate) texts: BTreeMap<Box<str>, String>,
}

/// A tensor without elements, of which there are no items.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Empty {
    pub(crate) key: Box<str>,
    pub(crate) dtype: DType,
    pub(crate) shape: Dims,
}

impl Files {
    /// Upper bound of the header of a file, without the entries of tensors that have elements. Tensors without elements are in the first
    /// file, whichever that is.
    pub(crate) fn overhead(&self) -> Result<u64> {
        let mut out = header_bytes(&self.texts)?;
        for empty in &self.empty {
            out = out.saturating_add(entry_bytes(&empty.key, empty.dtype, &empty.shape)?);
        }
        Ok(out)
    }

    pub(crate) fn pack(&self) -> Result<Bytes> {
        let packed = serde_json::to_vec(self).map_err(|e| internal(&e.to_string()))?;
        Ok(packed.into())
    }

    /// What is in a plan.
    pub(crate) fn unpack(bytes: &[u8]) -> Result<Self> {
        if bytes.is_empty() {
            return Ok(Self::default());
        }
        serde_json::from_slice(bytes).map_err(|e| internal(&e.to_string()))
    }
}

fn internal(what: &str) -> StrategyError {
    StrategyError::Internal(format!("what a plan says of files: {what}"))
}

/// Fails for what can't be stored.
pub(crate) fn storable(
    item: &WriteItem,
    settings: &SafetensorsConfig,
    file: Option<&str>,
) -> Result<()> {
    let unsupported = |what: String| StrategyError::Unsupported {
        strategy: format!("{}/1", names::NAME),
        what,
    };
    let key = &item.key;
    let Some(t) = item.tensor() else {
        // Other settings leave objects to the common strategy.
        return match file {
            None => Ok(()),
            Some(_) => Err(unsupported(format!(
                "storing {key}, which is no tensor (save to a folder, because objects are stored beside the tensors),"
            ))),
        };
    };
    if &**key == header::METADATA {
        let what = format!("the key {key}, which has a meaning of its own in the format,");
        return Err(unsupported(what));
    }
    if t.original_shape.is_some() {
        let what = format!(
            "storing {key}, which is declared in flattened ranges (declare boxes of it, or convert with `--unflatten` first),"
        );
        return Err(unsupported(what));
    }
    match SafetensorsDType::named(t.dtype) {
        None if !settings.types_as_bytes => {
            let what = format!(
                "storing {key}, whose type {} the format lacks (cast it, or set `types_as_bytes`),",
                t.dtype
            );
            Err(unsupported(what))
        }
        Some(spelled) if spelled.in_header(&t.global_shape).is_none() => {
            let what = format!("storing {key}, a {} without axes,", t.dtype);
            Err(unsupported(what))
        }
        _ => Ok(()),
    }
}

/// Whether an item has any.
pub(crate) fn has_elements(item: &&WriteItem) -> bool {
    item.tensor().is_none_or(|t| !t.region.is_empty())
}

/// Numbers the files of ranks that write their pieces to files of their own.
pub(crate) fn sharded(mut plans: Vec<SavePlan>, model: &str) -> Result<Vec<SavePlan>> {
    bring_objects_together(&mut plans)?;
    let files = |plan: &SavePlan| {
        let mut pieces: BTreeMap<&str, usize> = BTreeMap::new();
        let tensors = plan.items.iter().filter(|item| item.tensor().is_some());
        for item in tensors.filter(has_elements) {
            *pieces.entry(&item.key).or_default() += 1;
        }
        pieces.into_values().max().unwrap_or(0)
    };
    let counts: Vec<usize> = plans.iter().map(files).collect();
    let most = counts.iter().copied().max().unwrap_or(0);
    let Files {
        mut empty, texts, ..
    } = of_planner(&mut plans)?;
    for ((rank, plan), count) in (0..).zip(&mut plans).zip(counts) {
        let names = (0..count).map(|n| names::shard(rank, model, n, most));
        plan.storage_data = Files {
            names: names.collect(),
            empty: match count {
                0 => Vec::new(),
                _ => std::mem::take(&mut empty),
            },
            texts: texts.clone(),
            ..Files::default()
        }
        .pack()?;
    }
    Ok(plans)
}

/// Brings all objects to one rank, because they lie in one file. Tensors stay where they are.
fn bring_objects_together(plans: &mut [SavePlan]) -> Result<()> {
    let mut items = plans.iter().flat_map(|plan| &plan.items);
    if items.all(|item| item.tensor().is_some()) {
        return Ok(());
    }
    let mut objects = Vec::new();
    for (by, items) in (0u32..).zip(take_items(plans)?) {
        for held in items {
            match held.item.tensor() {
                Some(_) => place_item(plans, by, held)?,
                None => objects.push((by, held)),
            }
        }
    }
    place_objects(plans, objects)
}

/// The lowest rank that has an object writes all of them.
fn place_objects(plans: &mut [SavePlan], objects: Vec<(u32, Held)>) -> Result<()> {
    let by = objects.iter().map(|(by, _)| *by).min().unwrap_or_default();
    for (_, held) in objects {
        place_item(plans, by, held)?;
    }
    Ok(())
}

/// Tensors without elements, and texts, which only the planner knows.
fn of_planner(plans: &mut [SavePlan]) -> Result<Files> {
    match plans.first_mut() {
        Some(first) => Files::unpack(&std::mem::take(&mut first.storage_data)),
        None => Ok(Files::default()),
    }
}

/// Pieces of a tensor, each with the rank that writes it as the plans are.
struct Whole {
    /// With its entry in the header.
    bytes: u64,
    /// The file in which a policy has placed the first elements: its rank, and its number there.
    placed: Option<(u32, u32)>,
    pieces: Vec<(u32, Held)>,
}

/// Tensors that go into one file.
struct Group {
    /// The rank that a policy has chosen.
    by: Option<u32>,
    bytes: u64,
    keys: Vec<Box<str>>,
}

/// Brings all pieces of a tensor to one rank and into one file. `file` is the name of the only one, if there is to be only one.
pub(crate) fn whole(
    mut plans: Vec<SavePlan>,
    settings: &SafetensorsConfig,
    file: Option<&str>,
) -> Result<Vec<SavePlan>> {
    let planned = of_planner(&mut plans)?;
    // What every file has takes away room for tensors.
    let room = settings
        .max_shard_size
        .0
        .saturating_sub(planned.overhead()?);
    let Files {
        mut empty, texts, ..
    } = planned;
    let by_policy = plans.iter().any(|plan| !plan.files.is_empty());
    let mut tensors = gather(&mut plans)?;
    let groups = match (file, by_policy) {
        (Some(_), _) => by_size(&tensors, u64::MAX),
        (None, true) => by_file(&tensors),
        (None, false) => by_size(&tensors, room),
    };
    let of_rank = || Files {
        texts: texts.clone(),
        ..Files::default()
    };
    let mut files: Vec<Files> = plans.iter().map(|_| of_rank()).collect();
    let mut loads = vec![0u64; plans.len()];
    let count = groups.len();
    for (n, group) in groups.into_iter().enumerate() {
        let by = group.by.unwrap_or_else(|| writer(&group, &tensors, &loads));
        let (Some(files), Some(load)) = (files.get_mut(by as usize), loads.get_mut(by as usize))
        else {
            return Err(internal("no such rank"));
        };
        *load = load.saturating_add(group.bytes);
        let number = files.names.len() as u32;
        files.empty.append(&mut empty);
        let name = file.map_or_else(|| names::file(&settings.name, n, count), Into::into);
        files.names.push(name);
        for key in group.keys {
            let pieces = tensors.remove(&key).map(|t| t.pieces).unwrap_or_default();
            for (_, held) in pieces {
                place_item(&mut plans, by, held)?;
            }
            files.of.insert(key, number);
        }
    }
    for (plan, files) in plans.iter_mut().zip(files) {
        plan.files = Vec::new();
        plan.storage_data = files.pack()?;
    }
    Ok(plans)
}

/// Takes all items out of the plans.
fn gather(plans: &mut [SavePlan]) -> Result<BTreeMap<Box<str>, Whole>> {
    let files: Vec<Vec<u32>> = plans.iter().map(|plan| plan.files.clone()).collect();
    let mut out: BTreeMap<Box<str>, Whole> = BTreeMap::new();
    let (mut without, mut objects) = (Vec::new(), Vec::new());
    for ((by, items), files) in (0u32..).zip(take_items(plans)?).zip(files) {
        let of_file = (0u32..).zip(files);
        let mut of_file = of_file.flat_map(|(n, items)| std::iter::repeat_n(n, items as usize));
        for held in items {
            let file = of_file.next();
            if held.item.tensor().is_none() {
                objects.push((by, held));
                continue;
            }
            let t = tensor(&held.item)?;
            if t.region.is_empty() {
                without.push((by, held));
                continue;
            }
            let whole = match out.entry(held.item.key.clone()) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => {
                    let elements = t.global_shape.volume().unwrap_or(0);
                    let entry = entry_bytes(&held.item.key, t.dtype, &t.global_shape)?;
                    new.insert(Whole {
                        bytes: elements
                            .saturating_mul(t.dtype.size())
                            .saturating_add(entry),
                        placed: None,
                        pieces: Vec::new(),
                    })
                }
            };
            if t.region.offsets.iter().all(|n| *n == 0) && whole.placed.is_none() {
                whole.placed = file.map(|file| (by, file));
            }
            whole.pieces.push((by, held));
        }
    }
    for (by, held) in without {
        place_item(plans, by, held)?;
    }
    place_objects(plans, objects)?;
    for whole in out.values_mut() {
        let offsets = |held: &Held| held.item.tensor().map(|t| t.region.offsets.clone());
        whole
            .pieces
            .sort_by_cached_key(|(by, held)| (offsets(held), *by));
    }
    Ok(out)
}

pub(crate) fn tensor(item: &WriteItem) -> Result<&TensorWrite> {
    let none = || StrategyError::Internal(format!("{} is no tensor", item.key));
    item.tensor().ok_or_else(none)
}

/// Fills files in the order of keys, as `transformers` does: a file is full when the next tensor would exceed the limit.
fn by_size(tensors: &BTreeMap<Box<str>, Whole>, limit: u64) -> Vec<Group> {
    let mut out: Vec<Group> = Vec::new();
    for (key, whole) in tensors {
        match out.last_mut() {
            Some(last)
                if last.bytes.saturating_add(whole.bytes) <= limit || last.keys.is_empty() =>
            {
                last.bytes = last.bytes.saturating_add(whole.bytes);
                last.keys.push(key.clone());
            }
            _ => out.push(Group {
                by: None,
                bytes: whole.bytes,
                keys: vec![key.clone()],
            }),
        }
    }
    out
}

/// A file for each shard of a policy. A tensor that the policy has cut goes where its first elements are.
fn by_file(tensors: &BTreeMap<Box<str>, Whole>) -> Vec<Group> {
    let mut of: BTreeMap<(u32, u32), Group> = BTreeMap::new();
    for (key, whole) in tensors {
        let first = || (whole.pieces.first().map_or(0, |(by, _)| *by), 0);
        let at = whole.placed.unwrap_or_else(first);
        let group = of.entry(at).or_insert_with(|| Group {
            by: Some(at.0),
            bytes: 0,
            keys: Vec::new(),
        });
        group.bytes = group.bytes.saturating_add(whole.bytes);
        group.keys.push(key.clone());
    }
    of.into_values().collect()
}

/// Of the ranks that have something of a file, the one that has the least to write.
fn writer(group: &Group, tensors: &BTreeMap<Box<str>, Whole>, loads: &[u64]) -> u32 {
    let mut held: BTreeMap<u32, u64> = BTreeMap::new();
    let wholes = group.keys.iter().filter_map(|key| tensors.get(key));
    for (by, piece) in wholes.flat_map(|whole| &whole.pieces) {
        let bytes = held.entry(*by).or_default();
        *bytes = bytes.saturating_add(piece.item.cost());
    }
    let ranks: BTreeSet<(u64, Reverse<u64>, u32)> = held
        .into_iter()
        .map(|(rank, bytes)| {
            let load = loads.get(rank as usize).copied().unwrap_or(u64::MAX);
            (load, Reverse(bytes), rank)
        })
        .collect();
    ranks.first().map_or(0, |(_, _, rank)| *rank)
}
