//! A shared load is a plain load, and each byte is read once for a group.

use crate::ranks::layered;
use crate::ranks::{Group, Loader, Loads, groups, load, plain, store, store_as};
use proptest::prelude::*;
use reshard::{
    DType, ShardedObject, ShardedTensor, StateDict, Tensor, Value, ValueTree,
    model::{Payload, Region},
};
use reshard_comm::testkit::Apart;
use serde_json::json;
use std::{collections::BTreeSet, sync::Arc};

/// A box of a tensor of two axes: where it begins and ends, in percent.
type Part = (u64, u64, u64, u64);

/// What one rank wants of each tensor, and whether as float64.
type Want = Vec<Option<(Part, bool)>>;

fn region((a, b, c, d): Part, shape: [u64; 2]) -> Region {
    let axis = |from: u64, len: u64, n: u64| {
        let from = from * (n - 1) / 100;
        (from, (1 + len * n / 100).min(n - from))
    };
    let ((y, h), (x, w)) = (axis(a, b, shape[0]), axis(c, d, shape[1]));
    Region::new([y, x], [h, w])
}

fn number(tensor: usize, row: u64, column: u64) -> f32 {
    (1_000_000 * tensor as u64 + 1000 * row + column) as f32
}

/// Saves tensors of these shapes, each cut into rows by as many ranks, and an object.
fn save(format: &str, shapes: &[[u64; 2]], ranks: u64, url: &str) {
    let state = |rank: u64| {
        let mut state = StateDict::new();
        for (i, shape) in shapes.iter().enumerate() {
            let key = format!("w{i}");
            let (from, to) = (shape[0] * rank / ranks, shape[0] * (rank + 1) / ranks);
            if from == to {
                continue;
            }
            let rows = (from..to).flat_map(|y| (0..shape[1]).map(move |x| number(i, y, x)));
            let data = Tensor::from_vec(&[to - from, shape[1]], rows.collect()).unwrap();
            let rows = Region::new([from, 0], [to - from, shape[1]]);
            let leaf = ShardedTensor::region_of(&key, DType::Float32, shape, rows);
            state.insert(key.as_str(), leaf.with_data(data));
        }
        if rank == 0 && format == "torch_dist" {
            // Objects without cells, which have no files of their own.
            for key in ["one", "two"] {
                state.insert(
                    key,
                    ShardedObject::item(key, Payload::Value(Value::from(key))),
                );
            }
        }
        state
    };
    store_as(format, (0..ranks).map(state).collect(), url);
}

fn template(shapes: &[[u64; 2]], want: &Want, objects: bool) -> StateDict {
    let mut state = StateDict::new();
    for (i, (shape, want)) in shapes.iter().zip(want).enumerate() {
        let Some((part, wide)) = want else { continue };
        let key = format!("w{i}");
        let dtype = if *wide {
            DType::Float64
        } else {
            DType::Float32
        };
        let leaf = ShardedTensor::region_of(&key, dtype, shape, region(*part, *shape));
        state.insert(key.as_str(), leaf);
    }
    if objects {
        for key in ["one", "two"] {
            state.insert(key, ShardedObject::item(key, Payload::None));
        }
    }
    state
}

/// Text that tells everything of the results.
fn told(loads: &Loads, shapes: &[[u64; 2]]) -> Vec<String> {
    let tell = |loaded: &Result<_, _>| {
        let (tree, _) = match loaded {
            Ok(loaded) => loaded,
            Err(e) => return format!("{e}"),
        };
        let tree: &ValueTree = tree;
        let keys = (0..shapes.len()).map(|i| format!("w{i}"));
        let keys = keys.chain(["one".into(), "two".into()]);
        let tell = |key: String| match tree.get(&key) {
            Some(ValueTree::Leaf(Value::Tensor(t))) => {
                format!("{key} {:?} {:?}", t.shape(), t.to_bytes())
            }
            other => format!("{key} {other:?}"),
        };
        keys.map(tell).collect::<Vec<_>>().join("\n")
    };
    loads.iter().map(tell).collect()
}

fn part() -> impl Strategy<Value = Part> {
    prop_oneof![
        Just((0, 100, 0, 100)),
        // Columns, rows, and anything.
        (0u64..100, 1u64..60).prop_map(|(x, w)| (0, 100, x, w)),
        (0u64..100, 1u64..60).prop_map(|(y, h)| (y, h, 0, 100)),
        (0u64..100, 1u64..100, 0u64..100, 1u64..100),
    ]
}

