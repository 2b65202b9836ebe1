//! A directory that is held open, and what is done below it. It stays the same one whatever its path comes to mean, and no
//! link is followed on the way down, so that nothing is read, written or removed elsewhere.

use crate::shown_path;
use crate::{
    Name, Result, StorageError,
    action_log::{Action, note},
    local::during::During as _,
};
use bytes::{Bytes, BytesMut};
use rustix::{
    fs::{AtFlags, Dir as Entries, FileType, Mode, OFlags, Stat},
    io::Errno,
    path::Arg,
};
use std::{
    collections::BTreeSet,
    ffi::{CStr, CString, OsStr},
    fmt,
    fs::File,
    ops::Range,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::fs::FileExt,
    },
    path::{Path, PathBuf},
    sync::Arc,
};

/// What a directory that is made may be used for; the process's mask takes some of it away.
const ANY: Mode = Mode::from_raw_mode(0o777);

/// How a directory is opened to be listed and worked in.
pub(super) const ENTER: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::CLOEXEC);

/// Opens a directory that is not a link to one.
pub(super) fn open(at: impl AsFd, path: impl Arg) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(at, path, ENTER.union(OFlags::NOFOLLOW), Mode::empty())
}

/// Holds a directory only to find names in it, for which no right to list it is needed. Links are followed.
pub(super) fn hold(path: &Path) -> Result<OwnedFd, Errno> {
    #[cfg(target_os = "linux")]
    let flags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
    #[cfg(not(target_os = "linux"))]
    let flags = ENTER;
    rustix::fs::open(path, flags, Mode::empty())
}

/// Names of all that lies in a directory.
pub(super) fn names(dir: impl AsFd) -> Result<Vec<CString>, Errno> {
    let mut out = Vec::new();
    for entry in Entries::read_from(dir)? {
        let name = entry?.file_name().to_owned();
        if !matches!(name.to_bytes(), b"." | b"..") {
            out.push(name);
        }
    }
    Ok(out)
}

/// What tells a directory from all others, whatever it is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity(Device, u64);

#[cfg(target_os = "linux")]
type Device = u64;
#[cfg(not(target_os = "linux"))]
type Device = i32;

impl fmt::LowerHex for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}-{:x}", self.0, self.1)
    }
}

impl Identity {
    fn new(stat: &Stat) -> Self {
        Self(stat.st_dev, stat.st_ino)
    }

    /// Of an open directory.
    pub(super) fn of(fd: &OwnedFd) -> Result<Self, Errno> {
        Ok(Self::new(&rustix::fs::fstat(fd)?))
    }

    /// Of what bears a name in a directory; `None` when nothing does.
    pub(super) fn named(at: impl AsFd, name: &OsStr) -> Result<Option<Self>, Errno> {
        Ok(stat_of(at, name)?.as_ref().map(Self::new))
    }

    /// The same, if that is a directory.
    pub(super) fn of_directory(at: impl AsFd, name: &OsStr) -> Result<Option<Self>, Errno> {
        let is_dir = |s: &Stat| FileType::from_raw_mode(s.st_mode) == FileType::Directory;
        let stat = stat_of(at, name)?.filter(is_dir);
        Ok(stat.as_ref().map(Self::new))
    }

    /// What tells it from the others on its device, also when it is renamed.
    pub(super) fn number(self) -> u64 {
        self.1
    }

    /// The same, if it lies on the device of another directory.
    pub(super) fn number_beside(self, other: Self) -> Option<u64> {
        (self.0 == other.0).then_some(self.1)
    }
}

/// What bears a name in a directory, and is not followed if it is a link; `None` when nothing does.
pub(super) fn stat_of(at: impl AsFd, name: impl Arg) -> Result<Option<Stat>, Errno> {
    match rustix::fs::statat(at, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => Ok(None),
        other => other.map(Some),
    }
}

/// Whether a name means this open directory.
pub(super) fn bears(at: impl AsFd, name: &OsStr, dir: &OwnedFd) -> Result<bool, Errno> {
    Ok(Identity::named(at, name)? == Some(Identity::of(dir)?))
}

/// Where an open directory is by now, as far as the system tells.
pub(super) fn path_of(dir: &OwnedFd) -> Option<PathBuf> {
    let path = std::fs::read_link(format!("/proc/self/fd/{}", dir.as_raw_fd())).ok()?;
    bears(rustix::fs::CWD, path.as_os_str(), dir)
        .ok()?
        .then_some(path)
}

