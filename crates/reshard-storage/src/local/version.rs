//! Where a version is built and put: a place, the directory that names it, and hidden siblings of the place.

use super::{
    dir::{self, Dir, Identity},
    mount::is_mount,
    sibling::{self, Aside, State, check_attempt, sibling_called},
};
use crate::shown_path;
use crate::{
    Result, StorageError,
    action_log::{Action, note},
    failpoint,
    local::during::During as _,
};
use rustix::{
    fs::{Access, AtFlags, FileType, Mode, RenameFlags},
    io::Errno,
};
use std::{
    ffi::{OsStr, OsString},
    fs, io,
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

/// Why a version is not removed.
pub(super) const OTHER: &str =
    "somebody has put another directory there meanwhile; nothing is removed; try again";

const MOUNT: &str =
    "it is the root of a mounted file system, which can't be renamed; choose a directory in it";

/// A place by what it really is: the directory that names it, held open. Whatever becomes of the links and directories on the
/// way to it, what is done at the place is done in this one.
#[derive(Clone, Debug)]
pub(super) struct ResolvedPlace {
    pub(super) place: PathBuf,
    pub(super) parent: PathBuf,
    pub(super) name: OsString,
    /// `None` when it does not exist yet.
    pub(super) up: Option<Arc<OwnedFd>>,
    /// The directory of which the files are known that are to be replaced; `Some(None)` when there was none to know.
    pub(super) known: Option<Option<Identity>>,
}

/// A place, and one attempt to fill it.
#[derive(Clone, Debug)]
pub(super) struct NewVersion {
    pub(super) place: PathBuf,
    /// The directory that names the place.
    parent: PathBuf,
    /// Where the new version is built: holds nothing but what this attempt writes.
    pub(super) built: PathBuf,
    /// The parent. Names below are names in it; paths are only for messages.
    pub(super) up: Arc<OwnedFd>,
    pub(super) name: OsString,
    pub(super) built_name: OsString,
    attempt: String,
}

/// What a place really is: symbolic links to it are followed, also to a directory that does not exist yet, so that the
/// link stays and what it points to is replaced.
fn resolve(place: &Path) -> Result<(PathBuf, PathBuf, OsString)> {
    let unsupported = |why: &str| {
        StorageError::unsupported(format!("writing a checkpoint at {}", place.display()), why)
    };
    let mut at = place.to_path_buf();
    for _ in 0..40 {
        match fs::read_link(&at) {
            Ok(target) => {
                let base = at.parent().unwrap_or(Path::new("/"));
                at = base.join(target);
            }
            Err(_) => {
                let at = canonical(at);
                return match (at.parent(), at.file_name()) {
                    (Some(parent), Some(name)) => {
                        Ok((at.clone(), parent.to_path_buf(), name.to_owned()))
                    }
                    (None, _) => Err(unsupported("it is the root directory")),
                    _ => Err(unsupported("its last part is `..`")),
                };
            }
        }
    }
    Err(unsupported("too many symbolic links"))
}

/// `..` and the like are spelled out where that is possible, and links on the way are followed once and for all.
fn canonical(at: PathBuf) -> PathBuf {
    if let Ok(at) = fs::canonicalize(&at) {
        return at;
    }
    match (at.parent().map(fs::canonicalize), at.file_name()) {
        (Some(Ok(parent)), Some(name)) => parent.join(name),
        _ => at,
    }
}

impl ResolvedPlace {
    pub(super) fn find(place: &Path) -> Result<Self> {
        let (place, parent, name) = resolve(place)?;
        let up = match dir::hold(&parent) {
            Err(Errno::NOENT) => None,
            other => Some(Arc::new(other.during("open", &parent)?)),
        };
        Ok(Self {
            place,
            parent,
            name,
            up,
            known: None,
        })
    }

    /// Opens the place's directory, and keeps in mind which it is; `None` when there is none.
    pub(super) fn open(&mut self) -> Result<Option<OwnedFd>> {
        self.known = Some(None);
        let Some(up) = &self.up else { return Ok(None) };
        let fd = match dir::open(up, &self.name) {
            // What is there instead of a directory is told when it is to be written to.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(None),
            other => other.during("open", &self.place)?,
        };
        self.known = Some(Some(Identity::of(&fd).during("look at", &self.place)?));
        Ok(Some(fd))
    }

    /// The version of an attempt. `None` when the directory that names the place does not exist.
    pub(super) fn version(&self, attempt: &str) -> Result<Option<NewVersion>> {
        check_attempt(attempt)?;
        let Some(up) = &self.up else { return Ok(None) };
        let built_name = sibling::built(&self.name, attempt);
        Ok(Some(NewVersion {
            place: self.place.clone(),
            built: self.parent.join(&built_name),
            parent: self.parent.clone(),
            up: Arc::clone(up),
            name: self.name.clone(),
            built_name,
            attempt: attempt.to_owned(),
        }))
    }

    /// The version of an attempt that a dry run would make. `None` if directories above the place are missing and can be made.
    ///
    /// # Errors
    /// This user has no permission to create the version.
    pub(super) fn version_to_make(&self, attempt: &str) -> Result<Option<NewVersion>> {
        let version = self.version(attempt)?;
        let up = match &version {
            Some(version) => Arc::clone(&version.up),
            None => Arc::new(nearest_directory(&self.parent)?),
        };
        let access = Access::WRITE_OK | Access::EXEC_OK;
        rustix::fs::accessat(&*up, c".", access, AtFlags::EACCESS).during("create", &self.place)?;
        Ok(version)
    }

    /// The same, when the directories above the place are made.
    pub(super) fn made_version(&self, attempt: &str) -> Result<NewVersion> {
        if let Some(version) = self.version(attempt)? {
            return Ok(version);
        }
        make_directories(&self.parent)?;
        let up = dir::hold(&self.parent).during("open", &self.parent)?;
        let me = Self {
            up: Some(Arc::new(up)),
            ..self.clone()
        };
        me.version(attempt)?.ok_or_else(|| StorageError::NotFound {
            path: shown_path(&self.parent),
        })
    }
}

/// Opens the directory, or the nearest one above it that exists.
fn nearest_directory(path: &Path) -> Result<OwnedFd> {
    match (dir::hold(path), path.parent()) {
        (Err(Errno::NOENT), Some(above)) => nearest_directory(above),
        (held, _) => held.during("open", path),
    }
}

/// Makes a directory and those above it that are missing, for good.
fn make_directories(path: &Path) -> Result<()> {
    let fail = |e| StorageError::io("create", path, e);
    match fs::create_dir(path) {
        Ok(()) => {
            note(|| Action::Made(path.into()));
            path.parent().map_or(Ok(()), |above| {
                let fd = dir::hold(above).during("open", above)?;
                dir::sync_held(fd, above)
            })
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            make_directories(path.parent().ok_or_else(|| fail(e))?)?;
            make_directories(path)
        }
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        Err(e) => Err(fail(e)),
    }
}

impl NewVersion {
    pub(super) fn exists(&self) -> StorageError {
        StorageError::Exists {
            path: shown_path(&self.place),
        }
    }

    pub(super) fn unsupported(&self, why: impl Into<String>) -> StorageError {
        let what = format!("writing a checkpoint at {}", self.place.display());
        StorageError::unsupported(what, why)
    }

    /// Somebody has put something else at the place since it was looked at.
    pub(super) fn changed(&self) -> StorageError {
        StorageError::Changed {
            path: shown_path(&self.place),
        }
    }

    /// The directory at the place, which can be renamed; `None` when there is nothing.
    pub(super) fn standing(&self) -> Result<Option<OwnedFd>> {
        let Some(stat) = dir::stat_of(&self.up, &self.name).during("look at", &self.place)? else {
            return Ok(None);
        };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {}
            FileType::Symlink => {
                return Err(self.unsupported("it has become a symbolic link just now; try again"));
            }
            _ => return Err(self.unsupported("a file lies there, not a directory")),
        }
        match is_mount(&self.up, &*self.name) {
            Ok(false) => {}
            Ok(true) => return Err(self.unsupported(MOUNT)),
            Err(e) => return Err(StorageError::io("look at", &self.place, e)),
        }
        dir::open(&self.up, &self.name)
            .map(Some)
            .during("open", &self.place)
    }

    /// That the place, which holds something, is one to be replaced, and that what is not the checkpoint's can be moved over
    /// to the new one. What can't be undone is refused before anything is written.
    pub(super) fn check_replaceable(&self, place: &OwnedFd) -> Result<()> {
        if self.is_home() {
            return Err(self.unsupported(
                "it is your home directory or a directory above it, and such a directory is never replaced",
            ));
        }
        self.check_writable(place)?;
        for name in dir::names(place).during("list", &self.place)? {
            let stat = rustix::fs::statat(place, &*name, AtFlags::SYMLINK_NOFOLLOW);
            if !stat.is_ok_and(|s| FileType::from_raw_mode(s.st_mode) == FileType::Directory) {
                continue;
            }
            let text = OsStr::from_bytes(name.to_bytes()).display().to_string();
            if is_mount(place, &*name).unwrap_or(false) {
                return Err(self.unsupported(format!(
                    "{text} in it is the root of a mounted file system, which can't be moved to the new version; unmount it, \
                     or save to a new place"
                )));
            }
            // A directory that gets another parent is written to.
            let access = Access::WRITE_OK;
            if rustix::fs::accessat(place, &*name, access, AtFlags::empty()) == Err(Errno::ACCESS) {
                return Err(self.unsupported(format!(
                    "you don't have permission to move the directory {text} in it to the new version; change that, move {text} \
                     away, or save to a new place"
                )));
            }
        }
        Ok(())
    }

    /// Whether the place is the user's home directory or one above it.
    pub(super) fn is_home(&self) -> bool {
        let home = std::env::home_dir().and_then(|h| fs::canonicalize(h).ok());
        home.is_some_and(|h| h.starts_with(&self.place))
    }

    /// Whether this user may change what lies in the place, which is this directory.
    pub(super) fn may_write(&self, place: &OwnedFd) -> Result<bool> {
        let access = Access::WRITE_OK | Access::EXEC_OK;
        match rustix::fs::accessat(place, c".", access, AtFlags::empty()) {
            Err(Errno::ACCESS | Errno::ROFS) => Ok(false),
            Ok(()) => Ok(true),
            Err(e) => Err(StorageError::io("look at", &self.place, e)),
        }
    }

    /// That files can be moved out of the place, and into the new version, which gets the place's permissions.
    fn check_writable(&self, place: &OwnedFd) -> Result<()> {
        let refused = |who: &str| {
            self.unsupported(format!(
                "{who} has no permission to write to it, so files of other programs there can't be moved to the new version; change \
                 that with `chmod u+rwx`, or save to a new place"
            ))
        };
        if !self.may_write(place)? {
            return Err(refused("this user"));
        }
        // The new version is of this user, also if the place is somebody else's and only the group may write to it.
        let stat = rustix::fs::fstat(place).during("look at", &self.place)?;
        let owners = Mode::from_raw_mode(stat.st_mode).contains(Mode::RWXU);
        if !owners && !rustix::process::geteuid().is_root() {
            return Err(refused("its owner"));
        }
        Ok(())
    }

    /// Makes the directory where the version is built, and opens it.
    pub(super) fn make(&self) -> Result<Dir> {
        dir::make(&self.up, &self.built_name).during("create", &self.built)?;
        let built = self.join()?;
        // Somebody's directory that was put there in between would be written to, and removed.
        if !dir::is_empty(built.fd()).during("create", &self.built)? {
            return Err(self.not_built(&self.built));
        }
        Ok(built)
    }

    /// Opens the directory where the version is built, which another rank has made.
    pub(super) fn join(&self) -> Result<Dir> {
        Dir::open(&self.up, &self.built_name, &self.built)
    }

    /// Finds out whether the file system can exchange two directories, before much is written in vain.
    pub(super) fn probe_exchange(&self, built: &Dir) -> Result<()> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let [a, b] = ["a", "b"].map(|s| format!(".probe-{}-{n}-{s}", std::process::id()));
        for d in [&a, &b] {
            dir::make(built.fd(), d.as_ref()).during("create", &self.built)?;
        }
        let outcome = exchange(built.fd(), a.as_ref(), b.as_ref());
        for d in [&a, &b] {
            dir::rmdir(built.fd(), d).during("remove", self.built.join(d))?;
        }
        outcome.map_err(|e| self.not_exchanged(e))
    }

    fn not_exchanged(&self, e: Errno) -> StorageError {
        match e {
            Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP => StorageError::unsupported(
                format!("replacing {}", self.place.display()),
                "its file system can't exchange two directories in one step, so a crash could leave neither the old \
                 nor the new checkpoint; save to a new place and remove the old one yourself",
            ),
            Errno::BUSY | Errno::XDEV => self.unsupported(MOUNT),
            e => StorageError::io("exchange with the new version", &self.place, e),
        }
    }

    fn rename(&self, from: &OsStr, to: &OsStr) -> Result<(), Errno> {
        rustix::fs::renameat(&self.up, from, &self.up, to)
    }

    /// Puts the new version where nothing lies, or an empty directory. `false` when something lies there.
    pub(super) fn put(&self) -> Result<bool> {
        match self.rename(&self.built_name, &self.name) {
            Ok(()) => {
                note(|| Action::Renamed(self.built.clone(), self.place.clone()));
                Ok(true)
            }
            Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(false),
            Err(Errno::BUSY | Errno::XDEV) => Err(self.unsupported(MOUNT)),
            Err(Errno::NOTDIR) => Err(self.unsupported("a file lies there, not a directory")),
            Err(e) => Err(StorageError::io(
                "rename the new version to",
                &self.place,
                e,
            )),
        }
    }

    /// Where the version at the place, this directory, is to lie when it is exchanged with the `new` one, or removed.
    pub(super) fn aside(&self, new: Option<&OwnedFd>, old: &OwnedFd) -> Result<Aside> {
        let new = new
            .map(Identity::of)
            .transpose()
            .during("look at", &self.place)?;
        let old = Identity::of(old).during("look at", &self.place)?;
        let name = sibling::aside(&self.name, &self.attempt, new, old);
        let path = self.parent.join(&name);
        Ok(Aside { name, path })
    }

    /// Renames the version at the place, which is this directory, so that nobody finds it there.
    pub(super) fn take_away(&self, old: &OwnedFd, aside: &Aside) -> Result<()> {
        self.rename(&self.name, &aside.name)
            .during("rename", &self.place)?;
        match dir::bears(&self.up, &aside.name, old) {
            Ok(true) => {
                note(|| Action::Renamed(self.place.clone(), aside.path.clone()));
                Ok(())
            }
            // Somebody has put another one there since it was looked at. That goes back, and its name here says that it is not ours.
            _ => {
                let (up, flags) = (&self.up, RenameFlags::NOREPLACE);
                rustix::fs::renameat_with(up, &aside.name, up, &self.name, flags)
                    .during("rename back", &aside.path)?;
                Err(self.not_removed(OTHER))
            }
        }
    }

    /// Nothing was removed.
    pub(super) fn not_removed(&self, why: impl Into<String>) -> StorageError {
        let what = format!("removing {}", self.place.display());
        StorageError::unsupported(what, why)
    }

    /// That the system takes a name of such a length, before much is written in vain.
    pub(super) fn check_name(&self, aside: &Aside) -> Result<()> {
        match Identity::named(&self.up, &aside.name) {
            Ok(_) => Ok(()),
            Err(Errno::NAMETOOLONG) => {
                let room = aside.name.len().saturating_sub(self.name.len());
                Err(self.unsupported(format!(
                    "its name is too long: while it is replaced, the old version has a name that is {room} bytes longer; save to \
                     a place with a shorter name"
                )))
            }
            Err(e) => Err(StorageError::io("look at", &aside.path, e)),
        }
    }

    /// What this attempt has left under a name, and where. No other name is looked at, because there may be many.
    pub(super) fn left(&self, name: &OsStr) -> Result<Option<(State, Aside, OwnedFd)>> {
        let path = self.parent.join(name);
        let found = sibling_called(&self.up, &self.name, name).during("open", &path)?;
        let Some(sibling) = found.filter(|s| s.attempt == self.attempt) else {
            return Ok(None);
        };
        let fd = sibling.open(&self.up).during("open", &path)?;
        Ok(fd.map(|fd| {
            (
                sibling.state,
                Aside {
                    name: sibling.name,
                    path,
                },
                fd,
            )
        }))
    }

    /// Gives the new version the name that the old one is to get: whoever finds that later can tell which of them it is.
    pub(super) fn ready(&self, aside: &Aside) -> Result<()> {
        self.rename(&self.built_name, &aside.name)
            .during("rename", &self.built)
    }

    /// Puts the new version, which is [`ready`](Self::ready) and built in this directory, where the old one lies.
    pub(super) fn replace(&self, built: &OwnedFd, old: &OwnedFd, aside: &Aside) -> Result<()> {
        let ours = dir::bears(&self.up, &aside.name, built);
        if !ours.during("look at", &aside.path)? {
            return Err(self.not_built(&aside.path));
        }
        if let Err(e) = self.exchange(aside) {
            self.withdraw(built, aside);
            return Err(self.not_exchanged(e));
        }
        failpoint::hit("commit.exchanged");
        self.settle(built, old, aside)
    }

    pub(super) fn exchange(&self, aside: &Aside) -> Result<(), Errno> {
        exchange(&self.up, &aside.name, &self.name)
    }

    /// Looks at what the exchange took out of the place, and what it put there. Another one than the old version goes back: nobody
    /// knows which of its files are a checkpoint's.
    pub(super) fn settle(&self, built: &OwnedFd, old: &OwnedFd, aside: &Aside) -> Result<()> {
        let is_put = || dir::bears(&self.up, &self.name, built) == Ok(true);
        match dir::bears(&self.up, &aside.name, old) {
            Ok(true) if is_put() => {
                note(|| Action::Renamed(aside.path.clone(), self.place.clone()));
                return Ok(());
            }
            // What came back out of the place is what had been put there, unless that was taken away in between.
            Ok(false)
                if self.exchange(aside).is_ok()
                    && dir::bears(&self.up, &aside.name, built) == Ok(true) =>
            {
                self.withdraw(built, aside);
                return Err(self.changed());
            }
            // Somebody has exchanged the new version before it was put there, or after. Nobody can tell whose turn it was.
            _ => {}
        }
        // The old version, if it is that, may not be called replaced: it would be removed.
        let out = sibling::out(&self.name, &self.attempt);
        let renamed = rustix::fs::renameat_with(
            &self.up,
            &aside.name,
            &self.up,
            &out,
            RenameFlags::NOREPLACE,
        );
        let kept = if renamed.is_ok() {
            self.parent.join(out)
        } else {
            aside.path.clone()
        };
        let whereabouts = |fd| match dir::path_of(fd) {
            Some(path) => shown_path(&path),
            None => format!("somewhere beside {}", self.place.display()),
        };
        Err(StorageError::Displaced {
            path: shown_path(&self.place),
            kept: shown_path(&kept),
            old: whereabouts(old),
            new: whereabouts(built),
        })
    }

    /// Gives the new version, which was not committed, its former name, so that it is removed with what the attempt has
    /// written.
    fn withdraw(&self, built: &OwnedFd, aside: &Aside) {
        let outcome = match dir::bears(&self.up, &aside.name, built) {
            Ok(true) => self.rename(&aside.name, &self.built_name),
            Ok(false) => Err(Errno::NOENT),
            Err(e) => Err(e),
        };
        if let Err(e) = outcome {
            tracing::warn!(path = %aside.path.display(), error = %e, "a version that was not committed is left over");
        }
    }

    /// A name of this attempt means something else by now.
    pub(super) fn not_built(&self, path: &Path) -> StorageError {
        let what = "it is no longer the directory that was written to".into();
        StorageError::Incomplete {
            path: shown_path(path),
            what,
        }
    }

    /// The names of the place and its siblings are on the disk after this.
    pub(super) fn sync_parent(&self) -> Result<()> {
        dir::sync_held(&self.up, &self.parent)
    }
}

