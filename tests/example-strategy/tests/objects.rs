//! A strategy that stores no objects: the common strategy does, and everything else is as it is with one that stores them.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use async_trait::async_trait;
use futures::executor::block_on;
use reshard::{
    BackendVersion, Checkpoint, DType, Dialect, ErrorKind, LocalGroup, ProcessGroup, SaveReport,
    ShardedObject, ShardedTensor, StateDict, StrictHandling, Tensor, Value, ValueTree,
    megatron::TorchCommon,
    model::Payload,
    plan::SavePlan,
    storage::FileBody,
    strategy::{
        Capabilities, FileLayout, FinishCx, FormatInfo, LoadCommonStrategy, LoadFormat,
        LoadShardedStrategy, Make, OpenCx, Records, Registration, Resolve, Result,
        SaveCommonStrategy, SaveCx, SaveFormat, SaveShardedStrategy, StorageReader, StorageWriter,
        WriterHooks, testkit,
    },
};
use reshard_comm::testkit::on_ranks;
use reshard_example::{ExampleLoadConfig, ExampleWriter};
use std::{collections::BTreeSet, path::Path, sync::Arc};

/// The example's format, without objects, under some name.
#[derive(Clone, Debug)]
struct TensorsOnly(String);

impl Default for TensorsOnly {
    fn default() -> Self {
        Self("tensors_only".into())
    }
}

impl WriterHooks for TensorsOnly {
    fn plan_settings(&self) -> Option<String> {
        Some(String::new())
    }
}

impl StorageWriter for TensorsOnly {
    fn key(&self) -> BackendVersion {
        BackendVersion::new(&self.0, 1)
    }

    fn layout(&self, rank: u32, plan: &SavePlan, resolve: &Resolve<'_>) -> Result<FileLayout> {
        assert!(
            plan.items.iter().all(|item| item.tensor().is_some()),
            "it is never given objects"
        );
        ExampleWriter.layout(rank, plan, resolve)
    }

    fn finish(&self, cx: &FinishCx<'_>) -> Result<Records> {
        assert_eq!(cx.metadata.object_count(), 0);
        ExampleWriter.finish(cx)
    }
}

impl SaveFormat for TensorsOnly {
    fn key(&self) -> BackendVersion {
        BackendVersion::new(&self.0, 1)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            no_sharded_objects: Some("save tensors only"),
            no_rank_local: Some("one index describes all ranks"),
            ..Capabilities::DEFAULT
        }
    }

    fn settings(&self) -> serde_json::Value {
        serde_json::json!({})
    }

    fn writer(&self, _: &SaveCx<'_>) -> Result<Arc<dyn StorageWriter>> {
        Ok(Arc::new(self.clone()))
    }
}

const TENSORS_ONLY: FormatInfo = FormatInfo {
    backend: "tensors_only",
    loads_objects: false,
    ..FormatInfo::NEW
};

const AS_EXAMPLE: FormatInfo = FormatInfo {
    backend: "example",
    ..TENSORS_ONLY
};

#[async_trait]
impl LoadFormat for TensorsOnly {
    fn info(&self) -> &FormatInfo {
        match &*self.0 {
            "example" => &AS_EXAMPLE,
            _ => &TENSORS_ONLY,
        }
    }

    fn settings(&self) -> serde_json::Value {
        serde_json::json!({})
    }

    async fn open(&self, cx: &OpenCx) -> Result<Arc<dyn StorageReader>> {
        ExampleLoadConfig::default().open(cx).await
    }
}

/// The readers are the example's, and so is the name. With the common strategy around both, as the facade puts it there.
fn contract(with_common: bool) -> (SaveShardedStrategy, LoadShardedStrategy) {
    let format = TensorsOnly("example".into());
    let mut save = SaveShardedStrategy::new(format.clone());
    let mut load = LoadShardedStrategy::new(format);
    if with_common {
        save.common = Some(Arc::new(TorchCommon));
        load.common = Some(Arc::new(TorchCommon));
    }
    (save, load)
}

/// Common state and nothing else.
#[derive(Debug)]
struct CommonOnly;

