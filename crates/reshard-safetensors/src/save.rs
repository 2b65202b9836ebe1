//! The settings as a format.

use crate::{NAME, names, settings::SafetensorsConfig, writer::SafetensorsWriter};
use reshard_model::{Dialect, SafetensorsDType};
use reshard_plan::AnnotationKind;
use reshard_storage::PlaceKind;
use reshard_strategy::{
    BackendVersion, Capabilities, Result, SaveCx, SaveFormat, StorageWriter, StrategyError,
    settings_of,
};
use serde_json::Value as Json;
use std::sync::Arc;

impl SaveFormat for SafetensorsConfig {
    fn key(&self) -> BackendVersion {
        BackendVersion::new(NAME, 1)
    }

    fn settings(&self) -> Json {
        settings_of(self)
    }

    fn check(&self) -> Result<()> {
        let name = &self.name;
        if name.is_empty() || name.contains(['/', '\\', '\0']) || name.starts_with('.') {
            let what = format!("{name:?} is no name of a model; files are named like it");
            return Err(StrategyError::Invalid(what));
        }
        Ok(())
    }

    /// In Megatron Core's dialect, which no program knows with this format, plain tensors would lie in another file.
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            dialects: match self.keep_objects {
                true => &[Dialect::Dcp, Dialect::TensorsOnly],
                false => &[Dialect::TensorsOnly, Dialect::Dcp],
            },
            dtypes: match self.types_as_bytes {
                true => |_| true,
                false => |dtype| SafetensorsDType::named(dtype).is_some(),
            },
            places: match self.sharded {
                true => |_| PlaceKind::Folder,
                false => |name| match names::is_file(name) {
                    true => PlaceKind::File,
                    false => PlaceKind::Folder,
                },
            },
            objects: |place, _| place == PlaceKind::Folder,
            no_sharded_objects: (!self.keep_objects)
                .then_some("save only tensors, set `keep_objects`, or choose another format"),
            no_rank_local: Some("nobody could put it together"),
            takes_folder: self.takes_folder(),
            annotations: |_, _| &[AnnotationKind::Text, AnnotationKind::TensorSubclass],
            ..Capabilities::DEFAULT
        }
    }

    fn writer(&self, cx: &SaveCx<'_>) -> Result<Arc<dyn StorageWriter>> {
        let name = names::last_part(cx.url);
        let is_file = self.capabilities().place(name) == PlaceKind::File;
        Ok(Arc::new(SafetensorsWriter {
            settings: self.clone(),
            file: is_file.then(|| name.into()),
        }))
    }
}
