//! Finds the strategies for the checkpoint at a URL, for loads and for [`Checkpoint`](crate::Checkpoint).

use crate::{
    attempt,
    known::KnownStore,
    outside::is_note,
    recognise::{
        is_no_folder, is_unlisted, may_be_misnamed, no_format_of_files, no_other, noted_other,
        of_content, recognise, recognise_part, unfinished,
    },
    sidecar::{SIDECAR, Seen, Sidecar, is_sidecar},
    written,
};
use futures_util::future::{join, join_all};
use reshard_megatron::{COMMON, INTEGRITY, METADATA_JSON, MetadataJson};
use reshard_model::{Dialect, ValueTree};
use reshard_storage::{Entry, Listing, Name, PlaceKind, StorageError, Store, StoreExt, Stores};
use reshard_strategy::{
    BackendVersion, Damage, Detection, FileRole, Formats, LoadCommonStrategy, LoadPipelineOptions,
    LoadShardedStrategy, OpenCx, OwnFile, ReadLimits, Registry, SMALL, StorageReader,
    StrategyError, hex, item_files,
};
use sha2::{Digest, Sha256};
use std::{borrow::Cow, collections::BTreeSet, sync::Arc};

type Result<T, E = StrategyError> = std::result::Result<T, E>;

/// Options for opening a checkpoint.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// The strategies to choose from; the linked ones if there are none.
    pub registry: Option<Registry>,
    /// The stores in which to look up the URL; the linked ones if there are none.
    pub stores: Option<Stores>,
    /// The strategy, instead of the one that the checkpoint asks for.
    pub strategy: Option<LoadShardedStrategy>,
    /// Settings for checkpoints of its format, which others don't need.
    pub settings: Option<LoadShardedStrategy>,
    /// The format, instead of recognising it.
    pub format: Option<BackendVersion>,
    /// Limits on what the checkpoint may ask for.
    pub limits: ReadLimits,
    /// The options of loads from it.
    pub load: LoadPipelineOptions,
}

/// The options of opening, for [`OpenOptions`] and for builders that have them in a field.
#[macro_export]
macro_rules! open_options {
    ($($field:ident).*) => {
        /// The registry of strategies to choose from; by default the linked strategies.
        pub fn registry(mut self, registry: Registry) -> Self {
            self.$($field.)*registry = Some(registry);
            self
        }

        /// The stores in which to look up the URL; by default the linked stores.
        pub fn stores(mut self, stores: Stores) -> Self {
            self.$($field.)*stores = Some(stores);
            self
        }

        /// Sets the format, instead of recognising it by the files. If there are settings of a strategy, these set their
        /// format too.
        pub fn format(mut self, format: BackendVersion) -> Self {
            self.$($field.)*format = Some(format);
            self
        }

        /// Limits on what the checkpoint may ask for; see [`ReadLimits`].
        pub fn limits(mut self, limits: ReadLimits) -> Self {
            self.$($field.)*limits = limits;
            self
        }
    };
}

/// An open checkpoint, of which no tensor is loaded.
#[derive(Clone, Debug)]
pub struct Opened {
    /// Where it lies, pinned to the version that was opened.
    pub store: Arc<dyn Store>,
    /// Limits on what it may ask for.
    pub limits: ReadLimits,
    /// The strategy that has opened it.
    pub sharded: LoadShardedStrategy,
    /// Its items.
    pub reader: Arc<dyn StorageReader>,
    /// Only Megatron Core's checkpoints have it.
    pub common: Option<Arc<dyn LoadCommonStrategy>>,
    /// The name of its format.
    pub name: BackendVersion,
    /// Whether nothing records that its save was finished, because it is older than `metadata.json`.
    pub unrecorded: bool,
    /// The file that shows that another program has saved over it, if its format keeps a record of what reshard wrote.
    pub changed: Option<Damage>,
    /// What of the URL it is.
    pub kind: PlaceKind,
    formats: Formats,
    seen: Seen,
}

/// How often a place is opened again that was replaced meanwhile.
const REOPENED: usize = 8;

