//! Virtual environments with the real PyTorch and Megatron programs, made by uv.
//!
//! Nothing is kept beside them: the cache of uv would take as much disk as all environments together.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result, bail};

use crate::shell::{Program, root, say, target_dir};

/// The version of uv, a package manager for Python.
const UV: &str = "uv==0.13.9";

/// One environment: the name of its folder, and the calls of `uv pip install` that fill it.
#[derive(Debug)]
pub(crate) struct Venv {
    name: &'static str,
    /// The versions of Python for which all packages have wheels.
    python: &'static str,
    installs: &'static [&'static [&'static str]],
}

/// Packages that old versions of torch import without naming them as dependencies. Each environment has them.
const BASE: &[&str] = &["packaging", "setuptools<70"];

/// A requirement of torch that reshard's checks don't need: triton compiles for GPUs, and takes a gigabyte.
const TRITON: &str = "triton";

/// The versions of Python for which most of these packages, old and new, have wheels.
const USUAL: &str = ">=3.10,<3.12";

/// Newest torch, and megatron-core of the generation without flattened ranges.
pub(crate) const TORCH_215: Venv = Venv {
    name: "torch-2.15",
    python: USUAL,
    installs: &[
        &[
            "torch==2.15.0",
            "numpy",
            "packaging",
            "psutil",
            "safetensors==0.8.0",
        ],
        // Models, for the maps between theirs and those of megatron-core.
        &["transformers==5.24.0"],
        // Its own dependencies are for training; checkpoints need none of them but the two above, and Megatron-FSDP one more.
        &["einops"],
        &["--no-deps", "megatron-core==0.16.1"],
        &["--no-deps", "torchao==0.18.0"],
    ],
};

/// The first torch whose `torch.load` has `weights_only`.
pub(crate) const TORCH_113: Venv = Venv {
    name: "torch-1.13",
    python: USUAL,
    installs: &[&["torch==1.13.1", "numpy<2"]],
};

/// The newest megatron-core. It stores common state as an object, and is for newer versions of Python.
pub(crate) const MCORE_019: Venv = Venv {
    name: "mcore-0.19",
    python: ">=3.12,<3.14",
    installs: &[
        // This version of Megatron Core imports triton.
        &[
            "torch==2.15.0",
            "numpy",
            "packaging",
            "psutil",
            "einops",
            TRITON,
        ],
        &["--no-deps", "megatron-core==0.19.2"],
    ],
};

/// Oldest torch whose DCP is stable.
pub(crate) const TORCH_21: Venv = Venv {
    name: "torch-2.1",
    python: USUAL,
    installs: &[&["torch==2.1.2", "numpy<2"]],
};

/// The first torch that writes `storage_meta`, and lists as entries of their own.
pub(crate) const TORCH_24: Venv = Venv {
    name: "torch-2.4",
    python: USUAL,
    installs: &[&["torch==2.4.1", "numpy<2"]],
};

/// Oldest megatron-core that we promise to serve, with the torch of its time and what its zarr strategies need.
pub(crate) const MCORE_012: Venv = Venv {
    name: "mcore-0.12",
    python: USUAL,
    installs: &[
        &["torch==2.6.0", "numpy<2", "packaging", "psutil"],
        // Its zarr strategies: version 2 of zarr with the codecs of that time, and TensorStore, which reads.
        &["numpy<2", "zarr<3", "numcodecs<0.16", "tensorstore"],
        &["--no-deps", "megatron-core==0.12.3"],
    ],
};

/// The versions of torch that nothing else here needs.
pub(crate) const OTHER_TORCHES: &[Venv] = &[
    torch("torch-2.0", &[&["torch==2.0.1", "numpy<2"]]),
    torch("torch-2.2", &[&["torch==2.2.2", "numpy<2"]]),
    torch("torch-2.3", &[&["torch==2.3.1", "numpy<2"]]),
    torch("torch-2.5", &[&["torch==2.5.1", "numpy<2"]]),
    torch("torch-2.7", &[&["torch==2.7.1", "numpy"]]),
    torch("torch-2.8", &[&["torch==2.8.0", "numpy"]]),
    torch("torch-2.9", &[&["torch==2.9.1", "numpy"]]),
    torch("torch-2.10", &[&["torch==2.10.0", "numpy"]]),
    torch("torch-2.11", &[&["torch==2.11.0", "numpy"]]),
    torch("torch-2.12", &[&["torch==2.12.1", "numpy"]]),
    torch("torch-2.13", &[&["torch==2.13.0", "numpy"]]),
    torch("torch-2.14", &[&["torch==2.14.1", "numpy"]]),
];

const fn torch(name: &'static str, installs: &'static [&'static [&'static str]]) -> Venv {
    Venv {
        name,
        python: USUAL,
        installs,
    }
}

