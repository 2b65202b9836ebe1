//! What plans carry beside items, from a rank by the coordinator to the rank again.

use async_trait::async_trait;
use bytes::Bytes;
use reshard_example::{ExampleConfig, ExampleLoadConfig, ExampleWriter};
use reshard_model::{Dialect, FlatStateDict, ObjectCodec, Payload, Sharded};
use reshard_plan::{
    ChunkId, DefaultLoadPlanner, DefaultSavePlanner, LoadContext, LoadPlan, LoadPlanner, Metadata,
    ObjectId, PlanError, PlannerData, ReadItem, SavePlan, SavePlanner, Stored,
};
use reshard_storage::{IfExists, Store, testkit::MemoryStore};
use reshard_strategy::{
    BackendVersion, BoxVerifier, FileLayout, FinishCx, FormatInfo, LoadFormat, LoadShardedStrategy,
    OpenCx, ReadCx, ReadObject, ReadTensor, ReaderHooks, Records, Resolve, Result, SaveCx,
    SaveFormat, SaveShardedStrategy, StorageInfo, StorageReader, StorageWriter, Traffic, VerifyRun,
    WriterHooks,
    testkit::{Cut, Rank, check_sample, load_on_ranks, sample, sample_template, save_on_ranks},
};
use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

const RANKS: u32 = 2;

const INFO: FormatInfo = FormatInfo {
    backend: "example",
    ..FormatInfo::NEW
};

/// What rank `rank` says, and what the coordinator makes of it.
fn said(rank: u32) -> Bytes {
    Bytes::from(vec![rank as u8; 3])
}

fn answered(rank: u32) -> Bytes {
    Bytes::from(vec![rank as u8, rank as u8, rank as u8, 100 + rank as u8])
}

fn answer(said: &Bytes) -> Bytes {
    let mut out = said.to_vec();
    out.push(100 + out[0]);
    out.into()
}

/// The example's format, which tells itself something.
#[derive(Debug, Default)]
struct Talks {
    /// Set before planning.
    rank: AtomicU32,
}

impl Talks {
    fn rank(&self) -> u32 {
        self.rank.load(Ordering::Relaxed)
    }
}

impl WriterHooks for Talks {
    fn set_up(&self, rank: u32, _: bool) -> Result<()> {
        self.rank.store(rank, Ordering::Relaxed);
        Ok(())
    }

    fn prepare_local_plan(&self, mut plan: SavePlan) -> Result<SavePlan> {
        plan.storage_data = said(self.rank());
        Ok(plan)
    }

    fn prepare_global_plan(&self, mut plans: Vec<SavePlan>) -> Result<Vec<SavePlan>> {
        plans
            .iter_mut()
            .for_each(|p| p.storage_data = answer(&p.storage_data));
        Ok(plans)
    }
}

impl SaveFormat for Talks {
    fn key(&self) -> BackendVersion {
        ExampleWriter.key()
    }

    fn settings(&self) -> serde_json::Value {
        serde_json::json!({})
    }

    fn writer(&self, _: &SaveCx<'_>) -> Result<Arc<dyn StorageWriter>> {
        Ok(Arc::new(Self::default()))
    }
}

impl StorageWriter for Talks {
    fn key(&self) -> BackendVersion {
        ExampleWriter.key()
    }

    fn layout(&self, rank: u32, plan: &SavePlan, resolve: &Resolve<'_>) -> Result<FileLayout> {
        assert_eq!(plan.storage_data, answered(rank));
        ExampleWriter.layout(rank, plan, resolve)
    }

    fn finish(&self, cx: &FinishCx<'_>) -> Result<Records> {
        ExampleWriter.finish(cx)
    }
}

#[async_trait]
impl LoadFormat for Talks {
    fn info(&self) -> &FormatInfo {
        &INFO
    }

    fn settings(&self) -> serde_json::Value {
        serde_json::json!({})
    }

    async fn open(&self, cx: &OpenCx) -> Result<Arc<dyn StorageReader>> {
        Ok(Arc::new(TalkingReader {
            inner: ExampleLoadConfig::default().open(cx).await?,
            talks: Self::default(),
        }))
    }
}

#[derive(Debug)]
struct TalkingReader {
    inner: Arc<dyn StorageReader>,
    talks: Talks,
}

impl ReaderHooks for TalkingReader {
    fn set_up(&self, rank: u32, _: bool) -> Result<()> {
        self.talks.rank.store(rank, Ordering::Relaxed);
        Ok(())
    }

    fn prepare_local_plan(&self, mut plan: LoadPlan) -> Result<LoadPlan> {
        plan.storage_data = said(self.talks.rank());
        Ok(plan)
    }

    fn prepare_global_plan(&self, mut plans: Vec<LoadPlan>) -> Result<Vec<LoadPlan>> {
        plans
            .iter_mut()
            .for_each(|p| p.storage_data = answer(&p.storage_data));
        Ok(plans)
    }
}

#[async_trait]
impl StorageReader for TalkingReader {
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

    fn codec(&self) -> Arc<dyn ObjectCodec> {
        self.inner.codec()
    }

    async fn read_tensors(&self, reads: Vec<ReadTensor>, cx: &ReadCx<'_>) -> Result<Traffic> {
        assert_eq!(cx.storage_data, answered(self.talks.rank()));
        self.inner.read_tensors(reads, cx).await
    }

