use crate::{
    run, run_with,
    states::{self, Saved},
};
use async_trait::async_trait;
use bytes::Bytes;
use reshard::{
    StateDict, Stores, blocking,
    storage::{Name, Result, StorageError, Store, StoreScheme},
};
use serde_json::json;
use std::{fs, ops::Range, sync::Arc};

#[test]
fn a_sound_checkpoint_exits_with_0() {
    for saved in [states::megatron(), states::dcp()] {
        assert!(run(&["verify", &saved.url]).ok().starts_with("sound  "));
        assert!(
            run(&["verify", &saved.url, "--quick"])
                .ok()
                .contains("coverage")
        );
        let j = run(&["verify", &saved.url, "--json"]).json();
        assert_eq!(
            (&j["schema"], &j["status"], &j["damage"]),
            (&json!(1), &json!("sound"), &json!([]))
        );
    }
}

#[test]
fn a_flipped_bit_anywhere_in_an_item_is_found_by_the_full_check() {
    let saved = states::dcp();
    let file = saved.path("__0_0.distcp");
    let whole = fs::read(&file).unwrap();
    let mut found = 0;
    for at in (0..whole.len()).step_by(29) {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x10;
        fs::write(&file, bytes).unwrap();
        let ran = run(&["verify", &saved.url]);
        assert!(ran.code <= 1, "byte {at}: {} {}", ran.code, ran.err);
        found += u32::from(ran.code == 1);
    }
    assert!(found > 100, "{found}");
    fs::write(&file, whole).unwrap();
    assert_eq!(run(&["verify", &saved.url]).code, 0);
}

#[test]
fn lost_and_cut_files_exit_with_1_and_are_named() {
    let cut = |saved: &Saved, name: &str, to: u64| {
        fs::OpenOptions::new()
            .write(true)
            .open(saved.path(name))
            .unwrap()
            .set_len(to)
            .unwrap();
    };
    for quick in [&["--quick"][..], &[]] {
        let check = |saved: &Saved| run(&[&["verify", &saved.url][..], quick].concat());
        let saved = states::megatron();
        fs::remove_file(saved.path("__1_0.distcp")).unwrap();
        let ran = check(&saved);
        assert_eq!(ran.code, 1);
        assert!(
            ran.out.contains("layer.weight: __1_0.distcp at byte") && ran.out.contains("missing"),
            "{}",
            ran.out
        );
        assert!(ran.err.contains("hint: "), "{}", ran.err);

        let saved = states::megatron();
        cut(&saved, "__0_0.distcp", 100);
        assert_eq!(check(&saved).code, 1);

        let saved = states::megatron();
        cut(&saved, ".metadata", 100);
        let ran = check(&saved);
        assert!(
            ran.code == 1 && ran.err.contains(".metadata"),
            "{} {}",
            ran.code,
            ran.err
        );

        let saved = states::megatron();
        cut(&saved, "common.pt", 100);
        let ran = check(&saved);
        assert!(
            ran.code == 1 && ran.out.contains("common"),
            "{} {}",
            ran.code,
            ran.out
        );
    }
}

#[test]
fn what_could_not_be_checked_exits_with_2() {
    let saved = states::dcp();
    let url = format!("broken://{}", saved.url);
    let mut stores = Stores::linked().unwrap();
    stores
        .register(StoreScheme::new(
            "broken",
            "this test",
            "0.0.0",
            Broken::open,
        ))
        .unwrap();
    let run = |args: &[&str]| run_with(stores.clone(), args);
    let ran = run(&["verify", &url]);
    assert_eq!(ran.code, 2, "{}", ran.err);
    assert!(
        ran.out.contains("unchecked") && ran.out.contains("model.weight"),
        "{}",
        ran.out
    );
    // The lines say all.
    assert_eq!(ran.err, "");
    let j: serde_json::Value = serde_json::from_str(&run(&["verify", &url, "--json"]).out).unwrap();
    assert_eq!(
        (&j["status"], &j["damage"]),
        (&json!("unchecked"), &json!([]))
    );
    assert_eq!(run(&["verify", &url, "--quick"]).code, 0);
    let to = saved.beside("to");
    assert_eq!(
        (
            run(&["convert", &url, &to]).code,
            run(&["digest", &url]).code
        ),
        (2, 2)
    );

    let ran = run(&["verify", "gopher://somewhere"]);
    assert!(
        ran.code == 2 && ran.err.contains("gopher") && ran.err.contains("broken"),
        "{}",
        ran.err
    );
}

/// A disk that gives metadata and nothing else.
#[derive(Debug)]
struct Broken(Arc<dyn Store>);