fn is_replaced(e: &StrategyError) -> bool {
    matches!(e, StrategyError::Storage(StorageError::Replaced { .. }))
}

/// A record that a URL names, and the folder for which it stands.
struct RecordAt {
    folder: String,
    name: Name,
    format: BackendVersion,
}

impl OpenOptions {
    /// The store at a URL.
    ///
    /// # Errors
    /// No store is linked for it, or it can't be opened.
    pub fn store_at(&self, url: &str) -> Result<Arc<dyn Store>> {
        Ok(match &self.stores {
            Some(s) => s.open(url)?,
            None => Stores::linked()?.open(url)?,
        })
    }

    /// The strategies to choose from.
    ///
    /// # Errors
    /// Two linked crates register the same.
    pub fn strategies(&self) -> Result<Cow<'_, Registry>> {
        Ok(match &self.registry {
            Some(registry) => Cow::Borrowed(registry),
            None => Cow::Owned(Registry::linked()?),
        })
    }

    /// Opens the checkpoint at a URL.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub async fn open_at(&self, url: &str) -> Result<Opened> {
        self.open_in(url, self.store_at(url)?, |store| store).await
    }

    /// Opens a place by way of a store around its own. An index or another record of a folder that is no checkpoint by itself stands
    /// for the folder.
    pub async fn open_in(
        &self,
        url: &str,
        store: Arc<dyn Store>,
        around: impl FnOnce(Arc<dyn Store>) -> Arc<dyn Store>,
    ) -> Result<Opened> {
        let Some(record) = self.record_at(url)? else {
            return Box::pin(self.open_store(around(store))).await;
        };
        let how = Self {
            format: self.format.clone().or(Some(record.format)),
            ..self.clone()
        };
        let folder = around(self.store_at(&record.folder)?);
        let opened = Box::pin(how.open_store(folder)).await?;
        let file = Entry {
            name: record.name,
            bytes: 0,
        };
        match opened.reader.role(&file) {
            FileRole::Part => Ok(opened),
            _ => {
                let what = format!(
                    "{} is not the file by which the checkpoint in {} is opened; open that folder, or put the files of this one into a folder of their own",
                    file.name, record.folder
                );
                Err(StrategyError::Invalid(what))
            }
        }
    }

    /// What the last part of a URL means, if a format that has checkpoints in single files gives its record this name.
    fn record_at(&self, url: &str) -> Result<Option<RecordAt>> {
        let (folder, name) = match url.rsplit_once('/') {
            None => (".".into(), url),
            // The root of a machine or of a bucket.
            Some((folder, name)) if folder.is_empty() || folder.ends_with('/') => {
                (format!("{folder}/"), name)
            }
            Some((folder, name)) => (folder.to_owned(), name),
        };
        let Ok(name) = Name::new(name) else {
            return Ok(None);
        };
        let registry = &*self.strategies()?;
        let formats = Formats::of(registry)?.of_kind(PlaceKind::File);
        let file = Entry { name, bytes: 0 };
        let is_record = |format: &&LoadShardedStrategy| {
            format.info().own_file(file.name.as_str()) == Some(OwnFile::Record)
                && format.info().detect_file(&file) == Detection::No
        };
        let format = formats
            .all
            .iter()
            .find(is_record)
            .map(|format| format.key());
        Ok(format.map(|format| RecordAt {
            folder,
            name: file.name,
            format,
        }))
    }

    /// Opens the checkpoint in a store.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub async fn open_store(&self, store: Arc<dyn Store>) -> Result<Opened> {
        let registry = &*self.strategies()?;
        let formats = Formats::of(registry)?;
        // The next version is as good as the one that was just replaced. In a box, the states of so many calls take no stack.
        let mut again = 0;
        let opened = loop {
            let opened = self.open_folder(Arc::clone(&store), registry, &formats);
            match Box::pin(opened).await {
                Err(e) if is_replaced(&e) && again < REOPENED => again += 1,
                opened => break opened,
            }
        };
        match opened {
            Err(e) if is_no_folder(&e) || is_unlisted(&e) => {
                self.open_part(&store, registry, &formats, e).await
            }
            opened => opened,
        }
    }

    /// Opens a place that is one file, or files with a prefix. If there is neither, returns `e`, which says why the place
    /// is no folder.
    async fn open_part(
        &self,
        store: &Arc<dyn Store>,
        registry: &Registry,
        formats: &Formats,
        mut e: StrategyError,
    ) -> Result<Opened> {
        for kind in [PlaceKind::File, PlaceKind::Prefix] {
            let chosen = self.chosen(registry)?;
            let lives = match &chosen {
                Some(chosen) => chosen.info().lives_in(kind),
                // For a file the error also says that no format reads it.
                None => kind == PlaceKind::File || !formats.of_kind(kind).all.is_empty(),
            };
            if !lives {
                continue;
            }
            let Some(part) = store.of_kind(kind) else {
                continue;
            };
            let part = part.pinned().await?.unwrap_or(part);
            let asked = match &chosen {
                Some(chosen) => formats.only(chosen),
                None => formats.of_kind(kind),
            };
            let known = formats.of_kind(kind).probes()?;
            // Beside files with a prefix there may be millions of others.
            let top = match asked.probes_of_prefix()? {
                Some(names) if kind == PlaceKind::Prefix && part.hints().requests_are_dear() => {
                    Listing::of(part.present(names).await?)
                }
                _ => part.top_or(|| known).await?,
            };
            if top.is_empty() {
                continue;
            }
            if let Some(chosen) = chosen {
                let cx = OpenCx::new(part).with_kind(kind);
                return self.open_as(chosen, cx, None, formats).await;
            }
            let named = recognise_part(formats, kind, &top, &part)?;
            // Files whose names begin like the URL may have nothing to do with it. A web server may answer a folder's URL with a page.
            if named.is_none() && (kind == PlaceKind::Prefix || is_unlisted(&e)) {
                continue;
            }
            match self
                .open_recognised(registry, formats, (&part, kind), &top, named)
                .await?
            {
                Some(opened) => return Ok(opened),
                // The index of the prefix `ckpt` is a file at `ckpt.index`, which may be a prefix itself.
                None => e = no_format_of_files(formats, &part),
            }
        }
        Err(e)
    }

    /// Opens a file as the format that its name tells, or else as the one that its content tells. `None` if neither tells one.
    async fn open_recognised(
        &self,
        registry: &Registry,
        formats: &Formats,
        (part, kind): (&Arc<dyn Store>, PlaceKind),
        top: &Listing,
        named: Option<BackendVersion>,
    ) -> Result<Option<Opened>> {
        let open = async |format: &BackendVersion| {
            let cx = OpenCx::new(Arc::clone(part)).with_kind(kind);
            let format = self.of_format(registry, format)?;
            self.open_as(format, cx, None, formats).await
        };
        let failed = match &named {
            Some(named) => match open(named).await {
                Err(e) if kind == PlaceKind::File && may_be_misnamed(&e) => Some(e),
                opened => return opened.map(Some),
            },
            None => None,
        };
        // The content is read only if the name has not decided, because each request may take long.
        let told = of_content(formats, part, top).await?;
        match (told.filter(|told| named.as_ref() != Some(told)), failed) {
            (Some(told), _) => open(&told).await.map(Some),
            (None, Some(e)) => Err(e),
            (None, None) => Ok(None),
        }
    }

    async fn open_folder(
        &self,
        store: Arc<dyn Store>,
        registry: &Registry,
        formats: &Formats,
    ) -> Result<Opened> {
        // While somebody replaces the checkpoint, all reads still see the version of one save.
        let store = store.pinned().await?.unwrap_or(store);
        let known = match store.hints().requests_are_dear() && self.is_free() {
            true => Some(self.known(Arc::clone(&store), formats).await?),
            false => None,
        };
        let store = match &known {
            Some(known) => Arc::new(known.clone()) as Arc<dyn Store>,
            None => store,
        };
        let json = MetadataJson::of(&store).await?;
        let chosen = self.chosen(registry)?;
        let (name, unrecorded) = match (&json, &chosen) {
            (Some(json), _) => (self.as_named(json.sharded())?, false),
            (None, None) => match self.told(known.as_ref(), formats).await {
                Some(name) => (name, false),
                None => {
                    if let Some(known) = &known {
                        known.list_top().await;
                    }
                    let found = recognise(&store, formats).await?;
                    (found.format, found.older)
                }
            },
            // Settings do not choose another format, and a choice of a format does not choose another version.
            (None, Some(chosen)) => {
                let noted = noted_other(&store, &chosen.key(), formats).await;
                let named = |noted: &BackendVersion| {
                    self.format.is_none() || noted.backend == chosen.key().backend
                };
                let name = noted.filter(named).unwrap_or_else(|| chosen.key());
                (name, is_older(&store, chosen).await?)
            }
        };
        let of_common = match &json {
            Some(json) => Some(json.common()),
            // Megatron Core wrote such checkpoints before it had `metadata.json`.
            None => unrecorded.then(|| BackendVersion::new("torch", 1)),
        };
        let dialect = match of_common {
            Some(_) => Dialect::Megatron,
            None => Dialect::Dcp,
        };
        let common = of_common
            .map(|common| find_common(registry, &common))
            .transpose()?;
        let is_free = chosen.is_none();
        let sharded = match chosen {
            Some(chosen) => chosen,
            None => self.of_format(registry, &name)?,
        };
        sharded.check_compatibility(&name)?;
        let cx = OpenCx::new(store).with_dialect(dialect);
        let opened = self.open_as(sharded, cx, common, formats).await?;
        if json.is_some() && opened.reader.metadata().entries().len() == 0 {
            no_other(&opened.store, formats, &name).await?;
        }
        // Whoever chooses the format says that it is a checkpoint.
        if unrecorded && is_free {
            let whole = opened.reader.is_whole();
            whole.map_err(|why| unfinished(&opened.store, &name, &why))?;
        }
        let seen = known.as_ref().map(|known| {
            let record = record_of_default(formats).and_then(|name| Name::new(name).ok());
            Seen::of(|name| known.bytes(name), record)
        });
        if let Some(known) = known {
            known.forget();
        }
        Ok(Opened {
            name,
            unrecorded,
            seen: seen.unwrap_or_default(),
            ..opened
        })
    }

    /// The format of a folder in which all that completes a checkpoint is there. It reads no metadata if a file tells the format, except of what may be older than
    /// Megatron Core's `metadata.json`.
    pub async fn format_of(&self, store: &Arc<dyn Store>) -> Result<BackendVersion> {
        let registry = &*self.strategies()?;
        let formats = Formats::of(registry)?;
        if self.is_free() {
            let (named, is_older) = match MetadataJson::of(store).await? {
                Some(json) => (json.sharded(), false),
                None => {
                    let found = recognise(store, &formats).await?;
                    (found.format, found.older)
                }
            };
            let Some(format) = formats.all.iter().find(|f| f.key() == named) else {
                // Nobody knows what else it needs.
                return Ok(named);
            };
            let probes = format.info().probes.iter().copied().map(Name::new);
            let probes = probes.collect::<Result<_, _>>()?;
            if !is_older && !store.present(probes).await?.is_empty() {
                return Ok(named);
            }
        }
        // Where no one file tells the format, only whoever opens it knows what it needs.
        let opened = self.open_folder(Arc::clone(store), registry, &formats);
        Ok(opened.await?.name)
    }

    /// Whether the format is to be recognised.
    fn is_free(&self) -> bool {
        self.strategy.is_none() && self.format.is_none()
    }

    /// Asks for the files that tell nearly every checkpoint of the default format, in one round of requests.
    async fn known(&self, store: Arc<dyn Store>, formats: &Formats) -> Result<KnownStore> {
        let mut read = vec![
            (Name::new(METADATA_JSON)?, SMALL),
            (Name::new(SIDECAR)?, SMALL),
        ];
        if let Some(record) = record_of_default(formats) {
            read.push((Name::new(record)?, self.limits.max_whole));
        }
        Ok(KnownStore::of(store, &read, &[Name::new(COMMON)?]).await)
    }

    /// The format of a place of which a few files are known, if these tell it. Where requests are dear, no other format is asked then.
    async fn told(&self, known: Option<&KnownStore>, formats: &Formats) -> Option<BackendVersion> {
        let known = known?;
        // With common state, the save was never finished.
        if !known.lacks(&Name::new(COMMON).ok()?) {
            return None;
        }
        let note = Name::new(SIDECAR).ok().and_then(|name| known.bytes(&name));
        let note = note.and_then(|bytes| Sidecar::parse(&bytes).ok());
        let noted = note.as_ref().and_then(|note| note.format(formats));
        let record = Name::new(record_of_default(formats)?).ok()?;
        if known.bytes(&record).is_some() {
            return noted
                .is_none_or(|noted| noted == formats.default)
                .then(|| formats.default.clone());
        }
        // The note counts only beside the format record that it belongs to. The format reads that record, too.
        let noted = noted.filter(|_| known.lacks(&record))?;
        let (name, sha256) = note.as_ref()?.record()?;
        let bytes = known.learn(&name, self.limits.max_whole).await?;
        (hex(&Sha256::digest(&bytes)) == sha256).then_some(noted)
    }

    async fn open_as(
        &self,
        mut sharded: LoadShardedStrategy,
        cx: OpenCx,
        common: Option<Arc<dyn LoadCommonStrategy>>,
        formats: &Formats,
    ) -> Result<Opened> {
        let name = sharded.key();
        if sharded.common.is_some() {
            let what = "the checkpoint says which common strategy loads it; leave `common` out of the sharded strategy, and register yours";
            return Err(StrategyError::Invalid(what.into()));
        }
        sharded.common.clone_from(&common);
        let cx = cx.with_limits(self.limits);
        let reader = sharded.open(&cx).await?;
        let formats = formats.clone();
        let opened = Opened {
            store: cx.store,
            limits: cx.limits,
            sharded,
            reader,
            common,
            name,
            unrecorded: false,
            changed: None,
            kind: cx.kind,
            formats,
            seen: Seen::default(),
        };
        Ok(match opened.saved_over().await? {
            Some(other) => other,
            None => opened,
        })
    }

    /// What `metadata.json` names can't be read as another version. Another backend is refused by its strategy.
    fn as_named(&self, named: BackendVersion) -> Result<BackendVersion> {
        match &self.format {
            Some(format) if format.backend == named.backend && *format != named => {
                let what = format!(
                    "{METADATA_JSON} says that this is a checkpoint of {named}, so it can't be opened as {format}; don't choose a format"
                );
                Err(StrategyError::Invalid(what))
            }
            _ => Ok(named),
        }
    }

    /// The strategy of a format, with the settings that are for it.
    fn of_format(
        &self,
        registry: &Registry,
        format: &BackendVersion,
    ) -> Result<LoadShardedStrategy> {
        if let Some(strategy) = &self.settings {
            strategy.format.check()?;
            if strategy.key().backend == format.backend
                && strategy.check_compatibility(format).is_ok()
            {
                return Ok(strategy.clone());
            }
        }
        registry.load_sharded(format)
    }

    /// The strategy that the user has chosen, by settings or by name.
    fn chosen(&self, registry: &Registry) -> Result<Option<LoadShardedStrategy>> {
        let chosen = match (&self.strategy, &self.format) {
            (Some(strategy), _) => strategy.clone(),
            (None, Some(format)) => self.of_format(registry, format)?,
            (None, None) => return Ok(None),
        };
        match &self.format {
            Some(format)
                if *format != chosen.key() && chosen.check_compatibility(format).is_err() =>
            {
                let what = format!(
                    "the settings are of {}, so they can't open a checkpoint as {format}; give one of the two",
                    chosen.key()
                );
                Err(StrategyError::Invalid(what))
            }
            _ => Ok(Some(chosen)),
        }
    }
}

