//! A new version of a directory: built beside it, put into its place by one rename.

use super::{
    begun,
    dir::{self, Dir, Identity},
    leftover, removal, remove,
    retire::{Retired, retire},
    root::Root,
    sibling::{Aside, State},
    version::{NewVersion, ResolvedPlace},
    write::{self, sync_file},
};
use crate::{
    Depth, Durability, Entry, FileBody, IfExists, Leftover, Name, Progress, Result, StorageError,
    Transaction, Written,
    action_log::{Action, note},
    failpoint, pool,
};
use async_trait::async_trait;
use bytes::Bytes;
use rustix::fs::{AtFlags, Mode};
use std::{
    ops::Range,
    os::{fd::OwnedFd, unix::fs::FileExt},
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
    if_exists: IfExists,
    /// What is replaced, if something is. Held open, so that no other directory gets its identity.
    old: Option<Arc<OwnedFd>>,
    committed: AtomicBool,
}

/// A version that was replaced, where it lies now, and its files.
type Replaced = (Arc<OwnedFd>, Aside, Arc<[Name]>);

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
    let new = dir::open(&version.up, &version.name)
        .map_err(|e| StorageError::io("open", &version.place, e))?;
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

/// The directory that the version replaces; `None` if the place is empty.
fn to_replace(
    resolved: &ResolvedPlace,
    version: &NewVersion,
    if_exists: &IfExists,
) -> Result<Option<OwnedFd>> {
    let fail = |e| StorageError::io("list", &version.place, e);
    let place = match version.standing()? {
        Some(place) if !dir::is_empty(&place).map_err(fail)? => place,
        _ => return Ok(None),
    };
    let found = Some(Identity::of(&place).map_err(fail)?);
    if *if_exists == IfExists::Refuse {
        return Err(version.exists());
    }
    // Nobody knows the files of what came since, also when nothing was there.
    if resolved.known.is_some_and(|known| known != found) {
        return Err(version.changed());
    }
    version.check_replaceable(&place)?;
    Ok(Some(place))
}

impl LocalTransaction {
    pub(super) fn begin(
        resolved: &ResolvedPlace,
        attempt: &str,
        if_exists: IfExists,
    ) -> Result<Self> {
        let version = resolved.made_version(attempt)?;
        let old = to_replace(resolved, &version, &if_exists)?;
        let built = version.make()?;
        if let Some(place) = &old {
            let fits = || version.check_name(&version.aside(built.fd(), place)?);
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
            if_exists,
            old: old.map(Arc::new),
            committed: AtomicBool::new(false),
        })
    }

    /// Checks what [`begin`](Self::begin) checks, but for what only a new directory shows.
    pub(super) fn check(
        resolved: &ResolvedPlace,
        attempt: &str,
        if_exists: &IfExists,
    ) -> Result<()> {
        if let Some(version) = resolved.version_to_make(attempt)? {
            to_replace(resolved, &version, if_exists)?;
        }
        Ok(())
    }

    /// What another rank has begun, and [told](begun::tell) of.
    pub(super) fn join(place: &Path, attempt: &str, told: Option<&str>) -> Result<Self> {
        let (version, built) = begun::join(place, attempt, told)?;
        // Nothing is replaced by a rank that joins: the one that has begun it commits.
        Ok(Self {
            version,
            built,
            if_exists: IfExists::Refuse,
            old: None,
            committed: AtomicBool::new(false),
        })
    }
}

/// Writes the commit record of a version.
pub(super) fn write_record(
    built: &Dir,
    name: &Name,
    bytes: &[u8],
    durability: Durability,
) -> Result<()> {
    let (path, file) = built.create(name, bytes.len() as u64)?;
    file.write_all_at(bytes, 0)
        .map_err(|e| StorageError::io("write", &path, e))?;
    note(|| Action::Wrote(path.clone()));
    failpoint::hit("commit.record");
    if durability == Durability::Machine {
        sync_file(&file, &path)?;
        built.sync_directories(std::slice::from_ref(name))?;
    }
    failpoint::hit("commit.synced");
    Ok(())
}

/// That the directory that is to be renamed is the one that was written to, and that all files lie in it, whole.
pub(super) fn check(version: &NewVersion, built: &Dir, files: &[Entry]) -> Result<()> {
    let fail = |e| StorageError::io("look at", &version.built, e);
    if !dir::bears(&version.up, &version.built_name, built.fd()).map_err(fail)? {
        return Err(version.not_built(&version.built));
    }
    for file in files {
        file.check(version.built.display(), built.len(&file.name)?)?;
    }
    Ok(())
}

