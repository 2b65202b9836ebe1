//! Finds the strategies for the checkpoint at a URL, for loads and for [`Checkpoint`](crate::Checkpoint).

use crate::{
    formats::Formats,
    recognise::{is_no_folder, no_format_of_files, noted_other, recognise, recognise_part},
    sidecar::{SIDECAR, Sidecar, is_sidecar},
};
use reshard_megatron::{METADATA_JSON, MetadataJson};
use reshard_model::{Dialect, ValueTree};
use reshard_storage::{Entry, Name, PlaceKind, Store, StoreExt, Stores};
use reshard_strategy::{
    BackendVersion, FileRole, LoadCommonStrategy, LoadShardedConfig, LoadShardedStrategy, OpenCx,
    ReadLimits, Registry, StorageReader, StrategyError, load_with_objects,
};
use std::{collections::BTreeSet, sync::Arc};

type Result<T, E = StrategyError> = std::result::Result<T, E>;

/// How to open.
#[derive(Debug, Default)]
pub(crate) struct HowToOpen {
    pub(crate) registry: Option<Registry>,
    pub(crate) stores: Option<Stores>,
    pub(crate) config: Option<Box<dyn LoadShardedConfig>>,
    /// Settings for checkpoints of its format, which others don't need.
    pub(crate) settings: Option<Box<dyn LoadShardedConfig>>,
    pub(crate) format: Option<BackendVersion>,
    pub(crate) limits: ReadLimits,
}

/// The options of opening, for the builders that open a checkpoint. Each builder has a field `how`.
macro_rules! options {
    () => {
        /// The registry of strategies to choose from; by default the linked strategies.
        pub fn registry(mut self, registry: Registry) -> Self {
            self.how.registry = Some(registry);
            self
        }

        /// The stores in which to look up the URL; by default the linked stores.
        pub fn stores(mut self, stores: Stores) -> Self {
            self.how.stores = Some(stores);
            self
        }

        /// Sets the format, instead of recognising it by the files. If there are settings of a strategy, these set their
        /// format too.
        pub fn format(mut self, format: BackendVersion) -> Self {
            self.how.format = Some(format);
            self
        }

        /// Limits on what the checkpoint may ask for; see [`ReadLimits`].
        pub fn limits(mut self, limits: ReadLimits) -> Self {
            self.how.limits = limits;
            self
        }
    };
}
pub(crate) use options;

/// An open checkpoint, of which no tensor is loaded.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) limits: ReadLimits,
    pub(crate) sharded: Arc<dyn LoadShardedStrategy>,
    pub(crate) reader: Arc<dyn StorageReader>,
    /// Only Megatron Core's checkpoints have it.
    pub(crate) common: Option<Arc<dyn LoadCommonStrategy>>,
    pub(crate) name: BackendVersion,
    formats: Formats,
}

impl HowToOpen {
    pub(crate) fn store(&self, url: &str) -> Result<Arc<dyn Store>> {
        Ok(match &self.stores {
            Some(s) => s.open(url)?,
            None => Stores::linked()?.open(url)?,
        })
    }

    pub(crate) async fn open(&self, url: &str) -> Result<Opened> {
        self.open_store(self.store(url)?).await
    }

