use super::*;

fn parse_of(text: &str, data: u64) -> Result<Header, Refused> {
    parse(text.as_bytes(), LENGTH + text.len() as u64 + data)
}

fn wrong(text: &str, data: u64) -> String {
    parse_of(text, data).unwrap_err().what
}

#[test]
fn a_header_is_read_as_it_is_written() {
    let f32 = SafetensorsDType::of("F32").unwrap();
    let new = |key: &str, shape: &[u64]| NewEntry {
        key: key.into(),
        dtype: f32,
        shape: shape.to_vec(),
        bytes: f32.bytes(shape).unwrap(),
    };
    let entries = [new("b\"", &[2, 3]), new("a", &[]), new("é", &[0, 7])];
    let metadata = BTreeMap::from([("format".into(), "pt".to_owned())]);
    let text = text(&metadata, &entries).unwrap();
    assert_eq!(text.len() % 64, 0);
    let file = text.len() as u64 + 28;
    let length = length(&text, file).unwrap();
    assert_eq!(LENGTH + length, text.len() as u64);
    let header = parse(&text[8..], file).unwrap();
    assert_eq!(
        header.metadata,
        BTreeMap::from([("format".into(), "pt".to_owned())])
    );
    assert_eq!(header.entries.len(), 3);
    for (read, written) in header.entries.iter().zip(&entries) {
        assert_eq!((&read.key, &read.shape), (&written.key, &written.shape));
        assert_eq!(read.bytes.end - read.bytes.start, written.bytes);
        assert_eq!(read.dtype, Ok(f32));
    }
}

#[test]
fn the_order_of_keys_does_not_matter() {
    let text = r#"{"z":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"a":{"dtype":"U8","shape":[1],"data_offsets":[2,3]},"0":{"dtype":"U8","shape":[0],"data_offsets":[2,2]}}"#;
    let keys: Vec<_> = parse_of(text, 3)
        .unwrap()
        .entries
        .into_iter()
        .map(|e| e.key)
        .collect();
    assert_eq!(keys, ["z".into(), "0".into(), "a".into()]);
}

#[test]
fn lengths_are_checked_before_anything_is_read() {
    let said = |n: u64, file| length(&n.to_le_bytes(), file).map_err(|f| f.what);
    assert_eq!(said(2, 10), Ok(2));
    assert!(said(3, 10).unwrap_err().contains("the file has 10"));
    assert!(
        said(MOST + 1, u64::MAX)
            .unwrap_err()
            .contains("at most 100000000")
    );
    assert!(said(u64::MAX, u64::MAX).is_err());
    assert!(
        length(&[1, 0, 0], 3)
            .unwrap_err()
            .what
            .contains("it has 3 bytes")
    );
}

