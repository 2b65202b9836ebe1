//! Modules in words.

use reshard_torch_format::FoundModule;

/// A module and the number of its tensors, in words.
pub(crate) fn module_in_words(module: &FoundModule) -> String {
    let s = if module.tensors == 1 { "" } else { "s" };
    format!(
        "a pickled module of class {} with {} tensor{s}",
        module.class, module.tensors
    )
}