/// Whether nothing lies in a directory.
pub(super) fn is_empty(dir: impl AsFd) -> Result<bool, Errno> {
    for entry in Entries::read_from(dir)? {
        if !matches!(entry?.file_name().to_bytes(), b"." | b"..") {
            return Ok(false);
        }
    }
    Ok(true)
}

/// A part of the path that is a file makes the rest absent.
pub(super) fn is_absent(e: Errno) -> bool {
    matches!(e, Errno::NOENT | Errno::NOTDIR)
}

/// Removes a directory, unless something is in it: that came while we were at work, and stays.
pub(super) fn rmdir(at: impl AsFd, path: impl Arg) -> Result<(), Errno> {
    match rustix::fs::unlinkat(at, path, AtFlags::REMOVEDIR) {
        Err(Errno::NOENT | Errno::NOTDIR | Errno::NOTEMPTY | Errno::EXIST) => Ok(()),
        other => other,
    }
}

/// Does something in the directory of a file, which is given its name there. The directories on the way must be ones, not
/// links to them.
pub(super) fn below<T>(
    root: impl AsFd,
    name: &Name,
    f: impl FnOnce(BorrowedFd<'_>, &str) -> Result<T, Errno>,
) -> Result<T, Errno> {
    let root = root.as_fd();
    let Some((dirs, file)) = name.as_str().rsplit_once('/') else {
        return f(root, name.as_str());
    };
    let held = dirs
        .split('/')
        .try_fold(None, |held: Option<OwnedFd>, part| {
            open(held.as_ref().map_or(root, AsFd::as_fd), part).map(Some)
        })?;
    f(held.as_ref().map_or(root, AsFd::as_fd), file)
}

/// Opens a directory below; neither it nor one on the way is a link.
pub(super) fn open_below(root: impl AsFd, name: &Name) -> Result<OwnedFd, Errno> {
    // One call, as deep as it may be.
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{ResolveFlags, openat2};
        match openat2(
            &root,
            name.as_str(),
            ENTER,
            Mode::empty(),
            ResolveFlags::NO_SYMLINKS,
        ) {
            // Not on this kernel, or not in this sandbox.
            Err(Errno::NOSYS | Errno::PERM) => {}
            other => return other,
        }
    }
    below(root, name, |above, part| open(above, part))
}

/// Removes a file below an open directory, if it is there.
pub(super) fn unlink(root: impl AsFd, name: &Name) -> Result<(), Errno> {
    match below(root, name, |dir, file| {
        rustix::fs::unlinkat(dir, file, AtFlags::empty())
    }) {
        Err(e) if is_absent(e) => Ok(()),
        other => other,
    }
}

/// Length of a file that is no link; `None` when there is none.
fn len(dir: BorrowedFd<'_>, file: &str) -> Result<Option<u64>, Errno> {
    let stat = rustix::fs::statat(dir, file, AtFlags::SYMLINK_NOFOLLOW)?;
    let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    Ok(u64::try_from(stat.st_size).ok().filter(|_| is_file))
}

/// A directory that is written to.
#[derive(Clone, Debug)]
pub(super) struct Dir {
    fd: Arc<OwnedFd>,
    path: PathBuf,
}

impl Dir {
    /// Opens a directory, which lies at `path`; that is only for messages.
    pub(super) fn open(at: impl AsFd, name: &OsStr, path: &Path) -> Result<Self> {
        let fd = open(at, name).during("open", path)?;
        Ok(Self {
            fd: Arc::new(fd),
            path: path.into(),
        })
    }

    pub(super) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Makes a file, so long as it is to be. Writing into a file that has its length is faster than growing it.
    pub(super) fn create(&self, name: &Name, bytes: u64) -> Result<(PathBuf, File)> {
        let path = self.path.join(name.as_str());
        self.make_parents(name)?;
        let new = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let flags = new | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let mode = Mode::from_raw_mode(0o666);
        let file = below(&self.fd, name, |dir, file| {
            rustix::fs::openat(dir, file, flags, mode)
        });
        let file = File::from(file.map_err(|e| match e {
            Errno::EXIST => StorageError::invalid(format!("{name} is written twice")),
            e => StorageError::io("create", &path, e),
        })?);
        file.set_len(bytes).during("set the length of", &path)?;
        Ok((path, file))
    }