/// The format record by which the default format is recognised, if it is linked.
fn record_of_default(formats: &Formats) -> Option<&'static str> {
    let default = formats.all.iter().find(|f| f.key() == formats.default)?;
    default.info().probes.first().copied()
}

/// Whether a place without `metadata.json`, of which the user says that it has this format, may be older than that file.
async fn is_older(store: &Arc<dyn Store>, chosen: &LoadShardedStrategy) -> Result<bool> {
    let older =
        !chosen.info().probes_in_folders.is_empty() && !store.exists(&Name::new(SIDECAR)?).await?;
    Ok(older && reshard_megatron::is_unfinished(store).await?)
}

fn find_common(
    registry: &Registry,
    stored: &BackendVersion,
) -> Result<Arc<dyn LoadCommonStrategy>> {
    let common = registry.load_common(stored)?;
    common.check_compatibility(stored)?;
    Ok(common)
}

impl Opened {
    /// Loads the common state; empty where there is none.
    ///
    /// # Errors
    /// It is damaged, or can't be read.
    pub async fn common(&self) -> Result<ValueTree> {
        let Some(common) = &self.common else {
            return Ok(ValueTree::new());
        };
        let cx = OpenCx::new(Arc::clone(&self.store)).with_limits(self.limits);
        let cx = cx.with_dialect(Dialect::Megatron);
        common
            .load_common(&cx, &*self.reader)
            .await
            .map_err(|e| match e {
                // Its metadata says that it is a checkpoint, so a missing file means that a part of it is missing.
                StrategyError::NotACheckpoint { why, .. } => StrategyError::corrupt(
                    METADATA_JSON,
                    None,
                    format!(
                        "it names common state, but {}",
                        why.replace("it has", "there is")
                    ),
                ),
                e => e,
            })
    }

