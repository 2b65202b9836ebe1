//! Stock PyTorch with fsspec and s3fs, on the same bucket as reshard.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};

use crate::shell::{Program, root, say, target_dir};
use crate::venv::uv;

/// The newest version. PyTorch finds it by fsspec.
const S3FS: &str = "s3fs==2026.9.0";

/// Both save a state and load what the other has saved, to a new place and over an old version.
pub(super) fn run(python: &Path, endpoint: &str, data: &Path) -> Result<()> {
    let packages = s3fs(python)?;
    // The tests of the program have built it, with the features of all packages. A build of its own would take minutes.
    let reshard = target_dir().join("debug").join("reshard");
    let with_settings = |program: Program| {
        program
            .env("AWS_ENDPOINT_URL", endpoint)
            .env("AWS_ALLOW_HTTP", "true")
            .env("AWS_REGION", "us-east-1")
            .env("AWS_ACCESS_KEY_ID", "reshard")
            .env("AWS_SECRET_ACCESS_KEY", "not-secret")
    };
    let torch = |args: &[&str]| {
        let script = root().join("tests/interop/python/buckets.py");
        let program = Program::new(python).args([&script]).args(args);
        with_settings(program.env("PYTHONPATH", &packages)).run()
    };
    let reshard = |args: &[&str]| with_settings(Program::new(&reshard).args(args));
    let digest = |place: &str| reshard(&["digest", place, "--json"]).read();

    let local = data.join("torch").display().to_string();
    let [theirs, ours] = ["s3://reshard/torch/theirs", "s3://reshard/torch/ours"];
    torch(&["save", theirs, &local])?;
    let want = digest(&local)?;
    ensure!(
        digest(theirs)? == want,
        "{theirs} is not {local}, which the same PyTorch has saved"
    );
    for how in [&["--ranks", "1"][..], &["--ranks", "3", "--overwrite"]] {
        let convert = [&["convert", theirs, ours][..], how].concat();
        reshard(&convert).run()?;
        ensure!(digest(ours)? == want, "{ours} is not {theirs}");
        torch(&["load", ours])?;
    }
    Ok(())
}

/// The folder of s3fs and what it needs, for this Python. The environment of PyTorch stays as it is.
pub(crate) fn s3fs(python: &Path) -> Result<PathBuf> {
    let version = Program::new(python)
        .args(["-c", "import sys; print('%d.%d' % sys.version_info[:2])"])
        .read()?;
    let folder = target_dir()
        .join("tools")
        .join(format!("{S3FS}-python{}", version.trim()));
    if folder.exists() {
        return Ok(folder);
    }
    say("s3fs is installed once into target/tools");
    // An interrupted install starts anew.
    let begun = folder.with_extension("part");
    if begun.exists() {
        std::fs::remove_dir_all(&begun)?;
    }
    uv()?
        .args(["pip", "install", "--quiet", "--python"])
        .args([python])
        .args([S3FS, "--target"])
        .args([&begun])
        .run()?;
    std::fs::rename(&begun, &folder)?;
    Ok(folder)
}
