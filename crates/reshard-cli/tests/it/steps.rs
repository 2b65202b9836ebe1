//! Folders of checkpoints.

use crate::{run, states};
use reshard::{Dialect, StateDict, Tensor, blocking};
use serde_json::json;
use std::{fs, path::Path};

fn save(at: &Path, dialect: Dialect) {
    let mut state = StateDict::new();
    state.insert("w", Tensor::from_vec(&[1000], vec![1f32; 1000]).unwrap());
    blocking::run(reshard::save(&state, at).dialect(dialect)).unwrap();
}

/// A run with two checkpoints, one that does not open, and one that was never finished.
fn training() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for step in [
        "step-900",
        "step-1000",
        "step-1100",
        "step-1200",
        "step-70.copy",
    ] {
        save(&dir.path().join(step), Dialect::Dcp);
    }
    fs::write(dir.path().join("step-1100/.metadata"), "no pickle").unwrap();
    fs::remove_file(dir.path().join("step-1200/.metadata")).unwrap();
    dir
}

#[test]
fn ls_of_a_folder_of_checkpoints_lists_the_complete_ones() {
    let dir = training();
    let path = dir.path().to_str().unwrap();
    let ran = run(&["ls", path]);
    let version = env!("CARGO_PKG_VERSION");
    let want = format!(
        "STEP  NAME       FORMAT        TENSORS     SIZE  SAVED BY\n  \
         900  step-900   torch_dist/1        1  4.00 kB  reshard {version}\n\
         1,000  step-1000  torch_dist/1        1  4.00 kB  reshard {version}\n"
    );
    assert_eq!((ran.code, ran.out.trim_start()), (0, want.trim_start()));
    assert!(
        ran.err.contains("left out: step-1100 does not open: "),
        "{}",
        ran.err
    );
    assert!(
        ran.err
            .contains("left out: step-1200 does not open: opening ")
            && ran.err.contains("there is no .metadata"),
        "{}",
        ran.err
    );
    assert_eq!(ran.err.lines().count(), 2, "{}", ran.err);

    let row = |step: u64| {
        json!({
            "step": step, "name": format!("step-{step}"), "url": format!("{path}/step-{step}"),
            "backend": "torch_dist", "version": 1, "dialect": "dcp", "tensors": 1, "tensor_bytes": 4000,
            "saved_by": format!("reshard {version}"), "damage": null,
        })
    };
    let ran = run(&["ls", path, "--json"]);
    assert_eq!(ran.code, 0);
    let listed: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(listed["steps"], json!([row(900), row(1000)]));
    assert_eq!(listed["left_out"][0]["name"], "step-1100");
    let why = listed["left_out"][0]["why"].as_str().unwrap();
    assert!(why.contains("the metadata can't be read"), "{why}");
    // A checkpoint is still listed by its keys.
    assert_eq!(run(&["ls", &format!("{path}/step-900")]).ok(), "w\n");
}

#[test]
fn latest_prints_the_newest_checkpoint_that_opens() {
    let dir = training();
    let path = dir.path().to_str().unwrap();
    let ran = run(&["latest", path]);
    assert_eq!((ran.code, ran.out), (0, format!("{path}/step-1000\n")));
    for passed in ["step-1100", "step-1200"] {
        let note = format!("passed over: {passed} does not open: ");
        assert!(ran.err.contains(&note), "{}", ran.err);
    }
    let ran = run(&["latest", path, "--json"]);
    let found: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(found["step"], 1000);
    assert_eq!(found["url"], format!("{path}/step-1000"));
    assert_eq!(found["left_out"][0]["name"], "step-1200");
    assert_eq!(found["damage"], json!(null));
    // One that opens, of which a file is missing, is no good answer for a script.
    fs::remove_file(dir.path().join("step-1000/__0_0.distcp")).unwrap();
    let ran = run(&["latest", path]);
    assert_eq!((ran.code, ran.out), (1, format!("{path}/step-1000\n")));
    assert!(ran.err.contains("it is damaged ("), "{}", ran.err);

    let ran = run(&["latest", path, "--steps", "epoch_{n}"]);
    assert_eq!((ran.code, ran.out.as_str()), (3, ""));
    let ran = run(&["latest", &format!("{path}/nowhere")]);
    assert_eq!((ran.code, ran.out.as_str()), (3, ""), "{}", ran.err);
}

