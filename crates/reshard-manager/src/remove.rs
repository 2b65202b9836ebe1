//! Removes tensors and objects from a checkpoint: a new version beside the old one, and one step.

use bytes::Bytes;
use reshard_megatron::{COMMON_STATE_CELL, INTEGRITY, Integrity, METADATA_JSON};
use reshard_model::{Dialect, some};
use reshard_open::{
    Error, Result,
    attempt::attempt,
    explained, integrity,
    opened::{OpenOptions, Opened},
    replace::{Replaced, replace_opened},
    sidecar::{SIDECAR, Sidecar},
};
use reshard_storage::{
    Durability, Entry, FileBody, Name, Progress, StorageError, Store, Stores, Transaction,
};
use reshard_strategy::{
    BackendVersion, FileRole, ReadLimits, Records, Registry, Removal, StrategyError, hex,
};
use sha2::{Digest, Sha256};
use std::{
    collections::BTreeSet,
    fmt,
    future::{Future, IntoFuture},
    pin::Pin,
    sync::Arc,
};

const ACT: &str = "removing sharded tensors from";

/// Removes all tensors and objects whose key starts with `prefix`: Megatron Core's function of the same name, for any checkpoint whose
/// format can do it. Await the result, or set options on it first.
///
/// The new version is built beside the old one, and put into its place by one step, as in a save that overwrites. Files of which nothing is
/// left are not in it. All other data files are not written again: a local directory gets a hard link of each. Megatron Core needs the
/// setting `separation_hint` of the save, so that the data of the prefix lie in files of their own. Here any prefix will do; but a file that
/// also has something else keeps its length.
///
/// ```
/// # use reshard::{ShardedTensor, StateDict, Tensor};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let url = dir.path().join("step-1000").display().to_string();
/// # let mut state = StateDict::new();
/// for key in ["model.w", "optimizer.state.exp_avg.w"] {
///     state.insert(key, ShardedTensor::full(key, Tensor::from_vec(&[2], vec![1f32, 2.])?));
/// }
/// let config = reshard::torch_dist::TorchDistConfig::new().with_separation_hint("optimizer.");
/// reshard::blocking::run(reshard::save(&state, &url).strategy(config))?;
/// let removed = reshard::blocking::run(reshard_manager::remove_sharded_tensors(&url, "optimizer."))?;
/// assert_eq!(removed.keys, ["optimizer.state.exp_avg.w"]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// There is no checkpoint, or a damaged one; its format can't do it; the prefix is empty; it is that of common state; I/O. After an error
/// the old checkpoint is there, except after [`NotDurable`](reshard_storage::StorageError::NotDurable) and
/// [`NotCarried`](reshard_storage::StorageError::NotCarried): then it is the new one.
pub fn remove_sharded_tensors(
    place: impl AsRef<std::path::Path>,
    prefix: &str,
) -> RemoveShardedTensors<'_> {
    RemoveShardedTensors {
        url: reshard_open::place_text(place),
        prefix,
        durability: Durability::default(),
        dry_run: false,
        open: OpenOptions::default(),
    }
}

/// A removal with its options; made by [`remove_sharded_tensors`].
#[derive(Debug, derive_setters::Setters)]
#[setters(generate = false)]
#[must_use = "nothing is removed until this is awaited"]
pub struct RemoveShardedTensors<'a> {
    url: String,
    prefix: &'a str,
    /// What the finished removal survives. By default it survives a crash of the machine.
    #[setters(generate)]
    durability: Durability,
    /// Whether to remove nothing and only say what would be removed.
    #[setters(generate)]
    dry_run: bool,
    open: OpenOptions,
}

/// What was removed, or what would be removed without `dry_run`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Removed {
    /// The keys of tensors, and the unique keys of objects. If there are none, the checkpoint has not changed.
    pub keys: Vec<String>,
    /// Files that are gone: data files in which nothing is left, and files of older saves.
    pub files: Vec<Entry>,
    /// Data files that stay, with their lengths, also if something in them was removed.
    pub kept: Vec<Entry>,
}

/// One line: `removed 12 keys and 2 files`.
impl fmt::Display for Removed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys = some(self.keys.len() as u64, "key");
        let files = some(self.files.len() as u64, "file");
        write!(f, "removed {keys} and {files}")
    }
}

impl RemoveShardedTensors<'_> {
    reshard_open::open_options!(open);

    async fn run(&self) -> Result<Removed, StrategyError> {
        let store = self.open.store_at(&self.url)?;
        let store = store.resolved().await?.unwrap_or(store);
        let opened = self.open.open_store(Arc::clone(&store)).await?;
        self.refuse(&opened)?;
        let removal = opened.reader.without(self.prefix).await?;
        if removal.keys.is_empty() {
            tracing::warn!(
                prefix = self.prefix,
                "no key starts with this prefix, so nothing is removed"
            );
            return Ok(Removed::default());
        }
        let registry = self.open.strategies()?;
        let replaced = replace_opened(&store, &registry, &self.open).await?;
        let next = Next::of(&opened, removal, &replaced).await?;
        if self.dry_run {
            return Ok(next.removed);
        }
        let transaction = store.begin(&attempt(), replaced.if_exists).await?;
        let written = match transaction.folder() {
            None => next.commit(&opened, &*transaction, self.durability).await,
            Some(_) => Err(StorageError::Unsupported {
                what: "removing keys".into(),
                why: "this place keeps versions side by side, and a new version would need copies of all data files; convert what is to \
                      stay to another place"
                    .into(),
            }
            .into()),
        };
        if written.is_err()
            && let Err(e) = transaction.rollback().await
        {
            tracing::warn!(error = %e, url = self.url, "what a failed removal wrote could not be removed");
        }
        written
    }

    fn refuse(&self, opened: &Opened) -> Result<(), StrategyError> {
        let invalid = |what: String| Err(StrategyError::Invalid(what));
        if self.prefix.is_empty() {
            return invalid(
                "all keys start with an empty prefix; name the beginning of those that are to go"
                    .into(),
            );
        }
        let common = opened.reader.metadata().object(COMMON_STATE_CELL);
        if common.is_some()
            && opened.reader.dialect() == Dialect::Megatron
            && COMMON_STATE_CELL.starts_with(self.prefix)
        {
            return invalid(format!(
                "{COMMON_STATE_CELL} is the common state, without which the checkpoint can't be loaded; name a longer prefix"
            ));
        }
        Ok(())
    }
}

