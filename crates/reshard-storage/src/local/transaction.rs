//! A new version of a directory, of one file, or of files with a common prefix: built beside its place until it is committed.

use super::{
    begun, commit,
    dir::{self, Dir},
    files, leftover, removal, remove,
    retire::{Retired, retire},
    root::Root,
    sibling::{Aside, State},
    version::{NewVersion, ResolvedPlace},
    write,
};
use crate::{
    Depth, Durability, Entry, FileBody, IfExists, Leftover, Name, PlaceKind, Progress, Result,
    StorageError, Transaction, Written, failpoint, local::during::During as _, pool,
};
use async_trait::async_trait;
use bytes::Bytes;
use std::{
    ops::Range,
    os::fd::OwnedFd,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

#[derive(Debug)]
pub(super) struct LocalTransaction {
    version: NewVersion,
    built: Dir,
    kind: PlaceKind,
    if_exists: IfExists,
    /// What is replaced, if something is. Held open, so that nothing else gets its identity.
    old: Option<Arc<OwnedFd>>,
    committed: AtomicBool,
}

/// What lies there of a leftover, and the version that it was to become.
fn find(place: &Path, left: &Leftover) -> Result<Option<(NewVersion, State, Aside, OwnedFd)>> {
    let Some(version) = ResolvedPlace::find(place)?.version(&left.attempt)? else {
        return Ok(None);
    };
    let Some(name) = leftover::name_of(left) else {
        return Ok(None);
    };
    Ok(version
        .left(&name)?
        .map(|(state, at, fd)| (version, state, at, fd)))
}

pub(super) fn remove_leftover(place: &Path, left: &Leftover) -> Result<()> {
    match find(place, left)? {
        Some((version, State::Built | State::Ready, at, fd)) => {
            remove::remove_held(&version.up, &at.name, &fd, &at.path)
        }
        _ => Ok(()),
    }
}

pub(super) fn finish_replacing(place: &Path, left: &Leftover, files: &[Name]) -> Result<()> {
    let (version, state, aside, old) = match find(place, left)? {
        Some(found @ (_, State::Replaced | State::Removed, ..)) => found,
        _ => return Ok(()),
    };
    if state == State::Removed {
        remove::check_mounts(&version.up, &old, &aside.path)?;
        return removal::finish(&version, &aside, &old, files);
    }
    let new = dir::open(&version.up, &version.name).during("open", &version.place)?;
    // What is mounted there, or in a directory of others, is not moved over without anybody knowing.
    remove::check_mounts(&version.up, &old, &aside.path)?;
    retire(
        &version,
        &aside,
        (&old, &new),
        files,
        Durability::Machine,
        Retired::InPart,
    )
}

/// What the version replaces; `None` if the place is empty.
fn to_replace(
    resolved: &ResolvedPlace,
    version: &NewVersion,
    kind: PlaceKind,
    if_exists: &IfExists,
) -> Result<Option<OwnedFd>> {
    match kind {
        PlaceKind::Folder => commit::to_replace(resolved, version, if_exists),
        _ => files::to_replace(resolved, version, kind, if_exists),
    }
}

impl LocalTransaction {
    pub(super) fn begin(
        resolved: &ResolvedPlace,
        attempt: &str,
        kind: PlaceKind,
        if_exists: IfExists,
    ) -> Result<Self> {
        let version = resolved.made_version(attempt)?;
        let old = to_replace(resolved, &version, kind, &if_exists)?;
        let built = version.make()?;
        if kind == PlaceKind::Folder
            && let Some(place) = &old
        {
            let fits = || version.check_name(&version.aside(Some(built.fd()), place)?);
            version.probe_exchange(&built).and_then(|()| fits()).inspect_err(|_| {
                if let Err(e) = dir::rmdir(&version.up, &version.built_name) {
                    tracing::debug!(path = %version.built.display(), error = %e, "transaction not removed");
                }
            })?;
        }
        failpoint::hit("transaction.created");
        Ok(Self {
            version,
            built,
            kind,
            if_exists,
            old: old.map(Arc::new),
            committed: AtomicBool::new(false),
        })
    }

    /// Checks what [`begin`](Self::begin) checks, but for what only a new directory shows.
    pub(super) fn check(
        resolved: &ResolvedPlace,
        attempt: &str,
        kind: PlaceKind,
        if_exists: &IfExists,
    ) -> Result<()> {
        if let Some(version) = resolved.version_to_make(attempt)? {
            to_replace(resolved, &version, kind, if_exists)?;
        }
        Ok(())
    }

    /// What another rank has begun, and [told](begun::tell) of.
    pub(super) fn join(
        place: &Path,
        attempt: &str,
        kind: PlaceKind,
        told: Option<&str>,
    ) -> Result<Self> {
        let (version, built) = begun::join(place, attempt, told)?;
        // Nothing is replaced by a rank that joins: the one that has begun it commits.
        Ok(Self {
            version,
            built,
            kind,
            if_exists: IfExists::Refuse,
            old: None,
            committed: AtomicBool::new(false),
        })
    }
}

#[async_trait]
impl Transaction for LocalTransaction {
    async fn write(
        &self,
        files: Vec<FileBody>,
        durability: Durability,
        progress: Progress,
    ) -> Result<Vec<Written>> {
        if self.kind != PlaceKind::Folder {
            files::check_files(&self.version, self.kind, &files)?;
        }
        write::write(self.built.clone(), files, durability, progress).await
    }

    async fn read(&self, name: &Name, range: Range<u64>) -> Result<Bytes> {
        if self.kind != PlaceKind::Folder {
            return Err(StorageError::unsupported(
                format!("reading {name} before it is committed"),
                "this store can't do it",
            ));
        }
        let (built, name) = (self.built.clone(), name.clone());
        pool::run_one(move || built.read(&name, range)).await
    }

    fn place(&self) -> Option<String> {
        Some(begun::tell(&self.version, &self.built))
    }

    async fn commit(
        &self,
        record: Option<(Name, Bytes)>,
        files: &[Entry],
        durability: Durability,
    ) -> Result<()> {
        if self.committed.load(Ordering::Relaxed) {
            return Err(StorageError::invalid(format!(
                "{} is committed already",
                self.version.place.display()
            )));
        }
        let (version, built, kind) = (self.version.clone(), self.built.clone(), self.kind);
        let (if_exists, old, files) = (self.if_exists.clone(), self.old.clone(), files.to_vec());
        let work = move || match kind {
            PlaceKind::Folder => {
                version.commit(&built, record, &files, durability, (if_exists, old))
            }
            _ => files::commit(&version, &built, kind, record, &files, (durability, old)),
        };
        let outcome = pool::run_one(work).await;
        if matches!(
            outcome,
            Ok(()) | Err(StorageError::NotDurable { .. } | StorageError::NotCarried { .. })
        ) {
            self.committed.store(true, Ordering::Relaxed);
        }
        outcome
    }

    async fn written(&self) -> Result<Vec<Entry>> {
        let (built, path) = (self.built.clone(), self.version.built.clone());
        pool::run_one(move || Ok(Root::list_held(&path, built.fd(), Depth::All)?.files)).await
    }

    async fn rollback(&self) -> Result<()> {
        if self.committed.load(Ordering::Relaxed) {
            return Ok(());
        }
        let (version, built) = (self.version.clone(), self.built.clone());
        pool::run_one(move || {
            remove::remove_held(&version.up, &version.built_name, built.fd(), &version.built)
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local::leftover::leftovers;
    use rustix::fs::{CWD, RenameFlags};
    use std::{fs, os::unix::process::ExitStatusExt, path::PathBuf};

    /// A place with a directory of somebody, another one beside it, and a new version that is ready to be exchanged.
    struct Case {
        transaction: LocalTransaction,
        aside: Aside,
        place: PathBuf,
        park: PathBuf,
        _home: Option<tempfile::TempDir>,
    }

    impl Case {
        fn new() -> Self {
            let home = tempfile::tempdir().unwrap();
            let case = Self::below(home.path());
            Self {
                _home: Some(home),
                ..case
            }
        }

        fn below(home: &Path) -> Self {
            let root = fs::canonicalize(home).unwrap();
            let [place, park] = ["x", "park"].map(|d| root.join(d));
            for (dir, owner) in [(&place, "A"), (&park, "B")] {
                fs::create_dir(dir).unwrap();
                fs::write(dir.join("owner"), owner).unwrap();
            }
            let found = ResolvedPlace::find(&place).unwrap();
            let replace = IfExists::Replace([].into());
            let transaction =
                LocalTransaction::begin(&found, "a", PlaceKind::Folder, replace).unwrap();
            fs::write(transaction.version.built.join("owner"), "N").unwrap();
            let old = transaction.old.as_ref().unwrap();
            let aside = transaction
                .version
                .aside(Some(transaction.built.fd()), old)
                .unwrap();
            transaction.version.ready(&aside).unwrap();
            Self {
                transaction,
                aside,
                place,
                park,
                _home: None,
            }
        }

        fn replace(&self) -> Result<()> {
            self.transaction
                .version
                .replace(self.transaction.built.fd(), self.old(), &self.aside)
        }

        fn exchange(&self) {
            self.transaction.version.exchange(&self.aside).unwrap();
        }

        fn settle(&self) -> Result<()> {
            self.transaction
                .version
                .settle(self.transaction.built.fd(), self.old(), &self.aside)
        }

        /// Somebody exchanges the two directories.
        fn swap(&self) {
            rustix::fs::renameat_with(CWD, &self.place, CWD, &self.park, RenameFlags::EXCHANGE)
                .unwrap();
        }

        fn old(&self) -> &OwnedFd {
            self.transaction.old.as_ref().unwrap()
        }

        fn rollback(&self) {
            futures_executor::block_on(self.transaction.rollback()).unwrap();
        }

        fn beside(&self) -> Vec<(String, String)> {
            beside(self.place.parent().unwrap())
        }
    }

    /// Directories and whose they are.
    fn beside(home: &Path) -> Vec<(String, String)> {
        let entries = fs::read_dir(home).unwrap().map(Result::unwrap);
        let owner = |dir: PathBuf| fs::read_to_string(dir.join("owner")).unwrap();
        let mut all: Vec<_> = entries
            .map(|e| (e.file_name().into_string().unwrap(), owner(e.path())))
            .collect();
        all.sort();
        all
    }

    /// What pruning does beside a place: finds what was left, and returns whether it was replaced; removes it.
    fn prune(place: &Path) -> Vec<bool> {
        let found = leftovers(place).unwrap();
        for left in &found {
            remove_leftover(place, left).unwrap();
            finish_replacing(place, left, &[Name::new("owner").unwrap()]).unwrap();
        }
        assert!(leftovers(place).unwrap().is_empty());
        found.iter().map(|l| l.replaced).collect()
    }

    fn are(all: &[(&str, &str)]) -> Vec<(String, String)> {
        all.iter()
            .map(|(dir, owner)| ((*dir).into(), (*owner).into()))
            .collect()
    }

    #[test]
    fn what_somebody_puts_there_just_before_the_exchange_goes_back() {
        let case = Case::new();
        case.swap();
        let e = case.replace().unwrap_err();
        assert!(matches!(e, StorageError::Changed { .. }), "{e}");
        case.rollback();
        assert_eq!(case.beside(), are(&[("park", "A"), ("x", "B")]));
    }

    const HOME: &str = "RESHARD_TEST_HOME";

    #[test]
    fn what_somebody_puts_there_stays_when_the_process_is_killed_before_that_goes_back() {
        if let Some(home) = std::env::var_os(HOME) {
            let case = Case::below(home.as_ref());
            case.swap();
            // It dies here.
            return drop(case.replace());
        }
        let home = tempfile::tempdir().unwrap();
        let test =
            "what_somebody_puts_there_stays_when_the_process_is_killed_before_that_goes_back";
        let mut killed = std::process::Command::new(std::env::current_exe().unwrap());
        killed
            .args([test, "--test-threads=1"])
            .env(HOME, home.path());
        let out = killed
            .env(failpoint::VARIABLE, "commit.exchanged")
            .output()
            .unwrap();
        assert_eq!(out.status.signal(), Some(9), "{out:?}");
        let after = beside(home.path());
        let [(_, b), rest @ ..] = &after[..] else {
            panic!("{after:?}")
        };
        assert_eq!(
            (b.as_str(), rest),
            ("B", &are(&[("park", "A"), ("x", "N")])[..])
        );
        assert!(prune(&home.path().join("x")).is_empty());
        assert_eq!(beside(home.path()), after);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn nothing_is_moved_out_of_a_replaced_version_in_which_something_is_mounted() {
        use crate::local::mount::tests::{bind, unbind, with_mount};
        with_mount(
            "local::transaction::tests::nothing_is_moved_out_of_a_replaced_version_in_which_something_is_mounted",
            |home| {
                let case = Case::new();
                case.exchange();
                let (place, old) = (&case.place, &case.aside.path);
                fs::create_dir_all(old.join("logs/deep")).unwrap();
                fs::write(old.join("a"), "").unwrap();
                fs::write(old.join("logs/deep/b"), "").unwrap();
                // A directory in one of others, and a file of the checkpoint.
                for (from, to) in [("from", "logs/deep"), ("from/gold", "owner")] {
                    bind(&home.join(from), &old.join(to));
                    let left = leftovers(place).unwrap().pop().unwrap();
                    let files = [Name::new("owner").unwrap()];
                    let e = finish_replacing(place, &left, &files).unwrap_err();
                    let told = format!("{} is mounted", old.join(to).display());
                    assert!(
                        matches!(&e, StorageError::Unsupported { .. })
                            && e.to_string().contains(&told),
                        "{e}"
                    );
                    assert!(old.join("a").exists() && old.join("logs").exists());
                    assert!(!place.join("a").exists() && !place.join("logs").exists());
                    unbind(&old.join(to));
                }
                assert_eq!(prune(place), [true]);
                assert!(place.join("a").exists() && place.join("logs/deep/b").exists());
            },
        );
    }

    #[test]
    fn what_a_killed_process_leaves_is_the_new_version_or_the_old_one() {
        // Before the exchange, after it, and when it was undone since somebody had put another directory there.
        for (exchanges, swapped, replaced, stays) in [
            (0, false, false, "A"),
            (1, false, true, "N"),
            (2, true, false, "B"),
        ] {
            let case = Case::new();
            if swapped {
                case.swap();
            }
            (0..exchanges).for_each(|_| case.exchange());
            assert_eq!(prune(&case.place), [replaced]);
            assert_eq!(
                case.beside(),
                are(&[("park", if swapped { "A" } else { "B" }), ("x", stays)])
            );
        }
    }

    #[test]
    fn directories_that_are_exchanged_before_and_after_the_exchange_stay_and_the_error_says_where_they_are()
     {
        let case = Case::new();
        let Case { place, park, .. } = &case;
        case.swap();
        case.exchange();
        case.swap();
        let e = case.settle().unwrap_err();
        case.rollback();
        let out = place.with_file_name(".x.a.out");
        assert_eq!(
            case.beside(),
            are(&[(".x.a.out", "A"), ("park", "N"), ("x", "B")])
        );
        let StorageError::Displaced {
            path,
            kept,
            old,
            new,
        } = &e
        else {
            panic!("{e}")
        };
        let told = [path, kept].map(PathBuf::from);
        assert_eq!(told, [place.clone(), out.clone()]);
        if cfg!(target_os = "linux") {
            assert_eq!([old, new].map(PathBuf::from), [out, park.clone()]);
        }
        // Nothing takes it for a version of which the rest is to be removed.
        assert!(leftovers(place).unwrap().is_empty());
    }

    #[test]
    fn another_directory_that_is_put_at_the_place_instead_of_the_new_version_is_told() {
        let case = Case::new();
        let Case {
            place, park, aside, ..
        } = &case;
        rustix::fs::renameat_with(CWD, &aside.path, CWD, park, RenameFlags::EXCHANGE).unwrap();
        case.exchange();
        let e = case.settle().unwrap_err();
        case.rollback();
        assert!(matches!(&e, StorageError::Displaced { .. }), "{e}");
        assert_eq!(
            case.beside(),
            are(&[(".x.a.out", "A"), ("park", "N"), ("x", "B")])
        );
        assert!(leftovers(place).unwrap().is_empty());
    }

    #[test]
    fn what_was_taken_out_of_a_place_that_is_gone_stays() {
        let case = Case::new();
        let Case { place, park, .. } = &case;
        case.swap();
        case.exchange();
        fs::rename(place, place.with_file_name("away")).unwrap();
        let e = case.settle().unwrap_err();
        assert!(matches!(e, StorageError::Displaced { .. }), "{e}");
        case.rollback();
        assert_eq!(
            case.beside(),
            are(&[(".x.a.out", "B"), ("away", "N"), ("park", "A")])
        );
        assert!(park.exists());
    }

    #[test]
    fn another_directory_under_a_hidden_name_is_neither_committed_nor_removed() {
        let case = Case::new();
        let Case { place, park, .. } = &case;
        let (old, [tmp, away]) = (
            &case.aside.path,
            [".x.a.tmp", "away"].map(|d| place.with_file_name(d)),
        );
        fs::rename(old, away).unwrap();
        fs::rename(park, old).unwrap();
        let e = case.replace().unwrap_err();
        assert!(matches!(e, StorageError::Incomplete { .. }), "{e}");
        fs::rename(old, tmp).unwrap();
        case.rollback();
        assert_eq!(
            case.beside(),
            are(&[(".x.a.tmp", "B"), ("away", "N"), ("x", "A")])
        );
    }

    #[test]
    fn a_version_that_can_not_be_exchanged_is_removed() {
        let case = Case::new();
        fs::rename(&case.place, case.place.with_file_name("away")).unwrap();
        case.replace().unwrap_err();
        case.rollback();
        assert_eq!(case.beside(), are(&[("away", "A"), ("park", "B")]));
    }
}
