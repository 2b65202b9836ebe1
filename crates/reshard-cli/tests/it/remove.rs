use crate::{
    run,
    states::{self, Saved},
};
use reshard::{ShardedTensor, StateDict, Tensor, blocking, torch_dist::TorchDistConfig};
use serde_json::json;
use std::{collections::BTreeMap, fs};

/// A model and its optimizer, whose data lie in files of their own.
fn with_optimizer() -> Saved {
    let mut state = StateDict::new();
    for key in ["model.w", "optimizer.m", "optimizer.v"] {
        let numbers = Tensor::from_vec(&[3], vec![1f32, 2., 3.]).unwrap();
        state.insert(key, ShardedTensor::full(key, numbers));
    }
    Saved::made(|url| {
        let config = TorchDistConfig::new().with_separation_hint("optimizer.");
        drop(blocking::run(reshard::save(&state, url).strategy(config)).unwrap());
    })
}

fn files(saved: &Saved) -> BTreeMap<String, Vec<u8>> {
    let all = fs::read_dir(&saved.url).unwrap().map(|f| f.unwrap());
    all.map(|f| {
        let name = f.file_name().into_string().unwrap();
        (name, fs::read(f.path()).unwrap())
    })
    .collect()
}

#[test]
fn what_would_be_removed_is_told_and_then_is_what_goes() {
    let saved = with_optimizer();
    let before = files(&saved);
    let digest = |key: &str| run(&["digest", &saved.url, "--key", key]).ok();
    let model = digest("model.w");
    let named = |prefix: &str| {
        let file = before.iter().find(|(name, _)| name.starts_with(prefix));
        file.map(|(name, bytes)| (name.clone(), bytes.len()))
            .unwrap()
    };
    let ((gone, gone_bytes), (stays, stays_bytes)) = (named("optimizer.__"), named("__0"));

    let dry = run(&["remove", &saved.url, "optimizer.", "--dry-run"]).ok();
    assert_eq!(files(&saved), before);
    let lines: Vec<&str> = dry.lines().map(str::trim_end).collect();
    assert_eq!(
        lines[..4],
        ["KEYS TO BE REMOVED", "optimizer.m", "optimizer.v", ""]
    );
    for (title, file) in [("FILES TO BE REMOVED", &gone), ("FILES THAT STAY", &stays)] {
        let at = lines.iter().position(|l| l.starts_with(title)).unwrap();
        assert!(lines[at + 1].starts_with(file.as_str()), "{dry}");
    }
    assert!(dry.contains("dry run  2 keys and 1 file, "), "{dry}");

    let would = run(&["remove", &saved.url, "optimizer.", "--dry-run", "--json"]).json();
    assert_eq!(
        would,
        json!({
            "schema": 1, "dry_run": true, "keys": ["optimizer.m", "optimizer.v"],
            "removed": [{"name": gone, "bytes": gone_bytes}],
            "kept": [{"name": stays, "bytes": stays_bytes}],
            "bytes": gone_bytes,
        })
    );
    let text = run(&["remove", &saved.url, "optimizer."]).ok();
    assert!(
        text.starts_with("REMOVED KEYS") && text.contains("removed  2 keys and 1 file, "),
        "{text}"
    );
    let after = files(&saved);
    assert!(!after.contains_key(&gone));
    assert_eq!(after[&stays], before[&stays]);
    assert_eq!(run(&["ls", &saved.url]).ok(), "model.w\n");
    assert_eq!(digest("model.w"), model);
    assert_eq!(run(&["verify", &saved.url]).code, 0);
}

#[test]
fn a_prefix_of_no_key_and_a_prefix_of_all_keys_remove_nothing() {
    let saved = with_optimizer();
    let before = files(&saved);
    for (prefix, said) in [
        ("optimiser.", "no key in"),
        ("", "name the beginning of those that are to go"),
    ] {
        for dry in [&[][..], &["--dry-run"]] {
            let ran = run(&[&["remove", &saved.url, prefix][..], dry].concat());
            assert!(
                ran.code == 2 && ran.err.contains(said),
                "{prefix:?}: {} {}",
                ran.code,
                ran.err
            );
        }
    }
    assert_eq!(files(&saved), before);
}

#[test]
fn what_is_no_checkpoint_has_no_keys_to_remove() {
    let saved = states::dcp();
    let nowhere = saved.beside("nowhere");
    assert_eq!(run(&["remove", &nowhere, "w"]).code, 3);
    fs::write(saved.path(".metadata"), "no pickle").unwrap();
    let ran = run(&["remove", &saved.url, "w", "--json"]);
    assert!(
        ran.code == 1 && ran.out.contains("\"corrupt\""),
        "{}",
        ran.out
    );
}