impl Broken {
    fn open(url: &str) -> Result<Arc<dyn Store>> {
        let path = url.trim_start_matches("broken://");
        Ok(Arc::new(Self(Stores::linked()?.open(path)?)))
    }
}

#[async_trait]
impl Store for Broken {
    reshard::storage::forward! { 0: url hints list head remove begin join }

    async fn read(&self, name: &Name, range: Range<u64>) -> Result<Bytes> {
        if name.as_str().ends_with(".distcp") {
            return Err(StorageError::io(
                "read",
                name.as_str(),
                std::io::Error::other("the disk is gone"),
            ));
        }
        self.0.read(name, range).await
    }
}

#[test]
fn no_checkpoint_exits_with_3_in_both_forms() {
    let saved = states::megatron();
    fs::remove_file(saved.path(".metadata")).unwrap();
    let ran = run(&["verify", &saved.url]);
    assert!(
        ran.code == 3 && ran.err.contains("not a checkpoint"),
        "{} {}",
        ran.code,
        ran.err
    );
    let ran = run(&["verify", &saved.url, "--json"]);
    let j: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(
        (ran.code, &j["status"], &ran.err[..]),
        (3, &json!("not a checkpoint"), "")
    );
    assert!(
        j["damage"][0]["what"]
            .as_str()
            .unwrap()
            .contains(".metadata")
    );
}

/// A list of lists of lists …, as torch.save would write it; deeper than values may be here.
fn beyond_the_decoder() -> Vec<u8> {
    let mut pickle = b"\x80\x02".to_vec();
    pickle.extend(std::iter::repeat_n(b"]".as_slice(), 400).flatten());
    pickle.extend(std::iter::repeat_n(b"a".as_slice(), 399).flatten());
    pickle.push(b'.');
    let layout =
        reshard_torch_format::archive::ArchiveLayout::new(&pickle, &[], &Default::default())
            .unwrap();
    let mut bytes = layout.head().to_vec();
    bytes.extend(layout.finish(&[]).unwrap());
    bytes
}

#[test]
fn an_object_that_is_beyond_the_decoder_is_sound_and_carried_over() {
    let payload = reshard::model::Payload::Encoded {
        codec: "torch.save",
        bytes: beyond_the_decoder().into(),
    };
    let mut state = StateDict::new();
    state.insert("deep", reshard::ShardedObject::item("deep", payload));
    let saved = states::save(&[state], reshard::Dialect::Dcp);
    assert_eq!(run(&["verify", &saved.url]).code, 0);
    let to = saved.beside("to");
    assert_eq!(run(&["convert", &saved.url, &to]).code, 0);
    let object = |url: &str| {
        blocking::Checkpoint::open(url)
            .unwrap()
            .object_payload("deep")
            .unwrap()
    };
    assert_eq!(object(&to), object(&saved.url));
    assert!(
        blocking::Checkpoint::open(&to)
            .unwrap()
            .object("deep")
            .is_err()
    );
}

#[test]
fn common_state_that_is_beyond_the_decoder_is_sound_and_carried_over() {
    let saved = states::megatron();
    let mut bytes = beyond_the_decoder();
    fs::write(saved.path("common.pt"), &bytes).unwrap();
    assert!(run(&["verify", &saved.url]).ok().starts_with("sound"));
    assert!(run(&["prune", &saved.url, "--dry-run"]).code == 0);
    let to = saved.beside("to");
    run(&["convert", &saved.url, &to, "--ranks", "3"]).ok();
    assert_eq!(
        fs::read(std::path::Path::new(&to).join("common.pt")).unwrap(),
        bytes
    );
    let text = run(&["inspect", &saved.url]).ok();
    assert!(
        text.contains("the common state can't be read") && text.contains("256"),
        "{text}"
    );
    // A flipped bit in it is damage all the same.
    let at = bytes.windows(4).position(|w| w == b"]]]]").unwrap();
    bytes[at] ^= 1;
    fs::write(saved.path("common.pt"), &bytes).unwrap();
    let ran = run(&["verify", &saved.url]);
    assert!(
        ran.code == 1 && ran.out.contains("common.pt"),
        "{}",
        ran.out
    );
}

#[test]
fn a_long_element_type_is_shortened_in_messages() {
    let saved = states::megatron();
    let metadata = fs::read(saved.path(".metadata")).unwrap();
    let at = metadata.windows(5).position(|w| w == b"int64").unwrap();
    let long = "i".repeat(100_000);
    // The opcode of a short text becomes that of a long one.
    let opcode = [&b"X"[..], &100_000u32.to_le_bytes()].concat();
    let parts = [
        &metadata[..at - 2],
        &opcode,
        long.as_bytes(),
        &metadata[at + 5..],
    ];
    fs::write(saved.path(".metadata"), parts.concat()).unwrap();
    fs::remove_file(saved.path("reshard.json")).unwrap();
    for command in ["verify", "inspect", "digest"] {
        let ran = run(&[command, &saved.url]);
        let told = ran.out + &ran.err;
        assert!(told.len() < 10_000, "{command}: {} bytes", told.len());
        assert!(told.contains("(100000 bytes)"), "{command}: {told}");
    }
}

