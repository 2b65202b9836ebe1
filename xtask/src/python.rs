//! The Python package: its types, and its tests beside the real PyTorch.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

use crate::shell::{Program, library, root, say, target_dir};
use crate::venv::{TORCH_24, TORCH_215, Venv, uv};

#[derive(Debug)]
pub(crate) struct Options {
    /// Also the wheel as users build it, all tests, and old versions of torch.
    pub(crate) thorough: bool,
}

/// What tests and the check of types need beside the packages of an environment.
const TOOLS: &[&str] = &[
    "pytest==9.2.0",
    "hypothesis==6.170.17",
    "mypy==2.4.1",
    "ml_dtypes==0.7.0",
    "tqdm==4.70.1",
];

/// The tool that builds the wheel for the release.
const MATURIN: &str = "maturin==1.16.0";

/// The tests that need nothing of later versions of torch.
const EVERY_TORCH: &str = "tests/test_every_torch.py";

/// The most bytes of a wheel.
const LARGEST: u64 = 25 << 20;

pub(crate) fn run(options: &Options) -> Result<()> {
    let package = root().join("crates/reshard-python");
    let python = with_tools(&TORCH_215)?;
    // It is linked from what `cargo xtask test` has compiled.
    let place = assembled(&package, &library("reshard-python", "lib_reshard.so")?)?;
    check_types(&python, &package)?;
    let some = ["-m", "not slow"];
    tests(
        &python,
        &package,
        &place,
        if options.thorough { &[] } else { &some },
    )?;
    if !options.thorough {
        return Ok(());
    }
    wheel(&package)?;
    let old = with_tools(&TORCH_24)?;
    tests(&old, &package.join(EVERY_TORCH), &place, &[])
}

/// The Python of an environment with torch, with the tools of tests.
fn with_tools(venv: &Venv) -> Result<PathBuf> {
    let python = venv.python()?;
    let install = uv()?.args(["pip", "install", "--quiet", "--python"]);
    install.args([&python]).args(TOOLS).run()?;
    Ok(python)
}

/// A folder with the package as it is installed: its Python files, and the native library.
fn assembled(package: &Path, library: &Path) -> Result<PathBuf> {
    let place = target_dir().join("python");
    if place.exists() {
        fs::remove_dir_all(&place).with_context(|| format!("cannot remove {}", place.display()))?;
    }
    fs::create_dir_all(&place).with_context(|| format!("cannot make {}", place.display()))?;
    Program::new("cp")
        .args(["-r".as_ref(), package.join("python/reshard").as_os_str()])
        .args([&place])
        .run()?;
    let module = place.join("reshard/_reshard.abi3.so");
    fs::copy(library, &module).with_context(|| format!("cannot write {}", module.display()))?;
    Ok(place)
}

fn check_types(python: &Path, package: &Path) -> Result<()> {
    Program::new(python)
        .args(["-m", "mypy", "--cache-dir"])
        .args([target_dir().join("mypy")])
        .args(["--config-file".into(), package.join("pyproject.toml")])
        .env("MYPYPATH", package.join("python"))
        .run()
}

fn tests(python: &Path, files: &Path, place: &Path, which: &[&str]) -> Result<()> {
    Program::new(python)
        .args([
            "-B",
            "-m",
            "pytest",
            "-q",
            "--no-header",
            "-p",
            "no:cacheprovider",
        ])
        .args(which)
        .args([files])
        .env("PYTHONPATH", place)
        // A library of numbers that takes all CPUs would slow the other ranks down.
        .env("OMP_NUM_THREADS", "1")
        .run()
}

/// Builds the wheel as `pip install` does, installs it into an environment without torch and numpy, and runs the program.
fn wheel(package: &Path) -> Result<()> {
    let place = target_dir().join("wheel");
    let (venv, wheels) = (place.join("venv"), place.join("wheels"));
    if place.exists() {
        fs::remove_dir_all(&place).with_context(|| format!("cannot remove {}", place.display()))?;
    }
    Program::new("python3")
        .args(["-m", "venv"])
        .args([&venv])
        .run()?;
    let python = venv.join("bin/python");
    let pip = || Program::new(&python).args(["-m", "pip", "--disable-pip-version-check"]);
    pip().args(["install", "--quiet", MATURIN]).run()?;
    pip()
        .args(["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir"])
        .args([&wheels, package])
        .env("PATH", path_with(&venv.join("bin"))?)
        .env("CARGO_TARGET_DIR", target_dir())
        .run()?;
    let built: Vec<PathBuf> = fs::read_dir(&wheels)?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_>>()?;
    let [wheel] = &*built else {
        anyhow::bail!("{} wheels were built", built.len());
    };
    let bytes = fs::metadata(wheel)?.len();
    say(format!("the wheel has {:.1} MB", bytes as f64 / 1e6));
    ensure!(
        bytes <= LARGEST,
        "the wheel has {bytes} bytes, and at most {LARGEST} are allowed"
    );
    pip().args(["install", "--quiet"]).args([wheel]).run()?;
    Program::new(venv.join("bin/reshard"))
        .args(["--version"])
        .run()?;
    let import = "import reshard, sys; assert not {'torch', 'numpy'} & set(sys.modules); print(reshard.__version__)";
    Program::new(&python).args(["-c", import]).run()
}

/// The search path of programs with another folder before it.
fn path_with(dir: &Path) -> Result<std::ffi::OsString> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs = std::iter::once(dir.to_path_buf()).chain(std::env::split_paths(&path));
    std::env::join_paths(dirs).context("a folder of PATH can't be named")
}
