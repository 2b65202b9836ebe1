//! Megatron Core's entry points, its `integrity.json` and its removal of keys, on checkpoints of our own.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use futures::executor::block_on;
use reshard::{
    Checkpoint, CommonForm, Dialect, ErrorKind, LocalGroup, Save, ShardedObject, ShardedTensor,
    StateDict, Tensor, Value, blocking,
    megatron::{INTEGRITY, Integrity},
    storage::Progress,
    torch_dist::TorchDistConfig,
};
use reshard_comm::testkit::on_ranks;
use std::{fs, path::Path, sync::Arc};

fn numbers(n: u64) -> Tensor {
    Tensor::from_vec(&[n], (0..n).map(|i| i as f32).collect()).unwrap()
}

/// A model, whose first tensor is stored flattened, and its optimizer.
fn state(rank: u64) -> StateDict {
    let mut state = StateDict::new();
    let half = if rank == 0 { 0..5 } else { 5..12 };
    let data = numbers(half.end - half.start);
    let flat = ShardedTensor::from_rank_offsets_flat("model.flat", data, &[3, 4], &[], 0, half);
    state.insert("flat", flat.unwrap());
    for key in ["model.w", "opt.m", "opt.v"] {
        let piece = ShardedTensor::from_rank_offsets(key, numbers(4), &[(0, rank, 2)]);
        state.insert(key, piece.unwrap());
    }
    for key in ["rng", "opt.rng"] {
        let cell = ShardedObject::new(key, Value::Int(rank as i64), &[2], &[rank], 0).unwrap();
        state.insert(key, cell);
    }
    state.insert("step", 7);
    state
}

fn save(dir: &Path, set: impl for<'a> Fn(Save<'a>) -> Save<'a> + Send + Sync + 'static) -> String {
    let url = dir.join("ckpt").display().to_string();
    let (set, to) = (Arc::new(set), url.clone());
    let saved = on_ranks(LocalGroup::new(2).into_iter().collect(), move |group| {
        let (set, url) = (Arc::clone(&set), to.clone());
        async move {
            let rank = reshard::ProcessGroup::rank(&group).0;
            let state = state(rank.into());
            set(reshard::save(&state, &url).group(&group)).await
        }
    });
    saved.into_iter().for_each(|saved| drop(saved.unwrap()));
    url
}

fn sound(url: &str) {
    let report = blocking::Checkpoint::open(url)
        .unwrap()
        .verify(true, Progress::none())
        .unwrap();
    assert!(report.damage.is_empty(), "{:?}", report.damage);
}

fn keys(url: &str) -> Vec<String> {
    let opened = blocking::Checkpoint::open(url).unwrap();
    let tensors = opened.metadata().tensors().map(|t| t.key().to_owned());
    tensors.chain(opened.objects().map(str::to_owned)).collect()
}

#[test]
fn what_is_listed_can_be_loaded_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    for form in [CommonForm::File, CommonForm::Object] {
        let url = save(&dir.path().join(format!("{form:?}")), move |s| {
            s.common_form(form)
        });
        let listed = blocking::load_sharded_metadata(&url).unwrap();
        let loaded = blocking::load(listed, &url).unwrap();
        let leaf = |key: &str| loaded.get(key).unwrap().leaf().unwrap();
        assert_eq!(leaf("model.flat").as_tensor().unwrap().shape()[..], [3, 4]);
        assert_eq!(leaf("rng/shard_1_2").as_int(), Some(1));
        assert_eq!(leaf("step").as_int(), Some(7));
        let tensors = blocking::load_tensors_metadata(&url).unwrap();
        assert!(tensors.get("rng/shard_1_2").is_none() && tensors.get("model.w").is_some());

        let with = blocking::load_plain_tensors_and_common(&url).unwrap();
        assert_eq!(with.get("step").unwrap().leaf().unwrap().as_int(), Some(7));
        let without = blocking::load_plain_tensors(&url).unwrap();
        assert_eq!(without.len(), 4);
        let w = with
            .get("model.w")
            .unwrap()
            .leaf()
            .unwrap()
            .as_tensor()
            .unwrap();
        assert_eq!(w.to_bytes(), without["model.w"].to_bytes());
    }
}

