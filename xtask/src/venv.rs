//! Virtual environments with the real PyTorch and Megatron programs.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use crate::shell::{Program, root, say, target_dir};

/// One environment: its folder's name, and the calls of `pip install` that fill it.
#[derive(Debug)]
pub(crate) struct Venv {
    name: &'static str,
    /// The versions of Python that all of it has wheels for.
    pythons: &'static [&'static str],
    installs: &'static [&'static [&'static str]],
}

/// What most programs here, old and new, have wheels for.
const USUAL: &[&str] = &["3.11", "3.10"];

/// Newest torch, and megatron-core of the generation without flattened ranges.
pub(crate) const TORCH_215: Venv = Venv {
    name: "torch-2.15",
    pythons: USUAL,
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
    ],
};

/// The first torch whose `torch.load` has `weights_only`.
pub(crate) const TORCH_113: Venv = Venv {
    name: "torch-1.13",
    pythons: USUAL,
    installs: &[&["torch==1.13.1", "numpy<2"]],
};

/// The newest megatron-core. It stores common state as an object, and is for newer versions of Python.
pub(crate) const MCORE_019: Venv = Venv {
    name: "mcore-0.19",
    pythons: &["3.12", "3.13"],
    installs: &[
        &["torch==2.15.0", "numpy", "packaging", "psutil", "einops"],
        &["--no-deps", "megatron-core==0.19.2"],
    ],
};

/// Oldest torch whose DCP is stable.
pub(crate) const TORCH_21: Venv = Venv {
    name: "torch-2.1",
    pythons: USUAL,
    installs: &[&["torch==2.1.2", "numpy<2"]],
};

/// The first torch that writes `storage_meta`, and lists as entries of their own.
pub(crate) const TORCH_24: Venv = Venv {
    name: "torch-2.4",
    pythons: USUAL,
    installs: &[&["torch==2.4.1", "numpy<2"]],
};

/// Oldest megatron-core that we promise to serve, with the torch of its time and what its zarr strategies need.
pub(crate) const MCORE_012: Venv = Venv {
    name: "mcore-0.12",
    pythons: USUAL,
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
        pythons: USUAL,
        installs,
    }
}

/// The programs that read and write arrays of Zarr, in both versions.
pub(crate) const ZARR: Venv = Venv {
    name: "zarr-3.1",
    pythons: USUAL,
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
    pythons: USUAL,
    installs: &[&["tensorflow-cpu==2.21.0"]],
};

/// A server that speaks the protocol of S3, and what makes containers in Azurite.
pub(crate) const CLOUDS: Venv = Venv {
    name: "clouds",
    pythons: &["3.11", "3.10", "3.12", "3.13"],
    installs: &[&["moto[server]==5.2.5", "azure-storage-blob==12.27.1"]],
};

/// A Python with torch: the one that `RESHARD_PYTHON` names, or that of `cargo xtask interop`. If none is here, it says so.
pub(crate) fn python_with_torch() -> Option<PathBuf> {
    let named = std::env::var_os("RESHARD_PYTHON").map(PathBuf::from);
    let python = named.or_else(|| TORCH_215.installed());
    if python.is_none() {
        say("no Python with torch is here; set RESHARD_PYTHON, or run `cargo xtask interop`");
    }
    python
}

impl Venv {
    pub(crate) const fn name(&self) -> &'static str {
        self.name
    }

    /// Why it can't be installed, if this machine has no Python for it, and it isn't there either.
    pub(crate) fn lacks(&self) -> Option<String> {
        let python = match self.installed() {
            Some(_) => return None,
            None => interpreter(self.pythons),
        };
        python.err().map(|e| e.to_string())
    }

    /// Its Python, if it is there already.
    fn installed(&self) -> Option<PathBuf> {
        let dir = given().unwrap_or_else(own).join(self.name);
        let python = dir.join("bin").join("python");
        python.exists().then_some(python)
    }

    /// Its Python, installed first if need be.
    pub(crate) fn python(&self) -> Result<PathBuf> {
        let trusted = given().is_some();
        let dir = given().unwrap_or_else(own).join(self.name);
        let python = dir.join("bin").join("python");
        // Written last, so that an interrupted install or an older list of packages starts anew.
        let stamp = dir.join("reshard-installs.txt");
        let recipe = format!("{:?}\n", self.installs);
        let complete = std::fs::read_to_string(&stamp).is_ok_and(|text| text == recipe);
        if complete || (trusted && python.exists()) {
            return Ok(python);
        }
        self.install(&dir, &python)?;
        std::fs::write(&stamp, recipe)
            .with_context(|| format!("cannot write {}", stamp.display()))?;
        Ok(python)
    }

    /// Takes its gigabytes off the disk, unless it is one that was given to us.
    pub(crate) fn remove(&self) -> Result<()> {
        let dir = own().join(self.name);
        if given().is_some() || !dir.exists() {
            return Ok(());
        }
        std::fs::remove_dir_all(&dir).with_context(|| format!("cannot remove {}", dir.display()))
    }

    fn install(&self, dir: &Path, python: &Path) -> Result<()> {
        say(format!("installing {} into {}", self.name, dir.display()));
        if dir.exists() {
            // In a directory that was given to us there may be somebody's folder of that name.
            if !is_venv(dir) && given().is_some() {
                bail!(
                    "{} is there and no virtual environment; move it away",
                    dir.display()
                );
            }
            std::fs::remove_dir_all(dir)
                .with_context(|| format!("cannot remove {}", dir.display()))?;
        }
        let python_of_system = interpreter(self.pythons)
            .with_context(|| format!("set PYTHON to one for {}", self.name))?;
        Program::new(python_of_system)
            .args(["-m", "venv"])
            .args([dir])
            .run()?;
        for packages in self.installs {
            // pip's own cache would hold the gigabytes a second time.
            Program::new(python)
                .args([
                    "-m",
                    "pip",
                    "install",
                    "--quiet",
                    "--no-cache-dir",
                    "--disable-pip-version-check",
                ])
                .args(*packages)
                .run()?;
        }
        Ok(())
    }
}