/// The programs that read and write arrays of Zarr, in both versions.
pub(crate) const ZARR: Venv = Venv {
    name: "zarr-3.1",
    python: USUAL,
    installs: &[&[
        "zarr==3.1.6",
        "tensorstore==0.1.86",
        "numpy==2.4.6",
        "ml_dtypes==0.6.0",
    ]],
};

/// The TensorFlow whose embeddings ours are held to. Without support for GPUs, which is most of its size.
pub(crate) const TENSORFLOW: Venv = Venv {
    name: "tensorflow-2.21",
    python: USUAL,
    installs: &[&["tensorflow-cpu==2.21.0"]],
};

/// Scanners of pickles, whose verdicts ours are compared with.
pub(crate) const SCANNERS: Venv = Venv {
    name: "scanners",
    python: USUAL,
    installs: &[&[
        "picklescan==1.0.5",
        "modelscan==0.8.8",
        "fickling==0.1.12",
        // Fickling imports it before Python 3.12, and does not require it.
        "typing-extensions",
    ]],
};

/// A server that speaks the protocol of S3, and what makes containers in Azurite.
pub(crate) const CLOUDS: Venv = Venv {
    name: "clouds",
    python: ">=3.10,<3.14",
    installs: &[&["moto[server]==5.2.5", "azure-storage-blob==12.27.1"]],
};

/// Returns a Python with torch: the one that `RESHARD_PYTHON` names, or that of `cargo xtask interop`. Reports if there is none.
pub(crate) fn python_with_torch() -> Option<PathBuf> {
    let named = std::env::var_os("RESHARD_PYTHON").map(PathBuf::from);
    let python = named.or_else(|| TORCH_215.installed());
    if python.is_none() {
        say("no Python with torch was found; set RESHARD_PYTHON, or run `cargo xtask interop`");
    }
    python
}