    /// The same as the checkpoint of another program, if one has saved over it. Descriptions that opening has not read are known only after a check.
    pub async fn saved_over(&self) -> Result<Option<Self>> {
        let rewritten = self.reader.rewritten();
        if rewritten.is_empty() || self.changed.is_some() {
            return Ok(None);
        }
        // A damaged one tells nothing, and a check reports it.
        let sidecar = self.own_sidecar().await.ok().flatten();
        let found = written::saved_over(&self.store, rewritten, sidecar.as_ref()).await?;
        if found.is_none() {
            return Ok(None);
        }
        let mut cx = OpenCx::new(Arc::clone(&self.store))
            .with_limits(self.limits)
            .with_dialect(self.reader.dialect())
            .with_kind(self.kind);
        cx.saved_over = true;
        Ok(Some(Self {
            reader: self.sharded.open(&cx).await?,
            changed: found,
            ..self.clone()
        }))
    }

    /// The sidecar, whether it belongs to the checkpoint or not.
    pub async fn own_sidecar(&self) -> Result<Option<Sidecar>> {
        Sidecar::own(&self.store, self.folder().as_ref(), &self.seen).await
    }

    /// The first file to which its sidecar belongs that is not there, or has changed.
    pub async fn differing(&self, sidecar: &Sidecar) -> Result<Option<String>> {
        sidecar
            .differing(&self.store, &self.formats, &self.seen)
            .await
    }

