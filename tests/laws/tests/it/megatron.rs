//! Megatron Core's leaves, saved and loaded: irregular grids, cells of objects, leaves that stay where they are.

use reshard::{
    DType, Dialect, ErrorKind, Region, ShardedObject, ShardedTensor, StateDict, Tensor, Value,
    ValueTree,
    model::{LocalNonpersistent, Tree},
};
use reshard_laws::{
    place::Place,
    ranks::{group, load, save},
    zarrs::Zarr,
};

/// Lengths of the pieces of a tensor of one axis, which lie one behind the other: by rank, several to a rank.
type Split = Vec<Vec<u64>>;

/// The pieces of each rank, as an irregular grid; `data` tells their elements by the first and the last of them.
fn ranks_of(split: &Split, data: impl Fn(u64, u64) -> Option<Tensor>) -> Vec<StateDict> {
    let total: u64 = split.iter().flatten().sum();
    let mut at = 0;
    let mut piece = |n: u64| {
        let region = Region::new([at], [n]);
        let leaf = ShardedTensor::region_of("keyA", DType::Int64, &[total], region);
        let leaf = ShardedTensor {
            axis_fragmentations: None,
            ..leaf
        };
        let leaf = match data(at, n) {
            Some(t) => leaf.with_data(t),
            None => leaf,
        };
        at += n;
        leaf
    };
    split
        .iter()
        .map(|lengths| {
            let mut state = StateDict::new();
            for (i, n) in lengths.iter().enumerate() {
                state.insert(i.to_string(), piece(*n));
            }
            state
        })
        .collect()
}

fn numbers(from: u64, n: u64) -> Tensor {
    Tensor::from_vec(&[n], (from..from + n).map(|i| i as i64).collect()).unwrap()
}

/// Saves a tensor of 0, 1, 2, … as one split and loads it as another.
fn moves(from: &Split, to: &Split) {
    let place = Place::new();
    let states = ranks_of(from, |at, n| Some(numbers(at, n)));
    for saved in save(group(from.len() as u32), states, place.url(), |_, s| {
        s.dialect(Dialect::Megatron)
    }) {
        saved.unwrap_or_else(|e| panic!("{from:?}: {e}"));
    }
    let loaded = load(
        group(to.len() as u32),
        ranks_of(to, |_, _| None),
        place.url(),
        |_, l| l,
    );
    let mut at = 0;
    for (rank, (loaded, lengths)) in loaded.into_iter().zip(to).enumerate() {
        let (state, _) = loaded.unwrap_or_else(|e| panic!("{from:?} as {to:?}: {e}"));
        for (i, n) in lengths.iter().enumerate() {
            let got = state
                .get(&i.to_string())
                .and_then(|p| p.leaf()?.as_tensor())
                .unwrap();
            assert!(
                *got == numbers(at, *n),
                "{from:?} as {to:?}: piece {i} of rank {rank}"
            );
            at += n;
        }
    }
}

/// One piece a rank.
fn one(lengths: &[u64]) -> Split {
    lengths.iter().map(|n| vec![*n]).collect()
}

/// The splits of Megatron Core's tests of uneven sharding: one piece a rank.
#[test]
fn uneven_splits_of_one_piece_a_rank_are_loaded_as_others() {
    let same: [&[u64]; 5] = [
        &[3; 8],
        &[1, 2, 3, 4, 5, 6, 7, 8],
        &[1, 5, 7, 3, 6, 2, 5, 4],
        &[2, 2, 2, 2, 2, 2, 2, 1],
        &[2, 2, 2, 2, 2, 2, 2, 10],
    ];
    let changed: [(&[u64], &[u64]); 4] = [
        (&[3; 8], &[1, 1, 1, 1, 1, 1, 2, 16]),
        (&[1, 5, 7, 3, 6, 2, 5, 4], &[14, 3, 6, 3, 1, 1, 2, 3]),
        (&[5, 5, 5, 5, 5, 5, 0, 0], &[5, 0, 5, 0, 5, 5, 3, 7]),
        (&[15, 0, 0, 0, 0, 0, 0, 0], &[0, 0, 0, 3, 3, 3, 3, 3]),
    ];
    for (from, to) in same.map(|s| (s, s)).into_iter().chain(changed) {
        moves(&one(from), &one(to));
    }
}