    async fn read_objects(&self, reads: &[ReadObject], cx: &ReadCx<'_>) -> Result<Vec<Payload>> {
        assert_eq!(cx.storage_data, answered(self.talks.rank()));
        self.inner.read_objects(reads, cx).await
    }

    async fn verifier<'r>(&'r self, run: &mut VerifyRun<'r>) -> Result<BoxVerifier<'r>> {
        self.inner.verifier(run).await
    }
}

/// A planner that tells itself something.
#[derive(Debug)]
struct Notes(u32);

impl LoadPlanner for Notes {
    fn create_local_plan(
        &self,
        template: &FlatStateDict,
        cx: &LoadContext<'_>,
    ) -> Result<LoadPlan, PlanError> {
        let mut plan = DefaultLoadPlanner::DEFAULT.create_local_plan(template, cx)?;
        plan.planner_data = Some(PlannerData::Str(format!("rank {}", self.0).into()));
        Ok(plan)
    }

    fn finish_plan(&self, plan: LoadPlan) -> Result<LoadPlan, PlanError> {
        assert_eq!(
            plan.planner_data,
            Some(PlannerData::Str(format!("rank {}", self.0).into()))
        );
        Ok(plan)
    }
}

#[test]
fn formats_and_planners_find_in_a_plan_what_they_put_there() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let ranks = (0..RANKS).map(|r| Rank {
        strategy: Arc::new(SaveShardedStrategy::new(Talks::default())),
        planner: Arc::new(DefaultSavePlanner::DEFAULT) as Arc<dyn SavePlanner>,
        flat: sample(Cut::Rows, r, RANKS, true),
    });
    save_on_ranks(&store, IfExists::Refuse, ranks.collect())
        .into_iter()
        .for_each(|o| drop(o.unwrap()));
    let ranks = (0..RANKS).map(|r| Rank {
        strategy: Arc::new(LoadShardedStrategy::new(Talks::default())),
        planner: Arc::new(Notes(r)) as Arc<dyn LoadPlanner>,
        flat: sample_template(Cut::Columns, r, RANKS, Some(RANKS)),
    });
    for loaded in load_on_ranks(&store, ranks.collect()) {
        check_sample(&loaded.map_err(|f| f.error).unwrap().state);
    }
}

type Change = fn(&mut ReadItem);

/// A planner that plans, then changes the items of `matrix`.
#[derive(Debug)]
struct Wrong(Change);

impl LoadPlanner for Wrong {
    fn finish_plan(&self, mut plan: LoadPlan) -> Result<LoadPlan, PlanError> {
        plan.items
            .iter_mut()
            .filter(|i| &*i.piece.key == "matrix")
            .for_each(self.0);
        Ok(plan)
    }
}

#[test]
fn a_plan_that_can_not_be_carried_out_is_an_error_with_its_key_and_the_template_comes_back() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let rank = Rank {
        strategy: Arc::new(SaveShardedStrategy::new(ExampleConfig::default())),
        planner: Arc::new(DefaultSavePlanner::DEFAULT) as Arc<dyn SavePlanner>,
        flat: sample(Cut::Rows, 0, 1, true),
    };
    save_on_ranks(&store, IfExists::Refuse, vec![rank])
        .into_iter()
        .for_each(|o| drop(o.unwrap()));
    let wrong: [(Change, &str); 6] = [
        (
            |i| i.stored_region.offsets[0] += 1,
            "matrix: region [1:13, 0:7] does not lie in its chunk [0:12, 0:7]",
        ),
        (
            |i| i.stored_region.lengths[0] -= 1,
            "matrix: a region of shape [11, 7] can't fill one of shape [12, 7]",
        ),
        (
            |i| i.stored = Stored::Chunk(ChunkId(999)),
            "matrix: there is no chunk 999",
        ),
        (
            |i| i.dest_region.offsets[0] += 1,
            "matrix: region [1:13, 0:7] does not lie in a view of shape [12, 7]",
        ),
        (
            |i| i.dest = 999,
            "into leaf 999 of the template, because it has no such leaf",
        ),
        (
            |i| i.dest = 10,
            "into rng, because it is an object in the template",
        ),
    ];
    for (wrong, says) in wrong {
        let template = sample_template(Cut::Rows, 0, 1, Some(1));
        let addresses = |flat: &FlatStateDict| -> Vec<Option<usize>> {
            let tensors = flat.values().filter_map(|leaf| match leaf {
                Sharded::Tensor(t) => Some(t.data.host().map(|h| h.buffer_id())),
                Sharded::Object(_) => None,
            });
            tensors.collect()
        };
        let before = addresses(&template);
        let rank = Rank {
            strategy: Arc::new(LoadShardedStrategy::new(ExampleLoadConfig::default())),
            planner: Arc::new(Wrong(wrong)) as Arc<dyn LoadPlanner>,
            flat: template,
        };
        for loaded in load_on_ranks(&store, vec![rank]) {
            let failure = loaded.map(drop).unwrap_err();
            let e = failure.error.to_string();
            assert!(e.contains(says), "{e}, and not {says}");
            let after = addresses(&failure.template);
            assert!(
                before
                    .iter()
                    .zip(after)
                    .all(|(b, a)| b.is_none() || *b == a),
                "a buffer was lost: {says}"
            );
        }
    }
}
