//! Options of state dicts by name.

use reshard_comm::Comm;
use std::{fmt, sync::Arc};

/// Makes another name of a canonical one.
pub type FqnModifier = Arc<dyn Fn(&str) -> String + Send + Sync>;

/// What [`get_state_dict`](crate::get_state_dict) and its siblings do: PyTorch's class of the same name.
///
/// ```
/// use reshard_optim::StateDictOptions;
/// let options = StateDictOptions { flatten_optimizer_state_dict: true, ..StateDictOptions::default() };
/// assert!(options.strict);
/// ```
#[derive(Clone)]
pub struct StateDictOptions<'g> {
    /// Whether tensors are whole instead of this rank's parts. To get them needs memory for all of them. It is a collective call then,
    /// and needs the [`comm`](Self::comm).
    pub full_state_dict: bool,
    /// Whether tensors on devices are copied to host memory. With [`full_state_dict`](Self::full_state_dict) only the coordinator gets
    /// the dict; that of other ranks is empty.
    pub cpu_offload: bool,
    /// Whether frozen parameters are left out, and not missed. State that an optimizer has for one is kept; PyTorch drops it.
    pub ignore_frozen_params: bool,
    /// Whether keys that are missing or unexpected are an error. It names all of them.
    pub strict: bool,
    /// In `set_*`: only the coordinator has the dict, and each rank gets its part of it. It needs
    /// [`full_state_dict`](Self::full_state_dict).
    pub broadcast_from_rank0: bool,
    /// Whether the state dict of an optimizer has one level, with keys such as `state.{name}.exp_avg` and `param_groups.{name}.lr`. Such a dict can be loaded
    /// with other param groups.
    pub flatten_optimizer_state_dict: bool,
    /// Canonical names of the submodules to which the dict is limited; empty for the whole model.
    pub submodules: Vec<String>,
    /// Whether names keep the name of the submodule that they are in.
    pub keep_submodule_prefixes: bool,
    /// Whether a first part `module` that all names have is kept. By default it is taken for that of `DistributedDataParallel`.
    pub keep_module_prefix: bool,
    /// Changes each canonical name, as PyTorch's `dsd_fqn_modifiers` do.
    pub fqn_modifiers: Option<FqnModifier>,
    /// The ranks, for whole tensors and broadcasts.
    pub comm: Comm<'g>,
}

impl Default for StateDictOptions<'_> {
    fn default() -> Self {
        Self {
            full_state_dict: false,
            cpu_offload: false,
            ignore_frozen_params: false,
            strict: true,
            broadcast_from_rank0: false,
            flatten_optimizer_state_dict: false,
            submodules: Vec::new(),
            keep_submodule_prefixes: true,
            keep_module_prefix: false,
            fqn_modifiers: None,
            comm: Comm::single(),
        }
    }
}

impl fmt::Debug for StateDictOptions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StateDictOptions")
            .field("full_state_dict", &self.full_state_dict)
            .field("cpu_offload", &self.cpu_offload)
            .field("ignore_frozen_params", &self.ignore_frozen_params)
            .field("strict", &self.strict)
            .field("broadcast_from_rank0", &self.broadcast_from_rank0)
            .field(
                "flatten_optimizer_state_dict",
                &self.flatten_optimizer_state_dict,
            )
            .field("submodules", &self.submodules)
            .finish_non_exhaustive()
    }
}