/// The same with several pieces a rank, or none.
#[test]
fn uneven_splits_of_several_pieces_a_rank_are_loaded_as_others() {
    let mixed = || {
        vec![
            vec![4],
            vec![7, 8],
            vec![1],
            vec![1],
            vec![1],
            vec![1],
            vec![1],
            vec![3, 3],
        ]
    };
    let pair =
        |n: usize, a: &[u64], b: &[u64]| [vec![a.to_vec(); n], vec![b.to_vec(); 8 - n]].concat();
    let cases = [
        (pair(8, &[3], &[]), pair(8, &[3], &[])),
        (pair(7, &[], &[3, 3]), pair(7, &[], &[3, 3])),
        (mixed(), mixed()),
        (pair(5, &[2], &[10]), pair(3, &[10], &[2])),
        (
            mixed(),
            vec![
                vec![2, 4],
                vec![],
                vec![5],
                vec![],
                vec![5, 9],
                vec![],
                vec![1; 5],
                vec![],
            ],
        ),
        (pair(8, &[3], &[]), pair(4, &[2, 4], &[])),
    ];
    for (from, to) in &cases {
        moves(from, to);
    }
}

/// Every ordered pair of splits that hold as many elements, not only those that Megatron Core has tried.
#[test]
fn any_split_is_loaded_as_any_other_of_as_many_elements() {
    let of_24 = [
        one(&[3; 8]),
        one(&[1, 1, 1, 1, 1, 1, 2, 16]),
        one(&[24]),
        vec![vec![], vec![0, 23, 1], vec![]],
    ];
    for from in &of_24 {
        for to in &of_24 {
            moves(from, to);
        }
    }
}

/// Megatron Core's test: a tensor of shape (2, 32), which 8 ranks save, loaded as (2, 28) and as (2, 36) on 4.
#[test]
fn a_narrower_or_wider_tensor_is_loaded_if_shapes_may_differ_and_refused_otherwise() {
    let stored = |row: u64, column: u64| match column < 32 {
        true => (1 + row * 32 + column) as i32,
        false => 0,
    };
    let part = |columns: std::ops::Range<u64>| -> Vec<i32> {
        let row = |row| columns.clone().map(move |column| stored(row, column));
        (0..2).flat_map(row).collect()
    };
    for format in [None, Some(Zarr::V2), Some(Zarr::V3(4 << 10))] {
        let place = Place::new();
        let states = (0..8).map(|rank| {
            let data = Tensor::from_vec(&[2, 4], part(4 * rank..4 * rank + 4)).unwrap();
            let mut state = StateDict::new();
            let leaf = ShardedTensor::from_rank_offsets("keyA", data, &[(1, rank, 8)]);
            state.insert("a", leaf.unwrap());
            state
        });
        let saved = save(
            group(8),
            states.collect(),
            place.url(),
            move |_, s| match format {
                None => s.dialect(Dialect::Megatron),
                Some(zarr) => s.strategy(zarr.config()),
            },
        );
        saved.into_iter().for_each(|saved| drop(saved.unwrap()));
        for width in [7, 9] {
            let templates = |flexible: bool| -> Vec<StateDict> {
                let template = |rank| {
                    let cut = [(1, rank, 4)];
                    let leaf =
                        ShardedTensor::declare("keyA", DType::Int32, &[2, width], &cut, 0).unwrap();
                    let mut state = StateDict::new();
                    state.insert(
                        "a",
                        match flexible {
                            true => leaf.with_shape_mismatch_allowed(),
                            false => leaf,
                        },
                    );
                    state
                };
                (0..4).map(template).collect()
            };
            for loaded in load(group(4), templates(false), place.url(), |_, l| l) {
                let e = loaded.map(drop).unwrap_err();
                assert_eq!(e.kind(), ErrorKind::Invalid, "{format:?}");
                let (said, asked) = (chain(&e), 4 * width);
                let both = format!(
                    "keyA has shape [2, 32] in the checkpoint, in [1, 8] fragments, but [2, {asked}] was asked for in [1, 4] fragments; axis 1 differs"
                );
                assert!(said.contains(&both), "{format:?}: {said}");
            }
            let loaded = load(group(4), templates(true), place.url(), |_, l| l);
            for (rank, loaded) in (0..).zip(loaded) {
                let (state, _) = loaded.unwrap_or_else(|e| panic!("{format:?}: {e}"));
                let got = state.get("a").and_then(|t| t.leaf()?.as_tensor()).unwrap();
                let want = part(width * rank..width * (rank + 1));
                assert_eq!(got.to_vec::<i32>().unwrap(), want, "{format:?}, {width}");
            }
        }
    }
}

