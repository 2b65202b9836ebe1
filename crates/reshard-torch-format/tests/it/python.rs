//! Shows values as Python would, to compare them with what Python said of them.

use reshard_model::{Construct, Opaque, Value};
use serde_json::{Value as Json, json};
use sha2::{Digest, Sha256};

pub(crate) fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect()
}

fn join(items: &[Value]) -> String {
    items.iter().map(repr).collect::<Vec<_>>().join(", ")
}

fn join_pairs(pairs: &[(Value, Value)], sep: &str) -> String {
    pairs
        .iter()
        .map(|(k, v)| format!("{}{sep}{}", repr(k), repr(v)))
        .collect::<Vec<_>>()
        .join(", ")
}

fn args(o: &Opaque) -> &[Value] {
    match &o.construct {
        Construct::Reduce(a) | Construct::NewObj(a) | Construct::NewObjEx(a, _) => a,
        _ => &[],
    }
}

fn tuple(items: &[Value]) -> String {
    if items.len() == 1 {
        format!("({},)", repr(&items[0]))
    } else {
        format!("({})", join(items))
    }
}

pub(crate) fn float(v: f64) -> String {
    if v.is_nan() {
        return "nan".into();
    }
    if v.is_infinite() {
        return if v > 0.0 { "inf" } else { "-inf" }.into();
    }
    let text = format!("{v:e}");
    let (digits, exp) = text.split_once('e').unwrap();
    let exp: i32 = exp.parse().unwrap();
    if (-4..16).contains(&exp) {
        return format!("{v:?}").replace("e0", "");
    }
    format!(
        "{digits}e{}{:02}",
        if exp < 0 { '-' } else { '+' },
        exp.abs()
    )
}

fn big(le: &[u8]) -> String {
    let negative = le.last().is_some_and(|b| b & 0x80 != 0);
    let mut digits: Vec<u8> = Vec::new();
    let mut carry = true;
    let magnitude: Vec<u8> = le
        .iter()
        .map(|&b| {
            if !negative {
                return b;
            }
            let (v, c) = (!b).overflowing_add(u8::from(carry));
            carry = c;
            v
        })
        .collect();
    for &b in magnitude.iter().rev() {
        let mut carry = u32::from(b);
        for d in &mut digits {
            carry += u32::from(*d) * 256;
            *d = (carry % 10) as u8;
            carry /= 10;
        }
        while carry > 0 {
            digits.push((carry % 10) as u8);
            carry /= 10;
        }
    }
    let text: String = digits.iter().rev().map(|d| char::from(b'0' + d)).collect();
    format!("{}{text}", if negative { "-" } else { "" })
}

fn text(s: &str) -> String {
    let quote = if s.contains('\'') && !s.contains('"') {
        '"'
    } else {
        '\''
    };
    let mut out = String::from(quote);
    for c in s.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            '\\' => out.push_str("\\\\"),
            c if c == quote => out.extend(['\\', c]),
            c if u32::from(c) < 32 || u32::from(c) == 127 => {
                out.push_str(&format!("\\x{:02x}", u32::from(c)))
            }
            c => out.push(c),
        }
    }
    out.push(quote);
    out
}

fn bytes(b: &[u8]) -> String {
    let quote = if b.contains(&b'\'') && !b.contains(&b'"') {
        b'"'
    } else {
        b'\''
    };
    let mut out = format!("b{}", char::from(quote));
    for &c in b {
        match c {
            b'\n' => out.push_str("\\n"),
            b'\t' => out.push_str("\\t"),
            b'\r' => out.push_str("\\r"),
            b'\\' => out.push_str("\\\\"),
            c if c == quote => out.extend(['\\', char::from(c)]),
            32..127 => out.push(char::from(c)),
            c => out.push_str(&format!("\\x{c:02x}")),
        }
    }
    out.push(char::from(quote));
    out
}

