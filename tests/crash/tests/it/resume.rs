//! Conversions that are killed and go on: what is finished is not written again, and the end is the same as without a kill.
#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use reshard::{Dialect, blocking::Checkpoint};
use reshard_crash::{Form, save};
use reshard_model::testkit::one_in;
use reshard_storage::failpoint;
use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    process::{Command, Output},
    time::Duration,
};

/// Formats with several files each, as a folder.
const FORMATS: [(&str, Option<&str>); 4] = [
    ("torch_dist/1", Some("max_shard_size=20000")),
    ("torch_save/1", Some("max_shard_size=20000")),
    ("safetensors/1", Some("max_shard_size=20000")),
    ("zarr3/1", None),
];

/// Many files are finished, and not all. Journals are files, too.
const IN_THE_MIDDLE: &str = "write.done 40";

fn convert(
    src: &Path,
    dst: &Path,
    (format, setting): (&str, Option<&str>),
    at: Option<&str>,
) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_reshard-saver"));
    command
        .arg(dst)
        .arg("convert")
        .arg(src)
        .arg(format)
        .arg("resume")
        .args(setting);
    if let Some(at) = at {
        command.env(failpoint::VARIABLE, at);
    }
    command.output().unwrap()
}

/// How many files were taken over; `None` if it did not end well.
fn resumed(out: &Output) -> Option<usize> {
    let text = String::from_utf8(out.stdout.clone()).unwrap();
    out.status.success().then(|| text.trim().parse().unwrap())
}

fn source(home: &Path, step: u64) -> PathBuf {
    let src = home.join("src");
    save(&src, step, step > 1, Form::TorchDist(Dialect::Dcp)).unwrap();
    src
}

/// All files, with their bytes.
fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut out = BTreeMap::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let (path, name) = (entry.path(), PathBuf::from(entry.file_name()));
        match path.is_dir() {
            true => out.extend(
                files(&path)
                    .into_iter()
                    .map(|(inner, b)| (name.join(inner), b)),
            ),
            false => drop(out.insert(name, fs::read(path).unwrap())),
        }
    }
    out
}

/// What a killed attempt has left: its files, without journals.
fn left(dst: &Path) -> Vec<(PathBuf, BTreeMap<PathBuf, Vec<u8>>)> {
    let beside = fs::read_dir(dst.parent().unwrap()).unwrap().flatten();
    let hidden = beside.map(|e| e.path()).filter(|path| {
        let name = path.file_name().unwrap().to_str().unwrap();
        name.starts_with(".dst.")
    });
    hidden.map(|path| (path.clone(), files(&path))).collect()
}

#[test]
fn a_conversion_that_is_killed_at_any_step_goes_on_with_what_is_finished() {
    let home = reshard_crash::scratch().unwrap();
    let src = source(home.path(), 1);
    for (n, format) in FORMATS.into_iter().enumerate() {
        let home = home.path().join(format!("{n}"));
        fs::create_dir(&home).unwrap();
        let whole = home.join("whole");
        assert_eq!(
            resumed(&convert(&src, &whole, format, None)),
            Some(0),
            "{format:?}"
        );
        let want = files(&whole);
        assert!(
            !want
                .keys()
                .any(|name| name.display().to_string().contains("journal"))
        );

        let mut most = 0;
        let each = one_in(3);
        for (m, at) in killed_at().enumerate().skip(n % each).step_by(each) {
            let folder = home.join(format!("at-{m}"));
            fs::create_dir(&folder).unwrap();
            let dst = folder.join("dst");
            let first = convert(&src, &dst, format, Some(&at));
            if first.status.success() || dst.exists() {
                assert_eq!(files(&dst), want, "{format:?} at {at}");
                continue;
            }
            // The files that are finished keep their inodes; all others are new.
            let before = left(&dst);
            let second = convert(&src, &dst, format, None);
            let took = resumed(&second);
            let told = String::from_utf8_lossy(&second.stderr);
            let took = took.unwrap_or_else(|| panic!("{format:?} at {at}: {told}"));
            assert_eq!(files(&dst), want, "{format:?} at {at}");
            let there: usize = before.iter().map(|(_, files)| files.len()).sum();
            assert!(took <= there, "{format:?} at {at}: {took} of {there}");
            most = most.max(took);
            if took > 0 {
                assert_eq!(left(&dst), [], "{format:?} at {at}");
            }
        }
        assert!(
            most >= 3,
            "{format:?}: at most {most} files were taken over"
        );
    }
}

