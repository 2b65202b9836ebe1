//! Zarr checkpoints, as the program shows, checks and converts them.

use crate::{run, states::Saved};
use futures::{executor::block_on, future::join_all};
use reshard::{
    BackendVersion, Dialect, LocalGroup, Region, ShardedObject, ShardedTensor, StateDict, Tensor,
    Value, blocking::Checkpoint, strategy::SaveShardedStrategy,
};
use std::{fs, future::IntoFuture, path::Path};

/// Two ranks: a tensor cut by rows that don't divide, a flattened one, objects, common state.
fn states() -> [StateDict; 2] {
    [0u64, 1].map(|rank| {
        let mut state = StateDict::new();
        let rows = Region::new([3 * rank, 0], [3 - rank, 4]);
        let data = (0..rows.lengths[0] * 4)
            .map(|i| (12 * rank + i) as f32)
            .collect();
        let data = Tensor::from_vec(&rows.lengths, data).unwrap();
        let leaf = ShardedTensor::region_of("layer.weight", reshard::DType::Float32, &[5, 4], rows);
        state.insert("w", leaf.with_data(data));
        let half = Tensor::from_vec(&[3], (0..3).map(|i| (3 * rank + i) as i64).collect()).unwrap();
        let range = 3 * rank..3 * rank + 3;
        let flat =
            ShardedTensor::from_rank_offsets_flat("optimizer/step", half, &[2, 3], &[], 0, range);
        state.insert("flat", flat.unwrap());
        let rng = ShardedObject::new(
            "rng_state",
            Value::List(vec![Value::Int(7 + rank as i64)]),
            &[2],
            &[rank],
            0,
        );
        state.insert("rng", rng.unwrap());
        state.insert("iteration", 1000);
        state
    })
}

pub(crate) fn save(url: &str, config: &dyn Fn() -> SaveShardedStrategy, overwrite: bool) {
    let states = states();
    let groups = LocalGroup::new(2);
    let saves = states.iter().zip(&groups).map(|(state, group)| {
        let save = reshard::save(state, url)
            .group(group)
            .dialect(Dialect::Megatron);
        save.overwrite(overwrite).strategy(config()).into_future()
    });
    block_on(join_all(saves))
        .into_iter()
        .for_each(|r| drop(r.unwrap()));
}

fn zarr() -> SaveShardedStrategy {
    reshard::zarr::ZarrConfig::default().into()
}

fn zarr3() -> SaveShardedStrategy {
    reshard::zarr::Zarr3Config::default().into()
}

pub(crate) fn torch_dist() -> SaveShardedStrategy {
    reshard::torch_dist::TorchDistConfig::default().into()
}

fn saved() -> Saved {
    Saved::made(|url| save(url, &zarr, false))
}

pub(crate) fn names(url: &str) -> Vec<String> {
    let (mut out, mut folders) = (Vec::new(), vec![Path::new(url).to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false => out.push(path.strip_prefix(url).unwrap().display().to_string()),
            }
        }
    }
    out.sort();
    out
}

/// Copies all files of a folder.
pub(crate) fn copy(from: &str, to: &str) {
    for name in names(from) {
        let to = Path::new(to).join(&name);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(Path::new(from).join(&name), to).unwrap();
    }
}

const FILES: [&str; 11] = [
    "common.pt",
    "layer.weight/.zarray",
    "layer.weight/0.0",
    "layer.weight/1.0",
    "metadata.json",
    "optimizer/step/.zarray",
    "optimizer/step/0.0",
    "reshard-zarr.json",
    "reshard.json",
    "rng_state/shard_0_2.pt",
    "rng_state/shard_1_2.pt",
];

