//! The settings as a format, and its planner, which passes on tensors without elements and texts.

use crate::{
    NAME,
    dtype::Spelled,
    names,
    place::{Empty, Files},
    settings::SafetensorsConfig,
    texts,
    writer::SafetensorsWriter,
};
use reshard_model::Dialect;
use reshard_plan::{AnnotationKind, Metadata, PlanError, SavePlan, SavePlanner};
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
                false => |dtype| Spelled::named(dtype).is_some(),
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
            annotations: |_, _| &[AnnotationKind::Text],
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

/// Around the planner of a save. The writer needs facts of the global metadata before it writes the first file: tensors without elements,
/// which have no items, and texts. It gets them in the data of the first plan.
#[derive(Debug)]
pub(crate) struct WithEmpty {
    pub(crate) base: Arc<dyn SavePlanner>,
}

impl SavePlanner for WithEmpty {
    fn base(&self) -> &dyn SavePlanner {
        &*self.base
    }

    fn plan_settings(&self) -> Option<String> {
        let base = self.base.plan_settings()?;
        let of = self.base.name();
        Some(format!("with empty tensors around {of} {base}"))
    }

    fn create_global_plan(
        &self,
        plans: Vec<SavePlan>,
    ) -> reshard_plan::Result<(Vec<SavePlan>, Metadata)> {
        let (mut plans, metadata) = self.base.create_global_plan(plans)?;
        let empty = metadata.tensors().filter(|t| t.shape().contains(&0));
        let empty = empty.map(|t| Empty {
            key: t.key().into(),
            dtype: t.dtype(),
            shape: t.shape(),
        });
        let files = Files {
            empty: empty.collect(),
            texts: texts::of_all_files(metadata.annotations()),
            ..Files::default()
        };
        if let Some(first) = plans.first_mut() {
            first.storage_data = files.pack().map_err(PlanError::planner)?;
        }
        Ok((plans, metadata))
    }
}
