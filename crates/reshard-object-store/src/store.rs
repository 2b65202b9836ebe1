//! What a store does, in a bucket.

use crate::{
    asked::AskedFolders,
    pin::{Pins, is_strong},
    place::ObjectStorePlace,
    scheme::{self, Parsed, Service},
    single::SingleObject,
    transaction::{Begun, ObjectTransaction},
};
use async_trait::async_trait;
use bytes::Bytes;
use object_store::path::Path;
use reshard_storage::{
    Depth, Entry, Head, Hints, IfExists, Listing, Name, PartStore, PlaceKind, PrefixLister,
    Progress, ReadPieces, RecordRead, Recovery, Result, StorageError, Store, Tagged, Tags,
    TakePiece, Traffic, Transaction, read_pieces_into,
};
use std::{
    ops::Range,
    sync::{Arc, LazyLock},
    time::{SystemTime, UNIX_EPOCH},
};

/// What no other process is called, or was.
static PROCESS: LazyLock<String> = LazyLock::new(|| {
    let began = SystemTime::now().duration_since(UNIX_EPOCH);
    let began = began.map_or(0, |time| time.as_nanos());
    format!("{}-{began}", std::process::id())
});

#[async_trait]
impl Store for ObjectStorePlace {
    fn url(&self) -> String {
        self.url.clone()
    }

    fn identity(&self) -> String {
        match &*self.client.bucket.site {
            "" => self.url.clone(),
            site => format!("{} at {site}", self.url),
        }
    }

    fn hints(&self) -> Hints {
        self.client.hints
    }

    async fn read(&self, name: &Name, range: Range<u64>) -> Result<Bytes> {
        self.object(name)?.range(range).await
    }

    async fn read_all(&self, name: &Name, max: u64) -> Result<Option<Bytes>> {
        self.object(name)?.whole(max).await
    }

    async fn read_into(&self, reads: Vec<RecordRead>, progress: Progress) -> Result<Traffic> {
        read_pieces_into(self, &self.client.hints, reads, progress).await
    }

    async fn list(&self, below: Option<&Name>, depth: Depth) -> Result<Listing> {
        self.can("listing")?;
        let folder = self.folder(below)?;
        let error = |e| self.client.error("list", &self.url, e);
        let (objects, folders) = match depth {
            Depth::One => {
                let found = self.client.list_one(folder).await?.map_err(error)?;
                (found.objects, found.common_prefixes)
            }
            Depth::All => (
                self.client.list_all(folder).await?.map_err(error)?,
                Vec::new(),
            ),
        };
        let files = objects.iter().filter_map(|meta| self.entry(meta));
        let folders = folders.iter().filter_map(|path| self.name_of(path));
        Ok(Listing::new(files.collect(), folders.collect()))
    }

    async fn head(&self, name: &Name) -> Result<Option<Head>> {
        let found = self.meta(name).await?;
        Ok(found.map(|meta| Head::new(meta.size, Some(meta.last_modified.into()))))
    }

    async fn remove(&self, names: &[Name]) -> Result<()> {
        self.can("removing files from")?;
        let paths: Result<Vec<Path>> = names.iter().map(|name| self.path(name)).collect();
        let removed = self.client.delete(paths?).await?;
        removed.map_err(|e| self.client.error("remove files from", &self.url, e))
    }

    /// A store that asks for each object with the tag that it had when it was read first. It makes no request. The data files of a
    /// version have names that no other version has, so the version is the one whose commit record is read first.
    async fn pinned(&self) -> Result<Option<Arc<dyn Store>>> {
        Ok(Some(Arc::new(Self {
            pins: Some(Pins::default()),
            asked: AskedFolders::default(),
            ..self.clone()
        })))
    }

