//! The names of the crate's root: what is added here is added for every program, for good.

/// The names that a source file gives to others, sorted.
fn names(source: &str) -> Vec<String> {
    let code: String = source
        .lines()
        .filter(|l| !l.trim_start().starts_with("//"))
        .collect();
    let mut out = Vec::new();
    for part in code.split("pub ").skip(1) {
        let Some((said, _)) = part.split_once(';') else {
            continue;
        };
        let list = said
            .split_once('{')
            .map_or(said, |(_, list)| list.trim_end_matches('}'));
        for item in list.split(',').map(str::trim).filter(|i| !i.is_empty()) {
            let name = item.rsplit_once(" as ").map_or(item, |(_, name)| name);
            let name = name
                .trim_start_matches("mod ")
                .rsplit("::")
                .next()
                .unwrap_or(name);
            out.push(name.trim_start_matches("use ").to_owned());
        }
    }
    out.sort();
    out
}

const PRELUDE: [&str; 25] = [
    "Cast",
    "Checkpoint",
    "DType",
    "Data",
    "Dialect",
    "Durability",
    "ErrorKind",
    "LoadError",
    "LocalGroup",
    "OpenOptions",
    "ProcessGroup",
    "Rank",
    "Region",
    "ShardedObject",
    "ShardedTensor",
    "ShardingPolicy",
    "SingleProcess",
    "StateDict",
    "Tensor",
    "TensorHandle",
    "Value",
    "ValueTree",
    "blocking",
    "load",
    "save",
];

/// Modules: the crates, and two of its own.
const MODULES: [&str; 15] = [
    "comm",
    "map",
    "megatron",
    "model",
    "object_store",
    "plan",
    "policy",
    "prelude",
    "safetensors",
    "storage",
    "strategy",
    "tensor_bundle",
    "torch_dist",
    "torch_save",
    "zarr",
];

/// What saves, loads and checkpoints take and return.
const FACADE: [&str; 49] = [
    "AsyncCallsQueue",
    "AsyncRequest",
    "AsyncSaver",
    "AsyncStager",
    "BackendVersion",
    "BlockingAsyncStager",
    "CommonDifference",
    "CommonForm",
    "Error",
    "ErrorWith",
    "Finalized",
    "FrozenRequest",
    "KeptLoadPlan",
    "KeptPlan",
    "Load",
    "LoadProgress",
    "LoadReport",
    "MappedCheckpoint",
    "MappedTensorHandle",
    "OnCast",
    "PHASE_EVENTS",
    "Phase",
    "PhaseEvent",
    "ReadLimits",
    "Registry",
    "Result",
    "SIDECAR",
    "Sample",
    "Save",
    "SaveHandle",
    "SaveReport",
    "Sidecar",
    "Staging",
    "Stateful",
    "StoredChunk",
    "StoredCommon",
    "Stores",
    "StrictHandling",
    "Tie",
    "Whereabouts",
    "is_distributed_checkpoint",
    "load_common",
    "load_content_metadata",
    "load_metadata",
    "load_plain_tensors",
    "load_plain_tensors_and_common",
    "load_sharded_metadata",
    "load_tensors_metadata",
    "place_text",
];

#[test]
fn the_root_has_the_prelude_the_modules_and_what_the_facade_takes_and_returns() {
    let prelude = names(include_str!("../../src/prelude.rs"));
    let mut want: Vec<&str> = PRELUDE.to_vec();
    want.sort_unstable();
    assert_eq!(prelude, want);
    let mut want: Vec<&str> = PRELUDE.into_iter().chain(MODULES).chain(FACADE).collect();
    want.sort_unstable();
    assert_eq!(names(include_str!("../../src/lib.rs")), want);
}
