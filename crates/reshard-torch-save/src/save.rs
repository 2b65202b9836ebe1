//! The settings as a format.

use crate::{
    NAME, TorchSaveConfig, dicts,
    names::{is_file, last_part},
    planner::Target,
    told::Asked,
    writer::TorchSaveWriter,
};
use reshard_model::Dialect;
use reshard_storage::PlaceKind;
use reshard_strategy::{BackendVersion, Capabilities, Result, SaveCx, SaveFormat, StorageWriter};
use std::sync::Arc;

impl SaveFormat for TorchSaveConfig {
    fn key(&self) -> BackendVersion {
        BackendVersion::new(NAME, 1)
    }

    /// The files of Megatron Core's dialect have no place in one file.
    fn capabilities(&self) -> Capabilities {
        let can = Capabilities::default()
            .with_dialects(&[Dialect::Dcp, Dialect::TensorsOnly])
            // Several files with an index hold only tensors.
            .with_objects(|place, by_policy| !by_policy || place == PlaceKind::File)
            .with_folder(true)
            .with_ties(true)
            .with_split_objects(true)
            .without_rank_local("a file holds whole tensors")
            // The dicts of several files are flat.
            .with_annotations(
                |place, by_policy| match by_policy && place != PlaceKind::File {
                    true => &[],
                    false => dicts::KINDS,
                },
            );
        match self.single_file {
            Some(true) => can.with_places(|_| PlaceKind::File),
            Some(false) => can,
            None => can.with_places(|name| match is_file(name) {
                true => PlaceKind::File,
                false => PlaceKind::Folder,
            }),
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
