//! Where Megatron Core's dialect keeps common state, and how a tool carries it over unchanged.

use crate::opened::Opened;
use reshard_megatron::{COMMON, COMMON_STATE_CELL, TorchCommon};
use reshard_model::{Payload, ShardedObject, Value, ValueTree};
use reshard_storage::{FileBody, Name, Progress};
use reshard_strategy::{
    BackendVersion, ReadCx, ReadObject, SaveCommonStrategy as _, StrategyError, hex,
};
use sha2::{Digest as _, Sha256};
use std::sync::{Arc, OnceLock};

/// Where Megatron Core's dialect keeps common state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CommonForm {
    /// In `common.pt`, which every version reads.
    #[default]
    File,
    /// In the object `common_state` of the sharded part. Only Megatron Core 0.19 and later write and read it.
    Object,
}

/// Common state as it is stored, not decoded. [`Checkpoint::stored_common`](crate::Checkpoint::stored_common) returns
/// it, and `Save::stored_common` takes it. It keeps content that no [`Value`](reshard_model::Value)
/// can represent.
#[derive(Clone, Debug)]
pub struct StoredCommon {
    form: CommonForm,
    payload: Payload,
    /// Computed once for all clones, because every rank of a conversion has one.
    fingerprint: Arc<OnceLock<String>>,
}

impl StoredCommon {
    /// Common state in this form, for tools that change either.
    pub fn new(form: CommonForm, common: Value) -> Self {
        // A cell of an array of objects is stored as a list.
        let value = match form {
            CommonForm::File => common,
            CommonForm::Object => Value::List(vec![common]),
        };
        Self {
            form,
            payload: Payload::Value(value),
            fingerprint: Arc::default(),
        }
    }

    /// In which form it was stored, and will be stored.
    pub fn form(&self) -> CommonForm {
        self.form
    }

    /// Its value, or its stored form.
    pub fn payload(&self) -> &Payload {
        &self.payload
    }

    /// Bytes of it as it was stored. 0 if it was not read from a checkpoint.
    pub fn stored_bytes(&self) -> u64 {
        match &self.payload {
            Payload::Encoded { bytes, .. } => bytes.len() as u64,
            _ => 0,
        }
    }

    /// Form, length and digest, by which ranks compare it.
    pub fn fingerprint(&self) -> &str {
        self.fingerprint.get_or_init(|| {
            let form = self.form;
            let (bytes, digest) = match &self.payload {
                Payload::Encoded { bytes, .. } => (bytes.len(), Sha256::digest(bytes)),
                other => {
                    let text = format!("{other:?}");
                    (text.len(), Sha256::digest(text))
                }
            };
            format!("{form:?}, {bytes} bytes, SHA-256 {}", hex(&digest))
        })
    }

    /// The key of the object that holds it, if no file does.
    pub fn object_key(&self) -> Option<&'static str> {
        (self.form == CommonForm::Object).then_some(COMMON_STATE_CELL)
    }

    /// The common state of an open checkpoint; `None` if its dialect has none.
    pub async fn of(opened: &Opened, verify: bool) -> Result<Option<Self>, StrategyError> {
        let Some(common) = &opened.common else {
            return Ok(None);
        };
        if common.key() != BackendVersion::new("torch", 1) {
            let what =
                "carrying common state over without decoding it (load it, and save it as a part of the state)"
                    .into();
            return Err(StrategyError::Unsupported {
                strategy: common.key().to_string(),
                what,
            });
        }
        let name = Name::new(COMMON)?;
        if let Some(bytes) = opened.limits.read(&opened.store, &name).await? {
            let payload = Payload::Encoded {
                codec: opened.reader.codec().name(),
                bytes,
            };
            return Ok(Some(Self {
                form: CommonForm::File,
                payload,
                fingerprint: Arc::default(),
            }));
        }
        let Some(object) = opened.reader.metadata().object(COMMON_STATE_CELL) else {
            // Says what is missing.
            opened.common().await?;
            return Ok(None);
        };
        let (none, reads) = (Progress::none(), [ReadObject { object }]);
        let payload = opened
            .reader
            .read_objects(&reads, &ReadCx::new(verify, &none))
            .await?
            .pop();
        Ok(payload.map(|payload| Self {
            form: CommonForm::Object,
            payload,
            fingerprint: Arc::default(),
        }))
    }

    /// The leaf of the sharded part that holds it, if a leaf does.
    pub fn leaf(&self) -> Option<ShardedObject> {
        self.object_key()
            .map(|key| ShardedObject::item(key, self.payload.clone()))
    }

    /// The file that holds it, if a file does.
    pub fn layout(&self) -> Result<Vec<FileBody>, StrategyError> {
        match (self.form, &self.payload) {
            (CommonForm::File, Payload::Encoded { bytes, .. }) => Ok(vec![FileBody::from_bytes(
                Name::new(COMMON)?,
                bytes.clone(),
            )]),
            (CommonForm::File, Payload::Value(common)) => {
                TorchCommon.layout_common(&ValueTree::from(common.clone()))
            }
            _ => Ok(Vec::new()),
        }
    }
}
