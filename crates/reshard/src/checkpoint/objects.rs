//! Stored objects, and the common state.

use super::handle::{ACT, Checkpoint, not_stored};
use crate::{Result, StoredCommon, error::Context};
use reshard_model::{Payload, Value, ValueTree};
use reshard_storage::Progress;
use reshard_strategy::{ReadCx, ReadObject, StorageInfo, StrategyError, decode_object};

impl Checkpoint {
    /// Keys of all objects: items of their own, and `key/shard_…` for cells of arrays.
    pub fn objects(&self) -> impl Iterator<Item = &str> {
        self.metadata().objects().map(|(_, key)| key)
    }

    /// Where the parts of an object lie; none when it isn't stored, or the checkpoint does not say.
    pub fn object_parts(&self, key: &str) -> Vec<StorageInfo> {
        self.metadata().object(key).map(|id| self.opened.reader.locate_object(id)).unwrap_or_default()
    }

    /// An object, decoded. What Megatron Core stores in cells of arrays is a list.
    ///
    /// # Errors
    /// When there is none of that key, or it is damaged.
    pub async fn object(&self, key: &str) -> Result<Value> {
        let payload = self.object_payload(key).await?;
        self.decode(key, payload).during(ACT, &self.url)
    }

    /// An object as it is stored.
    ///
    /// # Errors
    /// When there is none of that key, or it is damaged.
    pub async fn object_payload(&self, key: &str) -> Result<Payload> {
        let missing = || match self.metadata().tensor(key) {
            Some(_) => not_stored(format!("{key:?} is a tensor, no object; `Checkpoint::tensor` reads it")),
            None => self.unknown("object", key, self.metadata().object_count()),
        };
        let id = self.metadata().object(key).ok_or_else(missing).during(ACT, &self.url)?;
        let reads = [ReadObject { object: id }];
        let none = Progress::none();
        let how = ReadCx::new(self.verify, &none);
        let got = self.opened.reader.read_objects(&reads, &how).await.during(ACT, &self.url)?;
        Ok(got.into_iter().next().unwrap_or_default())
    }

    fn decode(&self, key: &str, payload: Payload) -> Result<Value, StrategyError> {
        decode_object(&*self.opened.reader.codec(), key, payload)
    }

    /// The common state; empty in checkpoints of PyTorch's dialect.
    ///
    /// # Errors
    /// When it is missing or damaged.
    pub async fn common(&self) -> Result<ValueTree> {
        self.opened.common().await.during(ACT, &self.url)
    }

    /// The common state as it is stored, not decoded, for who rewrites the checkpoint; `None` in PyTorch's dialect.
    ///
    /// # Errors
    /// When it is missing, or of another strategy than `torch`.
    pub async fn stored_common(&self) -> Result<Option<StoredCommon>> {
        StoredCommon::of(&self.opened, self.verify).await.during(ACT, &self.url)
    }
}
