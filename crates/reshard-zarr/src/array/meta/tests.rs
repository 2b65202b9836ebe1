use super::*;
use proptest::prelude::*;
use reshard_model::{DType, Dims, ErrorKind};
use reshard_strategy::Refused;
use serde_json::{Value, json};

fn v2(changes: Value) -> Result<ArrayMeta, Refused> {
    let mut of = json!({
        "zarr_format": 2, "shape": [5, 4], "chunks": [2, 3], "dtype": "<f4", "compressor": null, "fill_value": null,
        "order": "C", "filters": null,
    });
    change(&mut of, changes);
    parse_zarray(of.to_string().as_bytes())
}

fn v3(changes: Value) -> Result<ArrayMeta, Refused> {
    let mut of = json!({
        "zarr_format": 3, "node_type": "array", "shape": [5, 4], "data_type": "float32",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 3]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0.0, "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
    });
    change(&mut of, changes);
    match parse_zarr_json(of.to_string().as_bytes())? {
        Node::Array(array) => *array,
        Node::Group(_) => panic!("a group"),
    }
}

/// Sets fields, or removes those whose value is the text `-`.
fn change(of: &mut Value, changes: Value) {
    let (Value::Object(of), Value::Object(changes)) = (of, changes) else {
        panic!("no objects")
    };
    for (name, value) in changes {
        if value == "-" {
            of.remove(&name);
        } else {
            of.insert(name, value);
        }
    }
}

fn stored(array: &ArrayMeta) -> &Stored {
    match &array.encoding {
        Encoding::Chunk(stored) => stored,
        Encoding::Sharded(_) => panic!("a shard"),
    }
}

fn unknown(found: Result<ArrayMeta, Refused>, name: &str) {
    let fault = found.unwrap_err();
    assert_eq!(fault.kind, ErrorKind::Unsupported, "{fault:?}");
    assert!(fault.what.contains(name), "{fault:?} does not name {name}");
}

fn damaged(found: Result<ArrayMeta, Refused>, name: &str) {
    let fault = found.unwrap_err();
    assert_eq!(fault.kind, ErrorKind::Corrupt, "{fault:?}");
    assert!(fault.what.contains(name), "{fault:?} does not name {name}");
}

#[test]
fn megatrons_array_is_plain_and_has_dots_in_the_names_of_its_chunks() {
    let text = r#"{
    "chunks": [4, 2], "compressor": null, "dtype": "bfloat16", "fill_value": null, "filters": null,
    "order": "C", "shape": [8, 3], "zarr_format": 2
}"#;
    let array = parse_zarray(text.as_bytes()).unwrap();
    assert_eq!(
        (array.dtype, &array.shape, &array.chunk),
        (DType::BFloat16, &Dims::from([8, 3]), &Dims::from([4, 2]))
    );
    assert!(stored(&array).is_plain(array.dtype));
    assert_eq!(
        (array.cell(), array.cell_bytes()),
        (&Dims::from([4, 2]), 16)
    );
    assert_eq!(array.keys.name(&[1, 0]), "1.0");
    assert_eq!(array.fill, [0, 0]);
}

