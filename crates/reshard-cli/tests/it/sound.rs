//! Sound files that look damaged.

use crate::{
    handmade::zip,
    hub::{INDEX, Model, every_command_says, keys, shard, tensors},
    run, states,
};
use reshard::{ErrorKind, blocking::Checkpoint, storage::Progress};
use std::{
    fs,
    path::{Path, PathBuf},
};

#[test]
fn a_file_of_several_is_read_by_its_own_name_and_an_index_stands_for_its_folder() {
    let model = Model::new();
    let one = model.file(&shard(1));
    let listed = run(&["ls", &one]);
    assert_eq!((listed.code, &*listed.out), (0, "a\nb\n"));
    assert!(listed.err.contains("file 1 of 2"), "{}", listed.err);
    assert_eq!(run(&["verify", &one]).code, 0);
    fs::remove_file(model.file(&shard(2))).unwrap();
    assert_eq!(run(&["verify", &one]).code, 0);
    assert_eq!(
        run(&["verify", &model.url()]).code,
        1,
        "the other file is missing"
    );

    let model = Model::new();
    assert_eq!(keys(&model.file(INDEX)), ["a", "b", "c"]);
    run(&["verify", &model.file(INDEX)]).ok();
    let elsewhere = tempfile::tempdir().unwrap();
    let copy = elsewhere.path().join("copy").display().to_string();
    run(&["convert", &model.file(INDEX), &copy, "--to", "torch_dist"]).ok();
    assert_eq!(keys(&copy), ["a", "b", "c"]);
    // An index by which the folder is not opened stands for nothing.
    model.put("other.safetensors.index.json", br#"{"weight_map":{}}"#);
    let ran = run(&["ls", &model.file("other.safetensors.index.json")]);
    assert_eq!(ran.code, 2, "{}", ran.err);
    assert!(ran.err.contains("is not the file by which"), "{}", ran.err);
    let gone = Model::new().file(INDEX);
    assert_ne!(run(&["ls", &gone]).code, 0, "its folder is gone");
}

#[test]
fn dots_in_an_index_and_entries_of_nothing_are_no_damage() {
    let model = Model::new();
    let (first, second) = (format!("./{}", shard(1)), format!("././{}", shard(2)));
    model.index(&[("a", &first), ("b", &shard(1)), ("c", &second)]);
    assert_eq!(keys(&model.url()), ["a", "b", "c"]);
    run(&["verify", &model.url()]).ok();

    // As PyTorch's Hugging Face writer leaves a key of its mapping that the state dict lacks.
    model.put(&shard(2), &tensors(&[("c", 3.)], &["lm_head"]));
    let all = [
        ("a", &*shard(1)),
        ("b", &shard(1)),
        ("c", &shard(2)),
        ("lm_head", &shard(2)),
    ];
    model.index(&all);
    let ran = run(&["verify", &model.url()]);
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    let said = "lm_head has neither an element type nor bytes";
    assert!(
        ran.err.contains(said) && !ran.err.contains("later version"),
        "{}",
        ran.err
    );
    every_command_says(&model.url(), &[said]);
}

fn in_torch_save(name: &str) -> PathBuf {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../reshard-torch-save/tests/data");
    data.join(name)
}

#[test]
fn torchscript_is_named_and_not_called_damaged() {
    for name in ["jit1.pt", "trace1.pt"] {
        let url = in_torch_save(name).display().to_string();
        for command in ["verify", "inspect", "ls", "digest"] {
            let ran = run(&[command, &url]);
            assert_eq!(ran.code, 2, "{command} {name}: {}{}", ran.out, ran.err);
            assert!(ran.err.contains("TorchScript"), "{}", ran.err);
        }
    }
}

#[test]
fn zips_of_other_programs_are_no_checkpoints() {
    let dir = tempfile::tempdir().unwrap();
    let others: [&[(&str, &[u8], bool)]; 4] = [
        &[
            ("word/document.xml", b"<x/>", true),
            ("[Content_Types].xml", b"<x/>", true),
        ],
        &[("a.txt", b"text", false)],
        &[("d/", b"", false), ("d/x", b"1", false)],
        &[("d/version", b"3\n", false), ("x/y", b"1", false)],
    ];
    for (n, records) in others.into_iter().enumerate() {
        let file = dir.path().join(format!("{n}.pt"));
        fs::write(&file, zip(records)).unwrap();
        for command in ["verify", "inspect"] {
            let ran = run(&[command, &file.display().to_string()]);
            assert_eq!(ran.code, 3, "{n}: {}{}", ran.out, ran.err);
            let said = "is a zip archive that torch.save has not written";
            assert!(
                ran.err.contains(said) && ran.err.contains(records[0].0),
                "{}",
                ran.err
            );
        }
    }
    // What has something of torch's is an archive of torch that lacks the rest.
    let file = dir.path().join("cut.pt");
    fs::write(
        &file,
        zip(&[("x/data/0", b"1234", false), ("x/version", b"3\n", false)]),
    )
    .unwrap();
    assert_eq!(run(&["verify", &file.display().to_string()]).code, 1);
}

/// An archive whose checksums are all 0, as torch writes it after `set_crc32_options(False)`.
fn without_checksums(file: &Path) -> Vec<u8> {
    let mut bytes = fs::read(file).unwrap();
    let found = |sign: &[u8; 4], bytes: &[u8]| -> Vec<usize> {
        let all = bytes.windows(4).enumerate();
        all.filter(|(_, part)| part == sign)
            .map(|(at, _)| at)
            .collect()
    };
    // Behind the data of a record, and in its entry of the directory.
    for at in found(b"PK\x07\x08", &bytes) {
        bytes[at + 4..at + 8].fill(0);
    }
    for at in found(b"PK\x01\x02", &bytes) {
        bytes[at + 16..at + 20].fill(0);
    }
    bytes
}

#[test]
fn an_archive_without_checksums_is_read_and_not_said_to_be_checked() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../reshard-torch-format/tests/data");
    let dir = tempfile::tempdir().unwrap();
    for name in ["tied.pt", "float32.pt"] {
        let stored = data.join("torch-2.15.0").join(name);
        let file = dir.path().join(name).display().to_string();
        let mut bytes = without_checksums(&stored);
        fs::write(&file, &bytes).unwrap();
        let digest = |url: &str| run(&["digest", url]).ok();
        assert_eq!(digest(&file), digest(&stored.display().to_string()));
        let verified = run(&["verify", &file]).ok();
        assert!(verified.contains("no item has a checksum"), "{verified}");
        assert!(verified.contains("without a checksum"), "{verified}");
        let json = run(&["verify", &file, "--json"]).json();
        assert_eq!(json["without_checksum"], json["items"]);
        // One checksum that is not 0 shows that there are checksums: the others are wrong then.
        let at = bytes
            .windows(4)
            .rposition(|part| part == b"PK\x01\x02")
            .unwrap();
        bytes[at + 16] ^= 1;
        fs::write(&file, &bytes).unwrap();
        assert_eq!(run(&["verify", &file]).code, 1);
    }
}