fn wants(ranks: usize, tensors: usize) -> impl Strategy<Value = Vec<Want>> {
    let want = prop::option::weighted(0.8, (part(), any::<bool>()));
    prop::collection::vec(prop::collection::vec(want, tensors), ranks)
}

proptest! {
    #![proptest_config(reshard_model::testkit::law(48))]

    #[test]
    fn a_shared_load_is_a_plain_load_and_reads_each_byte_once(
        savers in 1u64..4, ranks in 1usize..6, shapes in prop::collection::vec((1u64..40, 1u64..40).prop_map(|(a, b)| [a, b]), 1..4),
        all in wants(6, 4), colors in prop::collection::vec(0u32..2, 6), objects in 0u32..63,
        exchange in prop::sample::select(vec!["broadcast", "gather_rounds", "gather_object", "two_stage"]),
        whole in any::<bool>(), nested in any::<bool>(), apart in any::<bool>(), memory in prop::sample::select(vec![0u64, 600, 5000, 1 << 20]),
        format in prop::sample::select(vec!["torch_dist", "zarr", "zarr3"]),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let url = dir.path().join("ckpt").display().to_string();
        save(format, &shapes, savers, &url);
        let plain = || json!({ "format": format });
        let mut layer = match exchange {
            "two_stage" => json!({ "type": "two_stage", "bytes_in_flight": memory }),
            exchange => json!({ "type": "fully_parallel", "exchange": exchange }),
        };
        if !whole {
            let name = if exchange == "two_stage" { "data_parallel_group" } else { "group" };
            layer[name] = json!("dp");
        }
        let inner = match nested {
            // All ranks share once more what the ranks of each group read.
            true => layered(json!({ "type": "fully_parallel", "exchange": "broadcast" }), &plain()),
            false => plain(),
        };
        let settings = layered(layer, &inner);
        let loaders = |settings: &serde_json::Value| -> Vec<Loader> {
            let wrap = |group: Group| match apart {
                true => Arc::new(Apart::new(group)) as Group,
                false => group,
            };
            groups(ranks).into_iter().map(wrap).zip(&all).enumerate().map(|(rank, (group, want))| Loader {
                color: Some(colors[rank]),
                memory,
                ..Loader::new(group, template(&shapes, want, objects >> rank & 1 == 1 && format == "torch_dist"), settings)
            }).collect()
        };
        let shared = load(loaders(&settings), &url);
        let expected = load(loaders(&plain()), &url);
        prop_assert_eq!(told(&shared, &shapes), told(&expected, &shapes));

        prop_assert!(shared.iter().all(Result::is_ok));

        // What a group reads are the elements that its ranks want.
        let one = whole || nested;
        for color in 0..2 {
            let members: Vec<usize> = (0..ranks).filter(|rank| one || colors[*rank] == color).collect();
            let mut wanted = BTreeSet::new();
            for rank in &members {
                for (i, (shape, want)) in shapes.iter().zip(&all[*rank]).enumerate() {
                    let Some((part, _)) = want else { continue };
                    let region = region(*part, *shape);
                    for y in region.offsets[0]..region.end(0) {
                        wanted.extend((region.offsets[1]..region.end(1)).map(|x| (i, y, x)));
                    }
                }
            }
            let read: u64 = members.iter().map(|rank| shared[*rank].as_ref().unwrap().1.totals.needed).sum();
            prop_assert_eq!(read, 4 * wanted.len() as u64);
        }
    }
}

/// Three ranks want all of an array of four chunks: alone each reads all of them, and together each chunk is read once.
#[test]
fn ranks_that_share_a_load_read_each_chunk_of_an_array_once() {
    for format in ["torch_dist", "zarr", "zarr3"] {
        let dir = tempfile::tempdir().unwrap();
        let url = dir.path().join("ckpt").display().to_string();
        save(format, &[[32, 100]], 4, &url);
        let want = vec![Some(((0, 100, 0, 100), false))];
        let read = |settings: serde_json::Value| {
            let loader =
                |group| Loader::new(group, template(&[[32, 100]], &want, false), &settings);
            let loaded = load(groups(3).into_iter().map(loader).collect(), &url);
            let totals = loaded.into_iter().map(|rank| rank.unwrap().1.totals);
            totals.fold((0, 0), |(bytes, items), t| {
                (bytes + t.needed, items + t.verified)
            })
        };
        let base = json!({ "format": format });
        assert_eq!(read(base.clone()), (3 * 12_800, 3 * 4), "{format}");
        for exchange in ["broadcast", "gather_rounds", "gather_object"] {
            let shared = layered(
                json!({ "type": "fully_parallel", "exchange": exchange }),
                &base,
            );
            assert_eq!(read(shared), (12_800, 4), "{format} {exchange}");
        }
        let two_stage = layered(json!({ "type": "two_stage" }), &base);
        assert_eq!(read(two_stage), (12_800, 4), "{format} two_stage");
    }
}

