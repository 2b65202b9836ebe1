//! Several ranks.

use crate::states::{newest_is, part, save_in, steps};
use reshard::{ErrorKind, LocalGroup, storage::wait};
use reshard_manager::Step;
use reshard_manager::{Error, Saver, Verify};
use std::{fs, path::Path, time::Duration};

const RANKS: usize = 3;

fn savers(dir: &Path) -> Vec<Saver> {
    let saver = |_| Saver::new(dir).keep(2);
    (0..RANKS).map(saver).collect()
}

#[test]
fn all_ranks_learn_what_was_removed() {
    let dir = tempfile::tempdir().unwrap();
    let (groups, savers) = (LocalGroup::new(3), savers(dir.path()));
    for step in 1..5 {
        let want: &[u64] = match step {
            1 | 2 => &[],
            3 => &[1],
            _ => &[2],
        };
        for saved in save_in(&groups, &savers, step) {
            let saved = saved.unwrap();
            assert_eq!((&*saved.removed, saved.warnings.len()), (want, 0));
        }
    }
    assert_eq!(steps(dir.path()), [3, 4]);
    newest_is(dir.path(), 4);
}

#[test]
fn all_ranks_learn_why_nothing_was_removed() {
    let dir = tempfile::tempdir().unwrap();
    let (groups, savers) = (LocalGroup::new(3), savers(dir.path()));
    for step in 1..3 {
        save_in(&groups, &savers, step)
            .into_iter()
            .for_each(|saved| drop(saved.unwrap()));
    }
    // Nobody can tell any more whose it is.
    let sidecar = dir.path().join("step-1/reshard.json");
    let text = fs::read_to_string(&sidecar).unwrap();
    fs::write(&sidecar, text.replace("\"sha256\":\"", "\"sha256\":\"0")).unwrap();
    for saved in save_in(&groups, &savers, 3) {
        let saved = saved.unwrap();
        let [warning] = &*saved.warnings else {
            panic!("{saved:?}")
        };
        assert!(warning.contains("step 1 stays"), "{warning}");
        assert_eq!(saved.removed, [0; 0]);
    }
    assert_eq!(steps(dir.path()), [1, 2, 3]);
}

#[test]
fn ranks_that_save_different_steps_are_told_apart_before_anything_is_saved() {
    let dir = tempfile::tempdir().unwrap();
    let (groups, savers) = (LocalGroup::new(3), savers(dir.path()));
    let saved: Vec<_> = std::thread::scope(|scope| {
        let ranks = groups.iter().zip(&savers).zip([5u64, 5, 6]);
        let threads: Vec<_> = ranks
            .map(|((group, saver), step)| {
                scope.spawn(move || {
                    let state = part(step, group_rank(group), 3);
                    wait(saver.save(step, &state, |save| save.group(group))).map(drop)
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    for e in saved {
        let e = e.unwrap_err();
        assert!(matches!(e, Error::Invalid(_)), "{e}");
        let expected = "`step`: ranks 0, 1 have 5, rank 2 has 6";
        assert!(e.to_string().contains(expected), "{e}");
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

type Set = fn(Saver) -> Saver;

#[test]
fn savers_with_different_settings_fail_on_all_ranks_before_anything_is_saved() {
    let dir = tempfile::tempdir().unwrap();
    let groups = LocalGroup::new(3);
    let settings: [(&str, Set); 8] = [
        ("directory", |_| Saver::new("elsewhere").keep(2)),
        ("pattern", |s| s.pattern("other-{n}".parse().unwrap())),
        ("every", |s| s.every(7)),
        ("keep", |s| s.keep(7)),
        ("keep_every", |s| s.keep_every(7)),
        ("verify", |s| s.verify(Verify::Full)),
        ("unfinished_after", |s| s.unfinished_after(Duration::ZERO)),
        ("owner", |s| s.owner("other")),
    ];
    let refused = |name: &str, all: Vec<Result<(), Error>>| {
        let errors: Vec<_> = all.into_iter().map(|all| all.unwrap_err()).collect();
        for e in &errors {
            assert_eq!(e.kind(), ErrorKind::Invalid);
            assert_eq!(e.to_string(), errors[0].to_string());
            let text = e.to_string();
            let line = format!("`{name}`: ranks 0, 2 have ");
            assert!(text.contains(&line) && text.contains("rank 1 has "), "{e}");
        }
    };
    for (name, set) in settings {
        let mut savers = savers(dir.path());
        let other = set(savers.remove(1));
        savers.insert(1, other);
        let saved = save_in(&groups, &savers[..3], 5);
        refused(
            name,
            saved.into_iter().map(|saved| saved.map(drop)).collect(),
        );
        let found = latest_in(&groups, &savers[..3]);
        refused(
            name,
            found.into_iter().map(|found| found.map(drop)).collect(),
        );
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

fn latest_in(groups: &[LocalGroup], savers: &[Saver]) -> Vec<Result<Option<Step>, Error>> {
    std::thread::scope(|scope| {
        let ranks = groups.iter().zip(savers);
        let threads: Vec<_> = ranks
            .map(|(group, saver)| scope.spawn(move || wait(saver.latest_in(group))))
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

fn group_rank(group: &LocalGroup) -> u64 {
    use reshard::ProcessGroup;
    group.rank().0.into()
}

#[test]
fn all_ranks_go_on_from_the_same_checkpoint_and_none_saves_an_earlier_one() {
    let dir = tempfile::tempdir().unwrap();
    let (groups, savers) = (LocalGroup::new(3), savers(dir.path()));
    let latest = || -> Vec<_> {
        let found = latest_in(&groups, &savers);
        found.into_iter().map(|found| found.unwrap()).collect()
    };
    assert_eq!(latest(), [None, None, None]);
    save_in(&groups, &savers, 7)
        .into_iter()
        .for_each(|saved| drop(saved.unwrap()));
    let found = latest();
    assert!(
        found.iter().all(|step| step.as_ref().unwrap().number == 7),
        "{found:?}"
    );
    for e in save_in(&groups, &savers, 6) {
        let e = e.unwrap_err();
        assert!(e.to_string().contains("of step 7"), "{e}");
        assert_eq!(e.kind(), ErrorKind::Exists);
    }
}
