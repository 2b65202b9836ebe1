//! Another program saved over a checkpoint of reshard, or its metadata are damaged: the data files tell which.

use crate::{Ran, run, states::Saved};
use reshard::{
    Dialect, ShardedObject, ShardedTensor, StateDict, Tensor, Value, blocking, safetensors,
    strategy::SaveShardedStrategy, tensor_bundle, torch_save, zarr,
};
use std::{fs, path::Path};

fn saved(key: &str, value: f32, dialect: Dialect) -> Saved {
    Saved::made(|url| {
        let mut state = StateDict::new();
        let tensor = Tensor::from_vec(&[3], vec![value; 3]).unwrap();
        state.insert(key, ShardedTensor::replicated(key, tensor, 0));
        if dialect == Dialect::Megatron {
            state.insert("iteration", 7);
        }
        drop(blocking::run(reshard::save(&state, url).dialect(dialect)).unwrap());
    })
}

fn copy(from: &Saved, to: &Saved, files: &[&str]) {
    for file in files {
        fs::copy(from.path(file), to.path(file)).unwrap();
    }
}

fn status(ran: &Ran) -> (u8, String) {
    let j: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    (ran.code, j["status"].as_str().unwrap().to_owned())
}

fn verified(url: &str, flags: &[&str]) -> (u8, String) {
    status(&run(&[&["verify", url, "--json"][..], flags].concat()))
}

/// A stock program writes its own files, and leaves `reshard.json`.
#[test]
fn a_folder_that_another_program_saved_over_is_changed_and_no_damage() {
    for dialect in [Dialect::Dcp, Dialect::Megatron] {
        let ours = saved("w", 1.0, dialect);
        assert_eq!(verified(&ours.url, &["--strict"]), (0, "sound".into()));
        copy(
            &saved("x", 2.0, dialect),
            &ours,
            &[".metadata", "__0_0.distcp"],
        );
        for flags in [&[][..], &["--quick"], &["--sample", "50%"]] {
            assert_eq!(
                verified(&ours.url, flags),
                (0, "changed".into()),
                "{flags:?}"
            );
            let strict = [flags, &["--strict"]].concat();
            assert_eq!(verified(&ours.url, &strict), (1, "changed".into()));
        }
        let ran = run(&["verify", &ours.url]);
        assert!(
            ran.out.contains("changed") && ran.err.contains("--strict"),
            "{}{}",
            ran.out,
            ran.err
        );
        for command in ["inspect", "ls", "digest", "stats"] {
            assert_eq!(run(&[command, &ours.url]).code, 0, "{command}");
        }
        // Without our record it is that program's.
        fs::remove_file(ours.path("reshard.json")).unwrap();
        assert_eq!(verified(&ours.url, &["--strict"]), (0, "sound".into()));
    }
}

#[test]
fn metadata_that_differ_beside_the_data_that_were_written_are_damaged() {
    for dialect in [Dialect::Dcp, Dialect::Megatron] {
        let ours = saved("w", 1.0, dialect);
        // The same data under another key, of the same length: a stock save of the same bytes can't be told from it.
        copy(&saved("x", 1.0, dialect), &ours, &[".metadata"]);
        for flags in [&[][..], &["--quick"]] {
            assert_eq!(
                verified(&ours.url, flags),
                (1, "damaged".into()),
                "{flags:?}"
            );
        }
        for command in ["inspect", "ls", "digest", "stats"] {
            assert_eq!(run(&[command, &ours.url]).code, 1, "{command}");
        }
        assert_eq!(run(&["convert", &ours.url, &ours.beside("to")]).code, 1);
        assert_eq!(run(&["diff", &ours.url, &ours.url]).code, 2);
        // The way out.
        fs::remove_file(ours.path("reshard.json")).unwrap();
        assert_eq!(verified(&ours.url, &[]), (0, "sound".into()));
    }
}

/// The files of four ranks of Megatron Core, of which the second pipeline stage saved no objects.
#[test]
fn an_array_of_objects_with_holes_is_not_whole() {
    let holes = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/half_of_objects");
    let holes = holes.display().to_string();
    for flags in [&[][..], &["--quick"]] {
        let ran = run(&[&["verify", &holes][..], flags].concat());
        assert!(
            ran.code == 1 && ran.out.contains("has 2 of its 4 cells"),
            "{}{}",
            ran.out,
            ran.err
        );
    }
    let text = run(&["inspect", &holes, "--summary"]).damaged();
    assert!(!text.contains("complete"), "{text}");
    // The tensors are whole.
    assert_eq!(run(&["digest", &holes]).code, 0);
}

