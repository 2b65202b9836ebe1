//! `SIGKILL` while an old version is removed, before many of its files and directories, and at random moments. Pruning finishes it.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use reshard::Dialect;
use reshard_crash::{Form, look, save, scattered};
use reshard_storage::failpoint;
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

/// What is replaced, and by what.
#[derive(Clone, Copy, Debug)]
struct Case {
    old: Form,
    /// The old version has none of the files that reshard adds, as if Megatron Core or zarr-python had written it.
    plain: bool,
    new: Form,
}

const CASES: [Case; 7] = {
    const DCP: Form = Form::TorchDist(Dialect::Dcp);
    const fn case(old: Form, plain: bool, new: Form) -> Case {
        Case { old, plain, new }
    }
    [
        case(Form::Zarr3, false, Form::Zarr3),
        case(Form::Zarr3, false, DCP),
        case(Form::Zarr3, true, DCP),
        case(Form::Zarr, false, Form::Zarr),
        case(Form::Zarr, false, DCP),
        case(Form::Zarr, true, DCP),
        case(Form::TorchDist(Dialect::Megatron), false, Form::Zarr3),
    ]
};

/// Of somebody else; one of them where the old version has a folder of its own.
const OTHERS: [&str; 3] = ["README.md", "logs/today", "layers.0.weight/notes"];

/// All files and directories below a directory.
fn tree(dir: &Path) -> BTreeSet<PathBuf> {
    let (mut out, mut waiting) = (BTreeSet::new(), vec![dir.to_path_buf()]);
    while let Some(dir_now) = waiting.pop() {
        for entry in fs::read_dir(&dir_now).unwrap() {
            let entry = entry.unwrap();
            out.insert(entry.path().strip_prefix(dir).unwrap().to_path_buf());
            if entry.file_type().unwrap().is_dir() {
                waiting.push(entry.path());
            }
        }
    }
    out
}

fn copy(from: &Path, to: &Path) {
    for path in tree(from) {
        match from.join(&path).is_dir() {
            true => fs::create_dir_all(to.join(&path)).unwrap(),
            false => {
                fs::create_dir_all(to.join(&path).parent().unwrap()).unwrap();
                fs::copy(from.join(&path), to.join(&path)).unwrap();
            }
        }
    }
}

fn put_others(dir: &Path) {
    for file in OTHERS {
        fs::create_dir_all(dir.join(file).parent().unwrap()).unwrap();
        fs::write(dir.join(file), file).unwrap();
    }
}

/// Versions to copy, which is faster than to save each of them anew.
struct Bench {
    home: tempfile::TempDir,
    case: Case,
    /// All that lies there when the old version is gone.
    wanted: BTreeSet<PathBuf>,
}

impl Bench {
    fn new(case: Case) -> Self {
        let home = reshard_crash::scratch().unwrap();
        let [old, new] = ["old", "new"].map(|d| home.path().join(d));
        save(&old, 1, false, case.old).unwrap();
        if case.plain {
            for ours in ["reshard.json", "reshard-zarr.json", "reshard-zarr3.json"] {
                fs::remove_file(old.join(ours)).unwrap_or_default();
            }
        }
        put_others(&old);
        save(&new, 2, false, case.new).unwrap();
        put_others(&new);
        let wanted = tree(&new);
        Self { home, case, wanted }
    }

    /// A place with the old version.
    fn place(&self) -> PathBuf {
        let dir = self.home.path().join("work/step");
        fs::remove_dir_all(dir.parent().unwrap()).unwrap_or_default();
        copy(&self.home.path().join("old"), &dir);
        dir
    }

    fn saver(&self, dir: &Path, at: &str) -> Command {
        let mut command = program(dir, at);
        command.args(["2", "overwrite", self.case.new.name()]);
        command
    }

    /// Prunes, and looks whether nothing of the old version is left anywhere.
    fn finished(&self, dir: &Path, told: &str) {
        assert!(program(dir, "").arg("prune").status().unwrap().success());
        let beside = fs::read_dir(dir.parent().unwrap()).unwrap().count();
        assert_eq!(beside, 1, "{told}: something is left beside the place");
        assert_eq!(look(dir).unwrap(), Some(2), "{told}");
        let found = tree(dir);
        let more: Vec<_> = found.difference(&self.wanted).collect();
        let less: Vec<_> = self.wanted.difference(&found).collect();
        assert!(
            more.is_empty() && less.is_empty(),
            "{told}: too much {more:?}, too little {less:?}"
        );
        for file in OTHERS {
            assert_eq!(fs::read_to_string(dir.join(file)).unwrap(), file, "{told}");
        }
    }
}

fn program(dir: &Path, at: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_reshard-saver"));
    command.arg(dir).stderr(Stdio::null());
    if !at.is_empty() {
        command.env(failpoint::VARIABLE, at);
    }
    command
}

/// Every file would take minutes. The test of prunes meets the others.
#[test]
fn a_removal_of_an_old_version_killed_before_some_file_is_finished_by_pruning() {
    for case in CASES {
        let bench = Bench::new(case);
        let mut killed = 0;
        loop {
            let at = format!("commit.removing {}", 1 + 9 * killed);
            let dir = bench.place();
            let status = bench.saver(&dir, &at).status().unwrap();
            assert_eq!(look(&dir).unwrap(), Some(2), "{case:?} {at}");
            bench.finished(&dir, &format!("{case:?} {at}"));
            if status.success() {
                break;
            }
            killed += 1;
        }
        assert!(killed > 0, "{case:?}");
    }
}

#[test]
fn prunes_that_are_killed_again_and_again_come_to_an_end() {
    for case in CASES {
        let bench = Bench::new(case);
        let dir = bench.place();
        // The old version lies aside as a whole.
        let status = bench.saver(&dir, "commit.renamed").status().unwrap();
        assert!(!status.success());
        let mut killed = 0;
        // Each removes a few files.
        while !program(&dir, &format!("commit.removing {}", 2 + killed % 4))
            .arg("prune")
            .status()
            .unwrap()
            .success()
        {
            killed += 1;
            assert!(killed < 1000, "{case:?}");
        }
        assert!(killed > 1, "{case:?}");
        bench.finished(&dir, &format!("{case:?}"));
    }
}

#[test]
#[ignore = "kills at random moments; cargo xtask nightly runs it"]
fn a_removal_of_an_old_version_killed_at_random_moments_is_finished_by_pruning() {
    let mut killed = 0;
    for (n, case) in (0..).zip(CASES) {
        let bench = Bench::new(case);
        for i in 0..6u64 {
            let dir = bench.place();
            let mut child = bench.saver(&dir, "").spawn().unwrap();
            let aside = || {
                let names = fs::read_dir(dir.parent().unwrap()).unwrap();
                names
                    .flatten()
                    .any(|e| e.path().extension().is_some_and(|x| x == "old"))
            };
            // It begins when the old version lies aside.
            let begun = Instant::now();
            while !aside() && child.try_wait().unwrap().is_none() {
                assert!(begun.elapsed() < Duration::from_secs(60));
            }
            std::thread::sleep(Duration::from_micros(
                (scattered(n * 6 + i) * 3000.0) as u64,
            ));
            drop(child.kill());
            killed += u64::from(!child.wait().unwrap().success());
            if look(&dir).unwrap() == Some(1) {
                // The kill came before the exchange.
                continue;
            }
            bench.finished(&dir, &format!("{case:?} {i}"));
        }
    }
    assert!(killed > 5, "{killed} were killed in time");
}