#[test]
fn every_dtype_of_v2_has_its_order_of_bytes() {
    for (name, dtype, big) in [
        ("|b1", DType::Bool, false),
        ("|u1", DType::UInt8, false),
        ("<u2", DType::UInt16, false),
        (">u4", DType::UInt32, true),
        ("<u8", DType::UInt64, false),
        ("|i1", DType::Int8, false),
        ("<i1", DType::Int8, false),
        (">i2", DType::Int16, true),
        ("<i4", DType::Int32, false),
        ("<i8", DType::Int64, false),
        ("<f2", DType::Float16, false),
        (">f4", DType::Float32, true),
        ("<f8", DType::Float64, false),
        ("<c8", DType::Complex64, false),
        (">c16", DType::Complex128, true),
        ("bfloat16", DType::BFloat16, false),
        ("float8_e4m3fn", DType::Float8E4M3Fn, false),
        ("float8_e5m2", DType::Float8E5M2, false),
    ] {
        let array = v2(json!({"dtype": name})).unwrap();
        assert_eq!(array.dtype, dtype, "{name}");
        assert_eq!(stored(&array).big_endian, big, "{name}");
        assert_eq!(array.fill, vec![0; dtype.size() as usize], "{name}");
    }
    for name in [
        "<V2",
        "|V2",
        "|S4",
        "<U4",
        "|O",
        "<M8",
        "|M8[ns]",
        "<M8[thousands of hours or of others]",
        "|f4",
        "=f4",
        "f4",
        "<f16",
        "int3",
        "float8_e3m4",
        "",
        "é",
    ] {
        unknown(v2(json!({"dtype": name})), name);
    }
    unknown(
        v2(json!({"dtype": "|O", "filters": [{"id": "vlen-utf8"}]})),
        "objects, which the codec \"vlen-utf8\" stores",
    );
    unknown(v2(json!({"dtype": [["a", "<f4"], ["b", "<i2"]]})), "\"a\"");
}

#[test]
fn types_without_an_element_type_are_read_as_the_closest_one() {
    let of = |array: Result<ArrayMeta, Refused>| {
        let array = array.unwrap();
        let stated = array.stated.as_ref().unwrap().name();
        (stated, array.dtype, array.stored().clone())
    };
    for (stated, big_endian, want) in [
        ("<M8[ns]", false, "datetime64[ns]"),
        (">m8[25s]", true, "timedelta64[25s]"),
    ] {
        let found = of(v2(json!({"dtype": stated, "fill_value": i64::MIN})));
        let stored = Stored {
            big_endian,
            ..Stored::default()
        };
        assert_eq!(found, (want.into(), DType::Int64, stored));
    }
    let moments =
        json!({"name": "numpy.datetime64", "configuration": {"unit": "s", "scale_factor": 10}});
    let array = v3(json!({"data_type": moments, "fill_value": "NaT"})).unwrap();
    assert_eq!(array.fill, i64::MIN.to_le_bytes());
    assert_eq!(of(Ok(array)).0, "datetime64[10s]");
    for (name, bits) in [("int2", 2), ("int4", 4)] {
        for array in [
            v2(json!({"dtype": name})),
            v3(json!({"data_type": name, "fill_value": -2})),
        ] {
            let codec = Codec::Narrow { bits };
            let (stated, dtype, stored) = of(array);
            assert_eq!((&*stated, dtype), (name, DType::Int8));
            assert_eq!(stored.codecs, [codec]);
            assert!(!stored.is_plain(dtype));
        }
    }
}

#[test]
fn filters_have_the_types_of_their_numbers() {
    let filter = |filter: Value| v2(json!({"dtype": "<f4", "filters": [filter]}));
    let numbers = |dtype, big_endian| Numbers { dtype, big_endian };
    let single = numbers(DType::Float32, false);
    let delta = |decoded, encoded| vec![Codec::Delta(Recoded { decoded, encoded })];
    for (settings, want) in [
        (json!({"id": "delta"}), delta(single, single)),
        (
            json!({"id": "delta", "dtype": ">i4", "astype": "int16"}),
            delta(numbers(DType::Int32, true), numbers(DType::Int16, false)),
        ),
        (json!({"id": "bitround", "keepbits": 3}), vec![]),
        (
            json!({"id": "shuffle"}),
            vec![Codec::Shuffle { element: 4 }],
        ),
    ] {
        assert_eq!(stored(&filter(settings).unwrap()).codecs, want);
    }
    for (settings, what) in [
        (json!({"id": "delta", "dtype": "<c8"}), "delta of complex64"),
        (json!({"id": "delta", "dtype": "<M8[s]"}), "delta of"),
        (
            json!({"id": "delta", "dtype": "<i4", "astype": "<f4"}),
            "from int32 to float32",
        ),
        (json!({"id": "packbits"}), "packbits of float32"),
        (json!({"id": "quantize"}), "quantize"),
    ] {
        unknown(filter(settings), what);
    }
    damaged(
        filter(json!({"id": "shuffle", "elementsize": 0})),
        "elementsize",
    );
    damaged(
        filter(json!({"id": "fixedscaleoffset", "scale": "1"})),
        "offset",
    );

    let bytes = json!({"name": "bytes", "configuration": {"endian": "little"}});
    let big = json!({"name": "bytes", "configuration": {"endian": "big"}});
    let delta = json!({"name": "numcodecs.delta", "configuration": {"dtype": "float32"}});
    let transpose = json!({"name": "transpose", "configuration": {"order": [1, 0]}});
    assert!(v3(json!({"codecs": [delta, bytes]})).is_ok());
    damaged(v3(json!({"codecs": [bytes, delta]})), "stands behind bytes");
    unknown(
        v3(json!({"codecs": [delta, big]})),
        "of big-endian elements",
    );
    unknown(
        v3(json!({"codecs": [transpose, delta, bytes]})),
        "beside transpose",
    );
}

