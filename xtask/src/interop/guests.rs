//! The programs that are tried, and what each is asked to do.

use crate::venv::{MCORE_012, MCORE_019, TORCH_21, TORCH_24, TORCH_215, Venv};

/// What one program is asked to do with one spec.
pub(super) struct Case {
    /// The program's name, as people and folders call it.
    pub(super) who: &'static str,
    pub(super) spec: &'static str,
    /// Whether PyTorch's own converter has to manage as well.
    pub(super) converts: bool,
}

/// What is asked of the programs of one Python; its needs are met one after the other, so that no more than one is needed at a time.
pub(super) struct Guest {
    pub(super) venv: &'static Venv,
    pub(super) cases: &'static [Case],
    /// The flavours besides the default that its PyTorch loads, and on how many ranks.
    pub(super) flavours: &'static [(&'static str, u32)],
    /// Whether it loads what a sharding policy cut and spread over files.
    pub(super) policies: bool,
    /// The program that saves a distributed optimizer, and in which forms.
    pub(super) optimizers: (&'static str, &'static [&'static str]),
    /// Whether its optimizer loads what all optimizers so far were rewritten as.
    pub(super) canonical: bool,
    /// Whether it has what only the newest Megatron Core has: common state in an object, and `integrity.json`.
    pub(super) newest_megatron: bool,
    /// Whether what only the newest PyTorch does is tried too: rank-local metadata, planners.
    pub(super) newest: bool,
    /// Whether its PyTorch has DTensors that reshard reads in files of ranks, and no other guest has this version.
    pub(super) rank_files: bool,
    /// `true` if it takes part in the short run that each change gets.
    pub(super) short: bool,
}

/// Newer versions of Megatron Core come after older ones, whose optimizers they load.
pub(super) const GUESTS: &[Guest] = &[
    Guest {
        venv: &MCORE_012,
        cases: &[
            Case {
                who: "mcore-0.12",
                spec: "megatron",
                converts: false,
            },
            Case {
                who: "mcore-0.12",
                spec: FLAT,
                converts: false,
            },
            Case {
                who: "mcore-0.12",
                spec: MCORE_ZARR,
                converts: false,
            },
        ],
        flavours: &[],
        policies: false,
        optimizers: (
            "mcore-0.12",
            &[
                "fully_sharded_model_space",
                "fully_sharded_bucket_space",
                "dp_zero_gather_scatter",
            ],
        ),
        canonical: false,
        newest_megatron: false,
        newest: false,
        rank_files: true,
        short: false,
    },
    Guest {
        venv: &TORCH_215,
        cases: &[
            Case {
                who: "torch-2.15",
                spec: "dcp",
                converts: true,
            },
            Case {
                who: "torch-2.15",
                spec: "dcp-2.4",
                converts: true,
            },
            Case {
                who: "torch-2.15",
                spec: "dcp-new",
                converts: true,
            },
            Case {
                who: "torch-2.15",
                spec: "surrogates",
                converts: true,
            },
            Case {
                who: "mcore-0.16",
                spec: "megatron",
                converts: false,
            },
            Case {
                who: "mcore-0.16",
                spec: "megatron-new",
                converts: false,
            },
        ],
        flavours: &[("2.3", 1), ("2.4", 1), ("2.15", 3)],
        policies: true,
        optimizers: (
            "mcore-0.16",
            &[
                "dp_reshardable",
                "dp_zero_gather_scatter",
                "fully_reshardable",
            ],
        ),
        canonical: true,
        newest_megatron: false,
        newest: true,
        rank_files: true,
        short: true,
    },
    Guest {
        venv: &MCORE_019,
        cases: &[
            Case {
                who: "mcore-0.19",
                spec: "megatron",
                converts: false,
            },
            Case {
                who: "mcore-0.19",
                spec: "megatron-new",
                converts: false,
            },
        ],
        flavours: &[],
        policies: false,
        optimizers: ("mcore-0.19", &["dp_reshardable"]),
        canonical: true,
        newest_megatron: true,
        newest: false,
        rank_files: false,
        short: false,
    },
    Guest {
        venv: &TORCH_24,
        cases: &[
            Case {
                who: "torch-2.4",
                spec: "dcp",
                converts: true,
            },
            Case {
                who: "torch-2.4",
                spec: "dcp-2.4",
                converts: true,
            },
            Case {
                who: "torch-2.4",
                spec: "surrogates",
                converts: true,
            },
        ],
        flavours: &[("2.3", 1), ("2.4", 3)],
        policies: true,
        optimizers: ("", &[]),
        canonical: false,
        newest_megatron: false,
        newest: false,
        rank_files: true,
        short: false,
    },
    Guest {
        venv: &TORCH_21,
        cases: &[
            Case {
                who: "torch-2.1",
                spec: "dcp",
                converts: false,
            },
            Case {
                who: "torch-2.1",
                spec: "surrogates",
                converts: false,
            },
        ],
        flavours: &[],
        policies: true,
        optimizers: ("", &[]),
        canonical: false,
        newest_megatron: false,
        newest: false,
        rank_files: false,
        short: true,
    },
];

/// Flattened ranges.
pub(super) const FLAT: &str = "megatron-flat";
/// Another format, with flattened ranges too.
pub(super) const MCORE_ZARR: &str = "megatron-zarr";
