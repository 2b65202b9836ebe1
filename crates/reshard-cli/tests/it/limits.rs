//! What asks for too much, and what is not understood: neither is damage.

use crate::{
    handmade::{Item, archive, pickle, view, write, zip, zstd},
    run,
};
use reshard::{Region, ShardedTensor};
use serde_json::{Value as Json, json};
use tempfile::TempDir;

pub(crate) struct Made {
    dir: TempDir,
    pub(crate) url: String,
}

pub(crate) fn made(items: &[Item]) -> Made {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ckpt");
    write(&path, items);
    Made {
        url: path.display().to_string(),
        dir,
    }
}

impl Made {
    pub(crate) fn beside(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    /// Exit code and status of `verify`.
    pub(crate) fn verified(&self, flags: &[&str]) -> (u8, Json) {
        let ran = run(&[&["verify", &self.url, "--json"][..], flags].concat());
        (ran.code, serde_json::from_str(&ran.out).unwrap())
    }
}

/// Floats that count, and the tensor of them.
pub(crate) fn sound(key: &str, n: u64, packed: bool) -> Item {
    let storage: Vec<u8> = (0..n).flat_map(|i| (i as f32).to_le_bytes()).collect();
    Item::tensor(
        key,
        &[n],
        archive(&pickle(view(&[n], &[1], n)), &storage, packed),
    )
}

fn repeated(key: &str, n: u64) -> Item {
    Item::tensor(
        key,
        &[n],
        archive(&pickle(view(&[n], &[0], 1)), &[0; 4], false),
    )
}

#[test]
fn a_terabyte_out_of_four_bytes_is_read_by_nobody_who_did_not_ask_for_it() {
    let made = made(&[repeated("huge", 1 << 38), sound("w", 4, false)]);
    // Not even a little of it: before others read it all, and do not end.
    let huge = reshard::blocking::Checkpoint::open(&made.url)
        .unwrap()
        .tensor("huge")
        .unwrap();
    for e in [
        huge.read(Region::rows(0..2)).err(),
        huge.source(Region::rows(0..2)).err(),
    ] {
        assert_eq!(e.unwrap().kind(), reshard::ErrorKind::Limit);
    }
    let mut template = reshard::StateDict::new();
    let leaf = ShardedTensor::region_of(
        "huge",
        reshard::DType::Float32,
        &[1 << 38],
        Region::new([0], [2]),
    );
    template.insert("huge", leaf);
    let e = reshard::blocking::load(template, &made.url).unwrap_err();
    assert!(e.to_string().contains("allow_repeated"), "{e}");
    let ran = run(&["digest", &made.url]);
    assert_eq!(ran.code, 2, "{}", ran.err);
    assert!(
        ran.out.contains("  w") && !ran.out.contains("huge"),
        "the others are digested: {}",
        ran.out
    );
    assert!(
        ran.err.contains("huge") && ran.err.contains("1099511627776 bytes"),
        "{}",
        ran.err
    );
    assert!(ran.err.contains("allow_repeated"), "{}", ran.err);

    for flags in [&[][..], &["--quick"]] {
        let (code, j) = made.verified(flags);
        assert_eq!(
            (code, &j["status"], &j["damage"]),
            (2, &json!("not read"), &json!([])),
            "{j}"
        );
        assert_eq!(
            (
                &j["not_read"][0]["key"],
                j["not_read"].as_array().unwrap().len()
            ),
            (&json!("huge"), 1)
        );
    }
    let ran = run(&["verify", &made.url]);
    assert!(
        ran.out.contains("not read  ") && ran.err.contains("--allow-repeated"),
        "{} {}",
        ran.out,
        ran.err
    );
    assert_eq!(made.verified(&["--allow-repeated"]).0, 0);

    for flags in [&[][..], &["--no-verify"]] {
        let ran = run(&[&["convert", &made.url, &made.beside("to")][..], flags].concat());
        assert!(
            ran.code == 2 && ran.err.contains("huge"),
            "{} {}",
            ran.code,
            ran.err
        );
        assert!(ran.err.contains("--allow-repeated"), "{}", ran.err);
    }
    assert_eq!(
        run(&["convert", &made.url, &made.beside("to"), "--key", "w"]).code,
        0
    );
    assert!(
        run(&["inspect", &made.url])
            .ok()
            .contains("not read: huge: ")
    );

    let checkpoint = reshard::blocking::Checkpoint::open(&made.url).unwrap();
    let e = checkpoint.state().unwrap_err();
    assert_eq!(e.kind(), reshard::ErrorKind::Limit, "{e}");
    let mut template = reshard::StateDict::new();
    template.insert(
        "t",
        ShardedTensor::template("huge", reshard::DType::Float32, &[1 << 38]),
    );
    let e = reshard::blocking::load(template, &made.url).unwrap_err();
    assert!(
        e.kind() == reshard::ErrorKind::Limit && e.to_string().contains("allow_repeated"),
        "{e}"
    );
}

/// Such a tensor is not loaded, but it is stored in few bytes, and a check reads them.
#[test]
fn damage_is_found_in_a_tensor_that_is_too_much_to_load() {
    let elements = [b'e', b'l', b'e', b'm'];
    let mut bytes = archive(&pickle(view(&[1 << 38], &[0], 1)), &elements, false);
    let at = bytes.windows(4).position(|part| part == elements).unwrap();
    bytes[at] ^= 1;
    let made = made(&[Item::tensor("huge", &[1 << 38], bytes)]);
    let (code, j) = made.verified(&[]);
    assert_eq!((code, &j["status"]), (1, &json!("damaged")), "{j}");
    assert_eq!(j["damage"][0]["key"], "huge", "{j}");
}

#[test]
fn repeated_elements_are_read_up_to_a_gigabyte_in_all() {
    let few = made(&[repeated("a", 1 << 20), repeated("b", 1 << 20)]);
    assert_eq!(few.verified(&[]).0, 0);
    let text = run(&["digest", &few.url]).ok();
    assert_eq!(text.lines().count(), 2);

    let many: Vec<Item> = (0..5)
        .map(|i| repeated(&format!("t{i}"), 1 << 26))
        .collect();
    let many = made(&many);
    assert_eq!(
        run(&["digest", &many.url]).code,
        2,
        "five tensors of 256 MiB each, of 20 bytes"
    );
    let (code, j) = many.verified(&[]);
    assert_eq!((code, j["not_read"].as_array().unwrap().len()), (2, 5));

    // The option does read them.
    let options = reshard::OpenOptions::new()
        .limits(reshard::ReadLimits::default().with_allow_repeated(true));
    let checkpoint = reshard::blocking::Checkpoint::open_with(options, &many.url).unwrap();
    let rows = checkpoint
        .tensor("t3")
        .unwrap()
        .read(Region::rows(5..8))
        .unwrap();
    assert_eq!(rows.to_vec::<f32>().unwrap(), [0.0; 3]);
}

#[test]
fn an_object_whose_tensors_share_memory_is_shown_and_carried_over_and_not_decoded() {
    let tensor = view(&[1 << 28], &[0], 1);
    let list = [&b"]("[..], &tensor, b"q\x01h\x01h\x01h\x01e"].concat();
    let made = made(&[Item::object("o", archive(&pickle(list), &[0; 4], false))]);
    let (code, j) = made.verified(&[]);
    assert_eq!((code, &j["status"]), (2, &json!("not read")), "{j}");
    let checkpoint = reshard::blocking::Checkpoint::open(&made.url).unwrap();
    let e = checkpoint.object("o").unwrap_err();
    assert!(
        e.kind() == reshard::ErrorKind::Limit && e.to_string().contains("allow_repeated"),
        "{e}"
    );
    assert_eq!(made.verified(&["--allow-repeated"]).0, 0);
    assert_eq!(
        run(&["convert", &made.url, &made.beside("to"), "--no-verify"]).code,
        0
    );
}

#[test]
fn a_compressed_tensor_unpacks_to_what_its_shape_says_and_to_no_more() {
    let zeros = vec![0; 64 << 20];
    let bomb = archive(&pickle(view(&[1], &[1], 1 << 24)), &zeros, true);
    let small = archive(&pickle(view(&[1], &[1], 1)), &[0; 4], false);
    let items = [
        sound("packed", 5_000_000, true),
        sound("w", 4, false),
        Item::tensor("deflated", &[1], bomb),
        Item::tensor("zstd", &[1], zstd(&small, 65_536)).transformed("stream.zstd/1"),
    ];
    let made = made(&items);
    let (code, j) = made.verified(&[]);
    assert_eq!(
        (code, &j["status"], &j["damage"]),
        (2, &json!("not understood"), &json!([])),
        "{j}"
    );
    let keys: Vec<&str> = j["not_understood"]
        .as_array()
        .unwrap()
        .iter()
        .map(|d| d["key"].as_str().unwrap())
        .collect();
    assert_eq!(keys, ["deflated", "zstd"]);
    let ran = run(&["digest", &made.url, "--json"]);
    let j: Json = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(
        (ran.code, j["errors"].as_object().unwrap().len()),
        (2, 2),
        "{j}"
    );

    // In blocks, in whatever order, and whole.
    let checkpoint = reshard::blocking::Checkpoint::open(&made.url).unwrap();
    let packed = checkpoint.tensor("packed").unwrap();
    for rows in [
        0..3,
        4_000_000..4_000_002,
        1_000_000..1_000_003,
        0..5_000_000,
    ] {
        let got = packed
            .read(Region::rows(rows.clone()))
            .unwrap()
            .to_vec::<f32>()
            .unwrap();
        assert!(got.into_iter().eq(rows.map(|i| i as f32)));
    }
    let to = made.beside("to");
    run(&[
        "convert",
        &made.url,
        &to,
        "--ranks",
        "3",
        "--key",
        "packed",
        "--no-verify",
    ])
    .unverified();
    let digest = |url: &str| run(&["digest", url, "--key", "packed"]).ok();
    assert_eq!(digest(&made.url), digest(&to));
}

#[test]
fn a_deflated_chunk_whose_columns_lie_one_after_the_other_is_unpacked_twice_at_most() {
    let (rows, columns) = (1_000u64, 500);
    let floats: Vec<u8> = (0..rows * columns)
        .flat_map(|i| (i as f32).to_le_bytes())
        .collect();
    let described = pickle(view(&[rows, columns], &[1, rows], rows * columns));
    let made = made(&[Item::tensor(
        "w",
        &[rows, columns],
        archive(&described, &floats, true),
    )]);
    let checkpoint = reshard::blocking::Checkpoint::open(&made.url).unwrap();
    let tensor = checkpoint.tensor("w").unwrap();
    let read = |from: u64| {
        let got = tensor
            .read(Region::rows(from..from + 10))
            .unwrap()
            .to_vec::<f32>()
            .unwrap();
        let want =
            (from..from + 10).flat_map(|row| (0..columns).map(move |c| (c * rows + row) as f32));
        assert!(got.into_iter().eq(want), "{from}");
    };
    read(0);
    read(10);
    // What is in memory by now needs no packed byte.
    let file = std::path::Path::new(&made.url).join("__0_0.distcp");
    let mut bytes = std::fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle - 50_000..middle + 50_000].fill(0);
    std::fs::write(&file, bytes).unwrap();
    read(20);
    read(990);
}