    async fn tags(&self, name: &Name) -> Result<Option<Tags>> {
        let Some(pins) = &self.pins else {
            return Ok(None);
        };
        let (found, among) = self.learn(name).await?;
        let mut files = Vec::new();
        for meta in found {
            let Some(name) = self.name_of(&meta.location) else {
                continue;
            };
            // A weak tag stands for other bytes, too, so nothing may be kept by it.
            let Some(tag) = meta.e_tag.filter(|tag| is_strong(tag)) else {
                return Ok(None);
            };
            let tag = match self.client.service {
                // It leaves out the quotes in a listing, and wants them in a condition.
                Service::Azure if !tag.ends_with('"') => format!("\"{tag}\""),
                _ => tag,
            };
            // What was replaced since it was read is gone for this reader.
            if pins.agree(&meta.location, Some(&tag)) {
                let head = Head::new(meta.size, Some(meta.last_modified.into()));
                let tag = tag.trim_matches('"');
                files.push(match self.client.service {
                    // Its tags are numbers that begin anew in each process.
                    Service::Memory => Tagged::new(name, head, format!("{tag} of {}", *PROCESS)),
                    _ => Tagged::new(name, head, tag),
                });
            }
        }
        Ok(Some(Tags::new(files, among)))
    }

    fn of_kind(&self, kind: PlaceKind) -> Option<Arc<dyn Store>> {
        // The same folder one level up, and the last part of the path in it.
        let (above, last) = match self.folder.rsplit_once('/') {
            Some((above, last)) => (above, last),
            None => ("", &*self.folder),
        };
        let Ok(Parsed { root, .. }) = scheme::parse(&self.url) else {
            return None;
        };
        let url = match above {
            "" => root.to_owned(),
            above => format!("{root}/{above}"),
        };
        let folder = Arc::new(Self {
            folder: above.into(),
            url,
            // A reader of one file reads one version of it.
            pins: self.pins.clone().or_else(|| Some(Pins::default())),
            part: kind,
            asked: AskedFolders::default(),
            ..self.clone()
        });
        match kind {
            PlaceKind::File => {
                let name = Name::new(last).ok()?;
                let part = PartStore::file(self.url.clone(), folder, name);
                Some(Arc::new(part.with_writer(SingleObject::new(self.clone()))))
            }
            PlaceKind::Prefix if !last.is_empty() => {
                let part = PartStore::prefix(self.url.clone(), Arc::clone(&folder) as _, last);
                Some(Arc::new(part.with_lister(FolderOf(folder))))
            }
            _ => None,
        }
    }

    async fn begin(&self, attempt: &str, if_exists: IfExists) -> Result<Arc<dyn Transaction>> {
        self.can("writing to")?;
        let begun = Begun::look(self, if_exists).await?;
        let transaction = ObjectTransaction::new(self, attempt, Some(begun))?;
        Ok(Arc::new(transaction))
    }

    async fn join(&self, attempt: &str, place: Option<&str>) -> Result<Arc<dyn Transaction>> {
        self.can("writing to")?;
        // Nothing shows that a version has begun until its first file is there. So the ranks compare their places.
        if place != Some(&*self.url) {
            return Err(StorageError::NotJoined {
                path: self.url.clone(),
                attempt: attempt.into(),
            });
        }
        Ok(Arc::new(ObjectTransaction::new(self, attempt, None)?))
    }

    fn recovery(&self) -> Option<&dyn Recovery> {
        match self.client.service {
            Service::Http => None,
            _ => Some(self),
        }
    }
}

/// The folder of files with a prefix.
#[derive(Debug)]
struct FolderOf(Arc<ObjectStorePlace>);

#[async_trait]
impl PrefixLister for FolderOf {
    async fn list_prefix(&self, prefix: &str) -> Result<Vec<Entry>> {
        let place = &self.0;
        place.can("listing")?;
        let inside = match &*place.folder {
            "" => prefix.to_owned(),
            folder => format!("{folder}/{prefix}"),
        };
        let found = place.client.list_beginning(inside).await?;
        match found.map_err(|e| place.client.error("list", &place.url, e))? {
            Some(found) => Ok(found.iter().filter_map(|meta| place.entry(meta)).collect()),
            None => Ok(place.list(None, Depth::One).await?.files),
        }
    }
}

#[async_trait]
impl ReadPieces for ObjectStorePlace {
    async fn read_pieces(
        &self,
        name: &Name,
        range: Range<u64>,
        take: &mut TakePiece<'_>,
    ) -> Result<()> {
        self.object(name)?.pieces(range, take).await
    }
}