    /// Bytes of a file.
    pub(super) fn read(&self, name: &Name, range: Range<u64>) -> Result<Bytes> {
        let path = self.path.join(name.as_str());
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = below(&self.fd, name, |dir, file| {
            rustix::fs::openat(dir, file, flags, Mode::empty())
        });
        let file = File::from(file.map_err(|e| match e {
            Errno::NOENT => StorageError::NotFound {
                path: shown_path(&path),
            },
            e => StorageError::io("open", &path, e),
        })?);
        let fits = usize::try_from(range.end.saturating_sub(range.start));
        let too_long = |_| StorageError::invalid(format!("{name} is too long to be read at once"));
        let mut out = BytesMut::zeroed(fits.map_err(too_long)?);
        file.read_exact_at(&mut out, range.start)
            .during("read", &path)?;
        Ok(out.freeze())
    }

    /// Makes an open file one of this directory's too, if the system can do that, and returns where it is and its length.
    /// Otherwise `None`, and nothing is there.
    pub(super) fn link(&self, name: &Name, file: &File) -> Result<Option<(PathBuf, u64)>> {
        let path = self.path.join(name.as_str());
        self.make_parents(name)?;
        // The file that was opened, whatever lies under its name by now.
        let open = format!("/proc/self/fd/{}", file.as_raw_fd());
        let linked = below(&self.fd, name, |dir, to| {
            rustix::fs::linkat(rustix::fs::CWD, &*open, dir, to, AtFlags::SYMLINK_FOLLOW)
        });
        match linked {
            Ok(()) => {
                note(|| Action::Linked(path.clone()));
                let meta = file.metadata().during("look at", &path)?;
                Ok(Some((path, meta.len())))
            }
            Err(Errno::EXIST) => Err(StorageError::invalid(format!("{name} is written twice"))),
            // On another disk, linked too often already, of somebody else, or a system without such links.
            Err(e) => {
                tracing::debug!(path = %path.display(), error = %e, "the file can't be linked, so it is copied");
                Ok(None)
            }
        }
    }

    fn make_parents(&self, name: &Name) -> Result<()> {
        for above in name.folders() {
            match below(&self.fd, &above, |dir, part| {
                rustix::fs::mkdirat(dir, part, ANY)
            }) {
                Ok(()) | Err(Errno::EXIST) => {}
                failed => failed.during("create", self.path.join(above.as_str()))?,
            }
        }
        Ok(())
    }

    /// Length of a file; `None` when there is none.
    pub(super) fn len(&self, name: &Name) -> Result<Option<u64>> {
        match below(&self.fd, name, len) {
            Err(e) if is_absent(e) || e == Errno::LOOP => Ok(None),
            other => {
                other.map_err(|e| StorageError::io("look at", self.path.join(name.as_str()), e))
            }
        }
    }

    /// Syncs every directory that names one of these files, this one too.
    pub(super) fn sync_directories(&self, names: &[Name]) -> Result<()> {
        sync(self.fd(), &self.path)?;
        let all: BTreeSet<Name> = names.iter().flat_map(Name::folders).collect();
        for dir in all {
            let path = self.path.join(dir.as_str());
            let fd = below(&self.fd, &dir, |above, part| open(above, part));
            sync(&fd.during("open", &path)?, &path)?;
        }
        Ok(())
    }
}

/// Makes a directory in another.
pub(super) fn make(at: impl AsFd, name: &OsStr) -> Result<(), Errno> {
    rustix::fs::mkdirat(at, name, ANY)
}

/// The names in a directory are on the disk after this. It may be one that is only held.
pub(super) fn sync_held(fd: impl AsFd, path: &Path) -> Result<()> {
    let fd = open(fd, c".").during("open", path)?;
    sync(&fd, path)
}

/// The names in an open directory are on the disk after this.
pub(super) fn sync(fd: &OwnedFd, path: &Path) -> Result<()> {
    rustix::fs::fsync(fd).during("sync", path)?;
    note(|| Action::SyncedDirectory(path.into()));
    Ok(())
}

