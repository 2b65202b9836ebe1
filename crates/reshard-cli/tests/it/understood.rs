//! What is only not understood exits with 2 in every command, and damage with 1.

use crate::{
    handmade::{Item, archive, pickle, view},
    limits::{Made, made, sound},
    run, states,
};
use std::{fs, os::unix::fs::symlink, path::Path};

/// An archive whose record of this name says in its headers that it is packed by `method`, encrypted or not.
fn packed(
    mut archive: Vec<u8>,
    record: &str,
    method: u8,
    encrypted: bool,
    headers: &[&[u8]],
) -> Vec<u8> {
    let mut found = 0;
    // Signature, where its flags are, its method, its name.
    for (signature, flags, at, name) in [(b"PK\x03\x04", 6, 8, 30), (b"PK\x01\x02", 8, 10, 46)] {
        for i in 0..archive.len() - name {
            let here = archive[i..].starts_with(signature)
                && archive[i + name..].starts_with(record.as_bytes());
            if here && headers.contains(&&signature[..]) {
                (archive[i + flags], archive[i + at]) =
                    (archive[i + flags] | u8::from(encrypted), method);
                found += 1;
            }
        }
    }
    assert_eq!(found, headers.len());
    archive
}

const BOTH: &[&[u8]] = &[b"PK\x03\x04", b"PK\x01\x02"];

/// Every command says so: what is named is not understood, and nothing is damaged.
fn is_not_understood(made: &Made, key: &str) {
    let (code, j) = made.verified(&[]);
    assert_eq!(
        (code, j["damage"].to_string()),
        (2, "[]".into()),
        "{key}: {j}"
    );
    let found = j["not_understood"].as_array().unwrap();
    assert!(found.len() == 1 && found[0]["key"] == key, "{key}: {j}");
    for (command, to) in [("digest", false), ("convert", true)] {
        let to = if to {
            vec![made.beside("to")]
        } else {
            Vec::new()
        };
        for flags in [&[][..], &["--no-verify"]] {
            let mut args = vec![command, &made.url];
            args.extend(to.iter().map(String::as_str).chain(flags.iter().copied()));
            let ran = run(&args);
            // Objects have no digest.
            let code = if command == "digest" && key == "object" {
                0
            } else {
                2
            };
            assert!(
                ran.code == code && !ran.err.contains("damage"),
                "{args:?}: {} {}",
                ran.code,
                ran.err
            );
        }
    }
    assert_eq!(run(&["digest", &made.url, "--key", "ok"]).code, 0, "{key}");
    assert_eq!(
        run(&["convert", &made.url, &made.beside("ok"), "--key", "ok"]).code,
        0,
        "{key}"
    );
}

fn tensor(n: u64) -> Vec<u8> {
    archive(
        &pickle(view(&[n], &[1], n)),
        &vec![7; 4 * n as usize],
        false,
    )
}

#[test]
fn a_record_packed_in_an_unknown_way_is_not_understood_wherever_it_lies() {
    for (method, encrypted) in [
        (12, false),
        (14, false),
        (93, false),
        (95, false),
        (99, true),
        (0, true),
        (8, true),
    ] {
        for record in ["archive/data/0", "archive/data.pkl", "archive/version"] {
            // Read whole, read in pieces, and checked in pieces.
            for n in [4, 5000, 2 << 20] {
                // The version of a large archive is looked at by `verify` alone.
                if n > 5000 && method != 12 || n > 4 && record == "archive/version" {
                    continue;
                }
                let item = packed(tensor(n), record, method, encrypted, BOTH);
                is_not_understood(
                    &made(&[sound("ok", 4, false), Item::tensor("w", &[n], item)]),
                    "w",
                );
            }
        }
    }
    let list = archive(&pickle(b"]".to_vec()), b"", false);
    let object = packed(list.clone(), "archive/data.pkl", 12, false, BOTH);
    let made = made(&[sound("ok", 4, false), Item::object("object", object)]);
    let (code, j) = made.verified(&[]);
    assert!(
        code == 2 && j["not_understood"][0]["key"] == "object" && j["damage"][0].is_null(),
        "{j}"
    );

    let saved = states::megatron();
    let common = packed(
        archive(&pickle(b"}".to_vec()), b"", false),
        "archive/data.pkl",
        12,
        false,
        BOTH,
    );
    fs::write(saved.path("common.pt"), common).unwrap();
    let ran = run(&["verify", &saved.url]);
    assert!(
        ran.code == 2 && ran.out.starts_with("not understood"),
        "{} {}",
        ran.out,
        ran.err
    );
    assert_eq!(run(&["convert", &saved.url, &saved.beside("to")]).code, 2);
}

