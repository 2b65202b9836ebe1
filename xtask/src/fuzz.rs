//! Fuzz targets, by cargo-fuzz. They begin with files of the fixtures, and with what they found before.

#[path = "../../crates/reshard-torch-format/tests/it/rebuild/pickles.rs"]
#[expect(dead_code, reason = "the tests of that crate use all of it")]
mod rebuild_pickles;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::shell::{Program, cargo, project_files, root, say, target_dir, tool};

const VERSION: &str = "0.13.2";

/// The longest file that is a first input. Longer ones make the fuzzer slow.
const LONGEST: u64 = 1 << 20;

/// An input that takes longer is a finding.
const TIMEOUT: &str = "-timeout=30";

/// An input that takes more memory is a finding, in MB. The sanitizer takes much of it.
const MEMORY: &str = "-rss_limit_mb=3072";

#[derive(Debug)]
pub(crate) struct Options {
    /// Seconds for each target.
    pub(crate) seconds: u64,
    /// Only these; all, if there are none.
    pub(crate) targets: Vec<String>,
}

/// Files with which a target begins.
struct First {
    target: &'static str,
    /// How the names of these files end.
    ends: &'static [&'static str],
    /// Bytes before each, by which the target knows what it is.
    before: &'static [u8],
}

const fn first(target: &'static str, ends: &'static [&'static str]) -> First {
    First {
        target,
        ends,
        before: &[],
    }
}

/// A chunk of Zarr arrays in these codecs, by their numbers in the target (18 is none), of so many times 48 bytes.
const fn chunk(before: &'static [u8; 3], ends: &'static [&'static str]) -> First {
    First {
        target: "zarr_chunk",
        ends,
        before,
    }
}

/// A shard of six inner chunks, with the form of its index.
const fn shard(form: &'static [u8; 1], ends: &'static [&'static str]) -> First {
    First {
        target: "zarr_shard",
        ends,
        before: form,
    }
}

/// Targets that are not here begin with nothing: they lay their input over files that they make themselves, or take what no file
/// has.
const FIRST: &[First] = &[
    first("archive", &[".pt", ".pth", ".bin", ".distcp"]),
    first("integrity", &["/integrity.json"]),
    first("mapping_file", &[".toml"]),
    first("metadata", &[".metadata"]),
    first("pickle", &[".metadata"]),
    first("safetensors_header", &[".safetensors"]),
    first("safetensors_index", &[".safetensors.index.json"]),
    first("tensor_bundle_protos", &[".index", "/checkpoint"]),
    first("tensor_bundle_sstable", &[".index"]),
    First {
        target: "rank_files",
        ends: &["/metadata.pkl"],
        before: &[0],
    },
    First {
        target: "rank_files",
        ends: &["rank0.pt", "model_0.pt"],
        before: &[1],
    },
    First {
        target: "torch_save_checkpoint",
        ends: &[".pt", ".pth", ".bin"],
        before: &[0],
    },
    First {
        target: "torch_save_checkpoint",
        ends: &[".index.json"],
        before: &[2],
    },
    chunk(&[0, 18, 1], &["/v2/gzip/0.0", "/v3/gzip/c/1/1"]),
    chunk(&[1, 18, 1], &["/v2/zlib/0.0", "/v3/zlib/c/1/1"]),
    chunk(&[3, 18, 1], &["/v2/bz2/0.0", "/v3/bz2/c/1/1"]),
    chunk(&[5, 18, 43], &["/v2/lz4/0.0", "/v3/lz4/c/1/1"]),
    chunk(&[12, 18, 1], &["/v2/delta_narrow/0.0"]),
    chunk(&[2, 18, 2], &["/v2/zstd/0.0", "/v3/zstd/c/1/1"]),
    chunk(&[2, 18, 1], &["/v3/zstd_sum/c/0/0"]),
    chunk(
        &[3, 6, 1],
        &["/tensorstore_v2/blosc/0.0", "/tensorstore_v3/blosc/c/0/0"],
    ),
    chunk(&[4, 18, 43], &["/v2/blosc/0.0", "/v2/blosc_bits/1.1"]),
    chunk(&[6, 18, 1], &["/v3/crc32c/c/0/0"]),
    chunk(&[0, 6, 1], &["/v3/gzip_crc32c/c/0/0"]),
    // A checksum behind an index at the end or at the start.
    shard(
        &[4],
        &[
            "/float32_sharded/c/0/0",
            "/sharded/c/1/1",
            "/sharded_holes/c/0/1",
            "/sharded_zstd/c/0/0",
        ],
    ),
    shard(
        &[5],
        &[
            "/sharded_start/c/0/0",
            "/sharded_start/c/1/1",
            "/bfloat16_sharded/c/0/0",
        ],
    ),
    first("zarr_v2", &["/.zarray", "/.zmetadata"]),
    first("zarr_v3", &["/zarr.json"]),
];

impl First {
    /// The files of the project that are first inputs of this target.
    fn files<'p>(&self, project: &'p [PathBuf]) -> impl Iterator<Item = &'p PathBuf> {
        let is_fixture = |file: &Path| {
            let mut parts = file.components();
            parts.any(|part| part.as_os_str() == "fixtures" || part.as_os_str() == "maps")
        };
        project.iter().filter(move |file| {
            let name = format!("/{}", file.display());
            is_fixture(file) && self.ends.iter().any(|end| name.ends_with(end))
        })
    }

    /// Puts the first inputs into a folder, those that are not too long. Returns how many there are.
    fn copy(&self, project: &[PathBuf], corpus: &Path) -> Result<usize> {
        let mut copied = 0;
        for file in self.files(project) {
            let from = root().join(file);
            if fs::metadata(&from)?.len() > LONGEST {
                continue;
            }
            let before = self.before.iter().map(|n| format!("{n}-"));
            let name = before.chain([file.to_string_lossy().replace('/', "-")]);
            let bytes = [self.before, &fs::read(&from)?].concat();
            fs::write(corpus.join(name.collect::<String>()), bytes)?;
            copied += 1;
        }
        Ok(copied)
    }
}

/// Puts the first inputs into a folder that are made here: for `pickle`, calls of every function of torch that makes a tensor.
/// Returns how many there are.
fn write_made(target: &str, corpus: &Path) -> Result<usize> {
    if target != "pickle" {
        return Ok(0);
    }
    let mut written = 0;
    for (name, pickle) in rebuild_pickles::pickles() {
        fs::write(corpus.join(name), pickle)?;
        written += 1;
    }
    Ok(written)
}

/// Builds the targets, then runs one for each CPU at a time. All of them run even if one fails.
pub(crate) fn run(options: &Options) -> Result<()> {
    let all = targets()?;
    if let Some(unknown) = options.targets.iter().find(|t| !all.contains(t)) {
        bail!(
            "there is no fuzz target `{unknown}`; there are {}",
            all.join(", ")
        );
    }
    let fuzzer = Fuzzer::new()?;
    let chosen = match &*options.targets {
        [] => &all,
        some => some,
    };
    for target in chosen {
        fuzzer.build(target)?;
    }
    let next = AtomicUsize::new(0);
    let failed = Mutex::new(Vec::new());
    let work = || {
        while let Some(target) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
            let program = fuzzer.program(target, options.seconds);
            if let Err(error) = program.and_then(Program::run) {
                let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                failed.push(format!("{target}: {error:#}"));
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    if !failed.is_empty() {
        bail!(
            "{} fuzz targets failed:\n{}",
            failed.len(),
            failed.join("\n")
        );
    }
    Ok(())
}

/// The names of all targets, in order.
pub(crate) fn targets() -> Result<Vec<String>> {
    let metadata = cargo(&[
        "metadata",
        "--no-deps",
        "--format-version=1",
        "--manifest-path",
    ])
    .args([root().join("fuzz/Cargo.toml")])
    .read()?;
    let metadata: Value = serde_json::from_str(&metadata).context("cargo metadata is no JSON")?;
    let targets = metadata["packages"][0]["targets"].as_array();
    let names = targets.into_iter().flatten();
    let mut names: Vec<String> = names
        .filter_map(|target| target["name"].as_str().map(str::to_owned))
        .collect();
    names.sort();
    Ok(names)
}

/// The program, and how it finds a compiler.
struct Fuzzer {
    program: PathBuf,
    env: BTreeMap<&'static str, OsString>,
    project: Vec<PathBuf>,
}

impl Fuzzer {
    fn new() -> Result<Self> {
        Ok(Self {
            program: tool("cargo-fuzz", VERSION)?,
            env: compiler(),
            project: project_files()?,
        })
    }

    /// What runs a target for so many seconds, from its first inputs and from what it found before.
    fn program(&self, target: &str, seconds: u64) -> Result<Program> {
        let corpus = target_dir().join("fuzz/corpus").join(target);
        let seeds = target_dir().join("fuzz/first").join(target);
        for folder in [&corpus, &seeds] {
            fs::create_dir_all(folder)?;
        }
        let mut copied = 0;
        for first in FIRST.iter().filter(|first| first.target == target) {
            copied += first.copy(&self.project, &seeds)?;
        }
        let made = write_made(target, &seeds)?;
        say(format!(
            "{target}: {copied} files of the fixtures and {made} made files are first inputs"
        ));
        let program = self
            .cargo_fuzz("run", target)
            .args([&corpus, &seeds])
            .args([
                "--",
                TIMEOUT,
                MEMORY,
                "-verbosity=0",
                "-print_final_stats=1",
            ])
            .args([format!("-max_total_time={seconds}")]);
        Ok(program)
    }

    fn build(&self, target: &str) -> Result<()> {
        self.cargo_fuzz("build", target).run()
    }

    fn cargo_fuzz(&self, command: &str, target: &str) -> Program {
        let mut program = Program::new(&self.program);
        for (name, value) in &self.env {
            program = program.env(name, value);
        }
        let build = target_dir().join("fuzz/build");
        program
            .args(["fuzz", command])
            .args(["--target-dir"])
            .args([build.as_os_str(), target.as_ref()])
    }
}

/// A fuzzer needs flags that only a nightly compiler has. If there is none, the compiler at hand is told to take them. A compiler that
/// the caller has told so is the one at hand, too.
fn compiler() -> BTreeMap<&'static str, OsString> {
    const BOOTSTRAP: &str = "RUSTC_BOOTSTRAP";
    let nightly = || {
        Program::new("rustc")
            .env("RUSTUP_TOOLCHAIN", "nightly")
            .args(["--version"])
            .read()
            .is_ok_and(|said| said.contains("nightly"))
    };
    match std::env::var_os(BOOTSTRAP).is_none() && nightly() {
        true => [("RUSTUP_TOOLCHAIN", "nightly".into())].into(),
        false => [(BOOTSTRAP, "1".into())].into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_that_begin_with_files_find_some() {
        let (project, all) = (project_files().unwrap(), targets().unwrap());
        for first in FIRST {
            let name = first.target;
            assert!(all.iter().any(|t| t == name), "there is no target {name}");
            let short = |file: &&PathBuf| fs::metadata(root().join(file)).unwrap().len() <= LONGEST;
            let found = first.files(&project).filter(short).count();
            assert!(
                found > 0,
                "{name} begins with no file that ends with {:?}",
                first.ends
            );
            let home = target_dir().join("fuzz/test").join(name);
            fs::create_dir_all(&home).unwrap();
            assert_eq!(first.copy(&project, &home).unwrap(), found, "{name}");
        }
    }

    #[test]
    fn pickles_begin_with_every_rebuild_in_every_arity() {
        let home = target_dir().join("fuzz/test/made");
        fs::create_dir_all(&home).unwrap();
        let made = write_made("pickle", &home).unwrap();
        assert!(made > 100, "only {made}");
        let one = fs::read(home.join("_rebuild_tensor-4")).unwrap();
        assert!(one.starts_with(b"ctorch._utils\n_rebuild_tensor\n("));
    }
}
