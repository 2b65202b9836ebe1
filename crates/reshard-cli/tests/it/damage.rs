//! Damage one thing: no command passes over it in silence.

use crate::{Ran, handmade::zarr2, run, states::Saved, zarr::copy};
use reshard::{
    Dialect, ShardedTensor, StateDict, Tensor, Value, blocking, strategy::SaveShardedStrategy,
};
use serde_json::{Value as Json, json};
use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

fn state(dialect: Dialect) -> StateDict {
    let mut state = StateDict::new();
    for (key, n) in [("w", 6), ("layer.b", 3)] {
        let data = (0..n).map(|i| i as f32 + 0.5).collect();
        let tensor = Tensor::from_vec(&[n], data).unwrap();
        state.insert(key, ShardedTensor::replicated(key, tensor, 0));
    }
    if dialect != Dialect::TensorsOnly {
        state.insert("step", Value::Int(7));
    }
    state
}

fn saved(dialect: Dialect, config: Option<SaveShardedStrategy>) -> Saved {
    Saved::made(|url| {
        let state = state(dialect);
        let save = reshard::save(&state, url).dialect(dialect);
        let save = save.integrity(dialect == Dialect::Megatron);
        let save = match config {
            Some(config) => save.strategy(config),
            None => save,
        };
        drop(blocking::run(save).unwrap());
    })
}

/// The same as another program leaves it.
fn of_others(saved: Saved) -> Saved {
    for name in fs::read_dir(&saved.url).unwrap() {
        let at = name.unwrap().path();
        let name = at.file_name().unwrap().to_str().unwrap();
        if name.starts_with("reshard") || name == "integrity.json" {
            fs::remove_file(at).unwrap();
        }
    }
    saved
}

/// A checkpoint in each format, and as others write it.
fn checkpoints() -> Vec<(&'static str, Saved)> {
    use reshard::{safetensors, tensor_bundle, torch_save, zarr};
    let only = Dialect::TensorsOnly;
    let st = || SaveShardedStrategy::from(safetensors::SafetensorsConfig::default());
    let zarr = || SaveShardedStrategy::from(zarr::ZarrConfig::default());
    let zarr3 = || SaveShardedStrategy::from(zarr::Zarr3Config::default());
    let tf = || {
        let config = tensor_bundle::TensorBundleConfig::default().with_in_folder("ckpt");
        SaveShardedStrategy::from(config)
    };
    let pt = || SaveShardedStrategy::from(torch_save::TorchSaveConfig::default());
    vec![
        ("torch_dist", saved(Dialect::Dcp, None)),
        ("megatron", saved(Dialect::Megatron, None)),
        (
            "megatron of others",
            of_others(saved(Dialect::Megatron, None)),
        ),
        ("safetensors", saved(only, Some(st()))),
        ("safetensors of others", of_others(saved(only, Some(st())))),
        ("zarr", saved(only, Some(zarr()))),
        ("zarr of others", of_others(saved(only, Some(zarr())))),
        (
            "zarr of megatron",
            of_others(saved(Dialect::Megatron, Some(zarr()))),
        ),
        ("zarr3", saved(only, Some(zarr3()))),
        ("zarr3 of others", of_others(saved(only, Some(zarr3())))),
        ("tensor_bundle", saved(only, Some(tf()))),
        (
            "tensor_bundle of others",
            of_others(saved(only, Some(tf()))),
        ),
        ("torch_save", saved(Dialect::Dcp, Some(pt()))),
    ]
}

/// All files below a path.
fn files(at: &Path) -> Vec<PathBuf> {
    let (mut out, mut left) = (Vec::new(), vec![at.to_path_buf()]);
    while let Some(next) = left.pop() {
        match next.is_dir() {
            true => left.extend(fs::read_dir(next).unwrap().map(|e| e.unwrap().path())),
            false => out.push(next),
        }
    }
    out.sort();
    out
}

