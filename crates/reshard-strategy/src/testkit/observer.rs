use crate::{
    BackendVersion, BoxVerifier, Capabilities, CheckedItems, ElementChecksum, FileLayout, FileRole,
    FinishCx, Footprint, FormatInfo, LoadFormat, OpenCx, PolicyUse, Producer, ReadCx, ReadObject,
    ReadTensor, ReaderHooks, Records, Removal, Resolve, Result, Rewritten, SaveCx, SaveFormat,
    StorageInfo, StorageReader, StorageWriter, Traffic, VerifyReport, VerifyRun, WriteData,
    WriterHooks,
};
use async_trait::async_trait;
use bytes::Bytes;
use reshard_model::{
    BoxError, Dialect, FlatStateDict, ObjectCodec, Payload, ShardedTensor, Tensor, Value,
};
use reshard_plan::{
    ChunkId, Declared, Destination, LoadContext, LoadPlan, LoadPlanner, Metadata, ObjectId, Offer,
    PlanError, ReadItem, SaveContext, SavePlan, SavePlanner, WriteItem,
};
use reshard_policy::{PolicyMetrics, ShardingPolicy};
use reshard_storage::{Entry, Extent, Length, Name, Progress, Source};
use serde_json::Value as Json;
use std::{fmt, io, sync::Arc};

type Listen = dyn Fn(&'static str) -> Result<(), BoxError> + Send + Sync;

/// Hears the name of each hook before it is called, such as `planner.finish_plan` or `writer.layout`. An error of it becomes the
/// error of the hook, and a panic a panic of it.
#[derive(Clone)]
pub struct Observer(Arc<Listen>);

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Observer")
    }
}

impl Observer {
    /// Calls `listen` before each hook.
    pub fn new(
        listen: impl Fn(&'static str) -> Result<(), BoxError> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(listen))
    }

    /// Around a planner, an `Arc<dyn SaveFormat>` with its writers, or an `Arc<dyn LoadFormat>` with its readers.
    pub fn on<T>(&self, inner: T) -> Observed<T> {
        Observed {
            inner,
            observer: self.clone(),
        }
    }

    fn hear(&self, hook: &'static str) -> Result<(), BoxError> {
        (self.0)(hook)
    }

    fn plan(&self, hook: &'static str) -> Result<(), PlanError> {
        self.hear(hook).map_err(PlanError::planner)
    }

    fn format(&self, hook: &'static str) -> Result<()> {
        Ok(self.plan(hook)?)
    }

    fn quietly(&self, hook: &'static str) {
        // These hooks can't fail.
        drop(self.hear(hook));
    }
}

/// Something with a [`Observer`] on its hooks; made by [`Observer::on`]. A planner with another offer is the inner one's, without the observer.
#[derive(Clone, Debug)]
pub struct Observed<T> {
    inner: T,
    observer: Observer,
}

#[deny(clippy::missing_trait_methods)]
impl<P: SavePlanner> SavePlanner for Observed<P> {
    fn name(&self) -> &'static str {
        std::any::type_name::<Self>()
    }

    fn base(&self) -> &dyn SavePlanner {
        &self.inner
    }

    fn plan_settings(&self) -> Option<String> {
        self.inner.plan_settings()
    }

    fn with_offer(&self, offer: Offer) -> Option<Arc<dyn SavePlanner>> {
        self.inner.with_offer(offer)
    }

    fn set_up(&self, state: &mut FlatStateDict, cx: &SaveContext<'_>) -> Result<(), PlanError> {
        self.observer.plan("planner.set_up")?;
        self.inner.set_up(state, cx)
    }

    fn create_local_plan(
        &self,
        state: &FlatStateDict,
        cx: &SaveContext<'_>,
    ) -> Result<SavePlan, PlanError> {
        self.observer.plan("planner.create_local_plan")?;
        self.inner.create_local_plan(state, cx)
    }

    fn validates(&self) -> bool {
        self.inner.validates()
    }

    fn validate(&self, ranks: &[Arc<Declared>]) -> Result<(), PlanError> {
        self.observer.plan("planner.validate")?;
        self.inner.validate(ranks)
    }

    fn create_global_plan(
        &self,
        plans: Vec<SavePlan>,
    ) -> Result<(Vec<SavePlan>, Metadata), PlanError> {
        self.observer.plan("planner.create_global_plan")?;
        self.inner.create_global_plan(plans)
    }