/// Bytes that no compression makes shorter.
fn noise(n: usize) -> Vec<u8> {
    let mut x = 1u32;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        x as u8
    };
    (0..n).map(|_| next()).collect()
}

#[test]
fn whatever_a_chunk_is_read_through_it_unpacks_to_what_its_shape_says() {
    // More than its four bytes and what a description may take; as long as it is stored, it is read in pieces, or as a whole,
    // and behind a stream as a whole.
    let bomb = |storage: &[u8]| {
        archive(
            &pickle(view(&[1], &[1], storage.len() as u64 / 4)),
            storage,
            true,
        )
    };
    let (long, short) = (bomb(&noise(5 << 20)), bomb(&vec![0; 5 << 20]));
    assert!(long.len() > 4 << 20 && short.len() < 1 << 20);
    let made = made(&[
        Item::tensor("long", &[1], long),
        Item::tensor("short", &[1], short.clone()),
        Item::tensor("streamed", &[1], zstd(&short, 0)).transformed("stream.zstd/1"),
    ]);
    let why = "unpacks to far more than the 4 bytes of its elements";
    let (code, j) = made.verified(&[]);
    let told: Vec<_> = j["not_understood"]
        .as_array()
        .unwrap()
        .iter()
        .map(|d| d["what"].to_string())
        .collect();
    assert!(
        (code, told.len()) == (2, 3) && told.iter().all(|what| what.contains(why)),
        "{j}"
    );
    let j: Json = serde_json::from_str(&run(&["digest", &made.url, "--json"]).out).unwrap();
    for key in ["long", "short", "streamed"] {
        assert!(
            j["errors"][key].as_str().is_some_and(|e| e.contains(why)),
            "{j}"
        );
    }
}

