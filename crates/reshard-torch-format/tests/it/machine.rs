//! What single instructions of a pickle do, at the edges where they begin to fail. Held to `pickle.loads` of CPython.

use bytes::Bytes;
use reshard_model::{Construct, Opaque, Value};
use reshard_torch_format::{
    Error, Limits, Result, load,
    pickle::{Graph, run},
};

fn value(pickle: &[u8]) -> Result<Value> {
    load(Bytes::copy_from_slice(pickle))
}

fn error(pickle: &[u8]) -> String {
    match run(pickle, &mut Graph::default(), &Limits::default()) {
        Ok(_) => panic!("{pickle:?} was read"),
        Err(e) => e.to_string(),
    }
}

fn object(value: Value) -> Box<Opaque> {
    match value {
        Value::Opaque(object) => object,
        other => panic!("{other:?} is no object"),
    }
}

#[test]
fn no_instruction_reaches_below_a_mark() {
    for pickle in [
        &b"N(R."[..],      // a call
        b"N(.",            // the end
        b"N(\x85.",        // a tuple of one
        b"NN(N\x86.",      // a tuple of two
        b"N(\x85t.",       // the same, in a tuple that takes the mark away
        b"N(2.",           // a copy of the top
        b"N(q\0.",         // an entry of the memo
        b"](NNa.",         // an item, whose list is below
        b"}(K\x01K\x02s.", // a pair, whose dict is below
        b"N(o.",           // an object without a class
    ] {
        let said = error(pickle);
        assert!(
            said.contains("too few values")
                || said.contains("appends to something that is not a list"),
            "{pickle:?}: {said}"
        );
    }
    assert!(error(b"](Na.").contains("too few values"));
    assert!(error(b"}(K\x01s.").contains("too few values"));
}

#[test]
fn popping_takes_a_value_or_the_mark_on_top() {
    assert_eq!(value(b"K\x01K\x020.").unwrap(), Value::Int(1));
    assert_eq!(value(b"K\x01(0.").unwrap(), Value::Int(1));
    assert_eq!(
        value(b"(K\x01K\x020K\x03t.").unwrap(),
        Value::Tuple(vec![Value::Int(1), Value::Int(3)])
    );
    assert_eq!(value(b"K\x01(K\x02K\x031.").unwrap(), Value::Int(1));
    assert!(error(b"0.").contains("too few values"));
}

#[test]
fn the_top_is_copied() {
    assert_eq!(
        value(b"(K\x012t.").unwrap(),
        Value::Tuple(vec![Value::Int(1), Value::Int(1)])
    );
}

#[test]
fn the_memo_counts_what_is_numbered() {
    // Entries of MEMOIZE, one after the other.
    assert_eq!(value(b"K\x01\x940K\x02\x940h\x01.").unwrap(), Value::Int(2));
    // A number that is given twice counts once.
    assert_eq!(
        value(b"K\x01q\x000K\x02q\x000K\x03\x940h\x01.").unwrap(),
        Value::Int(3)
    );
    assert_eq!(
        value(b"K\x01q\x000K\x02q\x000h\x00.").unwrap(),
        Value::Int(2)
    );
    assert_eq!(
        value(b"K\x01q\x030K\x02q\x030K\x03\x940h\x01.").unwrap(),
        Value::Int(3)
    );
    // An entry that nobody fetches takes nobody's place, in whatever order they come.
    assert_eq!(
        value(b"K\x01q\x050K\x02q\x030h\x05.").unwrap(),
        Value::Int(1)
    );
    // Numbers in several words of the memo's map.
    let mut pickle = Vec::new();
    for n in [200u8, 64, 63, 65, 0, 199] {
        pickle.extend([b'K', n, b'q', n, b'0']);
    }
    pickle.extend(b"(h\xc8h\x40h\x3fh\x41h\0h\xc7t.");
    // A pickle is longer than its numbers are large.
    pickle.splice(0..0, b"N0".repeat(100));
    let all = [200, 64, 63, 65, 0, 199].map(Value::Int);
    assert_eq!(value(&pickle).unwrap(), Value::Tuple(all.to_vec()));
    assert!(error(b"N0N0N0K\x01q\x000h\x01.").contains("a memo entry that is not there"));
}

#[test]
fn a_frame_may_be_as_long_as_the_rest_and_no_longer() {
    assert_eq!(
        value(b"\x80\x04\x95\x02\0\0\0\0\0\0\0N.").unwrap(),
        Value::None
    );
    assert!(error(b"\x80\x04\x95\x03\0\0\0\0\0\0\0N.").contains("a frame is longer"));
    // Python's readers disagree about where such a pickle continues.
    let crossed = b"\x80\x04\x95\x03\0\0\0\0\0\0\0C\x04data.";
    assert!(error(crossed).contains("a frame ends inside an instruction"));
}

#[test]
fn ints_have_as_many_digits_as_pythons() {
    let int = |digits: usize| [b"I1", &b"0".repeat(digits - 1)[..], b"\n."].concat();
    assert!(matches!(value(&int(4300)).unwrap(), Value::BigInt(_)));
    let e = run(&int(4301), &mut Graph::default(), &Limits::default()).unwrap_err();
    assert!(
        matches!(
            e,
            Error::Limit {
                limit: "decimal digits of an int",
                max: 4300,
                ..
            }
        ),
        "{e}"
    );
    // A sign is none of them; what is too long and no number is said to be too long.
    let negative = [b"I-", &b"1".repeat(4299)[..], b"\n."].concat();
    assert!(matches!(value(&negative).unwrap(), Value::BigInt(_)));
}

#[test]
fn names_of_python_2_are_read_up_to_protocol_2() {
    let name = |protocol: u8| {
        object(value(&[&[0x80, protocol][..], b"ccopy_reg\n_reconstructor\n."].concat()).unwrap())
            .module
    };
    assert_eq!((&*name(2), &*name(3)), ("copyreg", "copy_reg"));
}

#[test]
fn an_instance_without_arguments_is_not_called() {
    let construct = |pickle: &[u8]| object(value(pickle).unwrap()).construct;
    assert_eq!(construct(b"(i__main__\nC\n."), Construct::NewObj(vec![]));
    assert_eq!(
        construct(b"(K\x01i__main__\nC\n."),
        Construct::Reduce(vec![Value::Int(1)])
    );
    assert_eq!(construct(b"(c__main__\nC\no."), Construct::NewObj(vec![]));
    assert_eq!(
        construct(b"(c__main__\nC\nK\x01o."),
        Construct::Reduce(vec![Value::Int(1)])
    );
}
