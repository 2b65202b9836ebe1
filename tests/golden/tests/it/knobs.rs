//! Megatron Core's files of `torch_dist`: how it spreads items over them, what it removes, and how it checks them.

use crate::loads::declared;
use futures::executor::block_on;
use reshard::{
    Checkpoint, ErrorKind, LocalGroup, ShardedObject, StateDict, Tensor, Value,
    megatron::{INTEGRITY, Integrity},
    model::{Dims, Payload},
    storage::{Name, Progress},
    torch_dist::TorchDistConfig,
};
use reshard_golden::{Fixture, Scratch, chain, fixtures, sha256};
use serde_json::Value as Json;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::MetadataExt,
};

/// Items of each file, in their order: key, and offset of a chunk.
type Files = BTreeMap<String, Vec<(String, Option<Dims>)>>;

/// `None` if the fixtures are of another folder, which lacks it.
fn fixture(name: &str) -> Option<Fixture> {
    let found = fixtures()
        .into_iter()
        .find(|f| f.to_string().ends_with(name));
    assert!(
        found.is_some() || !reshard_golden::ours(),
        "there is no fixture {name}"
    );
    found
}

fn json(f: &Fixture) -> Json {
    let file = f.checkpoint().with_file_name("expected.json");
    serde_json::from_slice(&fs::read(file).unwrap()).unwrap()
}

/// What a rank of a fixture has saved; the elements don't matter here.
fn state(rank: &Json) -> StateDict {
    let mut out = StateDict::new();
    for leaf in rank["leaves"].as_array().unwrap() {
        let path = leaf["path"].as_array().unwrap();
        let name = path[0].as_str().unwrap();
        match leaf["kind"].as_str().unwrap() {
            "tensor" => {
                let t = declared(leaf);
                let data = Tensor::zeros(&t.key, t.dtype, &t.local_shape).unwrap();
                out.insert(name, t.with_data(data));
            }
            "object" => {
                let key = leaf["unique_key"].as_str().unwrap();
                let mut cell = ShardedObject::empty_from_unique_key(key).unwrap();
                cell.data = Payload::Value(Value::Int(1));
                cell.replica_id = (leaf["replica_id"].as_u64().unwrap() as u32).into();
                out.insert(name, cell);
            }
            _ => {}
        }
    }
    out
}

/// In the order of a file.
fn sorted(mut items: Vec<(String, u64, String, Option<Dims>)>) -> Files {
    items.sort_by(|a, b| (&a.0, a.1).cmp(&(&b.0, b.1)));
    let mut out = Files::new();
    for (file, _, key, offset) in items {
        out.entry(file).or_default().push((key, offset));
    }
    out
}

fn theirs(json: &Json) -> Files {
    let rows = json["dcp"]["storage"].as_array().unwrap().iter();
    let row = |row: &Json| {
        let offset = row[1].as_array();
        let offset = offset.map(|o| o.iter().map(|n| n.as_u64().unwrap()).collect());
        let text = |at: usize| row[at].as_str().unwrap().to_owned();
        (text(3), row[4].as_u64().unwrap(), text(0), offset)
    };
    sorted(rows.map(row).collect())
}

fn ours(url: &str) -> Files {
    let opened = block_on(Checkpoint::open(url)).unwrap();
    let mut items = Vec::new();
    for t in opened.tensors() {
        for chunk in t.chunks() {
            let part = &chunk.parts[0];
            let at = (part.file.to_string(), part.range.start);
            items.push((at.0, at.1, t.key().to_owned(), Some(chunk.region.offsets)));
        }
    }
    for key in opened.objects() {
        let part = &opened.object_parts(key)[0];
        items.push((
            part.file.to_string(),
            part.range.start,
            key.to_owned(),
            None,
        ));
    }
    sorted(items)
}