#[test]
fn an_unknown_method_in_one_of_two_headers_is_damage_and_so_is_what_lies_beside_one() {
    let mut items = Vec::new();
    // Read whole, and checked in pieces: after what is not understood, and before it.
    for (n, record) in [
        (5000, "archive/data.pkl"),
        (2 << 20, "archive/data.pkl"),
        (2 << 20, "archive/version"),
    ] {
        let mut flipped = packed(tensor(n), record, 12, false, BOTH);
        let at = flipped.windows(4).position(|w| w == [7; 4]).unwrap();
        flipped[at] ^= 1;
        items.push((n, flipped));
    }
    for n in [4, 5000] {
        for header in [&b"PK\x03\x04"[..], b"PK\x01\x02"] {
            items.push((n, packed(tensor(n), "archive/data/0", 12, false, &[header])));
        }
    }
    let list = archive(&pickle(b"]".to_vec()), b"more", false);
    let mut list = packed(list, "archive/data.pkl", 12, false, BOTH);
    let at = list.windows(4).position(|w| w == b"more").unwrap();
    list[at] ^= 1;
    let mut all: Vec<Item> = items
        .into_iter()
        .map(|(n, bytes)| Item::tensor("w", &[n], bytes))
        .collect();
    all.push(Item::object("o", list));
    for item in all {
        let made = made(&[item]);
        let (code, j) = made.verified(&[]);
        assert_eq!((code, j["damage"].as_array().unwrap().len()), (1, 1), "{j}");
    }
}

/// A checkpoint of two tensors whose `.metadata` was changed.
fn changed(transform: Option<&'static str>, change: impl FnOnce(&mut Vec<u8>)) -> Made {
    let w = sound("w", 4, false);
    let made = made(&[sound("ok", 4, false), Item { transform, ..w }]);
    let file = Path::new(&made.url).join(".metadata");
    let mut bytes = fs::read(&file).unwrap();
    change(&mut bytes);
    fs::write(file, bytes).unwrap();
    made
}

/// Replaces the last one.
fn replace(bytes: &mut Vec<u8>, old: &[u8], new: &[u8]) {
    let at = bytes.windows(old.len()).rposition(|w| w == old).unwrap();
    bytes.splice(at..at + old.len(), new.iter().copied());
}

#[test]
fn metadata_of_a_later_pickle_are_not_understood() {
    let made = changed(None, |bytes| bytes[1] = 6);
    for args in [
        &["verify", &made.url][..],
        &["inspect", &made.url],
        &["digest", &made.url],
        &["convert", &made.url, &made.beside("to")],
    ] {
        let ran = run(args);
        let said = ran.out + &ran.err;
        assert!(
            ran.code == 2 && said.contains("not supported") && !said.contains("damage"),
            "{args:?}: {said}"
        );
    }
    let (code, j) = made.verified(&[]);
    assert!(code == 2 && j["status"] == "not understood", "{j}");
    // What holds something else than metadata may have been written to be run.
    for class in [&b"\nMetadata2\n"[..], b"\nMeta\x01ata\n"] {
        let made = changed(None, |bytes| replace(bytes, b"\nMetadata\n", class));
        assert_eq!(run(&["verify", &made.url]).code, 1);
    }
}