const KINDS: [&str; 5] = ["cut", "link", "folder", "full folder", "pipe"];

fn damage(kind: &str, at: &Path) {
    let whole = fs::read(at).unwrap();
    fs::remove_file(at).unwrap();
    match kind {
        "cut" => fs::write(at, &whole[..whole.len() / 2]).unwrap(),
        "link" => symlink("../../.git/annex/objects/none", at).unwrap(),
        "folder" => fs::create_dir(at).unwrap(),
        "full folder" => {
            fs::create_dir(at).unwrap();
            fs::write(at.join("file"), &whole).unwrap();
        }
        _ => assert!(Command::new("mkfifo").arg(at).status().unwrap().success()),
    }
}

fn mend(at: &Path, whole: &[u8]) {
    match at.symlink_metadata() {
        Ok(is) if is.is_dir() => fs::remove_dir_all(at).unwrap(),
        _ => fs::remove_file(at).unwrap(),
    }
    fs::write(at, whole).unwrap();
}

fn is_silent(ran: &Ran) -> bool {
    ran.code == 0 && ran.err.is_empty()
}

/// The commands that are silent about what `verify` finds, or `verify --quick`.
fn silent(url: &str, to: &str, loads: bool) -> Vec<String> {
    let mut silent = Vec::new();
    let mut look = |args: &[&str]| {
        if is_silent(&run(args)) {
            silent.push(args.join(" "));
        }
    };
    if !is_silent(&run(&["verify", "--quick", url])) {
        look(&["inspect", url]);
        look(&["ls", url]);
    }
    match is_silent(&run(&["verify", url])) {
        true => look(&["verify", url]),
        false => {
            for command in ["digest", "stats"] {
                look(&[command, url]);
            }
            look(&["diff", url, url]);
            look(&["convert", url, to]);
            let loaded = blocking::Checkpoint::open(url).and_then(|all| {
                all.load_plain_tensors()?;
                all.state()
            });
            if loads && loaded.is_ok() {
                silent.push("a load".into());
            }
        }
    }
    fs::remove_dir_all(to).unwrap_or(());
    silent
}

#[test]
fn no_command_is_silent_about_a_file_that_is_damaged() {
    for (name, saved) in checkpoints() {
        let to = saved.beside("to");
        assert!(
            is_silent(&run(&["verify", "--quick", &saved.url])),
            "{name}"
        );
        for command in ["inspect", "ls", "digest", "stats", "verify"] {
            let ran = run(&[command, &saved.url]);
            assert!(is_silent(&ran), "{name} {command}: {}{}", ran.out, ran.err);
        }
        for at in files(Path::new(&saved.url)) {
            let whole = fs::read(&at).unwrap();
            for kind in KINDS {
                if kind == "cut" && whole.len() < 2 {
                    continue;
                }
                damage(kind, &at);
                // A load reads `integrity.json` only if it is asked to.
                let silent = silent(&saved.url, &to, !at.ends_with("integrity.json"));
                assert!(
                    silent.is_empty(),
                    "{name}: {kind} {}: {silent:?}",
                    at.display()
                );
                mend(&at, &whole);
            }
        }
    }
}

#[test]
fn no_command_is_silent_about_a_chunk_or_a_description_that_another_program_wrote_and_that_is_missing()
 {
    let zarr = |v3: bool, dialect| {
        let config: SaveShardedStrategy = match v3 {
            true => reshard::zarr::Zarr3Config::default().into(),
            false => reshard::zarr::ZarrConfig::default().into(),
        };
        of_others(saved(dialect, Some(config)))
    };
    let only = Dialect::TensorsOnly;
    for (saved, lost) in [
        (zarr(false, only), "layer.b/.zarray"),
        (zarr(true, only), "layer.b/zarr.json"),
        (zarr(false, Dialect::Megatron), "layer.b/.zarray"),
        // Megatron Core writes every chunk; others leave out what is the fill value.
        (zarr(false, Dialect::Megatron), "layer.b/0"),
    ] {
        // The group of all arrays has their descriptions, too.
        if saved.path("zarr.json").exists() {
            let group = r#"{"zarr_format":3,"node_type":"group","attributes":{}}"#;
            fs::write(saved.path("zarr.json"), group).unwrap();
        }
        fs::remove_file(saved.path(lost)).unwrap();
        let silent = silent(&saved.url, &saved.beside("to"), true);
        assert!(silent.is_empty(), "{lost}: {silent:?}");
        // The other array is as sound as before.
        run(&["digest", &saved.url, "--key", "w"]).ok();
    }
}

