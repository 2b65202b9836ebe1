//! One rank reads a file of `torch.save`, and all get their parts: DCP's `BroadcastingTorchSaveReader`.

use reshard::{
    LoadError, LocalGroup, Region, ShardedTensor, StateDict, Value, ValueTree,
    storage::{CountingStore, LocalStore, PlaceKind, Store},
    torch_save::TorchSaveLoadConfig,
};
use reshard_golden::root;
use reshard_parallel::OneReaderLoad;
use std::sync::Arc;

/// Loads `src.pt` on ranks with these templates. Returns what each rank read, too.
fn load(templates: Vec<StateDict>) -> Vec<(Result<ValueTree, LoadError>, u64)> {
    let path = root().join("dcp/torch_save_to_dcp/src.pt");
    let url = path.display().to_string();
    let groups = LocalGroup::new(templates.len() as u32);
    std::thread::scope(|scope| {
        let ranks: Vec<_> = groups
            .into_iter()
            .zip(templates)
            .map(|(group, template)| {
                let (path, url) = (path.clone(), url.clone());
                scope.spawn(move || {
                    let folder = LocalStore::at(&path).unwrap();
                    let file = folder.of_kind(PlaceKind::File).unwrap();
                    let counted = Arc::new(CountingStore::new(file));
                    let loaded = reshard::load(template, &url)
                        .group(&group)
                        .store(Arc::<CountingStore>::clone(&counted))
                        .strategy(OneReaderLoad::new().around(TorchSaveLoadConfig::default()));
                    let loaded = reshard::blocking::run(loaded);
                    (loaded, counted.take().read())
                })
            })
            .collect();
        ranks.into_iter().map(|r| r.join().unwrap()).collect()
    })
}

/// A row of `model.w` each, and all of `model.b`.
fn template(rank: u64) -> StateDict {
    let mut state = StateDict::new();
    let row = Region::new([rank.min(3), 0], [u64::from(rank < 3), 4]);
    let w = ShardedTensor::region_of("model.w", reshard::DType::Float32, &[3, 4], row);
    state.insert("w", w);
    let b = ShardedTensor::template("model.b", reshard::DType::BFloat16, &[4]);
    state.insert("b", b.with_replica_id(rank as u32));
    state
}

/// Makes a template wrong.
type Change = fn(&mut StateDict);

#[test]
fn only_one_rank_reads_and_each_gets_its_rows() {
    let whole = load(vec![{
        let mut all = StateDict::new();
        all.insert(
            "w",
            ShardedTensor::template("model.w", reshard::DType::Float32, &[3, 4]),
        );
        all
    }]);
    let tensor = |tree: &ValueTree, key: &str| match tree.get(key).and_then(ValueTree::leaf) {
        Some(Value::Tensor(t)) => t.clone(),
        other => unreachable!("{other:?}"),
    };
    let all = tensor(whole[0].0.as_ref().unwrap(), "w")
        .to_vec::<f32>()
        .unwrap();
    for (rank, (loaded, bytes)) in load((0..4).map(template).collect()).iter().enumerate() {
        let loaded = loaded.as_ref().unwrap();
        let own = tensor(loaded, "w").to_vec::<f32>().unwrap();
        assert_eq!(own, all[(4 * rank).min(12)..(4 * rank + 4).min(12)]);
        assert_eq!(tensor(loaded, "b").nbytes(), 8);
        assert_eq!(*bytes > 0, rank == 0, "rank {rank} read {bytes} bytes");
    }
}

#[test]
fn what_does_not_fit_the_file_fails_on_every_rank() {
    let with = |edit: fn(&mut StateDict)| {
        let templates = (0..3).map(|rank| {
            let mut state = template(rank);
            if rank == 1 {
                edit(&mut state);
            }
            state
        });
        let loaded = load(templates.collect());
        let told = loaded.into_iter().map(|(loaded, _)| {
            let (error, _) = loaded.unwrap_err().into_parts();
            reshard::strategy::with_sources(error.to_string(), &error)
        });
        told.collect::<Vec<String>>()
    };
    let f32s = reshard::DType::Float32;
    assert_eq!(f32s.size(), 4);
    let cases: [(Change, &str); 4] = [
        (
            |s| {
                drop(s.insert(
                    "x",
                    ShardedTensor::template("model.v", reshard::DType::Float32, &[1]),
                ))
            },
            "model.v is not in the checkpoint",
        ),
        (
            |s| {
                drop(s.insert(
                    "x",
                    ShardedTensor::template("lst.0", reshard::DType::Float32, &[3]),
                ))
            },
            "lst.0 has shape [2] in the checkpoint",
        ),
        (|s| drop(s.insert("x", 7)), "is no tensor"),
        (
            |s| {
                drop(s.insert(
                    "x",
                    ShardedTensor::template("meta.epoch", reshard::DType::Int64, &[]),
                ))
            },
            "meta.epoch",
        ),
    ];
    for (edit, want) in cases {
        for told in with(edit) {
            assert!(told.contains(want), "{told:?} lacks {want:?}");
        }
    }
}
