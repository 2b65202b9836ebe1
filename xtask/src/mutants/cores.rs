//! Which code is mutated, and which tests have to notice.

/// Code that must not be wrong, and the packages whose tests judge it.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) name: &'static str,
    /// Files and patterns, from the root of the workspace.
    pub(crate) files: &'static [&'static str],
    /// Each judges what those before it have not noticed, so the quickest to build and to run comes first.
    pub(crate) judges: &'static [Judge],
}

/// Tests of some packages.
#[derive(Debug)]
pub(crate) struct Judge {
    pub(crate) packages: &'static [&'static str],
    /// Which of their tests: arguments of `cargo test` and `cargo nextest run`.
    pub(crate) tests: &'static [&'static str],
}

pub(crate) const CORES: &[Core] = &[
    Core {
        name: "geometry",
        files: &[
            "crates/reshard-model/src/region.rs",
            "crates/reshard-model/src/region/*.rs",
            "crates/reshard-model/src/boxes.rs",
            "crates/reshard-model/src/overlap.rs",
            "crates/reshard-model/src/layout.rs",
            "crates/reshard-model/src/dims.rs",
        ],
        judges: &[Judge {
            packages: &["reshard-model"],
            tests: &["--tests"],
        }],
    },
    Core {
        name: "plan",
        files: &[
            "crates/reshard-plan/src/read.rs",
            "crates/reshard-plan/src/load.rs",
            "crates/reshard-plan/src/save.rs",
            "crates/reshard-plan/src/save/*.rs",
            "crates/reshard-plan/src/global.rs",
            "crates/reshard-plan/src/global/*.rs",
            "crates/reshard-plan/src/index.rs",
            "crates/reshard-plan/src/metadata/builder.rs",
        ],
        judges: &[
            Judge {
                packages: &["reshard-plan"],
                tests: &["--test", "plan"],
            },
            Judge {
                packages: &["reshard-plan"],
                tests: &["--tests"],
            },
        ],
    },
    Core {
        name: "comm",
        files: &[
            "crates/reshard-comm/src/*.rs",
            "crates/reshard-comm/src/local/*.rs",
        ],
        judges: &[
            Judge {
                packages: &["reshard-comm"],
                tests: &["--test", "protocol"],
            },
            Judge {
                packages: &["reshard-comm"],
                tests: &["--tests"],
            },
        ],
    },
    Core {
        name: "reader",
        files: &[
            "crates/reshard-torch-dist/src/reader.rs",
            "crates/reshard-torch-dist/src/reader/*.rs",
            "crates/reshard-torch-dist/src/table.rs",
        ],
        judges: &[
            Judge {
                packages: &["reshard-cli"],
                tests: &["--test", "it"],
            },
            Judge {
                packages: &["reshard-golden"],
                tests: &["--test", "it"],
            },
            Judge {
                packages: &["reshard-torch-dist", "reshard"],
                tests: &["--tests"],
            },
        ],
    },
    Core {
        name: "commit",
        files: &[
            "crates/reshard-storage/src/local.rs",
            "crates/reshard-storage/src/local/*.rs",
        ],
        judges: &[
            Judge {
                packages: &["reshard-storage"],
                tests: &[
                    "--lib", "--test", "durable", "--test", "exchange", "--test", "local",
                    "--test", "replace",
                ],
            },
            Judge {
                packages: &["reshard-storage"],
                tests: &["--test", "contract", "--test", "read_into"],
            },
            Judge {
                packages: &["reshard-storage"],
                tests: &["--tests"],
            },
        ],
    },
    Core {
        name: "save",
        files: &[
            "crates/reshard-strategy/src/pipeline/save.rs",
            "crates/reshard-strategy/src/pipeline/save/*.rs",
        ],
        judges: &[
            Judge {
                packages: &["reshard-strategy"],
                tests: &["--lib"],
            },
            Judge {
                packages: &["reshard"],
                tests: &["--tests"],
            },
            Judge {
                packages: &["reshard-laws"],
                tests: &["--tests"],
            },
            Judge {
                packages: &["reshard-example"],
                tests: &["--tests"],
            },
        ],
    },
    Core {
        name: "pickle",
        files: &[
            "crates/reshard-torch-format/src/limits.rs",
            "crates/reshard-torch-format/src/pickle/machine.rs",
            "crates/reshard-torch-format/src/pickle/memo.rs",
            "crates/reshard-torch-format/src/value/read.rs",
        ],
        judges: &[
            Judge {
                packages: &["reshard-torch-format"],
                tests: &["--test", "it"],
            },
            Judge {
                packages: &["reshard-torch-format"],
                tests: &["--tests"],
            },
        ],
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shell::root;

    #[test]
    fn every_file_of_a_core_is_there() {
        for file in CORES.iter().flat_map(|core| core.files) {
            let dir = file.strip_suffix("/*.rs");
            assert!(
                root().join(dir.unwrap_or(file)).exists(),
                "{file} moved: say so in CORES"
            );
        }
    }
}