#[test]
fn a_flipped_bit_in_a_packed_storage_is_damage() {
    let mut item = sound("packed", 100_000, true);
    let at = item.stored.len() / 2;
    item.stored[at] ^= 4;
    let made = made(&[item]);
    assert_eq!(made.verified(&[]).0, 1);
    assert_eq!(run(&["digest", &made.url]).code, 1);
}

#[test]
fn an_object_in_a_stream_unpacks_to_what_its_budget_allows() {
    let list = archive(&pickle(b"]".to_vec()), &[], false);
    let made = made(&[
        Item::object("sound", zstd(&list, 0)).transformed("stream.zstd/1"),
        Item::object("bomb", zstd(&list, 65_536)).transformed("stream.zstd/1"),
    ]);
    let (code, j) = made.verified(&[]);
    assert_eq!(
        (code, &j["not_read"][0]["key"], &j["damage"]),
        (2, &json!("bomb"), &json!([])),
        "{j}"
    );
    let ran = run(&["convert", &made.url, &made.beside("to"), "--no-verify"]);
    assert!(
        ran.code == 2 && ran.err.contains("--max-memory"),
        "{} {}",
        ran.code,
        ran.err
    );
    assert_eq!(
        run(&["convert", &made.url, &made.beside("to"), "--key", "sound"]).code,
        0
    );
}

