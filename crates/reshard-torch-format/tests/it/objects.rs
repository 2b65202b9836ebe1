//! What calls and dicts of a pickle become.

use bytes::Bytes;
use reshard_model::{Construct, DType, Opaque, Value};
use reshard_torch_format::{
    Error, Limits, LoadOptions, TensorRef,
    archive::{ArchiveOptions, write_archive},
    load, load_with,
};

fn value(pickle: &[u8]) -> Value {
    load(Bytes::copy_from_slice(pickle)).unwrap()
}

fn object(pickle: &[u8]) -> Opaque {
    match value(pickle) {
        Value::Opaque(object) => *object,
        other => panic!("{other:?} is no object"),
    }
}

fn named(object: &Opaque) -> (&str, &str) {
    (&object.module, &object.name)
}

#[test]
fn keys_that_python_calls_equal_are_one_key() {
    let int = |n: i64| Value::Int(n);
    for (pickle, want) in [
        (&b"}(K\x01K\x02K\x01K\x03u."[..], vec![(int(1), int(3))]),
        (b"}(\x88K\x02\x88K\x03u.", vec![(Value::Bool(true), int(3))]),
        (
            b"}(\x88K\x02K\x01K\x03u.",
            vec![(Value::Bool(true), int(3))],
        ),
        (
            b"}(X\x01\0\0\0aK\x02X\x01\0\0\0aK\x03u.",
            vec![("a".into(), int(3))],
        ),
        (
            b"}(K\x00K\x02K\x01K\x03u.",
            vec![(int(0), int(2)), (int(1), int(3))],
        ),
    ] {
        assert_eq!(value(pickle), Value::Dict(want));
    }
    // Also in a dict of many keys, which is searched once.
    let pairs: Vec<u8> = (0..20u8)
        .chain([3])
        .flat_map(|n| [b'K', n, b'K', n + 100])
        .collect();
    let Value::Dict(pairs) = value(&[b"}(", &pairs[..], b"u."].concat()) else {
        panic!()
    };
    assert_eq!(pairs.len(), 20);
    assert_eq!(pairs[3], (int(3), int(103)));
}

#[test]
fn limits_of_values_hold_to_the_last_node_byte_and_level() {
    let told = |pickle: &[u8], limits: Limits| match load_with(
        Bytes::copy_from_slice(pickle),
        &LoadOptions::default().with_limits(limits),
    ) {
        Ok(_) => None,
        Err(Error::Limit { limit, .. }) => Some(limit),
        Err(e) => panic!("{e}"),
    };
    let nodes = |nodes| Limits {
        nodes,
        ..Limits::default()
    };
    assert_eq!(
        (told(b"](NNe.", nodes(3)), told(b"](NNe.", nodes(2))),
        (None, Some("nodes"))
    );
    // Text is no node more, also if it is empty: protocol 2's short str, and bytes.
    let empty = b"](U\0U\0X\0\0\0\0C\0e.";
    assert_eq!(
        (told(empty, nodes(5)), told(empty, nodes(4))),
        (None, Some("nodes"))
    );
    let bytes = |bytes| Limits {
        bytes,
        ..Limits::default()
    };
    let text = b"](X\x02\0\0\0abX\x01\0\0\0ce.";
    assert_eq!(
        (told(text, bytes(3)), told(text, bytes(2))),
        (None, Some("bytes of text"))
    );
    let name = b"cmod\nName\n)R.";
    assert_eq!(
        (told(name, bytes(7)), told(name, bytes(6))),
        (None, Some("bytes of text"))
    );
    // What holds nothing is no level.
    let nest = |depth: usize| [&b"]".repeat(depth)[..], b"N", &b"a".repeat(depth), b"."].concat();
    assert_eq!(
        (
            told(&nest(256), Limits::default()),
            told(&nest(257), Limits::default())
        ),
        (None, Some("levels of nesting"))
    );
}

#[test]
fn bytes_lie_in_the_file_and_text_that_is_none_is_a_call() {
    let file = Bytes::from_static(b"\x80\x04C\x03abc.");
    let Value::Bytes(bytes) = load(file.clone()).unwrap() else {
        panic!()
    };
    assert_eq!((&*bytes, bytes.as_ptr()), (&b"abc"[..], file[4..].as_ptr()));
    // An escape has to be undone elsewhere.
    assert_eq!(
        value(b"S'a\\xff'\n."),
        Value::Bytes(Bytes::from_static(b"a\xff"))
    );
    let odd = object(b"X\x03\0\0\0\xed\xa0\x80.");
    assert_eq!(named(&odd), ("_codecs", "decode"));
    let args = vec![
        Value::Bytes(Bytes::from_static(b"\xed\xa0\x80")),
        "utf-8".into(),
        "surrogatepass".into(),
    ];
    assert_eq!(odd.construct, Construct::Reduce(args));
}

