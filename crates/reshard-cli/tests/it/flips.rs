//! A changed bit anywhere: `verify` finds it, or its file is on the list of what `verify` does not cover. In metadata `verify --quick` finds it, too.

use crate::{run, states::Saved};
use reshard::{
    Dialect, ShardedObject, ShardedTensor, StateDict, Tensor, Value, blocking,
    strategy::SaveShardedStrategy,
};
use reshard_model::testkit::one_in;
use std::{fs, path::Path};

/// One tensor, or two.
fn state(more: bool) -> StateDict {
    let tensor = |n: u64| Tensor::from_vec(&[n], (0..n).map(|i| i as f32).collect()).unwrap();
    let mut state = StateDict::new();
    state.insert("w", ShardedTensor::replicated("w", tensor(5), 0));
    if more {
        state.insert("b", ShardedTensor::replicated("b", tensor(3), 0));
    }
    state
}

fn saved(state: &StateDict, dialect: Dialect, strategy: Option<SaveShardedStrategy>) -> Saved {
    Saved::made(|url| {
        let save = reshard::save(state, url).dialect(dialect);
        let save = match strategy {
            Some(strategy) => save.strategy(strategy),
            None => save,
        };
        drop(blocking::run(save).unwrap());
    })
}

/// All files below a path, by their names from there; a file has an empty name.
fn files(at: &Path) -> Vec<String> {
    let mut out = Vec::new();
    let mut left = vec![at.to_path_buf()];
    while let Some(next) = left.pop() {
        if next.is_dir() {
            left.extend(fs::read_dir(next).unwrap().map(|e| e.unwrap().path()));
        } else {
            let name = next.strip_prefix(at).unwrap();
            out.push(name.display().to_string());
        }
    }
    out.sort();
    out
}

/// What `verify` prints behind `not covered`.
fn not_covered(out: &str) -> &str {
    let line = out
        .lines()
        .find_map(|line| line.strip_prefix("not covered  "));
    line.unwrap_or_default()
}

/// Changes bytes, one after the other: each at night, and one in five for each change of the code. `listed` are the files that are on the list of the sound checkpoint.
fn every_byte(saved: &Saved, listed: &str) {
    let sound = run(&["verify", &saved.url]).ok();
    assert_eq!(not_covered(&sound), listed, "{sound}");
    bytes_of(saved, 5, |_| true);
    assert_eq!(run(&["verify", &saved.url]).ok(), sound);
}

/// Changes one in so many bytes of the chosen files. In metadata even a quick check finds it, except in `common.pt`, which is an archive with
/// checksums of its own.
fn bytes_of(saved: &Saved, step: usize, chosen: impl Fn(bool) -> bool) {
    let opened = blocking::Checkpoint::open(&saved.url).unwrap();
    let data = opened.item_files();
    let mut silent = Vec::new();
    for name in files(Path::new(&saved.url)) {
        let path = match &*name {
            "" => saved.url.clone().into(),
            name => saved.path(name),
        };
        let is_data = name.is_empty() || name == "common.pt" || data.contains(&name);
        if !chosen(is_data) {
            continue;
        }
        let args = match is_data {
            true => &["verify", &saved.url][..],
            false => &["verify", &saved.url, "--quick"],
        };
        let whole = fs::read(&path).unwrap();
        for at in (0..whole.len()).step_by(one_in(step)) {
            // The lowest bit makes another digit or letter of most; the highest one ends texts and lengthens numbers.
            let flip = [0x01, 0x80, 0x20, 0x02][at % 4];
            let mut bytes = whole.clone();
            bytes[at] ^= flip;
            fs::write(&path, bytes).unwrap();
            let ran = run(args);
            let listed = not_covered(&ran.out);
            if ran.code == 0 && (listed.is_empty() || !listed.contains(&*name)) {
                silent.push(format!("{name} {at} {flip:#x}: {}", ran.out));
            }
        }
        fs::write(&path, whole).unwrap();
    }
    let count = silent.len();
    silent.truncate(10);
    assert!(
        silent.is_empty(),
        "{count} changes, such as\n{}",
        silent.join("\n")
    );
}

#[test]
fn every_changed_byte_of_a_checkpoint_in_pytorchs_dialect_is_found_or_listed() {
    let mut state = state(false);
    state.insert("lr", 0.5);
    every_byte(&saved(&state, Dialect::Dcp, None), "");
}

#[test]
fn every_changed_byte_of_a_checkpoint_in_megatrons_dialect_is_found_or_listed() {
    let mut state = state(false);
    let rng = ShardedObject::new("rng", Value::Int(7), &[1], &[0], 0);
    state.insert("rng", rng.unwrap());
    state.insert("iteration", 1000);
    every_byte(&saved(&state, Dialect::Megatron, None), "");
}

#[test]
fn every_changed_byte_of_a_folder_of_safetensors_is_found_or_listed() {
    let config = reshard::safetensors::SafetensorsConfig::default();
    every_byte(
        &saved(&state(true), Dialect::TensorsOnly, Some(config.into())),
        "",
    );
}