/// A name as text.
pub(super) fn utf8(name: &CStr) -> Option<&str> {
    name.to_str().ok().filter(|n| *n != "." && *n != "..")
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::fs;

    /// Makes directories one in the other, and a file in the innermost.
    pub(in super::super) fn nest(dir: &Path, depth: usize, name: &str, file: &str) {
        let mut at = hold(dir).unwrap();
        for _ in 0..depth {
            make(&at, name.as_ref()).unwrap();
            at = open(&at, name).unwrap();
        }
        rustix::fs::openat(&at, file, OFlags::CREATE | OFlags::WRONLY, Mode::RWXU).unwrap();
    }

    /// Runs a test again, in a process that may have 200 files open.
    pub(in super::super) fn with_few_files(test: &str, work: impl FnOnce()) {
        const MARK: &str = "RESHARD_TEST_FEW_FILES";
        if std::env::var_os(MARK).is_some() {
            return work();
        }
        let mut again = std::process::Command::new("sh");
        again
            .args([
                "-c",
                r#"ulimit -n 200; exec "$0" --exact "$1" --test-threads=1"#,
            ])
            .env(MARK, "");
        let out = again
            .arg(std::env::current_exe().unwrap())
            .arg(test)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&out.stdout);
        assert!(out.status.success() && text.contains("1 passed"), "{text}");
    }

    /// A directory with a directory `d` and a file `f`, held.
    fn with_both() -> (tempfile::TempDir, OwnedFd) {
        let resolved = tempfile::tempdir().unwrap();
        let at = hold(resolved.path()).unwrap();
        make(&at, "d".as_ref()).unwrap();
        fs::write(resolved.path().join("f"), "").unwrap();
        (resolved, at)
    }

    #[test]
    fn only_directories_are_opened_and_no_program_that_is_started_inherits_them() {
        let (resolved, at) = with_both();
        for link in ["d", "f"] {
            std::os::unix::fs::symlink(link, resolved.path().join(format!("to-{link}"))).unwrap();
        }
        let opened = [
            open(&at, "d").unwrap(),
            open_below(&at, &Name::new("d").unwrap()).unwrap(),
            hold(&resolved.path().join("to-d")).unwrap(),
            at.try_clone().unwrap(),
        ];
        for fd in opened.iter().chain([&at]) {
            assert!(
                rustix::io::fcntl_getfd(fd)
                    .unwrap()
                    .contains(rustix::io::FdFlags::CLOEXEC)
            );
        }
        #[cfg(target_os = "linux")]
        assert!(rustix::fs::fcntl_getfl(&at).unwrap().contains(OFlags::PATH));
        for name in ["f", "to-d", "to-f"] {
            let e = [
                open(&at, name).err(),
                open_below(&at, &Name::new(name).unwrap()).err(),
            ];
            let refused = |e: &Option<Errno>| matches!(e, Some(Errno::NOTDIR | Errno::LOOP));
            assert!(e.iter().all(refused), "{name}: {e:?}");
        }
        for name in ["f", "to-f"] {
            assert_eq!(
                hold(&resolved.path().join(name)).err(),
                Some(Errno::NOTDIR),
                "{name}"
            );
        }
    }

    #[test]
    fn what_is_no_file_is_not_taken_for_an_absent_one() {
        let (_home, at) = with_both();
        let remove = |name| unlink(&at, &Name::new(name).unwrap());
        assert!(matches!(remove("d"), Err(Errno::ISDIR | Errno::PERM)));
        assert_eq!(
            [remove("f"), remove("f"), remove("f/g"), remove("g/h")],
            [Ok(()); 4]
        );
        assert!(is_absent(Errno::NOENT) && is_absent(Errno::NOTDIR) && !is_absent(Errno::IO));
        assert_eq!(
            [c".", c"..", c"...", c"a"].map(utf8),
            [None, None, Some("..."), Some("a")]
        );
    }

    #[test]
    fn the_length_of_what_lies_behind_a_link_is_not_told() {
        let (resolved, at) = with_both();
        std::os::unix::fs::symlink("d", resolved.path().join("to-d")).unwrap();
        fs::write(resolved.path().join("d/in"), "1234").unwrap();
        drop(at);
        let dir = Dir::open(
            hold(resolved.path().parent().unwrap()).unwrap(),
            resolved.path().file_name().unwrap(),
            resolved.path(),
        );
        let dir = dir.unwrap();
        let len = |name: &str| dir.len(&Name::new(name).unwrap());
        assert_eq!(
            ["d/in", "f", "to-d/in", "d", "g"].map(|n| len(n).unwrap()),
            [Some(4), Some(0), None, None, None]
        );
        assert!(matches!(
            len(&"x".repeat(300)),
            Err(StorageError::Io { .. })
        ));
    }
}