#[test]
fn it_is_shown_checked_and_converted() {
    let saved = saved();
    assert_eq!(names(&saved.url), FILES);
    let json = fs::read_to_string(saved.path("metadata.json")).unwrap();
    assert_eq!(
        json,
        r#"{"sharded_backend": "zarr", "sharded_backend_version": 1, "common_backend": "torch", "common_backend_version": 1}"#
    );
    let shown = run(&["inspect", &saved.url]).ok();
    assert!(
        shown.contains("zarr/1") && shown.contains("layer.weight"),
        "{shown}"
    );
    let listed = run(&["ls", &saved.url]).ok();
    assert!(
        listed.contains("optimizer/step") && listed.contains("rng_state/shard_1_2"),
        "{listed}"
    );
    let sound = run(&["verify", &saved.url]).ok();
    assert!(sound.contains("checked every checksum\n"), "{sound}");

    // Without the record it is as Megatron Core leaves it; only the archives of objects have checksums.
    let plain = saved.beside("plain");
    copy(&saved.url, &plain);
    for record in ["reshard-zarr.json", "reshard.json"] {
        fs::remove_file(Path::new(&plain).join(record)).unwrap();
    }
    let sound = run(&["verify", &plain]).ok();
    assert!(
        sound.contains("checked every checksum; 3 items without one\n"),
        "{sound}"
    );

    // The converter that Megatron Core's guide asks for.
    let to = saved.beside("torch_dist");
    let said = run(&["convert", &saved.url, &to, "--ranks", "3"]).ok();
    assert!(said.starts_with("converted  "), "{said}");
    assert_eq!(run(&["verify", &to]).code, 0);
    let tensors = |url: &str| run(&["digest", url, "--json"]).json()["tensors"].clone();
    assert_eq!(tensors(&to), tensors(&saved.url));
    let (new, old) = (
        Checkpoint::open(&to).unwrap(),
        Checkpoint::open(&saved.url).unwrap(),
    );
    assert_eq!(&*new.backend().backend, "torch_dist");
    assert_eq!(new.common().unwrap(), old.common().unwrap());
    // Each cell is a list there, also if it holds a list.
    for (n, key) in ["rng_state/shard_0_2", "rng_state/shard_1_2"]
        .into_iter()
        .enumerate()
    {
        let value = Value::List(vec![Value::Int(7 + n as i64)]);
        assert_eq!(old.object(key).unwrap(), value);
        assert_eq!(new.object(key).unwrap(), Value::List(vec![value]));
    }

    // It is what a save of the same state in that format would have given.
    let direct = saved.beside("direct");
    save(&direct, &torch_dist, false);
    assert_eq!(tensors(&direct), tensors(&saved.url));
}

#[test]
fn a_replacement_removes_its_files_and_no_others() {
    let saved = saved();
    for (name, bytes) in [
        ("layer.weight/notes.txt", "mine"),
        ("runs/0", "mine"),
        ("runs/.zarray", "mine"),
        ("more/zarr.json", "mine"),
        (
            "theirs/.zarray",
            r#"{"zarr_format": 2, "shape": [2], "chunks": [2], "dtype": "<i4", "compressor": null, "fill_value": 0, "order": "C", "filters": null}"#,
        ),
        ("theirs/0", "12345678"),
        ("layer.weight/9.9", "old"),
        ("layer.weight.sync/0.0", ""),
    ] {
        fs::create_dir_all(saved.path(name).parent().unwrap()).unwrap();
        fs::write(saved.path(name), bytes).unwrap();
    }
    let over = saved.url.clone();
    save(&over, &torch_dist, true);
    let left = names(&saved.url);
    let zarrs: Vec<&String> = left
        .iter()
        .filter(|name| name.contains('/') || name.contains("zarr"))
        .collect();
    let others = [
        "layer.weight/notes.txt",
        "more/zarr.json",
        "runs/.zarray",
        "runs/0",
        "theirs/.zarray",
        "theirs/0",
    ];
    assert_eq!(zarrs, others);
    save(&over, &zarr, true);
    let mut want: Vec<&str> = FILES.to_vec();
    want.extend(others);
    want.sort_unstable();
    assert_eq!(names(&saved.url), want);
    let keys = Checkpoint::open(&saved.url).unwrap();
    assert!(keys.tensors().all(|t| t.key() != "theirs"));
}

/// Lock files of Megatron Core, chunks beyond the shape, and what a killed save left. Nothing else goes.
#[test]
fn what_is_left_over_is_pruned() {
    for format in [zarr as fn() -> SaveShardedStrategy, zarr3] {
        let saved = Saved::made(|url| save(url, &format, false));
        let (files, digest) = (names(&saved.url), run(&["digest", &saved.url]).ok());
        let v3 = saved.path("reshard-zarr3.json").exists();
        let leftovers = match v3 {
            true => ["layer.weight/c/9/9", "layer.weight/c/2/0"].as_slice(),
            false => &[
                "layer.weight/9.9",
                "layer.weight.sync/.zarray",
                "layer.weight.sync/0.0",
                "layer.weight.sync/1.0",
            ],
        };
        let others = ["layer.weight/notes.txt", "README.md", "runs/0"];
        for name in leftovers.iter().chain(&others) {
            fs::create_dir_all(saved.path(name).parent().unwrap()).unwrap();
            fs::write(saved.path(name), "12345678").unwrap();
        }
        let unfinished = saved.beside(".ckpt.1-1a2b3c4d5e6f7082-3.tmp");
        fs::create_dir_all(Path::new(&unfinished).join("layer.weight")).unwrap();
        fs::write(Path::new(&unfinished).join("layer.weight/0.0"), "1").unwrap();

        // A save may be writing them.
        run(&["prune", &saved.url]).ok();
        assert_eq!(names(&saved.url).len(), files.len() + leftovers.len() + 3);
        let text = run(&["prune", &saved.url, "--older-than", "0s"]).ok();
        assert!(leftovers.iter().all(|name| text.contains(name)), "{text}");
        let mut want: Vec<&str> = files.iter().map(String::as_str).collect();
        want.extend(others);
        want.sort_unstable();
        assert_eq!(names(&saved.url), want);
        assert!(!Path::new(&unfinished).exists());
        assert_eq!(run(&["digest", &saved.url]).ok(), digest);
        assert_eq!(run(&["verify", &saved.url]).code, 0);
    }
}