    /// The sidecar that belongs to it, or why there is none that counts.
    pub async fn sidecar(&self) -> (Option<Sidecar>, Option<String>) {
        if self.changed.is_some() {
            let why =
                format!("{SIDECAR} is ignored: another program has saved over the checkpoint");
            return (None, Some(why));
        }
        Sidecar::read(
            &self.store,
            &self.formats,
            self.folder().as_ref(),
            &self.seen,
        )
        .await
    }

    /// The folder of this version, if its data files lie in one: in a place that keeps versions side by side, or in a copy of one.
    pub fn folder(&self) -> Option<Name> {
        let (reader, metadata) = (&self.reader, self.reader.metadata());
        let chunks = metadata.tensors().flat_map(|t| t.chunks());
        let chunks = chunks.flat_map(|(id, _)| reader.locate_chunk(id));
        let objects = metadata.objects();
        let objects = objects.flat_map(|(id, _)| reader.locate_object(id));
        // All of them lie in one.
        let first = chunks.chain(objects).next()?;
        Name::new(attempt::folder_of(&first.file)?).ok()
    }

    /// Names of the files that hold its items.
    pub fn item_files(&self) -> BTreeSet<Name> {
        item_files(&*self.reader)
    }

    /// Whether a save of its format, or this crate, gives a file such a name. A record that names the file is not enough:
    /// it may be wrong, or made to have the file removed.
    pub fn owns(&self, name: &Name) -> bool {
        match attempt::in_folder(name.as_str()).map(Name::new) {
            Some(inside) => inside.is_ok_and(|name| {
                is_note(name.as_str()) || self.adds(&name) || self.reader.owns(&name)
            }),
            None => self.adds(name) || self.reader.owns(name),
        }
    }