#[test]
fn an_empty_content_is_told_from_none() {
    let content = Value::Dict(vec![
        (Value::Int(3), Value::Tuple(vec![Value::Int(1), "a".into()])),
        ("kind".into(), Value::None),
    ]);
    let dir = tempfile::tempdir().unwrap();
    for (at, content) in [None, Some(Value::Dict(vec![])), Some(content)]
        .into_iter()
        .enumerate()
    {
        let saved = content.clone();
        let url = save(&dir.path().join(at.to_string()), move |s| match &saved {
            Some(content) => s.content_metadata(content.clone()),
            None => s,
        });
        assert_eq!(blocking::load_content_metadata(&url).unwrap(), content);
    }
}

/// Megatron Core writes the two fields of the common strategy until 0.18, and no more since 0.19.
#[test]
fn metadata_json_is_read_with_4_fields_and_with_2_and_unknown_fields_are_ignored() {
    let dir = tempfile::tempdir().unwrap();
    for form in [CommonForm::File, CommonForm::Object] {
        let url = save(&dir.path().join(format!("{form:?}")), move |s| {
            s.common_form(form)
        });
        let json = Path::new(&url).join("metadata.json");
        let four = r#"{"sharded_backend": "torch_dist", "sharded_backend_version": 1, "common_backend": "torch", "common_backend_version": 1}"#;
        let two = r#"{"sharded_backend": "torch_dist", "sharded_backend_version": 1}"#;
        let written = fs::read_to_string(&json).unwrap();
        let object = form == CommonForm::Object;
        assert_eq!(written, if object { two } else { four });
        let unknown = two.replace('}', r#", "of_2031": {"a": [null]}}"#);
        // It has a digest of the file that was written.
        fs::remove_file(Path::new(&url).join("reshard.json")).unwrap();
        for text in [four, two, &*unknown] {
            fs::write(&json, text).unwrap();
            assert!(blocking::is_distributed_checkpoint(&url).unwrap());
            let common = blocking::load_common(&url).unwrap();
            assert_eq!(
                common.get("step").unwrap().leaf().unwrap().as_int(),
                Some(7)
            );
            sound(&url);
        }
    }
}

#[test]
fn what_is_no_checkpoint_is_told_in_three_ways() {
    let dir = tempfile::tempdir().unwrap();
    let url = |name: &str| dir.path().join(name).display().to_string();
    let open = |name: &str| block_on(Checkpoint::open(&url(name))).unwrap_err();
    let here = dir.path().display().to_string();
    let said = |e: &reshard::Error| e.to_string().replace(&here, "HOME");
    fs::create_dir(dir.path().join("empty")).unwrap();
    fs::create_dir(dir.path().join("broken")).unwrap();
    fs::write(
        dir.path().join("broken/metadata.json"),
        "{\"sharded_backend\": ",
    )
    .unwrap();
    let (missing, empty, broken) = (open("missing"), open("empty"), open("broken"));
    let kinds = [&missing, &empty, &broken].map(|e| e.kind());
    assert_eq!(
        kinds,
        [ErrorKind::NotFound, ErrorKind::NotFound, ErrorKind::Corrupt]
    );
    assert_eq!(
        [said(&missing), said(&empty), said(&broken)],
        [
            "opening HOME/missing: nothing lies at HOME/missing; check the path",
            "opening HOME/empty: it is not a checkpoint: it is empty",
            "opening HOME/broken: metadata.json: it is not a JSON object with sharded_backend and sharded_backend_version",
        ]
    );

    assert!(!blocking::is_distributed_checkpoint(url("missing")).unwrap());
    assert!(!blocking::is_distributed_checkpoint(url("empty")).unwrap());
    assert!(blocking::is_distributed_checkpoint(url("broken")).is_err());
    let megatrons = save(&dir.path().join("m"), |s| s);
    assert!(blocking::is_distributed_checkpoint(&megatrons).unwrap());
}

#[test]
fn keys_are_removed_with_their_files_and_flattened_shapes_stay() {
    let dir = tempfile::tempdir().unwrap();
    let url = save(dir.path(), |s| {
        let config = TorchDistConfig::new().with_separation_hint("opt.");
        s.strategy(config).integrity(true)
    });
    fs::write(dir.path().join("ckpt/README.md"), "of somebody").unwrap();
    fs::write(dir.path().join("ckpt/__9_0.distcp"), "of an older save").unwrap();
    sound(&url);
    let before = blocking::load_plain_tensors(&url).unwrap();
    let would =
        blocking::run(reshard_manager::remove_sharded_tensors(&url, "opt.").dry_run(true)).unwrap();
    assert_eq!(keys(&url).len(), 8);
    let removed = blocking::run(reshard_manager::remove_sharded_tensors(&url, "opt.")).unwrap();
    assert_eq!(would, removed);
    let names = |files: &[reshard::storage::Entry]| -> Vec<String> {
        files.iter().map(|f| f.name.to_string()).collect()
    };
    let gone = names(&removed.files);
    assert!(
        gone.len() == 3 && gone.contains(&"__9_0.distcp".into()),
        "{gone:?}"
    );
    let kept = names(&removed.kept);
    assert!(
        kept.len() == 2
            && kept
                .iter()
                .all(|f| f.starts_with("__") && !gone.contains(f)),
        "{kept:?}"
    );
    let files = names(&blocking::Checkpoint::open(&url).unwrap().files().unwrap());
    assert!(gone.iter().all(|name| !files.contains(name)));
    let mut gone = removed.keys;
    gone.sort();
    assert_eq!(
        gone,
        ["opt.m", "opt.rng/shard_0_2", "opt.rng/shard_1_2", "opt.v"]
    );
    sound(&url);
    assert_eq!(
        keys(&url),
        ["model.flat", "model.w", "rng/shard_0_2", "rng/shard_1_2"]
    );
    let opened = blocking::Checkpoint::open(&url).unwrap();
    let flat = opened.tensor("model.flat").unwrap().flattened_shape();
    assert_eq!(flat, Some([1, 1, 12].into()));
    let after = blocking::load_plain_tensors(&url).unwrap();
    assert!(
        after
            .iter()
            .all(|(key, t)| t.to_bytes() == before[key].to_bytes())
    );
    assert!(matches!(opened.sidecar(), (Some(_), None)));
    assert_eq!(
        fs::read_to_string(dir.path().join("ckpt/README.md")).unwrap(),
        "of somebody"
    );

    // Every file but the stranger's is listed, and no file that is gone.
    let text = fs::read(dir.path().join("ckpt").join(INTEGRITY)).unwrap();
    let listed = Integrity::parse(&text).unwrap();
    assert!(
        listed
            .files()
            .all(|(file, _)| dir.path().join("ckpt").join(file).exists())
    );
    let beside = opened.beside_integrity().unwrap();
    assert_eq!(
        beside.iter().map(|n| n.as_str()).collect::<Vec<_>>(),
        ["README.md"]
    );
}

#[test]
fn keys_are_removed_from_files_that_also_have_others() {
    for dialect in [Dialect::Megatron, Dialect::Dcp] {
        let dir = tempfile::tempdir().unwrap();
        let url = save(dir.path(), move |s| s.dialect(dialect));
        let removed = blocking::run(reshard_manager::remove_sharded_tensors(&url, "opt."));
        let removed = removed.unwrap();
        assert!(
            removed.files.is_empty() && removed.keys.len() == 4,
            "{removed:?}"
        );
        sound(&url);
        assert!(keys(&url).iter().all(|key| !key.starts_with("opt.")));
        let opened = blocking::Checkpoint::open(&url).unwrap();
        assert!(opened.state().unwrap().get("step").is_some(), "{dialect}");
    }
}

#[test]
fn a_prefix_of_everything_or_of_common_state_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let url = save(dir.path(), |s| s.common_form(CommonForm::Object));
    for (prefix, said) in [("", "empty prefix"), ("common", "common state")] {
        let e = blocking::run(reshard_manager::remove_sharded_tensors(&url, prefix)).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Invalid);
        assert!(e.to_string().contains(said), "{e}");
    }
    sound(&url);
    // A prefix below it is of other keys.
    assert!(blocking::run(reshard_manager::remove_sharded_tensors(&url, "opt.")).is_ok());
    assert!(blocking::load_common(&url).unwrap().get("step").is_some());
}

