//! Things that are shared are not gone through once for each that shares them.

use crate::{
    asm::{archive, get, global, int, keep, program, put, tensor, text, tuple},
    counting::measured,
};
use reshard_model::{Tensor, Value};
use reshard_torch_format::{Limits, LoadOptions, load_with, save};

/// Loads a file for which memory is no question; it has to be read, or refused with these words, in a few seconds.
#[track_caller]
fn quick(file: Vec<u8>, refused: Option<&str>) {
    let limits = Limits {
        memory: Some(2 << 30),
        ..Default::default()
    };
    let options = LoadOptions::default().with_limits(limits);
    let (result, _, seconds) = measured(|| load_with(file.into(), &options).map(drop));
    assert!(seconds < 5.0, "{seconds} s: {result:?}");
    match (result, refused) {
        (Ok(()), None) => {}
        (Err(e), Some(why)) if e.to_string().contains(why) => {}
        (result, _) => panic!("{result:?}, not: {refused:?}"),
    }
}

#[test]
fn a_dict_of_one_key_is_searched_once_however_often_it_is_named() {
    let dict = [b"}(", &b"K\x01N".repeat(20_000)[..], b"u", &keep(0)].concat();
    quick(program(&[&dict, b"](", &get(0).repeat(50_000), b"e"]), None);
    // The pairs of an object likewise.
    let object = [
        &global("a", "B")[..],
        b")R(",
        &b"K\x01N".repeat(20_000),
        b"u",
        &keep(0),
    ]
    .concat();
    quick(
        program(&[&object, b"](", &get(0).repeat(50_000), b"e"]),
        None,
    );
}

#[test]
fn a_long_key_that_is_set_again_and_again_counts_as_text() {
    let key = [text(&"k".repeat(1_000_000)), keep(0)].concat();
    let pairs = [&get(0)[..], b"N"].concat().repeat(100_000);
    quick(program(&[&key, b"}(", &pairs, b"u"]), Some("bytes of text"));
}

#[test]
fn what_tensors_share_is_bounded_before_it_is_read_for_each() {
    let storage = |location: &[u8]| {
        tuple(&[
            &text("storage"),
            &global("torch", "FloatStorage"),
            &text("0"),
            location,
            &int(1),
        ])
    };
    let far = [
        &text(&"l".repeat(1_000_000))[..],
        &keep(0),
        &storage(&get(0)),
        &keep(1),
    ]
    .concat();
    let many = [&get(1)[..], b"Q"].concat().repeat(20_000);
    quick(
        archive(&program(&[&far, b"(", &many, b"t"])),
        Some("its location is longer than any"),
    );

    let notes: Vec<u8> = (0..50_000)
        .flat_map(|i| [text(&format!("note{i}")), b"N".to_vec()].concat())
        .collect();
    let notes = [b"}(", &notes[..], b"u", &keep(0)].concat();
    let one = tuple(&[&int(1)]);
    let args = tensor(&one, &one, 1, &get(0));
    // The arguments are made once, and the tensor is made of them many times.
    let args = &args[global("torch._utils", "_rebuild_tensor_v2").len()..args.len() - 1];
    let again = [&get(2)[..], &get(1), b"R"].concat().repeat(5_000);
    let function = global("torch._utils", "_rebuild_tensor_v2");
    let pickle = program(&[
        &notes,
        args,
        &keep(1),
        &function,
        &keep(2),
        b"(",
        &again,
        b"t",
    ]);
    quick(archive(&pickle), Some("50000 notes in its metadata"));
}

#[test]
fn many_views_of_one_buffer_are_written_in_no_time() {
    const VIEWS: u64 = 200_000;
    let whole = Tensor::from_vec(&[2 * VIEWS], vec![1u8; 2 * VIEWS as usize]).unwrap();
    let view = |i: u64| {
        whole
            .narrow(&reshard_model::Region::new([2 * i], [1]))
            .into()
    };
    let apart = Value::List((0..VIEWS).map(view).collect());
    let (file, _, seconds) = measured(|| save(&apart).unwrap());
    assert!(seconds < 5.0 && file.len() > VIEWS as usize, "{seconds} s");
}

#[test]
fn objects_of_one_class_share_its_name() {
    let class = [global(&"m".repeat(490), &"n".repeat(490)), keep(0)].concat();
    let objects = [&get(0)[..], b")R"].concat().repeat(1000);
    let file = program(&[&class, b"(", &objects, b"t", &put(1)]);
    quick(file, None);
}