fn cell(value: impl Into<Value>, offset: u64) -> StateDict {
    ShardedObject::new("rng", value, &[2], &[offset], 0)
        .unwrap()
        .into()
}

fn dict<const N: usize>(leaves: [(&str, StateDict); N]) -> StateDict {
    let mut out = StateDict::new();
    for (key, leaf) in leaves {
        out.insert_tree(key, leaf);
    }
    out
}

fn value(v: impl Into<Value>) -> StateDict {
    Tree::Leaf(v.into().into())
}

/// An error with its sources.
fn chain(e: &dyn std::error::Error) -> String {
    match e.source() {
        Some(source) => format!("{e}: {}", chain(source)),
        None => e.to_string(),
    }
}

/// A checkpoint in which rank 0 has two leaves of cell 0, and rank 1 one of cell 1.
fn cells() -> Place {
    let place = Place::new();
    let states = vec![
        dict([("a", cell(1, 0)), ("b", cell(2, 0))]),
        dict([("a", cell(3, 1))]),
    ];
    for saved in save(group(2), states, place.url(), |_, s| {
        s.dialect(Dialect::Megatron)
    }) {
        saved.unwrap();
    }
    place
}

fn ints(state: &ValueTree) -> Vec<Option<i64>> {
    ["a", "b"]
        .map(|k| state.get(k).and_then(|t| t.leaf()?.as_int()))
        .to_vec()
}

#[test]
fn leaves_of_one_cell_on_one_rank_are_a_list_and_come_back_in_order() {
    let place = cells();
    let ask = |offset| cell(0, offset);
    let templates = vec![dict([("a", ask(1))]), dict([("a", ask(0)), ("b", ask(0))])];
    let got: Vec<_> = load(group(2), templates, place.url(), |_, l| l)
        .into_iter()
        .map(|l| ints(&l.unwrap().0))
        .collect();
    assert_eq!(got, [vec![Some(3), None], vec![Some(1), Some(2)]]);
}

#[test]
fn as_many_leaves_must_ask_for_a_cell_as_it_was_saved_from() {
    let place = cells();
    let refused = |template: StateDict| {
        let e = load(group(1), vec![template], place.url(), |_, l| l)
            .remove(0)
            .unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Invalid);
        chain(&e)
    };
    let said = refused(dict([("a", cell(0, 0))]));
    assert!(
        said.contains(
            "object rng/shard_0_2 is stored as 2 values, but 1 leaves of the template ask for it"
        ),
        "{said}"
    );
    let said = refused(dict([("a", cell(0, 1)), ("b", cell(0, 1))]));
    assert!(
        said.contains(
            "object rng/shard_1_2 is stored as 1 values, but 2 leaves of the template ask for it"
        ),
        "{said}"
    );
}