#[test]
fn calls_that_spell_plain_values_are_these_and_nothing_else_is() {
    assert_eq!(
        value(b"c__builtin__\nset\n(](K\x01etR."),
        Value::Set(vec![Value::Int(1)])
    );
    assert_eq!(value(b"c__builtin__\nset\n)R."), Value::Set(vec![]));
    assert_eq!(
        value(b"c__builtin__\nbytes\n)R."),
        Value::Bytes(Bytes::new())
    );
    let encode = |codec: &[u8]| {
        [
            b"c_codecs\nencode\n(X\x02\0\0\0\xc3\xa9X",
            &[codec.len() as u8][..],
            b"\0\0\0",
            codec,
            b"tR.",
        ]
        .concat()
    };
    assert_eq!(
        value(&encode(b"latin1")),
        Value::Bytes(Bytes::from_static(b"\xe9"))
    );
    assert_eq!(named(&object(&encode(b"utf-8"))), ("_codecs", "encode"));
    // Made otherwise, or filled afterwards.
    for pickle in [
        &b"c__builtin__\nset\n(](K\x01etR}b."[..],
        b"c__builtin__\nset\n(](K\x01etR(K\x02e.",
        b"c__builtin__\nset\n(](K\x01etR(K\x02K\x03u.",
        b"c__builtin__\nset\n(](K\x01et\x81.",
        b"\x80\x04c__builtin__\nset\n(](K\x01et}\x92.",
    ] {
        let set = object(pickle);
        assert_eq!(&*set.name, "set");
        let filled = (set.state.is_some(), set.items.len(), set.pairs.len());
        let called = matches!(set.construct, Construct::Reduce(_));
        assert_eq!(filled != (false, 0, 0), called, "{pickle:?}: {filled:?}");
    }
}

#[test]
fn what_was_made_first_and_is_called_then_has_a_name_in_python() {
    let made = |pickle: &[u8]| {
        let object = object(pickle);
        let Construct::Reduce(args) = object.construct else {
            panic!()
        };
        (format!("{}.{}", object.module, object.name), args.len())
    };
    assert_eq!(made(b"cm\nC\n)R(K\x01tR."), ("operator.call".into(), 2));
    assert_eq!(
        made(b"cm\nC\n)R(K\x01K\x02t\x81."),
        ("copyreg.__newobj__".into(), 3)
    );
    assert_eq!(
        made(b"\x80\x04cm\nC\n)R)}\x92."),
        ("copyreg.__newobj_ex__".into(), 3)
    );
}

#[test]
fn a_partial_of_a_class_s_new_is_an_object_with_keywords_and_any_other_is_not() {
    // Its name, its function, how it is made and filled, and how it is called.
    let made = |[name, new, how, fill, call]: [&[u8]; 5]| {
        let function = [b"c", new, b"\n"].concat();
        let state = [b"(", &function[..], b"(cm\nC\nK\x07t}X\x01\0\0\0kK\x01sNtb"].concat();
        object(
            &[
                b"c", name, b"\n(", &function, b"t", how, fill, &state, call, b".",
            ]
            .concat(),
        )
    };
    let usual: [&[u8]; 5] = [b"functools\npartial", b"m\nC.__new__", b"R", b"", b")R"];
    let found = made(usual);
    assert_eq!(named(&found), ("m", "C"));
    assert_eq!(
        found.construct,
        Construct::NewObjEx(vec![Value::Int(7)], vec![("k".into(), Value::Int(1))])
    );
    for (part, other) in [
        (0, &b"functools\nreduce"[..]),
        (1, b"other\nC.__new__"),
        (1, b"m\nD.__new__"),
        (1, b"m\nC.__init__"),
        (2, b"\x81"),
        (3, b"(K\x01e"),
        (3, b"(K\x01K\x02u"),
        (4, b")\x81"),
        (4, b"(K\x01tR"),
    ] {
        let mut parts = usual;
        parts[part] = other;
        let found = made(parts);
        assert!(
            ["operator", "copyreg"].contains(&&*found.module),
            "{other:?}: {found:?}"
        );
    }
}

#[test]
fn a_stored_tensor_may_be_larger_than_what_is_unpacked_and_a_repeated_one_not() {
    let told = |shape: &[u64], strides: &[u64], unpacked: u64| {
        let mut t = TensorRef::contiguous(DType::UInt8, &[100]).unwrap();
        (t.shape, t.strides) = (shape.into(), strides.into());
        let file = write_archive(
            &t.pickle().unwrap(),
            &[&[7; 100]],
            &ArchiveOptions::default(),
        )
        .unwrap();
        let options = LoadOptions::default().with_limits(Limits {
            unpacked,
            ..Limits::default()
        });
        load_with(file.into(), &options).is_ok()
    };
    assert!(told(&[100], &[1], 10));
    assert!(told(&[1_000], &[0], 1_000) && !told(&[1_000], &[0], 999));
}