#[test]
fn every_dtype_of_v3_is_known_by_its_name() {
    for dtype in DType::ALL {
        let own = match dtype {
            DType::Complex32 => "complex_float16",
            DType::BComplex32 => "complex_bfloat16",
            DType::Float4E2M1FnX2 => continue,
            d => d.name(),
        };
        let fill = if dtype.is_complex() {
            json!([0, 0])
        } else if *dtype == DType::Bool {
            json!(false)
        } else {
            json!(1)
        };
        let array = v3(json!({"data_type": own, "fill_value": fill})).unwrap();
        assert_eq!(array.dtype, *dtype);
    }
    for name in ["r16", "int3", "string", "float4_e2m1fn", "float8_e4m3"] {
        unknown(v3(json!({"data_type": name})), name);
    }
    let time = json!({"name": "numpy.datetime64"});
    unknown(v3(json!({"data_type": time})), "numpy.datetime64");
}

#[test]
fn floats_are_the_nearest_of_what_is_written() {
    for n in 1..1000 {
        let one = 1.1515326222734699 / f64::from(n);
        let fill: Value = serde_json::from_str(&format!("{one:?}")).unwrap();
        let array = v3(json!({"data_type": "float64", "fill_value": fill})).unwrap();
        assert_eq!(array.fill, one.to_le_bytes(), "{one:?}");
    }
}

#[test]
fn fill_values_become_the_bytes_of_an_element() {
    let f32s = |x: f32| x.to_le_bytes().to_vec();
    for (dtype, value, bytes) in [
        ("<f4", json!(1.5), f32s(1.5)),
        (">f4", json!(1.5), f32s(1.5)),
        ("<f4", json!("NaN"), f32s(f32::NAN)),
        ("<f4", json!("-Infinity"), f32s(f32::NEG_INFINITY)),
        ("<f2", json!("Infinity"), vec![0, 0x7c]),
        ("bfloat16", json!(1.5), vec![0xc0, 0x3f]),
        ("bfloat16", json!("wD8="), vec![0xc0, 0x3f]),
        ("float8_e4m3fn", json!(1), vec![0x38]),
        ("|b1", json!(true), vec![1]),
        ("|b1", json!(0), vec![0]),
        ("<i2", json!(-2), vec![0xfe, 0xff]),
        ("<i2", json!(7.0), vec![7, 0]),
        ("<u8", json!(u64::MAX), vec![0xff; 8]),
        ("<i8", json!(i64::MIN), i64::MIN.to_le_bytes().to_vec()),
        (
            "<c8",
            json!([1.0, "NaN"]),
            [f32s(1.0), f32s(f32::NAN)].concat(),
        ),
        ("<c8", json!(2), [f32s(2.0), f32s(0.0)].concat()),
    ] {
        let array = v2(json!({"dtype": dtype, "fill_value": value})).unwrap();
        assert_eq!(array.fill, bytes, "{dtype} {value}");
    }
    let odd = v3(json!({"fill_value": "0x7fc00001"})).unwrap();
    assert_eq!(odd.fill, 0x7fc0_0001_u32.to_le_bytes());
    for (dtype, value) in [
        ("<f4", json!("nan")),
        ("<f4", json!([])),
        ("<f4", json!("0x7fc0")),
        ("|u1", json!(256)),
        ("|u1", json!(-1)),
        ("<i4", json!(0.5)),
        ("<i4", json!(2_147_483_648u64)),
        ("|b1", json!(2)),
        ("<c8", json!([1])),
        ("bfloat16", json!("AAAA")),
    ] {
        damaged(
            v2(json!({"dtype": dtype, "fill_value": value})),
            "fill value",
        );
    }
}

