//! The items under which a file of `torch.save` has a value.

use reshard::{
    Value,
    model::{Construct, Path, Step},
};
use std::collections::BTreeSet;

/// The items of a value, each with its path in it, in order: those of a dict, and those of a list that holds a dict or a tensor. Any other
/// value is its only item, at an empty path.
pub(crate) fn items(value: &Value) -> Vec<(Path, &Value)> {
    items_beside(value, &BTreeSet::new())
}

/// The same beside a checkpoint with these keys: what lies at a key is one item, and what lies above one is several.
pub(crate) fn items_beside<'v>(
    value: &'v Value,
    keys: &BTreeSet<String>,
) -> Vec<(Path, &'v Value)> {
    let mut out = Vec::new();
    add(value, keys, &mut Path::default(), &mut out);
    out
}

fn add<'v>(
    value: &'v Value,
    keys: &BTreeSet<String>,
    path: &mut Path,
    out: &mut Vec<(Path, &'v Value)>,
) {
    let key = path.to_string();
    let is_above = || {
        let below = format!("{key}.");
        let next = keys.range(below.clone()..).next();
        next.is_some_and(|next| next.starts_with(&below))
    };
    let is_item = keys.contains(&key);
    let named = pairs(value).filter(|pairs| !is_item && !pairs.is_empty());
    let numbered = match value {
        Value::List(values) if !is_item && (values.iter().any(opens) || is_above()) => values,
        _ => &[][..],
    };
    if named.is_none() && numbered.is_empty() {
        out.push((path.clone(), value));
        return;
    }
    let named = named.unwrap_or_default().iter();
    let named = named.filter_map(|(key, value)| Some((Step::Key(name(key)?), value)));
    let numbered = (0..)
        .zip(numbered)
        .map(|(i, value)| (Step::Index(i), value));
    for (step, value) in named.chain(numbered) {
        path.0.push(step);
        add(value, keys, path, out);
        path.0.pop();
    }
}

/// Whether a list with this value is taken apart.
fn opens(value: &Value) -> bool {
    match value {
        Value::List(values) => values.iter().any(opens),
        Value::Tensor(_) => true,
        other => pairs(other).is_some(),
    }
}

/// The pairs of a dict, or of what is a dict for PyTorch, if all keys can be steps of a path.
fn pairs(value: &Value) -> Option<&[(Value, Value)]> {
    let pairs = match value {
        Value::Dict(pairs) => pairs,
        Value::Opaque(object) => {
            let Construct::Reduce(args) = &object.construct else {
                return None;
            };
            let most = match (&*object.module, &*object.name) {
                ("collections", "OrderedDict") => 0,
                ("collections", "defaultdict") => 1,
                _ => return None,
            };
            let is_one = args.len() <= most && object.items.is_empty();
            is_one.then_some(&object.pairs)?
        }
        _ => return None,
    };
    let named = pairs.iter().all(|(key, _)| name(key).is_some());
    named.then_some(pairs)
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
    use reshard::model::Opaque;

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
        assert_eq!(
            paths(&list(&[list(std::slice::from_ref(&dict))])),
            ["0.0.a", "0.0.2"]
        );
        let Value::Dict(pairs) = dict else {
            unreachable!("it was made as one");
        };
        let class = |name: &str, args: Vec<Value>| {
            Value::Opaque(Box::new(Opaque {
                module: "collections".into(),
                name: name.into(),
                construct: Construct::Reduce(args),
                state: None,
                items: Vec::new(),
                pairs: pairs.clone(),
            }))
        };
        assert_eq!(paths(&class("OrderedDict", Vec::new())), ["a", "2"]);
        assert_eq!(paths(&class("defaultdict", vec![Value::None])), ["a", "2"]);
        assert_eq!(paths(&class("Counter", Vec::new())), [""]);
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