    fn finish_plan(&self, plan: SavePlan) -> Result<SavePlan, PlanError> {
        self.observer.plan("planner.finish_plan")?;
        self.inner.finish_plan(plan)
    }

    fn lookup_object(
        &self,
        item: &WriteItem,
        state: &FlatStateDict,
    ) -> Result<WriteData, PlanError> {
        self.observer.plan("planner.lookup_object")?;
        self.inner.lookup_object(item, state)
    }

    fn transform_object(&self, item: &WriteItem, data: WriteData) -> Result<WriteData, PlanError> {
        self.observer.plan("planner.transform_object")?;
        self.inner.transform_object(item, data)
    }
}

#[deny(clippy::missing_trait_methods)]
impl<P: LoadPlanner> LoadPlanner for Observed<P> {
    fn name(&self) -> &'static str {
        std::any::type_name::<Self>()
    }

    fn base(&self) -> &dyn LoadPlanner {
        &self.inner
    }

    fn plan_settings(&self) -> Option<String> {
        self.inner.plan_settings()
    }

    fn set_up(&self, template: &mut FlatStateDict, cx: &LoadContext<'_>) -> Result<(), PlanError> {
        self.observer.plan("planner.set_up")?;
        self.inner.set_up(template, cx)
    }

    fn create_local_plan(
        &self,
        template: &FlatStateDict,
        cx: &LoadContext<'_>,
    ) -> Result<LoadPlan, PlanError> {
        self.observer.plan("planner.create_local_plan")?;
        self.inner.create_local_plan(template, cx)
    }

    fn create_global_plan(
        &self,
        plans: Vec<LoadPlan>,
        cx: &LoadContext<'_>,
    ) -> Result<Vec<LoadPlan>, PlanError> {
        self.observer.plan("planner.create_global_plan")?;
        self.inner.create_global_plan(plans, cx)
    }

    fn finish_plan(&self, plan: LoadPlan) -> Result<LoadPlan, PlanError> {
        self.observer.plan("planner.finish_plan")?;
        self.inner.finish_plan(plan)
    }

    fn load_object(&self, item: &ReadItem, object: Payload) -> Result<Payload, PlanError> {
        self.observer.plan("planner.load_object")?;
        self.inner.load_object(item, object)
    }

    fn lookup_tensor(&self, item: &ReadItem) -> Result<Destination, PlanError> {
        self.observer.plan("planner.lookup_tensor")?;
        self.inner.lookup_tensor(item)
    }

    fn transform_tensor(&self, item: &ReadItem, elements: Tensor) -> Result<Tensor, PlanError> {
        self.observer.plan("planner.transform_tensor")?;
        self.inner.transform_tensor(item, elements)
    }

    fn commit_tensor(&self, item: &ReadItem, tensor: &ShardedTensor) -> Result<(), PlanError> {
        self.observer.plan("planner.commit_tensor")?;
        self.inner.commit_tensor(item, tensor)
    }
}

#[deny(clippy::missing_trait_methods)]
impl SaveFormat for Observed<Arc<dyn SaveFormat>> {
    fn key(&self) -> BackendVersion {
        self.inner.key()
    }

    fn settings(&self) -> Json {
        self.inner.settings()
    }

    fn check(&self) -> Result<()> {
        self.inner.check()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn writer(&self, cx: &SaveCx<'_>) -> Result<Arc<dyn StorageWriter>> {
        Ok(Arc::new(self.observer.on(self.inner.writer(cx)?)))
    }
}

#[deny(clippy::missing_trait_methods)]
impl WriterHooks for Observed<Arc<dyn StorageWriter>> {
    fn name(&self) -> &'static str {
        std::any::type_name::<Self>()
    }

    fn reset(&self, url: &str) {
        self.observer.quietly("writer.reset");
        self.inner.reset(url);
    }

    fn storage_meta(&self) -> Option<Value> {
        self.observer.quietly("writer.storage_meta");
        self.inner.storage_meta()
    }

    fn plan_settings(&self) -> Option<String> {
        self.inner.plan_settings()
    }

    fn set_up(&self, rank: u32, is_coordinator: bool) -> Result<()> {
        self.observer.format("writer.set_up")?;
        self.inner.set_up(rank, is_coordinator)
    }

