//! Python's `repr`, matched rather than made, because sets have no order.

use super::{args, big, float, numpy};
use crate::sha256;
use reshard::{
    Value,
    model::{Construct, Opaque},
};

/// Why a value can't be compared with its `repr`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cannot {
    /// The class whose `repr` is not known here.
    pub class: String,
}

/// Whether `text` is what Python's `repr` says of a value. Tensors are written as the fixtures write them:
/// `tensor(dtype=float32, shape=(2,), sha256=…)`.
///
/// # Errors
/// [`Cannot`] when an object of a class in it has a `repr` that is not known here.
pub fn says(text: &str, value: &Value) -> Result<bool, Cannot> {
    let mut cursor = Cursor { rest: text };
    Ok(cursor.value(value)? && cursor.rest.is_empty())
}

type Matched = Result<bool, Cannot>;

struct Cursor<'t> {
    rest: &'t str,
}

impl Cursor<'_> {
    fn lit(&mut self, text: &str) -> bool {
        match self.rest.strip_prefix(text) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn value(&mut self, v: &Value) -> Matched {
        Ok(match v {
            Value::None => self.lit("None"),
            Value::Bool(true) => self.lit("True"),
            Value::Bool(false) => self.lit("False"),
            Value::Int(v) => self.lit(&v.to_string()),
            Value::BigInt(le) => self.lit(&big(le)),
            Value::Float(v) => self.lit(&float(*v)),
            Value::Str(s) => self.lit(&text(s)),
            Value::Bytes(b) => self.lit(&bytes(b)),
            Value::List(v) => self.all("[", v, "]")?,
            Value::Tuple(v) if v.len() == 1 => self.all("(", v, ",)")?,
            Value::Tuple(v) => self.all("(", v, ")")?,
            Value::Set(v) if v.is_empty() => self.lit("set()"),
            Value::Set(v) => self.set(v)?,
            Value::Dict(v) => self.pairs("{", ": ", v, "", "}")?,
            Value::Tensor(t) => {
                let shape = Value::Tuple(t.shape().iter().map(|&n| Value::Int(n as i64)).collect());
                self.lit(&format!("tensor(dtype={}, shape=", t.dtype()))
                    && self.value(&shape)?
                    && self.lit(&format!(", sha256={})", sha256(t.blocks(1 << 20))))
            }
            Value::Opaque(o) => self.object(o)?,
            other => {
                return Err(Cannot {
                    class: other.type_name(),
                });
            }
        })
    }

    fn all(&mut self, open: &str, v: &[Value], close: &str) -> Matched {
        if !self.lit(open) {
            return Ok(false);
        }
        for (i, v) in v.iter().enumerate() {
            if (i > 0 && !self.lit(", ")) || !self.value(v)? {
                return Ok(false);
            }
        }
        Ok(self.lit(close))
    }

    fn pairs(
        &mut self,
        open: &str,
        colon: &str,
        v: &[(Value, Value)],
        end: &str,
        close: &str,
    ) -> Matched {
        if !self.lit(open) {
            return Ok(false);
        }
        for (i, (key, value)) in v.iter().enumerate() {
            let key = (i == 0 || self.lit(", "))
                && (end.is_empty() || self.lit("("))
                && self.value(key)?;
            if !key || !self.lit(colon) || !self.value(value)? || !self.lit(end) {
                return Ok(false);
            }
        }
        Ok(self.lit(close))
    }

    /// `{…}`, with the elements in any order.
    fn set(&mut self, v: &[Value]) -> Matched {
        let mut left: Vec<&Value> = v.iter().collect();
        if !self.lit("{") {
            return Ok(false);
        }
        while !left.is_empty() {
            let mut found = None;
            for (i, v) in left.iter().enumerate() {
                let mut ahead = Cursor { rest: self.rest };
                let next = if left.len() == 1 { "}" } else { ", " };
                if ahead.value(v)? && ahead.lit(next) {
                    found = Some((i, ahead.rest));
                    break;
                }
            }
            let Some((i, rest)) = found else {
                return Ok(false);
            };
            self.rest = rest;
            left.remove(i);
        }
        Ok(true)
    }

    fn object(&mut self, o: &Opaque) -> Matched {
        let a = args(o);
        let unknown = || Cannot { class: o.class() };
        let global = o.construct == Construct::Global;
        Ok(match (&*o.module, &*o.name) {
            ("builtins", "complex") => self.lit(&complex(a).ok_or_else(unknown)?),
            ("builtins", "bytearray") => self.all("bytearray(", a, ")")?,
            ("builtins", "frozenset") => match a {
                [] => self.lit("frozenset()"),
                [Value::List(v)] if v.is_empty() => self.lit("frozenset()"),
                [Value::List(v)] => self.lit("frozenset(") && self.set(v)? && self.lit(")"),
                _ => return Err(unknown()),
            },
            ("builtins", name @ ("range" | "slice")) => self.all(&format!("{name}("), a, ")")?,
            ("builtins", name) if global => {
                self.lit(&format!("<class '{name}'>"))
                    || self.lit(&format!("<built-in function {name}>"))
            }
            ("argparse", "Namespace") => match &o.state {
                Some(Value::Dict(d)) => self.namespace(d)?,
                _ => return Err(unknown()),
            },
            ("torch", "Size") => match a {
                [Value::Tuple(v) | Value::List(v)] => self.all("torch.Size([", v, "])")?,
                _ => return Err(unknown()),
            },
            ("torch", "device") => match a {
                [kind] => self.lit("device(type=") && self.value(kind)? && self.lit(")"),
                [kind, index] => {
                    self.lit("device(type=")
                        && self.value(kind)?
                        && self.lit(", index=")
                        && self.value(index)?
                        && self.lit(")")
                }
                _ => return Err(unknown()),
            },
            ("torch.serialization", "_get_layout") => {
                self.lit(a.first().and_then(Value::as_str).ok_or_else(unknown)?)
            }
            ("torch", name) if global => self.lit(&format!("torch.{name}")),
            ("collections", "deque") => match a {
                [_, max] => {
                    self.all("deque([", &o.items, "], maxlen=")?
                        && self.value(max)?
                        && self.lit(")")
                }
                _ => self.all("deque([", &o.items, "])")?,
            },
            ("collections", "Counter") => match a {
                [Value::Dict(d)] if d.is_empty() => self.lit("Counter()"),
                [Value::Dict(d)] => self.pairs("Counter({", ": ", d, "", "})")?,
                _ => return Err(unknown()),
            },
            ("collections", "OrderedDict") => {
                if o.pairs.is_empty() {
                    return Ok(self.lit("OrderedDict()"));
                }
                // Python 3.12 writes a dict, those before a list of pairs.
                let before = self.rest;
                let new = self.pairs("OrderedDict({", ": ", &o.pairs, "", "})")?;
                if !new {
                    self.rest = before;
                }
                new || self.pairs("OrderedDict([", ", ", &o.pairs, ")", "])")?
            }
            ("decimal", "Decimal") => self.all("Decimal(", a, ")")?,
            ("fractions", "Fraction") => {
                let text: Option<Vec<String>> = match a {
                    [Value::Str(s)] => Some(s.split('/').map(Into::into).collect()),
                    all => all.iter().map(|v| Some(v.as_int()?.to_string())).collect(),
                };
                self.lit(&format!(
                    "Fraction({})",
                    text.ok_or_else(unknown)?.join(", ")
                ))
            }
            ("pathlib" | "pathlib._local", name) => {
                let parts: Option<Vec<&str>> = a.iter().map(Value::as_str).collect();
                let path = parts.ok_or_else(unknown)?.join("/").replacen("//", "/", 1);
                self.lit(&format!("{name}({})", text(&path)))
            }
            ("uuid", "UUID") => self.lit(&uuid(o).ok_or_else(unknown)?),
            ("datetime", "datetime") => self.lit(&datetime(a).ok_or_else(unknown)?),
            (module, "_reconstruct") if module.starts_with("numpy.") => {
                self.array(&numpy::Array::of(o).ok_or_else(unknown)?)
            }
            (module, "scalar") if module.starts_with("numpy.") => {
                let (dtype, text) = numpy::scalar(o).ok_or_else(unknown)?;
                let text = if text.ends_with('.') {
                    text + "0"
                } else {
                    text
                };
                self.lit(&format!("np.{dtype}({text})")) || self.lit(&text)
            }
            _ => return Err(unknown()),
        })
    }

    fn namespace(&mut self, fields: &[(Value, Value)]) -> Matched {
        if !self.lit("Namespace(") {
            return Ok(false);
        }
        for (i, (name, value)) in fields.iter().enumerate() {
            let name = format!(
                "{}{}=",
                if i > 0 { ", " } else { "" },
                name.as_str().unwrap_or_default()
            );
            if !self.lit(&name) || !self.value(value)? {
                return Ok(false);
            }
        }
        Ok(self.lit(")"))
    }

    /// White space in arrays is for the eye.
    fn loose(&mut self, text: &str) -> bool {
        self.rest = self.rest.trim_start();
        self.lit(text)
    }

    fn array(&mut self, a: &numpy::Array) -> bool {
        let usual = matches!(a.dtype, "float64" | "int64" | "bool") && !a.elements.is_empty();
        self.lit("array(")
            && self.nested(&a.shape, &a.elements)
            && (usual || self.loose(",") && self.loose(&format!("dtype={}", a.dtype)))
            && self.loose(")")
    }

    fn nested(&mut self, shape: &[usize], elements: &[String]) -> bool {
        let [extent, inner @ ..] = shape else {
            return self.loose(&elements[0]);
        };
        if elements.is_empty() {
            return self.loose("[]");
        }
        let step = elements.len() / extent;
        let mut ok = self.loose("[");
        for (i, part) in elements.chunks(step).enumerate() {
            ok = ok && (i == 0 || self.loose(",")) && self.nested(inner, part);
        }
        ok && self.loose("]")
    }
}