#[test]
fn an_array_whose_folder_is_a_link_is_not_left_out_in_silence() {
    for (v3, dialect) in [
        (false, Dialect::TensorsOnly),
        (true, Dialect::TensorsOnly),
        (false, Dialect::Megatron),
    ] {
        let config: SaveShardedStrategy = match v3 {
            true => reshard::zarr::Zarr3Config::default().into(),
            false => reshard::zarr::ZarrConfig::default().into(),
        };
        let saved = of_others(saved(dialect, Some(config)));
        let elsewhere = saved.beside("elsewhere");
        for (folder, chunks) in [("w", false), ("w/c", true)] {
            if !saved.path(folder).exists() {
                continue;
            }
            fs::rename(saved.path(folder), &elsewhere).unwrap();
            symlink(&elsewhere, saved.path(folder)).unwrap();
            assert!(!is_silent(&run(&["verify", "--quick", &saved.url])));
            let mut silent = silent(&saved.url, &saved.beside("to"), chunks);
            // An item that is not understood is in its list.
            let inspected = run(&["inspect", &saved.url]).out;
            silent.retain(|ran| !ran.starts_with("inspect") || !inspected.contains("is a link"));
            assert!(silent.is_empty(), "{folder}: {silent:?} {inspected}");
            fs::remove_file(saved.path(folder)).unwrap();
            fs::rename(&elsewhere, saved.path(folder)).unwrap();
        }
    }
}

#[test]
fn a_consolidated_description_that_is_damaged_is_told() {
    let saved = of_others(saved(
        Dialect::TensorsOnly,
        Some(reshard::zarr::ZarrConfig::default().into()),
    ));
    fs::write(saved.path(".zmetadata"), "{").unwrap();
    let silent = silent(&saved.url, &saved.beside("to"), true);
    assert!(silent.is_empty(), "{silent:?}");
}

#[test]
fn what_is_not_verified_is_named() {
    let saved = saved(Dialect::Dcp, None);
    let url = &*saved.url;
    for args in [
        &["digest", url, "--no-verify"][..],
        &["stats", url, "--no-verify"],
        &["diff", url, url, "--no-verify"],
        &["convert", url, &saved.beside("to"), "--no-verify"],
    ] {
        let ran = run(args);
        assert!(
            ran.code == 0 && ran.err.contains("--no-verify"),
            "{args:?} {}",
            ran.err
        );
    }
    for args in [
        &["digest", url, "--no-verify", "--json"][..],
        &["stats", url, "--no-verify", "--json"],
        &["diff", url, url, "--no-verify", "--json"],
    ] {
        let j: serde_json::Value = serde_json::from_str(&run(args).out).unwrap();
        assert_eq!(j["no_verify"], true, "{args:?}");
    }
}

#[test]
fn integrity_is_checked_where_the_record_that_it_lists_is_missing() {
    let fixture = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/fixtures/megatron/mc020_integrity_w2/ckpt"
    );
    let saved = Saved::made(|url| copy(fixture, url));
    fs::remove_file(saved.path("metadata.json")).unwrap();
    let ran = run(&["verify", &saved.url]);
    assert!(
        ran.code == 1 && ran.out.contains("metadata.json: it is missing"),
        "{}{}",
        ran.out,
        ran.err
    );
}