    fn prepare_local_plan(&self, plan: SavePlan) -> Result<SavePlan> {
        self.observer.format("writer.prepare_local_plan")?;
        self.inner.prepare_local_plan(plan)
    }

    fn prepare_global_plan(&self, plans: Vec<SavePlan>) -> Result<Vec<SavePlan>> {
        self.observer.format("writer.prepare_global_plan")?;
        self.inner.prepare_global_plan(plans)
    }
}

#[deny(clippy::missing_trait_methods)]
impl StorageWriter for Observed<Arc<dyn StorageWriter>> {
    fn key(&self) -> BackendVersion {
        self.inner.key()
    }

    fn planner(&self, base: Arc<dyn SavePlanner>) -> Result<Arc<dyn SavePlanner>> {
        self.inner.planner(base)
    }

    fn object_lists(&self) -> bool {
        self.inner.object_lists()
    }

    fn codec(&self) -> Option<Arc<dyn ObjectCodec>> {
        self.inner.codec()
    }

    fn policy_use(&self) -> PolicyUse {
        self.inner.policy_use()
    }

    fn policy(&self) -> Option<Arc<dyn ShardingPolicy>> {
        self.inner.policy()
    }

    fn footprint(&self, item: &WriteItem) -> Result<Footprint> {
        self.inner.footprint(item)
    }

    fn file_overhead(&self, plans: &[SavePlan]) -> Result<u64> {
        self.inner.file_overhead(plans)
    }

    fn object_bytes(&self, encoded: &Bytes) -> u64 {
        self.inner.object_bytes(encoded)
    }

    fn blank_object(&self, bytes: u64) -> Result<Payload> {
        self.inner.blank_object(bytes)
    }

    fn policy_metrics(&self) -> Option<PolicyMetrics> {
        self.inner.policy_metrics()
    }

    fn layout(&self, rank: u32, plan: &SavePlan, resolve: &Resolve<'_>) -> Result<FileLayout> {
        self.observer.format("writer.layout")?;
        let mut layout = self.inner.layout(rank, plan, resolve)?;
        for file in &mut layout.files {
            let Source::Extents(extents) = &mut file.source else {
                continue;
            };
            for extent in extents {
                let inner = std::mem::replace(extent, Box::new(Bytes::new()));
                *extent = Box::new(TappedExtent {
                    inner,
                    observer: Some(self.observer.clone()),
                });
            }
        }
        Ok(layout)
    }

    fn finish(&self, cx: &FinishCx<'_>) -> Result<Records> {
        self.observer.format("writer.finish")?;
        self.inner.finish(cx)
    }
}

/// Hears `writer.bytes` before its first block.
struct TappedExtent {
    inner: Box<dyn Extent>,
    observer: Option<Observer>,
}

#[deny(clippy::missing_trait_methods)]
impl Extent for TappedExtent {
    fn length(&self) -> Length {
        self.inner.length()
    }

    fn receipt(&mut self) -> Bytes {
        self.inner.receipt()
    }

    fn has_crc32(&self) -> bool {
        self.inner.has_crc32()
    }

    fn crc32(&self) -> Option<u32> {
        self.inner.crc32()
    }