/// Exchanges two directories in one step.
fn exchange(at: &OwnedFd, a: &OsStr, b: &OsStr) -> Result<(), Errno> {
    rustix::fs::renameat_with(at, a, at, b, RenameFlags::EXCHANGE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local::dir;
    use std::os::unix::fs::symlink;

    fn home() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = fs::canonicalize(dir.path()).unwrap();
        (dir, path)
    }

    #[test]
    fn a_place_is_what_links_lead_to_up_to_forty_of_them() {
        let (_dir, home) = home();
        let to = home.join("to");
        // Nothing has to be there.
        symlink("to", home.join("l0")).unwrap();
        for n in 1..40 {
            symlink(format!("l{}", n - 1), home.join(format!("l{n}"))).unwrap();
        }
        let (place, parent, name) = resolve(&home.join("l38")).unwrap();
        assert_eq!(
            (place, parent, name),
            (to.clone(), home.clone(), "to".into())
        );
        let e = resolve(&home.join("l39")).unwrap_err().to_string();
        assert!(e.contains("too many symbolic links"), "{e}");
        // Absolute ones, and what lies below a link.
        fs::create_dir_all(home.join("d/e")).unwrap();
        symlink(home.join("d"), home.join("abs")).unwrap();
        assert_eq!(resolve(&home.join("abs/e")).unwrap().0, home.join("d/e"));
        assert_eq!(
            resolve(&home.join("abs/new")).unwrap().0,
            home.join("d/new")
        );
        assert_eq!(resolve(&home.join("d/e/..")).unwrap().0, home.join("d"));
        for (bad, why) in [
            (PathBuf::from("/"), "root directory"),
            (home.join("none/.."), "`..`"),
        ] {
            let e = resolve(&bad).unwrap_err().to_string();
            assert!(e.contains(why), "{e}");
        }
    }

    #[test]
    fn directories_above_a_place_are_made_and_a_file_on_the_way_is_an_error() {
        let (_dir, home) = home();
        let version = ResolvedPlace::find(&home.join("a/b/x")).unwrap();
        assert!(version.version("one").unwrap().is_none());
        let version = version.made_version("one").unwrap();
        assert_eq!(
            (version.place.clone(), version.built.clone()),
            (home.join("a/b/x"), home.join("a/b/.x.one.tmp"))
        );
        assert!(home.join("a/b").is_dir() && !version.place.exists());
        assert!(make_directories(&home.join("a/b")).is_ok());
        fs::write(home.join("file"), "").unwrap();
        for below in ["file", "file/b", "file/b/c"] {
            let e = make_directories(&home.join(below)).unwrap_err();
            assert!(
                matches!(&e, StorageError::Io { path, .. } if path.ends_with(below) || path.ends_with("file/b")),
                "{e:?}"
            );
        }
    }

    #[test]
    fn what_stands_at_a_place_is_a_directory_or_told() {
        let (_dir, home) = home();
        let version = |place: &Path| {
            ResolvedPlace::find(place)
                .unwrap()
                .version("a")
                .unwrap()
                .unwrap()
        };
        let x = version(&home.join("x"));
        assert!(x.standing().unwrap().is_none());
        fs::create_dir(&x.place).unwrap();
        let fd = x.standing().unwrap().unwrap();
        assert!(dir::bears(&x.up, &x.name, &fd).unwrap());
        fs::remove_dir(&x.place).unwrap();
        // A link that was not there when the place was looked up.
        symlink("elsewhere", &x.place).unwrap();
        assert!(
            x.standing()
                .unwrap_err()
                .to_string()
                .contains("become a symbolic link")
        );
        fs::remove_file(&x.place).unwrap();
        fs::write(&x.place, "").unwrap();
        assert!(
            x.standing()
                .unwrap_err()
                .to_string()
                .contains("a file lies there")
        );
        assert!(x.put().is_err());
    }

    #[test]
    fn what_can_not_be_exchanged_says_why() {
        let (_dir, home) = home();
        let version = ResolvedPlace::find(&home.join("x"))
            .unwrap()
            .version("a")
            .unwrap()
            .unwrap();
        let why = |e| version.not_exchanged(e).to_string();
        for none in [Errno::INVAL, Errno::NOSYS, Errno::OPNOTSUPP] {
            assert!(
                why(none).contains("can't exchange two directories"),
                "{none}"
            );
        }
        for mount in [Errno::BUSY, Errno::XDEV] {
            assert!(why(mount).contains("mounted file system"), "{mount}");
        }
        assert!(why(Errno::IO).contains("exchange with the new version"));
        // Where it can, nothing stays of the trial.
        let built = version.make().unwrap();
        version.probe_exchange(&built).unwrap();
        assert_eq!(fs::read_dir(&version.built).unwrap().count(), 0);
    }
}