impl SaveCommonStrategy for CommonOnly {
    fn key(&self) -> BackendVersion {
        BackendVersion::new("common_only", 1)
    }

    fn layout_common(&self, common: &ValueTree) -> Result<Vec<FileBody>> {
        TorchCommon.layout_common(common)
    }
}

#[async_trait]
impl LoadCommonStrategy for CommonOnly {
    fn key(&self) -> BackendVersion {
        BackendVersion::new("common_only", 1)
    }

    async fn load_common(&self, cx: &OpenCx, from: &dyn StorageReader) -> Result<ValueTree> {
        TorchCommon.load_common(cx, from).await
    }

    fn owns(&self, name: &reshard::storage::Name) -> bool {
        TorchCommon.owns(name)
    }
}

const fn entry(backend: &'static str, make: Make) -> Registration {
    let (origin, origin_version) = (env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"));
    Registration {
        backend,
        version: 1,
        origin,
        origin_version,
        make,
    }
}

inventory::submit! { entry("common_only", Make::LoadCommon(|| Arc::new(CommonOnly))) }
inventory::submit! { entry("tensors_only", Make::LoadSharded(|_| Ok(Arc::new(TensorsOnly::default())))) }

/// Row block `rank` of `ranks` of a matrix, an object a rank, one that all have, and common state.
fn state(rank: u64, ranks: u64, objects: bool) -> StateDict {
    let rows = 12 / ranks;
    let elements = (rank * rows * 5..(rank + 1) * rows * 5)
        .map(|i| i as f32)
        .collect();
    let local = Tensor::from_vec(&[rows, 5], elements).unwrap();
    let mut state = StateDict::new();
    let weight = ShardedTensor::from_rank_offsets("weight", local, &[(0, rank, ranks)]).unwrap();
    state.insert("weight", weight);
    state.insert("step", 7);
    if objects {
        let rng = ShardedObject::new("rng", Value::Int(rank as i64), &[ranks], &[rank], 0).unwrap();
        state.insert("rng", rng);
        let shared =
            ShardedObject::new("shared", Value::Str("all".into()), &[1], &[0], rank as u32)
                .unwrap();
        state.insert("shared", shared);
    }
    state
}

fn template(rank: u64, ranks: u64, saved: u64) -> StateDict {
    let mut template = StateDict::new();
    let rows = ShardedTensor::declare(
        "weight",
        DType::Float32,
        &[12 / ranks, 5],
        &[(0, rank, ranks)],
        0,
    );
    template.insert("weight", rows.unwrap());
    let cells: [(&str, u64, u64); 2] = [("rng", saved, rank % saved), ("shared", 1, 0)];
    for (key, cells, at) in cells {
        let cell = ShardedObject::new(key, Value::None, &[cells], &[at], 0).unwrap();
        template.insert(
            key,
            ShardedObject {
                data: Payload::None,
                ..cell
            },
        );
    }
    template
}

fn save(
    url: &str,
    ranks: u64,
    objects: bool,
    common: bool,
    dialect: Dialect,
) -> Vec<reshard::Result<SaveReport>> {
    let url = url.to_owned();
    on_ranks(LocalGroup::new(ranks as u32), move |group| {
        let url = url.clone();
        async move {
            let state = state(u64::from(group.rank().0), ranks, objects);
            let save = reshard::save(&state, &url)
                .group(&group)
                .strategy(TensorsOnly::default())
                .dialect(dialect);
            let save = save.overwrite(true);
            if common {
                save.await
            } else {
                save.common_strategy(CommonOnly).await
            }
        }
    })
}

/// What each rank is told of a load of a template that asks for objects of `saved` ranks.
fn load(
    url: &str,
    ranks: u64,
    saved: u64,
) -> Vec<std::result::Result<ValueTree, (ErrorKind, String)>> {
    let url = url.to_owned();
    on_ranks(LocalGroup::new(ranks as u32), move |group| {
        let url = url.clone();
        async move {
            let template = template(u64::from(group.rank().0), ranks, saved);
            let loaded = reshard::load(template, &url).group(&group).await;
            loaded.map_err(|e| (e.kind(), e.error().strategy_error().to_string()))
        }
    })
}

async fn open(url: &str) -> Checkpoint {
    Checkpoint::open(url).await.unwrap()
}

fn files(dir: &Path) -> BTreeSet<String> {
    let mut out = BTreeSet::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let (path, name) = entry
            .map(|e| (e.path(), e.file_name().into_string().unwrap()))
            .unwrap();
        match path.is_dir() {
            true => out.extend(
                files(&path)
                    .into_iter()
                    .map(|below| format!("{name}/{below}")),
            ),
            false => drop(out.insert(name)),
        }
    }
    out
}