/// zarr-python removes a chunk that has the fill value only, and leaves its folder.
#[test]
fn an_empty_folder_above_a_chunk_is_no_damage() {
    let saved = Saved::made(|url| {
        let at = Path::new(url);
        let mut text = json!({
            "zarr_format": 3, "node_type": "array", "shape": [2, 2], "data_type": "uint8",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1, 2]}},
            "chunk_key_encoding": {"name": "default"}, "fill_value": 7, "codecs": [{"name": "bytes"}],
        });
        text["attributes"] = json!({});
        fs::create_dir_all(at.join("w/c/0")).unwrap();
        fs::create_dir_all(at.join("w/c/1")).unwrap();
        fs::write(at.join("w/c/0/0"), [1, 2]).unwrap();
        fs::write(at.join("w/zarr.json"), text.to_string()).unwrap();
    });
    run(&["verify", &saved.url]).ok();
    let shown = run(&["show", &saved.url, "w"]).ok();
    assert!(shown.contains('7'), "{shown}");
    // A folder in the place of a chunk is none.
    fs::create_dir(saved.path("w/c/1/0")).unwrap();
    assert_eq!(run(&["verify", &saved.url]).code, 1);
}

#[test]
fn consolidated_metadata_that_contradict_an_array_are_told() {
    let saved = Saved::made(|url| zarr2(&Path::new(url).join("w")));
    let array: Json = serde_json::from_slice(&fs::read(saved.path("w/.zarray")).unwrap()).unwrap();
    let told = |changes: &[(&str, Json)]| {
        let mut array = array.clone();
        for (name, value) in changes {
            array[*name] = value.clone();
        }
        let all = json!({"metadata": {"w/.zarray": array}, "zarr_consolidated_format": 1});
        fs::write(saved.path(".zmetadata"), all.to_string()).unwrap();
        let ran = run(&["digest", &saved.url]);
        assert_eq!(ran.code, 0, "{}", ran.err);
        ran.err
            .contains("consolidated metadata say something else of \"w\"")
    };
    assert!(!told(&[]));
    assert!(told(&[("fill_value", json!(3))]));
}

#[test]
fn attributes_that_are_damaged_and_arrays_beside_hidden_files_are_told() {
    let saved = Saved::made(|url| {
        for key in ["v", "w"] {
            zarr2(&Path::new(url).join(key));
        }
    });
    run(&["verify", &saved.url]).ok();
    for text in ["{\"units\": ", "[1]"] {
        fs::write(saved.path("w/.zattrs"), text).unwrap();
        for command in ["verify", "inspect", "ls"] {
            let ran = run(&[command, &saved.url]);
            assert_eq!(ran.code, 1, "{command} {text}: {}{}", ran.out, ran.err);
        }
        assert_eq!(run(&["convert", &saved.url, &saved.beside("to")]).code, 1);
    }
    fs::remove_file(saved.path("w/.zattrs")).unwrap();
    fs::remove_file(saved.path("w/.zarray")).unwrap();
    fs::write(saved.path("w/.DS_Store"), "").unwrap();
    assert_eq!(run(&["verify", &saved.url]).code, 1);
}

#[test]
fn a_record_that_names_the_format_of_other_files_is_damage() {
    let saved = of_others(saved(Dialect::Megatron, None));
    let record = saved.path("metadata.json");
    let text = fs::read_to_string(&record).unwrap();
    for format in ["zarr", "safetensors", "tensor_bundle", "torch_save"] {
        fs::write(&record, text.replace("torch_dist", format)).unwrap();
        for args in [
            &["verify", &saved.url][..],
            &["inspect", &saved.url],
            &["ls", &saved.url],
            &["digest", &saved.url],
            &["convert", &saved.url, &saved.beside("to")],
        ] {
            let ran = run(args);
            let told = ran.code != 0 && !ran.err.is_empty();
            assert!(told, "{format} {args:?}: {}{}", ran.out, ran.err);
        }
    }
}
