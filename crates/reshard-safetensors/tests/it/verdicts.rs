//! A table of damaged checkpoints. Each has a verdict that names the tensor, the file and, if it is known, the byte.

use super::{
    Files,
    damaged::{FIRST, SECOND, edit, replace, saved, shard, sharded, v, w},
    files, load, place, save, store, try_load, try_open, whole,
};
use futures::executor::block_on;
use reshard_model::ErrorKind;
use reshard_safetensors::{INDEX, RECORD, SafetensorsConfig};
use reshard_storage::Progress;

/// What is damaged, the files, and what is said of them.
type Case = (&'static str, Files, &'static str);

fn with(mut files: Files, change: impl FnOnce(&mut Files)) -> Files {
    change(&mut files);
    files
}

/// As another program leaves them.
fn plain(change: impl FnOnce(&mut Files)) -> Files {
    with(saved(false), change)
}

/// As reshard leaves them, with its record.
fn recorded(change: impl FnOnce(&mut Files)) -> Files {
    with(saved(true), change)
}

fn bytes<'f>(files: &'f mut Files, name: &str) -> &'f mut Vec<u8> {
    files.get_mut(name).unwrap()
}

fn cut(files: &mut Files, name: &str, n: usize) {
    let file = bytes(files, name);
    file.truncate(file.len() - n);
}

fn length(files: &mut Files, length: u64) {
    bytes(files, SECOND)[..8].copy_from_slice(&length.to_le_bytes());
}

/// What opening or a full check says.
fn said(files: &Files) -> String {
    let reader = match try_open(&place(files)) {
        Ok(reader) => reader,
        Err(e) => {
            assert_eq!(e.kind(), ErrorKind::Corrupt, "{e}");
            return e.to_string();
        }
    };
    let report = block_on(reader.verify(true, &Progress::none())).unwrap();
    let all = report.damage.iter().map(ToString::to_string);
    all.collect::<Vec<_>>().join("\n")
}

fn files_that_are_damaged() -> Vec<Case> {
    vec![
        (
            "a missing file",
            plain(|f| drop(f.remove(SECOND))),
            "w: model-00002-of-00002.safetensors: it is missing",
        ),
        (
            "a missing file that was noted",
            recorded(|f| drop(f.remove(SECOND))),
            "w: model-00002-of-00002.safetensors: it is missing",
        ),
        (
            "the first file is missing",
            plain(|f| drop(f.remove(FIRST))),
            "v: model-00001-of-00002.safetensors: it is missing",
        ),
        (
            "a file that was cut",
            plain(|f| cut(f, SECOND, 1)),
            "w: model-00002-of-00002.safetensors at byte 175: the file is cut: its tensors end at byte 176, and it has 175 bytes",
        ),
        (
            "a file that was cut and noted",
            recorded(|f| cut(f, SECOND, 1)),
            "w: model-00002-of-00002.safetensors at byte 175: the file is cut: its tensors end at byte 176, and it has 175 bytes",
        ),
        (
            "a file that is too long",
            plain(|f| bytes(f, SECOND).push(0)),
            "w: model-00002-of-00002.safetensors at byte 176: its last 1 bytes belong to no tensor",
        ),
        (
            "a file without bytes",
            plain(|f| bytes(f, SECOND).clear()),
            "w: model-00002-of-00002.safetensors: it has 0 bytes, and the length of the header alone takes 8",
        ),
        (
            "a file of three bytes",
            plain(|f| bytes(f, SECOND).truncate(3)),
            "w: model-00002-of-00002.safetensors: it has 3 bytes, and the length of the header alone takes 8",
        ),
        (
            "a flipped bit of an element",
            recorded(|f| *bytes(f, SECOND).last_mut().unwrap() ^= 1),
            "w: model-00002-of-00002.safetensors at byte 128: tensor w is damaged, or another program has changed it: its CRC-32 is c1553bc7, and b6520b51 was written",
        ),
        (
            "a file by its number",
            plain(|f| {
                f.remove(INDEX);
                f.remove(SECOND);
            }),
            "model-00002-of-00002.safetensors: it is missing",
        ),
    ]
}

