//! The directory of a store: by its path, or held open, so that it stays the same one when another takes its place.
//!
//! Links in it have one rule. A file that is a link to a file is that file, wherever it lies: caches of model hubs are made of
//! such links. A directory that is a link is not entered. What is removed is the link.

use super::dir::{self, ENTER, below, is_absent, unlink, utf8};
use crate::shown_path;
use crate::{
    Depth, Entry, Head, Link, Listing, Name, Result, StorageError, local::during::During as _,
};
use rustix::{
    fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat},
    io::Errno,
};
use std::{
    collections::BTreeMap,
    fs::File,
    os::fd::{BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

/// How long the name of a directory may be that is entered, in bytes: systems take no longer path.
const LONGEST: usize = 4095;

#[derive(Clone, Debug)]
pub(super) struct Root {
    path: PathBuf,
    held: Option<Arc<OwnedFd>>,
    /// Where the directory was when it was pinned, without links: it is the version to be read as long as it stays there.
    pinned: Option<Arc<PathBuf>>,
    /// A file that stays the same one when another takes its place.
    file: Option<(Name, Arc<File>)>,
}

impl Root {
    pub(super) fn new(path: PathBuf) -> Self {
        Self {
            path,
            held: None,
            pinned: None,
            file: None,
        }
    }

    /// A directory that is open already. `None` when there is none.
    pub(super) fn held(path: PathBuf, fd: Option<OwnedFd>) -> Self {
        Self {
            held: fd.map(Arc::new),
            ..Self::new(path)
        }
    }

    /// What lies in an open directory, which is at `path`.
    pub(super) fn list_held(path: &Path, fd: &OwnedFd, depth: Depth) -> Result<Listing> {
        let fd = fd.try_clone().during("open", path)?;
        Self::held(path.into(), Some(fd)).list(None, depth)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The same directory, held open. `None` when there is none.
    pub(super) fn hold(&self) -> Result<Option<Self>> {
        let Some(fd) = self.open()? else {
            return Ok(None);
        };
        // A link on the way may lead elsewhere later, and this version is whole where it is.
        let place = std::fs::canonicalize(&self.path);
        Ok(Some(Self {
            held: Some(Arc::new(fd)),
            pinned: Some(Arc::new(place.unwrap_or_else(|_| self.path.clone()))),
            ..self.clone()
        }))
    }

    /// That a pinned directory is still where it was. Called when something is not there: a save that replaces a version takes its
    /// files away one by one, and a file that is gone then tells nothing about that version.
    fn is_current(&self) -> Result<()> {
        let (Some(place), Some(held)) = (&self.pinned, &self.held) else {
            return Ok(());
        };
        let there = rustix::fs::stat(&**place);
        let here = rustix::fs::fstat(held);
        let is_same = |a: &Stat, b: &Stat| (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino);
        match (there, here) {
            (Ok(there), Ok(here)) if is_same(&there, &here) => Ok(()),
            (Ok(_), Ok(_)) | (Err(Errno::NOENT | Errno::NOTDIR), _) => {
                let path = shown_path(&self.path);
                Err(StorageError::Replaced { path })
            }
            _ => Ok(()),
        }
    }

    /// The same directory with a file of it, both held open. `None` when there is no such file.
    pub(super) fn hold_file(&self, name: Name) -> Result<Option<Self>> {
        let Some(root) = self.hold()? else {
            return Ok(None);
        };
        if root.stat(&name)?.as_ref().and_then(file_len).is_none() {
            return Ok(None);
        }
        let file = root.open_file(&name)?;
        Ok(Some(Self {
            file: Some((name, Arc::new(file))),
            ..root
        }))
    }

    /// The file that is held under a name.
    fn held_file(&self, name: &Name) -> Option<&File> {
        self.file
            .as_ref()
            .filter(|(held, _)| held == name)
            .map(|(_, file)| &**file)
    }

    /// Opens the directory. `None` when there is none.
    fn open(&self) -> Result<Option<OwnedFd>> {
        let outcome = match &self.held {
            Some(fd) => rustix::fs::openat(fd, ".", ENTER, Mode::empty()),
            None => rustix::fs::open(&self.path, ENTER, Mode::empty()),
        };
        match outcome {
            Err(Errno::NOENT) => Ok(None),
            other => other.map(Some).during("open", &self.path),
        }
    }

    /// Where a file lies, for messages.
    pub(super) fn path_of(&self, name: &Name) -> PathBuf {
        self.path.join(name.as_str())
    }

    /// Does something with a file by where it lies, for the system. Directories on the way that are links are not entered.
    fn at<T>(
        &self,
        name: &Name,
        f: impl FnOnce(BorrowedFd<'_>, &Path) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        match &self.held {
            Some(fd) => below(fd, name, |dir, file| f(dir, file.as_ref())),
            None if name.as_str().contains('/') => {
                let root = rustix::fs::open(&self.path, ENTER, Mode::empty())?;
                below(root, name, |dir, file| f(dir, file.as_ref()))
            }
            None => f(CWD, &self.path_of(name)),
        }
    }

    pub(super) fn open_file(&self, name: &Name) -> Result<File> {
        if let Some(file) = self.held_file(name) {
            return file
                .try_clone()
                .map_err(|e| StorageError::io("open", self.path_of(name), e));
        }
        // A named pipe in a hostile checkpoint must not block us.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let opened = self.at(name, |dir, file| {
            rustix::fs::openat(dir, file, flags, Mode::empty())
        });
        if opened.as_ref().is_err_and(|e| is_absent(*e)) {
            self.is_current()?;
        }
        opened
            .map(File::from)
            .map_err(|e| match self.linked_directory(name) {
                Some(directory) if matches!(e, Errno::NOTDIR | Errno::LOOP) => {
                    self.linked(name, directory)
                }
                _ => match self.obstacle(name, e) {
                    Some(what) => self.no_file(name, what),
                    None => StorageError::io("open", self.path_of(name), e),
                },
            })
    }

    /// Something else lies where a file should be.
    pub(super) fn no_file(&self, name: &Name, what: &'static str) -> StorageError {
        let path = shown_path(&self.path_of(name));
        StorageError::NoFile { path, what }
    }

    fn linked(&self, name: &Name, directory: String) -> StorageError {
        let path = shown_path(&self.path_of(name));
        StorageError::LinkedDirectory { path, directory }
    }

    /// What lies where a file that can't be opened should be, if it is no file.
    fn obstacle(&self, name: &Name, e: Errno) -> Option<&'static str> {
        match e {
            Errno::LOOP => Some("it is a link that leads to itself"),
            Errno::NOTDIR if name.as_str().contains('/') => {
                Some("what it should lie in is not a directory")
            }
            // So the system opens sockets.
            Errno::NXIO => self
                .stat(name)
                .ok()?
                .map(|s| what_it_is(FileType::from_raw_mode(s.st_mode))),
            _ => None,
        }
    }

    /// The directory on the way to a file that is a link, if one is.
    fn linked_directory(&self, name: &Name) -> Option<String> {
        name.folders()
            .find(|dir| self.is_link(dir))
            .map(String::from)
    }

    /// What there is about a file, or what it is a link to; `None` when there is none. A link to nothing is as if it were absent.
    fn stat(&self, name: &Name) -> Result<Option<Stat>> {
        if let Some(file) = self.held_file(name) {
            let stat = rustix::fs::fstat(file)
                .map_err(|e| StorageError::io("look at", self.path_of(name), e))?;
            return Ok(Some(stat));
        }
        match self.at(name, |dir, file| {
            rustix::fs::statat(dir, file, AtFlags::empty())
        }) {
            Ok(stat) => Ok(Some(stat)),
            Err(e) if is_absent(e) || e == Errno::LOOP => self.is_current().map(|()| None),
            Err(e) => Err(StorageError::io("look at", self.path_of(name), e)),
        }
    }

    /// What is known of a file; `None` if nothing has that name.
    ///
    /// # Errors
    /// Something else has that name. It must not pass for an absent file: a link to nothing may be data that were not fetched.
    pub(super) fn head(&self, name: &Name) -> Result<Option<Head>> {
        match self.stat(name)? {
            Some(stat) => match file_len(&stat) {
                Some(len) => Ok(Some(Head::new(len, changed(&stat)))),
                None => {
                    let kind = FileType::from_raw_mode(stat.st_mode);
                    Err(self.no_file(name, what_it_is(kind)))
                }
            },
            None if self.is_link(name) => {
                let followed = self.at(name, |dir, file| {
                    rustix::fs::statat(dir, file, AtFlags::empty())
                });
                let found = followed.err().and_then(|e| self.obstacle(name, e));
                Err(self.no_file(name, found.unwrap_or(DANGLING)))
            }
            None => match self.linked_directory(name) {
                Some(directory) => Err(self.linked(name, directory)),
                None => Ok(None),
            },
        }
    }

    /// Whether a link has this name, wherever it leads.
    fn is_link(&self, name: &Name) -> bool {
        let stat = self.at(name, |above, part| {
            rustix::fs::statat(above, part, AtFlags::SYMLINK_NOFOLLOW)
        });
        stat.is_ok_and(|s| FileType::from_raw_mode(s.st_mode) == FileType::Symlink)
    }

    /// Removes files; no link is followed on the way.
    pub(super) fn remove(&self, names: &[Name]) -> Result<()> {
        let Some(root) = self.open()? else {
            return Ok(());
        };
        names.iter().try_for_each(|name| {
            unlink(&root, name).map_err(|e| StorageError::io("remove", self.path_of(name), e))
        })
    }

    /// Files, directories that are not entered, and everything else that takes a name.
    pub(super) fn list(&self, below: Option<&Name>, depth: Depth) -> Result<Listing> {
        let (mut files, mut folders, mut others) = (Vec::new(), Vec::new(), BTreeMap::new());
        self.walk(below, depth, |found| {
            match (found.stat.as_ref().and_then(file_len), found.is_directory()) {
                (Some(bytes), _) => files.push(Entry {
                    bytes,
                    name: found.name,
                }),
                (None, true) if depth == Depth::One => folders.push(found.name),
                (None, _) => {
                    let what = found.what_it_is();
                    others.insert(found.name, what);
                }
            }
        })?;
        self.is_current()?;
        Ok(Listing::new(files, folders).with_others(others))
    }

    /// Links below, sorted.
    pub(super) fn links(&self) -> Result<Vec<Link>> {
        let mut out = Vec::new();
        self.walk(None, Depth::All, |found| {
            if let Some(target) = found.target {
                let followed = found.stat.as_ref().and_then(file_len).is_some();
                out.push(Link {
                    name: found.name,
                    target,
                    followed,
                });
            }
        })?;
        out.sort();
        Ok(out)
    }

    /// Everything below but directories that are entered and hold something. What lies deeper than a path can say is skipped: no checkpoint has it.
    fn walk(&self, below: Option<&Name>, depth: Depth, mut each: impl FnMut(Found)) -> Result<()> {
        let fail = |e| StorageError::io("list", &self.path, e);
        let Some(root) = self.open()? else {
            return Ok(());
        };
        // Directories that are still to be looked at; the first may be the root.
        let mut waiting = vec![below.cloned()];
        while let Some(at) = waiting.pop() {
            let dir = match &at {
                None => dir::open(&root, "."),
                Some(name) => dir::open_below(&root, name),
            };
            let dir = match dir {
                // It was removed meanwhile, or has become a link.
                Err(e) if (is_absent(e) || e == Errno::LOOP) && at.is_some() => continue,
                other => other.map_err(fail)?,
            };
            let prefix = at
                .as_ref()
                .map(|name| format!("{name}/"))
                .unwrap_or_default();
            let mut is_empty = true;
            for entry in Dir::read_from(&dir).map_err(fail)? {
                let entry = entry.map_err(fail)?;
                let is_own = matches!(entry.file_name().to_bytes(), b"." | b"..");
                is_empty &= is_own;
                let Some(file) = utf8(entry.file_name()) else {
                    continue;
                };
                let stat = match rustix::fs::statat(&dir, file, AtFlags::SYMLINK_NOFOLLOW) {
                    Err(e) if is_absent(e) => continue,
                    other => other.map_err(fail)?,
                };
                let Ok(name) = Name::new(format!("{prefix}{file}")) else {
                    continue;
                };
                let (stat, target) = match FileType::from_raw_mode(stat.st_mode) {
                    FileType::Directory if depth == Depth::All => {
                        if name.as_str().len() <= LONGEST {
                            waiting.push(Some(name));
                        } else {
                            let path = self.path.display();
                            tracing::warn!(%path, "directories are nested too deeply; what lies below is skipped");
                        }
                        continue;
                    }
                    FileType::Symlink => {
                        let stat = match rustix::fs::statat(&dir, file, AtFlags::empty()) {
                            Err(e) if is_absent(e) || e == Errno::LOOP => None,
                            other => Some(other.map_err(fail)?),
                        };
                        let target = match rustix::fs::readlinkat(&dir, file, Vec::new()) {
                            Err(e) if is_absent(e) || e == Errno::INVAL => continue,
                            other => other.map_err(fail)?.to_string_lossy().into_owned(),
                        };
                        (stat, Some(target))
                    }
                    _ => (Some(stat), None),
                };
                each(Found { name, stat, target });
            }
            // A directory that holds something shows by the names below it.
            if let Some(name) = at.filter(|at| is_empty && Some(at) != below) {
                let stat = rustix::fs::fstat(&dir).map_err(fail)?;
                each(Found {
                    name,
                    stat: Some(stat),
                    target: None,
                });
            }
        }
        Ok(())
    }
}