fn crc32c(at_start: bool) -> Codec {
    let sum = Sum::Crc32c;
    Codec::Checksum { sum, at_start }
}

#[test]
fn orders_separators_and_compressors_of_v2_are_known() {
    let array = v2(json!({
        "order": "F", "dimension_separator": "/", "dtype": ">f4", "filters": [{"id": "crc32c", "location": "start"}],
        "compressor": {"id": "blosc", "cname": "lz4"},
    }))
    .unwrap();
    assert_eq!(array.keys.name(&[1, 0]), "1/0");
    assert_eq!(
        stored(&array),
        &Stored {
            big_endian: true,
            axes: Some(vec![1, 0]),
            codecs: vec![crc32c(true), Codec::Blosc],
        }
    );
    for id in ["gzip", "zlib", "zstd"] {
        let array = v2(json!({"compressor": {"id": id, "level": 1}})).unwrap();
        let names: Vec<&str> = stored(&array).codecs.iter().map(|c| c.name()).collect();
        assert_eq!(names, [id]);
    }
    unknown(v2(json!({"compressor": {"id": "lzma"}})), "lzma");
    unknown(v2(json!({"zarr_format": 1})), "version 1");
}

#[test]
fn what_no_program_writes_is_damage() {
    for (changes, name) in [
        (json!({"shape": "-"}), "shape"),
        (json!({"shape": [5, -1]}), "shape"),
        (json!({"shape": [5, 4, 3]}), "axes"),
        (
            json!({"shape": vec![1; 65], "chunks": vec![1; 65]}),
            "65 axes",
        ),
        (json!({"chunks": [0, 1]}), "no element"),
        (json!({"chunks": [1u64 << 40, 1u64 << 40]}), "63 bits"),
        (json!({"shape": [u64::MAX, u64::MAX]}), "63 bits"),
        (json!({"order": "K"}), "order"),
        (json!({"dimension_separator": "-/"}), "separator"),
        (json!({"filters": {}}), "filters"),
        (json!({"compressor": {}}), "id"),
        (json!({"zarr_format": "-"}), "zarr_format"),
    ] {
        damaged(v2(changes), name);
    }
    for text in ["", "[]", "{", "null", "{\"zarr_format\": NaN}"] {
        assert_eq!(
            parse_zarray(text.as_bytes()).unwrap_err().kind,
            ErrorKind::Corrupt
        );
    }
    let deep = "[".repeat(1 << 20);
    assert!(parse_zarr_json(deep.as_bytes()).is_err());
    let empty = v2(json!({"shape": [0, 4], "chunks": [0, 4]})).unwrap();
    assert_eq!(empty.chunk, Dims::from([1, 4]));
}

