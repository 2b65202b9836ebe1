//! The one table of globals: which of them reading interprets, and which run code when Python loads them.

use super::names::modern;

/// What loading a global with Python may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// It only makes data. reshard interprets it, or keeps it as an inert object.
    Allowed,
    /// The table does not have it. reshard keeps it as an inert object; Python would import and perhaps call it.
    Unknown,
    /// It can run code, load other pickles, or reach files, processes or the network.
    RunsCode,
}

impl Verdict {
    /// Its name: `allowed`, `unknown` or `runs code`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Unknown => "unknown",
            Self::RunsCode => "runs code",
        }
    }
}

/// The names of a module that run code.
enum Runs {
    /// Those.
    Names(&'static [&'static str]),
    /// All that are not allowed, and all of its submodules.
    All,
}

/// A module, its names that are allowed, and those that run code.
type Row = (&'static str, &'static [&'static str], Runs);

const NOTHING: Runs = Runs::Names(&[]);

/// Sorted by module.
const TABLE: &[Row] = &[
    ("_aix_support", &[], Runs::All),
    ("_codecs", &["encode", "decode"], NOTHING),
    ("_ctypes", &[], Runs::All),
    ("_frozen_importlib", &[], Runs::All),
    ("_frozen_importlib_external", &[], Runs::All),
    ("_functools", &["partial"], Runs::Names(&["reduce"])),
    ("_imp", &[], Runs::All),
    ("_interpreters", &[], Runs::All),
    (
        "_io",
        &["BytesIO", "StringIO"],
        Runs::Names(&["FileIO", "open", "open_code"]),
    ),
    ("_operator", &[], Runs::Names(OPERATORS)),
    ("_osx_support", &[], Runs::All),
    ("_pickle", &[], Runs::All),
    ("_posixsubprocess", &[], Runs::All),
    ("_pyrepl", &[], Runs::All),
    ("_signal", &[], Runs::All),
    ("_socket", &[], Runs::All),
    ("_sqlite3", &[], Runs::All),
    ("_thread", &[], Runs::All),
    ("_xxsubinterpreters", &[], Runs::All),
    ("aiohttp", &[], Runs::All),
    ("argparse", &["Namespace"], NOTHING),
    ("asyncio", &[], Runs::All),
    ("atexit", &[], Runs::All),
    ("bdb", &[], Runs::All),
    (
        "builtins",
        &[
            "bool",
            "bytearray",
            "bytes",
            "complex",
            "dict",
            "float",
            "frozenset",
            "int",
            "list",
            "object",
            "range",
            "set",
            "slice",
            "str",
            "tuple",
        ],
        Runs::Names(&[
            "__build_class__",
            "__import__",
            "apply",
            "breakpoint",
            "compile",
            "copyright",
            "delattr",
            "dir",
            "eval",
            "exec",
            "execfile",
            "exit",
            "file",
            "getattr",
            "globals",
            "help",
            "input",
            "locals",
            "open",
            "quit",
            "raw_input",
            "reload",
            "setattr",
            "vars",
        ]),
    ),
    ("cProfile", &[], Runs::All),
    ("cffi", &[], Runs::All),
    ("cloudpickle", &[], Runs::All),
    ("code", &[], Runs::All),
    ("codeop", &[], Runs::All),
    (
        "collections",
        &[
            "Counter",
            "OrderedDict",
            "UserDict",
            "UserList",
            "defaultdict",
            "deque",
        ],
        NOTHING,
    ),
    ("commands", &[], Runs::All),
    ("compileall", &[], Runs::All),
    (
        "copyreg",
        &["__newobj__", "__newobj_ex__", "_reconstructor"],
        NOTHING,
    ),
    ("ctypes", &[], Runs::All),
    (
        "datetime",
        &["date", "datetime", "time", "timedelta", "timezone"],
        NOTHING,
    ),
    ("decimal", &["Decimal"], NOTHING),
    ("dill", &[], Runs::All),
    ("distutils", &[], Runs::All),
    ("doctest", &[], Runs::All),
    ("ensurepip", &[], Runs::All),
    ("fickling", &[], Runs::All),
    ("filecmp", &[], Runs::All),
    ("fileinput", &[], Runs::All),
    ("fractions", &["Fraction"], NOTHING),
    ("ftplib", &[], Runs::All),
    ("functools", &["partial"], Runs::Names(&["reduce"])),
    ("gc", &[], Runs::All),
    ("glob", &[], Runs::All),
    ("http", &[], Runs::All),
    ("idlelib", &[], Runs::All),
    ("imaplib", &[], Runs::All),
    ("imp", &[], Runs::All),
    ("importlib", &[], Runs::All),
    ("inspect", &[], Runs::All),
    (
        "io",
        &["BytesIO", "StringIO"],
        Runs::Names(&["FileIO", "OpenWrapper", "open", "open_code"]),
    ),
    ("joblib", &[], Runs::All),
    ("lib2to3", &[], Runs::All),
    ("linecache", &[], Runs::All),
    ("logging", &[], Runs::Names(&["FileHandler"])),
    ("logging.config", &[], Runs::All),
    ("logging.handlers", &[], Runs::All),
    ("marshal", &[], Runs::All),
    (
        "megatron.core.dist_checkpointing.strategies.torch",
        &["MCoreMetadata"],
        NOTHING,
    ),
    ("mmap", &[], Runs::All),
    ("model_unpickler", &[], Runs::All),
    ("modelaudit", &[], Runs::All),
    ("modelscan", &[], Runs::All),
    ("multiprocessing", &[], Runs::All),
    ("nntplib", &[], Runs::All),
    ("nt", &[], Runs::All),
    (
        "numpy",
        &[
            "bool_", "dtype", "float16", "float32", "float64", "int16", "int32", "int64", "int8",
            "ndarray", "uint16", "uint32", "uint64", "uint8",
        ],
        Runs::Names(&[
            "fromfile", "load", "loadtxt", "memmap", "save", "savetxt", "savez",
        ]),
    ),
    (
        "numpy._core.multiarray",
        &["_reconstruct", "scalar"],
        Runs::Names(&["fromfile"]),
    ),
    ("numpy._core.numeric", &["_frombuffer"], NOTHING),
    (
        "numpy.core.multiarray",
        &["_reconstruct", "scalar"],
        Runs::Names(&["fromfile"]),
    ),
    ("numpy.core.numeric", &["_frombuffer"], NOTHING),
    ("numpy.ctypeslib", &[], Runs::All),
    ("numpy.distutils", &[], Runs::All),
    ("numpy.f2py", &[], Runs::All),
    (
        "numpy.random._pickle",
        &[
            "__bit_generator_ctor",
            "__generator_ctor",
            "__randomstate_ctor",
        ],
        NOTHING,
    ),
    ("numpy.testing", &[], Runs::All),
    ("operator", &["call"], Runs::Names(OPERATORS)),
    ("os", &[], Runs::All),
    ("pandas", &[], Runs::Names(&["eval", "read_pickle"])),
    ("pandas.io", &[], Runs::All),
    ("pathlib", PATHS, Runs::Names(&[])),
    ("pathlib._local", PATHS, Runs::Names(&[])),
    ("pdb", &[], Runs::All),
    ("pexpect", &[], Runs::All),
    ("pickle", &[], Runs::All),
    ("picklescan", &[], Runs::All),
    ("pickletools", &[], Runs::All),
    ("pip", &[], Runs::All),
    ("pkgutil", &[], Runs::All),
    ("platform", &[], Runs::All),
    ("poplib", &[], Runs::All),
    ("posix", &[], Runs::All),
    ("profile", &[], Runs::All),
    ("pty", &[], Runs::All),
    ("py_compile", &[], Runs::All),
    ("pydoc", &[], Runs::All),
    ("requests", &[], Runs::All),
    ("runpy", &[], Runs::All),
    ("saferpickle", &[], Runs::All),
    ("select", &[], Runs::All),
    ("selectors", &[], Runs::All),
    ("setuptools", &[], Runs::All),
    ("shelve", &[], Runs::All),
    ("shutil", &[], Runs::All),
    ("signal", &[], Runs::All),
    ("site", &[], Runs::All),
    ("smtplib", &[], Runs::All),
    ("socket", &[], Runs::All),
    ("socketserver", &[], Runs::All),
    ("sqlite3", &[], Runs::All),
    ("ssl", &[], Runs::All),
    ("subprocess", &[], Runs::All),
    ("sys", &[], Runs::All),
    ("syslog", &[], Runs::All),
    ("tarfile", &[], Runs::All),
    ("telnetlib", &[], Runs::All),
    ("tempfile", &[], Runs::All),
    ("test", &[], Runs::All),
    ("threading", &[], Runs::All),
    ("timeit", &[], Runs::All),
    (
        "torch",
        &[
            "BFloat16Storage",
            "BoolStorage",
            "ByteStorage",
            "CharStorage",
            "ComplexDoubleStorage",
            "ComplexFloatStorage",
            "DoubleStorage",
            "FloatStorage",
            "HalfStorage",
            "IntStorage",
            "LongStorage",
            "QInt32Storage",
            "QInt8Storage",
            "QUInt2x4Storage",
            "QUInt4x2Storage",
            "QUInt8Storage",
            "ShortStorage",
            "Size",
            "Tensor",
            "UntypedStorage",
            "_UntypedStorage",
            "bcomplex32",
            "bfloat16",
            "bits16",
            "bits1x8",
            "bits2x4",
            "bits4x2",
            "bits8",
            "bool",
            "complex128",
            "complex32",
            "complex64",
            "device",
            "float16",
            "float32",
            "float4_e2m1fn_x2",
            "float64",
            "float8_e4m3fn",
            "float8_e4m3fnuz",
            "float8_e5m2",
            "float8_e5m2fnuz",
            "float8_e8m0fnu",
            "int1",
            "int16",
            "int2",
            "int3",
            "int32",
            "int4",
            "int5",
            "int6",
            "int64",
            "int7",
            "int8",
            "qint32",
            "qint8",
            "quint2x4",
            "quint4x2",
            "quint8",
            "strided",
            "uint1",
            "uint16",
            "uint2",
            "uint3",
            "uint32",
            "uint4",
            "uint5",
            "uint6",
            "uint64",
            "uint7",
            "uint8",
        ],
        Runs::Names(&["compile", "load", "save"]),
    ),
    ("torch._dynamo", &[], Runs::All),
    ("torch._inductor", &[], Runs::All),
    (
        "torch._tensor",
        &["_rebuild_from_type", "_rebuild_from_type_v2"],
        NOTHING,
    ),
    (
        "torch._utils",
        &[
            "_rebuild_device_tensor_from_cpu_tensor",
            "_rebuild_device_tensor_from_numpy",
            "_rebuild_meta_tensor_no_storage",
            "_rebuild_nested_tensor",
            "_rebuild_parameter",
            "_rebuild_parameter_with_state",
            "_rebuild_qtensor",
            "_rebuild_sparse_csr_tensor",
            "_rebuild_sparse_tensor",
            "_rebuild_tensor",
            "_rebuild_tensor_v2",
            "_rebuild_tensor_v3",
            "_rebuild_wrapper_subclass",
            "_rebuild_xla_tensor",
        ],
        NOTHING,
    ),
    (
        "torch.cuda",
        &[
            "BFloat16Storage",
            "BoolStorage",
            "ByteStorage",
            "CharStorage",
            "ComplexDoubleStorage",
            "ComplexFloatStorage",
            "DoubleStorage",
            "FloatStorage",
            "HalfStorage",
            "IntStorage",
            "LongStorage",
            "ShortStorage",
        ],
        NOTHING,
    ),
    (
        "torch.distributed._mesh_layout",
        &["_FlatLayout", "_MeshLayout"],
        NOTHING,
    ),
    (
        "torch.distributed._shard.metadata",
        &["ShardMetadata"],
        NOTHING,
    ),
    (
        "torch.distributed._shard.sharded_tensor.api",
        &["ShardedTensor", "ShardedTensor.ProcessGroupState"],
        NOTHING,
    ),
    (
        "torch.distributed._shard.sharded_tensor.metadata",
        &[
            "MEM_FORMAT_ENCODING",
            "ShardedTensorMetadata",
            "TensorProperties",
        ],
        NOTHING,
    ),
    (
        "torch.distributed._shard.sharded_tensor.shard",
        &["Shard"],
        NOTHING,
    ),
    (
        "torch.distributed._shard.sharding_spec.api",
        &["EnumerableShardingSpec"],
        NOTHING,
    ),
    (
        "torch.distributed._shard.sharding_spec.chunk_sharding_spec",
        &["ChunkShardingSpec"],
        NOTHING,
    ),
    ("torch.distributed._tensor", &["DTensor"], NOTHING),
    (
        "torch.distributed._tensor._dtensor_spec",
        &["DTensorSpec", "TensorMeta"],
        NOTHING,
    ),
    ("torch.distributed._tensor.api", &["DTensor"], NOTHING),
    (
        "torch.distributed._tensor.placement_types",
        &[
            "DTensorSpec",
            "TensorMeta",
            "Partial",
            "Replicate",
            "Shard",
            "_Partial",
            "_StridedShard",
        ],
        NOTHING,
    ),
    (
        "torch.distributed.checkpoint.filesystem",
        &["_StorageInfo"],
        NOTHING,
    ),
    (
        "torch.distributed.checkpoint.metadata",
        &[
            "BytesStorageMetadata",
            "ChunkStorageMetadata",
            "Metadata",
            "MetadataIndex",
            "StorageMeta",
            "TensorProperties",
            "TensorStorageMetadata",
            "_MEM_FORMAT_ENCODING",
        ],
        NOTHING,
    ),
    (
        "torch.distributed.checkpoint.planner",
        &[
            "BytesIOWriteData",
            "LoadItemType",
            "LoadPlan",
            "ReadItem",
            "SavePlan",
            "TensorWriteData",
            "WriteItem",
            "WriteItemType",
        ],
        NOTHING,
    ),
    ("torch.distributed.device_mesh", &["DeviceMesh"], NOTHING),
    (
        "torch.distributed.remote_device",
        &["_remote_device"],
        NOTHING,
    ),
    ("torch.distributed.rpc", &[], Runs::All),
    ("torch.distributed.tensor", &["DTensor"], NOTHING),
    ("torch.distributed.tensor._api", &["DTensor"], NOTHING),
    (
        "torch.distributed.tensor._dtensor_spec",
        &["DTensorSpec", "ShardOrderEntry", "TensorMeta"],
        NOTHING,
    ),
    (
        "torch.distributed.tensor.placement_types",
        &["Partial", "Replicate", "Shard", "_Partial", "_StridedShard"],
        NOTHING,
    ),
    ("torch.fx.experimental.symbolic_shapes", &[], Runs::All),
    ("torch.fx.graph", &[], Runs::Names(&["_exec_with_source"])),
    ("torch.fx.graph_module", &[], Runs::All),
    ("torch.hub", &[], Runs::All),
    (
        "torch.jit",
        &[],
        Runs::Names(&["CompilationUnit", "load", "script", "trace"]),
    ),
    ("torch.jit.unsupported_tensor_ops", &[], Runs::All),
    ("torch.nn.parameter", &["Parameter"], NOTHING),
    ("torch.package", &[], Runs::All),
    (
        "torch.serialization",
        &["_get_layout"],
        Runs::Names(&["load", "save"]),
    ),
    (
        "torch.storage",
        &[
            "TypedStorage",
            "UntypedStorage",
            "_TypedStorage",
            "_UntypedStorage",
        ],
        NOTHING,
    ),
    ("torch.utils._config_module", &[], Runs::All),
    ("torch.utils.bottleneck", &[], Runs::All),
    ("torch.utils.collect_env", &[], Runs::All),
    ("torch.utils.cpp_extension", &[], Runs::All),
    ("torch.utils.data.datapipes", &[], Runs::All),
    ("torch.utils.model_zoo", &[], Runs::All),
    // torchao's tensors are made by `_rebuild_wrapper_subclass`, and the rest are enums and dataclasses. torchao itself lets `torch.load` with
    // `weights_only=True` make them.
    (
        "torchao.dtypes.affine_quantized_tensor",
        &["AffineQuantizedTensor"],
        NOTHING,
    ),
    (
        "torchao.dtypes.floatx.float8_layout",
        &["Float8AQTTensorImpl", "Float8Layout"],
        NOTHING,
    ),
    ("torchao.dtypes.nf4tensor", &["NF4Tensor"], NOTHING),
    (
        "torchao.dtypes.uintx.plain_layout",
        &["PlainAQTTensorImpl"],
        NOTHING,
    ),
    (
        "torchao.dtypes.uintx.q_dq_layout",
        &["QDQLayout", "QDQTensorImpl"],
        NOTHING,
    ),
    (
        "torchao.dtypes.uintx.uintx_layout",
        &["UintxAQTTensorImpl", "UintxLayout", "UintxTensor"],
        NOTHING,
    ),
    ("torchao.dtypes.utils", &["PlainLayout"], NOTHING),
    ("torchao.float8.inference", &["Float8MMConfig"], NOTHING),
    (
        "torchao.prototype.mx_formats.config",
        &["MXGemmKernelChoice", "ScaleCalculationMode"],
        NOTHING,
    ),
    (
        "torchao.prototype.mx_formats.mx_tensor",
        &["MXTensor", "QuantizeTensorToMXKwargs"],
        NOTHING,
    ),
    (
        "torchao.prototype.mx_formats.nvfp4_tensor",
        &["NVFP4Tensor", "QuantizeTensorToNVFP4Kwargs"],
        NOTHING,
    ),
    (
        "torchao.quantization",
        &[
            "Float8Tensor",
            "Int4PlainInt32Tensor",
            "Int4Tensor",
            "Int4TilePackedTo4dTensor",
            "Int8Tensor",
            "IntxUnpackedToInt8Tensor",
        ],
        NOTHING,
    ),
    (
        "torchao.quantization.granularity",
        &[
            "PerAxis",
            "PerBlock",
            "PerGroup",
            "PerRow",
            "PerTensor",
            "PerToken",
        ],
        NOTHING,
    ),
    (
        "torchao.quantization.linear_activation_quantized_tensor",
        &["LinearActivationQuantizedTensor"],
        NOTHING,
    ),
    (
        "torchao.quantization.quant_primitives",
        &["MappingType", "ZeroPointDomain"],
        NOTHING,
    ),
    (
        "torchao.quantization.quantize_.common.kernel_preference",
        &["KernelPreference"],
        NOTHING,
    ),
    (
        "torchao.quantization.quantize_.workflows.float8.float8_tensor",
        &["QuantizeTensorToFloat8Kwargs"],
        NOTHING,
    ),
    (
        "torchao.quantization.quantize_.workflows.int8.int8_tensor",
        &["QuantizeTensorToInt8Kwargs"],
        NOTHING,
    ),
    (
        "torchao.quantization.quantize_.workflows.nf4.nf4_tensor",
        &["NF4Tensor"],
        NOTHING,
    ),
    ("trace", &[], Runs::All),
    (
        "types",
        &["SimpleNamespace"],
        Runs::Names(&["CodeType", "FunctionType", "LambdaType", "MethodType"]),
    ),
    ("unittest", &[], Runs::All),
    ("urllib", &[], Runs::All),
    ("uuid", &["UUID"], Runs::All),
    ("venv", &[], Runs::All),
    ("webbrowser", &[], Runs::All),
    ("xmlrpc", &[], Runs::All),
    ("zipfile", &[], Runs::All),
    ("zipimport", &[], Runs::All),
];

const OPERATORS: &[&str] = &["attrgetter", "itemgetter", "methodcaller"];
const PATHS: &[&str] = &[
    "Path",
    "PosixPath",
    "PurePath",
    "PurePosixPath",
    "PureWindowsPath",
    "WindowsPath",
];

/// Attributes by which any object leads to the interpreter.
const ESCAPES: &[&str] = &[
    "__base__",
    "__bases__",
    "__builtins__",
    "__class__",
    "__code__",
    "__dict__",
    "__getattribute__",
    "__globals__",
    "__import__",
    "__loader__",
    "__mro__",
    "__reduce__",
    "__reduce_ex__",
    "__self__",
    "__spec__",
    "__subclasses__",
];

/// The most parts of a qualified name.
const DEEPEST: usize = 16;

/// Modules that are dangerous under whatever other module they are reached.
const REACHED: &[&str] = &[
    "builtins",
    "ctypes",
    "importlib",
    "marshal",
    "nt",
    "os",
    "pickle",
    "posix",
    "pty",
    "runpy",
    "shutil",
    "socket",
    "subprocess",
    "sys",
];

fn row(module: &str) -> Option<&'static Row> {
    let at = TABLE
        .binary_search_by(|(name, ..)| (*name).cmp(module))
        .ok()?;
    TABLE.get(at)
}

/// Whether a name of a module is in the table's allow-list, without regard to names of Python 2.
pub(crate) fn is_allowed(module: &str, name: &str) -> bool {
    row(module).is_some_and(|(_, allowed, _)| allowed.contains(&name))
}

fn runs(module: &str, name: &str) -> bool {
    // A submodule has the verdict of its parent.
    let parents = module.match_indices('.').map(|(at, _)| module.get(..at));
    let mut all = parents.flatten().filter_map(row);
    if all.any(|(.., runs)| matches!(runs, Runs::All)) {
        return true;
    }
    let first = name.split('.').next().unwrap_or(name);
    match row(module) {
        Some((_, allowed, Runs::All)) => !allowed.contains(&name),
        Some((_, _, Runs::Names(names))) => names.contains(&first),
        None => false,
    }
}

/// Judges a global by module and qualified name. Names of Python 2 mean those of Python 3.
///
/// ```
/// use reshard_torch_format::pickle::{Verdict, verdict};
/// assert_eq!(verdict("collections", "OrderedDict"), Verdict::Allowed);
/// assert_eq!(verdict("my.models", "Net"), Verdict::Unknown);
/// assert_eq!(verdict("posix", "system"), Verdict::RunsCode);
/// assert_eq!(verdict("torch.serialization", "os.system"), Verdict::RunsCode);
/// ```
pub fn verdict(module: &str, name: &str) -> Verdict {
    let (module, name) = modern(module, name);
    let (module, name) = (&*module, &*name);
    let parts: Vec<&str> = name.split('.').collect();
    // No class is nested so deep. Names that go in circles through modules are.
    if parts.len() > DEEPEST {
        return Verdict::RunsCode;
    }
    let leads_out = |part: &&str| ESCAPES.contains(part) || REACHED.contains(part);
    if parts.iter().any(leads_out) || runs(module, name) {
        return Verdict::RunsCode;
    }
    // Methods of paths write and remove files.
    if module.starts_with("pathlib") && parts.len() > 1 && parts.last() != Some(&"__new__") {
        return Verdict::RunsCode;
    }
    // A function of another module that is reached by way of an attribute.
    let reached = (1..parts.len()).any(|at| {
        let (inner, rest) = parts.split_at(at);
        (0..inner.len()).any(|from| {
            let inner = inner.get(from..).unwrap_or_default().join(".");
            row(&inner).is_some() && runs(&inner, &rest.join("."))
        })
    });
    // The class is what matters of its constructor.
    let made = name.strip_suffix(".__new__").unwrap_or(name);
    match (reached, is_allowed(module, made)) {
        (true, _) => Verdict::RunsCode,
        (false, true) => Verdict::Allowed,
        (false, false) => Verdict::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted() {
        assert!(TABLE.is_sorted_by(|a, b| a.0 < b.0));
    }

    #[test]
    fn names_are_judged_by_module_and_by_what_they_lead_to() {
        for (module, name, want) in [
            ("__builtin__", "eval", Verdict::RunsCode),
            ("builtins", "object.__subclasses__", Verdict::RunsCode),
            ("builtins", "getattr", Verdict::RunsCode),
            ("os.path", "join", Verdict::RunsCode),
            ("asyncio.unix_events", "x", Verdict::RunsCode),
            (
                "numpy.testing._private.utils",
                "runstring",
                Verdict::RunsCode,
            ),
            ("some.module", "os", Verdict::RunsCode),
            ("some.module", "timeit.timeit", Verdict::RunsCode),
            ("pathlib", "PosixPath.unlink", Verdict::RunsCode),
            ("pathlib", "PosixPath", Verdict::Allowed),
            ("uuid", "UUID", Verdict::Allowed),
            ("uuid", "_get_command_stdout", Verdict::RunsCode),
            ("torch", "float32", Verdict::Allowed),
            ("torch", "load", Verdict::RunsCode),
            ("torch", "Tensor.__new__", Verdict::Allowed),
            ("my.os", "Thing", Verdict::Unknown),
            ("my", "a.b.c.d.e.f.g.h.i.j.k.l.m.n.o.p.q", Verdict::RunsCode),
            ("my", "a.b.c.d.e.f.g.h.i.j.k.l.m.n.o.p", Verdict::Unknown),
            ("torch.nn.modules.linear", "Linear", Verdict::Unknown),
        ] {
            assert_eq!(verdict(module, name), want, "{module} {name}");
        }
    }
}
