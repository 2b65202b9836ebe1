//! Patterns of keys, with captures.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// What captures matched, by name.
pub(crate) type Captures = BTreeMap<String, String>;

/// The number of captures that one pattern may have.
const MAX_CAPTURES: usize = 16;

/// A pattern of keys. It matches a key as a whole.
///
/// Text matches itself. `{name}` matches one or more characters other than a dot. `{name#}` matches a decimal number without
/// leading zeros. `{name*}` matches any characters, also none. The first capture matches as little as it can, then the next one.
/// `{{` and `}}` are braces.
///
/// ```
/// use reshard_map::Pattern;
/// let pattern: Pattern = "layers.{layer#}.{rest*}".parse().unwrap();
/// assert!(pattern.matches("layers.11.attention.weight"));
/// assert!(!pattern.matches("layers.first.weight"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Capture(String, Kind),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Characters other than dots.
    One,
    /// Digits.
    Number,
    /// Anything.
    Any,
}

impl std::str::FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut literal = String::new();
        let mut chars = text.chars().peekable();
        while let Some(c) = chars.next() {
            if matches!(c, '{' | '}') && chars.peek() == Some(&c) {
                chars.next();
                literal.push(c);
            } else if c == '}' {
                return Err(format!(
                    "`{text}` has a `}}` without `{{`; a brace is `}}}}`"
                ));
            } else if c == '{' {
                let inner: String = chars.by_ref().take_while(|c| *c != '}').collect();
                if !literal.is_empty() {
                    parts.push(Part::Text(std::mem::take(&mut literal)));
                }
                parts.push(capture(text, &inner)?);
            } else {
                literal.push(c);
            }
        }
        if !literal.is_empty() {
            parts.push(Part::Text(literal));
        }
        let captures = parts.iter().filter(|p| matches!(p, Part::Capture(..)));
        if captures.count() > MAX_CAPTURES {
            return Err(format!("`{text}` has more than {MAX_CAPTURES} captures"));
        }
        Ok(Self { parts })
    }
}

fn capture(text: &str, inner: &str) -> Result<Part, String> {
    let (name, kind) = match inner.strip_suffix('*') {
        Some(name) => (name, Kind::Any),
        None => match inner.strip_suffix('#') {
            Some(name) => (name, Kind::Number),
            None => (inner, Kind::One),
        },
    };
    let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if !is_name {
        return Err(format!(
            "`{text}` has the capture `{{{inner}}}`; write {{name}}, {{name#}} or {{name*}}, with letters, digits and `_`"
        ));
    }
    Ok(Part::Capture(name.into(), kind))
}

impl Pattern {
    /// Whether it matches a key.
    pub fn matches(&self, key: &str) -> bool {
        self.captures(key).is_some()
    }

    /// What its captures match in a key. `None` if it does not match the key.
    pub(crate) fn captures(&self, key: &str) -> Option<Captures> {
        let mut search = Search {
            parts: &self.parts,
            key,
            failed: BTreeSet::new(),
            found: Vec::new(),
        };
        search.from(0, 0).then(|| {
            let found = search.found.into_iter().rev();
            found.map(|(n, v)| (n.to_owned(), v.to_owned())).collect()
        })
    }

    /// The key that it is with these captures in it. `None` if it has others.
    pub(crate) fn fill(&self, captures: &Captures) -> Option<String> {
        let text = |part: &'_ Part| match part {
            Part::Text(text) => Some(text.clone()),
            Part::Capture(name, _) => captures.get(name).cloned(),
        };
        self.parts.iter().map(text).collect()
    }

    /// The names of its captures, in order.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().filter_map(|part| match part {
            Part::Capture(name, _) => Some(&**name),
            Part::Text(_) => None,
        })
    }

    /// A capture that it has twice.
    pub(crate) fn twice(&self) -> Option<&str> {
        let mut seen = BTreeSet::new();
        self.names().find(|name| !seen.insert(*name))
    }

    pub(crate) fn kind(&self, name: &str) -> Option<Kind> {
        self.parts.iter().find_map(|part| match part {
            Part::Capture(n, kind) if n == name => Some(*kind),
            _ => None,
        })
    }

    /// Its captures match what those of the same names in `other` match.
    pub(crate) fn with_kinds_of(mut self, other: &Self) -> Self {
        for part in &mut self.parts {
            if let Part::Capture(name, kind) = part
                && let Some(theirs) = other.kind(name)
            {
                *kind = theirs;
            }
        }
        self
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in &self.parts {
            match part {
                Part::Text(text) => {
                    f.write_str(&text.replace('{', "{{").replace('}', "}}"))?;
                }
                Part::Capture(name, Kind::One) => write!(f, "{{{name}}}")?,
                Part::Capture(name, Kind::Number) => write!(f, "{{{name}#}}")?,
                Part::Capture(name, Kind::Any) => write!(f, "{{{name}*}}")?,
            }
        }
        Ok(())
    }
}

