//! The folders of attempts.

use crate::{fault, place::ObjectStorePlace, unfinished::Unfinished};
use async_trait::async_trait;
use object_store::path::Path;
use reshard_storage::{
    Leftover, Name, Recovery, Removal, Result, StorageError, UnfinishedUpload, is_attempt,
    remove_by_record,
};
use std::{sync::Arc, time::SystemTime};

#[async_trait]
impl Recovery for ObjectStorePlace {
    /// The folders of all attempts. Which of them the commit record names, only its format knows.
    async fn leftovers(&self) -> Result<Vec<Leftover>> {
        let error = |e| self.client.error("list", self.url_text(), e);
        let top = self.client.list_one(self.folder(None)?).await?;
        let folders = top.map_err(error)?.common_prefixes;
        let attempts = folders
            .iter()
            .filter_map(|path| self.name_of(path))
            .filter(|name| is_attempt(name.as_str()));
        let mut found = Vec::new();
        for attempt in attempts {
            let folder = self.client.list_all(self.folder(Some(&attempt))?).await?;
            let (mut bytes, mut modified) = (0u64, None);
            for meta in folder.map_err(error)? {
                bytes = bytes.saturating_add(meta.size);
                modified = modified.max(Some(SystemTime::from(meta.last_modified)));
            }
            let left = Leftover::new(attempt.as_str(), self.url_of(&attempt));
            found.push(left.holding(bytes, modified));
        }
        Ok(found)
    }

    async fn remove_leftover(&self, left: &Leftover) -> Result<()> {
        let attempt = Name::new(&*left.attempt)?;
        if !is_attempt(&left.attempt) || left.path != self.url_of(&attempt) {
            return Err(StorageError::invalid(format!(
                "{} is no leftover of {}",
                left.path,
                self.url_text()
            )));
        }
        let error = |e| self.client.error("remove", &left.path, e);
        let folder = self.client.list_all(self.folder(Some(&attempt))?).await?;
        let paths: Vec<Path> = folder
            .map_err(error)?
            .into_iter()
            .map(|meta| meta.location)
            .collect();
        self.client.delete(paths).await?.map_err(error)
    }

    fn removal(&self) -> Removal {
        match self.can("removing files from") {
            Ok(()) => Removal::Record,
            Err(_) => Removal::No,
        }
    }

    async fn remove_version(&self, _: &str, record: Option<&Name>, files: &[Name]) -> Result<()> {
        remove_by_record(self, record, files).await
    }

    async fn unfinished_uploads(&self) -> Result<Vec<UnfinishedUpload>> {
        let Some(uploads) = &self.client.bucket.uploads else {
            return Ok(Vec::new());
        };
        let (uploads, folder) = (Arc::clone(uploads), self.folder.clone());
        let listed = self
            .client
            .ask(|_| async move { uploads.list(&folder).await });
        let error = |e| self.client.error("list the uploads of", self.url_text(), e);
        let named = |upload: Unfinished| {
            let (name, path) = match upload.key == self.folder {
                // The object of this URL has the same name as in the folder above.
                true => {
                    let last = self.folder.rsplit('/').next()?;
                    (Name::new(last).ok()?, self.url.clone())
                }
                false => {
                    let name = self.name_of(&Path::parse(upload.key).ok()?)?;
                    let path = self.url_of(&name);
                    (name, path)
                }
            };
            Some(UnfinishedUpload::new(name, upload.id, path).begun(upload.began))
        };
        let listed = listed.await?.map_err(error)?;
        Ok(listed.into_iter().filter_map(named).collect())
    }

    async fn abort_upload(&self, upload: &UnfinishedUpload) -> Result<()> {
        let Some(uploads) = &self.client.bucket.uploads else {
            return Ok(());
        };
        let path = match self.folder(None)? {
            Some(object) if upload.path == self.url => object,
            _ => self.path(&upload.name)?,
        };
        let uploads = Arc::clone(uploads);
        let id = upload.id.clone();
        let aborted = self
            .client
            .ask(|_| async move { uploads.abort(&path, &id).await });
        match aborted.await? {
            Err(e) if !fault::is_missing_object(&e) => {
                Err(self.client.error("abort the upload of", &upload.path, e))
            }
            _ => Ok(()),
        }
    }
}