#[test]
fn an_array_of_objects_lacks_the_cell_whose_file_is_gone() {
    let saved = Saved::made(|url| {
        let mut state = StateDict::new();
        let tensor = Tensor::from_vec(&[3], vec![1f32; 3]).unwrap();
        state.insert("w", ShardedTensor::replicated("w", tensor, 0));
        for cell in 0..3 {
            let object = ShardedObject::new("rng", Value::Int(cell), &[3], &[cell as u64], 0);
            state.insert(format!("rng{cell}").as_str(), object.unwrap());
        }
        let save = reshard::save(&state, url).dialect(Dialect::Megatron);
        let save = save.strategy(zarr::ZarrConfig::default());
        drop(blocking::run(save).unwrap());
    });
    run(&["verify", &saved.url]).ok();
    fs::remove_file(saved.path("rng/shard_1_3.pt")).unwrap();
    let ran = run(&["verify", "--quick", &saved.url]);
    assert!(
        ran.code == 1 && ran.out.contains("rng/shard_1_3"),
        "{}{}",
        ran.out,
        ran.err
    );
}

/// Two tensors in a format.
fn of_format(config: impl Into<SaveShardedStrategy>, value: f32, in_place: &str) -> Saved {
    let config: SaveShardedStrategy = config.into();
    let is_zarr = config.key().backend.starts_with("zarr");
    let mut saved = Saved::made(|url| {
        let mut state = StateDict::new();
        for key in ["w", "b"] {
            let tensor = Tensor::from_vec(&[6], vec![value; 6]).unwrap();
            state.insert(key, ShardedTensor::replicated(key, tensor, 0));
        }
        if !in_place.is_empty() {
            fs::create_dir(url).unwrap();
        }
        let save = reshard::save(&state, format!("{url}{in_place}"));
        let save = save.dialect(Dialect::TensorsOnly);
        let save = match is_zarr {
            true => save,
            false => save.policy(reshard::policy::MaxShardSize::new(24)),
        };
        drop(blocking::run(save.strategy(config)).unwrap());
    });
    saved.url += in_place;
    saved
}

/// The file as another program writes it: with other spaces in the description, and with the elements of another save.
fn of_another_program(file: &str, to: &Saved, value: f32, other: &Saved) {
    let (file, name) = (&to.path(file), file);
    let bytes = fs::read(file).unwrap();
    let elements: Vec<u8> = value.to_le_bytes().repeat(6);
    let new = match file.extension().and_then(|end| end.to_str()) {
        Some("safetensors") => {
            let end = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
            let mut json = String::from_utf8(bytes[8..end].to_vec()).unwrap();
            json.truncate(json.trim_end().len());
            json.insert(1, ' ');
            // With the elements that were there, it is no longer.
            let padded = match bytes.ends_with(&elements) {
                true => end - 8,
                false => json.len().next_multiple_of(8),
            };
            json.extend(std::iter::repeat_n(' ', padded - json.len()));
            [&(padded as u64).to_le_bytes(), json.as_bytes(), &elements].concat()
        }
        _ if bytes.first() == Some(&b'{') => {
            let json: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
            serde_json::to_vec(&json).unwrap()
        }
        _ => fs::read(Path::new(&other.url).join(name)).unwrap(),
    };
    fs::write(file, new).unwrap();
}

/// All commands, of a place with this status.
fn all_say(url: &str, to: &str, code: u8, status: &str) {
    for flags in [&[][..], &["--quick"]] {
        assert_eq!(
            verified(url, flags),
            (code, status.into()),
            "{url} {flags:?}"
        );
    }
    if status == "changed" {
        assert_eq!(verified(url, &["--strict"]), (1, "changed".into()));
    }
    for command in ["inspect", "ls", "digest", "stats"] {
        let ran = run(&[command, url]);
        assert_eq!(ran.code, code, "{url} {command}: {}{}", ran.out, ran.err);
    }
    let ran = run(&["convert", url, to]);
    assert_eq!(ran.code, code, "{url}: {}{}", ran.out, ran.err);
}

