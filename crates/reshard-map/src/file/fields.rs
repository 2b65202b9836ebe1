//! The fields of a table of a mapping file.

use crate::{Pattern, number::Number};
use reshard_model::DType;
use toml::Value;

/// The longest list of a field.
const MAX_LIST: usize = 4096;

/// The fields of a table that nobody has taken yet.
pub(super) struct Fields(toml::Table);

impl Fields {
    pub(super) fn new(table: toml::Table) -> Self {
        Self(table)
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    pub(super) fn names(&self) -> Vec<&str> {
        self.0.keys().map(|k| &**k).collect()
    }

    pub(super) fn take(&mut self, name: &str) -> Option<Value> {
        self.0.remove(name)
    }

    /// Fails if a field is left.
    pub(super) fn done(self) -> Result<(), String> {
        match self.0.keys().next() {
            None => Ok(()),
            Some(name) => Err(format!("`{name}` has no meaning there")),
        }
    }

    pub(super) fn text(&mut self, name: &str) -> Result<Option<String>, String> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(format!("`{name}` is no text")),
        }
    }

    pub(super) fn flag(&mut self, name: &str) -> Result<bool, String> {
        match self.take(name) {
            None => Ok(false),
            Some(Value::Boolean(yes)) => Ok(yes),
            Some(_) => Err(format!("`{name}` is neither true nor false")),
        }
    }

    pub(super) fn number(&mut self, name: &str) -> Result<Option<Number>, String> {
        self.take(name).map(|v| number(name, v)).transpose()
    }

    pub(super) fn numbers(&mut self, name: &str) -> Result<Option<Vec<Number>>, String> {
        let list = self.list(name)?;
        let numbers = list.map(|list| list.into_iter().map(|v| number(name, v)).collect());
        numbers.transpose()
    }

    /// The axis of a rule: the first one, unless the rule names another.
    pub(super) fn axis(&mut self) -> Result<usize, String> {
        self.take("axis").map_or(Ok(0), |v| axis("axis", &v))
    }

    pub(super) fn axes(&mut self, name: &str) -> Result<Option<Vec<usize>>, String> {
        let list = self.list(name)?;
        let axes = list.map(|list| list.iter().map(|v| axis(name, v)).collect());
        axes.transpose()
    }

    pub(super) fn dtype(&mut self, name: &str) -> Result<Option<DType>, String> {
        let parse = |text: String| text.parse().map_err(|e| format!("`{name}`: {e}"));
        self.text(name)?.map(parse).transpose()
    }

    pub(super) fn pattern(&mut self, name: &str) -> Result<Pattern, String> {
        match self.text(name)? {
            Some(text) => text.parse(),
            None => Err(format!("`{name}` is missing")),
        }
    }

    /// One pattern, or a list of them.
    pub(super) fn patterns(&mut self, name: &str) -> Result<Vec<Pattern>, String> {
        if matches!(self.0.get(name), Some(Value::String(_))) {
            return Ok(vec![self.pattern(name)?]);
        }
        let list = self
            .list(name)?
            .ok_or_else(|| format!("`{name}` is missing"))?;
        if list.is_empty() {
            return Err(format!("`{name}` is empty"));
        }
        let pattern = |value| match value {
            Value::String(text) => text.parse(),
            _ => Err(format!("`{name}` has something that is no text")),
        };
        list.into_iter().map(pattern).collect()
    }

    fn list(&mut self, name: &str) -> Result<Option<Vec<Value>>, String> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Array(list)) if list.len() <= MAX_LIST => Ok(Some(list)),
            Some(Value::Array(_)) => Err(format!("`{name}` has more than {MAX_LIST} entries")),
            Some(_) => Err(format!("`{name}` is no list")),
        }
    }
}

fn number(name: &str, value: Value) -> Result<Number, String> {
    match value {
        Value::Integer(n) => u64::try_from(n)
            .map(Number::from)
            .map_err(|_| format!("`{name}` is negative")),
        Value::String(text) => Number::parse(&text),
        _ => Err(format!(
            "`{name}` is neither a number nor an expression of parameters"
        )),
    }
}

fn axis(name: &str, value: &Value) -> Result<usize, String> {
    let axis = value.as_integer().and_then(|n| usize::try_from(n).ok());
    axis.ok_or_else(|| format!("`{name}` is no number of an axis; the first axis is 0"))
}
