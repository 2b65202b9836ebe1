//! The law of values: what is written is read back equal.

use crate::samples::sample;
use proptest::prelude::*;
use reshard_model::{Construct, ErrorKind, ObjectCodec, Opaque, Tensor, Value};
use reshard_torch_format::{
    Limits, LoadOptions, TorchSave, archive::Verify, encode, load, load_with, save,
};

fn object(module: &str, name: &str, construct: Construct) -> Opaque {
    Opaque {
        module: module.into(),
        name: name.into(),
        construct,
        state: None,
        items: vec![],
        pairs: vec![],
    }
}

fn scalar() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::None),
        any::<bool>().prop_map(Value::Bool),
        any::<i64>().prop_map(Value::Int),
        (-70_000i64..70_000).prop_map(Value::Int),
        any::<u64>().prop_map(|v| {
            let mut le = v.to_le_bytes().to_vec();
            le.extend([1, 2]);
            Value::BigInt(le.into())
        }),
        any::<f64>().prop_map(Value::Float),
        ".*".prop_map(|s: String| s.into()),
        prop::collection::vec(any::<u8>(), 0..20).prop_map(|b| Value::Bytes(b.into())),
        (0u64..4, 0u64..4).prop_map(|(r, c)| {
            Tensor::from_vec(&[r, c], (0..r * c).map(|i| i as f32).collect())
                .unwrap()
                .into()
        }),
        (
            "[a-z]{1,8}(\\.[a-z]{1,8})?",
            "[A-Z][a-z]{1,8}(\\.[A-Z]{1,3})?"
        )
            .prop_map(|(m, n)| Value::Opaque(Box::new(object(&m, &n, Construct::Global)))),
    ]
}

fn pairs(inner: impl Strategy<Value = Value>) -> impl Strategy<Value = Vec<(Value, Value)>> {
    prop::collection::btree_map("[a-z]{0,3}", inner, 0..4)
        .prop_map(|m| m.into_iter().map(|(k, v)| (k.into(), v)).collect())
}

fn value() -> impl Strategy<Value = Value> {
    scalar().prop_recursive(4, 40, 5, |inner| {
        let many = || prop::collection::vec(inner.clone(), 0..5);
        let construct = prop_oneof![
            many().prop_map(Construct::Reduce),
            many().prop_map(Construct::NewObj),
            (many(), pairs(inner.clone())).prop_map(|(a, k)| Construct::NewObjEx(a, k)),
        ];
        prop_oneof![
            many().prop_map(Value::List),
            many().prop_map(Value::Tuple),
            many().prop_map(Value::Set),
            pairs(inner.clone()).prop_map(Value::Dict),
            (
                construct,
                prop::option::of(inner.clone()),
                many(),
                pairs(inner.clone())
            )
                .prop_map(|(c, state, items, pairs)| {
                    Value::Opaque(Box::new(Opaque {
                        state,
                        items,
                        pairs,
                        ..object("pack.mod", "Outer.Inner", c)
                    }))
                }),
        ]
    })
}

proptest! {
    #![proptest_config(reshard_model::testkit::law(256))]
    #[test]
    fn what_is_written_is_read_back_equal(v in value()) {
        let file = save(&v).unwrap();
        prop_assert_eq!(&load(file.clone().into()).unwrap(), &v);
        prop_assert_eq!(save(&v).unwrap(), file);
        let codec = TorchSave::default();
        prop_assert_eq!(codec.decode(&codec.encode(&v).unwrap()).unwrap(), v);
    }
}

#[test]
fn tensors_that_share_memory_share_a_storage() {
    let whole = Tensor::from_vec(&[6], (0..6).map(|i| i as f32).collect()).unwrap();
    let rows = |from, n| whole.narrow(&reshard_model::Region::new([from], [n]));
    // The part comes first, and the whole later.
    let v = Value::List(vec![
        rows(2, 3).into(),
        whole.clone().into(),
        rows(0, 1).into(),
        whole.clone().into(),
    ]);
    let encoded = encode(&v).unwrap();
    assert_eq!(encoded.storages.len(), 1);
    assert_eq!(encoded.storages[0].len(), 24);
    let back = load(save(&v).unwrap().into()).unwrap();
    assert_eq!(back, v);
    let tensors: Vec<&Tensor> = back
        .as_seq()
        .unwrap()
        .iter()
        .filter_map(Value::as_tensor)
        .collect();
    assert!(tensors.windows(2).all(|w| w[0].same_buffer(w[1])));
    // Parts that none covers are stored apart.
    let apart = Value::List(vec![rows(0, 3).into(), rows(2, 3).into()]);
    assert_eq!(encode(&apart).unwrap().storages.len(), 2);
    assert_eq!(load(save(&apart).unwrap().into()).unwrap(), apart);
}

