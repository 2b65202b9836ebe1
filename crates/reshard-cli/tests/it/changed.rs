//! Another program saved over a checkpoint of reshard, or its metadata are damaged: the data files tell which.

use crate::{Ran, run, states::Saved};
use reshard::{Dialect, ShardedObject, ShardedTensor, StateDict, Tensor, Value, blocking};
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
        let save = save.strategy(reshard::zarr::ZarrConfig::default());
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