#[test]
fn an_element_type_that_nobody_knows_is_told_by_all_commands_and_stops_only_what_wants_it() {
    let saved = states::megatron();
    let metadata = fs::read(saved.path(".metadata")).unwrap();
    let at = metadata.windows(5).position(|w| w == b"int64").unwrap();
    let renamed = [&metadata[..at], b"int66", &metadata[at + 5..]].concat();
    fs::write(saved.path(".metadata"), renamed).unwrap();
    // As another program wrote it.
    fs::remove_file(saved.path("reshard.json")).unwrap();

    let ran = run(&["verify", &saved.url]);
    assert_eq!(ran.code, 2, "nothing is damaged");
    assert!(
        ran.out
            .contains("not understood  norm: its element type torch.int66"),
        "{}",
        ran.out
    );
    let listed = run(&["inspect", &saved.url]).ok();
    assert!(
        listed.contains("norm can't be read: its element type torch.int66"),
        "{listed}"
    );
    let j = run(&["inspect", &saved.url, "--json"]).json();
    assert!(
        j["producer"]["unknown"]["norm"]
            .as_str()
            .unwrap()
            .contains("torch.int66"),
        "{j}"
    );

    let ran = run(&["digest", &saved.url, "--json"]);
    assert!(
        ran.code == 2 && ran.err.contains("norm"),
        "{} {}",
        ran.code,
        ran.err
    );
    assert!(
        ran.out.contains("layer.weight"),
        "the others are digested: {}",
        ran.out
    );
    assert_eq!(run(&["digest", &saved.url, "--key", "layer*"]).code, 0);

    for command in ["digest", "inspect", "ls"] {
        let ran = run(&[command, &saved.url, "--key", "norm"]);
        assert!(
            !ran.err.contains("no key matches"),
            "{command}: {}",
            ran.err
        );
    }
    let listed = run(&["ls", &saved.url]);
    assert!(
        !listed.out.contains("norm")
            && listed
                .err
                .contains("left out: norm, which is not understood;"),
        "{}",
        listed.err
    );

    let ran = run(&["convert", &saved.url, &saved.beside("all")]);
    assert!(
        ran.code == 2 && ran.err.contains("norm"),
        "{} {}",
        ran.code,
        ran.err
    );
    for chosen in [&[][..], &["--key", "norm"]] {
        let unchecked = ["convert", &saved.url, &saved.beside("all"), "--no-verify"];
        let ran = run(&[&unchecked[..], chosen].concat());
        assert!(
            ran.code == 2 && ran.err.contains("norm can't be carried over"),
            "{} {}",
            ran.code,
            ran.err
        );
    }
    assert!(!std::path::Path::new(&saved.beside("all")).exists());
    let error = blocking::Checkpoint::open(&saved.url)
        .unwrap()
        .state()
        .unwrap_err();
    assert!(error.to_string().contains("torch.int66"), "{error}");
    assert_eq!(
        run(&[
            "convert",
            &saved.url,
            &saved.beside("some"),
            "--key",
            "layer*"
        ])
        .code,
        0
    );
}

#[test]
fn a_key_that_would_move_the_cursor_is_escaped_in_notes_too() {
    let saved = states::megatron();
    let mut metadata = fs::read(saved.path(".metadata")).unwrap();
    for (old, new) in [(&b"norm"[..], &b"n\nrm"[..]), (b"int64", b"int66")] {
        let places: Vec<usize> = (0..metadata.len())
            .filter(|&at| metadata[at..].starts_with(old))
            .collect();
        assert!(!places.is_empty());
        places
            .into_iter()
            .for_each(|at| metadata[at..at + old.len()].copy_from_slice(new));
    }
    fs::write(saved.path(".metadata"), metadata).unwrap();
    fs::remove_file(saved.path("reshard.json")).unwrap();
    let ran = run(&["ls", &saved.url]);
    assert!(
        ran.code == 0
            && ran
                .err
                .contains("left out: n\\nrm, which is not understood;"),
        "{}",
        ran.err
    );
    let listed = run(&["inspect", &saved.url]).ok();
    assert!(listed.contains("n\\nrm can't be read"), "{listed}");
    // Of a pattern, too.
    let ran = run(&["ls", &saved.url, "--key", "a\u{1b}[31m"]);
    assert!(
        !ran.err.contains('\u{1b}') && ran.err.contains("no key matches"),
        "{}",
        ran.err
    );
}

