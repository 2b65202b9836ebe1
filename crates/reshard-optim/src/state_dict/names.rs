//! Canonical names.

use super::{ModelState, StateDictOptions};
use crate::{OptimError, ParamId, Result};
use reshard_model::Leaf;
use std::collections::BTreeSet;

/// Parts of names that wrappers add: those of `torch.compile`, FSDP and activation checkpointing.
const WRAPPERS: [&str; 3] = [
    "_orig_mod",
    "_fsdp_wrapped_module",
    "_checkpoint_wrapped_module",
];
/// The part that `DistributedDataParallel` adds. A module of the model can have this name, too.
const DDP: &str = "module.";

/// A parameter or buffer.
#[derive(Debug)]
pub(super) struct Named {
    /// The canonical name.
    pub(super) fqn: String,
    /// The model's name for it.
    pub(super) own: String,
    /// Which parameter it is, and whether it is trained; `None` for what is no parameter.
    pub(super) param: Option<(ParamId, bool)>,
    pub(super) data: Leaf,
}

impl Named {
    pub(super) fn is_frozen(&self) -> bool {
        self.param.is_some_and(|(_, trained)| !trained)
    }

    /// Everything that a model has and the options choose.
    pub(super) fn all(model: &dyn ModelState, options: &StateDictOptions<'_>) -> Result<Vec<Self>> {
        let params = model.parameters().into_iter();
        let params = params.map(|p| (p.name, Some((p.id, p.requires_grad)), p.data));
        let buffers = model.buffers().into_iter().map(|(name, b)| (name, None, b));
        let mut all: Vec<Self> = params
            .chain(buffers)
            .map(|(own, param, data)| Self {
                fqn: unwrapped(&own),
                own,
                param,
                data,
            })
            .collect();

        if !options.keep_module_prefix && all.iter().all(|n| n.fqn.starts_with(DDP)) {
            all.iter_mut().for_each(|n| drop(n.fqn.drain(..DDP.len())));
        }
        if let Some(modifier) = &options.fqn_modifiers {
            all.iter_mut().for_each(|n| n.fqn = modifier(&n.fqn));
        }
        if !options.submodules.is_empty() {
            all.retain_mut(|n| within(&mut n.fqn, options));
        }

        let mut names = BTreeSet::new();
        match all.iter().find(|n| !names.insert(&*n.fqn)) {
            None => Ok(all),
            Some(twice) => Err(OptimError::SameName {
                name: twice.fqn.clone(),
            }),
        }
    }
}

/// A name without the parts of wrappers.
fn unwrapped(name: &str) -> String {
    let parts: Vec<&str> = name.split('.').filter(|p| !WRAPPERS.contains(p)).collect();
    parts.join(".")
}

/// Whether a name lies in one of the chosen submodules. If the options say so, it loses the name of that submodule.
fn within(fqn: &mut String, options: &StateDictOptions<'_>) -> bool {
    let rest = |module: &String| Some(fqn.strip_prefix(module.as_str())?.strip_prefix('.')?.len());
    let Some(rest) = options.submodules.iter().find_map(rest) else {
        return false;
    };
    if !options.keep_submodule_prefixes {
        fqn.drain(..fqn.len() - rest);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_wrappers_are_left_out_wherever_they_are() {
        let name = "_orig_mod.layers.0._checkpoint_wrapped_module._fsdp_wrapped_module.weight";
        assert_eq!(unwrapped(name), "layers.0.weight");
        assert_eq!(unwrapped("my_orig_mod.weight"), "my_orig_mod.weight");
    }

    #[test]
    fn a_submodule_is_chosen_by_its_whole_name() {
        let options = StateDictOptions {
            submodules: vec!["fc".into()],
            keep_submodule_prefixes: false,
            ..StateDictOptions::default()
        };
        let cut = |name: &str| {
            let mut fqn = name.to_owned();
            within(&mut fqn, &options).then_some(fqn)
        };
        assert_eq!(cut("fc.weight").as_deref(), Some("weight"));
        assert_eq!(cut("fc1.weight"), None);
    }
}
