//! Stored objects, and the common state.

use super::handle::{ACT, Checkpoint, not_stored};
use crate::{Result, StoredCommon, error::Context};
use reshard_model::{Payload, Value, ValueTree};
use reshard_storage::Progress;
use reshard_strategy::{ReadCx, ReadObject, StorageInfo, StrategyError, decode_object};

impl Checkpoint {
    /// The keys of all objects. The cells of an array of objects have keys of the form `key/shard_…`.
    pub fn objects(&self) -> impl Iterator<Item = &str> {
        self.metadata().objects().map(|(_, key)| key)
    }

    /// Where the parts of an object lie. Empty if the object is not stored, or if the checkpoint does not say.
    pub fn object_parts(&self, key: &str) -> Vec<StorageInfo> {
        self.metadata()
            .object(key)
            .map(|id| self.opened.reader.locate_object(id))
            .unwrap_or_default()
    }

    /// Reads and decodes an object. A cell of an array in Megatron Core's dialect is a list.
    ///
    /// # Errors
    /// There is no object of that key, or it is damaged.
    pub async fn object(&self, key: &str) -> Result<Value> {
        let payload = self.object_payload(key).await?;
        self.decode(key, payload).during(ACT, &self.url)
    }

    /// Reads an object in its stored form, without decoding it.
    ///
    /// # Errors
    /// There is no object of that key, or it is damaged.
    pub async fn object_payload(&self, key: &str) -> Result<Payload> {
        let missing = || match self.metadata().tensor(key) {
            Some(_) => not_stored(format!(
                "{key:?} is a tensor, not an object; `Checkpoint::tensor` reads it"
            )),
            None => self.unknown("object", key, self.metadata().object_count()),
        };
        let id = self
            .metadata()
            .object(key)
            .ok_or_else(missing)
            .during(ACT, &self.url)?;
        let reads = [ReadObject { object: id }];
        let none = Progress::none();
        let how = ReadCx::new(self.options.load.verify, &none);
        let got = self
            .opened
            .reader
            .read_objects(&reads, &how)
            .await
            .during(ACT, &self.url)?;
        Ok(got.into_iter().next().unwrap_or_default())
    }

    fn decode(&self, key: &str, payload: Payload) -> Result<Value, StrategyError> {
        decode_object(&*self.opened.reader.codec(), key, payload)
    }

    /// Reads the common state. It is empty in checkpoints of PyTorch's dialect.
    ///
    /// # Errors
    /// It is missing or damaged.
    pub async fn common(&self) -> Result<ValueTree> {
        self.opened.common().await.during(ACT, &self.url)
    }

    /// Reads the common state in its stored form, without decoding it. For tools that rewrite a checkpoint. `None` in
    /// PyTorch's dialect.
    ///
    /// # Errors
    /// It is missing, or its strategy is not `torch`.
    pub async fn stored_common(&self) -> Result<Option<StoredCommon>> {
        StoredCommon::of(&self.opened, self.options.load.verify)
            .await
            .during(ACT, &self.url)
    }
}