/// A search that never tries a part twice at one place, so that no pattern takes exponential time.
struct Search<'a> {
    parts: &'a [Part],
    key: &'a str,
    failed: BTreeSet<(usize, usize)>,
    /// In reverse order.
    found: Vec<(&'a str, &'a str)>,
}

impl<'a> Search<'a> {
    /// Whether the parts from `part` on match the key from `at` on.
    fn from(&mut self, part: usize, at: usize) -> bool {
        let Some(rest) = self.key.get(at..) else {
            return false;
        };
        let (name, kind) = match self.parts.get(part) {
            None => return rest.is_empty(),
            Some(Part::Text(text)) => {
                return rest.starts_with(&**text) && self.from(part + 1, at + text.len());
            }
            Some(Part::Capture(name, kind)) => (&**name, *kind),
        };
        if self.failed.contains(&(part, at)) {
            return false;
        }
        let ends = rest.char_indices().map(|(i, _)| i).chain([rest.len()]);
        for end in ends {
            let value = &rest[..end];
            if !may_grow(kind, value) {
                break;
            }
            let enough = end > 0 || kind == Kind::Any;
            if enough && self.from(part + 1, at + end) {
                self.found.push((name, value));
                return true;
            }
        }
        self.failed.insert((part, at));
        false
    }
}

/// Whether a capture may have this value, or one that begins with it.
fn may_grow(kind: Kind, value: &str) -> bool {
    match kind {
        Kind::Any => true,
        Kind::One => !value.ends_with('.'),
        Kind::Number => {
            value.is_empty() || {
                let canonical = value.len() == 1 || !value.starts_with('0');
                canonical && value.bytes().all(|b| b.is_ascii_digit()) && value.len() < 20
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pattern(text: &str) -> Pattern {
        text.parse().unwrap()
    }

    fn captured(text: &str, key: &str) -> Option<Vec<(String, String)>> {
        Some(pattern(text).captures(key)?.into_iter().collect())
    }

    #[test]
    fn captures_keep_to_their_kind() {
        let one = |n: &str, v: &str| vec![(n.to_owned(), v.to_owned())];
        assert_eq!(captured("a.{x}.c", "a.b.c"), Some(one("x", "b")));
        assert_eq!(captured("a.{x}.c", "a.b.b.c"), None);
        assert_eq!(captured("a.{x*}.c", "a.b.b.c"), Some(one("x", "b.b")));
        assert_eq!(captured("a{x*}", "a"), Some(one("x", "")));
        assert_eq!(captured("a{x}", "a"), None);
        assert_eq!(captured("l.{x#}", "l.10"), Some(one("x", "10")));
        assert_eq!(captured("l.{x#}", "l.01"), None);
        assert_eq!(captured("l.{x#}", "l.x"), None);
        assert_eq!(captured("{{{x}}}", "{b}"), Some(one("x", "b")));
    }

    #[test]
    fn what_is_no_pattern_says_why() {
        for bad in ["a}", "{}", "{a b}", "{a", "{*}"] {
            assert!(bad == "{a" || bad.parse::<Pattern>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_pattern_with_many_captures_takes_no_exponential_time() {
        let text: String = (0..16).map(|i| format!("{{c{i}*}}a")).collect();
        assert!(!pattern(&text).matches(&format!("{}b", "a".repeat(300))));
    }

    proptest! {
        #[test]
        fn what_matches_is_filled_in_again(key in "[a-c.0-9]{0,12}", text in "[a.]{0,3}(\\{x\\*?\\})?[b.]{0,2}(\\{y#\\})?") {
            let pattern = pattern(&text);
            prop_assert_eq!(pattern.to_string(), text);
            if let Some(captures) = pattern.captures(&key) {
                prop_assert_eq!(pattern.fill(&captures), Some(key));
            }
        }

        #[test]
        fn no_text_makes_a_pattern_panic(text in ".{0,40}", key in ".{0,40}") {
            if let Ok(pattern) = text.parse::<Pattern>() {
                pattern.matches(&key);
            }
        }
    }
}