/// All files of a version that nobody can see yet.
pub(super) async fn written(built: &Dir, path: &Path) -> Result<Vec<Entry>> {
    let (built, path) = (built.clone(), path.to_path_buf());
    pool::run_one(move || {
        let fd = built
            .fd()
            .try_clone()
            .map_err(|e| StorageError::io("open", &path, e))?;
        Ok(Root::held(path, Some(fd)).list(None, Depth::All)?.files)
    })
    .await
}

/// The name of the new version is on the disk after this; that it is not is no failure to commit.
pub(super) fn make_durable(version: &NewVersion, durability: Durability) -> Result<()> {
    match durability {
        Durability::Machine => version.sync_parent().map_err(|e| match e {
            StorageError::Io { source, .. } => StorageError::NotDurable {
                path: version.place.display().to_string(),
                source,
            },
            other => other,
        }),
        Durability::Process => Ok(()),
    }
}

impl NewVersion {
    /// Puts the new version into its place. Returns what it replaced, if it did.
    fn put_into_place(
        &self,
        built: &Dir,
        if_exists: IfExists,
        old: Option<Arc<OwnedFd>>,
    ) -> Result<Option<Replaced>> {
        // Who could reach the old directory can reach the new one, and nobody else.
        if let Ok(old) = rustix::fs::statat(&self.up, &self.name, AtFlags::SYMLINK_NOFOLLOW)
            && let Err(e) = rustix::fs::fchmod(built.fd(), Mode::from_raw_mode(old.st_mode))
        {
            tracing::warn!(path = %self.place.display(), error = %e, "the new directory has other permissions");
        }
        // Renaming a directory succeeds only onto nothing or onto an empty directory, in one step.
        if self.put()? {
            return Ok(None);
        }
        let IfExists::Replace(files) = if_exists else {
            return Err(self.exists());
        };
        let Some(old) = old else {
            return Err(self.changed());
        };
        let same = dir::bears(&self.up, &self.name, &old);
        if !same.map_err(|e| StorageError::io("look at", &self.place, e))? {
            return Err(self.changed());
        }
        let aside = self.aside(built.fd(), &old)?;
        self.ready(&aside)?;
        failpoint::hit("commit.ready");
        self.replace(built.fd(), &old, &aside)?;
        Ok(Some((old, aside, files)))
    }

    fn commit(
        &self,
        built: &Dir,
        record: Option<(Name, Bytes)>,
        files: &[Entry],
        durability: Durability,
        (if_exists, old): (IfExists, Option<Arc<OwnedFd>>),
    ) -> Result<()> {
        if let Some((name, bytes)) = record {
            write_record(built, &name, &bytes, durability)?;
        }
        check(self, built, files)?;
        let replaced = self.put_into_place(built, if_exists, old)?;
        failpoint::hit("commit.renamed");
        let durable = make_durable(self, durability);
        failpoint::hit("commit.parent_synced");
        let Some((old, aside, files)) = replaced else {
            return durable;
        };
        // What is of others goes over to the new version, whatever else fails.
        let both = (&*old, built.fd());
        match retire(self, &aside, both, &files, durability, Retired::Not) {
            Err(e @ StorageError::NotCarried { .. }) => return Err(e),
            // The new version is there, whatever becomes of the old one, which shows among the leftovers.
            Err(e) => {
                tracing::warn!(path = %aside.path.display(), error = %e, "the replaced checkpoint was not removed");
            }
            Ok(()) => failpoint::hit("commit.old_removed"),
        }
        durable
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
        write::write(self.built.clone(), files, durability, progress).await
    }

    async fn read(&self, name: &Name, range: Range<u64>) -> Result<Bytes> {
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
        let (version, built, old) = (
            self.version.clone(),
            self.built.clone(),
            (self.if_exists.clone(), self.old.clone()),
        );
        let files = files.to_vec();
        let work = move || version.commit(&built, record, &files, durability, old);
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
        written(&self.built, &self.version.built).await
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
            let transaction =
                LocalTransaction::begin(&found, "a", IfExists::Replace([].into())).unwrap();
            fs::write(transaction.version.built.join("owner"), "N").unwrap();
            let old = transaction.old.as_ref().unwrap();
            let aside = transaction
                .version
                .aside(transaction.built.fd(), old)
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
