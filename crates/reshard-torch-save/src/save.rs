//! The settings as a format.

use crate::{
    NAME, TorchSaveConfig,
    chosen::{Target, TorchSaveWriter},
    dicts,
    names::{is_file, last_part},
    told::Asked,
};
use reshard_model::Dialect;
use reshard_storage::PlaceKind;
use reshard_strategy::{
    BackendVersion, Capabilities, Result, SaveCx, SaveFormat, StorageWriter, settings_of,
};
use serde_json::Value as Json;
use std::sync::Arc;

impl SaveFormat for TorchSaveConfig {
    fn key(&self) -> BackendVersion {
        BackendVersion::new(NAME, 1)
    }

    fn settings(&self) -> Json {
        settings_of(self)
    }

    /// The files of Megatron Core's dialect have no place in one file.
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            dialects: &[Dialect::Dcp, Dialect::TensorsOnly],
            places: match self.single_file {
                Some(true) => |_| PlaceKind::File,
                Some(false) => |_| PlaceKind::Folder,
                None => |name| match is_file(name) {
                    true => PlaceKind::File,
                    false => PlaceKind::Folder,
                },
            },
            // Several files with an index hold only tensors.
            objects: |place, by_policy| !by_policy || place == PlaceKind::File,
            splits_objects: true,
            no_rank_local: Some("a file holds whole tensors"),
            takes_folder: true,
            ties: true,
            // The dicts of several files are flat.
            annotations: |place, by_policy| match by_policy && place != PlaceKind::File {
                true => &[],
                false => dicts::KINDS,
            },
            ..Capabilities::DEFAULT
        }
    }

    /// In a folder the planner calls the policy, which places whole tensors and not the pieces of ranks.
    fn writer(&self, cx: &SaveCx<'_>) -> Result<Arc<dyn StorageWriter>> {
        let name = last_part(cx.url);
        let (target, policy) = match self.capabilities().place(name) {
            PlaceKind::File => (Target::File(name.into()), None),
            _ => (Target::Folder, cx.policy.clone()),
        };
        Ok(Arc::new(TorchSaveWriter {
            target,
            policy,
            limits: cx.options.policy_limits,
            asked: Asked::default(),
            paths: cx.planner_data.clone(),
            empty: cx.empty_dicts.clone(),
        }))
    }
}
