//! Which code is mutated, and which tests have to notice.

/// Code that must not be wrong, and the packages whose tests judge it.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) name: &'static str,
    /// Files and patterns, from the root of the workspace.
    pub(crate) files: &'static [&'static str],
    /// As few as can judge: all their tests are built and run for each mutant.
    pub(crate) judges: &'static [&'static str],
    /// Which tests of the judges: arguments of `cargo nextest run`. What takes long to build or to run is left out.
    pub(crate) tests: &'static [&'static str],
    /// The tests that judge what has survived those.
    pub(crate) slow: &'static [&'static str],
}

pub(crate) const CORES: &[Core] = &[
    Core {
        name: "geometry",
        files: &[
            "crates/reshard-model/src/region.rs",
            "crates/reshard-model/src/boxes.rs",
            "crates/reshard-model/src/layout.rs",
            "crates/reshard-model/src/dims.rs",
        ],
        judges: &["reshard-model"],
        tests: &["--tests"],
        slow: &[],
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
        judges: &["reshard-plan"],
        tests: &["--test", "plan"],
        slow: &["--tests"],
    },
    Core {
        name: "comm",
        files: &["crates/reshard-comm/src/*.rs", "crates/reshard-comm/src/local/*.rs"],
        judges: &["reshard-comm"],
        tests: &["--tests"],
        slow: &[],
    },
    Core {
        name: "reader",
        files: &[
            "crates/reshard-torch-dist/src/reader.rs",
            "crates/reshard-torch-dist/src/reader/*.rs",
            "crates/reshard-torch-dist/src/table.rs",
        ],
        judges: &["reshard-torch-dist", "reshard", "reshard-golden"],
        tests: &["--lib", "--test", "hostile", "--test", "verify", "--test", "counted", "--test", "it"],
        slow: &["--tests"],
    },
    Core {
        name: "commit",
        files: &["crates/reshard-storage/src/local.rs", "crates/reshard-storage/src/local/*.rs"],
        judges: &["reshard-storage"],
        tests: &[
            "--lib", "--test", "contract", "--test", "durable", "--test", "exchange", "--test", "gather",
            "--test", "local", "--test", "replace",
        ],
        slow: &["--test", "crash"],
    },
    Core {
        name: "save",
        files: &["crates/reshard-strategy/src/pipeline/save.rs"],
        judges: &["reshard", "reshard-laws"],
        tests: &["--tests"],
        slow: &[],
    },
    Core {
        name: "pickle",
        files: &[
            "crates/reshard-torch-format/src/limits.rs",
            "crates/reshard-torch-format/src/pickle/machine.rs",
            "crates/reshard-torch-format/src/pickle/memo.rs",
            "crates/reshard-torch-format/src/value/read.rs",
        ],
        judges: &["reshard-torch-format"],
        tests: &["--tests"],
        slow: &[],
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
            assert!(root().join(dir.unwrap_or(file)).exists(), "{file} moved: say so in CORES");
        }
    }
}
