//! The items under which a file of `torch.save` has a value.

use reshard::{
    Value,
    model::{Path, Step},
};

/// The items of a value, each with its path in it, in order: those of a dict, and those of a list that holds a dict or a tensor. Any other
/// value is its only item, at an empty path.
pub(crate) fn items(value: &Value) -> Vec<(Path, &Value)> {
    let mut out = Vec::new();
    add(value, &mut Path::default(), &mut out);
    out
}

fn add<'v>(value: &'v Value, path: &mut Path, out: &mut Vec<(Path, &'v Value)>) {
    let mut below = |step: Step, value: &'v Value| {
        path.0.push(step);
        add(value, path, out);
        path.0.pop();
    };
    match value {
        Value::Dict(pairs) if !pairs.is_empty() && is_dict(value) => {
            let named = pairs
                .iter()
                .filter_map(|(key, value)| Some((name(key)?, value)));
            named.for_each(|(name, value)| below(Step::Key(name), value));
        }
        Value::List(values) if values.iter().any(opens) => {
            let numbered = (0..).zip(values);
            numbered.for_each(|(i, value)| below(Step::Index(i), value));
        }
        _ => out.push((path.clone(), value)),
    }
}

/// Whether a list with this value is taken apart.
fn opens(value: &Value) -> bool {
    match value {
        Value::List(values) => values.iter().any(opens),
        Value::Tensor(_) => true,
        other => is_dict(other),
    }
}

/// Whether it is a dict whose keys can be steps of a path.
fn is_dict(value: &Value) -> bool {
    matches!(value, Value::Dict(pairs) if pairs.iter().all(|(key, _)| name(key).is_some()))
}

fn name(key: &Value) -> Option<Box<str>> {
    Some(match key {
        Value::Str(key) => key.clone(),
        Value::Int(n) => n.to_string().into(),
        Value::Bool(true) => "True".into(),
        Value::Bool(false) => "False".into(),
        Value::None => "None".into(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dicts_and_lists_that_hold_one_are_taken_apart() {
        let list = |values: &[Value]| Value::List(values.to_vec());
        let dict = Value::Dict(vec![("a".into(), 1.into()), (2.into(), Value::None)]);
        let paths = |value: &Value| -> Vec<String> {
            let items = items(value).into_iter();
            items.map(|(path, _)| path.to_string()).collect()
        };
        assert_eq!(paths(&dict), ["a", "2"]);
        assert_eq!(paths(&list(&[1.into(), dict.clone()])), ["0", "1.a", "1.2"]);
        assert_eq!(paths(&list(&[list(&[dict])])), ["0.0.a", "0.0.2"]);
        let odd = Value::Dict(vec![(Value::Tuple(Vec::new()), 1.into())]);
        for value in [
            list(&[1.into(), 2.into()]),
            odd,
            Value::Dict(Vec::new()),
            5.into(),
        ] {
            assert_eq!(paths(&value), [""], "{value:?}");
        }
    }
}