fn headers_that_contradict_themselves() -> Vec<Case> {
    let header = |from: &'static str, to: &'static str| plain(|f| edit(f, SECOND, from, to));
    vec![
        (
            "another shape",
            header("[4,3]", "[4,4]"),
            "w: model-00002-of-00002.safetensors at byte 128: w has 48 bytes, but I32 [4, 4] takes 64 bytes",
        ),
        (
            "another element type",
            header("\"I32\"", "\"F64\""),
            "w: model-00002-of-00002.safetensors at byte 128: w has 48 bytes, but F64 [4, 3] takes 96 bytes",
        ),
        (
            "offsets the wrong way round",
            header("[0,48]", "[48,0]"),
            "w: model-00002-of-00002.safetensors: the offsets 48 and 0 of w are no range",
        ),
        (
            "a gap",
            header("[0,48]", "[4,52]"),
            "w: model-00002-of-00002.safetensors at byte 128: 4 bytes before those of w belong to no tensor",
        ),
        (
            "offsets beyond the file",
            header("[0,48]", "[0,52]"),
            "w: model-00002-of-00002.safetensors at byte 128: w has 52 bytes, but I32 [4, 3] takes 48 bytes",
        ),
        (
            "offsets beyond all files",
            header("[0,48]", "[0,18446744073709551615]"),
            "w: model-00002-of-00002.safetensors: the offsets 0 and 18446744073709551615 of w are no range",
        ),
    ]
}

fn headers() -> Vec<Case> {
    let header = |from: &'static str, to: &'static str| plain(|f| edit(f, SECOND, from, to));
    vec![
        (
            "a header longer than the file",
            plain(|f| length(f, 1_000_000)),
            "w: model-00002-of-00002.safetensors at byte 0: its header is said to have 1000000 bytes, but the file has 176",
        ),
        (
            "a header longer than any",
            plain(|f| length(f, u64::MAX)),
            "w: model-00002-of-00002.safetensors at byte 0: its header is said to have 18446744073709551615 bytes, and at most 100000000 are allowed",
        ),
        (
            "a header without bytes",
            plain(|f| length(f, 0)),
            "w: model-00002-of-00002.safetensors at byte 8: its header is no JSON object",
        ),
        (
            "a header that is cut",
            plain(|f| length(f, 9)),
            "w: model-00002-of-00002.safetensors at byte 16: its header can't be parsed: EOF while parsing a string at line 1 column 9",
        ),
        (
            "a header without its end",
            header("[0,48]}}", "[0,48]}"),
            "w: model-00002-of-00002.safetensors at byte 126: its header can't be parsed: EOF while parsing an object at line 1 column 119",
        ),
        (
            "a shape that is none",
            header("\"shape\":[4,3]", "\"shape\":\"x\""),
            "w: model-00002-of-00002.safetensors at byte 69: its header can't be parsed: \"w\": invalid type: string \"x\", expected a sequence at line 1 column 62",
        ),
        (
            "a negative length",
            header("[4,3]", "[-4,3]"),
            "w: model-00002-of-00002.safetensors at byte 69: its header can't be parsed: \"w\": invalid value: integer `-4`, expected u64 at line 1 column 62",
        ),
        (
            "more elements than can be counted",
            header("[4,3]", "[18446744073709551615,3]"),
            "w: model-00002-of-00002.safetensors at byte 147: w has 48 bytes, but I32 [18446744073709551615, 3] takes no number of bytes",
        ),
        (
            "no shape",
            header("\"shape\":[4,3],", ""),
            "w: model-00002-of-00002.safetensors at byte 80: its header can't be parsed: \"w\": missing field `shape` at line 1 column 73",
        ),
        (
            "metadata of a number",
            header("\"pt\"", "7"),
            "w: model-00002-of-00002.safetensors at byte 34: its header can't be parsed: invalid type: integer `7`, expected a string at line 1 column 27",
        ),
        (
            "metadata twice",
            header(
                "{\"format\":\"pt\"}",
                "{\"format\":\"pt\",\"format\":\"pt\"}",
            ),
            "w: model-00002-of-00002.safetensors at byte 46: its header can't be parsed: the key \"format\" comes twice at line 1 column 39",
        ),
        (
            "a key twice",
            header(
                ",\"w\":",
                ",\"w\":{\"dtype\":\"I32\",\"shape\":[0],\"data_offsets\":[0,0]},\"w\":",
            ),
            "w: model-00002-of-00002.safetensors at byte 95: its header can't be parsed: the key \"w\" comes twice at line 1 column 88",
        ),
        (
            "tensors that overlap",
            overlapping(),
            "model.safetensors at byte 204: the bytes of b begin within those of another tensor",
        ),
        (
            "a header that is not the written one",
            recorded(|f| edit(f, SECOND, "I32", "U32")),
            "w: model-00002-of-00002.safetensors: its header is not the one that was written, judging by reshard-safetensors.json; if it was changed on purpose, remove reshard-safetensors.json",
        ),
    ]
}

