//! Pickles that call every function `_rebuild_*` of torch with every number of arguments. The fuzz target for pickles starts from
//! them.

const STORAGE: &str = "(Vstorage\nctorch\nFloatStorage\nV0\nVcpu\nI4\ntQ";
const TENSOR: &str = "ctorch._utils\n_rebuild_tensor\n((Vstorage\nctorch\nFloatStorage\nV0\nVcpu\nI4\ntQI0\n(I2\nI2\nt(I2\nI1\nttR";
const INT: &str = "I0\n";
const PAIR: &str = "(I2\nI1\nt";
const BOOL: &str = "I00\n";
const HOOKS: &str = "ccollections\nOrderedDict\n(tR";
const DTYPE: &str = "ctorch\nfloat32\n";
const DEVICE: &str = "Vxla:0\n";
const CLASS: &str = "ctorch\nTensor\n";
const DICT: &str = "(dVconj\nI01\ns";
const FUNCTION: &str = "ctorch._utils\n_rebuild_tensor_v2\n";
const ARGUMENTS: &str =
    "((Vstorage\nctorch\nFloatStorage\nV0\nVcpu\nI4\ntQI0\n(I2\nI2\nt(I2\nI1\ntI00\nNt";

/// One argument of each kind, as instructions that push it.
pub(crate) const KINDS: &[&str] = &[
    STORAGE, TENSOR, INT, PAIR, BOOL, HOOKS, DTYPE, CLASS, DICT, FUNCTION, ARGUMENTS, "N", "(t",
    "I-1\n",
];

/// The functions by module and name, each with the arguments that torch gives it.
pub(crate) const FUNCTIONS: &[(&str, &str, &[&str])] = &[
    (
        "torch._utils",
        "_rebuild_tensor",
        &[STORAGE, INT, PAIR, PAIR],
    ),
    (
        "torch._utils",
        "_rebuild_tensor_v2",
        &[STORAGE, INT, PAIR, PAIR, BOOL, HOOKS, DICT],
    ),
    (
        "torch._utils",
        "_rebuild_tensor_v3",
        &[STORAGE, INT, PAIR, PAIR, BOOL, HOOKS, DTYPE, DICT],
    ),
    ("torch._utils", "_rebuild_parameter", &[TENSOR, BOOL, HOOKS]),
    (
        "torch._utils",
        "_rebuild_parameter_with_state",
        &[TENSOR, BOOL, HOOKS, DICT],
    ),
    (
        "torch._utils",
        "_rebuild_qtensor",
        &[STORAGE, INT, PAIR, PAIR, ARGUMENTS, BOOL, HOOKS],
    ),
    (
        "torch._utils",
        "_rebuild_sparse_tensor",
        &[DTYPE, ARGUMENTS],
    ),
    (
        "torch._utils",
        "_rebuild_sparse_csr_tensor",
        &[DTYPE, ARGUMENTS],
    ),
    (
        "torch._utils",
        "_rebuild_nested_tensor",
        &[TENSOR, TENSOR, TENSOR, TENSOR],
    ),
    (
        "torch._utils",
        "_rebuild_meta_tensor_no_storage",
        &[DTYPE, PAIR, PAIR, BOOL],
    ),
    (
        "torch._utils",
        "_rebuild_device_tensor_from_cpu_tensor",
        &[TENSOR, DTYPE, DEVICE, BOOL],
    ),
    (
        "torch._utils",
        "_rebuild_device_tensor_from_numpy",
        &[TENSOR, DTYPE, INT, BOOL],
    ),
    (
        "torch._utils",
        "_rebuild_xla_tensor",
        &[TENSOR, DTYPE, INT, BOOL],
    ),
    (
        "torch._utils",
        "_rebuild_wrapper_subclass",
        &[CLASS, DTYPE, PAIR, PAIR, INT, DTYPE, INT, BOOL],
    ),
    (
        "torch._tensor",
        "_rebuild_from_type",
        &[FUNCTION, CLASS, ARGUMENTS, DICT],
    ),
    (
        "torch._tensor",
        "_rebuild_from_type_v2",
        &[FUNCTION, CLASS, ARGUMENTS, DICT],
    ),
];

/// A pickle that calls a function with these arguments.
pub(crate) fn call<'a>(module: &str, name: &str, args: impl Iterator<Item = &'a str>) -> Vec<u8> {
    let args: String = args.collect();
    format!("c{module}\n{name}\n({args}tR.").into_bytes()
}

/// Each function with no argument, with one, and so on to three more than it takes. The name of a pickle says which it is.
pub(crate) fn pickles() -> impl Iterator<Item = (String, Vec<u8>)> {
    FUNCTIONS.iter().flat_map(|&(module, name, args)| {
        (0..=args.len() + 3).map(move |n| {
            let args = args.iter().copied().chain(std::iter::repeat("N")).take(n);
            (format!("{name}-{n}"), call(module, name, args))
        })
    })
}