#[test]
fn files_with_descriptions_of_another_program_are_changed_if_their_elements_are_too() {
    type Make = fn(f32) -> Saved;
    let formats: [(Make, &[&str]); 3] = [
        (
            |value| of_format(safetensors::SafetensorsConfig::default(), value, ""),
            &[
                "model-00001-of-00002.safetensors",
                "model-00002-of-00002.safetensors",
            ],
        ),
        (
            |value| of_format(zarr::ZarrConfig::default(), value, ""),
            &["w/.zarray", "w/0", "b/.zarray", "b/0"],
        ),
        (
            |value| of_format(zarr::Zarr3Config::default(), value, ""),
            &["w/zarr.json", "w/c/0", "b/zarr.json", "b/c/0"],
        ),
    ];
    for (make, files) in formats {
        let (ours, same, other) = (make(1.0), make(1.0), make(2.0));
        let to = ours.beside("to");
        for file in files {
            of_another_program(file, &ours, 2.0, &other);
            of_another_program(file, &same, 1.0, &make(1.0));
        }
        all_say(&ours.url, &to, 0, "changed");
        // What is read is what that program wrote.
        let read = blocking::load_plain_tensors(&ours.url).unwrap();
        let two = Tensor::from_vec(&[6], vec![2f32; 6]).unwrap();
        assert_eq!(read["w"], two);
        all_say(&same.url, &same.beside("to"), 1, "damaged");
        // One file of several is enough.
        let one = make(1.0);
        for file in &files[..files.len() / 2] {
            of_another_program(file, &one, 2.0, &other);
        }
        all_say(&one.url, &one.beside("to"), 0, "changed");
    }
}

#[test]
fn indexes_of_another_program_are_changed_if_the_data_are_too() {
    type Make = fn(f32) -> Saved;
    let formats: [Make; 3] = [
        |value| of_format(torch_save::TorchSaveConfig::default(), value, ""),
        |value| {
            let config = tensor_bundle::TensorBundleConfig::default();
            of_format(config.with_in_folder("ckpt"), value, "")
        },
        |value| of_format(tensor_bundle::TensorBundleConfig::default(), value, "/ckpt"),
    ];
    for make in formats {
        let (ours, other) = (make(1.0), make(2.0));
        let folder = |saved: &Saved| match Path::new(&saved.url) {
            url if url.is_dir() => url.to_path_buf(),
            url => url.parent().unwrap().to_path_buf(),
        };
        for file in fs::read_dir(folder(&other)).unwrap() {
            let (at, name) = (file.as_ref().unwrap().path(), file.unwrap().file_name());
            if !name.to_str().unwrap().contains("reshard") {
                let bytes = fs::read(at).unwrap();
                // Spaces in an index of JSON.
                let bytes = match bytes.first() {
                    Some(b'{') => [&bytes[..], b"\n"].concat(),
                    _ => bytes,
                };
                fs::write(folder(&ours).join(name), bytes).unwrap();
            }
        }
        all_say(&ours.url, &ours.beside("to"), 0, "changed");
    }
}

/// A lost folder takes descriptions and data with it. No other program has written anything.
#[test]
fn an_item_whose_folder_is_gone_is_lost_and_not_changed() {
    let state = |url: &str, config: SaveShardedStrategy, dialect| {
        let mut state = StateDict::new();
        for key in ["w", "x"] {
            let tensor = Tensor::from_vec(&[3], vec![1f32; 3]).unwrap();
            state.insert(key, ShardedTensor::replicated(key, tensor, 0));
        }
        if dialect == Dialect::Megatron {
            let object = ShardedObject::new("rng", Value::Int(1), &[1], &[0], 0);
            state.insert("rng", object.unwrap());
        }
        let save = reshard::save(&state, url).dialect(dialect);
        drop(blocking::run(save.strategy(config)).unwrap());
    };
    for (config, dialect, folder) in [
        (
            SaveShardedStrategy::from(zarr::Zarr3Config::default()),
            Dialect::Dcp,
            "w",
        ),
        (zarr::ZarrConfig::default().into(), Dialect::Megatron, "w"),
        (zarr::ZarrConfig::default().into(), Dialect::Megatron, "rng"),
    ] {
        let saved = Saved::made(|url| state(url, config, dialect));
        run(&["verify", &saved.url]).ok();
        fs::remove_dir_all(saved.path(folder)).unwrap();
        for flags in [&[][..], &["--quick"]] {
            let (code, status) = verified(&saved.url, flags);
            assert_eq!((code, &*status), (1, "damaged"), "{folder} {dialect}");
        }
        let ran = run(&["convert", &saved.url, &saved.beside("to"), "--drop-objects"]);
        assert_eq!(ran.code, 1, "{folder} {dialect}: {}{}", ran.out, ran.err);
    }
}

/// Versions before noted no sums of data files.
#[test]
fn a_record_without_sums_of_data_can_not_tell_damage_from_another_save() {
    let ours = saved("w", 1.0, Dialect::Dcp);
    let commit = serde_json::json!({"file": ".metadata", "sha256": "0".repeat(64)});
    let record = serde_json::json!({"schema": 1, "writer": "reshard 0.0.9", "commit": commit});
    fs::write(ours.path("reshard.json"), record.to_string()).unwrap();
    assert_eq!(verified(&ours.url, &[]), (0, "changed".into()));
    assert_eq!(verified(&ours.url, &["--strict"]), (1, "changed".into()));
}