#[test]
fn a_shard_says_how_its_inner_chunks_and_its_index_are_stored() {
    let sharding = |changes: Value| {
        let mut settings = json!({
            "chunk_shape": [1, 3],
            "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "zstd", "configuration": {"level": 0}}],
            "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}],
        });
        change(&mut settings, changes);
        v3(json!({"codecs": [{"name": "sharding_indexed", "configuration": settings}]}))
    };
    let array = sharding(json!({})).unwrap();
    let Encoding::Sharded(found) = &array.encoding else {
        panic!("no shard")
    };
    assert_eq!(
        (&found.inner, found.index_crc, found.index_at_start),
        (&Dims::from([1, 3]), true, false)
    );
    assert_eq!(found.within.stored().codecs, [Codec::Zstd]);
    let start = sharding(json!({"index_location": "start", "index_codecs": [{"name": "bytes", "configuration": {"endian": "big"}}]})).unwrap();
    let Encoding::Sharded(found) = start.encoding else {
        panic!("no shard")
    };
    assert!(found.index_at_start && found.index_big_endian && !found.index_crc);

    damaged(sharding(json!({"chunk_shape": [2, 2]})), "do not divide");
    damaged(sharding(json!({"chunk_shape": [0, 3]})), "do not divide");
    damaged(
        sharding(json!({"index_location": "middle"})),
        "index_location",
    );
    unknown(
        sharding(
            json!({"index_codecs": [{"name": "bytes", "configuration": {"endian": "big"}}, {"name": "gzip"}]}),
        ),
        "gzip of an index",
    );
    let little = json!({"name": "bytes", "configuration": {"endian": "little"}});
    let around = |codecs: Value| v3(json!({"codecs": codecs}));
    let shard = |shape: [u64; 2], codecs: Value| json!({"name": "sharding_indexed", "configuration": {"chunk_shape": shape, "codecs": codecs, "index_codecs": [little]}});
    let transpose = json!({"name": "transpose", "configuration": {"order": [1, 0]}});
    // The chunk of 2 by 3 is turned, cut into columns, and these are turned back.
    let within = shard([1, 2], json!([transpose, shard([1, 1], json!([little]))]));
    let array = around(json!([transpose, within])).unwrap();
    let Encoding::Sharded(turned) = &array.encoding else {
        panic!("no shard")
    };
    assert_eq!(
        (&turned.inner, &turned.axes),
        (&Dims::from([2, 1]), &Some(vec![1, 0]))
    );
    let Encoding::Sharded(inner) = &*turned.within else {
        panic!("no shard within")
    };
    assert_eq!((&inner.inner, &inner.axes), (&Dims::from([1, 1]), &None));
    assert_eq!(array.cell(), &Dims::from([1, 1]));

    let one = shard([1, 3], json!([little]));
    unknown(
        around(json!([one, "crc32c"])),
        "crc32c around sharding_indexed",
    );
    unknown(
        around(json!([{"name": "numcodecs.delta"}, one])),
        "delta before sharding_indexed",
    );
    damaged(
        around(json!([shard(
            [1, 3],
            json!([shard([1, 2], json!([little]))])
        )])),
        "do not divide",
    );
    let deep = (0..9).fold(json!([little]), |codecs, _| json!([shard([1, 3], codecs)]));
    unknown(around(deep), "on more than 8 levels");
}

#[test]
fn codecs_of_v3_have_to_stand_in_their_order() {
    let bytes = json!({"name": "bytes", "configuration": {"endian": "little"}});
    let transpose = |order: Value| json!({"name": "transpose", "configuration": {"order": order}});
    let one = v3(json!({"codecs": [transpose(json!([1, 0])), bytes, {"name": "crc32c"}]})).unwrap();
    assert_eq!(stored(&one).axes, Some(vec![1, 0]));
    assert_eq!(stored(&one).codecs, [crc32c(false)]);
    let back =
        v3(json!({"codecs": [transpose(json!([1, 0])), transpose(json!("F")), bytes]})).unwrap();
    assert_eq!(stored(&back).axes, None);
    let python =
        v3(json!({"codecs": [bytes, {"name": "numcodecs.zlib", "configuration": {"level": 1}}]}))
            .unwrap();
    assert_eq!(stored(&python).codecs, [Codec::Zlib]);

    damaged(
        v3(json!({"codecs": [transpose(json!([1, 1])), bytes]})),
        "transpose",
    );
    damaged(
        v3(json!({"codecs": [transpose(json!([0])), bytes]})),
        "transpose",
    );
    damaged(v3(json!({"codecs": [bytes, bytes]})), "behind bytes");
    damaged(
        v3(json!({"codecs": [{"name": "gzip"}, bytes]})),
        "before bytes",
    );
    damaged(v3(json!({"codecs": []})), "no codec");
    damaged(v3(json!({"codecs": [{"name": "bytes"}]})), "ordered");
    unknown(v3(json!({"codecs": [bytes, {"name": "zfp"}]})), "zfp");
    unknown(v3(json!({"codecs": [{"name": "vlen-utf8"}]})), "vlen-utf8");
}

