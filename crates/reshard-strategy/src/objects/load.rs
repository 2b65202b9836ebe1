use super::{join, nobody, part};
use crate::{
    BackendVersion, BoxVerifier, Capabilities, CheckedItems, ElementChecksum, FileRole,
    LoadCommonStrategy, LoadCx, LoadFailure, LoadShardedStrategy, Loaded, OpenCx, Producer, ReadCx,
    ReadObject, ReadTensor, ReaderHooks, Removal, Result, Rewritten, StorageInfo, StorageReader,
    StrategyError, Traffic, VerifyReport, VerifyRun, agree,
    pipeline::{judge, load_in, load_planned},
};
use async_trait::async_trait;
use reshard_comm::CommError;
use reshard_model::{Dialect, FlatStateDict, ObjectCodec, Path, Payload, ShardedObject};
use reshard_plan::{ChunkId, Metadata, ObjectId};
use reshard_storage::{Entry, Name, Progress, StoreExt};
use std::{any::Any, collections::BTreeSet, sync::Arc};

/// The common strategy that loads objects, if the format loads none and it can.
fn able(strategy: &LoadShardedStrategy) -> Option<&Arc<dyn LoadCommonStrategy>> {
    let common = strategy.common.as_ref();
    common.filter(|c| !strategy.info().loads_objects && c.can_handle_sharded_objects())
}

/// Adds the objects of the common strategy to a reader, if the format has none.
pub(crate) async fn open(
    strategy: &LoadShardedStrategy,
    base: Arc<dyn StorageReader>,
    cx: &OpenCx,
) -> Result<Arc<dyn StorageReader>> {
    let Some(common) = able(strategy) else {
        return Ok(base);
    };
    let objects = common.load_sharded_metadata(cx).await?;
    let keys: Vec<String> = objects.iter().map(ShardedObject::unique_key).collect();
    let metadata = base.metadata();
    let metadata = Arc::new(metadata.with_objects(keys.iter().map(String::as_str))?);
    Ok(Arc::new(Reader {
        base,
        common: Arc::clone(common),
        cx: cx.clone(),
        metadata,
        objects,
    }))
}

/// Loads objects with the common strategy, and then tensors with the format. If neither loads objects, a load fails only if its template
/// has objects.
pub(crate) async fn load(
    strategy: &LoadShardedStrategy,
    template: FlatStateDict,
    from: Arc<dyn StorageReader>,
    cx: &LoadCx<'_>,
) -> Result<Loaded, Box<LoadFailure>> {
    let paths: Vec<Path> = template.keys().cloned().collect();
    let (objects, tensors) = part(template);
    // Objects come first: they are small, and their errors are reported before tensors are read.
    let objects = match load_objects(strategy, objects, &*from, cx).await {
        Ok(loaded) => loaded,
        Err(failure) => {
            let template = join(&paths, failure.template, tensors);
            let error = of_both(strategy, failure.error, &template, &*from, cx).await;
            return Err(Box::new(LoadFailure {
                error,
                template,
                decided: failure.decided,
            }));
        }
    };
    let any: &dyn Any = &*from;
    let base = any
        .downcast_ref::<Reader>()
        .map_or_else(|| Arc::clone(&from), |r| Arc::clone(&r.base));
    let mut cx = cx.clone();
    cx.elsewhere.objects |= able(strategy).is_some();
    match load_in(&strategy.layers, tensors, base, &cx).await {
        Ok(tensors) => Ok(both(&paths, objects, tensors)),
        Err(failure) => Err(Box::new(LoadFailure {
            error: failure.error,
            template: join(&paths, objects.state, failure.template),
            decided: failure.decided.map(|decided| decided + objects.decided),
        })),
    }
}

/// Fills the objects of a template.
async fn load_objects(
    strategy: &LoadShardedStrategy,
    objects: FlatStateDict,
    from: &dyn StorageReader,
    cx: &LoadCx<'_>,
) -> Result<Loaded, Box<LoadFailure>> {
    if able(strategy).is_some() {
        let mut cx = cx.clone();
        cx.elsewhere.tensors = true;
        cx.kept_plan = cx.kept_plan.map(|kept| kept.of_objects());
        return load_planned(objects, from, &cx).await;
    }
    let needed = objects.values().find(|leaf| !leaf.is_optional());
    let asked = match needed {
        Some(leaf) => {
            let common = strategy.common.as_ref().map(|c| c.key());
            Err(nobody(
                "loading",
                &leaf.unique_key(),
                None,
                &strategy.key(),
                common.as_ref(),
            ))
        }
        None => Ok(()),
    };
    match agree(&cx.comm, "plan", asked).await {
        Ok(()) => {
            let keys = objects.values().map(|leaf| leaf.unique_key().into());
            let not_stored = keys.collect();
            let mut loaded = Loaded::new(objects);
            loaded.notes.not_stored = not_stored;
            Ok(loaded)
        }
        Err(error) => Err(Box::new(LoadFailure::of_plan(error, objects))),
    }
}

