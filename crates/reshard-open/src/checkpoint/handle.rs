//! The handle of an open checkpoint, and what is known without further reads.

use crate::{
    Result, Sidecar,
    error::Context,
    opened::{OpenOptions, Opened},
};
use reshard_comm::Comm;
use reshard_model::{Dialect, ErrorKind, FlatStateDict};
use reshard_plan::{Cast, DefaultLoadPlanner, Metadata};
use reshard_storage::{PlaceKind, Store};
use reshard_strategy::{BackendVersion, Capabilities, LoadCx, Producer, StrategyError};
use std::{collections::BTreeMap, sync::Arc};

/// The operation that errors name.
pub(super) const ACT: &str = "reading";

/// An open checkpoint, for random access. Opening loads no tensor. `Clone` copies only the handle.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    pub(super) url: Arc<str>,
    pub(super) opened: Arc<Opened>,
    /// How it was opened.
    pub(crate) options: Arc<OpenOptions>,
}

impl Checkpoint {
    /// Its URL.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The store from which it is read, pinned to the version that was opened.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.opened.store
    }

    /// The name of its format.
    pub fn backend(&self) -> &BackendVersion {
        &self.opened.name
    }

    /// The dialect that it follows.
    pub fn dialect(&self) -> Dialect {
        self.opened.reader.dialect()
    }

    /// Whether a cell of an array of objects is stored as a list, with one value for each leaf that one rank had of this cell.
    pub fn object_lists(&self) -> bool {
        self.opened.reader.object_lists()
    }

    /// What is stored.
    pub fn metadata(&self) -> &Arc<Metadata> {
        self.opened.reader.metadata()
    }

    /// Which programs wrote it, as far as its bytes tell, and which programs can load it.
    pub fn producer(&self) -> Producer {
        let mut producer = self.opened.reader.producer();
        if let Some(note) = self.unrecorded() {
            producer.notes.insert(0, note.into());
        }
        if self.opened.kind == PlaceKind::File
            && let Some((part, parts)) = part_of_set(self.url())
        {
            producer.warnings.push(format!(
                "its name says that it is file {part} of {parts}; the folder has the whole checkpoint"
            ));
        }
        producer
    }

    /// What checkpoints of its form can represent.
    pub fn capabilities(&self) -> Capabilities {
        self.opened.reader.capabilities()
    }

    /// A warning, if it is older than Megatron Core's `metadata.json`: then nothing records that its save was finished. It was recognised because all that its
    /// descriptions speak of is there, or it was opened because you have chosen its format.
    pub fn unrecorded(&self) -> Option<&'static str> {
        self.opened.unrecorded.then_some(
            "it has no metadata.json, so nothing records that its save was finished, or that it is a whole copy",
        )
    }

    /// The contents of its `reshard.json`, and the reason why they are ignored, if they are.
    pub async fn sidecar(&self) -> (Option<Sidecar>, Option<String>) {
        self.opened.sidecar().await
    }

    /// The error for a key that is not there, with similar keys.
    pub(super) fn unknown(&self, kind: &str, key: &str, count: usize) -> StrategyError {
        if let Some(what) = self.opened.reader.why_not(key) {
            return self.unsupported(what);
        }
        // The format says best what is damaged.
        if let Err(e) = self.opened.reader.permits(key)
            && e.kind() == ErrorKind::Corrupt
        {
            return e;
        }
        let hint = match &*self.metadata().near(key) {
            [] => {
                let common = match self.opened.common {
                    Some(_) => "; what was not sharded is in `Checkpoint::common`",
                    None => "",
                };
                format!("`Checkpoint::{kind}s` lists the {count} that are{common}")
            }
            near => {
                let is_object = |key: &str| self.metadata().object(key).is_some();
                let near = near.iter().map(|key| match (kind, is_object(key)) {
                    ("tensor", true) => format!("{key} (an object)"),
                    ("object", false) => format!("{key} (a tensor)"),
                    _ => key.clone(),
                });
                format!("did you mean {}?", near.collect::<Vec<_>>().join(" or "))
            }
        };
        not_stored(format!("no {kind} {key:?} is stored; {hint}"))
    }

    /// Fails if a part of the metadata is damaged or not understood, so that nobody takes the rest for the whole.
    pub(crate) fn is_understood(&self) -> Result<(), StrategyError> {
        let Producer {
            unknown, damaged, ..
        } = self.producer();
        for key in damaged.keys() {
            self.opened.reader.permits(key)?;
        }
        match unknown.first_key_value() {
            Some((key, what)) => Err(self.unsupported(format!("reading {key} ({what})"))),
            None => Ok(()),
        }
    }

    pub(super) fn unsupported(&self, what: String) -> StrategyError {
        StrategyError::Unsupported {
            strategy: self.opened.name.to_string(),
            what,
        }
    }

    /// Fills the leaves of a template from what is stored, whatever its dialect, as one rank. Each leaf stands for itself: the same key may be
    /// wanted several times, and the paths are only names. Leaves with data are read into their memory; others are allocated.
    ///
    /// # Errors
    /// As [`TensorHandle::read`](crate::TensorHandle::read); a leaf that contradicts what is stored; a cast that `cast` doesn't allow; memory that two leaves share.
    /// What the leaves hold then is unspecified.
    pub async fn fill(&self, template: FlatStateDict, cast: Cast) -> Result<FlatStateDict> {
        let groups = BTreeMap::new();
        let planner = Arc::new(DefaultLoadPlanner::DEFAULT.cast(cast));
        let cx = LoadCx::new(
            &self.options.load,
            Comm::single(),
            &groups,
            Arc::clone(&self.opened.store),
            planner,
        );
        let loaded = self
            .opened
            .sharded
            .load(template, Arc::clone(&self.opened.reader), &cx)
            .await;
        loaded
            .map(|l| l.state)
            .map_err(|f| f.error)
            .during(ACT, &self.url)
    }
}

pub(super) fn not_stored(what: String) -> StrategyError {
    StrategyError::NotStored { what }
}

/// Which file of how many a name such as `model-00001-of-00003.safetensors` says.
fn part_of_set(url: &str) -> Option<(u64, u64)> {
    let name = url.rsplit('/').next()?;
    let (stem, _) = name.rsplit_once('.')?;
    let (stem, parts) = stem.rsplit_once("-of-")?;
    let part = stem.rsplit_once('-')?.1.parse().ok()?;
    let parts = parts.parse().ok()?;
    (parts > 1).then_some((part, parts))
}

#[cfg(test)]
mod tests {
    use super::part_of_set;

    #[test]
    fn names_of_files_of_a_set_are_known() {
        for (url, is) in [
            ("file:///m/model-00001-of-00003.safetensors", Some((1, 3))),
            ("pytorch_model-2-of-2.bin", Some((2, 2))),
            ("model-00001-of-00001.safetensors", None),
            ("best-of-3.pt", None),
            ("a-b-of-c.pt", None),
            ("model.safetensors", None),
        ] {
            assert_eq!(part_of_set(url), is, "{url}");
        }
    }
}