#[test]
fn items_are_spread_over_files_as_megatron_core_spreads_them() {
    for version in ["mc012", "mc016"] {
        for (name, hint) in [
            ("threads4_w2", None),
            ("separation_hint_w2", Some("optimizer.")),
        ] {
            let Some(f) = fixture(&format!("{version}_{name}")) else {
                continue;
            };
            let json = json(&f);
            let mut config = TorchDistConfig::new().with_thread_count(4);
            if let Some(hint) = hint {
                config = config.with_separation_hint(hint);
            }
            let dir = tempfile::tempdir().unwrap();
            let url = dir.path().join("ckpt").display().to_string();
            let states: Vec<StateDict> = json["save_spec"]
                .as_array()
                .unwrap()
                .iter()
                .map(state)
                .collect();
            std::thread::scope(|scope| {
                for (group, state) in LocalGroup::new(2).into_iter().zip(&states) {
                    let (url, config) = (&url, config.clone());
                    scope.spawn(move || {
                        let save = reshard::save(state, url).group(&group).strategy(config);
                        block_on(async { save.await }).unwrap();
                    });
                }
            });
            assert_eq!(ours(&url), theirs(&json), "{f}");
        }
    }
}

fn elements(url: &str) -> BTreeMap<String, Tensor> {
    block_on(reshard::load_plain_tensors(url)).unwrap()
}

/// The id that PyTorch gave the save: 36 characters in `storage_meta`, after the name of the field and the marks of both texts.
fn save_id(metadata: &[u8]) -> String {
    let name = b"save_id";
    let at = metadata.windows(name.len()).position(|w| w == name);
    let from = at.unwrap() + name.len() + 3;
    let id = String::from_utf8(metadata[from..from + 36].to_vec()).unwrap();
    assert_eq!(id.matches('-').count(), 4, "{id}");
    id
}

#[test]
fn the_optimizer_is_removed_and_the_rest_stays_in_the_same_files() {
    for version in ["mc012", "mc016"] {
        let Some(f) = fixture(&format!("{version}_separation_hint_w2")) else {
            continue;
        };
        let scratch = Scratch::of(&f.checkpoint()).unwrap();
        let url = scratch.url();
        let old = block_on(Checkpoint::open(&url)).unwrap();
        let (before, common) = (elements(&url), block_on(old.common()).unwrap());
        let inode = |name: &str| fs::metadata(scratch.file(name)).unwrap().ino();
        let inodes = ["__0_0.distcp", "__1_1.distcp", "common.pt"].map(inode);
        let json = fs::read(scratch.file("metadata.json")).unwrap();
        let id = save_id(&fs::read(scratch.file(".metadata")).unwrap());
        let removed =
            block_on(async { reshard_manager::remove_sharded_tensors(&url, "optimizer.").await })
                .unwrap_or_else(|e| panic!("{f}: {}", chain(&e)));

        let is_gone = |key: &str| key.starts_with("optimizer.");
        let all = before.keys().map(String::as_str).chain(old.objects());
        let want: BTreeSet<&str> = all.filter(|key| is_gone(key)).collect();
        assert_eq!(
            removed
                .keys
                .iter()
                .map(String::as_str)
                .collect::<BTreeSet<_>>(),
            want
        );
        assert!(
            want.contains("optimizer.obj/shard_0_1") && want.len() == 5,
            "{want:?}"
        );
        let names: Vec<&str> = removed.files.iter().map(|f| f.name.as_str()).collect();
        let gone = ["0_2", "0_3", "1_2", "1_3"].map(|n| format!("optimizer.__{n}.distcp"));
        assert_eq!(names, gone);
        assert!(gone.iter().all(|file| !scratch.file(file).exists()));

        // What is left has not been written again, and is as it was.
        assert_eq!(
            ["__0_0.distcp", "__1_1.distcp", "common.pt"].map(inode),
            inodes,
            "{f}"
        );
        assert_eq!(fs::read(scratch.file("metadata.json")).unwrap(), json);
        assert_eq!(save_id(&fs::read(scratch.file(".metadata")).unwrap()), id);
        let after = elements(&url);
        assert!(after.len() == before.len() - 4 && after.keys().all(|key| !is_gone(key)));
        for (key, t) in &after {
            assert_eq!(t.to_bytes(), before[key].to_bytes(), "{f}: {key}");
        }
        let new = block_on(Checkpoint::open(&url)).unwrap();
        assert_eq!(block_on(new.common()).unwrap(), common);
        let report = block_on(new.verify(true, Progress::none())).unwrap();
        assert!(
            report.damage.is_empty() && report.not_understood.is_empty(),
            "{report:?}"
        );
        // It is for the same programs, by what the metadata say.
        assert!(
            new.producer().written_by[0].contains("PyTorch"),
            "{:?}",
            new.producer()
        );
        for key in new.objects() {
            block_on(new.object(key)).unwrap();
        }

        // There is nothing left to remove, and nothing is touched.
        let metadata = fs::read(scratch.file(".metadata")).unwrap();
        let again =
            block_on(async { reshard_manager::remove_sharded_tensors(&url, "optimizer.").await });
        assert_eq!(again.unwrap(), Default::default());
        assert_eq!(fs::read(scratch.file(".metadata")).unwrap(), metadata);
    }
}