/// The error of a load whose objects can't be planned. All ranks have it. It includes the errors of the tensors, which are planned only now.
async fn of_both(
    strategy: &LoadShardedStrategy,
    error: StrategyError,
    template: &FlatStateDict,
    from: &dyn StorageReader,
    cx: &LoadCx<'_>,
) -> StrategyError {
    let planned = matches!(
        &error,
        StrategyError::Comm(CommError::Ranks { step: "plan", .. })
    );
    if !planned || able(strategy).is_none() {
        return error;
    }
    let mut cx = cx.clone();
    cx.kept_plan = None;
    judge(template, from, &cx).await.err().unwrap_or(error)
}

/// Merges the two results.
fn both(paths: &[Path], objects: Loaded, tensors: Loaded) -> Loaded {
    let (mut notes, theirs) = (tensors.notes, objects.notes);
    notes.not_stored.extend(theirs.not_stored);
    notes.not_requested.extend(theirs.not_requested);
    notes.casts.extend(theirs.casts);
    let mut totals = tensors.totals;
    totals += objects.totals;
    Loaded {
        state: join(paths, objects.state, tensors.state),
        notes,
        totals,
        decided: objects.decided + tensors.decided,
        moved: objects.moved + tensors.moved,
        exchange: objects.exchange + tensors.exchange,
    }
}

/// A reader of a checkpoint that also has the objects of the common strategy.
#[derive(Debug)]
struct Reader {
    base: Arc<dyn StorageReader>,
    common: Arc<dyn LoadCommonStrategy>,
    cx: OpenCx,
    metadata: Arc<Metadata>,
    /// Without data. Their numbers follow those of the objects of `base`.
    objects: Vec<ShardedObject>,
}

impl Reader {
    /// The number of an object among those of the common strategy. `None` if the object belongs to `base`.
    fn of_common(&self, object: ObjectId) -> Option<usize> {
        (object.0 as usize).checked_sub(self.base.metadata().object_count())
    }

    async fn read(&self, objects: Vec<ShardedObject>) -> Result<Vec<Payload>> {
        let keys: Vec<String> = objects.iter().map(ShardedObject::unique_key).collect();
        let read = self.common.load_sharded_objects(objects, &self.cx).await?;
        let wrong = |what| StrategyError::Internal(format!("{}: {what}", self.common.key()));
        if !read.iter().map(ShardedObject::unique_key).eq(keys) {
            return Err(wrong(
                "other objects were loaded than were asked for".to_owned(),
            ));
        }
        let data = read.into_iter().map(|o| match o.data {
            Payload::Value(value) => Ok(Payload::Value(value)),
            _ => Err(wrong(format!("{} was not loaded as a value", o.key))),
        });
        data.collect()
    }
}

impl ReaderHooks for Reader {
    fn plan_settings(&self) -> Option<String> {
        Some(String::new())
    }
}

#[async_trait]
impl StorageReader for Reader {
    fn key(&self) -> BackendVersion {
        self.base.key()
    }

    fn metadata(&self) -> &Arc<Metadata> {
        &self.metadata
    }

    fn dialect(&self) -> Dialect {
        self.base.dialect()
    }

    fn locate_chunk(&self, chunk: ChunkId) -> Vec<StorageInfo> {
        self.base.locate_chunk(chunk)
    }

    fn locate_object(&self, object: ObjectId) -> Vec<StorageInfo> {
        if self.of_common(object).is_some() {
            Vec::new()
        } else {
            self.base.locate_object(object)
        }
    }

    fn codec(&self) -> Arc<dyn ObjectCodec> {
        self.base.codec()
    }

    fn producer(&self) -> Producer {
        self.base.producer()
    }

    fn not_understood(&self) -> Vec<String> {
        self.base.not_understood()
    }

    fn why_not(&self, key: &str) -> Option<String> {
        self.base.why_not(key)
    }