/// Steps of a save; those of files also the second time and later.
fn killed_at() -> impl Iterator<Item = String> {
    let steps = failpoint::STEPS
        .iter()
        .filter(|s| !failpoint::REPLACING.contains(s));
    steps.flat_map(|step| {
        let times: &[u32] = if step.starts_with("write") {
            &[1, 2, 5, 9, 14]
        } else {
            &[1]
        };
        times.iter().map(move |n| format!("{step} {n}"))
    })
}

#[test]
fn what_is_taken_over_is_linked_and_not_written() {
    let home = reshard_crash::scratch().unwrap();
    let src = source(home.path(), 1);
    let dst = home.path().join("dst");
    let format = FORMATS[0];
    assert!(
        !convert(&src, &dst, format, Some(IN_THE_MIDDLE))
            .status
            .success()
    );
    let inodes = |dir: &Path| -> BTreeMap<String, u64> {
        let all = fs::read_dir(dir).unwrap().flatten();
        all.map(|e| {
            (
                e.file_name().into_string().unwrap(),
                e.metadata().unwrap().ino(),
            )
        })
        .filter(|(name, _)| name.ends_with(".distcp"))
        .collect()
    };
    let [(hidden, _)] = &left(&dst)[..] else {
        panic!()
    };
    let before = inodes(hidden);
    let took = resumed(&convert(&src, &dst, format, None)).unwrap();
    let after = inodes(&dst);
    let same = before
        .iter()
        .filter(|(name, inode)| after.get(*name) == Some(*inode));
    assert_eq!(same.count(), took);
    assert!(took > 3 && took <= before.len(), "{took} of {before:?}");
    assert_eq!(left(&dst), []);
    let opened = Checkpoint::open(dst.display().to_string()).unwrap();
    let report = opened.verify(true, Default::default()).unwrap();
    assert_eq!(report.damage, []);
}

#[test]
fn a_source_that_has_changed_and_other_options_are_not_resumed() {
    let home = reshard_crash::scratch().unwrap();
    let src = source(home.path(), 1);
    let dst = home.path().join("dst");
    let [format, ..] = FORMATS;
    assert!(
        !convert(&src, &dst, format, Some(IN_THE_MIDDLE))
            .status
            .success()
    );
    let before = left(&dst);
    // The same shapes at the same places, with other numbers.
    std::thread::sleep(Duration::from_millis(20));
    source(home.path(), 2);
    let out = convert(&src, &dst, format, None);
    let told = String::from_utf8_lossy(&out.stderr);
    assert!(
        !out.status.success() && told.contains("the source has changed"),
        "{told}"
    );
    assert!(!dst.exists());
    assert_eq!(left(&dst), before);
}

#[test]
fn files_of_another_length_than_the_journal_says_are_written_again() {
    let home = reshard_crash::scratch().unwrap();
    let src = source(home.path(), 1);
    let [format, ..] = FORMATS;
    let whole = home.path().join("whole");
    convert(&src, &whole, format, None);
    let dst = home.path().join("dst");
    assert!(
        !convert(&src, &dst, format, Some(IN_THE_MIDDLE))
            .status
            .success()
    );
    let [(hidden, there)] = &left(&dst)[..] else {
        panic!()
    };
    let data: Vec<&PathBuf> = there
        .keys()
        .filter(|n| n.extension().is_some_and(|e| e == "distcp"))
        .collect();
    fs::remove_file(hidden.join(data[0])).unwrap();
    fs::write(hidden.join(data[1]), "cut").unwrap();
    // A journal that is cut says nothing.
    let journal = there
        .keys()
        .find(|n| n.display().to_string().starts_with(".reshard-journal-"))
        .unwrap();
    fs::write(hidden.join(journal), "{").unwrap();
    let took = resumed(&convert(&src, &dst, format, None)).unwrap();
    assert!(
        (1..=data.len() - 2).contains(&took),
        "{took} of {}",
        data.len()
    );
    assert_eq!(files(&dst), files(&whole));
}