#[test]
fn a_pair_with_a_common_strategy_keeps_the_contract_of_one_that_handles_objects() {
    let (save, load) = contract(true);
    testkit::save_load_contract(&save, &load);
}

#[test]
fn the_contract_holds_without_objects() {
    let (save, load) = contract(false);
    testkit::save_load_contract(&save, &load);
}

#[test]
fn common_strategies_keep_their_contract() {
    testkit::common_contract(&TorchCommon, &TorchCommon);
    testkit::common_contract(&CommonOnly, &CommonOnly);
}

#[test]
fn objects_are_files_of_the_common_strategy_counted_and_found_by_any_ranks() {
    let dir = tempfile::tempdir().unwrap();
    let url = dir.path().join("ckpt").display().to_string();
    // The second save replaces the first, and what is left of it goes.
    for ranks in [3, 1] {
        let reports: Vec<SaveReport> = save(&url, ranks, true, true, Dialect::Megatron)
            .into_iter()
            .map(|r| r.unwrap())
            .collect();
        let mut want: BTreeSet<String> = (0..ranks)
            .map(|r| format!("rng/shard_{r}_{ranks}.pt"))
            .collect();
        want.insert("shared/shard_0_1.pt".into());
        let objects: u64 = want
            .iter()
            .map(|f| std::fs::metadata(Path::new(&url).join(f)).unwrap().len())
            .sum();
        for report in &reports {
            let totals = report.totals;
            assert_eq!(
                (totals.all.items, totals.all.files),
                (2 * ranks + 1, 2 * ranks + 1)
            );
            assert_eq!(totals.all.bytes, objects + 12 * 5 * 4);
            assert_eq!(
                totals.most,
                reports[0].ranks.iter().map(|r| r.bytes).max().unwrap()
            );
        }
        assert_eq!(
            reports[0].ranks.iter().map(|r| r.items).sum::<u64>(),
            2 * ranks + 1
        );
        let metadata = reports[0].metadata.as_ref().unwrap();
        assert_eq!(
            (metadata.object_count() as u64, metadata.tensor_count()),
            (ranks + 1, 1)
        );
        want.extend((0..ranks).map(|r| format!("rank-{r}.bin")));
        want.extend(
            [
                "common.pt",
                "example.index.json",
                "metadata.json",
                "reshard.json",
            ]
            .map(String::from),
        );
        assert_eq!(files(Path::new(&url)), want);

        for onto in [1, 2] {
            for (rank, loaded) in (0..onto).zip(load(&url, onto, ranks)) {
                let loaded = loaded.unwrap();
                let leaf = |key: &str| loaded.get(key).and_then(|t| t.leaf()).unwrap().clone();
                assert_eq!(leaf("rng"), Value::Int((rank % ranks) as i64));
                assert_eq!(
                    (leaf("shared"), leaf("step")),
                    (Value::Str("all".into()), Value::Int(7))
                );
                let rows = leaf("weight").as_tensor().unwrap().to_vec::<f32>().unwrap();
                let share = 60 / onto;
                assert_eq!(
                    rows,
                    (rank * share..(rank + 1) * share)
                        .map(|i| i as f32)
                        .collect::<Vec<_>>()
                );
            }
        }
        block_on(async {
            let opened = open(&url).await;
            assert_eq!(opened.objects().count() as u64, ranks + 1);
            let last = format!("rng/shard_{}_{ranks}", ranks - 1);
            assert_eq!(
                opened.object(&last).await.unwrap(),
                Value::Int(ranks as i64 - 1)
            );
            let report = opened.verify(true, Default::default()).await.unwrap();
            assert_eq!((report.damage.len(), report.items), (0, 2 * ranks + 1));
            assert!(
                opened
                    .roles()
                    .await
                    .unwrap()
                    .iter()
                    .all(|(_, r)| *r != reshard::strategy::FileRole::Foreign)
            );
        });
    }
}

