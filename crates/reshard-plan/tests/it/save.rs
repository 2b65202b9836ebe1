use crate::cuts::*;
use reshard_model::{
    DType, Data, ErrorKind, FlatStateDict, Path, Payload, Region, Sharded, ShardedObject,
    ShardedTensor, Step, Tensor, Value,
};
use reshard_plan::*;

fn error(planner: DefaultSavePlanner, ranks: &[FlatStateDict]) -> PlanError {
    let e = save(&planner, ranks).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Invalid);
    e
}

fn rows(key: &str, from: u64, n: u64) -> ShardedTensor {
    leaf(key, &[8, 2], Region::new([from, 0], [n, 2]))
}

#[test]
fn everything_wrong_is_said_at_once_with_boxes_and_ranks() {
    let ranks = [
        flat([
            rows("hole", 0, 3),
            rows("overlap", 0, 5),
            rows("dtype", 0, 4),
            rows("outside", 0, 8),
            rows("shape", 0, 4),
        ]),
        flat([
            rows("hole", 4, 4),
            rows("overlap", 4, 4),
            ShardedTensor {
                dtype: DType::BFloat16,
                ..rows("dtype", 4, 4)
            },
            rows("outside", 7, 2),
            leaf("shape", &[9, 2], Region::new([4, 0], [5, 2])),
        ]),
        objects(&["dtype", "fine"]),
    ];
    insta::assert_snapshot!(error(DefaultSavePlanner::DCP, &ranks), @r"
    the ranks' pieces don't make a checkpoint: 5 problems
      dtype is float32 on rank 0, but bfloat16 on rank 1
      hole: no chunk covers [3:4, 0:2] of shape [8, 2]
      outside: chunk [7:9, 0:2] of rank 1 does not lie in shape [8, 2]
      overlap: chunks [0:5, 0:2] of rank 0 and [4:8, 0:2] of rank 1 overlap
      shape has shape [8, 2] on rank 0, but [9, 2] on rank 1
    ");
}

#[test]
fn boxes_and_ranks_are_those_of_the_tensor_that_is_wrong() {
    let ranks = [
        flat([rows("a", 0, 4), rows("b", 0, 2)]),
        flat([rows("a", 4, 4), rows("b", 2, 4)]),
        flat([rows("b", 5, 3)]),
    ];
    let e = error(DefaultSavePlanner::DCP, &ranks).to_string();
    assert!(
        e.ends_with(": b: chunks [2:6, 0:2] of rank 1 and [5:8, 0:2] of rank 2 overlap"),
        "{e}"
    );
}

#[test]
fn a_key_that_is_tensor_and_object_is_refused() {
    let e = error(
        DefaultSavePlanner::DCP,
        &[
            objects(&["w"]),
            flat([leaf("w", &[1], Region::whole(&[1]))]),
        ],
    );
    insta::assert_snapshot!(e, @"the ranks' pieces don't make a checkpoint: w is an object on rank 0, but a tensor on rank 1");
}

#[test]
fn a_long_list_is_cut() {
    let state = flat((0..100).map(|i| leaf(&format!("w{i:02}"), &[2], Region::new([0], [1]))));
    let text = error(DefaultSavePlanner::DCP, &[state]).to_string();
    assert!(
        text.contains("100 problems") && text.ends_with("and 80 more"),
        "{text}"
    );
    assert_eq!(text.lines().count(), 22);
}

#[test]
fn a_replica_of_another_size_is_no_replica() {
    let e = error(
        DefaultSavePlanner::DCP,
        &[flat([rows("w", 0, 8)]), flat([rows("w", 0, 4)])],
    );
    assert!(
        e.to_string()
            .contains("[0:8, 0:2] of rank 0 and [0:4, 0:2] of rank 1 overlap"),
        "{e}"
    );
}

#[test]
fn two_main_replicas_are_refused_and_none_is_a_hole() {
    let whole = || flat([rows("w", 0, 8)]);
    let e = error(DefaultSavePlanner::DEFAULT, &[whole(), whole()]);
    assert!(
        e.to_string()
            .contains("[0:8, 0:2] of rank 0 and [0:8, 0:2] of rank 1 overlap"),
        "{e}"
    );
    let ranks = [
        flat([rows("w", 0, 4)]),
        flat([rows("w", 4, 4).with_replica_id(1)]),
    ];
    let e = error(DefaultSavePlanner::DEFAULT, &ranks);
    assert!(e.to_string().contains("no chunk covers [4:8, 0:2]"), "{e}");
    let e = error(
        DefaultSavePlanner::DEFAULT,
        &[objects(&["rng"]), objects(&["rng"])],
    );
    assert!(
        e.to_string().contains("rng is written by ranks [0, 1]"),
        "{e}"
    );
    let e = error(DefaultSavePlanner::DEFAULT, &[flat([]), whole(), whole()]);
    assert!(
        e.to_string()
            .contains("[0:8, 0:2] of rank 1 and [0:8, 0:2] of rank 2 overlap"),
        "{e}"
    );
    let e = error(
        DefaultSavePlanner::DEFAULT,
        &[flat([]), objects(&["rng"]), objects(&["rng"])],
    );
    assert!(
        e.to_string().contains("rng is written by ranks [1, 2]"),
        "{e}"
    );
}

#[test]
fn replicas_that_are_not_main_are_offered_by_the_dcp_planner_alone() {
    let replica = |id: u32| -> [Sharded; 3] {
        let cell = ShardedObject::new("rng", 1, &[2], &[1], id).unwrap();
        let item = ShardedObject::item("step", Payload::Value(Value::Int(1)));
        let item = ShardedObject {
            replica_id: id.into(),
            ..item
        };
        [
            bytes("w", [1, 2]).with_replica_id(id).into(),
            cell.into(),
            item.into(),
        ]
    };
    let offered = |planner: DefaultSavePlanner, id| {
        let named = |(n, leaf)| (Path(vec![format!("leaf{n}").into()]), leaf);
        let state: FlatStateDict = replica(id).into_iter().enumerate().map(named).collect();
        planner
            .create_local_plan(&state, &SaveContext::new(1, false))
            .unwrap()
            .items
            .len()
    };
    assert_eq!(
        [0, 1].map(|id| offered(DefaultSavePlanner::DEFAULT, id)),
        [3, 0]
    );
    assert_eq!(
        [0, 1].map(|id| offered(DefaultSavePlanner::DCP, id)),
        [3, 3]
    );
}

#[test]
fn empty_chunks_are_not_written_but_their_tensor_is_known() {
    // ranks past the end of torch.chunk's rule hold empty shards, which may start where a real one does
    let ranks = [
        flat([
            leaf("w", &[5, 3], Region::new([0, 0], [5, 3])),
            leaf("none", &[0, 3], Region::whole(&[0, 3])),
        ]),
        flat([
            leaf("w", &[5, 3], Region::new([0, 0], [0, 3])),
            leaf("none", &[0, 3], Region::whole(&[0, 3])),
        ]),
    ];
    for planner in [DefaultSavePlanner::DCP, DefaultSavePlanner::DEFAULT] {
        let (plans, metadata) = save(&planner, &ranks).unwrap();
        assert_eq!(
            plans.iter().map(|p| p.items.len()).collect::<Vec<_>>(),
            [1, 0]
        );
        let none = metadata.tensor("none").unwrap();
        assert_eq!((none.shape().to_vec(), none.chunk_count()), (vec![0, 3], 0));
        assert!(load(DefaultLoadPlanner::DEFAULT, &ranks[0], &metadata).is_ok());
    }
}

#[test]
fn scalars_are_checked_too() {
    let scalar = || leaf("s", &[], Region::default());
    let (plans, metadata) = save(
        &DefaultSavePlanner::DCP,
        &[flat([scalar()]), flat([scalar()])],
    )
    .unwrap();
    assert_eq!((plans[0].items.len(), plans[1].items.len()), (1, 0));
    assert_eq!(plans[0].items[0].id().offset, Some([].into()));
    assert_eq!(
        metadata.tensor("s").unwrap().chunk_at(&[], None),
        Some(ChunkId(0))
    );
    let e = error(
        DefaultSavePlanner::DEFAULT,
        &[flat([scalar()]), flat([scalar()])],
    );
    assert!(
        e.to_string()
            .contains("s: chunks [] of rank 0 and [] of rank 1 overlap"),
        "{e}"
    );
}

#[test]
fn a_rank_that_offers_a_piece_twice_writes_it_once() {
    let (plans, metadata) = save(
        &DefaultSavePlanner::DCP,
        &[flat([rows("w", 0, 8), rows("w", 0, 8)])],
    )
    .unwrap();
    assert_eq!((plans[0].items.len(), metadata.chunk_count()), (1, 1));
}

pub(crate) fn bytes(key: &str, values: [u8; 2]) -> ShardedTensor {
    ShardedTensor::full(key, Tensor::from_vec(&[2], values.to_vec()).unwrap())
}

#[test]
fn ties_go_to_the_lowest_rank_and_order_of_keys_is_that_of_plans() {
    let state = || flat(["a", "b", "c"].map(|k| leaf(k, &[2], Region::whole(&[2]))));
    let (plans, metadata) = save(&DefaultSavePlanner::DCP, &[state(), state()]).unwrap();
    let keys = |p: &SavePlan| {
        p.items
            .iter()
            .map(|i| i.key.to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        (keys(&plans[0]), keys(&plans[1])),
        (vec!["a".into(), "c".into()], vec!["b".into()])
    );
    assert_eq!(
        metadata.entries().map(|e| e.key()).collect::<Vec<_>>(),
        ["a", "c", "b"]
    );
    assert_eq!(
        metadata.tensors().map(|t| t.key()).collect::<Vec<_>>(),
        ["a", "b", "c"]
    );
}

#[test]
fn objects_are_kept_from_one_rank_by_dedup() {
    let (plans, metadata) = save(
        &DefaultSavePlanner::DCP,
        &[objects(&["a", "b"]), objects(&["b", "c"])],
    )
    .unwrap();
    assert_eq!(plans.iter().map(|p| p.items.len()).sum::<usize>(), 3);
    assert_eq!(
        metadata.objects().map(|(_, k)| k).collect::<Vec<_>>(),
        ["a", "b", "c"]
    );
}

#[test]
fn paths_are_merged_as_a_chain_map_is() {
    let plan = |keys: &[&str], root: &str| {
        let path = |k: &&str| ((*k).into(), Path(vec![root.into(), (*k).into()]));
        SavePlan::default().with_planner_data(PlannerData::Paths(keys.iter().map(path).collect()))
    };
    let plans = vec![plan(&["a", "b"], "0"), plan(&["c", "b"], "1")];
    let (plans, metadata) = DefaultSavePlanner::DCP.create_global_plan(plans).unwrap();
    let Some(PlannerData::Paths(paths)) = metadata.planner_data() else {
        panic!()
    };
    let seen: Vec<String> = paths.iter().map(|(k, p)| format!("{k}={p}")).collect();
    assert_eq!(seen, ["c=1.c", "b=0.b", "a=0.a"]);
    assert!(plans.iter().all(|p| p.planner_data.is_none()));
}

#[test]
fn a_rank_that_writes_a_key_knows_its_path_better_than_one_that_has_a_replica() {
    // Ranks 1 and 2 have renamed what they write; rank 0 writes nothing of it, and knows the old names.
    let paths = |of: &[(&str, &str)]| {
        let path = |(key, path): &(&str, &str)| (Box::from(*key), Path(vec![Step::from(*path)]));
        SavePlan::default().with_planner_data(PlannerData::Paths(of.iter().map(path).collect()))
    };
    let writes = |keys: &[&str], of: &[(&str, &str)]| {
        let mut plan = paths(of);
        let cx = SaveContext::new(1, false);
        plan.items = DefaultSavePlanner::DCP
            .create_local_plan(&objects(keys), &cx)
            .unwrap()
            .items;
        plan
    };
    let plans = vec![
        paths(&[("a", "at a"), ("b", "at b"), ("c", "at c")]),
        writes(&["a"], &[("a", "at b"), ("b", "at a"), ("c", "odd")]),
        writes(&["a", "b"], &[("a", "odd"), ("b", "at a")]),
    ];
    let (_, metadata) = DefaultSavePlanner::DCP.create_global_plan(plans).unwrap();
    let Some(PlannerData::Paths(paths)) = metadata.planner_data() else {
        panic!()
    };
    let mut seen: Vec<String> = paths.iter().map(|(k, p)| format!("{k} is {p}")).collect();
    seen.sort();
    assert_eq!(seen, ["a is at b", "b is at a", "c is at c"]);
}

#[test]
fn a_part_of_a_leaf_is_found_in_host_device_and_lazy_data() {
    let host = Tensor::from_vec(&[4, 2], (0..8u8).collect()).unwrap();
    let device = reshard_model::testkit::FakeDevice::new(8);
    let device = reshard_model::DeviceTensor::new(DType::UInt8, &[4, 2], device).unwrap();
    device.fill("w", &host).unwrap();
    let lazy: std::sync::Arc<dyn reshard_model::TensorSource> = std::sync::Arc::new(device.clone());
    for data in [Data::Host(host), Data::Device(device), Data::Lazy(lazy)] {
        // layer 1 of 3, as a leading axis that the data lacks
        let t = ShardedTensor::declare("w", DType::UInt8, &[4, 2], &[(0, 1, 3)], 1)
            .unwrap()
            .with_data(data);
        let state = flat([t]);
        let mut item = DefaultSavePlanner::DEFAULT
            .create_local_plan(&state, &SaveContext::default())
            .unwrap()
            .items
            .remove(0);
        let WriteKind::Tensor(w) = &mut item.kind else {
            panic!()
        };
        w.region = Region::new([1, 1, 1], [1, 2, 1]);
        let bytes = match DefaultSavePlanner::DEFAULT
            .lookup_object(&item, &state)
            .unwrap()
        {
            WriteData::Tensor(data) => {
                let source = data.source().unwrap();
                assert_eq!(*source.shape(), [2, 1], "without the prepended axis");
                let mut out = [0; 2];
                source.read(&Region::whole(&[2, 1]), &mut out).unwrap();
                out.to_vec()
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(bytes, [3, 5]);
        let WriteKind::Tensor(w) = &mut item.kind else {
            panic!()
        };
        w.region.offsets[0] = 2;
        let e = DefaultSavePlanner::DEFAULT
            .lookup_object(&item, &state)
            .unwrap_err();
        assert!(
            e.to_string()
                .starts_with("w: region [2:3, 1:3, 1:2] does not lie in [1:2, 0:4, 0:2]"),
            "{e}"
        );
    }
}

#[test]
fn a_whole_lazy_leaf_is_handed_on_as_it_is() {
    let device = reshard_model::DeviceTensor::new(
        DType::UInt8,
        &[2],
        reshard_model::testkit::FakeDevice::new(2),
    );
    let lazy: std::sync::Arc<dyn reshard_model::TensorSource> =
        std::sync::Arc::new(device.unwrap());
    let t = ShardedTensor::declare("w", DType::UInt8, &[2], &[(0, 1, 3)], 1).unwrap();
    let whole = t.with_data(Data::Lazy(std::sync::Arc::clone(&lazy)));
    for leaf in [
        ShardedTensor::template("v", DType::UInt8, &[2]).with_data(whole.data.clone()),
        whole,
    ] {
        let state = flat([leaf]);
        let plan = DefaultSavePlanner::DEFAULT
            .create_local_plan(&state, &SaveContext::default())
            .unwrap();
        let data = DefaultSavePlanner::DEFAULT
            .lookup_object(&plan.items[0], &state)
            .unwrap();
        let WriteData::Tensor(Data::Lazy(same)) = data else {
            panic!("{data:?}")
        };
        assert!(std::sync::Arc::ptr_eq(&same, &lazy));
    }
}

#[test]
fn a_rank_that_saves_alone_needs_not_have_all_of_a_tensor() {
    let half = [flat([rows("w", 0, 3)])];
    let plan = |planner| {
        save(&planner, &half).map(|(_, metadata)| metadata.tensor("w").unwrap().chunk_count())
    };
    let e = plan(DefaultSavePlanner::DEFAULT).unwrap_err().to_string();
    assert!(e.contains("no chunk covers"), "{e}");
    assert_eq!(
        plan(DefaultSavePlanner::DEFAULT.with_allow_holes(true)).unwrap(),
        1
    );
}

#[test]
fn flattened_ranges_need_a_grid_of_cells() {
    let range = |t: ShardedTensor| ShardedTensor {
        flattened_range: Some(0..3),
        ..t
    };
    let refused = |t| save(&DefaultSavePlanner::DEFAULT, &[flat([t])]).unwrap_err();
    let irregular = ShardedTensor {
        axis_fragmentations: None,
        ..rows("w", 0, 8)
    };
    let e = refused(range(irregular));
    assert_eq!(e.kind(), ErrorKind::Unsupported);
    assert!(
        e.to_string()
            .contains("w: a flattened range of an irregular grid"),
        "{e}"
    );
    let padded = ShardedTensor {
        axis_fragmentations: Some([3, 1].into()),
        ..rows("w", 0, 8)
    };
    let e = refused(range(padded));
    assert!(e.to_string().contains("don't make up"), "{e}");
    // A range that lacks elements of its cell is a hole.
    let whole = ShardedTensor {
        axis_fragmentations: Some([1, 1].into()),
        ..rows("w", 0, 8)
    };
    let e = refused(range(whole));
    assert_eq!(e.kind(), ErrorKind::Invalid);
    assert!(e.to_string().contains("no chunk covers"), "{e}");
}