fn template_of(keys: &[(&str, u32)], elements: u64) -> StateDict {
    let mut state = StateDict::new();
    for (key, replica) in keys {
        let data = Tensor::zeros(key, DType::Float32, &[elements]).unwrap();
        let leaf = ShardedTensor::full(key, data).with_replica_id(*replica);
        state.insert(*key, leaf);
    }
    state
}

/// The keys that each rank reads, for itself or for others, and in how many pieces ranks hand anything on.
fn who_reads(loaders: Vec<Loader>, url: &str) -> (Vec<BTreeSet<String>>, usize) {
    let plans: Vec<_> = loaders.iter().map(|l| Arc::clone(&l.plan)).collect();
    let shapes = |loads: Loads| loads.into_iter().map(|l| l.unwrap().1.metadata).next_back();
    let metadata = shapes(load(loaders, url)).unwrap();
    let mut serves = 0;
    let read = plans.into_iter().map(|plan| {
        let plan = plan.lock().unwrap().take().unwrap();
        serves += plan.exchange.serves.len();
        let own = plan.items.iter().map(|item| item.piece.key.to_string());
        let others = plan.exchange.serves.iter();
        own.chain(others.filter_map(|s| s.what.key(&metadata).map(str::to_owned)))
            .collect()
    });
    (read.collect(), serves)
}

/// Megatron Core's test of this name: ranks are (tensor parallel, data parallel), and a key's first holder has its main replica.
#[test]
fn cross_dp_access_does_not_disturb_the_distribution() {
    let all: Vec<(u32, u32)> = (0..4).flat_map(|dp| [(0, dp), (1, dp)]).collect();
    let placements: [(&str, Vec<(u32, u32)>); 7] = [
        ("a", vec![(0, 0)]),
        ("b", all.clone()),
        ("c", vec![(0, 0), (0, 1), (0, 2)]),
        ("d", vec![(1, 0), (0, 0), (1, 3)]),
        ("e", vec![(1, 0), (1, 2)]),
        ("f", vec![(1, 0), (0, 0), (1, 2)]),
        ("g", vec![(1, 3)]),
    ];
    let state = |at: &(u32, u32)| {
        let held = placements.iter().filter_map(|(key, holders)| {
            let replica = holders.iter().position(|holder| holder == at)?;
            Some((*key, replica as u32))
        });
        template_of(&held.collect::<Vec<_>>(), 12)
    };
    let dir = tempfile::tempdir().unwrap();
    let url = dir.path().join("ckpt").display().to_string();
    let savers = groups(8)
        .into_iter()
        .zip(&all)
        .map(|(group, at)| crate::ranks::Saver {
            group,
            color: Some(at.0),
            state: state(at),
            settings: reshard_parallel::FullyParallelSave::new()
                .group("dp")
                .around(reshard_torch_dist::TorchDistConfig::default()),
        });
    for saved in crate::ranks::save(savers.collect(), &url) {
        saved.unwrap();
    }
    let writers = crate::ranks::writers(&url).into_iter();
    let writers: String = writers
        .map(|((key, _), rank)| format!("{key}{rank} "))
        .collect();
    assert_eq!(writers, "a0 b4 c2 d1 e5 f1 g7 ");

    let settings = layered(json!({ "type": "fully_parallel", "group": "dp" }), &plain());
    let loaders = groups(8).into_iter().zip(&all).map(|(group, at)| Loader {
        color: Some(at.0),
        ..Loader::new(group, state(at), &settings)
    });
    let (read, _) = who_reads(loaders.collect(), &url);
    let text: String = (0..8)
        .flat_map(|rank| read[rank].iter().map(move |key| format!("{key}{rank} ")))
        .collect();
    // Those whose main replica is in the other group come last.
    assert_eq!(text, "a0 d0 f0 d1 f1 c2 b3 b4 e5 g7 ");
}

