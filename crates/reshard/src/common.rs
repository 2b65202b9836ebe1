//! Where Megatron Core's dialect keeps common state, and how it is carried over as it is.

use crate::opened::Opened;
use reshard_megatron::{COMMON, COMMON_STATE_CELL};
use reshard_model::{Payload, ShardedObject};
use reshard_storage::{FileBody, Name, Progress};
use reshard_strategy::{BackendVersion, ReadCx, ReadObject, StrategyError};

/// Where Megatron Core's dialect keeps common state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CommonForm {
    /// In `common.pt`, which every version reads.
    #[default]
    File,
    /// In the object `common_state` of the sharded part, as Megatron Core 0.19 and later write it and alone read it.
    Object,
}

/// Common state as it is stored, not decoded: from [`Checkpoint::stored_common`](crate::Checkpoint::stored_common) to
/// [`Save::stored_common`](crate::Save::stored_common). What no value of this program can say stays in it.
#[derive(Clone, Debug)]
pub struct StoredCommon {
    form: CommonForm,
    payload: Payload,
}

impl StoredCommon {
    /// Where it was, and will be.
    pub fn form(&self) -> CommonForm {
        self.form
    }

    /// Key of the object that holds it, when no file does.
    pub fn object_key(&self) -> Option<&'static str> {
        (self.form == CommonForm::Object).then_some(COMMON_STATE_CELL)
    }

    /// Of what is open; `None` when its dialect has none.
    pub(crate) async fn of(opened: &Opened, verify: bool) -> Result<Option<Self>, StrategyError> {
        let Some(common) = &opened.common else { return Ok(None) };
        if common.key() != BackendVersion::new("torch", 1) {
            let what =
                "carrying common state over undecoded; load it, and save it as a part of the state".into();
            return Err(StrategyError::Unsupported { strategy: common.key().to_string(), what });
        }
        let name = Name::new(COMMON)?;
        if let Some(bytes) = opened.limits.read(&opened.store, &name).await? {
            let payload = Payload::Encoded { codec: opened.reader.codec().name(), bytes };
            return Ok(Some(Self { form: CommonForm::File, payload }));
        }
        let Some(object) = opened.reader.metadata().object(COMMON_STATE_CELL) else {
            // Says what is missing.
            opened.common().await?;
            return Ok(None);
        };
        let (none, reads) = (Progress::none(), [ReadObject { object }]);
        let payload = opened.reader.read_objects(&reads, &ReadCx::new(verify, &none)).await?.pop();
        Ok(payload.map(|payload| Self { form: CommonForm::Object, payload }))
    }

    /// The leaf of the sharded part that holds it, if one does.
    pub(crate) fn leaf(&self) -> Option<ShardedObject> {
        self.object_key().map(|key| ShardedObject::item(key, self.payload.clone()))
    }

    /// The file, if it is one.
    pub(crate) fn layout(&self) -> Result<Vec<FileBody>, StrategyError> {
        match (self.form, &self.payload) {
            (CommonForm::File, Payload::Encoded { bytes, .. }) => {
                Ok(vec![FileBody::from_bytes(Name::new(COMMON)?, bytes.clone())])
            }
            _ => Ok(Vec::new()),
        }
    }
}