#[test]
fn what_is_not_understood_has_its_own_word_and_exits_with_2_unless_something_is_damaged() {
    let quantized = [
        b"ctorch._utils\n_rebuild_qtensor\n".to_vec(),
        view(&[4], &[1], 4).split_off("ctorch._utils\n_rebuild_tensor_v2\n".len()),
    ];
    let mut items = vec![
        sound("w", 4, false),
        Item::tensor(
            "q",
            &[4],
            archive(&pickle(quantized.concat()), &[0; 16], false),
        ),
        sound("t", 4, false).transformed("stream.brotli/1"),
    ];
    let made = made(&items);
    let (code, j) = made.verified(&[]);
    assert_eq!(
        (code, &j["status"], &j["damage"]),
        (2, &json!("not understood"), &json!([])),
        "{j}"
    );
    let ran = run(&["verify", &made.url]);
    assert!(
        ran.out.contains("not understood  ") && ran.out.contains("stream.brotli/1"),
        "{}",
        ran.out
    );
    assert!(!ran.err.contains("restore"), "{}", ran.err);
    for command in [
        &["digest", &made.url][..],
        &["convert", &made.url, &made.beside("to")],
    ] {
        let ran = run(command);
        assert!(
            ran.code == 2 && !ran.err.contains("damaged"),
            "{command:?}: {} {}",
            ran.code,
            ran.err
        );
    }
    assert_eq!(run(&["digest", &made.url, "--key", "w"]).code, 0);
    assert_eq!(
        run(&["convert", &made.url, &made.beside("to"), "--key", "w"]).code,
        0
    );
    let checkpoint = reshard::blocking::Checkpoint::open(&made.url).unwrap();
    for key in ["q", "t"] {
        let e = checkpoint.tensor(key).unwrap().read(..).unwrap_err();
        assert_eq!(e.kind(), reshard::ErrorKind::Unsupported, "{key}: {e}");
    }

    let last = items.len() - 3;
    let at = items[last]
        .stored
        .windows(4)
        .position(|w| w == 1f32.to_le_bytes())
        .unwrap();
    items[last].stored[at] ^= 1;
    let both = self::made(&items);
    let (code, j) = both.verified(&[]);
    assert_eq!((code, &j["status"]), (1, &json!("damaged")), "{j}");
    let ran = run(&["verify", &both.url]);
    let words: Vec<_> = ran
        .out
        .lines()
        .map(|line| line.split_once("  ").unwrap().0)
        .collect();
    assert_eq!(
        words,
        ["damaged", "not understood", "not understood", "not covered"],
        "the worst comes first"
    );
    assert_eq!(run(&["digest", &both.url]).code, 1);
    assert_eq!(run(&["convert", &both.url, &both.beside("to")]).code, 1);
}