/// Python writes that file into each of them first. A folder without anything is as good.
fn is_venv(dir: &Path) -> bool {
    dir.join("pyvenv.cfg").is_file()
        || std::fs::read_dir(dir).is_ok_and(|mut all| all.next().is_none())
}

/// Where somebody else keeps environments for us.
fn given() -> Option<PathBuf> {
    std::env::var_os("RESHARD_VENVS")
        .filter(|dir| !dir.is_empty())
        .map(|dir| root().join(dir))
}

fn own() -> PathBuf {
    target_dir().join("venvs")
}

/// A Python of one of these versions.
fn interpreter(versions: &[&str]) -> Result<String> {
    let named = std::env::var("PYTHON").ok();
    let usual = versions.iter().map(|version| format!("python{version}"));
    let kept = versions.iter().filter_map(|version| kept_by_pyenv(version));
    let candidates: Vec<String> = named
        .into_iter()
        .chain(usual)
        .chain(["python3".into()])
        .chain(kept)
        .collect();
    for candidate in &candidates {
        let version = Program::new(candidate)
            .args(["-c", "import sys; print('%d.%d' % sys.version_info[:2])"])
            .read();
        if version.is_ok_and(|version| versions.contains(&version.trim())) {
            return Ok(candidate.clone());
        }
    }
    bail!(
        "needs Python {}; none among {}",
        versions.join(" or "),
        candidates.join(", ")
    )
}

/// The newest of this version that `pyenv` has. Its commands `python3.12` and so on work only for versions that are switched on.
fn kept_by_pyenv(version: &str) -> Option<String> {
    let all = Program::new("pyenv").args(["versions", "--bare"]).read();
    let newest = newest_of(version, &all.ok()?)?;
    let prefix = Program::new("pyenv")
        .args(["prefix", &newest])
        .read()
        .ok()?;
    let python = Path::new(prefix.trim()).join("bin").join("python");
    python.exists().then(|| python.display().to_string())
}

/// Of names such as `3.12.1`, one a line, the one of this version with the highest last number.
fn newest_of(version: &str, names: &str) -> Option<String> {
    let last = |name: &str| -> Option<u32> {
        let rest = name.strip_prefix(version)?.strip_prefix('.')?;
        rest.parse().ok()
    };
    let ours = names.lines().map(str::trim);
    ours.filter_map(|name| Some((last(name)?, name)))
        .max()
        .map(|(_, name)| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_the_versions_that_pyenv_lists_the_newest_is_taken() {
        let names = "3.10.13\n  3.12.1\n3.12.10\n3.12.9\n3.12-dev\n3.1.2\nminiconda3-latest\n";
        assert_eq!(newest_of("3.12", names).as_deref(), Some("3.12.10"));
        assert_eq!(newest_of("3.1", names).as_deref(), Some("3.1.2"));
        assert_eq!(newest_of("3.13", names), None);
    }

    #[test]
    fn a_folder_with_something_else_in_it_is_no_virtual_environment() -> Result<()> {
        let dir = std::env::temp_dir().join(format!("reshard-xtask-{}", std::process::id()));
        std::fs::create_dir(&dir)?;
        assert!(is_venv(&dir));
        std::fs::write(dir.join("thesis.tex"), "")?;
        assert!(!is_venv(&dir));
        std::fs::write(dir.join("pyvenv.cfg"), "")?;
        assert!(is_venv(&dir));
        Ok(std::fs::remove_dir_all(&dir)?)
    }
}