#[test]
fn transforms_and_places_in_unknown_forms_are_not_understood_key_by_key() {
    let text = b"X\x03\0\0\0odd";
    for other in [
        &text[..],
        b"}",
        b"(X\x03\0\0\0oddt",
        b")",
        b"K\x07",
        b"cmy\nTransforms\n)\x81",
    ] {
        let made = changed(Some("odd"), |bytes| {
            replace(bytes, &[b"](", &text[..], b"e"].concat(), other)
        });
        is_not_understood(&made, "w");
    }
    let none = changed(Some("odd"), |bytes| {
        replace(bytes, &[b"](", &text[..], b"e"].concat(), b"N")
    });
    assert_eq!(none.verified(&[]).0, 0);
    for class in ["_StorageInfo", "MetadataIndex", "ChunkStorageMetadata"] {
        let made = changed(None, |bytes| replace(bytes, class.as_bytes(), b"Later"));
        is_not_understood(&made, "w");
        let made = changed(None, |bytes| replace(bytes, class.as_bytes(), b"Lat\x01r"));
        assert_eq!(made.verified(&[]).0, 1, "{class}");
    }
}

#[test]
fn a_tensor_of_more_axes_than_are_known_fails_only_itself() {
    let axes = [1; 65];
    let many = archive(&pickle(view(&axes, &axes, 1)), &[0; 4], false);
    let one = archive(&pickle(view(&axes[..64], &axes[..64], 1)), &[0; 4], false);
    let items = [
        sound("ok", 4, false),
        Item::tensor("most", &axes[..64], one),
        Item::tensor("w", &axes, many),
    ];
    is_not_understood(&made(&items), "w");
}

#[test]
fn a_wrong_checksum_that_a_conversion_meets_is_damage() {
    let mut item = sound("w", 4, false);
    let at = item
        .stored
        .windows(4)
        .position(|w| w == 1f32.to_le_bytes())
        .unwrap();
    item.stored[at] ^= 1;
    let made = made(&[item, sound("ok", 4, false)]);
    for ranks in ["1", "3"] {
        let ran = run(&[
            "convert",
            &made.url,
            &made.beside("to"),
            "--no-verify",
            "--ranks",
            ranks,
            "--json",
        ]);
        let j: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
        assert_eq!(
            (ran.code, &j["error"]["kind"]),
            (1, &"corrupt".into()),
            "{j}"
        );
        assert!(
            j["error"]["hint"].to_string().contains("reshard verify"),
            "{j}"
        );
    }
}

#[test]
fn what_lies_where_a_data_file_should_be_is_told_by_all_commands_as_damage() {
    type Put = fn(&Path);
    let cases: [(Put, &str); 4] = [
        (|at| fs::create_dir(at).unwrap(), "a directory"),
        (
            |at| drop(std::os::unix::net::UnixListener::bind(at).unwrap()),
            "a socket",
        ),
        (
            |at| symlink(at.file_name().unwrap(), at).unwrap(),
            "a link that leads to itself",
        ),
        (|at| symlink("/dev/null", at).unwrap(), "a device"),
    ];
    for (put, what) in cases {
        let made = made(&[sound("w", 4, false)]);
        let file = Path::new(&made.url).join("__0_0.distcp");
        fs::remove_file(&file).unwrap();
        put(&file);
        for args in [
            &["verify", &made.url][..],
            &["verify", "--quick", &made.url],
            &["digest", &made.url],
            &["convert", &made.url, &made.beside("to")],
            &["convert", "--no-verify", &made.url, &made.beside("to")],
        ] {
            let ran = run(args);
            let said = ran.out + &ran.err;
            assert!(
                ran.code == 1 && said.contains(what),
                "{args:?}: {} {said}",
                ran.code
            );
        }
    }
}

#[test]
fn inspect_escapes_the_name_of_the_directory() {
    let made = made(&[sound("w", 4, false)]);
    let odd = made.beside("a\u{202e}b\u{1b}[31m");
    fs::rename(&made.url, &odd).unwrap();
    let ran = run(&["inspect", &odd]);
    assert!(
        ran.code == 0 && !ran.out.contains(['\u{202e}', '\u{1b}']),
        "{:?}",
        ran.out
    );
    assert!(ran.out.contains("a\\u{202e}b"), "{:?}", ran.out);
}
