//! Puts the inner tensors of torchao's tensors together again when a file is written.

use crate::told::{At, DictPlan, LeafPlan, What};
use reshard_model::{ObjectCodec as _, Path, Step};
use reshard_strategy::{Result, StrategyError};
use reshard_torch_format::{Part, PartTree, Subclass, TorchSave};
use std::{borrow::Cow, collections::BTreeMap};

/// The leaves of a file in which each tensor of torchao is one leaf, at the place of its first inner tensor.
pub(crate) fn joined<'a>(
    plans: &[DictPlan],
    leaves: Vec<(&'a LeafPlan, Part)>,
) -> Result<Vec<(Cow<'a, LeafPlan>, PartTree)>> {
    // By the key: the number of its tensor, and its name in that.
    let mut of_keys: BTreeMap<String, (usize, String)> = BTreeMap::new();
    let mut all = Vec::with_capacity(plans.len());
    for (number, plan) in plans.iter().enumerate() {
        let subclass = subclass(plan)?;
        for name in subclass.inner() {
            let path = Subclass::inner_path(&plan.path, &name);
            let key = path.map_or_else(String::new, |path| path.to_string());
            of_keys.insert(key, (number, name));
        }
        all.push((subclass, &plan.path, BTreeMap::new(), None));
    }
    let mut out: Vec<(Cow<'a, LeafPlan>, Option<PartTree>)> = Vec::with_capacity(leaves.len());
    for (plan, part) in leaves {
        let of = of_keys.remove(&*plan.key);
        let Some((number, name)) = of else {
            out.push((Cow::Borrowed(plan), Some(PartTree::Leaf(part))));
            continue;
        };
        let Some((_, path, parts, place)) = all.get_mut(number) else {
            continue;
        };
        parts.insert(name, part);
        if place.is_none() {
            *place = Some(out.len());
            out.push((Cow::Owned(whole(path, plan)), None));
        }
    }
    for (subclass, path, mut parts, place) in all {
        let tree = subclass.tree(&mut |name| parts.remove(name));
        let lost = || {
            let what = format!("{path}: a tensor of torchao lacks one of its inner tensors");
            StrategyError::Internal(what)
        };
        let tree = tree.ok_or_else(lost)?;
        let at = place
            .and_then(|place| out.get_mut(place))
            .ok_or_else(lost)?;
        at.1 = Some(tree);
    }
    let out = out
        .into_iter()
        .filter_map(|(plan, tree)| Some((plan, tree?)));
    Ok(out.collect())
}

/// The leaf that stands for a tensor, from one of its inner tensors, which is in the same dict.
fn whole(path: &Path, inner: &LeafPlan) -> LeafPlan {
    let mut steps = inner.path.clone();
    if let (Some(last), Some(Step::Key(own))) = (steps.last_mut(), path.0.last()) {
        *last = At::Key(own.clone());
    }
    LeafPlan {
        key: path.to_string().into(),
        path: steps,
        what: What::Object,
    }
}

fn subclass(plan: &DictPlan) -> Result<Subclass> {
    let value = TorchSave::default().decode(&plan.object);
    let value = value.map_err(|e| StrategyError::Internal(e.to_string()))?;
    let subclass = Subclass::of(&value);
    let what = || format!("{}: it is no tensor of torchao", plan.path);
    subclass.ok_or_else(|| StrategyError::Internal(what()))
}
