//! Upper bounds of what a file has in addition to the elements of its tensors, for sharding policies.
//!
//! A leaf costs what the archive of this leaf alone has more than an archive without leaves: with several leaves, some of it is
//! stored once. Only numbers and padding can be longer there, for which there is a margin.

use crate::{
    names::{prefix, shard},
    told::{DictPlan, LeafPlan, What},
    tree::{described, encoding, tree_of},
};
use reshard_model::Path;
use reshard_strategy::Result;
use reshard_torch_format::{
    Part, PartTree,
    archive::{ArchiveLayout, ArchiveOptions},
    encode_tree,
};
use std::collections::BTreeMap;

/// Longer numbers in the pickle and in names, another padding, and the fields of records beyond 4 GiB.
const MARGIN: u64 = 256;

/// Returns the bound for a file without leaves.
pub(crate) fn of_file(empty: &[Path], dicts: &[DictPlan]) -> Result<u64> {
    let bytes = archive(None, empty, false)?.max(archive(None, &[], true)?);
    let dicts = dicts.iter().map(|dict| dict.object.len() as u64);
    Ok(dicts.fold(bytes + MARGIN, u64::saturating_add))
}

/// The bytes of archives without leaves, with nested and with flat dicts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WithoutLeaves([u64; 2]);

impl WithoutLeaves {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self([
            archive(None, &[], false)?,
            archive(None, &[], true)?,
        ]))
    }

    /// Returns the bound for a leaf, which is stored under its path or under its key.
    pub(crate) fn bound_of(self, leaf: &LeafPlan) -> Result<u64> {
        let mut out = 0;
        for (is_flat, without) in [false, true].into_iter().zip(self.0) {
            let with = archive(Some(leaf), &[], is_flat)?;
            out = with.saturating_sub(without).max(out);
        }
        Ok(out + MARGIN)
    }
}

/// The bytes of an archive but for the elements.
fn archive(leaf: Option<&LeafPlan>, empty: &[Path], is_flat: bool) -> Result<u64> {
    let (mut parts, mut lengths) = (Vec::new(), Vec::new());
    if let Some(leaf) = leaf
        && matches!(leaf.what, What::Tensor { .. })
    {
        let tensor = described(&leaf.what)?;
        lengths.push(tensor.storage.len);
        parts.push((leaf, PartTree::Leaf(Part::Tensor(tensor, 0))));
    }
    let tree = tree_of(parts, empty, (is_flat, BTreeMap::new()));
    let pickle = encode_tree(&tree).map_err(encoding)?.pickle;
    let folder = prefix(&shard(LONGEST, LONGEST)).to_owned();
    let options = ArchiveOptions::default().with_prefix(folder);
    let layout = ArchiveLayout::new(&pickle, &lengths, &options).map_err(encoding)?;
    Ok(lengths
        .iter()
        .fold(layout.len(), |all, n| all.saturating_sub(*n)))
}

/// A number of files with a long name.
const LONGEST: usize = 99_999;