#[test]
fn what_is_read_whole_is_measured_before_it_is_read() {
    let large = 5 << 30;
    for file in [".metadata", "common.pt"] {
        let saved = crate::states::megatron();
        // A hole takes no room on the disk.
        std::fs::File::create(saved.path(file))
            .unwrap()
            .set_len(large)
            .unwrap();
        let ran = run(&["verify", &saved.url]);
        assert_eq!(ran.code, 2, "{} {}", ran.out, ran.err);
        let told = ran.out + &ran.err;
        assert!(
            told.contains(file) && told.contains("max_whole") && told.contains("--max-whole"),
            "{told}"
        );
    }
    let saved = crate::states::dcp();
    let ran = run(&["verify", &saved.url, "--max-whole", "100"]);
    assert!(
        ran.code == 2 && ran.err.contains("--max-whole"),
        "{}",
        ran.err
    );
    for command in ["inspect", "ls", "digest", "verify", "prune"] {
        let ran = run(&[
            command,
            &saved.url,
            "--max-whole",
            "1GiB",
            "--max-memory",
            "1GiB",
        ]);
        assert_eq!(ran.code, 0, "{command}: {}", ran.err);
    }
}

#[test]
fn the_cap_of_what_is_read_whole_is_that_of_each_thing_that_is() {
    // Each is longer than `.metadata`, which is read first.
    let text = "x".repeat(20_000);
    let list = archive(
        &pickle([&b"X\x20\x4e\0\0"[..], text.as_bytes()].concat()),
        &[],
        false,
    );
    let floats =
        |n: u64, packed| archive(&pickle(view(&[n], &[1], n)), &noise(4 * n as usize), packed);
    // Its elements have to be changed, so they are in memory together.
    let mut negated = view(&[50_000], &[0], 1);
    negated.truncate(negated.len() - b"tR".len());
    negated.extend(b"}X\x03\0\0\0neg\x88stR");
    let made = made(&[
        Item::object("object", list),
        Item::tensor("deflated", &[50_000], floats(50_000, true)),
        Item::tensor("long", &[1_250_000], floats(1_250_000, true)),
        Item::tensor(
            "negated",
            &[50_000],
            archive(&pickle(negated), &[0; 4], false),
        ),
        Item::tensor("streamed", &[50_000], zstd(&floats(50_000, false), 0))
            .transformed("stream.zstd/1"),
    ]);
    let max = "10000";
    let (code, j) = made.verified(&["--max-whole", max]);
    let told: Vec<_> = j["not_read"]
        .as_array()
        .unwrap()
        .iter()
        .map(|d| d.to_string())
        .collect();
    assert!(
        (code, told.len()) == (2, 4)
            && told
                .iter()
                .all(|d| d.contains("too much to read as a whole")),
        "{j}"
    );
    let ran = run(&["digest", &made.url, "--json", "--max-whole", max]);
    let j: Json = serde_json::from_str(&ran.out).unwrap();
    for key in ["deflated", "long", "negated", "streamed"] {
        let e = j["errors"][key].as_str().unwrap_or_default();
        assert!(
            e.contains(key) && e.contains("too much to read as a whole"),
            "{j}"
        );
    }
    assert_eq!(ran.code, 2);
    assert_eq!(made.verified(&[]).0, 0);
}