pub(crate) fn repr(v: &Value) -> String {
    match v {
        Value::None => "None".into(),
        Value::Bool(true) => "True".into(),
        Value::Bool(false) => "False".into(),
        Value::Int(v) => v.to_string(),
        Value::BigInt(le) => big(le),
        Value::Float(v) => float(*v),
        Value::Str(s) => text(s),
        Value::Bytes(b) => bytes(b),
        Value::List(v) => format!("[{}]", join(v)),
        Value::Tuple(v) => tuple(v),
        Value::Set(v) if v.is_empty() => "set()".into(),
        Value::Set(v) => format!("{{{}}}", join(v)),
        Value::Dict(v) => format!("{{{}}}", join_pairs(v, ": ")),
        Value::Tensor(t) => {
            let shape: Vec<Value> = t.shape().iter().map(|&d| Value::Int(d as i64)).collect();
            format!(
                "tensor(dtype={}, shape={}, sha256={})",
                t.dtype(),
                tuple(&shape),
                sha256(&t.to_bytes())
            )
        }
        Value::Opaque(o) => opaque(o),
        other => panic!("{other:?}"),
    }
}

fn opaque(o: &Opaque) -> String {
    let a = args(o);
    match (&*o.module, &*o.name) {
        ("builtins", "complex") => {
            let part = |v: &Value| {
                float(v.as_float().unwrap())
                    .trim_end_matches(".0")
                    .to_string()
            };
            format!("({}+{}j)", part(&a[0]), part(&a[1]))
        }
        ("builtins", "bytearray") => format!("bytearray({})", repr(&a[0])),
        ("builtins", "frozenset") => format!("frozenset({{{}}})", join(a[0].as_seq().unwrap())),
        ("builtins", name @ ("range" | "slice")) => format!("{name}({})", join(a)),
        ("builtins", "int") => "<class 'int'>".into(),
        ("builtins", "len") => "<built-in function len>".into(),
        ("argparse", "Namespace") => {
            let Some(Value::Dict(d)) = &o.state else {
                panic!("{o:?}")
            };
            let all: Vec<String> = d
                .iter()
                .map(|(k, v)| format!("{}={}", k.as_str().unwrap(), repr(v)))
                .collect();
            format!("Namespace({})", all.join(", "))
        }
        ("torch", "Size") => format!("torch.Size([{}])", join(a[0].as_seq().unwrap())),
        ("torch", "device") => format!("device(type={})", repr(&a[0])),
        ("torch.serialization", "_get_layout") => a[0].as_str().unwrap().into(),
        ("torch", name) if o.construct == Construct::Global => format!("torch.{name}"),
        ("collections", "deque") => format!("deque([{}], maxlen={})", join(&o.items), repr(&a[1])),
        ("collections", "Counter") => match &a[0] {
            Value::Dict(d) => format!("Counter({{{}}})", join_pairs(d, ": ")),
            other => panic!("{other:?}"),
        },
        ("collections", "OrderedDict") => {
            let all: Vec<String> = o
                .pairs
                .iter()
                .map(|(k, v)| format!("({}, {})", repr(k), repr(v)))
                .collect();
            format!("OrderedDict([{}])", all.join(", "))
        }
        ("decimal", "Decimal") | ("fractions", "Fraction") => format!("{}({})", o.name, join(a)),
        ("pathlib", name) => {
            let parts: Vec<&str> = a.iter().map(|p| p.as_str().unwrap()).collect();
            format!("{name}('{}')", parts.join("/").replacen("//", "/", 1))
        }
        ("uuid", "UUID") => {
            let int = o
                .state
                .as_ref()
                .unwrap()
                .get("int")
                .unwrap()
                .as_int()
                .unwrap();
            let hex = format!("{int:032x}");
            let part = |r: std::ops::Range<usize>| &hex[r];
            format!(
                "UUID('{}-{}-{}-{}-{}')",
                part(0..8),
                part(8..12),
                part(12..16),
                part(16..20),
                part(20..32)
            )
        }
        ("datetime", "datetime") => {
            let Value::Bytes(b) = &a[0] else {
                panic!("{a:?}")
            };
            let year = u32::from(b[0]) * 256 + u32::from(b[1]);
            let micros = u32::from(b[7]) << 16 | u32::from(b[8]) << 8 | u32::from(b[9]);
            format!(
                "datetime.datetime({year}, {}, {}, {}, {}, {}, {micros})",
                b[2], b[3], b[4], b[5], b[6]
            )
        }
        _ => format!(
            "<{} {:?} {:?} {:?}>",
            o.class(),
            o.construct,
            o.state,
            o.items
        ),
    }
}

