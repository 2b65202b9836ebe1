//! Modules in words.

use reshard_model::some;
use reshard_torch_format::FoundModule;

/// A module and the number of its tensors, in words.
pub(crate) fn module_in_words(module: &FoundModule) -> String {
    let tensors = some(module.tensors as u64, "tensor");
    format!("a pickled module of class {} with {tensors}", module.class)
}
