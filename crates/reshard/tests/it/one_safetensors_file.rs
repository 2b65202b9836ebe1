//! A URL that ends with `.safetensors` is one file.
#![cfg(all(feature = "safetensors", feature = "local"))]

use futures::{executor::block_on, future::join_all};
use reshard::{
    Dialect, LocalGroup, Region, ShardedTensor, StateDict, Tensor,
    blocking::{self, Checkpoint},
    policy::{ByItem, MIB, MaxShardSize},
    safetensors::SafetensorsConfig,
};

#[test]
fn ranks_save_one_file_and_others_read_it() {
    let dir = tempfile::tempdir().unwrap();
    let url = dir.path().join("tiny.safetensors").display().to_string();
    let groups = LocalGroup::new(2);
    let states: Vec<StateDict> = (0..2u64)
        .map(|rank| {
            let rows = Region::new([2 * rank, 0], [2, 3]);
            let data = Tensor::from_vec(&[2, 3], vec![rank as f32; 6]).unwrap();
            let leaf = ShardedTensor::region_of("w", reshard::DType::Float32, &[4, 3], rows);
            let mut state = StateDict::new();
            state.insert("w", leaf.with_data(data));
            state.insert("plain", Tensor::from_vec(&[2], vec![7i64, 8]).unwrap());
            state
        })
        .collect();
    for overwrite in [false, true] {
        let saves = groups.iter().zip(&states).map(|(group, state)| {
            let save = reshard::save(state, &url)
                .group(group)
                .overwrite(overwrite)
                .strategy(SafetensorsConfig::default().with_max_shard_size(8));
            async { save.await }
        });
        for saved in block_on(join_all(saves)) {
            saved.unwrap();
        }
        let names: Vec<_> = std::fs::read_dir(dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(names, ["tiny.safetensors"]);
        let checkpoint = Checkpoint::open(&url).unwrap();
        let w = checkpoint.tensor("w").unwrap().read(..).unwrap();
        let rows = [[0f32; 6], [1f32; 6]].concat();
        assert_eq!(w.to_vec::<f32>().unwrap(), rows);
        let plain = checkpoint.tensor("plain").unwrap().read(..).unwrap();
        assert_eq!(plain.to_vec::<i64>().unwrap(), [7, 8]);
    }
}

#[test]
fn what_is_no_tensor_is_refused_by_its_path() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["x.safetensors", "folder"] {
        let url = dir.path().join(name).display().to_string();
        let mut state = StateDict::new();
        state.insert("step", 7);
        for dialect in [None, Some(Dialect::Dcp)] {
            let mut save = reshard::save(&state, &url).strategy(SafetensorsConfig::default());
            if let Some(dialect) = dialect {
                save = save.dialect(dialect);
            }
            let e = blocking::run(save).unwrap_err().to_string();
            assert!(e.contains("step"), "{e}");
        }
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn a_policy_decides_on_the_files_of_a_folder_and_only_limits_one_file() {
    let dir = tempfile::tempdir().unwrap();
    let mut state = StateDict::new();
    for key in ["a", "b", "c"] {
        state.insert(
            key,
            Tensor::from_vec(&[1 << 17], vec![1f32; 1 << 17]).unwrap(),
        );
    }
    let save = |name: &str, limit: u64| {
        let url = dir.path().join(name).display().to_string();
        let saved = reshard::save(&state, &url)
            .strategy(SafetensorsConfig::default())
            .policy(MaxShardSize::new(limit));
        blocking::run(saved).map(|_| url)
    };
    // Two tensors and a header.
    let url = save("folder", MIB + 1000).unwrap();
    let file = std::path::Path::new(&url).join("model-00002-of-00002.safetensors");
    assert!(file.exists());
    assert_eq!(Checkpoint::open(&url).unwrap().tensors().count(), 3);
    let e = save("one.safetensors", MIB).unwrap_err().to_string();
    assert!(
        e.contains("one.safetensors would have") && e.contains("the limit of 1 MiB"),
        "{e}"
    );
    save("one.safetensors", 2 * MIB).unwrap();
    let url = dir.path().join("other.safetensors").display().to_string();
    let by_item = reshard::save(&state, &url)
        .strategy(SafetensorsConfig::default())
        .policy(ByItem::new());
    let e = blocking::run(by_item).unwrap_err().to_string();
    assert!(e.contains("policy"), "{e}");
}