/// The lossless form in the fixtures of Megatron, without the values of tensors.
pub(crate) fn typed(v: &Value) -> Json {
    let all = |v: &[Value]| v.iter().map(typed).collect::<Vec<_>>();
    let pairs = |v: &[(Value, Value)]| {
        v.iter()
            .map(|(k, v)| json!([typed(k), typed(v)]))
            .collect::<Vec<_>>()
    };
    match v {
        Value::None => json!({"t": "none"}),
        Value::Bool(v) => json!({"t": "bool", "v": v}),
        // What a float of JSON can't hold stands as text.
        Value::Int(v) if v.unsigned_abs() >= 1 << 53 => json!({"t": "int", "v": v.to_string()}),
        Value::Int(v) => json!({"t": "int", "v": v}),
        Value::BigInt(le) => json!({"t": "int", "v": big(le)}),
        Value::Float(v) => json!({"t": "float", "v": float(*v)}),
        Value::Str(v) => json!({"t": "str", "v": v}),
        Value::Bytes(v) => json!({"t": "bytes", "hex": hex(v)}),
        Value::List(v) => json!({"t": "list", "items": all(v)}),
        Value::Tuple(v) => json!({"t": "tuple", "items": all(v)}),
        Value::Set(v) => json!({"t": "set", "items": all(v)}),
        Value::Dict(v) => json!({"t": "dict", "items": pairs(v)}),
        Value::Tensor(t) => {
            json!({"t": "tensor", "dtype": format!("torch.{}", t.dtype()), "shape": t.shape().to_vec(),
            "requires_grad": false, "sha256": sha256(&t.to_bytes())})
        }
        Value::Opaque(o) => match (&*o.module, &*o.name) {
            ("builtins", "frozenset") => {
                json!({"t": "frozenset", "items": all(args(o)[0].as_seq().unwrap())})
            }
            ("collections", "OrderedDict") => json!({"t": "OrderedDict", "items": pairs(&o.pairs)}),
            ("_io", "BytesIO") => match o.state.as_ref().and_then(|s| s.as_seq()) {
                Some([Value::Bytes(b), ..]) => json!({"t": "BytesIO", "hex": hex(b)}),
                other => panic!("{other:?}"),
            },
            ("argparse", "Namespace") => {
                let Some(Value::Dict(d)) = &o.state else {
                    panic!("{o:?}")
                };
                let all: Vec<Json> = d
                    .iter()
                    .map(|(k, v)| json!([k.as_str().unwrap(), typed(v)]))
                    .collect();
                json!({"t": "argparse.Namespace", "items": all})
            }
            ("torch", name) if o.construct == Construct::Global => {
                json!({"t": "torch.dtype", "v": format!("torch.{name}")})
            }
            (module, "_reconstruct") if module.starts_with("numpy") => array(o),
            _ => json!({"t": o.class()}),
        },
        other => panic!("{other:?}"),
    }
}

/// An array of numpy in C order.
fn array(o: &Opaque) -> Json {
    let Some([_, shape, dtype, fortran, Value::Bytes(data)]) =
        o.state.as_ref().and_then(|s| s.as_seq())
    else {
        panic!("{o:?}")
    };
    assert_eq!(*fortran, Value::Bool(false));
    let Value::Opaque(dtype) = dtype else {
        panic!("{o:?}")
    };
    let shape: Vec<usize> = shape
        .as_seq()
        .unwrap()
        .iter()
        .map(|v| v.as_int().unwrap() as usize)
        .collect();
    let (name, mut v): (_, Vec<Json>) = match args(dtype)[0].as_str().unwrap() {
        "f8" => (
            "float64",
            data.as_chunks()
                .0
                .iter()
                .map(|c| json!(f64::from_le_bytes(*c)))
                .collect(),
        ),
        "u4" => (
            "uint32",
            data.as_chunks()
                .0
                .iter()
                .map(|c| json!(u32::from_le_bytes(*c)))
                .collect(),
        ),
        "i8" => (
            "int64",
            data.as_chunks()
                .0
                .iter()
                .map(|c| json!(i64::from_le_bytes(*c)))
                .collect(),
        ),
        other => panic!("{other}"),
    };
    for n in shape.iter().skip(1).rev() {
        v = v.chunks(*n).map(|c| json!(c)).collect();
    }
    json!({"t": "ndarray", "dtype": name, "shape": shape, "v": v})
}

fn hex(b: &[u8]) -> String {
    b.iter().map(|b| format!("{b:02x}")).collect()
}