#[test]
fn a_save_with_digests_is_whole_and_a_flipped_byte_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let url = save(dir.path(), |s| s.integrity(true));
    let opened = blocking::Checkpoint::open(&url).unwrap();
    assert!(opened.beside_integrity().unwrap().is_empty());
    let template = || blocking::load_tensors_metadata(&url).unwrap();
    let load = || blocking::run(reshard::load(template(), &url).verify_integrity(true));
    load().unwrap();
    let file = dir.path().join("ckpt/__1_0.distcp");
    let mut bytes = fs::read(&file).unwrap();
    // In the zip's padding or elements: no checksum of the format needs to cover it.
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&file, bytes).unwrap();
    let report = opened.verify(true, Progress::none()).unwrap();
    let named = |d: &reshard::strategy::Damage| d.file.as_deref() == Some("__1_0.distcp");
    assert!(
        report
            .damage
            .iter()
            .any(|d| named(d) && d.what.contains("SHA-256")),
        "{report:?}"
    );
    let e = load().unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Corrupt);

    // Nobody writes it where nobody would look for it.
    let e = blocking::run(
        reshard::save(&state(0), "/nowhere")
            .dialect(Dialect::Dcp)
            .integrity(true),
    );
    assert_eq!(e.unwrap_err().kind(), ErrorKind::Invalid);
}