    fn next_block(&mut self) -> Option<io::Result<Bytes>> {
        match self
            .observer
            .take()
            .map(|observer| observer.hear("writer.bytes"))
        {
            Some(Err(e)) => Some(Err(io::Error::other(e))),
            _ => self.inner.next_block(),
        }
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl LoadFormat for Observed<Arc<dyn LoadFormat>> {
    fn info(&self) -> &FormatInfo {
        self.inner.info()
    }

    fn settings(&self) -> Json {
        self.inner.settings()
    }

    fn check(&self) -> Result<()> {
        self.inner.check()
    }

    async fn open(&self, cx: &OpenCx) -> Result<Arc<dyn StorageReader>> {
        self.observer.format("reader.open")?;
        Ok(Arc::new(self.observer.on(self.inner.open(cx).await?)))
    }
}

#[deny(clippy::missing_trait_methods)]
impl ReaderHooks for Observed<Arc<dyn StorageReader>> {
    fn name(&self) -> &'static str {
        std::any::type_name::<Self>()
    }

    fn reset(&self, url: &str) {
        self.observer.quietly("reader.reset");
        self.inner.reset(url);
    }

    fn plan_settings(&self) -> Option<String> {
        self.inner.plan_settings()
    }

    fn set_up(&self, rank: u32, is_coordinator: bool) -> Result<()> {
        self.observer.format("reader.set_up")?;
        self.inner.set_up(rank, is_coordinator)
    }

    fn prepare_local_plan(&self, plan: LoadPlan) -> Result<LoadPlan> {
        self.observer.format("reader.prepare_local_plan")?;
        self.inner.prepare_local_plan(plan)
    }

    fn prepare_global_plan(&self, plans: Vec<LoadPlan>) -> Result<Vec<LoadPlan>> {
        self.observer.format("reader.prepare_global_plan")?;
        self.inner.prepare_global_plan(plans)
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl StorageReader for Observed<Arc<dyn StorageReader>> {
    fn key(&self) -> BackendVersion {
        self.inner.key()
    }

    fn metadata(&self) -> &Arc<Metadata> {
        self.inner.metadata()
    }

    fn dialect(&self) -> Dialect {
        self.inner.dialect()
    }

    fn locate_chunk(&self, chunk: ChunkId) -> Vec<StorageInfo> {
        self.inner.locate_chunk(chunk)
    }

    fn locate_object(&self, object: ObjectId) -> Vec<StorageInfo> {
        self.inner.locate_object(object)
    }

    fn not_understood(&self) -> Vec<String> {
        self.inner.not_understood()
    }

    fn why_not(&self, key: &str) -> Option<String> {
        self.inner.why_not(key)
    }

    fn lacks(&self, key: &str) -> Option<String> {
        self.inner.lacks(key)
    }

    fn permits(&self, key: &str) -> Result<()> {
        self.inner.permits(key)
    }

    fn owns(&self, name: &Name) -> bool {
        self.inner.owns(name)
    }

    fn role(&self, file: &Entry) -> FileRole {
        self.inner.role(file)
    }

    fn codec(&self) -> Arc<dyn ObjectCodec> {
        Arc::new(Observed {
            inner: self.inner.codec(),
            observer: self.observer.clone(),
        })
    }

    fn object_lists(&self) -> bool {
        self.inner.object_lists()
    }

    fn producer(&self) -> Producer {
        self.inner.producer()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn is_whole(&self) -> Result<(), String> {
        self.inner.is_whole()
    }

    fn rewritten(&self) -> Vec<Rewritten> {
        self.inner.rewritten()
    }

    fn is_rank_local(&self) -> bool {
        self.inner.is_rank_local()
    }

    fn reads_columns_together(&self) -> bool {
        self.inner.reads_columns_together()
    }

    async fn read_tensors(&self, reads: Vec<ReadTensor>, cx: &ReadCx<'_>) -> Result<Traffic> {
        self.observer.format("reader.read_tensors")?;
        self.inner.read_tensors(reads, cx).await
    }

    async fn read_objects(&self, reads: &[ReadObject], cx: &ReadCx<'_>) -> Result<Vec<Payload>> {
        self.observer.format("reader.read_objects")?;
        self.inner.read_objects(reads, cx).await
    }

    async fn element_checksums(&self, chunks: &[ChunkId]) -> Result<Vec<Option<ElementChecksum>>> {
        self.inner.element_checksums(chunks).await
    }

    fn shared_elements(&self, chunk: ChunkId) -> Option<String> {
        self.inner.shared_elements(chunk)
    }

    fn covers(&self, file: &Name) -> bool {
        self.inner.covers(file)
    }

    async fn without(&self, prefix: &str) -> Result<Removal> {
        self.inner.without(prefix).await
    }

    async fn verifier<'r>(&'r self, run: &mut VerifyRun<'r>) -> Result<BoxVerifier<'r>> {
        self.inner.verifier(run).await
    }

    async fn verify(&self, full: bool, progress: &Progress) -> Result<VerifyReport> {
        self.inner.verify(full, progress).await
    }

    async fn verify_items(
        &self,
        items: &CheckedItems,
        progress: &Progress,
    ) -> Result<VerifyReport> {
        self.inner.verify_items(items, progress).await
    }
}

#[deny(clippy::missing_trait_methods)]
impl ObjectCodec for Observed<Arc<dyn ObjectCodec>> {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn decode(&self, bytes: &Bytes) -> Result<Value, BoxError> {
        self.observer.hear("reader.decode")?;
        self.inner.decode(bytes)
    }

    fn encode(&self, value: &Value) -> Result<Bytes, BoxError> {
        self.inner.encode(value)
    }
}