fn complex(a: &[Value]) -> Option<String> {
    let [re, im] = a else { return None };
    let part = |v: f64| float(v).trim_end_matches(".0").to_owned();
    let (re, im) = (re.as_float()?, im.as_float()?);
    if re == 0.0 && re.is_sign_positive() {
        return Some(format!("{}j", part(im)));
    }
    let sign = if im.is_sign_negative() && !im.is_nan() {
        ""
    } else {
        "+"
    };
    Some(format!("({}{sign}{}j)", part(re), part(im)))
}

fn uuid(o: &Opaque) -> Option<String> {
    let mut bytes = [0u8; 16];
    match o.state.as_ref()?.get("int")? {
        Value::Int(i) => bytes[8..].copy_from_slice(&i.to_be_bytes()),
        Value::BigInt(le) => le
            .iter()
            .take(16)
            .enumerate()
            .for_each(|(i, b)| bytes[15 - i] = *b),
        _ => return None,
    }
    let hex = |part: &[u8]| part.iter().map(|b| format!("{b:02x}")).collect::<String>();
    let [a, b, c, d, e] = [0..4, 4..6, 6..8, 8..10, 10..16].map(|r| hex(&bytes[r]));
    Some(format!("UUID('{a}-{b}-{c}-{d}-{e}')"))
}

