//! All of a checkpoint at once.

use super::handle::{ACT, Checkpoint};
use crate::{Result, error::Context};
use reshard_model::{Path, Value, ValueTree, unflatten};
use reshard_plan::{Entry, Metadata, PlannerData};
use std::collections::BTreeMap;

impl Checkpoint {
    /// Loads everything. The result has the nesting of the saved state if the checkpoint records it; otherwise every
    /// value is under its key. Common state is merged in.
    ///
    /// # Errors
    /// Damage, an item whose description is not understood, or no memory.
    pub async fn state(&self) -> Result<ValueTree> {
        self.is_understood().during(ACT, &self.url)?;
        // One that can't be read may name empty dicts.
        self.opened.own_sidecar().await.during(ACT, &self.url)?;
        let metadata = self.metadata();
        let paths = paths_of(metadata);
        let mut entries = Vec::new();
        for entry in metadata.entries() {
            let key = entry.key();
            let value = match entry {
                Entry::Tensor(_) => Value::Tensor(self.tensor(key)?.read(..).await?),
                Entry::Object(_, key) => self.object(key).await?,
            };
            let path = paths.get(key).map(|p| (*p).clone());
            entries.push((path.unwrap_or_else(|| Path(vec![key.into()])), value));
        }
        if let (Some(sidecar), _) = self.sidecar().await {
            entries.extend(
                sidecar
                    .empty_dicts
                    .into_iter()
                    .map(|path| (path, Value::Dict(Vec::new()))),
            );
        }
        let mut out = unflatten(entries).during(ACT, &self.url)?;
        out.merge(self.common().await?).during(ACT, &self.url)?;
        Ok(out)
    }
}

/// The path of each stored key, if no other key has the same path or one below it. Paths can clash because ranks may
/// have had different tensors, or different cells of an array of objects, at one position.
fn paths_of(metadata: &Metadata) -> BTreeMap<&str, &Path> {
    let Some(PlannerData::Paths(paths)) = metadata.planner_data() else {
        return BTreeMap::new();
    };
    let mut all: Vec<(&Path, &str)> = metadata
        .entries()
        .filter_map(|e| Some((paths.get(e.key())?, e.key())))
        .collect();
    all.sort_unstable();
    let mut alone: BTreeMap<&str, &Path> = all.iter().map(|(path, key)| (*key, *path)).collect();
    let mut above: Option<(&Path, &str)> = None;
    for (path, key) in all {
        match above {
            Some((a, first)) if path.0.starts_with(&a.0) => {
                alone.remove(first);
                alone.remove(key);
            }
            _ => above = Some((path, key)),
        }
    }
    alone
}