impl Venv {
    pub(crate) const fn name(&self) -> &'static str {
        self.name
    }

    /// Explains why this machine can't install it: it has no suitable Python, and no finished environment either.
    pub(crate) fn lacks(&self) -> Result<Option<String>> {
        if self.installed().is_some() {
            return Ok(None);
        }
        let found = uv()?.args(["python", "find", self.python]).read();
        Ok(found.err().map(|_| format!("needs Python {}", self.python)))
    }

    /// Its Python, if the environment exists.
    fn installed(&self) -> Option<PathBuf> {
        let dir = given().unwrap_or_else(own).join(self.name);
        let python = dir.join("bin").join("python");
        python.exists().then_some(python)
    }

    /// Its Python, installed first if necessary.
    pub(crate) fn python(&self) -> Result<PathBuf> {
        let trusted = given().is_some();
        let dir = given().unwrap_or_else(own).join(self.name);
        let python = dir.join("bin").join("python");
        // Written last, so that an interrupted install or another list of packages starts anew.
        let stamp = dir.join("reshard-installs.txt");
        let recipe = format!("{BASE:?} {:?} without {TRITON}", self.installs);
        let complete = std::fs::read_to_string(&stamp).is_ok_and(|text| text == recipe);
        if complete || (trusted && python.exists()) {
            return Ok(python);
        }
        // What the caller provided is not ours to replace.
        if trusted && dir.exists() && !stamp.exists() {
            bail!(
                "{} exists, and has no finished install of `cargo xtask`; move it away",
                dir.display()
            );
        }
        self.install(&dir, &python)?;
        std::fs::write(&stamp, recipe)
            .with_context(|| format!("cannot write {}", stamp.display()))?;
        Ok(python)
    }

    /// Removes the environment, unless the caller provided it.
    pub(crate) fn remove(&self) -> Result<()> {
        let dir = own().join(self.name);
        if given().is_some() || !dir.exists() {
            return Ok(());
        }
        std::fs::remove_dir_all(&dir).with_context(|| format!("cannot remove {}", dir.display()))
    }

    fn install(&self, dir: &Path, python: &Path) -> Result<()> {
        let begin = Instant::now();
        // An interrupted install leaves gigabytes there.
        let unpacked = unpacked();
        if unpacked.exists() {
            std::fs::remove_dir_all(&unpacked)
                .with_context(|| format!("cannot remove {}", unpacked.display()))?;
        }
        if dir.exists() {
            std::fs::remove_dir_all(dir)
                .with_context(|| format!("cannot remove {}", dir.display()))?;
        }
        uv()?
            .args(["venv", "--quiet", "--python", self.python])
            .args([dir])
            .run()?;
        // A requirement that holds for no Python leaves the package out.
        let overrides = match self.installs.iter().any(|set| set.contains(&TRITON)) {
            true => String::new(),
            false => format!("{TRITON}; python_version < '3'\n"),
        };
        let file = dir.join("overrides.txt");
        std::fs::write(&file, overrides)
            .with_context(|| format!("cannot write {}", file.display()))?;
        for packages in std::iter::once(&BASE).chain(self.installs) {
            // Compiled once, each of the many Pythons that follow starts in half the time.
            uv()?
                .args(["pip", "install", "--quiet", "--compile-bytecode"])
                .args(["--overrides".as_ref(), file.as_path()])
                .args(["--python".as_ref(), python])
                .args(*packages)
                .run()?;
        }
        let seconds = begin.elapsed().as_secs_f64();
        say(format!("{} was installed in {seconds:.0} s", self.name));
        Ok(())
    }
}

/// A call of uv, which is installed into `target/tools` first if necessary.
pub(crate) fn uv() -> Result<Program> {
    let dir = target_dir().join("tools").join(UV);
    let program = dir.join("bin").join("uv");
    if !program.exists() {
        Program::new("python3")
            .args(["-m", "venv"])
            .args([&dir])
            .run()?;
        Program::new(dir.join("bin").join("python"))
            .args([
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
                UV,
            ])
            .run()?;
    }
    // What it unpacks is linked from here into the environments, so it must be on the same disk.
    let unpacked = unpacked();
    std::fs::create_dir_all(&unpacked)
        .with_context(|| format!("cannot make {}", unpacked.display()))?;
    // An interpreter doesn't come from a package registry, so uv must not download one.
    let uv = Program::new(program)
        .env("UV_NO_CACHE", "1")
        .env("TMPDIR", unpacked)
        .env("UV_PYTHON_DOWNLOADS", "never");
    // `python3.12` of pyenv runs only if that version is switched on.
    let all = Program::new("pyenv").args(["versions", "--bare"]).read();
    Ok(match all {
        Ok(all) => {
            let versions: Vec<&str> = all.lines().map(str::trim).collect();
            uv.env("PYENV_VERSION", versions.join(":"))
        }
        Err(_) => uv,
    })
}

/// The directory of environments that the caller provides in `RESHARD_VENVS`.
fn given() -> Option<PathBuf> {
    std::env::var_os("RESHARD_VENVS")
        .filter(|dir| !dir.is_empty())
        .map(|dir| root().join(dir))
}

fn own() -> PathBuf {
    target_dir().join("venvs")
}

/// The folder in which uv unpacks packages.
fn unpacked() -> PathBuf {
    own().join("unpacked")
}