#[test]
fn one_flipped_byte_is_found_in_the_file_that_has_it() {
    let all = ["mc020_integrity_w2", "mc016_objects_w4"].map(fixture);
    let [Some(f), Some(other)] = all else {
        return;
    };
    let text = fs::read(f.checkpoint().join(INTEGRITY)).unwrap();
    let integrity = Integrity::parse(&text).unwrap();
    assert_eq!(
        integrity.to_bytes(),
        text,
        "it is written as Megatron Core writes it"
    );

    // The directory in which it was made has got another name in `.metadata` since Megatron Core had listed the digest of that.
    let copy = || {
        let scratch = Scratch::of(&f.checkpoint()).unwrap();
        let metadata = fs::read(scratch.file(".metadata")).unwrap();
        let mut listed = integrity.clone();
        listed.insert(&Name::new(".metadata").unwrap(), sha256([metadata]));
        fs::write(scratch.file(INTEGRITY), listed.to_bytes()).unwrap();
        scratch
    };
    let load = |url: &str| {
        let template = block_on(reshard::load_tensors_metadata(url)).unwrap_or_default();
        block_on(async { reshard::load(template, url).verify_integrity(true).await })
    };
    let sound = copy();
    let damage = |url: &str, full: bool| {
        let opened = block_on(Checkpoint::open(url)).ok()?;
        Some(
            block_on(opened.verify(full, Progress::none()))
                .unwrap()
                .damage,
        )
    };
    assert_eq!(damage(&sound.url(), true), Some(Vec::new()));
    load(&sound.url()).unwrap();
    fs::write(sound.file("notes.txt"), "of somebody").unwrap();
    let opened = block_on(Checkpoint::open(&sound.url())).unwrap();
    let beside = block_on(opened.beside_integrity()).unwrap();
    assert_eq!(
        beside.iter().map(|n| n.as_str()).collect::<Vec<_>>(),
        ["notes.txt"]
    );
    assert_eq!(damage(&sound.url(), true), Some(Vec::new()));

    for (name, _) in integrity.files() {
        let scratch = copy();
        let mut bytes = fs::read(scratch.file(name)).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(scratch.file(name), bytes).unwrap();
        // Where the file can't be opened any more, that says it.
        if let Some(found) = damage(&scratch.url(), true) {
            let named = found.iter().any(|d| d.file.as_deref() == Some(name));
            assert!(named, "{name}: {found:?}");
        }
        let e = load(&scratch.url()).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Corrupt, "{name}: {}", chain(&e));
        fs::remove_file(scratch.file(name)).unwrap();
        if let Some(found) = damage(&scratch.url(), false) {
            let named = found.iter().any(|d| d.file.as_deref() == Some(name));
            assert!(named || name == "metadata.json", "{name}: {found:?}");
        }
    }
    // Elsewhere there is nothing to verify by.
    let e = load(&other.url()).unwrap_err();
    assert!(
        e.kind() == ErrorKind::NotFound && chain(&e).contains(INTEGRITY),
        "{}",
        chain(&e)
    );
}
