//! What is known of a checkpoint without loading a tensor.

use super::sums::Sums;
use crate::{error::Result, findings, units};
use reshard::{
    Sidecar, Value,
    blocking::Checkpoint,
    storage::{Link, Name},
    strategy::{FileRole, StorageInfo, Unlisted},
};
use reshard_convert::stored_optimizers;
use reshard_optim::StoredOptimizer;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Sizes of a parallel layout, in `args` of Megatron's common state, with short names.
const PARALLEL: [(&str, &str); 8] = [
    ("world_size", "world"),
    ("tensor_model_parallel_size", "tensor"),
    ("pipeline_model_parallel_size", "pipeline"),
    ("virtual_pipeline_model_parallel_size", "virtual pipeline"),
    ("context_parallel_size", "context"),
    ("expert_model_parallel_size", "expert"),
    ("expert_tensor_parallel_size", "expert tensor"),
    ("data_parallel_size", "data"),
];

pub(super) struct Facts {
    pub(super) checkpoint: Checkpoint,
    /// As a dict; or why it can't be read.
    pub(super) common: Result<Value, String>,
    pub(super) files: Vec<File>,
    /// Files of older saves in the directory, and what unfinished saves left beside it.
    pub(super) leftovers: Vec<String>,
    /// Files in the directory that are not of the checkpoint.
    pub(super) foreign: Vec<String>,
    /// What a quick check found.
    pub(super) problems: Vec<String>,
    /// Whether it found damage.
    pub(super) is_damaged: bool,
    /// What is not known to be wrong, and can't be read.
    pub(super) not_understood: Vec<String>,
    pub(super) not_read: Vec<String>,
    /// What is not there, such as the files of some ranks.
    pub(super) incomplete: Vec<String>,
    /// How many findings are not in these three lists.
    pub(super) not_listed: NotListed,
    pub(super) sidecar: Option<Sidecar>,
    pub(super) notes: Vec<String>,
    pub(super) links: Vec<Link>,
    /// The paths of owners in the graph of objects, by key.
    pub(super) owners: BTreeMap<String, String>,
    pub(super) sums: Sums,
}

#[derive(Serialize)]
pub(super) struct File {
    pub(super) name: String,
    pub(super) bytes: u64,
    /// Stored items in it.
    #[serde(skip)]
    pub(super) items: u64,
    /// Bytes of them.
    #[serde(skip)]
    pub(super) owned: u64,
    /// What it is to the checkpoint.
    #[serde(skip)]
    pub(super) role: FileRole,
    /// Where it leads, if it is a link.
    #[serde(skip)]
    pub(super) target: Option<String>,
}

/// How many of what a check found are not in the lists.
#[derive(Serialize)]
pub(super) struct NotListed {
    pub(super) problems: u64,
    pub(super) not_understood: u64,
    pub(super) not_read: u64,
}

impl NotListed {
    fn of(rest: &Unlisted) -> Self {
        Self {
            problems: rest.damage.findings.saturating_add(rest.unchecked.findings),
            not_understood: rest.not_understood.findings,
            not_read: rest.not_read.findings,
        }
    }
}

/// Numbers over the whole checkpoint, whatever keys are chosen.
#[derive(Serialize)]
pub(super) struct Totals {
    pub(super) tensors: u64,
    pub(super) chunks: u64,
    pub(super) objects: u64,
    pub(super) files: u64,
    /// Of all elements.
    pub(super) tensor_bytes: u64,
    /// Of all objects, as they are stored. What several objects share counts once.
    pub(super) object_bytes: u64,
    /// Of all files.
    pub(super) file_bytes: u64,
}