#[test]
fn a_line_of_damage_begins_with_its_key_even_where_the_message_has_its_letters() {
    for key in ["t", "a", "e", "read", "can't"] {
        let mut state = StateDict::new();
        let data = reshard::Tensor::from_vec(&[4_000], vec![1.5f32; 4_000]).unwrap();
        state.insert(key, reshard::ShardedTensor::replicated(key, data, 0));
        let saved = states::save(&[state], reshard::Dialect::Dcp);
        // In the elements, in the pickle's checksum, and the file gone.
        for damage in 0..3 {
            let path = saved.path("__0_0.distcp");
            let whole = fs::read(&path).unwrap();
            let mut bytes = whole.clone();
            match damage {
                0 => bytes[8_000] ^= 1,
                1 => bytes.iter_mut().take(300).for_each(|b| *b = !*b),
                _ => bytes.truncate(100),
            }
            fs::write(&path, bytes).unwrap();
            let ran = run(&["verify", &saved.url]);
            let begin = format!("damaged  {key}: __0_0.distcp at byte 0: ");
            assert!(ran.code == 1 && ran.out.starts_with(&begin), "{}", ran.out);
            let listed = run(&["inspect", &saved.url]);
            let listed = match damage {
                2 => listed.damaged(),
                _ => listed.ok(),
            };
            let problem = format!("problem     {key}: __0_0.distcp");
            assert_eq!(listed.contains(&problem), damage == 2, "{listed}");
            fs::write(&path, whole).unwrap();
        }
    }
}

#[test]
fn files_that_integrity_json_does_not_list_are_noted_and_are_no_damage() {
    let saved = Saved::made(|url| {
        let mut state = StateDict::new();
        state.insert("step", 7);
        drop(blocking::run(reshard::save(&state, url).integrity(true)).unwrap());
    });
    let listed = run(&["verify", &saved.url, "--json"]).json();
    assert_eq!(listed["beside_integrity"], json!([]));
    for n in 0..7 {
        fs::write(saved.path(&format!("note-{n}.txt")), "of somebody").unwrap();
    }
    let ran = run(&["verify", &saved.url]);
    assert!(
        ran.code == 0 && ran.out.starts_with("sound  "),
        "{}",
        ran.out
    );
    let note = "integrity.json does not list note-0.txt, note-1.txt, note-2.txt, note-3.txt, note-4.txt and 2 more";
    assert!(ran.err.contains(note), "{}", ran.err);
    let j = run(&["verify", &saved.url, "--json"]).json();
    let all: Vec<String> = (0..7).map(|n| format!("note-{n}.txt")).collect();
    assert_eq!(j["beside_integrity"], json!(all));
    assert_eq!(j["status"], "sound");
}

#[test]
fn a_file_that_is_cut_short_is_told_in_one_line() {
    let mut state = StateDict::new();
    for i in 0..10 {
        let tensor = reshard::Tensor::from_vec(&[2], vec![i as f32; 2]).unwrap();
        state.insert_piece(reshard::ShardedTensor::full(&format!("layer.{i}"), tensor));
    }
    let saved = states::save(&[state], reshard::Dialect::Dcp);
    fs::OpenOptions::new()
        .write(true)
        .open(saved.path("__0_0.distcp"))
        .unwrap()
        .set_len(100)
        .unwrap();
    for quick in [&["--quick"][..], &[]] {
        let ran = run(&[&["verify", &saved.url][..], quick].concat());
        let damaged: Vec<&str> = ran
            .out
            .lines()
            .filter(|line| line.starts_with("damaged"))
            .collect();
        assert_eq!(
            damaged,
            [
                "damaged  __0_0.distcp: it reaches beyond the end of the file, which has 100 bytes; 10 keys, such as layer.0, layer.1, layer.2"
            ]
        );
        assert_eq!(ran.code, 1);
        assert!(
            ran.err.starts_with("10 problems in 10 items"),
            "{}",
            ran.err
        );
        assert!(!ran.err.contains("0 B"), "{}", ran.err);
    }
    let ran = run(&["verify", &saved.url]);
    assert!(
        ran.err
            .starts_with("10 problems in 10 items, of which nothing could be read; "),
        "{}",
        ran.err
    );
    let j: serde_json::Value =
        serde_json::from_str(&run(&["verify", &saved.url, "--json"]).out).unwrap();
    assert_eq!(j["damage"].as_array().unwrap().len(), 10);
}