#[test]
fn every_changed_byte_of_zarr_arrays_is_found_or_listed() {
    let config = reshard::zarr::Zarr3Config::default();
    every_byte(
        &saved(&state(true), Dialect::TensorsOnly, Some(config.into())),
        "",
    );
}

#[test]
fn every_changed_byte_of_zarr_arrays_of_version_2_is_found_or_listed() {
    let config = reshard::zarr::ZarrConfig::default();
    every_byte(
        &saved(&state(true), Dialect::TensorsOnly, Some(config.into())),
        "",
    );
}

#[test]
fn every_changed_byte_of_an_index_and_of_a_record_beside_it_is_found() {
    let mut nested = StateDict::new();
    nested.insert_tree("model", state(true));
    let st = reshard::safetensors::SafetensorsConfig::default();
    let tf = reshard::tensor_bundle::TensorBundleConfig::default().with_in_folder("ckpt");
    let pt = reshard::torch_save::TorchSaveConfig::default();
    let configs: [SaveShardedStrategy; 3] = [st.into(), tf.into(), pt.into()];
    for config in configs {
        let saved = Saved::made(|url| {
            let save = reshard::save(&nested, url).dialect(Dialect::TensorsOnly);
            let policy = reshard::policy::MaxShardSize::new(16);
            let save = save.strategy(config).policy(policy);
            drop(blocking::run(save).unwrap());
        });
        bytes_of(&saved, 9, |is_data| !is_data);
    }
}

#[test]
fn every_changed_byte_of_a_tensorflow_checkpoint_is_found_or_listed() {
    let config = reshard::tensor_bundle::TensorBundleConfig::default().with_in_folder("ckpt");
    every_byte(
        &saved(&state(true), Dialect::TensorsOnly, Some(config.into())),
        "",
    );
}

/// Beside the files of one prefix lie those of another.
#[test]
fn every_changed_byte_of_the_records_of_a_prefix_is_found() {
    let mut saved = Saved::made(|url| fs::create_dir(url).unwrap());
    let mut state = state(true);
    let rng = ShardedObject::new("rng", Value::Int(7), &[1], &[0], 0);
    state.insert("rng", rng.unwrap());
    for name in ["ck", "ck2"] {
        let url = saved.path(name).display().to_string();
        let config = reshard::tensor_bundle::TensorBundleConfig::default();
        let save = reshard::save(&state, url).dialect(Dialect::Dcp);
        drop(blocking::run(save.strategy(config)).unwrap());
    }
    let folder = saved.url.clone();
    saved.url += "/ck";
    let records = ["ck.index", "ck.reshard.json", "ck.reshard_bundle.json"];
    for name in records {
        let path = Path::new(&folder).join(name);
        let whole = fs::read(&path).unwrap();
        for at in (0..whole.len()).step_by(one_in(5)) {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << (at % 8);
            fs::write(&path, bytes).unwrap();
            let ran = run(&["verify", "--quick", &saved.url]);
            assert_ne!(ran.code, 0, "{name} {at}: {}", ran.out);
        }
        fs::write(&path, whole).unwrap();
    }
    run(&["verify", &saved.url]).ok();
}

#[test]
fn every_changed_byte_of_a_file_of_torch_save_is_found() {
    let mut saved = Saved::made(|_| {});
    saved.url += ".pt";
    let state = state(true);
    let config = reshard::torch_save::TorchSaveConfig::default();
    let save = reshard::save(&state, &saved.url).dialect(Dialect::Dcp);
    drop(blocking::run(save.strategy(config)).unwrap());
    every_byte(&saved, "");
}

/// What can't be confirmed aside, a conversion copies no changed byte: it fails, or its copy is sound.
#[test]
fn no_changed_byte_is_carried_over_in_silence() {
    for dialect in [Dialect::Megatron, Dialect::Dcp] {
        let mut state = state(false);
        let rng = ShardedObject::new("rng", Value::Int(7), &[1], &[0], 0);
        state.insert("rng", rng.unwrap());
        state.insert("iteration", 1000);
        let saved = saved(&state, dialect, None);
        let to = saved.beside("copy");
        let (mut refused, mut tried) = (0, 0);
        for name in files(Path::new(&saved.url)) {
            let path = saved.path(&name);
            let whole = fs::read(&path).unwrap();
            for at in (0..whole.len()).step_by(one_in(35)) {
                let mut bytes = whole.clone();
                bytes[at] ^= 0x10;
                fs::write(&path, bytes).unwrap();
                let ran = run(&["convert", &saved.url, &to]);
                if ran.code == 0 {
                    let copy = run(&["verify", &to]);
                    assert_eq!(copy.code, 0, "{name} {at}: {}{}", copy.out, copy.err);
                    fs::remove_dir_all(&to).unwrap();
                }
                tried += 1;
                refused += u32::from(ran.code != 0);
            }
            fs::write(&path, whole).unwrap();
        }
        assert!(refused * 2 > tried, "{refused} of {tried}");
    }
}