/// Two tensors in a single file.
fn overlapping() -> Files {
    let place = store();
    let both = vec![whole("a", &[4]), whole("b", &[4])];
    save(&place, &SafetensorsConfig::default(), vec![both]);
    with(files(&place), |f| {
        f.remove(RECORD);
        edit(f, "model.safetensors", "[16,32]", "[12,28]");
    })
}

fn indexes() -> Vec<Case> {
    let file = |name: &'static str| plain(|f| replace(f, INDEX, SECOND, name));
    let text = |text: &'static str| plain(|f| drop(f.insert(INDEX.into(), text.into())));
    vec![
        (
            "an index that names a file outside of the folder",
            file("../secret.safetensors"),
            "model.safetensors.index.json: it is no index of safetensors: the file of w: \"../secret.safetensors\" can't name a file of a checkpoint: it leads out of the checkpoint's directory",
        ),
        (
            "an index with an absolute path",
            file("/etc/x.safetensors"),
            "model.safetensors.index.json: it is no index of safetensors: the file of w: \"/etc/x.safetensors\" can't name a file of a checkpoint: it is absolute; only files in the checkpoint's directory are read",
        ),
        (
            "an index with a path that leads out",
            file("a/../../x.safetensors"),
            "model.safetensors.index.json: it is no index of safetensors: the file of w: \"a/../../x.safetensors\" can't name a file of a checkpoint: it leads out of the checkpoint's directory",
        ),
        (
            "an index with a path of Windows",
            file("C:/x"),
            "model.safetensors.index.json: it is no index of safetensors: the file of w: \"C:/x\" can't name a file of a checkpoint: it is absolute; only files in the checkpoint's directory are read",
        ),
        (
            "an index with an empty name",
            file(""),
            "model.safetensors.index.json: it is no index of safetensors: the file of w: \"\" can't name a file of a checkpoint: it is empty",
        ),
        (
            "an index that names a missing file",
            file("other.safetensors"),
            "w: other.safetensors: it is missing",
        ),
        (
            "an index that names the other file",
            file(FIRST),
            "w: model-00001-of-00002.safetensors: it does not have w, but model.safetensors.index.json says so",
        ),
        (
            "an index that names a tensor of no file",
            plain(|f| replace(f, INDEX, "\"w\"", "\"x\"")),
            "x: model-00002-of-00002.safetensors: it does not have x, but model.safetensors.index.json says so",
        ),
        (
            "an index with a key twice",
            text("{\"weight_map\":{\"w\":\"x\",\"w\":\"x\"}}"),
            "model.safetensors.index.json at byte 25: it is no index of safetensors: the key \"w\" comes twice at line 1 column 26",
        ),
        (
            "an empty index",
            text(""),
            "model.safetensors.index.json at byte 0: it is no index of safetensors: EOF while parsing a value at line 1 column 0",
        ),
        (
            "an index that is a list",
            text("[]"),
            "model.safetensors.index.json at byte 1: it is no index of safetensors: invalid length 0, expected an object at line 1 column 2",
        ),
        (
            "an index with a number for a file",
            text("{\"weight_map\":{\"w\":1}}"),
            "model.safetensors.index.json at byte 19: it is no index of safetensors: invalid type: integer `1`, expected a string at line 1 column 20",
        ),
        (
            "an index without a map",
            text("{\"metadata\":{}}"),
            "model.safetensors.index.json at byte 14: it is no index of safetensors: missing field `weight_map` at line 1 column 15",
        ),
        (
            "two files with one key",
            plain(|f| {
                f.remove(INDEX);
                edit(f, SECOND, "\"w\"", "\"v\"");
            }),
            "v: model-00001-of-00002.safetensors has it as int32 with 1 axes, and model-00002-of-00002.safetensors as int32 with 2",
        ),
    ]
}

