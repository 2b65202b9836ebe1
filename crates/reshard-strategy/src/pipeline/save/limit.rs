//! The limit of a policy on the length of files, checked before they are written.

use crate::{FileLayout, Result, StorageWriter, StrategyError};
use reshard_model::Dims;
use reshard_plan::{PieceId, SavePlan, WriteItem};
use reshard_policy::{ByteSize, PolicyMetrics, ShardingPolicy};
use reshard_storage::Length;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// The policy of a save, and the limit that it sets.
#[derive(Debug, Default)]
pub(super) struct Asked {
    pub(super) policy: Option<Arc<dyn ShardingPolicy>>,
    pub(super) limit: Option<SizeLimit>,
    /// Whether objects are encoded for their lengths. Policies in the configuration of a format don't look at them.
    pub(super) measures_objects: bool,
    /// The figures of a policy that is not called, because only its limit matters to a format that makes one file.
    pub(super) of_one_file: Option<PolicyMetrics>,
}

/// The length that no file exceeds unless it holds a single item that can't be cut.
#[derive(Clone, Copy, Debug)]
pub(super) struct SizeLimit {
    pub(super) bytes: u64,
    /// Whether the checkpoint is one file, which may not exceed it in any case.
    pub(super) is_one_file: bool,
}

/// The items of a file, each whole tensor counted once.
#[derive(Default)]
struct Contents<'p> {
    items: BTreeSet<(&'p str, Option<Dims>)>,
    /// An item of several elements that a policy could have cut.
    divisible: Option<&'p str>,
}

impl SizeLimit {
    /// Compares the files of a layout with the limit.
    ///
    /// # Errors
    /// The first file that is too long, with its length.
    pub(super) fn check(
        self,
        writer: &dyn StorageWriter,
        plan: &SavePlan,
        layout: &FileLayout,
    ) -> Result<()> {
        let too_long: BTreeMap<u32, u64> = (0u32..)
            .zip(&layout.files)
            .filter_map(|(n, file)| match file.length()? {
                Length::Exact(bytes) | Length::Unknown { at_most: bytes } => Some((n, bytes)),
            })
            .filter(|(_, bytes)| *bytes > self.bytes)
            .collect();
        if too_long.is_empty() {
            return Ok(());
        }
        let mut contents = contents(writer, plan, layout)?;
        for (n, bytes) in too_long {
            let Contents { items, divisible } = contents.remove(&n).unwrap_or_default();
            // A file without items has nothing to divide.
            if !self.is_one_file && items.len() <= 1 && divisible.is_none() {
                continue;
            }
            let name = layout.files.get(n as usize).map(|file| file.name.as_str());
            let (name, limit, count) = (name.unwrap_or(""), ByteSize(self.bytes), items.len());
            let what = match (self.is_one_file, divisible) {
                (true, _) => format!(
                    "{name} would have {bytes} bytes, more than the limit of {limit}, and it can't be divided; save to a folder, or leave the limit out"
                ),
                (false, Some(key)) if count == 1 => format!(
                    "{name} would have {bytes} bytes, more than the limit of {limit}, because {key} was not cut; raise the limit"
                ),
                (false, _) => format!(
                    "{name} would have {bytes} bytes with {count} items, more than the limit of {limit}; raise the limit"
                ),
            };
            return Err(StrategyError::Invalid(what));
        }
        Ok(())
    }
}

/// The items of each file, by its number. Items without an extent of their own are in the extent of the item before them.
fn contents<'p>(
    writer: &dyn StorageWriter,
    plan: &'p SavePlan,
    layout: &FileLayout,
) -> Result<BTreeMap<u32, Contents<'p>>> {
    let items: BTreeMap<PieceId, &WriteItem> =
        plan.items.iter().map(|item| (item.id(), item)).collect();
    let (mut out, mut before) = (BTreeMap::<u32, Contents<'p>>::new(), None);
    for (id, extents) in &layout.items {
        before = extents.first().map(|(file, _)| *file).or(before);
        let (Some(file), Some(&item)) = (before, items.get(id)) else {
            continue;
        };
        let of_file = out.entry(file).or_default();
        let part = match item.tensor() {
            None => None,
            // It takes no room of its own.
            Some(t) if t.region.is_empty() => continue,
            Some(_) if writer.footprint(item)?.whole => None,
            Some(t) => {
                if t.region.volume() != Some(1) {
                    of_file.divisible = Some(&item.key);
                }
                Some(t.region.offsets.clone())
            }
        };
        of_file.items.insert((&item.key, part));
    }
    Ok(out)
}
