//! The save strategy: the pipeline of any format, with a planner around the caller's that passes on tensors without elements, and texts.

use crate::{
    NAME,
    dtype::Spelled,
    names,
    place::{Empty, Files},
    settings::SafetensorsConfig,
    texts,
    writer::SafetensorsWriter,
};
use async_trait::async_trait;
use reshard_model::{Dialect, FlatStateDict};
use reshard_plan::{AnnotationKind, Metadata, PlanError, SavePlan, SavePlanner};
use reshard_storage::PlaceKind;
use reshard_strategy::{
    BackendVersion, Capabilities, Planned, PreparedSave, Result, SaveCx, SaveShardedStrategy,
    StrategyError,
};
use std::sync::Arc;

#[derive(Debug)]
pub(crate) struct SafetensorsSave(pub(crate) SafetensorsConfig);

impl SafetensorsSave {
    /// A writer for a checkpoint whose URL ends with this name.
    fn writer(&self, last_part: &str) -> SafetensorsWriter {
        let settings = self.0.clone();
        let is_file = self.capabilities().place(last_part) == PlaceKind::File;
        SafetensorsWriter {
            settings,
            file: is_file.then(|| last_part.into()),
        }
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)] // a new default must not slip past the pipeline
impl SaveShardedStrategy for SafetensorsSave {
    fn key(&self) -> BackendVersion {
        BackendVersion::new(NAME, 1)
    }

    fn can_handle_sharded_objects(&self) -> bool {
        self.0.keep_objects
    }

    /// In Megatron Core's dialect, which no program knows with this format, plain tensors would lie in another file.
    fn capabilities(&self) -> Capabilities {
        let mut can = Capabilities::default()
            .with_dialects(match self.0.keep_objects {
                true => &[Dialect::Dcp, Dialect::TensorsOnly],
                false => &[Dialect::TensorsOnly, Dialect::Dcp],
            })
            .with_objects(|place, _| place == PlaceKind::Folder)
            .with_folder(self.0.takes_folder())
            .with_annotations(|_, _| &[AnnotationKind::Text]);
        if !self.0.types_as_bytes {
            can = can.with_dtypes(|dtype| Spelled::named(dtype).is_some());
        }
        if !self.0.sharded {
            can = can.with_places(|name| match names::is_file(name) {
                true => PlaceKind::File,
                false => PlaceKind::Folder,
            });
        }
        can
    }

    async fn prepare(
        &self,
        state: FlatStateDict,
        cx: &SaveCx<'_>,
    ) -> Result<Box<dyn PreparedSave>> {
        if cx.options.rank_local {
            return Err(StrategyError::Unsupported {
                strategy: self.key().to_string(),
                what: "a rank-local checkpoint, because nobody could put it together,".into(),
            });
        }
        let mut cx = cx.clone();
        cx.planner = Arc::new(WithEmpty { base: cx.planner });
        let writer = self.writer(names::last_part(cx.url));
        Planned::new(writer).prepare(state, &cx).await
    }
}

/// Around the planner of a save. The writer needs facts of the global metadata before it writes the first file: tensors without elements,
/// which have no items, and texts. It gets them in the data of the first plan.
#[derive(Debug)]
struct WithEmpty {
    base: Arc<dyn SavePlanner>,
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