/// Sets the modification times of all files in `dir` to those of `times`.
fn set_times(dir: &Path, times: &BTreeMap<PathBuf, std::time::SystemTime>) {
    for (name, time) in times {
        let file = fs::File::options().write(true).open(dir.join(name));
        file.unwrap().set_modified(*time).unwrap();
    }
}

/// The modification times of all files in `dir`.
fn times(dir: &Path) -> BTreeMap<PathBuf, std::time::SystemTime> {
    let modified = |name: &PathBuf| fs::metadata(dir.join(name)).unwrap().modified();
    let names = files(dir).into_keys();
    names.map(|n| (n.clone(), modified(&n).unwrap())).collect()
}

#[test]
fn a_source_of_equal_lengths_and_times_is_told_apart_by_inodes_and_change_times() {
    let home = reshard_crash::scratch().unwrap();
    let src = source(home.path(), 1);
    let other = home.path().join("other");
    save(&other, 2, false, Form::TorchDist(Dialect::Dcp)).unwrap();
    let format = FORMATS[0];
    // Each way changes the source and leaves its lengths and times of modification.
    type Change = fn(&Path, &Path);
    let changes: [(&str, Change); 4] = [
        ("replaced", |src, other| {
            for (name, bytes) in files(other) {
                fs::write(src.join("new"), bytes).unwrap();
                fs::rename(src.join("new"), src.join(name)).unwrap();
            }
        }),
        ("written in place", |src, other| {
            for (name, bytes) in files(other) {
                fs::write(src.join(name), bytes).unwrap();
            }
        }),
        ("linked", |src, other| {
            fs::hard_link(src.join(".metadata"), other.join("link")).unwrap();
        }),
        ("chmod", |src, _| {
            let mode = fs::Permissions::from_mode(0o600);
            fs::set_permissions(src.join(".metadata"), mode).unwrap();
        }),
    ];
    for (n, (how, change)) in changes.into_iter().enumerate() {
        let folder = home.path().join(format!("{n}"));
        fs::create_dir(&folder).unwrap();
        let dst = folder.join("dst");
        let killed = convert(&src, &dst, format, Some(IN_THE_MIDDLE));
        assert!(!killed.status.success(), "{how}");
        let (before, modified) = (left(&dst), times(&src));
        change(&src, &other);
        set_times(&src, &modified);
        assert_eq!(times(&src), modified, "{how}");

        let out = convert(&src, &dst, format, None);
        let told = String::from_utf8_lossy(&out.stderr);
        assert!(!out.status.success(), "{how}: {told}");
        for part in [
            "the source has changed",
            "ctime",
            "hard link",
            "chmod",
            "changed last",
        ] {
            assert!(told.contains(part), "{how}: {told}");
        }
        assert!(!dst.exists(), "{how}");
        assert_eq!(left(&dst), before, "{how}");
    }
}

#[test]
fn finished_files_are_compared_with_the_journal_before_they_are_linked() {
    let home = reshard_crash::scratch().unwrap();
    let src = source(home.path(), 1);
    for (n, format) in FORMATS.into_iter().enumerate() {
        let folder = home.path().join(format!("{n}"));
        fs::create_dir(&folder).unwrap();
        let (whole, dst) = (folder.join("whole"), folder.join("dst"));
        convert(&src, &whole, format, None);
        let killed = convert(&src, &dst, format, Some("write.done 14"));
        assert!(!killed.status.success(), "{format:?}");
        let [(hidden, there)] = &left(&dst)[..] else {
            panic!()
        };
        // One bit of each file but the journals, with the old times.
        let modified = times(hidden);
        let is_data = |name: &Path| !name.display().to_string().contains("reshard");
        let data = there.iter().filter(|(name, _)| is_data(name));
        let mut changed = 0;
        for (name, bytes) in data.filter(|(_, bytes)| !bytes.is_empty()) {
            let mut bytes = bytes.clone();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            fs::write(hidden.join(name), bytes).unwrap();
            changed += 1;
        }
        assert!(changed > 1, "{format:?}: {changed}");
        set_times(hidden, &modified);

        let took = resumed(&convert(&src, &dst, format, None)).unwrap();
        assert_eq!(took, 0, "{format:?}");
        assert_eq!(files(&dst), files(&whole), "{format:?}");
    }
}
