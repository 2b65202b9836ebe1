//! What the settings of a save mean for names.

use crate::{TensorBundleConfig, graph};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Where the object graph of a checkpoint comes from. If the state has an object with the key [`OBJECT_GRAPH`](crate::OBJECT_GRAPH), that one is
/// kept, whatever is set here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ObjectGraphSource {
    /// It is made from the names of tensors that are values of objects, such as `net/w/.ATTRIBUTES/VARIABLE_VALUE`. If there are none, there is
    /// no graph.
    #[default]
    FromNames,
    /// These bytes of a `TrackableObjectGraph`.
    Given(Bytes),
    /// There is none. `tf.train.load_checkpoint` and the Saver of TensorFlow 1 need none.
    None,
}

impl TensorBundleConfig {
    /// The prefix of the files in the place. It is empty in a place of files with one prefix.
    pub(crate) fn stem(&self) -> &str {
        self.in_folder.as_deref().unwrap_or_default()
    }

    /// The name of a tensor in the index.
    pub(crate) fn name(&self, key: &str) -> String {
        match self.object_names {
            true => graph::name_of_object(key),
            false => key.into(),
        }
    }

    /// Whether this save makes an object graph for tensors with these keys.
    pub(crate) fn makes_graph<'k>(&self, mut keys: impl Iterator<Item = &'k str>) -> bool {
        match &self.object_graph {
            ObjectGraphSource::None => false,
            ObjectGraphSource::Given(_) => true,
            ObjectGraphSource::FromNames => {
                keys.any(|key| self.object_names || graph::is_of_object(key))
            }
        }
    }

    /// The object graph for tensors with these names.
    pub(crate) fn graph<'k>(&self, names: impl Iterator<Item = &'k str>) -> Bytes {
        match &self.object_graph {
            ObjectGraphSource::Given(graph) => graph.clone(),
            _ => graph::from_names(names.collect::<BTreeSet<&str>>()).into(),
        }
    }
}