#[test]
fn damage_is_told_with_its_file() {
    let saved = saved();
    fs::write(saved.path("layer.weight/1.0"), [0; 47]).unwrap();
    let ran = run(&["verify", &saved.url]);
    assert_eq!(ran.code, 1, "{}", ran.out);
    let all = format!("{}{}", ran.out, ran.err);
    assert!(
        all.contains("layer.weight/1.0") && all.contains("47 bytes"),
        "{all}"
    );
}

/// Without `metadata.json` the names of folders tell the format; with common state beside them the user has to.
#[test]
fn directories_from_before_metadata_json_are_recognised() {
    let saved = saved();
    let common = fs::read(saved.path("common.pt")).unwrap();
    for name in [
        "metadata.json",
        "reshard.json",
        "reshard-zarr.json",
        "common.pt",
    ] {
        fs::remove_file(saved.path(name)).unwrap();
    }
    let format = |c: &Checkpoint| (c.backend().to_string(), c.dialect());
    let opened = Checkpoint::open(&saved.url).unwrap();
    assert_eq!(format(&opened), ("zarr/1".into(), Dialect::Dcp));
    assert_eq!(opened.tensors().count(), 2);

    fs::write(saved.path("common.pt"), common).unwrap();
    let opened = Checkpoint::open(&saved.url).unwrap();
    assert_eq!(format(&opened), ("zarr/1".into(), Dialect::Megatron));
    let shown = run(&["inspect", &saved.url]);
    assert!(
        shown
            .out
            .contains("nothing records that its save was finished"),
        "{}",
        shown.out
    );
    let iteration = opened.common().unwrap();
    assert_eq!(
        iteration.get("iteration").and_then(|v| v.leaf()?.as_int()),
        Some(1000)
    );
    assert_eq!(opened.objects().count(), 2);
    assert_eq!(run(&["verify", &saved.url]).code, 0);
    let home = tempfile::tempdir().unwrap();
    let other = home.path().join("other").display().to_string();
    let copy = run(&["convert", &saved.url, &other]);
    assert_eq!(copy.code, 0, "{}", copy.err);
    assert!(
        copy.err
            .contains("nothing records that its save was finished"),
        "{}",
        copy.err
    );
}

#[test]
fn a_save_that_was_killed_is_not_taken_for_a_directory_from_before_metadata_json() {
    let killed = |damage: &dyn Fn(&Saved), why: &str| {
        let saved = saved();
        for name in ["metadata.json", "reshard.json", "reshard-zarr.json"] {
            fs::remove_file(saved.path(name)).unwrap();
        }
        Checkpoint::open(&saved.url).unwrap();
        damage(&saved);
        let e = Checkpoint::open(&saved.url).unwrap_err().to_string();
        for part in ["never finished", why, "choose the format zarr/1"] {
            assert!(e.contains(part), "{part}: {e}");
        }
        // Whoever knows better says so.
        let chosen = reshard::OpenOptions::new().format(BackendVersion::new("zarr", 1));
        let opened = block_on(chosen.open(&saved.url)).unwrap();
        assert_eq!(opened.dialect(), Dialect::Megatron);
    };
    // It has written some of its chunks.
    let missing = |saved: &Saved| fs::remove_file(saved.path("layer.weight/1.0")).unwrap();
    killed(
        &missing,
        "a chunk of layer.weight is missing: layer.weight/1.0",
    );
    // A chunk is there in part.
    let short = |saved: &Saved| fs::write(saved.path("layer.weight/1.0"), [0; 7]).unwrap();
    killed(&short, "it has 7 bytes");
    // Some of the ranks that share a chunk may have written their parts.
    let locked = |saved: &Saved| {
        fs::create_dir(saved.path("optimizer/step.sync")).unwrap();
        fs::write(saved.path("optimizer/step.sync/0.0"), "").unwrap();
    };
    killed(
        &locked,
        "several ranks wrote parts of the chunks of optimizer/step",
    );
    // An array of which there is only a beginning.
    let begun = |saved: &Saved| fs::write(saved.path("layer.weight/.zarray"), "{").unwrap();
    killed(&begun, "array layer.weight can't be read");
    // What reshard saved has a record beside it.
    let record = |saved: &Saved| {
        let empty = r#"{"schema":1,"arrays":{}}"#;
        fs::write(saved.path("reshard-zarr.json"), empty).unwrap();
    };
    killed(&record, "reshard saved it");
}