#[test]
fn a_saved_directory_holds_no_trace_of_a_local_leaf() {
    for dialect in [Dialect::Megatron, Dialect::Dcp] {
        let dir = tempfile::tempdir().unwrap();
        let url = dir.path().join("ckpt");
        let state = || {
            let within = dict([
                ("kept", value("this is common")),
                (
                    "lr_scheduler_lambda",
                    LocalNonpersistent::new("a closure of this process".to_string()).into(),
                ),
            ]);
            dict([
                ("w", ShardedTensor::full("w", numbers(0, 3)).into()),
                ("nested", within),
                (
                    "only_local",
                    dict([("of_this_process", LocalNonpersistent::new(7u8).into())]),
                ),
                (
                    "list_of_local",
                    Tree::List(vec![LocalNonpersistent::new(8u8).into()]),
                ),
            ])
        };
        let states = vec![state(), state()];
        let states = states
            .into_iter()
            .zip(0..)
            .map(|(s, r)| replica(s, r))
            .collect();
        for saved in save(group(2), states, url.to_str().unwrap(), move |_, s| {
            s.dialect(dialect)
        }) {
            saved.unwrap();
        }
        let mut files = 0;
        for entry in std::fs::read_dir(&url).unwrap() {
            let path = entry.unwrap().path();
            let bytes = std::fs::read(&path).unwrap();
            files += 1;
            for trace in [
                "lr_scheduler_lambda",
                "closure",
                "only_local",
                "of_this_process",
                "list_of_local",
            ] {
                let found = bytes.windows(trace.len()).any(|w| w == trace.as_bytes());
                assert!(!found, "{dialect:?}: {} holds {trace:?}", path.display());
            }
        }
        assert!(files >= 2, "{dialect:?}: {files} files");

        // What the template brings along is what a load hands back.
        let local =
            |tree: &ValueTree, path: [&str; 2]| match tree.get(path[0])?.get(path[1])?.leaf()? {
                Value::Local(l) => l.0.downcast_ref::<String>().cloned(),
                other => panic!("{other:?}"),
            };
        let loaded = load(group(1), vec![state()], url.to_str().unwrap(), |_, l| l)
            .remove(0)
            .unwrap()
            .0;
        let back = local(&loaded, ["nested", "lr_scheduler_lambda"]);
        assert_eq!(
            back.as_deref(),
            Some("a closure of this process"),
            "{dialect:?}"
        );
        let kept = loaded
            .get("nested")
            .and_then(|n| n.get("kept")?.leaf()?.as_str());
        assert_eq!(kept, Some("this is common"), "{dialect:?}");
    }
}

fn replica(mut state: StateDict, rank: u32) -> StateDict {
    state.insert(
        "w",
        ShardedTensor::full("w", numbers(0, 3)).with_replica_id(rank),
    );
    state
}

#[test]
fn a_local_leaf_where_common_state_is_stored_is_an_error_with_its_path() {
    let place = Place::new();
    let state = dict([("opt", dict([("lr", value(0.5))]))]);
    save(group(1), vec![state], place.url(), |_, s| {
        s.dialect(Dialect::Megatron)
    })
    .remove(0)
    .unwrap();
    let template = dict([("opt", dict([("lr", LocalNonpersistent::new(1u8).into())]))]);
    let e = load(group(1), vec![template], place.url(), |_, l| l)
        .remove(0)
        .unwrap_err();
    let said = chain(&e);
    assert!(
        e.kind() == ErrorKind::Invalid && said.contains("opt.lr"),
        "{said}"
    );
}

/// A DCP save of leaves that share a key says so before it writes, and names both.
#[test]
fn leaves_of_one_key_that_differ_are_refused_with_their_paths_and_nothing_is_saved() {
    let place = Place::new();
    let leaf = |from| -> StateDict { ShardedTensor::full("w", numbers(from, 3)).into() };
    let state = |b| dict([("a", leaf(0)), ("deep", dict([("b", leaf(b))]))]);
    let dcp = |state| {
        save(group(1), vec![state], place.url(), |_, s| {
            s.dialect(Dialect::Dcp)
        })
        .remove(0)
    };
    let e = dcp(state(1)).unwrap_err();
    let said = chain(&e);
    assert!(
        said.contains("the leaves at a and deep.b of rank 0"),
        "{said}"
    );
    assert!(place.files().is_empty() && place.leftovers() == 0);
    dcp(state(0)).unwrap();
}