#[test]
fn the_cap_of_what_is_read_whole_is_that_of_common_state_and_of_the_metadata_of_all_ranks() {
    let saved = crate::states::megatron();
    let metadata = std::fs::metadata(saved.path(".metadata")).unwrap().len();
    let text = "x".repeat(2 * metadata as usize);
    let common = pickle(
        [
            &b"}X\x01\0\0\0aX"[..],
            &(text.len() as u32).to_le_bytes(),
            text.as_bytes(),
            b"s",
        ]
        .concat(),
    );
    std::fs::write(saved.path("common.pt"), archive(&common, &[], false)).unwrap();
    assert_eq!(run(&["verify", &saved.url]).code, 0);
    let ran = run(&["verify", &saved.url, "--max-whole", &metadata.to_string()]);
    assert!(
        ran.code == 2 && ran.out.contains("common.pt has "),
        "{} {}",
        ran.out,
        ran.err
    );

    let fixture = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/fixtures/dcp/rank_local_w2/ckpt"
    );
    let each = [0, 1].map(|r| {
        std::fs::metadata(format!("{fixture}/__{r}.metadata"))
            .unwrap()
            .len()
    });
    let max = |bytes: u64| run(&["verify", fixture, "--max-whole", &bytes.to_string()]);
    let all = each.iter().sum();
    assert_eq!(max(all).code, 0);
    let ran = max(all - 1);
    assert!(
        ran.code == 2 && ran.err.contains("metadata of ranks 0 to 1, together, has "),
        "{} {}",
        ran.out,
        ran.err
    );
}

#[test]
fn an_object_that_is_no_pickle_is_damage_though_its_checksum_is_right() {
    let o = |pickle: &[u8]| {
        Item::object(
            "o",
            zip(&[("data.pkl", pickle, false), ("version", b"3\n", false)]),
        )
    };
    for (pickle, code) in [
        (&b"\x80\x02K\x07."[..], 0),
        (b"\x80\x02K", 1),
        (b"\x80\x02no pickle.", 1),
    ] {
        let made = made(&[o(pickle)]);
        let (found, said) = made.verified(&[]);
        assert_eq!(found, code, "{said}");
    }
}

#[test]
fn an_item_whose_place_lacks_something_is_damage_of_the_metadata() {
    let made = made(&[sound("w", 10, false)]);
    let file = std::path::Path::new(&made.url).join(".metadata");
    let whole = std::fs::read(&file).unwrap();
    for field in ["relative_path", "offset", "length"] {
        let mut bytes = whole.clone();
        let at = bytes
            .windows(field.len() + 4)
            .rposition(|w| w[4..] == *field.as_bytes())
            .unwrap();
        bytes[at + 4] = b'x';
        std::fs::write(&file, &bytes).unwrap();
        let ran = run(&["ls", &made.url]);
        assert_eq!(ran.code, 1, "{field}: {}", ran.err);
        assert!(
            ran.err.contains("lacks its file, offset or length"),
            "{field}: {}",
            ran.err
        );
    }
}

#[test]
fn an_item_whose_place_is_named_in_another_form_is_not_understood() {
    let o = Item::object(
        "o",
        zip(&[
            ("data.pkl", b"\x80\x02K\x07.", false),
            ("version", b"3\n", false),
        ]),
    );
    for item in [o, sound("w", 10, false)] {
        let made = made(&[item]);
        let file = std::path::Path::new(&made.url).join(".metadata");
        let mut bytes = std::fs::read(&file).unwrap();
        let at = bytes
            .windows(13)
            .position(|w| w == b"MetadataIndex")
            .unwrap();
        bytes[at + 12] = b'X';
        std::fs::write(&file, &bytes).unwrap();
        let (code, said) = made.verified(&[]);
        assert_eq!((code, &said["damage"]), (2, &json!([])), "{said}");
    }
}

#[test]
fn a_large_tensor_may_have_a_packed_description() {
    let n = 3 << 19;
    let storage: Vec<u8> = (0..n).flat_map(|i| (i as f32).to_le_bytes()).collect();
    let pickle = pickle(view(&[n], &[1], n));
    let archive = zip(&[
        ("data.pkl", &pickle[..], true),
        ("version", b"3\n", false),
        ("data/0", &storage, false),
    ]);
    let (code, said) = made(&[Item::tensor("w", &[n], archive)]).verified(&[]);
    assert_eq!(code, 0, "{said}");
}