#[test]
fn a_checkpoint_that_is_replaced_or_removed_while_it_is_read_is_not_called_damaged() {
    let model = Model::new();
    let home = tempfile::tempdir().unwrap();
    let place = home.path().join("model");
    let url = place.display().to_string();
    let acts: [(&str, &dyn Fn()); 3] = [
        ("replaced", &|| {
            run(&[
                "convert",
                &model.url(),
                &url,
                "--overwrite",
                "--to",
                "torch_dist",
            ])
            .ok();
        }),
        ("removed", &|| fs::remove_dir_all(&place).unwrap()),
        ("moved", &|| {
            let to = home.path().join("moved");
            fs::rename(&place, &to).unwrap();
            fs::remove_dir_all(to).unwrap();
        }),
    ];
    for format in ["torch_dist", "torch_save", "safetensors", "zarr3"] {
        for (act, change) in &acts {
            fs::remove_dir_all(&place).unwrap_or(());
            let to = ["convert", &model.url(), &url, "--to", format];
            assert_eq!(run(&to).code, 0, "{format}");
            let checkpoint = Checkpoint::open(&url).unwrap();
            change();
            for t in checkpoint.tensors() {
                for region in t.blocks(1 << 20) {
                    let e = t.read(region).unwrap_err();
                    assert_eq!(e.kind(), ErrorKind::Unavailable, "{format} {act}: {e:?}");
                    assert!(
                        format!("{e:?}").contains("was replaced, moved or removed"),
                        "{e:?}"
                    );
                }
            }
            match checkpoint.verify(true, Progress::none()) {
                Ok(report) => assert!(report.damage.is_empty(), "{format} {act}: {report}"),
                Err(e) => assert_eq!(e.kind(), ErrorKind::Unavailable, "{format} {act}: {e:?}"),
            }
        }
    }
}

/// Its tensor has the four arguments of torch before 0.4.
#[test]
fn an_old_tensor_in_place_of_the_common_state_is_shown() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../reshard-torch-format/tests/data/old");
    for name in ["v1_dict_zip.pt", "v1_dict_legacy.pt"] {
        let old = data.join(name).display().to_string();
        assert!(run(&["show", &old, "w"]).ok().contains("[2, 2]"), "{name}");
        let saved = states::megatron();
        fs::copy(&old, Path::new(&saved.url).join("common.pt")).unwrap();
        let ran = run(&["inspect", &saved.url]);
        assert!(ran.out.contains("torch_dist"), "{name}: {}", ran.err);
        let shown = run(&["show", &saved.url, "w"]);
        assert!(
            shown.out.contains("$tensor"),
            "{name}: {}{}",
            shown.out,
            shown.err
        );
    }
}

#[test]
fn files_of_safetensors_in_a_folder_of_torch_dist_are_named_and_not_damaged() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/distcp_safetensors");
    let url = folder.display().to_string();
    for command in ["inspect", "ls", "digest", "stats", "verify"] {
        let ran = run(&[command, &url]);
        assert_eq!(ran.code, 2, "{command}: {}", ran.err);
        let named = ran.err.contains("SerializationFormat.SAFETENSORS");
        assert!(named, "{command}: {}", ran.err);
    }
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("copy.safetensors");
    fs::copy(folder.join("__0_0.distcp"), &copy).unwrap();
    assert_eq!(keys(&copy.display().to_string()), ["i", "w"]);
}