impl Facts {
    pub(super) fn of(checkpoint: Checkpoint) -> Result<Self> {
        // No element is read: the structure, the coverage and the sizes are checked.
        let quick = checkpoint.verify(false, reshard::storage::Progress::default())?;
        let is_damaged = !quick.damage.is_empty();
        let problems = quick
            .damage
            .iter()
            .chain(&quick.unchecked)
            .map(findings::line)
            .collect();
        let not_understood = quick.not_understood.iter().map(findings::line).collect();
        let not_read = quick.not_read.iter().map(findings::line).collect();
        let incomplete = quick.incomplete.iter().map(findings::line).collect();
        let not_listed = NotListed::of(&quick.unlisted);
        drop(quick);

        // Common state that can't be read is a note, so that the rest is still shown.
        let common = checkpoint
            .common()
            .map(Value::from)
            .map_err(|e| crate::error::chain(&e));
        let (sidecar, note) = checkpoint.sidecar();
        let warnings = checkpoint.producer().warnings;
        let mut notes: Vec<String> = warnings.into_iter().chain(note).collect();
        if let Err(e) = &common {
            notes.push(format!("the common state can't be read: {e}"));
        }
        let owners = super::owners::of(&checkpoint).unwrap_or_else(|e| {
            notes.push(format!("the graph of objects can't be read: {e}"));
            BTreeMap::new()
        });
        let links = checkpoint.links()?;
        let files = files(&checkpoint, &links)?;

        let of = |roles: &[FileRole]| {
            files
                .iter()
                .filter(|f| roles.contains(&f.role))
                .map(|f| f.name.clone())
                .collect::<Vec<_>>()
        };

        // Leftovers lie in the directory or, from saves that never finished, beside it.
        let mut leftovers = of(&[FileRole::Leftover, FileRole::Record]);
        leftovers.extend(checkpoint.leftovers()?.into_iter().map(|l| l.path));
        let foreign = of(&[FileRole::Foreign]);
        let sums = Sums::of(&checkpoint);
        Ok(Self {
            checkpoint,
            common,
            files,
            leftovers,
            foreign,
            problems,
            is_damaged,
            not_understood,
            not_read,
            incomplete,
            not_listed,
            sidecar,
            notes,
            links,
            owners,
            sums,
        })
    }

    pub(super) fn totals(&self) -> Totals {
        let m = self.checkpoint.metadata();
        // All objects of a file of `torch.save` are in one pickle.
        let places: BTreeSet<(Name, u64, u64)> = self
            .checkpoint
            .objects()
            .flat_map(|k| self.checkpoint.object_parts(k))
            .map(|p| (p.file, p.range.start, p.range.end))
            .collect();
        let lengths = places
            .iter()
            .map(|(_, start, end)| end.saturating_sub(*start));
        Totals {
            tensors: m.tensor_count() as u64,
            chunks: m.chunk_count() as u64,
            objects: m.object_count() as u64,
            files: self.files.len() as u64,
            tensor_bytes: m.total_bytes(),
            object_bytes: units::sum(lengths),
            file_bytes: units::sum(self.files.iter().map(|f| f.bytes)),
        }
    }

    fn args(&self) -> Option<&Value> {
        self.common.as_ref().ok()?.get("args")
    }

    /// The training step, if common state tells it.
    pub(super) fn iteration(&self) -> Option<i64> {
        let own = self
            .common
            .as_ref()
            .ok()
            .and_then(|c| c.get("iteration")?.as_int());
        own.or_else(|| self.args()?.get("iteration")?.as_int())
    }

    /// Distributed optimizers of Megatron Core.
    pub(super) fn optimizers(&self) -> Vec<StoredOptimizer> {
        stored_optimizers(self.checkpoint.metadata(), self.common.as_ref().ok())
    }

    /// Sizes by Megatron's names, if common state tells them.
    pub(super) fn parallel(&self) -> BTreeMap<&'static str, i64> {
        PARALLEL
            .iter()
            .filter_map(|(name, _)| Some((*name, self.args()?.get(name)?.as_int()?)))
            .collect()
    }

    /// Sizes by short names, in an order that reads well.
    pub(super) fn parallel_text(&self) -> String {
        let sizes = self.parallel();
        let one = |(name, short): &(&str, &str)| Some(format!("{short} {}", sizes.get(name)?));
        PARALLEL
            .iter()
            .filter_map(one)
            .collect::<Vec<_>>()
            .join(", ")
    }
}

/// Bytes of all parts of an item.
pub(super) fn length(parts: &[StorageInfo]) -> u64 {
    units::sum(parts.iter().map(StorageInfo::length))
}

fn files(checkpoint: &Checkpoint, links: &[Link]) -> Result<Vec<File>> {
    let links: BTreeMap<&str, &Link> = links.iter().map(|l| (l.name.as_str(), l)).collect();
    let mut owned: BTreeMap<Name, (u64, u64)> = BTreeMap::new();
    for p in findings::stored_parts(checkpoint) {
        let length = p.length();
        let (items, bytes) = owned.entry(p.file).or_default();
        *items += 1;
        *bytes = bytes.saturating_add(length);
    }
    let file = |(f, role): (reshard::storage::Entry, FileRole)| {
        let (items, owned) = owned.get(&f.name).copied().unwrap_or_default();
        let name = f.name.to_string();
        let target = links.get(&*name).map(|l| l.target.clone());
        File {
            name,
            bytes: f.bytes,
            items,
            owned,
            role,
            target,
        }
    };
    Ok(checkpoint.roles()?.into_iter().map(file).collect())
}