/// As Megatron's iterations.
#[test]
fn latest_knows_the_names_of_megatron() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    for name in ["iter_0000100", "iter_0000020"] {
        save(&dir.path().join(name), Dialect::Megatron);
    }
    assert_eq!(
        run(&["latest", path]).ok(),
        format!("{path}/iter_0000100\n")
    );
}

#[test]
fn steps_whose_files_are_missing_are_listed_as_damaged() {
    let dir = training();
    let path = dir.path().to_str().unwrap();
    fs::remove_file(dir.path().join("step-900/__0_0.distcp")).unwrap();
    let ran = run(&["ls", path]);
    assert_eq!(ran.code, 1, "{}", ran.err);
    assert!(ran.out.contains("step-900 (damaged) ") && ran.out.contains("step-1000 "));
    for said in [
        "listed: step-900 is damaged (",
        "__0_0.distcp",
        &format!("`reshard verify {path}/step-900` lists all damage"),
    ] {
        assert!(ran.err.contains(said), "{said:?} is not in {}", ran.err);
    }
    let ran = run(&["ls", path, "--json"]);
    assert_eq!(ran.code, 1);
    let pruned = run(&["prune", path, "--dry-run", "--json"]);
    let report: serde_json::Value = serde_json::from_str(&pruned.out).unwrap();
    let why = report["failed"][0]["why"].as_str().unwrap_or_default();
    assert!(pruned.code == 1 && why.contains("__0_0.distcp"), "{report}");
    let listed: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    let damage = |n: usize| listed["steps"][n]["damage"].clone();
    assert!(damage(0).as_str().unwrap().contains("__0_0.distcp"));
    assert!(damage(1).is_null());
}

#[test]
fn very_many_folders_without_a_checkpoint_are_counted() {
    let dir = training();
    let path = dir.path().to_str().unwrap();
    for step in 1..=30 {
        fs::create_dir(dir.path().join(format!("step-{step}"))).unwrap();
    }
    let said = run(&["ls", path]).err;
    assert!(said.contains("left out: step-20 does not open"), "{said}");
    assert!(said.contains("left out: 12 folders more"), "{said}");
    let listed: serde_json::Value =
        serde_json::from_str(&run(&["ls", path, "--json"]).out).unwrap();
    assert_eq!(listed["left_out"].as_array().unwrap().len(), 32);
    let said = run(&["prune", path]).err;
    assert!(
        said.contains("no complete checkpoint, so it stays: step-1, ")
            && said.contains(" and 11 more"),
        "{said}"
    );
}

#[test]
fn ls_takes_other_names_of_steps() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    for name in ["iter_0000005", "epoch-07", "epoch-8"] {
        save(&dir.path().join(name), Dialect::Megatron);
    }
    assert!(run(&["ls", path]).ok().contains("\n   5  iter_0000005  "));
    let epochs = run(&["ls", path, "--steps", "epoch-{n:02}"]).ok();
    assert!(
        epochs.contains("\n   7  epoch-07  ") && !epochs.contains("epoch-8"),
        "{epochs}"
    );
    let ran = run(&["ls", path, "--steps", "step-{n}"]);
    assert_eq!((ran.code, &*ran.out), (3, ""));
    assert!(
        ran.err
            .contains("has no complete checkpoint that is called step-{n}"),
        "{}",
        ran.err
    );
    let ran = run(&["ls", path, "--steps", "step"]);
    assert_eq!(ran.code, 2);
    assert!(
        ran.err.contains("has no {n} for the number of a step"),
        "{}",
        ran.err
    );
    let nothing = format!("{path}/nothing");
    let ran = run(&["ls", &nothing, "--steps", "step-{n}"]);
    assert_eq!(ran.code, 3, "{}", ran.err);
    assert!(ran.err.contains("nothing lies at"), "{}", ran.err);
}