#[test]
fn settings_of_megatron_core_that_can_not_be_are_refused_before_anything_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let url = dir.path().join("ckpt").display().to_string();
    let config = TorchDistConfig::new;
    for (config, said) in [
        (config().with_separation_hint("opt/"), "separation_hint"),
        (config().with_separation_hint(""), "separation_hint"),
        (config().with_thread_count(0), "thread_count"),
        (config().with_thread_count(u32::MAX), "thread_count"),
    ] {
        let mut state = StateDict::new();
        state.insert("w", ShardedTensor::full("w", numbers(2)));
        let save = reshard::save(&state, &url).strategy(config);
        let e = blocking::run(save).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Invalid);
        assert!(e.to_string().contains(said), "{e}");
        assert!(!Path::new(&url).exists());
    }
}

/// The store is of the handle alone: there is nothing at its URL.
#[test]
fn an_open_checkpoint_has_the_entry_points_too_and_removes_where_it_was_opened() {
    let dir = tempfile::tempdir().unwrap();
    let content = Value::Dict(vec![("kind".into(), Value::Int(3))]);
    let url = save(dir.path(), |s| {
        s.content_metadata(Value::Dict(vec![("kind".into(), Value::Int(3))]))
    });
    let store = reshard::storage::Stores::linked()
        .unwrap()
        .open(&url)
        .unwrap();
    let named = dir.path().join("nothing").display().to_string();
    let options = reshard::OpenOptions::new().store(store);
    let opened = blocking::Checkpoint::open_with(options, &named).unwrap();

    assert!(opened.is_distributed_checkpoint().unwrap());
    assert_eq!(opened.load_content_metadata().unwrap(), Some(content));
    let all = opened.load_sharded_metadata().unwrap();
    assert!(all.get("opt.m").is_some() && all.get("opt.rng/shard_1_2").is_some());
    let tensors = opened.load_tensors_metadata().unwrap();
    assert!(tensors.get("opt.m").is_some() && tensors.get("opt.rng/shard_1_2").is_none());
    assert_eq!(opened.load_plain_tensors().unwrap().len(), 4);
    let with = opened.load_plain_tensors_and_common().unwrap();
    assert!(with.get("step").is_some() && with.get("opt.m").is_some());

    let removed = blocking::run(reshard_manager::remove_sharded_tensors(&url, "opt.")).unwrap();
    assert_eq!(removed.keys.len(), 4, "{removed:?}");
    assert_eq!(
        keys(&url),
        ["model.flat", "model.w", "rng/shard_0_2", "rng/shard_1_2"]
    );
    sound(&url);

    let dcp = save(&dir.path().join("dcp"), |s| s.dialect(Dialect::Dcp));
    let opened = blocking::Checkpoint::open(&dcp).unwrap();
    assert!(!opened.is_distributed_checkpoint().unwrap());
}