#[test]
fn tensors_in_a_file_are_not_copied() {
    let file = sample("float32.pt");
    let range = file.as_ptr_range();
    let t = load(file).unwrap().into_tensor().unwrap();
    assert!(range.contains(&t.to_bytes().as_ptr()));
}

#[test]
fn a_key_that_is_set_twice_has_its_last_value() {
    let v = load(b"(S'a'\nI1\nS'b'\nI2\nS'a'\nI3\nd.".as_slice().into()).unwrap();
    assert_eq!(
        v,
        Value::Dict(vec![("a".into(), 3.into()), ("b".into(), 2.into())])
    );
}

#[test]
fn values_that_can_not_be_written_are_named() {
    let mut deep = Value::None;
    for _ in 0..600 {
        deep = Value::List(vec![deep]);
    }
    let error = save(&deep).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(
        error.to_string().contains("nested more than 500 deep"),
        "{error}"
    );
    let odd = Value::Opaque(Box::new(object("a\nb", "c", Construct::Global)));
    assert_eq!(save(&odd).unwrap_err().kind(), ErrorKind::Invalid);
    // In the protocol that is written, such a name means the one of Python 3.
    for (module, name, read) in [
        ("__builtin__", "getattr", "builtins.getattr"),
        ("exceptions", "ValueError", "builtins.ValueError"),
        ("Queue", "Full", "queue.Full"),
    ] {
        let old = Value::Opaque(Box::new(object(module, name, Construct::Global)));
        let error = save(&old).unwrap_err().to_string();
        assert!(
            error.contains(&format!("protocol 2 reads this name as {read}")),
            "{error}"
        );
    }
}

#[test]
fn values_that_expand_too_far_are_refused() {
    // Each list names the one before it ten times.
    let mut bomb = b"\x80\x02]q\x00X\x01\x00\x00\x00aa".to_vec();
    for i in 0..20u8 {
        bomb.extend([b']', b'q', i + 1, b'(']);
        (0..10).for_each(|_| bomb.extend([b'h', i]));
        bomb.push(b'e');
    }
    // All lists are on the stack; nested pairs make them one value.
    bomb.extend([0x86; 20]);
    bomb.push(b'.');
    let small = LoadOptions::default().with_limits(Limits {
        nodes: 10_000,
        bytes: 1 << 20,
        ..Default::default()
    });
    let error = load_with(bomb.into(), &small).unwrap_err();
    assert!(error.to_string().contains("10000 nodes"), "{error}");

    let mut text = b"\x80\x02X\x00\x00\x01\x00".to_vec();
    text.extend([b'a'; 65536]);
    text.extend(b"q\x00(");
    (0..40_000).for_each(|_| text.extend(b"h\x00"));
    text.extend(b"l\x86.");
    assert!(
        load_with(text.into(), &small)
            .unwrap_err()
            .to_string()
            .contains("bytes of text")
    );

    let mut deep = vec![b']'; 300];
    deep.extend([b'a'; 299]);
    deep.push(b'.');
    let error = load(deep.clone().into()).unwrap_err();
    assert!(
        error.to_string().contains("256 levels of nesting"),
        "{error}"
    );
    let limits = Limits {
        depth: 400,
        ..Default::default()
    };
    assert!(load_with(deep.into(), &LoadOptions::default().with_limits(limits)).is_ok());
}

#[test]
fn a_tensor_that_repeats_its_elements_is_no_bomb() {
    let mut t =
        reshard_torch_format::TensorRef::contiguous(reshard_model::DType::UInt8, &[1]).unwrap();
    t.shape = [1 << 40].into();
    t.strides = [0].into();
    let archive = reshard_torch_format::archive::write_archive(
        &t.pickle().unwrap(),
        &[&[1]],
        &Default::default(),
    );
    let options = LoadOptions::default().with_verify(Verify::No);
    let error = load_with(archive.unwrap().into(), &options).unwrap_err();
    assert!(error.to_string().contains("bytes in a tensor"), "{error}");
}