    /// Whether this crate or the common strategy adds a file of such a name to checkpoints of every format.
    fn adds(&self, name: &Name) -> bool {
        match name.as_str() {
            name if is_sidecar(name) => true,
            _ => self
                .common
                .as_ref()
                .is_some_and(|c| c.owns(name) || reshard_megatron::owns(name)),
        }
    }

    /// The role of each file in its directory.
    pub async fn roles(&self) -> Result<Vec<(Entry, FileRole)>> {
        let noted = self.sidecar().await.0.map_or_else(Vec::new, |s| s.names());
        self.roles_by(&noted).await
    }

    /// The same, with the names of the files to which the sidecar belongs.
    pub async fn roles_by(&self, noted: &[String]) -> Result<Vec<(Entry, FileRole)>> {
        let items = self.item_files();
        let folder = self.folder();
        let role = |file: &Entry| {
            if items.contains(&file.name) {
                return FileRole::Items;
            }
            // In the folder of another version lies what that version needs. This one needs what lies in its own.
            if let Some(of) = attempt::folder_of(&file.name) {
                let is_own = folder.as_ref().is_some_and(|own| own.as_str() == of);
                return match (self.owns(&file.name), is_own) {
                    (true, true) => FileRole::Part,
                    (true, false) => FileRole::Leftover,
                    (false, _) => FileRole::Foreign,
                };
            }
            match self.reader.role(file) {
                // Files that this crate adds to every format.
                FileRole::Foreign
                    if self.adds(&file.name) || noted.iter().any(|n| n == file.name.as_str()) =>
                {
                    FileRole::Part
                }
                role => role,
            }
        };
        let files = self.files().await?.into_iter();
        let with_role = |file| {
            let role = role(&file);
            (file, role)
        };
        Ok(files.map(with_role).collect())
    }