#[test]
fn extensions_that_need_not_be_understood_are_passed_over() {
    let may = json!({"name": "new", "must_understand": false});
    assert!(
        v3(json!({"new": may, "storage_transformers": [], "dimension_names": ["a", null]})).is_ok()
    );
    unknown(v3(json!({"new": {"name": "new"}})), "\"new\"");
    unknown(
        v3(json!({"storage_transformers": [{"name": "x"}]})),
        "storage_transformers",
    );
    unknown(
        v3(json!({"chunk_grid": {"name": "rectilinear"}})),
        "rectilinear",
    );
    unknown(
        v3(json!({"chunk_key_encoding": {"name": "fanout"}})),
        "fanout",
    );
    let dots = json!({"name": "default", "configuration": {"separator": "."}});
    assert_eq!(
        v3(json!({"chunk_key_encoding": dots}))
            .unwrap()
            .keys
            .name(&[1, 0]),
        "c.1.0"
    );
    assert_eq!(
        v3(json!({"chunk_key_encoding": "v2"}))
            .unwrap()
            .keys
            .name(&[1, 0]),
        "1.0"
    );
}

#[test]
fn attributes_and_names_of_axes_that_are_none_are_damage() {
    damaged(v3(json!({"attributes": 5})), "attributes are 5");
    damaged(v3(json!({"dimension_names": "xy"})), "\"xy\"");
    damaged(v3(json!({"dimension_names": ["x", 1]})), "nulls");
    damaged(v3(json!({"dimension_names": ["x"]})), "2 axes");
    assert!(v3(json!({"attributes": null, "dimension_names": null})).is_ok());
    let group = br#"{"zarr_format": 3, "node_type": "group", "attributes": []}"#;
    let fault = parse_zarr_json(group).unwrap_err();
    assert!(fault.what.contains("attributes are []"), "{fault:?}");
    let text = br#"{"metadata": {"a/.zattrs": 7, ".zattrs": {"x": 1}, "a.zattrs": 7}}"#;
    let found = parse_zmetadata(text).unwrap();
    assert!(
        matches!(&found[..], [(path, Node::Array(a))] if path == "a/.zattrs" && a.is_err()),
        "{found:?}"
    );
}

#[test]
fn consolidated_metadata_give_the_nodes_of_a_group() {
    let array = json!({"zarr_format": 2, "shape": [1], "chunks": [1], "dtype": "<f4"});
    let text = json!({"zarr_consolidated_format": 1, "metadata": {
        ".zgroup": {"zarr_format": 2}, "a/.zarray": array, "a/.zattrs": {}, "b/c/.zarray": {"zarr_format": 2}, ".zarray": array,
        "x.zarray": array,
    }});
    let found = parse_zmetadata(text.to_string().as_bytes()).unwrap();
    let paths: Vec<(&str, bool)> = found
        .iter()
        .map(|(path, node)| {
            (
                path.as_str(),
                matches!(node, Node::Array(array) if array.is_ok()),
            )
        })
        .collect();
    assert_eq!(paths, [("a", true), ("b/c", false), ("", true)]);

    let text = json!({"zarr_format": 3, "node_type": "group", "attributes": {"x": 1}, "consolidated_metadata": {
        "kind": "inline", "must_understand": false, "metadata": {
            "g": {"zarr_format": 3, "node_type": "group"}, "g/a": {"zarr_format": 3, "node_type": "array"}, "b": 1,
    }}});
    let Node::Group(nodes) = parse_zarr_json(text.to_string().as_bytes()).unwrap() else {
        panic!("an array")
    };
    assert_eq!(nodes.len(), 3);
    assert!(matches!(&nodes[0], (path, Node::Group(_)) if path == "g"));
    assert!(matches!(&nodes[2], (path, Node::Array(a)) if path == "b" && a.is_err()));
}