#[test]
fn only_necessary_exchanges_are_performed_during_load() {
    let keys = ["all_a", "all_b", "own_0", "own_1"].map(|key| (key, 0));
    let dir = tempfile::tempdir().unwrap();
    let url = dir.path().join("ckpt").display().to_string();
    store(vec![template_of(&keys, 4)], &url);
    let settings = layered(json!({ "type": "fully_parallel" }), &plain());
    let wants: [([&[&str]; 2], usize); 3] = [
        ([&["all_a", "all_b"], &["all_a", "all_b"]], 2),
        ([&["all_a"], &["all_a"]], 1),
        ([&["all_a", "own_0"], &["all_a", "own_1"]], 1),
    ];
    for (wants, expected) in wants {
        let loader = |(group, want): (Group, &[&str])| {
            let keys: Vec<(&str, u32)> = want.iter().map(|key| (*key, 0)).collect();
            Loader::new(group, template_of(&keys, 4), &settings)
        };
        let loaders = groups(2).into_iter().zip(wants).map(loader).collect();
        assert_eq!(who_reads(loaders, &url).1, expected);
    }
}

/// Objects are spread over the ranks that want them, and a rank that reads none gets all.
#[test]
fn broadcast_sharded_objects() {
    let dir = tempfile::tempdir().unwrap();
    let url = dir.path().join("ckpt").display().to_string();
    let keys = ["o0", "o1", "o2"];
    let mut state = StateDict::new();
    let mut template = StateDict::new();
    for key in keys {
        state.insert(
            key,
            ShardedObject::item(key, Payload::Value(Value::from(key))),
        );
        template.insert(key, ShardedObject::item(key, Payload::None));
    }
    store(vec![state], &url);
    for exchange in ["broadcast", "gather_rounds", "gather_object"] {
        let settings = layered(
            json!({ "type": "fully_parallel", "exchange": exchange }),
            &plain(),
        );
        let loaders = || {
            groups(3)
                .into_iter()
                .map(|g| Loader::new(g, template.clone(), &settings))
        };
        let (read, serves) = who_reads(loaders().collect(), &url);
        assert!(read.iter().all(|read| read.len() == 1), "{read:?}");
        assert_eq!(serves, 3);
        for loaded in load(loaders().collect(), &url) {
            let (tree, _) = loaded.unwrap();
            for key in keys {
                assert_eq!(tree.get(key), Some(&ValueTree::Leaf(Value::from(key))));
            }
        }
    }
}

/// More rounds, less memory: the same bytes.
#[test]
fn ways_to_exchange_differ_in_rounds() {
    let dir = tempfile::tempdir().unwrap();
    let url = dir.path().join("ckpt").display().to_string();
    let names: Vec<String> = (0..40).map(|i| format!("w{i}")).collect();
    let keys: Vec<(&str, u32)> = names.iter().map(|name| (&**name, 0)).collect();
    store(vec![template_of(&keys, 256)], &url);
    let rounds = |exchange: &str| {
        let settings = layered(
            json!({ "type": "fully_parallel", "exchange": exchange }),
            &plain(),
        );
        // Ranks that share memory hand nothing on.
        let loader = |group| Loader {
            memory: 64 << 10,
            ..Loader::new(
                Arc::new(Apart::new(group)),
                template_of(&keys, 256),
                &settings,
            )
        };
        let loads = load(groups(2).into_iter().map(loader).collect(), &url);
        let rounds = |l: &Result<(_, reshard::LoadReport), _>| l.as_ref().ok().unwrap().1.exchange;
        let all: BTreeSet<u64> = loads.iter().map(|l| rounds(l).rounds).collect();
        assert_eq!(all.len(), 1, "all ranks take part in all rounds");
        all.into_iter().next().unwrap()
    };
    assert_eq!(rounds("gather_object"), 1);
    assert_eq!(rounds("gather_rounds"), 20);
    let some = rounds("broadcast");
    assert!((2..20).contains(&some), "{some}");
}

/// A plan that is kept is the plan that would be made.
#[test]
fn plans_that_are_kept_are_used_again() {
    let dir = tempfile::tempdir().unwrap();
    let keys = ["a", "b", "c"].map(|key| (key, 0));
    let settings = reshard_parallel::FullyParallelLoad::new()
        .cache(true)
        .around(reshard_torch_dist::TorchDistLoadConfig::default());
    // Another length, then the first one again.
    for (turn, elements) in [8, 8, 16, 8].into_iter().enumerate() {
        let url = dir.path().join(turn.to_string()).display().to_string();
        store(vec![template_of(&keys, elements)], &url);
        let loads = reshard_comm::testkit::on_ranks(groups(3), {
            let (url, settings) = (url.clone(), settings.clone());
            move |group| {
                let (url, settings) = (url.clone(), settings.clone());
                async move {
                    let template = template_of(&keys, elements);
                    let load = reshard::load(template, &url).group(&*group);
                    load.strategy(settings).with_report().await
                }
            }
        });
        let needed: u64 = loads.into_iter().map(|l| l.unwrap().1.totals.needed).sum();
        assert_eq!(needed, 3 * 4 * elements);
    }
}