    fn lacks(&self, key: &str) -> Option<String> {
        self.base.lacks(key)
    }

    fn permits(&self, key: &str) -> Result<()> {
        self.base.permits(key)
    }

    fn owns(&self, name: &Name) -> bool {
        self.base.owns(name) || self.common.owns_object(name)
    }

    fn role(&self, file: &Entry) -> FileRole {
        match self.base.role(file) {
            FileRole::Foreign if self.common.owns_object(&file.name) => FileRole::Part,
            role => role,
        }
    }

    fn is_whole(&self) -> Result<(), String> {
        self.base.is_whole()
    }

    fn rewritten(&self) -> Vec<Rewritten> {
        self.base.rewritten()
    }

    fn is_rank_local(&self) -> bool {
        self.base.is_rank_local()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            objects: |_, _| true,
            ..self.base.capabilities()
        }
    }

    fn reads_columns_together(&self) -> bool {
        self.base.reads_columns_together()
    }

    async fn element_checksums(&self, chunks: &[ChunkId]) -> Result<Vec<Option<ElementChecksum>>> {
        self.base.element_checksums(chunks).await
    }

    fn shared_elements(&self, chunk: ChunkId) -> Option<String> {
        self.base.shared_elements(chunk)
    }

    async fn read_tensors(&self, reads: Vec<ReadTensor>, cx: &ReadCx<'_>) -> Result<Traffic> {
        self.base.read_tensors(reads, cx).await
    }

    async fn read_objects(&self, reads: &[ReadObject], cx: &ReadCx<'_>) -> Result<Vec<Payload>> {
        let (mut theirs, mut objects) = (Vec::new(), Vec::new());
        for read in reads {
            match self.of_common(read.object) {
                None => theirs.push(*read),
                Some(n) => {
                    let unknown =
                        || StrategyError::Internal(format!("there is no object {}", read.object.0));
                    objects.push(self.objects.get(n).ok_or_else(unknown)?.clone());
                }
            }
        }
        let mut objects = if objects.is_empty() {
            Vec::new()
        } else {
            self.read(objects).await?
        }
        .into_iter();
        if theirs.is_empty() {
            return Ok(objects.collect());
        }
        // The results of the two are merged back into the order of the reads.
        let mut theirs = self.base.read_objects(&theirs, cx).await?.into_iter();
        let next = |read: &ReadObject| match self.of_common(read.object) {
            None => theirs.next(),
            Some(_) => objects.next(),
        };
        Ok(reads.iter().filter_map(next).collect())
    }

    fn covers(&self, file: &Name) -> bool {
        self.base.covers(file)
    }

    async fn without(&self, prefix: &str) -> Result<Removal> {
        let mut removal = self.base.without(prefix).await?;
        // Each object has a file of its own, which is kept or not.
        let gone = (self.objects.iter()).filter(|o| o.unique_key().starts_with(prefix));
        let gone: Vec<&ShardedObject> = gone.collect();
        let files: BTreeSet<String> = (gone.iter())
            .flat_map(|object| self.common.names_of_object(object))
            .collect();
        for file in self.cx.store.files().await? {
            if !self.common.owns_object(&file.name) {
                continue;
            }
            let name = file.name.as_str().rsplit_once('.').map(|(name, _)| name);
            match name.is_some_and(|name| files.contains(name)) {
                true => removal.goes.push(file.name),
                false => removal.keeps.push(file.name),
            }
        }
        let keys: BTreeSet<String> = gone.iter().map(|object| object.unique_key()).collect();
        removal.keys.extend(keys);
        Ok(removal)
    }

    async fn verifier<'r>(&'r self, run: &mut VerifyRun<'r>) -> Result<BoxVerifier<'r>> {
        self.base.verifier(run).await
    }

    async fn verify_items(
        &self,
        items: &CheckedItems,
        progress: &Progress,
    ) -> Result<VerifyReport> {
        let mut report = self.base.verify_items(items, progress).await?;
        // Without a checksum of their own, all of them are read in any case unless a sample leaves them out.
        let first = self.base.metadata().object_count() as u32;
        for (id, object) in (first..).map(ObjectId).zip(&self.objects) {
            report.items += 1;
            if matches!(items, CheckedItems::Some { .. }) && !items.has_object(id) {
                continue;
            }
            if let Err(e) = self.read(vec![object.clone()]).await {
                report.add_error(Some(&object.unique_key()), &e);
            }
        }
        Ok(report)
    }
}
