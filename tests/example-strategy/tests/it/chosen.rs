//! A program that names the crate in one line, and chooses its strategy and its store by configuration alone.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use reshard::{
    BackendVersion, Checkpoint, DType, LocalGroup, Registry, ShardedObject, ShardedTensor,
    StateDict, Stores, Tensor, Value, strategy::Registration,
};
use reshard_comm::testkit::on_ranks;
use reshard_example as _;

const CONFIG: &str = r#"{ "format": "example" }"#;

/// Row block `rank` of `ranks` of a matrix, an object a rank, and common state.
fn state(rank: u64, ranks: u64) -> StateDict {
    let rows = 12 / ranks;
    let elements = (rank * rows * 5..(rank + 1) * rows * 5)
        .map(|i| i as f32)
        .collect();
    let local = Tensor::from_vec(&[rows, 5], elements).unwrap();
    let mut state = StateDict::new();
    let weight = ShardedTensor::from_rank_offsets("weight", local, &[(0, rank, ranks)]).unwrap();
    state.insert("weight", weight);
    let rng = ShardedObject::new("rng", Value::Int(rank as i64), &[ranks], &[rank], 0).unwrap();
    state.insert("rng", rng);
    state.insert("step", 7);
    state
}

fn there_and_back(url: &str) {
    let saved = url.to_owned();
    let outcomes = on_ranks(LocalGroup::new(3), move |group| {
        let url = saved.clone();
        async move {
            let state = state(u64::from(reshard::ProcessGroup::rank(&group).0), 3);
            let config: reshard::strategy::SaveShardedStrategy =
                serde_json::from_str(CONFIG).unwrap();
            reshard::save(&state, &url)
                .group(&group)
                .strategy(config)
                .await
                .map(drop)
        }
    });
    outcomes.into_iter().for_each(|outcome| outcome.unwrap());

    let loaded_from = url.to_owned();
    let outcomes = on_ranks(LocalGroup::new(2), move |group| {
        let url = loaded_from.clone();
        async move {
            let rank = u64::from(reshard::ProcessGroup::rank(&group).0);
            let mut template = StateDict::new();
            let half =
                ShardedTensor::declare("weight", DType::Float32, &[6, 5], &[(0, rank, 2)], 0)
                    .unwrap();
            template.insert("weight", half);
            let mut rng = ShardedObject::new("rng", Value::None, &[3], &[rank], 0).unwrap();
            rng.data = Default::default();
            template.insert("rng", rng);
            // Nothing says which strategy: the checkpoint does.
            let plain = reshard::load(template, &url).group(&group).await.unwrap();
            let leaf = |key: &str| plain.get(key).and_then(|t| t.leaf()).unwrap().clone();
            let rows = leaf("weight").as_tensor().unwrap().to_vec::<f32>().unwrap();
            assert_eq!(
                rows,
                (rank * 30..(rank + 1) * 30)
                    .map(|i| i as f32)
                    .collect::<Vec<_>>()
            );
            assert_eq!(
                (leaf("rng"), leaf("step")),
                (Value::Int(rank as i64), Value::Int(7))
            );
        }
    });
    assert_eq!(outcomes.len(), 2);
}

#[test]
fn it_is_chosen_by_configuration_alone() {
    let dir = tempfile::tempdir().unwrap();
    let url = dir.path().join("step-7").display().to_string();
    there_and_back(&url);
    let mut files: Vec<_> = std::fs::read_dir(&url)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    files.sort();
    assert_eq!(
        files,
        [
            "common.pt",
            "example.index.json",
            "metadata.json",
            "rank-0.bin",
            "rank-1.bin",
            "rank-2.bin",
            "reshard.json"
        ]
    );
}

#[test]
fn its_store_is_chosen_by_the_url_alone() {
    there_and_back("example://chosen");
    let e = reshard::blocking::save(&state(0, 1), "example://chosen").unwrap_err();
    assert_eq!(e.kind(), reshard::ErrorKind::Exists, "{e}");
}

#[test]
fn its_checkpoints_are_opened_like_any_other() {
    there_and_back("example://opened");
    let opened = reshard::blocking::Checkpoint::open("example://opened").unwrap();
    assert_eq!(opened.backend(), &BackendVersion::new("example", 1));
    let row = opened
        .tensor("weight")
        .unwrap()
        .read(reshard::Region::rows(4..5))
        .unwrap();
    assert_eq!(row.to_vec::<f32>().unwrap(), [20., 21., 22., 23., 24.]);
    assert!(
        opened
            .verify(true, Default::default())
            .unwrap()
            .damage
            .is_empty()
    );
    assert_eq!(
        opened.common().unwrap().get("step").and_then(|t| t.leaf()),
        Some(&Value::Int(7))
    );
}

#[test]
fn any_strategy_saves_to_its_store() {
    reshard::blocking::save(&state(0, 1), "example://torch").unwrap();
    let opened = futures::executor::block_on(Checkpoint::open("example://torch")).unwrap();
    assert_eq!(opened.backend().backend.as_ref(), "torch_dist");
}

#[test]
fn what_is_linked_is_listed_where_something_is_unknown() {
    let registry = Registry::linked().unwrap();
    let e = registry
        .load_sharded(&BackendVersion::new("nothing", 1))
        .unwrap_err()
        .to_string();
    assert!(
        e.contains("nothing/1") && e.contains("example/1") && e.contains("torch_dist/1"),
        "{e}"
    );
    let e = Stores::linked()
        .unwrap()
        .open("nothing://x")
        .unwrap_err()
        .to_string();
    assert!(
        e.contains("nothing") && e.contains("example") && e.contains("file"),
        "{e}"
    );
    let e = serde_json::from_str::<reshard::strategy::SaveShardedStrategy>(
        r#"{ "format": "nothing" }"#,
    )
    .unwrap_err();
    assert!(
        e.to_string().contains("example") && e.to_string().contains("torch_dist"),
        "{e}"
    );
}

#[test]
fn a_second_claim_of_its_key_names_both_crates() {
    let mut registry = Registry::linked().unwrap();
    let mine: Vec<Registration> = registry
        .iter()
        .filter(|r| r.backend == "example")
        .copied()
        .collect();
    assert_eq!(mine.len(), 2, "it saves and it loads");
    for r in mine {
        let e = registry
            .register(Registration {
                origin: "somebody-else",
                ..r
            })
            .unwrap_err()
            .to_string();
        assert!(
            e.contains("reshard-example") && e.contains("somebody-else"),
            "{e}"
        );
    }
}
