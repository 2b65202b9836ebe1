//! `SIGKILL` at every named step of a conversion, and at random moments: into each linked format, nothing appears or all does.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use reshard::{
    BackendVersion, Dialect, OpenOptions, Registry, Tensor, blocking::Checkpoint, strategy::Make,
};
use reshard_crash::{Form, save, scattered};
use reshard_storage::failpoint;
use std::{
    collections::BTreeMap,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// All linked formats that can save and load.
fn formats() -> Vec<BackendVersion> {
    let registry = Registry::linked().unwrap();
    let saves = registry.iter().filter_map(|r| match r.make {
        Make::SaveSharded(_) => Some(BackendVersion::new(r.backend, r.version)),
        _ => None,
    });
    saves.filter(|f| registry.load_sharded(f).is_ok()).collect()
}

fn converter(src: &Path, dst: &Path, format: &BackendVersion, crash_at: Option<&str>) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_reshard-saver"));
    command
        .arg(dst)
        .arg("convert")
        .arg(src)
        .arg(format.to_string());
    if let Some(at) = crash_at {
        command.env(failpoint::VARIABLE, at);
    }
    command.stderr(Stdio::null()).spawn().unwrap()
}

type Tensors = BTreeMap<String, Vec<u8>>;

fn tensors(checkpoint: &Checkpoint) -> Tensors {
    let read = |t: reshard::blocking::TensorHandle| {
        let tensor: Tensor = t.read(..).unwrap();
        (t.key().to_owned(), tensor.to_bytes().to_vec())
    };
    checkpoint.tensors().map(read).collect()
}

/// What lies there: `None` if nothing does.
fn look(dst: &Path, format: &BackendVersion) -> Option<Tensors> {
    let url = dst.display().to_string();
    let options = OpenOptions::new().format(format.clone());
    match Checkpoint::open_with(options, &url) {
        Ok(checkpoint) => Some(tensors(&checkpoint)),
        Err(e) => {
            assert!(
                !dst.exists(),
                "{format}: something lies there that can't be opened: {e}"
            );
            None
        }
    }
}

fn prune(dst: &Path) {
    let url = dst.display().to_string();
    let done = reshard::blocking::run(reshard::prune(&url).older_than(Duration::ZERO));
    if let Err(e) = done {
        assert!(!dst.exists(), "{e}");
    }
}

#[test]
fn a_conversion_killed_at_any_named_step_leaves_nothing_or_all() {
    let home = tempfile::tempdir().unwrap();
    let src = home.path().join("src");
    save(&src, 1, false, Form::TorchDist(Dialect::Dcp)).unwrap();
    let all = tensors(&Checkpoint::open(&src.display().to_string()).unwrap());
    for (n, format) in formats().iter().enumerate() {
        let (mut killed, mut whole) = (0, 0);
        for (i, at) in failpoint::STEPS.iter().enumerate() {
            let dst = home.path().join(format!("{n}-{i}")).join("dst");
            std::fs::create_dir(dst.parent().unwrap()).unwrap();
            let done = converter(&src, &dst, format, Some(at)).wait().unwrap();
            killed += u32::from(!done.success());
            let found = look(&dst, format);
            whole += u32::from(found.is_some() && !done.success());
            assert!(
                found.is_none_or(|found| found == all),
                "{format} killed at {at}"
            );
            // The next one goes through, whatever lies around. Only files with a common prefix that were linked beside others have to be
            // taken away first.
            if look(&dst, format).is_none() {
                let again = || converter(&src, &dst, format, None).wait().unwrap();
                if !again().success() {
                    assert_eq!(look(&dst, format), None, "{format} after {at}");
                    prune(&dst);
                    assert!(again().success(), "{format} after {at}");
                }
                let found = look(&dst, format);
                assert_eq!(found.as_ref(), Some(&all), "{format} after {at}");
            }
            prune(&dst);
            let left = std::fs::read_dir(dst.parent().unwrap()).unwrap().count();
            let names = std::fs::read_dir(dst.parent().unwrap()).unwrap();
            let hidden = names.filter(|e| {
                e.as_ref()
                    .unwrap()
                    .file_name()
                    .to_str()
                    .unwrap()
                    .starts_with('.')
            });
            assert_eq!(hidden.count(), 0, "{format} killed at {at}: {left} entries");
        }
        assert!(
            killed > 4 && whole > 0 && whole < killed,
            "{format}: {killed} killed, {whole} whole"
        );
    }
}

#[test]
fn a_conversion_killed_at_random_moments_leaves_nothing_or_all() {
    const MOMENTS: u64 = 24;
    let home = tempfile::tempdir().unwrap();
    let src = home.path().join("src");
    save(&src, 1, false, Form::TorchDist(Dialect::Dcp)).unwrap();
    let all = tensors(&Checkpoint::open(&src.display().to_string()).unwrap());
    for (n, format) in formats().iter().enumerate() {
        let warm = home.path().join(format!("warm-{n}"));
        let start = Instant::now();
        assert!(
            converter(&src, &warm, format, None)
                .wait()
                .unwrap()
                .success()
        );
        let longest = start.elapsed();
        for i in 0..MOMENTS {
            let dst = home.path().join(format!("random-{n}-{i}"));
            let mut child = converter(&src, &dst, format, None);
            std::thread::sleep(longest.mul_f64(scattered(i) * 1.1));
            drop(child.kill());
            child.wait().unwrap();
            let found = look(&dst, format);
            assert!(
                found.is_none_or(|found| found == all),
                "{format} at moment {i}"
            );
        }
    }
}
