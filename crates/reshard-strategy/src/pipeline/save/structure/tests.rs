//! What makes a structure another one.

use super::*;
use crate::{
    BackendVersion, Declares, FileLayout, FinishCx, PipelineOptions, Records, Resolve,
    StrategyError, WriterHooks,
};
use futures::executor::block_on;
use reshard_comm::Comm;
use reshard_model::{
    DType, DeviceTensor, Dialect, Layout, Region, ShardedObject, ShardedTensor, Tensor, Value,
    testkit::FakeDevice,
};
use reshard_model::{Data, Path, Payload, Step};
use reshard_plan::PlannerData;
use reshard_plan::{Declaration, DefaultSavePlanner, SavePlan, SavePlanner};
use reshard_policy::{ByFiles, ShardByTask, ShardingPolicy};
use reshard_storage::{IfExists, Store, testkit::MemoryStore};
use std::{collections::BTreeMap, sync::Arc};

/// A format that plans depend on as it is told.
#[derive(Debug)]
struct Format(Option<&'static str>);

impl WriterHooks for Format {
    fn plan_settings(&self) -> Option<String> {
        self.0.map(str::to_owned)
    }
}

impl StorageWriter for Format {
    fn key(&self) -> BackendVersion {
        BackendVersion::new("format", 1)
    }

    fn layout(&self, _: u32, _: &SavePlan, _: &Resolve<'_>) -> Result<FileLayout> {
        Err(StrategyError::Internal("nothing is written here".into()))
    }

    fn finish(&self, _: &FinishCx<'_>) -> Result<Records> {
        Ok(Records::default())
    }
}

/// The same settings and name as [`Format`], and another type.
#[derive(Debug)]
struct OtherFormat;

impl WriterHooks for OtherFormat {
    fn plan_settings(&self) -> Option<String> {
        Some(String::new())
    }
}

impl StorageWriter for OtherFormat {
    fn key(&self) -> BackendVersion {
        Format(None).key()
    }

    fn layout(&self, rank: u32, plan: &SavePlan, resolve: &Resolve<'_>) -> Result<FileLayout> {
        Format(None).layout(rank, plan, resolve)
    }

    fn finish(&self, cx: &FinishCx<'_>) -> Result<Records> {
        Format(None).finish(cx)
    }
}

/// The same settings as the default planner, and another type.
#[derive(Debug)]
struct Other(Option<String>);

impl SavePlanner for Other {
    fn plan_settings(&self) -> Option<String> {
        self.0.clone()
    }
}

fn tensor() -> ShardedTensor {
    let data = Tensor::from_vec(&[2, 3], vec![1f32; 6]).unwrap();
    ShardedTensor {
        data: data.into(),
        ..ShardedTensor::region_of("w", DType::Float32, &[4, 3], Region::new([2, 0], [2, 3]))
    }
}

fn object() -> ShardedObject {
    ShardedObject::new("rng", 1, &[3], &[1], 0).unwrap()
}

fn path(name: &str) -> Path {
    Path(vec!["layers".into(), Step::Index(3), name.into()])
}

fn state(leaves: impl IntoIterator<Item = Sharded>) -> FlatStateDict {
    let names = ["a", "b", "c"].map(path);
    names.into_iter().zip(leaves).collect()
}

fn base() -> FlatStateDict {
    state([tensor().into(), object().into()])
}

fn with(change: impl FnOnce(&mut ShardedTensor)) -> FlatStateDict {
    let mut t = tensor();
    change(&mut t);
    state([t.into(), object().into()])
}

fn with_object(change: impl FnOnce(&mut ShardedObject)) -> FlatStateDict {
    let mut o = object();
    change(&mut o);
    state([tensor().into(), o.into()])
}

/// The structure of a state, in a context that is changed.
fn of_with(
    state: &FlatStateDict,
    format: &dyn StorageWriter,
    policy: Option<Arc<dyn ShardingPolicy>>,
    change: impl FnOnce(&mut SaveCx<'_>),
) -> Option<Vec<u8>> {
    of_options(state, format, policy, &PipelineOptions::default(), change)
}

/// The same with other options.
fn of_options(
    state: &FlatStateDict,
    format: &dyn StorageWriter,
    policy: Option<Arc<dyn ShardingPolicy>>,
    options: &PipelineOptions,
    change: impl FnOnce(&mut SaveCx<'_>),
) -> Option<Vec<u8>> {
    let store = MemoryStore::new();
    let transaction = block_on(store.begin("attempt", IfExists::Refuse)).unwrap();
    let groups = BTreeMap::new();
    let planner = Arc::new(DefaultSavePlanner::DEFAULT);
    let mut cx = SaveCx::new(
        options,
        Comm::single(),
        &groups,
        transaction,
        "url",
        planner,
    );
    change(&mut cx);
    let asked = Asked {
        policy,
        ..Asked::default()
    };
    structure(format, &asked, state, &cx).unwrap()
}

fn of(state: &FlatStateDict) -> Vec<u8> {
    of_with(state, &Format(Some("")), None, |_| {}).unwrap()
}

#[test]
fn every_field_of_a_leaf_counts() {
    let others = [
        ("nothing", state([])),
        ("one", state([tensor().into()])),
        ("order", state([Sharded::from(object()), tensor().into()])),
        (
            "more",
            state([tensor().into(), object().into(), object().into()]),
        ),
        ("key", with(|t| t.key = "v".into())),
        ("dtype", with(|t| t.dtype = DType::Int32)),
        ("local shape", with(|t| t.local_shape = [3, 2].into())),
        ("global shape", with(|t| t.global_shape = [5, 3].into())),
        ("offset", with(|t| t.global_offset = [1, 0].into())),
        (
            "fragments",
            with(|t| t.axis_fragmentations = Some([2, 1].into())),
        ),
        (
            "other fragments",
            with(|t| t.axis_fragmentations = Some([1, 2].into())),
        ),
        ("replica", with(|t| t.replica_id = 1.into())),
        (
            "replica of two numbers",
            with(|t| t.replica_id = [0, 0].into()),
        ),
        ("prepended", with(|t| t.prepend_axis_num = 1)),
        ("mismatch", with(|t| t.allow_shape_mismatch = true)),
        ("range", with(|t| t.flattened_range = Some(0..6))),
        ("other range", with(|t| t.flattened_range = Some(0..5))),
        ("tag", with(|t| t.tag = Some("".into()))),
        ("other tag", with(|t| t.tag = Some("x".into()))),
        (
            "device",
            with(|t| {
                let device = DeviceTensor::new(DType::Float32, &[2, 3], FakeDevice::new(24));
                t.data = device.unwrap().into();
            }),
        ),
        ("key of an object", with_object(|o| o.key = "r".into())),
        ("array", with_object(|o| o.global_shape = [4].into())),
        ("cell", with_object(|o| o.global_offset = [2].into())),
        (
            "replica of an object",
            with_object(|o| o.replica_id = 1.into()),
        ),
        (
            "tag of an object",
            with_object(|o| o.tag = Some("x".into())),
        ),
        (
            "length of encoded bytes",
            with_object(|o| {
                o.data = Payload::Encoded {
                    codec: "c",
                    bytes: vec![1].into(),
                }
            }),
        ),
        (
            "path",
            base()
                .into_iter()
                .map(|(_, leaf)| (path(leaf.key()), leaf))
                .collect(),
        ),
        (
            "step",
            base()
                .into_iter()
                .map(|(mut path, leaf)| {
                    path.0[1] = "3".into();
                    (path, leaf)
                })
                .collect(),
        ),
    ];
    let all: BTreeSet<Vec<u8>> = others
        .iter()
        .map(|(_, s)| of(s))
        .chain([of(&base())])
        .collect();
    for (what, other) in &others {
        assert_ne!(of(other), of(&base()), "{what}");
    }
    assert_eq!(all.len(), others.len() + 1);
}

#[test]
fn data_do_not_count() {
    let strided = Layout::new(4, 1, [2, 3].into(), [1, 2].into()).unwrap();
    let strided = Tensor::with_layout(DType::Float32, strided, Arc::new(vec![7; 28])).unwrap();
    let same = [
        with(|t| t.data = strided.into()),
        with(|t| t.data = Data::None),
        with_object(|o| o.data = Payload::Value(Value::from("longer"))),
    ];
    for other in &same {
        assert_eq!(of(other), of(&base()));
    }
}

#[test]
fn all_settings_count_and_what_says_nothing_is_not_known() {
    let base = &base();
    let plain = |change: fn(&mut SaveCx<'_>)| of_with(base, &Format(Some("")), None, change);
    let paths = |key: &str, at: &str| {
        let paths = [(key.into(), path(at))].into_iter().collect();
        Some(PlannerData::Paths(paths))
    };
    let by_files = |n| {
        of_with(
            base,
            &Format(Some("")),
            Some(Arc::new(ByFiles::new(n))),
            |_| {},
        )
    };
    let options = |change: fn(&mut PipelineOptions)| {
        let mut options = PipelineOptions::default();
        change(&mut options);
        of_options(base, &Format(Some("")), None, &options, |_| {})
    };
    let with_data = |data: Option<PlannerData>| {
        of_with(base, &Format(Some("")), None, move |cx| {
            cx.planner_data = data
        })
    };
    let declares = |change: fn(&mut Declares)| {
        let mut declares = Declares::default();
        change(&mut declares);
        of_with(base, &Format(Some("")), None, move |cx| {
            cx.declares = Arc::new(declares);
        })
    };
    let all = [
        plain(|_| {}),
        of_with(base, &Format(Some("x")), None, |_| {}),
        of_with(base, &OtherFormat, None, |_| {}),
        by_files(2),
        by_files(3),
        of_with(
            base,
            &Format(Some("")),
            Some(Arc::new(ShardByTask::new())),
            |_| {},
        ),
        plain(|cx| cx.planner = Arc::new(DefaultSavePlanner::DCP)),
        plain(|cx| {
            let same = DefaultSavePlanner::DEFAULT.plan_settings();
            cx.planner = Arc::new(Other(same));
        }),
        options(|o| o.dialect = Dialect::Dcp),
        options(|o| o.rank_local = true),
        options(|o| o.policy_limits.max_files = Some(7)),
        options(|o| o.policy_limits.max_slices = Some(7)),
        with_data(paths("w", "a")),
        with_data(paths("w", "b")),
        with_data(paths("v", "a")),
        with_data(Some(PlannerData::Str("w".into()))),
        declares(|d| drop(d.replicas.insert(path("a"), 1.into()))),
        declares(|d| drop(d.replicas.insert(path("a"), 2.into()))),
        declares(|d| drop(d.replicas.insert(path("b"), 1.into()))),
        declares(|d| d.elsewhere.push(Declaration::of(&object().into()))),
        declares(|d| d.elsewhere.push(Declaration::of(&tensor().into()))),
    ];
    let different: BTreeSet<Vec<u8>> = all.iter().flatten().cloned().collect();
    assert_eq!(different.len(), all.len());

    assert_eq!(of_with(base, &Format(None), None, |_| {}), None);
    assert_eq!(plain(|cx| cx.planner = Arc::new(Other(None))), None);
}