    /// All files of the place. If nobody can list it, those that the metadata and their format name.
    pub async fn files(&self) -> Result<Vec<Entry>> {
        let usual = self.usual()?;
        let names = || self.item_files().into_iter().chain(usual).collect();
        Ok(self.store.files_or(names).await?)
    }

    /// The names that files without items usually have.
    fn usual(&self) -> Result<Vec<Name>> {
        let format = self.formats.all.iter().find(|f| f.key() == self.name);
        let probes = format
            .into_iter()
            .flat_map(|f| f.info().probes.iter().copied());
        let usual = [METADATA_JSON, COMMON, INTEGRITY, SIDECAR].into_iter();
        Ok(usual
            .chain(probes)
            .map(Name::new)
            .collect::<Result<_, _>>()?)
    }

    /// Fails if another version is there now. What the one that was opened lacks is then no damage.
    pub async fn not_replaced(&self) -> Result<()> {
        let usual = self.usual()?;
        let heads = join_all(usual.iter().map(|name| self.store.head(name)));
        let (top, heads) = join(self.store.top(), heads).await;
        let errors = heads.into_iter().filter_map(Result::err).chain(top.err());
        let replaced = errors
            .into_iter()
            .find(|e| matches!(e, StorageError::Replaced { .. }));
        replaced.map_or(Ok(()), |e| Err(e.into()))
    }
}
