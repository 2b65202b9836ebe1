//! Files of checkpoints that reshard names and does not merge: each of them opens alone.

use reshard::{ErrorKind, blocking::Checkpoint, storage::Progress};
use reshard_golden::{chain, compare_facts};
use serde_json::Value as Json;
use std::{collections::BTreeSet, fs, path::Path};

#[test]
fn each_file_of_a_rank_has_the_tensors_that_torch_finds_in_it() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/other_programs");
    let mut looked = 0;
    for (name, program) in [
        ("deepspeed_zero2", "zero_to_fp32.py"),
        ("deepspeed_zero3", "zero_to_fp32.py"),
        ("megatron_legacy", "tools/checkpoint/convert.py"),
    ] {
        let fixture = fixtures.join(name);
        let ckpt = fixture.join("ckpt");
        let e = Checkpoint::open(&ckpt).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::NotFound, "{}", chain(&e));
        assert!(e.to_string().contains(program), "{e}");

        let text = fs::read_to_string(fixture.join("expected.json")).unwrap();
        let expected: Json = serde_json::from_str(&text).unwrap();
        for (file, tensors) in expected["files"].as_object().unwrap() {
            let opened = Checkpoint::open(ckpt.join(file)).unwrap();
            let report = opened.verify(true, Progress::none()).unwrap();
            assert!(report.damage.is_empty(), "{file}: {report}");
            let tensors = tensors.as_object().unwrap();
            let found: BTreeSet<String> = opened.tensors().map(|t| t.key().into()).collect();
            let names: BTreeSet<String> = tensors.keys().cloned().collect();
            assert_eq!(found, names, "{file}");
            for (key, facts) in tensors {
                let read = opened.tensor(key).unwrap().read(..).unwrap();
                compare_facts(facts, &read).unwrap_or_else(|e| panic!("{file}: {key}: {e}"));
                looked += 1;
            }
        }
    }
    assert_eq!(looked, 20);
}
