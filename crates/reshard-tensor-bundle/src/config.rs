use crate::{
    dtype,
    names::{KEY, VERSION},
    object::CODEC,
    settings::ObjectGraphSource,
    writer::BundleWriter,
};
use derive_setters::Setters;
use reshard_model::Dialect;
use reshard_storage::{Name, PlaceKind};
use reshard_strategy::{
    BackendVersion, Capabilities, Result, SaveCx, SaveFormat, StorageWriter, StrategyError,
    register_format, settings_of,
};
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use std::sync::Arc;

/// Settings of the save strategy `("tensor_bundle", 2)`.
///
/// ```
/// use reshard_strategy::SaveShardedStrategy;
/// use reshard_tensor_bundle as _; // linked, and so registered
/// let config = r#"{ "format": "tensor_bundle", "object_graph": "none" }"#;
/// let strategy: SaveShardedStrategy = serde_json::from_str(config).unwrap();
/// assert_eq!(strategy.key().backend.as_ref(), "tensor_bundle");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, Setters)]
#[setters(prefix = "with_", strip_option)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct TensorBundleConfig {
    /// Which object graph is written. It is needed by `tf.train.Checkpoint.restore` and `read`.
    pub object_graph: ObjectGraphSource,
    /// Whether tensors are stored under the names that TensorFlow gives to values of objects, so that they are in an object graph that is made
    /// from names: `net.weight` as `net/weight/.ATTRIBUTES/VARIABLE_VALUE`, which is the variable `net.weight` of a `tf.train.Checkpoint(net=net)`.
    /// Loads from Rust still find `net.weight`. The default is no: each key is the name.
    pub object_names: bool,
    /// The prefix of the files in a folder. Then the URL names the folder. Without it, the URL is the prefix, as in TensorFlow: `dir/ckpt-1`
    /// becomes `dir/ckpt-1.index` and its data files.
    #[setters(into)]
    pub in_folder: Option<String>,
    /// Whether to write the file `checkpoint`, which says which checkpoint of the folder is the latest. Only with
    /// [`in_folder`](Self::in_folder): beside files with a prefix this file belongs to other checkpoints too. The default is no.
    pub checkpoint_state: bool,
}

impl SaveFormat for TensorBundleConfig {
    fn key(&self) -> BackendVersion {
        BackendVersion::new(KEY, VERSION)
    }

    fn settings(&self) -> Json {
        settings_of(self)
    }

    fn check(&self) -> Result<()> {
        let invalid = |what: String| Err(StrategyError::Invalid(what));
        if let Some(stem) = &self.in_folder
            && (stem.contains('/') || Name::new(&**stem).is_err())
        {
            return invalid(format!(
                "in_folder: {stem:?} is no name that files can begin with"
            ));
        }
        if self.checkpoint_state && self.in_folder.is_none() {
            return invalid(
                "checkpoint_state needs in_folder: beside files with a prefix, the file `checkpoint` belongs to other checkpoints too; \
                 write it after the save".into(),
            );
        }
        Ok(())
    }

    /// Files with a prefix have no room for those of Megatron Core's dialect.
    fn capabilities(&self) -> Capabilities {
        let can = Capabilities {
            codec: CODEC,
            dtypes: |dtype| dtype::number(dtype).is_some(),
            no_rank_local: Some("the names of its files contain their number"),
            ..Capabilities::DEFAULT
        };
        match self.in_folder {
            None => Capabilities {
                dialects: &[Dialect::Dcp, Dialect::TensorsOnly],
                places: |_| PlaceKind::Prefix,
                ..can
            },
            Some(_) => can,
        }
    }

    fn writer(&self, _: &SaveCx<'_>) -> Result<Arc<dyn StorageWriter>> {
        Ok(Arc::new(BundleWriter(self.clone())))
    }
}

/// Settings of the load strategy `("tensor_bundle", 2)`. There are none yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct TensorBundleLoadConfig {}

register_format!(KEY, VERSION, save: TensorBundleConfig, load: TensorBundleLoadConfig);