fn datetime(a: &[Value]) -> Option<String> {
    let [Value::Bytes(b)] = a else { return None };
    let [high, low, month, day, hour, minute, second, m0, m1, m2] = **b else {
        return None;
    };
    let year = u32::from(high) * 256 + u32::from(low);
    let micros = u32::from(m0) << 16 | u32::from(m1) << 8 | u32::from(m2);
    let mut text = format!("datetime.datetime({year}, {month}, {day}, {hour}, {minute}");
    if second > 0 || micros > 0 {
        text += &format!(", {second}");
    }
    if micros > 0 {
        text += &format!(", {micros}");
    }
    Some(text + ")")
}

fn quote(single: bool, double: bool) -> char {
    if single && !double { '"' } else { '\'' }
}

fn text(s: &str) -> String {
    let quote = quote(s.contains('\''), s.contains('"'));
    let mut out = String::from(quote);
    for c in s.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            '\\' => out.push_str("\\\\"),
            c if c == quote => out.extend(['\\', c]),
            ' ' => out.push(' '),
            c if c.is_control() || c.is_whitespace() || c == '\u{ad}' => match u32::from(c) {
                n @ ..0x100 => out.push_str(&format!("\\x{n:02x}")),
                n => out.push_str(&format!("\\u{n:04x}")),
            },
            c => out.push(c),
        }
    }
    out.push(quote);
    out
}

fn bytes(b: &[u8]) -> String {
    let quote = quote(b.contains(&b'\''), b.contains(&b'"'));
    let mut out = format!("b{quote}");
    for &c in b {
        match c {
            b'\n' => out.push_str("\\n"),
            b'\t' => out.push_str("\\t"),
            b'\r' => out.push_str("\\r"),
            b'\\' => out.push_str("\\\\"),
            c if char::from(c) == quote => out.extend(['\\', quote]),
            32..127 => out.push(char::from(c)),
            c => out.push_str(&format!("\\x{c:02x}")),
        }
    }
    out.push(quote);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_are_matched_with_their_elements() {
        let v = Value::Tuple(vec![Value::List(vec![Value::Int(1), "it's".into()])]);
        assert_eq!(says("([1, \"it's\"],)", &v), Ok(true));
        assert_eq!(says("([1, \"it's\"],) ", &v), Ok(false));
        assert_eq!(says("([2, \"it's\"],)", &v), Ok(false));
        let d = Value::Dict(vec![("a".into(), Value::None), (Value::Int(2), 0.5.into())]);
        assert_eq!(says("{'a': None, 2: 0.5}", &d), Ok(true));
        assert_eq!(says("{'a': None}", &d), Ok(false));
    }

    #[test]
    fn the_order_of_a_set_does_not_matter() {
        let v = Value::Set(vec![Value::Int(1), Value::Int(12), "a".into()]);
        assert_eq!(says("{12, 1, 'a'}", &v), Ok(true));
        assert_eq!(says("{'a', 12, 1}", &v), Ok(true));
        assert_eq!(says("{'a', 12, 2}", &v), Ok(false));
        assert_eq!(says("{'a', 12}", &v), Ok(false));
    }
}