/// The new version.
struct Next {
    removed: Removed,
    /// Files that stay as they are.
    copies: Vec<Name>,
    records: Vec<(Name, Bytes)>,
    /// The commit record.
    last: Option<(Name, Bytes)>,
}

impl Next {
    async fn of(
        opened: &Opened,
        removal: Removal,
        replaced: &Replaced,
    ) -> Result<Self, StrategyError> {
        let Removal {
            keys,
            keeps,
            goes,
            records: Records {
                mut files, commit, ..
            },
            ..
        } = removal;
        let mut last = commit;
        let noted = match opened.sidecar().await {
            (Some(old), _) => Sidecar::of(last.as_ref(), &files).map(|new| (old, new)),
            (None, _) => None,
        };
        // Its bytes name the strategies, and nothing of what was removed.
        let json = Name::new(METADATA_JSON)?;
        if opened.reader.dialect() == Dialect::Megatron
            && let Some(bytes) = opened.limits.read(&opened.store, &json).await?
        {
            files.extend(last.replace((json, bytes)));
        }

        let items = opened.item_files();
        let [keeps, goes] = [keeps, goes].map(BTreeSet::from_iter);
        let mut removed = Removed {
            keys,
            ..Removed::default()
        };
        let new: BTreeSet<&Name> = files.iter().chain(&last).map(|(name, _)| name).collect();
        let rewritten =
            |name: &Name| new.contains(name) || [SIDECAR, INTEGRITY].contains(&name.as_str());
        // What the place keeps in any case is not written.
        let stays: BTreeSet<&Name> = replaced.stays.iter().collect();
        let mut copies = Vec::new();
        for (file, role) in opened.roles().await? {
            let (is_data, stays) = (keeps.contains(&file.name), stays.contains(&file.name));
            let is_part =
                role == FileRole::Part && !items.contains(&file.name) && !goes.contains(&file.name);
            if rewritten(&file.name) || role == FileRole::Foreign {
                continue;
            }
            if (is_part || is_data) && !stays {
                copies.push(file.name.clone());
            }
            if is_data {
                removed.kept.push(file);
            } else if !is_part && !stays {
                removed.files.push(file);
            }
        }
        if let Some((old, new)) = noted {
            let json = last
                .as_ref()
                .filter(|(name, _)| name.as_str() == METADATA_JSON);
            let sidecar = old.without(new, json, &copies);
            files.push((Name::new(SIDECAR)?, sidecar.to_bytes()));
        }
        Ok(Self {
            removed,
            copies,
            records: files,
            last,
        })
    }

    async fn commit(
        mut self,
        opened: &Opened,
        transaction: &dyn Transaction,
        durability: Durability,
    ) -> Result<Removed, StrategyError> {
        if let Some(integrity) = self.integrity(&opened.store).await? {
            self.records.push((Name::new(INTEGRITY)?, integrity));
        }
        let copy = |name: Name| FileBody::copy_of(name.clone(), Arc::clone(&opened.store), name);
        let record = |(name, bytes)| FileBody::from_bytes(name, bytes);
        let bodies = self.copies.into_iter().map(copy);
        let bodies = bodies.chain(self.records.into_iter().map(record));
        let written = transaction.write(bodies.collect(), durability, Progress::none());
        let files: Vec<Entry> = written.await?.iter().map(|w| w.entry()).collect();
        transaction.commit(self.last, &files, durability).await?;
        Ok(self.removed)
    }

    /// The new `integrity.json`, if there was one: the digests of files that stay are those that it had.
    async fn integrity(&self, store: &Arc<dyn Store>) -> Result<Option<Bytes>, StrategyError> {
        let Some(old) = Integrity::of(store).await? else {
            return Ok(None);
        };
        let known = |name: &&Name| old.get(name.as_str()).map(str::to_owned);
        let copies = self.copies.iter();
        let copies = copies.filter_map(|name| Some((name, known(&name)?)));
        let digest = |bytes: &Bytes| hex(&Sha256::digest(bytes));
        let records = self.records.iter();
        let records = records.map(|(name, bytes)| (name, digest(bytes)));
        let manifest = integrity::manifest(copies.chain(records), self.last.as_ref());
        Ok(Some(manifest.to_bytes()))
    }
}

impl<'a> IntoFuture for RemoveShardedTensors<'a> {
    type Output = Result<Removed>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            match self.run().await {
                Ok(removed) => Ok(removed),
                Err(e) => {
                    let e = Error::new(ACT, &self.url, e);
                    Err(explained(&self.open, &self.url, e).await)
                }
            }
        })
    }
}