    pub(crate) async fn open_store(&self, store: Arc<dyn Store>) -> Result<Opened> {
        let linked;
        let registry = match &self.registry {
            Some(r) => r,
            None => {
                linked = Registry::linked()?;
                &linked
            }
        };
        let formats = Formats::of(registry)?;
        match self
            .open_folder(Arc::clone(&store), registry, &formats)
            .await
        {
            Err(e) if is_no_folder(&e) => self.open_part(&store, registry, &formats, e).await,
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
        e: StrategyError,
    ) -> Result<Opened> {
        for kind in [PlaceKind::File, PlaceKind::Prefix] {
            let chosen = self.chosen(registry)?;
            let lives = match &chosen {
                Some(chosen) => chosen.lives_in(kind),
                // For a file the error also says that no format reads it.
                None => kind == PlaceKind::File || !formats.of_kind(kind).0.is_empty(),
            };
            if !lives {
                continue;
            }
            let Some(part) = store.of_kind(kind) else {
                continue;
            };
            let part = part.pinned().await?.unwrap_or(part);
            let top = part.top().await?;
            if top.is_empty() {
                continue;
            }
            let sharded = match chosen {
                Some(chosen) => chosen,
                None => match recognise_part(formats, kind, &top, &part)? {
                    Some(name) => self.of_format(registry, &name)?,
                    // Files whose names begin like the URL may have nothing to do with it.
                    None if kind == PlaceKind::Prefix => continue,
                    None => return Err(no_format_of_files(formats, &part)),
                },
            };
            return self
                .open_as(sharded, part, Dialect::Dcp, None, formats)
                .await;
        }
        Err(e)
    }

    async fn open_folder(
        &self,
        store: Arc<dyn Store>,
        registry: &Registry,
        formats: &Formats,
    ) -> Result<Opened> {
        // While somebody replaces the checkpoint, all reads still see the version of one save.
        let store = store.pinned().await?.unwrap_or(store);
        let json = MetadataJson::of(&store).await?;
        let chosen = self.chosen(registry)?;
        let of_common = match (&json, &chosen) {
            (Some(json), _) => Some(json.common()),
            // Megatron Core wrote such checkpoints before it had `metadata.json`.
            (None, Some(chosen)) if is_older(&store, &**chosen).await? => {
                Some(BackendVersion::new("torch", 1))
            }
            (None, _) => None,
        };
        let dialect = match of_common {
            Some(_) => Dialect::Megatron,
            None => Dialect::Dcp,
        };
        let common = of_common
            .map(|common| find_common(registry, &common))
            .transpose()?;
        let name = match (json, &chosen) {
            (Some(json), _) => self.as_named(json.sharded())?,
            (None, None) => recognise(&store, formats).await?,
            // Settings do not choose another format, and a choice of a format does not choose another version.
            (None, Some(chosen)) => match noted_other(&store, &chosen.key(), formats).await {
                Some(noted) if self.format.is_none() || noted.backend == chosen.key().backend => {
                    noted
                }
                _ => chosen.key(),
            },
        };
        let sharded = match chosen {
            Some(chosen) => chosen,
            None => self.of_format(registry, &name)?,
        };
        sharded.check_compatibility(&name)?;
        let opened = self
            .open_as(sharded, store, dialect, common, formats)
            .await?;
        Ok(Opened { name, ..opened })
    }

    async fn open_as(
        &self,
        sharded: Arc<dyn LoadShardedStrategy>,
        store: Arc<dyn Store>,
        dialect: Dialect,
        common: Option<Arc<dyn LoadCommonStrategy>>,
        formats: &Formats,
    ) -> Result<Opened> {
        let (name, sharded) = (sharded.key(), load_with_objects(sharded, common.clone()));
        let cx = OpenCx::new(store)
            .with_limits(self.limits)
            .with_dialect(dialect);
        let reader = sharded.open(&cx).await?;
        let formats = formats.clone();
        Ok(Opened {
            store: cx.store,
            limits: cx.limits,
            sharded,
            reader,
            common,
            name,
            formats,
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
    ) -> Result<Arc<dyn LoadShardedStrategy>> {
        if let Some(settings) = &self.settings {
            let strategy = settings.build()?;
            if strategy.key().backend == format.backend
                && strategy.check_compatibility(format).is_ok()
            {
                return Ok(strategy);
            }
        }
        registry.load_sharded(format)?.build()
    }

    /// The strategy that the user has chosen, by settings or by name.
    fn chosen(&self, registry: &Registry) -> Result<Option<Arc<dyn LoadShardedStrategy>>> {
        let chosen = match (&self.config, &self.format) {
            (Some(config), _) => config.build()?,
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

/// Whether a place without `metadata.json`, of which the user says that it has this format, may be older than that file.
async fn is_older(store: &Arc<dyn Store>, chosen: &dyn LoadShardedStrategy) -> Result<bool> {
    let older =
        !chosen.probes_in_folders().is_empty() && !store.exists(&Name::new(SIDECAR)?).await?;
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
    pub(crate) async fn common(&self) -> Result<ValueTree> {
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

    pub(crate) async fn sidecar(&self) -> (Option<Sidecar>, Option<String>) {
        Sidecar::read(&self.store, &self.formats).await
    }

    /// Names of the files that hold its items.
    pub(crate) fn item_files(&self) -> BTreeSet<Name> {
        let (reader, metadata) = (&self.reader, self.reader.metadata());
        let chunks = metadata
            .tensors()
            .flat_map(|t| t.chunks())
            .flat_map(|(id, _)| reader.locate_chunk(id));
        let objects = metadata
            .objects()
            .flat_map(|(id, _)| reader.locate_object(id));
        chunks.chain(objects).map(|p| p.file).collect()
    }

    /// Whether a save of its format, or this crate, gives a file such a name. A record that names the file is not enough:
    /// it may be wrong, or made to have the file removed.
    pub(crate) fn owns(&self, name: &Name) -> bool {
        self.adds(name) || self.reader.owns(name)
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
    pub(crate) async fn roles(&self) -> Result<Vec<(Entry, FileRole)>> {
        let items = self.item_files();
        let noted = self.sidecar().await.0.map_or_else(Vec::new, |s| s.names());
        let role = |file: &Entry| {
            if items.contains(&file.name) {
                return FileRole::Items;
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
        Ok(self
            .store
            .files()
            .await?
            .into_iter()
            .map(|file| (role(&file), file))
            .map(|(r, f)| (f, r))
            .collect())
    }
}