fn files_of_ranks() -> Vec<Case> {
    let second = |from: &'static str, to: &'static str| {
        with(sharded(false), |f| edit(f, &shard(2), from, to))
    };
    vec![
        // The last file of all can't be missed without a record, and the first one can.
        (
            "the first rank's file is missing",
            with(sharded(false), |f| drop(f.remove(&shard(1)))),
            "w: no chunk covers [0:2, 0:2] of shape [4, 2]; the file of a rank may be missing",
        ),
        (
            "the last rank's file is missing, and noted",
            with(sharded(true), |f| drop(f.remove(&shard(2)))),
            "w: shard-00002-model-00001-of-00001.safetensors: it is missing",
        ),
        (
            "pieces that overlap",
            second("[2,0]", "[1,0]"),
            "w: chunks [0:2, 0:2] and [1:3, 0:2] overlap",
        ),
        (
            "a hole between pieces",
            second("[2,0]", "[3,0]"),
            "w: no chunk covers [2:3, 0:2] of shape [5, 2]; the file of a rank may be missing",
        ),
        (
            "a place of other axes",
            second("[2,0]", "[2]"),
            "w: shard-00002-model-00001-of-00001.safetensors: its piece lies at [2], but it has 2 axes",
        ),
        (
            "a place beyond all tensors",
            second("[2,0]", "[18446744073709551615,0]"),
            "w: shard-00002-model-00001-of-00001.safetensors: its piece ends beyond 2⁶⁴",
        ),
        (
            "one place twice",
            second("[2,0]", "[0,0]"),
            "w: both shard-00001-model-00001-of-00001.safetensors and shard-00002-model-00001-of-00001.safetensors have [0:2, 0:2]",
        ),
        (
            "a piece far away",
            second("[2,0]", "[1000000000000,0]"),
            "w: no chunk covers [2:1000000000000, 0:2] of shape [1000000000002, 2]; the file of a rank may be missing",
        ),
        (
            "a piece without a place",
            second("\\\"w\\\"", "\\\"x\\\""),
            "w: shard-00002-model-00001-of-00001.safetensors: the file of a rank does not say where its piece lies",
        ),
        (
            "pieces of two element types",
            second("\"I32\"", "\"F32\""),
            "w: shard-00001-model-00001-of-00001.safetensors has it as int32 with 2 axes, and shard-00002-model-00001-of-00001.safetensors as float32 with 2",
        ),
        (
            "places in another form",
            second("\\\"saved_offsets\\\"", "\\\"offsets\\\""),
            "shard-00002-model-00001-of-00001.safetensors: its DCP_SHARDING_INFO can't be parsed: missing field `saved_offsets` at line 1 column 22",
        ),
    ]
}

#[test]
fn each_damaged_checkpoint_has_a_clear_verdict_and_the_rest_is_read() {
    let all = [
        files_that_are_damaged(),
        headers(),
        headers_that_contradict_themselves(),
        indexes(),
        files_of_ranks(),
    ]
    .concat();
    assert_eq!(all.len(), 55);
    for (n, (what, files, _)) in all.iter().enumerate() {
        assert!(
            all[..n].iter().all(|other| other.1 != *files),
            "{what}: it is there twice"
        );
    }
    let other = |(what, files, want): &Case| {
        let said = said(files);
        (said != *want).then(|| format!("{what}: {said}"))
    };
    let others: Vec<String> = all.iter().filter_map(other).collect();
    assert!(others.is_empty(), "{}", others.join("\n"));
    for (what, files, said) in all {
        if !said.starts_with("w: ") || !files.contains_key(FIRST) {
            continue;
        }
        let e = try_load(&place(&files), vec![vec![w()]]).remove(0);
        let e = e.map(drop).unwrap_err().error;
        assert_eq!(e.kind(), ErrorKind::Corrupt, "{what}: {e}");
        let (_, wrong) = said[3..].split_once(": ").unwrap();
        let e = e.to_string();
        let names_both = e.contains(wrong) && e.contains(".safetensors");
        assert!(names_both && e.contains('w'), "{what}: {e}");
        let loaded = load(&place(&files), vec![vec![v()]]);
        assert_eq!(
            loaded[0][0].to_vec::<i32>().unwrap(),
            [0, 1, 2, 3],
            "{what}"
        );
    }
}

/// One model in two precisions, as `diffusers` has them, is no damage: nobody says which of the two is meant.
#[test]
fn a_folder_of_several_models_asks_for_one_of_them() {
    let one = |name: &str| {
        let place = store();
        let config = SafetensorsConfig::default().with_name(name);
        save(
            &place,
            &config,
            vec![vec![whole("a", &[4]), whole("b", &[4])]],
        );
        with(files(&place), |f| drop(f.remove(RECORD)))
    };
    let mut both = one("unet");
    both.extend(one("unet.fp16"));
    let e = try_open(&place(&both)).map(drop).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Invalid, "{e}");
    let e = e.to_string();
    let want = "has several models: a is in both unet.fp16.safetensors and unet.safetensors; name the file of one of them";
    assert!(e.contains(want), "{e}");
    // Files of different keys are one model, as PyTorch's reader has it.
    edit(&mut both, "unet.fp16.safetensors", "\"a\"", "\"c\"");
    edit(&mut both, "unet.fp16.safetensors", "\"b\"", "\"d\"");
    assert_eq!(
        try_open(&place(&both)).unwrap().metadata().tensor_count(),
        4
    );
}