/// Something that lies in a directory.
struct Found {
    name: Name,
    /// Of what a link points to; `None` when that is nothing.
    stat: Option<Stat>,
    /// Where a link points to.
    target: Option<String>,
}

impl Found {
    /// Describes it, if it is no file.
    fn what_it_is(&self) -> &'static str {
        let is_link = self.target.is_some();
        let stat = self.stat.as_ref();
        match stat.map(|stat| FileType::from_raw_mode(stat.st_mode)) {
            None => DANGLING,
            Some(FileType::Directory) if is_link => Listing::LINKED_FOLDER,
            Some(kind) => what_it_is(kind),
        }
    }

    /// Itself; not what it points to.
    fn is_directory(&self) -> bool {
        let is = |stat: &Stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        self.target.is_none() && self.stat.as_ref().is_some_and(is)
    }
}

/// A link that leads to no file.
const DANGLING: &str =
    "it is a link to nothing, as git-annex and DVC leave it for data that are not fetched";

/// What lies in place of a file.
pub(super) fn what_it_is(kind: FileType) -> &'static str {
    match kind {
        FileType::Directory => Listing::FOLDER,
        FileType::Fifo => "it is a named pipe",
        FileType::Socket => "it is a socket",
        FileType::CharacterDevice | FileType::BlockDevice => "it is a device",
        _ => "it is not a regular file",
    }
}