#[test]
fn tensors_lie_one_after_the_other() {
    let two = |a: (u64, u64), b: (u64, u64)| {
        let entry = |(from, to): (u64, u64)| {
            format!(
                r#"{{"dtype":"U8","shape":[{}],"data_offsets":[{from},{to}]}}"#,
                to - from
            )
        };
        format!(r#"{{"a":{},"b":{}}}"#, entry(a), entry(b))
    };
    assert!(parse_of(&two((0, 4), (4, 6)), 6).is_ok());
    assert!(wrong(&two((0, 4), (3, 6)), 6).contains("b begin within those of another"));
    assert!(wrong(&two((0, 4), (5, 6)), 6).contains("1 bytes before those of b"));
    assert!(wrong(&two((1, 4), (4, 6)), 6).contains("1 bytes before those of a"));
    assert!(wrong(&two((0, 4), (4, 6)), 5).contains("the file is cut"));
    assert!(wrong(&two((0, 4), (4, 6)), 9).contains("last 3 bytes"));
}

#[test]
fn entries_that_contradict_themselves_are_named() {
    let one = |info: &str| wrong(&format!(r#"{{"w":{info}}}"#), 8);
    for (info, said) in [
        (
            r#"{"dtype":"F32","shape":[3],"data_offsets":[0,8]}"#,
            "w has 8 bytes, but F32 [3] takes 12",
        ),
        (
            r#"{"dtype":"F4","shape":[3],"data_offsets":[0,8]}"#,
            "takes no number of bytes",
        ),
        (
            r#"{"dtype":"F64","shape":[4294967296,4294967296],"data_offsets":[0,8]}"#,
            "takes no number of bytes",
        ),
        (
            r#"{"dtype":"U8","shape":[8],"data_offsets":[8,0]}"#,
            "8 and 0 of w are no range",
        ),
        (
            r#"{"dtype":"U8","shape":[8],"data_offsets":[0,18446744073709551615]}"#,
            "of w are no range",
        ),
        (
            r#"{"dtype":"U8","shape":[-8],"data_offsets":[0,8]}"#,
            "\"w\": invalid value",
        ),
        (
            r#"{"dtype":"U8","shape":[8.0],"data_offsets":[0,8]}"#,
            "\"w\": invalid type",
        ),
        (
            r#"{"dtype":"U8","shape":[8],"data_offsets":[0,8,9]}"#,
            "\"w\": ",
        ),
        (
            r#"{"dtype":"U8","dtype":"U8","shape":[8],"data_offsets":[0,8]}"#,
            "duplicate field",
        ),
        (
            r#"{"shape":[8],"data_offsets":[0,8]}"#,
            "missing field `dtype`",
        ),
        ("7", "\"w\": invalid type"),
    ] {
        let found = one(info);
        assert!(found.contains(said), "{info}: {found}");
    }
}

#[test]
fn keys_that_come_twice_are_named() {
    let w = r#""w":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}"#;
    assert!(wrong(&format!("{{{w},{w}}}"), 0).contains("\"w\" comes twice"));
    let metadata = r#""__metadata__":{"a":"b"}"#;
    assert!(wrong(&format!("{{{metadata},{metadata}}}"), 0).contains("__metadata__\" comes twice"));
    assert!(wrong(r#"{"__metadata__":{"a":"b","a":"c"}}"#, 0).contains("\"a\" comes twice"));
    assert!(wrong(r#"{"__metadata__":{"a":1}}"#, 0).contains("invalid type"));
}

#[test]
fn what_is_no_json_is_told_with_its_place() {
    let fault = parse_of("{\"w\":x}", 0).unwrap_err();
    assert_eq!(fault.offset, Some(LENGTH + 5));
    assert!(wrong("[]", 0).contains("no JSON object") && wrong("", 0).contains("no JSON object"));
    let deep = format!("{{\"w\":{}", "[".repeat(10_000));
    assert!(!wrong(&deep, 0).is_empty());
    assert!(parse(b"{\"\xff\":1}", 20).is_err());
}

#[test]
fn unknown_types_are_kept_by_name_and_unknown_fields_are_passed_over() {
    let text = r#"{"w":{"dtype":"F9","shape":[3],"data_offsets":[0,5],"more":[1]}}"#;
    let entry = parse_of(text, 5).unwrap().entries.remove(0);
    assert_eq!(entry.dtype, Err("F9".into()));
    let axes = vec!["1"; 256].join(",");
    let text = format!(r#"{{"w":{{"dtype":"U8","shape":[{axes}],"data_offsets":[0,1]}}}}"#);
    assert!(wrong(&text, 1).contains("256 axes"));
}

#[test]
fn a_key_that_is_longer_than_any_name_is_refused() {
    let of = |len: usize| {
        let key = "k".repeat(len);
        let text = format!(r#"{{"{key}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}}}"#);
        parse_of(&text, 0)
    };
    assert_eq!(of(LONGEST_KEY).unwrap().entries.len(), 1);
    let fault = of(LONGEST_KEY + 1).unwrap_err();
    assert!(
        fault
            .what
            .contains("kkk\"… has 65537 bytes, and at most 65536 are allowed"),
        "{}",
        fault.what
    );
    assert!(fault.what.len() < 1_000);

    let long = "k".repeat(LONGEST_KEY - 4);
    let all = (0..520)
        .map(|n| format!(r#""{n}{long}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#));
    let all: Vec<String> = all.collect();
    let what = wrong(&format!("{{{}}}", all.join(",")), 0);
    assert!(
        what.contains("its keys have more than 33554432 bytes together"),
        "{what}"
    );

    let entry = NewEntry {
        key: "k".repeat(LONGEST_KEY + 1).into(),
        dtype: SafetensorsDType::of("U8").unwrap(),
        shape: vec![0],
        bytes: 0,
    };
    let fault = text(&BTreeMap::new(), &[entry]).unwrap_err();
    assert!(fault.what.contains("has 65537 bytes"), "{}", fault.what);
}