#[test]
fn a_key_that_is_missing_and_a_file_that_is_damaged_are_named_and_a_strict_load_knows_the_objects()
{
    let dir = tempfile::tempdir().unwrap();
    let url = dir.path().join("ckpt").display().to_string();
    save(&url, 1, true, true, Dialect::Megatron)
        .into_iter()
        .for_each(|r| drop(r.unwrap()));
    let mut less = StateDict::new();
    let cell = template(0, 1, 1);
    let rng = cell.get("rng").and_then(|t| t.leaf()).unwrap().clone();
    less.insert("rng", rng);
    let load_less = reshard::load(less.clone(), &url).strict(StrictHandling::ReturnAll);
    let (_, report) = block_on(load_less.with_report()).unwrap();
    assert_eq!(report.notes.not_requested, ["weight", "shared/shard_0_1"]);
    // The part with the tensors asks for nothing, and the part with the objects for all of them.
    let raise = |template| {
        block_on(async {
            reshard::load(template, &url)
                .strict(StrictHandling::RaiseAll)
                .await
        })
        .map_err(|e| e.to_string())
    };
    assert!(
        raise(less)
            .unwrap_err()
            .contains("shared/shard_0_1 is in the checkpoint")
    );
    assert!(raise(template(0, 1, 1)).is_ok());

    for e in load(&url, 2, 3).into_iter().map(|l| l.unwrap_err()) {
        assert_eq!(e.0, ErrorKind::NotFound);
        assert!(e.1.contains("rng/shard_0_3"), "{e:?}");
    }
    let file = Path::new(&url).join("rng/shard_0_1.pt");
    let bytes = std::fs::read(&file).unwrap();
    std::fs::write(&file, &bytes[..bytes.len() / 2]).unwrap();
    for e in load(&url, 1, 1).into_iter().map(|l| l.unwrap_err()) {
        assert_eq!(e.0, ErrorKind::Corrupt);
        assert!(e.1.contains("rng/shard_0_1.pt"), "{e:?}");
    }
    let report =
        block_on(async { open(&url).await.verify(true, Default::default()).await }).unwrap();
    let [damage] = &*report.damage else {
        panic!("{report:?}")
    };
    let found = (damage.key.as_deref(), damage.file.as_deref());
    assert_eq!(found, (Some("rng/shard_0_1"), Some("rng/shard_0_1.pt")));
}

#[test]
fn where_nobody_stores_objects_only_saves_and_loads_with_some_fail_on_all_ranks() {
    let dir = tempfile::tempdir().unwrap();
    let url = dir.path().join("ckpt").display().to_string();
    for ranks in [1, 3] {
        for outcome in save(&url, ranks, true, false, Dialect::Megatron) {
            let e = outcome.unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Unsupported);
            let text = e.strategy_error().to_string();
            let all = ["rng/shard_0_", "tensors_only/1", "common_only/1"];
            assert!(all.iter().all(|part| text.contains(part)), "{text}");
        }
        assert!(
            std::fs::read_dir(dir.path()).unwrap().next().is_none(),
            "nothing is left"
        );
    }
    for ranks in [1, 3] {
        save(&url, ranks, false, false, Dialect::Megatron)
            .into_iter()
            .for_each(|r| drop(r.unwrap()));
        for (kind, text) in load(&url, ranks, 2).into_iter().map(|l| l.unwrap_err()) {
            assert_eq!(kind, ErrorKind::Unsupported);
            assert!(
                ["rng/shard_0_2", "tensors_only/1", "common_only/1"]
                    .iter()
                    .all(|p| text.contains(p)),
                "{text}"
            );
        }
        block_on(async {
            let weight = open(&url)
                .await
                .tensor("weight")
                .unwrap()
                .read(..)
                .await
                .unwrap();
            assert_eq!(weight.to_vec::<f32>().unwrap()[59], 59.);
        });
    }
    // PyTorch's dialect has no common strategy, so that a step is an object which nobody stores.
    let other = dir.path().join("dcp").display().to_string();
    for outcome in save(&other, 1, false, true, Dialect::Dcp) {
        let text = outcome.unwrap_err().strategy_error().to_string();
        assert!(
            text.contains("step") && text.contains("no common strategy"),
            "{text}"
        );
    }
}

