use crate::{
    run, run_with,
    states::{self, Saved},
};
use reshard::{Stores, storage::LocalStore};
use reshard_storage::testkit::{Fault, FaultStore, Op};
use serde_json::json;
use std::{fs, path::Path, sync::Arc, time::SystemTime};

/// A checkpoint with a file of an older save, one that is new, one of others, and what an unfinished save left.
fn cluttered() -> Saved {
    let saved = states::dcp();
    for (file, bytes) in [
        ("__8_0.distcp", 1000),
        ("__9_0.distcp", 2000),
        ("README.md", 3000),
    ] {
        fs::write(saved.path(file), vec![0; bytes]).unwrap();
    }
    let old = fs::File::options()
        .write(true)
        .open(saved.path("__8_0.distcp"))
        .unwrap();
    old.set_modified(SystemTime::UNIX_EPOCH).unwrap();
    let left = saved.beside(".ckpt.1-1a2b3c4d5e6f7082-3.tmp");
    fs::create_dir(&left).unwrap();
    fs::write(Path::new(&left).join("__0_0.distcp"), vec![0; 4000]).unwrap();
    saved
}

#[test]
fn what_is_left_over_goes_and_the_rest_is_told() {
    let saved = cluttered();
    let digest = run(&["digest", &saved.url]).ok();
    let dry = run(&["prune", &saved.url, "--dry-run"]).ok();
    assert!(
        dry.starts_with("WOULD BE REMOVED") && dry.contains("1.00 kB would be freed"),
        "{dry}"
    );
    assert!(saved.path("__8_0.distcp").exists());
    let text = run(&["prune", &saved.url]).ok();
    for part in [
        "REMOVED",
        "__8_0.distcp",
        "KEPT",
        "__9_0.distcp",
        "--older-than 0s",
        "OF OTHER PROGRAMS",
        "README.md",
        "1.00 kB freed",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
    assert!(!saved.path("__8_0.distcp").exists() && saved.path("__9_0.distcp").exists());
    let all = run(&["prune", &saved.url, "--older-than", "0s"]).ok();
    assert!(
        all.contains("6.00 kB freed") && all.contains("never finished"),
        "{all}"
    );
    assert!(
        run(&["prune", &saved.url])
            .ok()
            .ends_with("clean  there is nothing to remove\n")
    );
    assert!(saved.path("README.md").exists());
    assert_eq!(
        (
            run(&["digest", &saved.url]).ok(),
            run(&["verify", &saved.url]).code
        ),
        (digest, 0)
    );
}

#[test]
fn the_json_has_the_promised_form() {
    let saved = cluttered();
    let mut j = run(&["prune", &saved.url, "--json"]).json();
    let age = j["removed"][0]["age_seconds"].take();
    assert!(age.as_u64().unwrap() > 1_000_000, "{age}");
    for kept in j["kept"].as_array_mut().unwrap() {
        kept["age_seconds"] = json!(0);
    }
    let want = json!({
        "schema": 1,
        "dry_run": false,
        "removed": [{ "path": "__8_0.distcp", "kind": "file", "bytes": 1000, "age_seconds": null }],
        "kept": [
            { "path": "__9_0.distcp", "kind": "file", "bytes": 2000, "age_seconds": 0, "why": "recent" },
            { "path": saved.beside(".ckpt.1-1a2b3c4d5e6f7082-3.tmp"), "kind": "unfinished", "bytes": 4000, "age_seconds": 0, "why": "recent" },
        ],
        "foreign": ["README.md"],
        "failed": [],
        "bytes": 1000,
    });
    assert_eq!(j.to_string(), want.to_string(), "members in this order");
}

#[test]
fn a_prune_that_fails_halfway_prints_what_it_has_removed_and_then_the_error() {
    for json in [false, true] {
        let saved = cluttered();
        let store = FaultStore::new(Arc::new(LocalStore::open(&saved.url).unwrap()));
        store.fail(Op::RemoveLeftover, 0, Fault::Before);
        let mut args = vec!["prune", &saved.url, "--older-than", "0s"];
        if json {
            args.push("--json");
        }
        let ran = run_with(Stores::only(Arc::new(store)), &args);
        assert_eq!(ran.code, 2, "{}", ran.err);
        assert!(
            ran.err.contains("injected fault") && !ran.err.contains("hint: "),
            "{}",
            ran.err
        );
        assert!(
            ran.out.contains("__8_0.distcp") && ran.out.contains("README.md"),
            "{}",
            ran.out
        );
        if json {
            let rows: Vec<serde_json::Value> = ran
                .out
                .lines()
                .map(|l| serde_json::from_str(l).unwrap())
                .collect();
            assert_eq!(
                (rows.len(), &rows[0]["bytes"], &rows[1]["error"]["kind"]),
                (2, &json!(3000), &json!("unavailable"))
            );
        } else {
            assert!(
                ran.out.starts_with("REMOVED") && ran.out.contains("3.00 kB freed"),
                "{}",
                ran.out
            );
        }
    }
}

#[test]
fn damaged_and_missing_checkpoints_are_left_alone() {
    let saved = cluttered();
    fs::remove_file(saved.path("__0_0.distcp")).unwrap();
    let ran = run(&["prune", &saved.url]);
    assert!(
        ran.code == 1 && ran.err.contains("__0_0.distcp") && ran.err.contains("hint: "),
        "{} {}",
        ran.code,
        ran.err
    );
    fs::remove_file(saved.path(".metadata")).unwrap();
    assert_eq!(run(&["prune", &saved.url]).code, 3);
    assert_eq!(run(&["prune", &saved.beside("nothing")]).code, 3);
    assert!(saved.path("__8_0.distcp").exists());
}

/// A draft that a killed save has left beside a place, and whose files are old.
fn draft(run: &Path, step: &str) -> std::path::PathBuf {
    let draft = run.join(format!(".{step}.1-1a2b3c4d5e6f7082-3.tmp"));
    fs::create_dir(&draft).unwrap();
    fs::write(draft.join("__0_0.distcp"), vec![0; 4000]).unwrap();
    for path in [draft.join("__0_0.distcp"), draft.clone()] {
        let file = fs::File::open(path).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
    }
    draft
}

#[test]
fn a_run_is_pruned_with_all_its_steps() {
    let dir = tempfile::tempdir().unwrap();
    let run_dir = dir.path();
    let path = run_dir.to_str().unwrap();
    let mut state = reshard::StateDict::new();
    state.insert("step", 1);
    for step in ["step-1", "step-2", "iter_0000003"] {
        reshard::blocking::save(&state, run_dir.join(step)).unwrap();
    }
    // Of a step that has a checkpoint, of one that has none, and of Megatron's.
    let drafts = ["step-1", "step-9", "iter_0000004"].map(|step| draft(run_dir, step));
    let young = run_dir.join(".step-10.1-1a2b3c4d5e6f7083-3.tmp");
    fs::create_dir(&young).unwrap();
    let others = run_dir.join(".step-1.part.tmp");
    fs::create_dir(&others).unwrap();
    fs::write(run_dir.join("step-2/README.md"), "of others").unwrap();
    fs::write(run_dir.join("step-2/__7_0.distcp"), "old").unwrap();
    let old = fs::File::options()
        .write(true)
        .open(run_dir.join("step-2/__7_0.distcp"))
        .unwrap();
    old.set_modified(SystemTime::UNIX_EPOCH).unwrap();

    let dry = run(&["prune", path, "--dry-run"]).ok();
    assert!(dry.contains("12.00 kB would be freed"), "{dry}");
    assert!(drafts.iter().all(|draft| draft.exists()));
    // With a pattern only the steps that are called so.
    let only = run(&["prune", path, "--dry-run", "--steps", "iter_{n:07}"]).ok();
    assert!(only.contains("4.00 kB would be freed"), "{only}");
    let none = run(&["prune", path, "--dry-run", "--steps", "epoch_{n}"]);
    assert_eq!(none.code, 3, "{}", none.err);

    let ran = run(&["prune", path]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(
        ran.out.contains("12.00 kB freed") && ran.out.contains(".step-10."),
        "{}",
        ran.out
    );
    assert!(drafts.iter().all(|draft| !draft.exists()));
    assert!(young.exists() && others.exists());
    let all = run(&["prune", path, "--older-than", "0s", "--json"]).json();
    assert!(!young.exists() && others.exists());
    assert_eq!(all["removed"].as_array().unwrap().len(), 1, "{all}");
    for step in ["step-1", "step-2", "iter_0000003"] {
        assert_eq!(
            run(&["verify", run_dir.join(step).to_str().unwrap()]).code,
            0
        );
    }
}

#[test]
fn a_step_whose_save_was_killed_is_noted_and_stays() {
    let dir = tempfile::tempdir().unwrap();
    for step in ["step-1", "step-2"] {
        let mut state = reshard::StateDict::new();
        state.insert("step", 1);
        drop(reshard::blocking::save(&state, dir.path().join(step)).unwrap());
    }
    let killed = dir.path().join("step-2");
    fs::remove_file(killed.join(".metadata")).unwrap();
    let ran = run(&["prune", dir.path().to_str().unwrap()]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(
        ran.err
            .contains("no complete checkpoint, so it stays: step-2"),
        "{}",
        ran.err
    );
    assert!(fs::read_dir(killed).unwrap().count() > 0);
}

#[test]
fn a_step_that_can_not_be_pruned_keeps_no_other_from_it() {
    let dir = tempfile::tempdir().unwrap();
    let run_dir = dir.path();
    let mut state = reshard::StateDict::new();
    state.insert("step", 1);
    for step in ["step-1", "step-2"] {
        reshard::blocking::save(&state, run_dir.join(step)).unwrap();
    }
    let drafts = ["step-1", "step-2"].map(|step| draft(run_dir, step));
    fs::write(run_dir.join("step-1/common.pt"), "damaged").unwrap();
    let ran = run(&["prune", run_dir.to_str().unwrap()]);
    assert_eq!(ran.code, 1, "{}", ran.err);
    assert!(ran.err.contains("note: step-1: "), "{}", ran.err);
    assert!(drafts[0].exists() && !drafts[1].exists());
    assert!(
        ran.out.contains(".step-2.1-1a2b3c4d5e6f7082-3.tmp"),
        "{}",
        ran.out
    );
}

/// An adapter or another model that somebody has put into the folder.
#[test]
fn files_of_safetensors_of_other_programs_stay() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let saved = states::dcp();
    let (model, other) = (path("model"), path("other.safetensors"));
    let convert = [
        "convert",
        &saved.url,
        &model,
        "--to",
        "safetensors",
        "--drop-objects",
    ];
    assert_eq!(run(&convert).code, 0);
    assert_eq!(
        run(&["convert", &saved.url, &other, "--drop-objects"]).code,
        0
    );
    let of_others = ["vae.safetensors", "adapter_model.safetensors"];
    for name in of_others {
        fs::copy(&other, Path::new(&model).join(name)).unwrap();
    }
    run(&["prune", &model, "--older-than", "0s"]).ok();
    assert_eq!(run(&[&convert[..], &["--overwrite"]].concat()).code, 0);
    for name in of_others {
        assert!(Path::new(&model).join(name).exists(), "{name}");
    }
}

#[test]
fn a_leftover_of_files_with_a_prefix_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let saved = states::dcp();
    let convert = ["convert", &saved.url, &path("ck"), "--to", "tensor_bundle"];
    run(&convert).ok();
    let old = path("ck.data-00001-of-00002");
    fs::copy(path("ck.data-00000-of-00001"), &old).unwrap();
    let said = run(&["prune", &path("ck"), "--older-than", "0s"]).ok();
    assert!(said.contains(".data-00001-of-00002"), "{said}");
    assert!(!Path::new(&old).exists());
    run(&["verify", &path("ck")]).ok();
}
