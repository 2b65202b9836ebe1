//! Numbers of rules: integers, or expressions over parameters.

use std::{collections::BTreeMap, fmt};

/// How deep parentheses may be nested.
const DEEPEST: usize = 32;

/// The longest expression, in bytes.
const MAX_TEXT: usize = 1024;

/// Numbers, names, `+ - * /` and parentheses. Division must leave nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Number {
    text: String,
    /// In postfix order.
    ops: Vec<Op>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Op {
    Number(u64),
    Name(String),
    Apply(char),
}

impl Number {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        if text.len() > MAX_TEXT {
            return Err(format!(
                "an expression has {} bytes, and at most {MAX_TEXT} are allowed",
                text.len()
            ));
        }
        let mut parser = Parser {
            text,
            rest: text,
            ops: Vec::new(),
        };
        parser.sum(0)?;
        match parser.peek() {
            None => Ok(Self {
                text: text.into(),
                ops: parser.ops,
            }),
            Some(c) => Err(parser.fault(&format!("`{c}` is not expected there"))),
        }
    }

    /// Its value.
    pub(crate) fn of(&self, names: &BTreeMap<String, u64>) -> Result<u64, String> {
        let mut stack: Vec<u64> = Vec::new();
        for op in &self.ops {
            let value = match op {
                Op::Number(n) => Some(*n),
                Op::Name(name) => {
                    let value = names.get(name).copied();
                    Some(value.ok_or_else(|| format!("`{self}` needs the parameter `{name}`"))?)
                }
                Op::Apply(op) => match (stack.pop(), stack.pop()) {
                    (Some(b), Some(a)) => apply(*op, a, b),
                    _ => None,
                },
            };
            stack.push(value.ok_or_else(|| {
                format!("`{self}` has no value: it is negative, too large, or a division that leaves a rest")
            })?);
        }
        stack.pop().ok_or_else(|| format!("`{self}` is empty"))
    }

    /// The parameters that it names.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.ops.iter().filter_map(|op| match op {
            Op::Name(name) => Some(&**name),
            _ => None,
        })
    }
}

fn apply(op: char, a: u64, b: u64) -> Option<u64> {
    match op {
        '+' => a.checked_add(b),
        '-' => a.checked_sub(b),
        '*' => a.checked_mul(b),
        _ => (b > 0 && a.is_multiple_of(b)).then(|| a / b),
    }
}

impl From<u64> for Number {
    fn from(n: u64) -> Self {
        Self {
            text: n.to_string(),
            ops: vec![Op::Number(n)],
        }
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

struct Parser<'a> {
    text: &'a str,
    rest: &'a str,
    ops: Vec<Op>,
}

impl<'a> Parser<'a> {
    fn fault(&self, what: &str) -> String {
        format!("`{}` is no number: {what}", self.text)
    }

    fn peek(&mut self) -> Option<char> {
        self.rest = self.rest.trim_start();
        self.rest.chars().next()
    }

    fn take_while(&mut self, is: impl Fn(char) -> bool) -> &'a str {
        let end = self.rest.find(|c| !is(c)).unwrap_or(self.rest.len());
        let (taken, rest) = self.rest.split_at(end);
        self.rest = rest;
        taken
    }

    fn sum(&mut self, depth: usize) -> Result<(), String> {
        self.product(depth)?;
        while let Some(op @ ('+' | '-')) = self.peek() {
            self.rest = &self.rest[1..];
            self.product(depth)?;
            self.ops.push(Op::Apply(op));
        }
        Ok(())
    }

    fn product(&mut self, depth: usize) -> Result<(), String> {
        self.atom(depth)?;
        while let Some(op @ ('*' | '/')) = self.peek() {
            self.rest = &self.rest[1..];
            self.atom(depth)?;
            self.ops.push(Op::Apply(op));
        }
        Ok(())
    }

    fn atom(&mut self, depth: usize) -> Result<(), String> {
        match self.peek() {
            Some('(') if depth < DEEPEST => {
                self.rest = &self.rest[1..];
                self.sum(depth + 1)?;
                if self.peek() != Some(')') {
                    return Err(self.fault("a `)` is missing"));
                }
                self.rest = &self.rest[1..];
                Ok(())
            }
            Some('(') => Err(self.fault("the parentheses are nested too deep")),
            Some(c) if c.is_ascii_digit() => {
                let digits = self.take_while(|c| c.is_ascii_digit());
                let n = digits
                    .parse()
                    .map_err(|_| self.fault(&format!("{digits} is too large")))?;
                self.ops.push(Op::Number(n));
                Ok(())
            }
            Some(c) if c.is_ascii_alphabetic() || c == '_' => {
                let name = self.take_while(|c| c.is_ascii_alphanumeric() || c == '_');
                self.ops.push(Op::Name(name.into()));
                Ok(())
            }
            Some(c) => Err(self.fault(&format!("`{c}` is not expected there"))),
            None => Err(self.fault("it ends too early")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn value(text: &str) -> Result<u64, String> {
        let names = [("heads", 8), ("groups", 2), ("dim", 3)];
        Number::parse(text)?.of(&names.into_iter().map(|(n, v)| (n.to_owned(), v)).collect())
    }

    #[test]
    fn operators_bind_as_in_arithmetic() {
        assert_eq!(value("heads / groups * dim"), Ok(12));
        assert_eq!(value("1+2*(heads-dim)"), Ok(11));
        assert_eq!(value(" 7 "), Ok(7));
        assert_eq!(value("10 - 3 - 2"), Ok(5));
    }

    #[test]
    fn what_has_no_value_is_refused() {
        for bad in [
            "",
            "heads /",
            "(1",
            "1)",
            "heads / dim",
            "dim - heads",
            "1/0",
            "what",
            "1 2",
            "99999999999999999999",
            "9999999999 * 9999999999",
            "é",
        ] {
            assert!(value(bad).is_err(), "{bad}");
        }
        assert!(value(&"(".repeat(100_000)).is_err());
    }

    proptest! {
        #![proptest_config(reshard_model::testkit::law(256))]
        #[test]
        fn no_text_makes_it_panic(text in "[a-c0-9+*/() -]{0,24}|.{0,12}") {
            drop(value(&text));
        }
    }
}
