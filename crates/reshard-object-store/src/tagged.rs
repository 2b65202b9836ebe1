//! How the tags of objects are learned: by listings while these are short, else by asking for one object.

use crate::{asked::PAGES, place::ObjectStorePlace, scheme::Service};
use object_store::{ObjectMeta, path::Path};
use reshard_storage::{Among, Name, PlaceKind, Result, StorageError};

/// At least so many objects come with one answer to a listing.
const PAGE: usize = 1_000;

impl ObjectStorePlace {
    /// The object of a file, with others that come with the same requests; none if there is no such file.
    pub(crate) async fn learn(&self, name: &Name) -> Result<(Vec<ObjectMeta>, Among)> {
        if self.client.service != Service::Http && self.part != PlaceKind::File {
            let root = self.folder(None)?;
            let below = Name::new(name.folder()).ok();
            let mut folders = Vec::new();
            if below.is_none() || self.asked.is_new(path_of(root.as_ref())) {
                folders.push((root, Among::Place));
            }
            if let Some(below) = below {
                folders.push((Some(self.path(&below)?), Among::Folder));
            }
            for (folder, among) in folders {
                if let Some(all) = self.listed(folder).await? {
                    return Ok((all, among));
                }
            }
        }
        Ok((Vec::from_iter(self.meta(name).await?), Among::File))
    }

    /// What is known of an object; `None` if there is none.
    ///
    /// # Errors
    /// [`Replaced`](StorageError::Replaced) if it was seen before, and is gone or another one now.
    pub(crate) async fn meta(&self, name: &Name) -> Result<Option<ObjectMeta>> {
        let path = self.path(name)?;
        let replaced = || StorageError::Replaced {
            path: self.url_of(name),
        };
        let pins = self.pins.as_ref();
        let tag = pins.and_then(|pins| pins.of(&path));
        let found = match self.client.head(path.clone(), tag).await? {
            Ok(found) => found,
            Err(object_store::Error::Precondition { .. }) => return Err(replaced()),
            Err(e) => return Err(self.client.error("look at", self.url_of(name), e)),
        };
        let is_seen = match &found {
            Some(meta) => pins.is_none_or(|pins| pins.agree(&path, meta.e_tag.as_deref())),
            None => pins.is_none_or(|pins| !pins.has(&path)),
        };
        match is_seen {
            true => Ok(found),
            false => Err(replaced()),
        }
    }

    /// All objects below a folder, if it is to be listed now, and is not too long.
    async fn listed(&self, folder: Option<Path>) -> Result<Option<Vec<ObjectMeta>>> {
        // A folder of which only some files are the place may have any number of others.
        let first = match self.part {
            PlaceKind::Folder => 0,
            _ => PAGES,
        };
        let Some(pages) = self.asked.pages(path_of(folder.as_ref()), first) else {
            return Ok(None);
        };
        // One object less than the pages have, because a folder of just so many would take another request to see its end.
        let most = pages.saturating_mul(PAGE) - 1;
        let listed = self.client.list_few(folder, most).await?;
        listed.map_err(|e| self.client.error("list", &self.url, e))
    }
}

fn path_of(folder: Option<&Path>) -> &str {
    folder.map_or("", |path| path.as_ref())
}
