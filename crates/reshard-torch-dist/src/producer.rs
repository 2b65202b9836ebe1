//! Who wrote a checkpoint, and who can load it, as far as its bytes tell.

use crate::{
    Flavour,
    table::{Signs, Table},
};
use reshard_model::Dialect;
use reshard_strategy::Producer;

/// The flavour of a `.metadata`, by what PyTorch's versions changed in it.
pub(crate) fn flavour(s: &Signs) -> Flavour {
    match (s.arity, s.storage_meta || s.version.is_some()) {
        (6.., _) => Flavour::Torch215,
        (_, true) => Flavour::Torch24,
        _ if s.old_module || !s.has_tensors => Flavour::Universal,
        _ => Flavour::Torch23,
    }
}

pub(crate) fn producer(
    table: &Table,
    dialect: Dialect,
    rank_local: Option<u32>,
    has_common_file: bool,
) -> Producer {
    let s = &table.signs;
    let flavour = flavour(s);
    let torch = match flavour {
        Flavour::Universal if !s.has_tensors && !s.storage_meta => "PyTorch 2.1 to 2.3, or reshard",
        Flavour::Universal => "PyTorch 2.1 or 2.2, or reshard for all versions",
        Flavour::Torch23 => "PyTorch 2.3",
        Flavour::Torch24 if s.version.is_some() => "PyTorch 2.9 to 2.14",
        Flavour::Torch24 => "PyTorch 2.4 to 2.8",
        Flavour::Torch215 => "PyTorch 2.15",
    };
    let mut out = Producer { written_by: vec![torch.into()], ..Producer::default() };
    out.loadable_by.push(match rank_local {
        Some(n) => format!("PyTorch 2.9 or later, on {n} ranks with the same layout"),
        None => flavour.readers().into(),
    });
    if let Some(n) = rank_local {
        out.notes.push(format!("rank-local: each of {n} ranks has metadata of its own"));
    }
    if dialect == Dialect::Megatron {
        let modern = table.metadata.object("common_state/shard_0_1").is_some() && !has_common_file;
        let flat = !table.flattened.is_empty();
        let mcore = match () {
            () if modern => "Megatron Core 0.19 or later",
            () if s.mcore_class => "Megatron Core 0.15",
            () if s.mcore_data && s.all_local_plans => "Megatron Core 0.11 to 0.15",
            () if s.mcore_data => "Megatron Core 0.8 to 0.10",
            () if s.all_local_plans => "Megatron Core 0.16 to 0.18",
            () if s.planner_data => "Megatron Core 0.6 or 0.7",
            () => "Megatron Core, or reshard",
        };
        out.written_by.push(mcore.into());
        out.loadable_by.push(match () {
            () if modern => "Megatron Core 0.19 or later".into(),
            () if flat => "Megatron Core 0.8 to 0.15 (flattened tensors)".into(),
            () => "Megatron Core 0.12 or later".into(),
        });
        if flat {
            let n = table.flattened.len();
            out.flattened = n as u64;
            out.notes.push(format!(
                "{n} tensors are stored flattened, chunk by chunk; their shapes here are the stored ones"
            ));
        }
    }
    if table.transforms.len() > 1 {
        let names: Vec<&str> = table.transforms.iter().flatten().map(String::as_str).collect();
        out.notes.push(format!("items went through stream transforms: {}", names.join(", ")));
    }
    out
}
