//! What `metadata.pkl` says of files and placements.

use super::names::{METADATA, RankName};
use crate::error::unreadable;
use reshard_storage::Name;
use reshard_strategy::{OpenCx, Result, torch::parsing};
use reshard_torch_format::{PartRef, SpreadGroup, SpreadTable, TensorRef};
use std::collections::BTreeMap;

/// The placements of tensors, by item and key.
#[derive(Debug, Default)]
pub(super) struct Layouts {
    /// The number of ranks; `None` if there is no `metadata.pkl`.
    world: Option<u32>,
    groups: BTreeMap<Box<str>, BTreeMap<Box<str>, Vec<SpreadGroup>>>,
    /// What the files are that do not have their default names.
    files: BTreeMap<Box<str>, RankName>,
    /// Files of items that are not read, because they are neither of `torch.save` nor safetensors.
    pub(super) others: Vec<Box<str>>,
}

impl Layouts {
    pub(super) async fn read(cx: &OpenCx) -> Result<Self> {
        let name = Name::new(METADATA)?;
        let Some(bytes) = cx.limits.read(&cx.store, &name).await? else {
            return Ok(Self::default());
        };
        let table = SpreadTable::parse(&bytes, &parsing(&cx.limits));
        let table = table.map_err(|e| unreadable(e, "the pickle", METADATA))?;
        let mut out = Self {
            world: Some(table.world_size),
            ..Self::default()
        };
        for tensor in table.tensors {
            let Some((item, key)) = place(tensor.item.as_deref(), &tensor.path) else {
                continue;
            };
            let of = out.groups.entry(item).or_default();
            of.insert(key, tensor.groups);
        }
        for file in table.files {
            let (path, how) = (file.path, &*file.serialization);
            let is_safetensors = how == "SafetensorsSerialization";
            if !is_safetensors && how != "TorchSerialization" {
                out.others.push(path);
                continue;
            }
            let name = RankName {
                item: file.item.into(),
                rank: file.rank,
                world: None,
                is_sure: true,
                is_safetensors,
            };
            out.files.insert(path, name);
        }
        Ok(out)
    }

    pub(super) fn is_there(&self) -> bool {
        self.world.is_some()
    }

    pub(super) fn world(&self) -> Option<u32> {
        self.world
    }

    /// What a file is, if its name is not the default one.
    pub(super) fn name(&self, file: &str) -> Option<RankName> {
        self.files.get(file).cloned()
    }

    /// The placement of a tensor of a rank.
    fn group(&self, item: &str, key: &str, rank: u32) -> Option<&SpreadGroup> {
        let groups = self.groups.get(item)?.get(key)?;
        let mut groups = groups.iter();
        groups.find(|group| group.ranks.binary_search(&rank).is_ok())
    }

    /// A tensor as the part that its rank holds, if a placement is noted.
    pub(super) fn part(
        &self,
        item: &str,
        key: &str,
        rank: u32,
        local: &TensorRef,
    ) -> Option<reshard_torch_format::Result<PartRef>> {
        let group = self.group(item, key, rank)?;
        Some(group.part_of_rank(local, rank))
    }

    /// The placement that is noted for a tensor which says its own, if the two differ.
    pub(super) fn contradicts(&self, item: &str, key: &str, part: &PartRef) -> Option<String> {
        let group = self.group(item, key, part.rank?)?;
        let noted = group.spread.to_string();
        let same = (&group.spread.shape, group.dtype) == (&part.shape, part.dtype)
            && (*noted == *part.layout || part.layout.starts_with("ShardedTensor"));
        (!same).then(|| format!("{METADATA} says {noted} of shape {}", group.spread.shape))
    }
}

/// The item and the key of a path, which is a list of JSON.
fn place(item: Option<&str>, path: &str) -> Option<(Box<str>, Box<str>)> {
    let steps: Vec<serde_json::Value> = serde_json::from_str(path).ok()?;
    let mut steps = steps.into_iter().map(|step| match step {
        serde_json::Value::String(text) => text,
        other => other.to_string(),
    });
    let item = match item {
        Some(item) => item.to_owned(),
        None => steps.next()?,
    };
    let key: Vec<String> = steps.collect();
    Some((item.into(), key.join(".").into()))
}
