use super::{Leaf, StateDict};
use crate::{ModelError, Result};

/// The key of a leaf that has one.
fn key(leaf: &mut Leaf) -> Option<&mut Box<str>> {
    match leaf {
        Leaf::Tensor(t) => Some(&mut t.key),
        Leaf::Object(o) => Some(&mut o.key),
        Leaf::Factory(f) => Some(&mut f.key),
        Leaf::Local(_) | Leaf::Value(_) => None,
    }
}

/// Puts `prefix` before the keys of all sharded leaves and factories. It does not change paths.
pub fn add_prefix_for_sharding(state: &mut StateDict, prefix: &str) {
    state.visit_mut(&mut |_, leaf| {
        if let Some(k) = key(leaf) {
            *k = format!("{prefix}{k}").into();
        }
    });
}

/// Replaces the prefix `old` by `new` in the keys of all sharded leaves and factories.
///
/// # Errors
/// [`ModelError::Invalid`] if a key does not begin with `old`. Nothing is changed then.
pub fn replace_prefix_for_sharding(state: &mut StateDict, old: &str, new: &str) -> Result<()> {
    let mut stranger = None;
    state.visit_mut(&mut |_, leaf| {
        stranger = stranger
            .take()
            .or_else(|| key(leaf).filter(|k| !k.starts_with(old)).cloned());
    });
    if let Some(k) = stranger {
        return Err(ModelError::invalid(
            &k,
            format!("expected a key that begins with prefix {old:?}"),
        ));
    }
    apply_prefix_mapping(state, &[(old, new)]);
    Ok(())
}

/// Replaces prefixes in the keys of all sharded leaves and factories. For each key it uses the first pair whose first text is a
/// prefix of the key. Other keys stay.
pub fn apply_prefix_mapping(state: &mut StateDict, mapping: &[(&str, &str)]) {
    state.visit_mut(&mut |_, leaf| {
        let Some(k) = key(leaf) else { return };
        if let Some((rest, new)) = mapping
            .iter()
            .find_map(|(old, new)| Some((k.strip_prefix(old)?, new)))
        {
            *k = format!("{new}{rest}").into();
        }
    });
}