#[test]
fn inspect_of_a_folder_of_checkpoints_names_the_newest_that_is_complete_and_opens() {
    let dir = training();
    let path = dir.path().to_str().unwrap();
    let ran = run(&["inspect", path]);
    assert_eq!((ran.code, &*ran.out), (3, ""));
    for part in [
        "is not a checkpoint, but holds some: ",
        "; the newest complete one is step-1000\n",
        &format!("reshard inspect {path}/step-1000; `reshard ls {path}` lists them"),
    ] {
        assert!(ran.err.contains(part), "{part:?} is not in {}", ran.err);
    }
    let out = run(&["inspect", path, "--json"]).out;
    let error: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert!(
        error["error"]["message"]
            .as_str()
            .unwrap()
            .ends_with("is step-1000"),
        "{error}"
    );
    // Where nothing tells what lies there but opening it.
    let saved = states::dcp();
    assert_eq!(run(&["inspect", &saved.url]).code, 0);
}

#[test]
fn inspect_names_checkpoints_of_any_format() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("step-3");
    save(&dir.path().join("a"), Dialect::Dcp);
    let from = dir.path().join("a").display().to_string();
    let ran = run(&[
        "convert",
        &from,
        at.to_str().unwrap(),
        "--to",
        "safetensors",
    ]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    fs::remove_dir_all(&from).unwrap();
    let ran = run(&["inspect", dir.path().to_str().unwrap()]);
    assert_eq!(ran.code, 3, "{}", ran.err);
    assert!(
        ran.err.contains("the newest complete one is step-3"),
        "{}",
        ran.err
    );
    assert!(
        ran.err
            .contains(&format!("reshard inspect {}", at.display())),
        "{}",
        ran.err
    );
}

#[test]
fn a_file_beside_the_steps_hides_no_run() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    for step in ["step-1", "step-2"] {
        save(&dir.path().join(step), Dialect::Dcp);
    }
    // The last ones look like files of a checkpoint, which this folder would be.
    for name in [
        "notes.txt",
        "config.json",
        "latest",
        "zarr.json",
        "final.safetensors",
    ] {
        let text = if name == "zarr.json" {
            r#"{"zarr_format":3,"node_type":"group"}"#
        } else {
            "notes"
        };
        fs::write(dir.path().join(name), text).unwrap();
        let ran = run(&["ls", path]);
        assert_eq!(ran.code, 0, "{name}: {}", ran.err);
        assert!(
            ran.out.contains("  step-1  ") && ran.out.contains("  step-2  "),
            "{name}: {}",
            ran.out
        );
        assert_eq!(run(&["prune", path, "--dry-run"]).code, 0, "{name}");
        fs::remove_file(dir.path().join(name)).unwrap();
    }
    // A whole checkpoint of one file is what `ls` is asked for; a note tells of the others.
    let (from, to) = (
        format!("{path}/step-1"),
        format!("{path}/final.safetensors"),
    );
    assert_eq!(run(&["convert", &from, &to]).code, 0);
    let ran = run(&["ls", path]);
    assert_eq!((ran.code, &*ran.out), (0, "w\n"), "{}", ran.err);
    assert!(
        ran.err
            .contains("also holds the checkpoints of a run, such as step-2;"),
        "{}",
        ran.err
    );
}

#[test]
fn the_list_of_what_a_folder_holds_is_sorted() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["step-9", "zebra", "out16", "step-10", "convert2", "alpha"] {
        save(&dir.path().join(name), Dialect::Dcp);
    }
    let ran = run(&["digest", dir.path().to_str().unwrap()]);
    assert!(
        ran.err
            .contains("holds some: alpha, convert2, out16, step-10, step-9 and 1 more"),
        "{}",
        ran.err
    );
}