#[test]
fn common_state_is_not_put_into_an_object_that_the_sharded_strategy_does_not_store() {
    let dir = tempfile::tempdir().unwrap();
    let url = dir.path().join("ckpt").display().to_string();
    let state = state(0, 1, false);
    let save = reshard::save(&state, &url).strategy(TensorsOnly::default());
    let e = block_on(async { save.common_form(reshard::CommonForm::Object).await }).unwrap_err();
    assert!(
        e.strategy_error()
            .to_string()
            .contains("choose `CommonForm::File`"),
        "{e}"
    );
}

#[test]
fn an_object_that_is_no_cell_of_an_array_has_no_file() {
    let item = ShardedObject::item("common", Payload::Value(Value::None));
    let e = TorchCommon.layout_objects(&[item]).unwrap_err();
    assert!(e.to_string().starts_with("common: an object"), "{e}");
    let nested = ShardedObject::new("a/b", Value::None, &[1], &[0], 0).unwrap();
    assert!(TorchCommon.layout_objects(&[nested]).is_err());
}

/// Plans of objects and of tensors are kept apart.
#[test]
fn repeated_saves_and_loads_of_objects_are_as_if_planned_anew() {
    let dir = tempfile::tempdir().unwrap();
    let state = |n: i64, longer: bool| {
        let mut state = StateDict::new();
        let data = Tensor::from_vec(&[2], vec![n as f32; 2]).unwrap();
        state.insert("w", ShardedTensor::full("w", data));
        let texts = ["x".repeat(n as usize * 50), "more".into()];
        let cells = 1 + u64::from(longer);
        for (i, text) in (0..cells).zip(&texts) {
            let cell = ShardedObject::new("o", text.as_str(), &[cells], &[i], 0).unwrap();
            state.insert(format!("o{i}"), cell);
        }
        state
    };
    let saves = Arc::new(reshard::KeptPlan::new());
    let loads = Arc::new(reshard::KeptLoadPlan::new());
    for (turn, longer) in [(1, false), (2, false), (3, true), (4, true), (5, false)] {
        let url = dir.path().join(turn.to_string()).display().to_string();
        let state = state(turn, longer);
        let save = reshard::save(&state, &url)
            .strategy(TensorsOnly::default())
            .kept_plan(&saves);
        block_on(async { save.await }).unwrap();
        let mut template = StateDict::new();
        template.insert("w", ShardedTensor::template("w", DType::Float32, &[2]));
        let cells = 1 + u64::from(longer);
        let mut cell = ShardedObject::new("o", 0, &[cells], &[0], 0).unwrap();
        cell.data = Payload::None;
        template.insert("o0", cell);
        let load = reshard::load(template, &url)
            .strategy(TensorsOnly::default())
            .kept_plan(&loads);
        let loaded = block_on(async { load.await }).unwrap();
        let text = "x".repeat(turn as usize * 50);
        let leaf = |key| loaded.get(key).and_then(ValueTree::leaf).unwrap();
        assert_eq!(leaf("o0"), &Value::from(text.as_str()));
        let want = Tensor::from_vec(&[2], vec![turn as f32; 2]).unwrap();
        assert_eq!(leaf("w"), &Value::Tensor(want));
    }
    // Tensors have not changed, but they are validated together with objects.
    assert_eq!(saves.reused(), 2);
}