fn file_len(stat: &Stat) -> Option<u64> {
    let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    u64::try_from(stat.st_size).ok().filter(|_| is_file)
}

/// `None` before 1970.
fn changed(stat: &Stat) -> Option<SystemTime> {
    let (secs, nanos) = (
        u64::try_from(stat.st_mtime).ok()?,
        u32::try_from(stat.st_mtime_nsec).ok()?,
    );
    SystemTime::UNIX_EPOCH.checked_add(Duration::new(secs, nanos))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::symlink};

    /// Names of all that a walk tells; `change` is called with the first of them.
    fn walked(dir: &Path, depth: Depth, change: impl FnOnce(&str)) -> Vec<String> {
        let (mut change, mut names) = (Some(change), Vec::new());
        let told = Root::new(dir.into()).walk(None, depth, |found| {
            if let Some(change) = change.take() {
                change(found.name.as_str());
            }
            names.push(found.name.as_str().to_owned());
        });
        told.unwrap();
        names.sort();
        names
    }

    fn file(at: PathBuf) {
        fs::create_dir_all(at.parent().unwrap()).unwrap();
        fs::write(at, "").unwrap();
    }

    #[test]
    fn a_directory_that_is_a_link_is_told_and_not_entered() {
        let home = tempfile::tempdir().unwrap();
        let [dir, other] = ["ckpt", "other"].map(|d| home.path().join(d));
        [dir.join("d/a"), other.join("b")]
            .into_iter()
            .for_each(file);
        symlink(&other, dir.join("link")).unwrap();
        symlink(&other, dir.join("d/link")).unwrap();
        assert_eq!(walked(&dir, Depth::All, |_| ()), ["d/a", "d/link", "link"]);
        assert_eq!(walked(&dir, Depth::One, |_| ()), ["d", "link"]);
        let top = Root::new(dir).list(None, Depth::One).unwrap();
        assert_eq!(
            (top.folders, top.files),
            (vec![Name::new("d").unwrap()], Vec::new())
        );
    }

    #[test]
    fn what_is_no_file_is_told_by_what_it_is() {
        let home = tempfile::tempdir().unwrap();
        let at = |name: &str| home.path().join(name);
        file(at("file"));
        fs::create_dir(at("dir")).unwrap();
        symlink("itself", at("itself")).unwrap();
        symlink("absent", at("nothing")).unwrap();
        symlink("dir", at("link")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        let root = Root::new(home.path().into());
        for root in [root.clone(), root.hold().unwrap().unwrap()] {
            let opened = |name: &str| root.open_file(&Name::new(name).unwrap()).map(drop);
            for (name, told) in [
                ("itself", "it is a link that leads to itself"),
                ("socket", "it is a socket"),
                ("file/a", "what it should lie in is not a directory"),
            ] {
                let Err(StorageError::NoFile { path, what }) = opened(name) else {
                    panic!("{name}")
                };
                assert_eq!((what, path), (told, at(name).display().to_string()));
            }
            // What is no file is not as if it were absent.
            let head = |name: &str| root.head(&Name::new(name).unwrap());
            for name in ["file/a", "absent", "dir/absent/a"] {
                assert_eq!(head(name).unwrap(), None, "{name}");
            }
            for name in ["itself", "nothing", "dir", "socket"] {
                let e = head(name).unwrap_err();
                assert!(matches!(e, StorageError::NoFile { .. }), "{name}: {e}");
            }
            let e = head("link/a").unwrap_err();
            assert!(matches!(e, StorageError::LinkedDirectory { .. }), "{e}");
            // What can't be looked at is not as if it were not there.
            let long = Name::new("x".repeat(300)).unwrap();
            assert!(matches!(root.head(&long), Err(StorageError::Io { .. })));
            assert!(matches!(
                root.open_file(&long),
                Err(StorageError::Io { .. })
            ));
        }
        // The place itself is a file: that is no file that should lie in something.
        let e = Root::new(at("file"))
            .open_file(&Name::new("a").unwrap())
            .unwrap_err();
        assert!(matches!(e, StorageError::Io { .. }), "{e:?}");
        let kinds = [
            FileType::Directory,
            FileType::Fifo,
            FileType::Socket,
            FileType::CharacterDevice,
            FileType::BlockDevice,
            FileType::Unknown,
        ];
        let told = [
            "a directory",
            "a named pipe",
            "a socket",
            "a device",
            "a device",
            "not a regular file",
        ];
        assert_eq!(
            kinds.map(what_it_is),
            told.map(|what| format!("it is {what}"))
        );
    }

    #[test]
    fn a_link_that_leads_to_itself_is_listed_as_a_link_that_is_not_followed() {
        let home = tempfile::tempdir().unwrap();
        symlink("itself", home.path().join("itself")).unwrap();
        let root = Root::new(home.path().into());
        let listed = root.list(None, Depth::All).unwrap();
        assert!(
            listed.files.is_empty() && listed.folders.is_empty(),
            "{listed:?}"
        );
        assert_eq!(listed.others.len(), 1);
        let links = root.links().unwrap();
        assert_eq!(
            links
                .iter()
                .map(|l| (l.target.as_str(), l.followed))
                .collect::<Vec<_>>(),
            [("itself", false)]
        );
    }

    #[test]
    fn what_lies_deeper_than_a_path_can_say_is_skipped() {
        let home = tempfile::tempdir().unwrap();
        fs::create_dir(home.path().join("x")).unwrap();
        dir::tests::nest(&home.path().join("x"), 25, &"d".repeat(200), "deep");
        // Of 4,095 bytes with its parents, and of one more.
        for (name, deep) in [("e".repeat(75), "in"), ("f".repeat(76), "out")] {
            let mut at = dir::hold(&home.path().join("x")).unwrap();
            for _ in 0..20 {
                at = dir::open(&at, "d".repeat(200)).unwrap();
            }
            rustix::fs::mkdirat(&at, &*name, Mode::RWXU).unwrap();
            at = dir::open(&at, &*name).unwrap();
            rustix::fs::openat(&at, deep, OFlags::CREATE | OFlags::WRONLY, Mode::RWXU).unwrap();
        }
        file(home.path().join("x/top"));
        let names = walked(&home.path().join("x"), Depth::All, |_| ());
        let ends: Vec<_> = names
            .iter()
            .map(|n| n.rsplit('/').next().unwrap())
            .collect();
        assert_eq!(ends, ["in", "top"]);
    }

    #[test]
    fn a_directory_that_becomes_a_link_or_a_file_while_it_is_walked_is_not_entered() {
        for (on_the_way, link) in [(false, true), (true, true), (false, false), (true, false)] {
            let home = tempfile::tempdir().unwrap();
            let [dir, other] = ["ckpt", "other"].map(|d| home.path().join(d));
            [
                "ckpt/d/e/a",
                "ckpt/d/f/a",
                "other/b",
                "other/e/b",
                "other/f/b",
            ]
            .map(|f| home.path().join(f))
            .into_iter()
            .for_each(file);
            let mut first = String::new();
            // One of two directories is being listed; the other one is known, and comes next.
            let names = walked(&dir, Depth::All, |name| {
                first = name.into();
                let next = if name == "d/e/a" { "d/f" } else { "d/e" };
                let swapped = dir.join(if on_the_way { "d" } else { next });
                fs::rename(&swapped, home.path().join("away")).unwrap();
                if link {
                    symlink(&other, swapped)
                } else {
                    fs::write(swapped, "")
                }
                .unwrap();
            });
            assert_eq!(names, [first], "{on_the_way} {link}");
        }
    }
}