fn json_value() -> impl Strategy<Value = Value> {
    let texts = prop::sample::select(vec![
        "C",
        "F",
        "<f4",
        ">i2",
        "bfloat16",
        "NaN",
        "0xff",
        "AAA=",
        "regular",
        "default",
        "v2",
        "/",
        ".",
        "bytes",
        "little",
        "big",
        "transpose",
        "sharding_indexed",
        "crc32c",
        "gzip",
        "end",
        "inline",
        "array",
        "group",
        "float32",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        (0u64..4).prop_map(Value::from),
        texts.clone().prop_map(Value::from),
        ".{0,6}".prop_map(Value::from),
    ];
    let names = prop::sample::select(vec![
        "name",
        "configuration",
        "id",
        "chunk_shape",
        "codecs",
        "index_codecs",
        "order",
        "endian",
        "metadata",
        "kind",
        "separator",
        "a/.zarray",
        "must_understand",
        "zarr_format",
        "node_type",
    ]);
    leaf.prop_recursive(4, 40, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((names.clone(), inner), 0..5)
                .prop_map(|fields| fields.into_iter().map(|(k, v)| (k.to_owned(), v)).collect()),
        ]
    })
}

proptest! {
    #![proptest_config(reshard_model::testkit::law(256))]
    #[test]
    fn no_text_makes_a_parser_panic(text in prop::collection::vec(any::<u8>(), 0..60)) {
        drop((parse_zarray(&text), parse_zmetadata(&text), parse_zarr_json(&text)));
    }

    #[test]
    fn no_field_makes_a_parser_panic_and_what_is_parsed_is_sound(
        v2_field in prop::sample::select(vec!["shape", "chunks", "dtype", "compressor", "fill_value", "order", "filters", "dimension_separator"]),
        v3_field in prop::sample::select(vec!["shape", "data_type", "chunk_grid", "chunk_key_encoding", "fill_value", "codecs", "attributes", "zarr_format", "node_type", "consolidated_metadata"]),
        value in json_value(),
    ) {
        let mut changes = serde_json::Map::new();
        changes.insert(v2_field.into(), value.clone());
        let two = v2(Value::Object(changes));
        let mut of = json!({"zarr_format": 3, "node_type": "group"});
        change(&mut of, json!({v3_field: value}));
        drop(parse_zarr_json(of.to_string().as_bytes()));
        let mut changes = serde_json::Map::new();
        changes.insert(v3_field.into(), value);
        let three = if v3_field == "node_type" { Err(Refused::damaged("")) } else { v3(Value::Object(changes)) };
        for array in [two, three].into_iter().flatten() {
            prop_assert_eq!(array.fill.len() as u64, array.dtype.size());
            prop_assert_eq!(array.shape.len(), array.chunk.len());
            prop_assert!(array.chunk.iter().all(|n| *n > 0) && array.cell_bytes() < 1 << 63);
            if let Encoding::Chunk(stored) = &array.encoding {
                prop_assert!(stored.layout(array.dtype, &array.chunk).is_some_and(|l| l.is_injective()));
            }
        }
    }

    #[test]
    fn the_name_of_a_chunk_says_where_it_is(
        cell in prop::collection::vec(prop_oneof![0u64..12, any::<u64>()], 0..5), prefixed: bool, slash: bool, other in "[c0-9./+]{0,6}",
    ) {
        let keys = ChunkKeys { prefixed, separator: if slash { '/' } else { '.' } };
        let name = keys.name(&cell);
        prop_assert_eq!(keys.cell(&name, cell.len()), Some(Dims::from(&cell[..])));
        if let Some(found) = keys.cell(&other, cell.len()) {
            prop_assert_eq!(keys.name(&found), other);
        }
    }
}
