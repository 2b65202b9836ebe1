//! Mounted file systems below a directory: what lies in them is not the directory's, whatever its name says.

use super::dir::{self, Identity};
use rustix::{
    fs::{AtFlags, FileType},
    io::Errno,
    path::Arg,
};
use std::{
    ffi::{CStr, CString, OsStr},
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::PathBuf,
    vec,
};

/// Whether a directory is the root of a mounted file system. Bind mounts have the device of what is around them; the kernel
/// knows them all the same.
pub(super) fn is_mount(parent: impl AsFd, name: impl Arg + Copy) -> Result<bool, Errno> {
    match is_mount_root(&parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Some(known) => Ok(known),
        None => {
            let here = rustix::fs::statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
            Ok(here.st_dev != rustix::fs::fstat(&parent)?.st_dev)
        }
    }
}

/// What the kernel says; `None` when it can't tell.
#[cfg(target_os = "linux")]
fn is_mount_root(at: impl AsFd, name: impl Arg, flags: AtFlags) -> Option<bool> {
    use rustix::fs::{StatxAttributes, StatxFlags, statx};
    let s = statx(at, name, flags, StatxFlags::BASIC_STATS).ok()?;
    let known = s.stx_attributes_mask.contains(StatxAttributes::MOUNT_ROOT);
    known.then(|| s.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

#[cfg(not(target_os = "linux"))]
fn is_mount_root(_: impl AsFd, _: impl Arg, _: AtFlags) -> Option<bool> {
    None
}

/// Whether an open directory is a mount, or lies on another device than the one that it was found in.
pub(super) fn is_apart(dir: &OwnedFd, above: impl AsFd) -> Result<bool, Errno> {
    #[cfg(target_os = "linux")]
    if is_mount_root(dir, c"", AtFlags::EMPTY_PATH) == Some(true) {
        return Ok(true);
    }
    Ok(rustix::fs::fstat(dir)?.st_dev != rustix::fs::fstat(above)?.st_dev)
}

/// What one name means for a walk.
enum Found {
    Gone,
    File,
    Directory,
    Apart,
}

fn look(at: &OwnedFd, name: &CStr) -> Result<Found, Errno> {
    let Some(stat) = dir::stat_of(at, name)? else {
        return Ok(Found::Gone);
    };
    // A file may be a mount, too.
    if is_mount_root(at, name, AtFlags::SYMLINK_NOFOLLOW) == Some(true) {
        return Ok(Found::Apart);
    }
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        return Ok(Found::File);
    }
    // Some file systems give files, but not directories, a device of their own.
    let apart = stat.st_dev != rustix::fs::fstat(at)?.st_dev;
    Ok(if apart {
        Found::Apart
    } else {
        Found::Directory
    })
}

/// So many directories stay open above the one that is looked at. Deeper ones are found again by `..`, so that descriptors don't
/// grow with the depth.
const OPEN: usize = 16;

/// A directory, and those in it that are still to be looked at.
struct Level {
    /// `None` when it was closed.
    dir: Option<OwnedFd>,
    known: Identity,
    names: vec::IntoIter<CString>,
}

/// The first mount or change of device below a directory, as a path in it. No link is followed.
pub(super) fn first_below(top: &OwnedFd) -> Result<Option<PathBuf>, Errno> {
    let mut path = PathBuf::new();
    let mut above: Vec<Level> = Vec::new();
    let mut here = rustix::io::fcntl_dupfd_cloexec(top, 0)?;
    let mut names = match directories(&here)? {
        Ok(names) => names,
        Err(apart) => return Ok(Some(text(&apart))),
    };
    loop {
        // Down into the next one.
        if let Some(name) = names.next() {
            let dir = match dir::open(&here, &*name) {
                // Somebody has changed it meanwhile.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => continue,
                other => other?,
            };
            path.push(text(&name));
            let found = directories(&dir)?;
            let known = Identity::of(&here)?;
            let left = std::mem::replace(&mut here, dir);
            above.push(Level {
                dir: (above.len() < OPEN).then_some(left),
                known,
                names,
            });
            names = match found {
                Ok(names) => names,
                Err(apart) => return Ok(Some(path.join(text(&apart)))),
            };
            continue;
        }
        // All of it is looked at: back to the one above.
        let Some(level) = above.pop() else {
            return Ok(None);
        };
        here = match level.dir {
            Some(dir) => dir,
            None => dir::open(&here, c"..")?,
        };
        // Somebody may have moved it meanwhile.
        if Identity::of(&here)? != level.known {
            return Err(Errno::STALE);
        }
        names = level.names;
        path.pop();
    }
}

/// The directories in one, or the first name in it that is apart.
fn directories(dir: &OwnedFd) -> Result<Result<vec::IntoIter<CString>, CString>, Errno> {
    let mut out = Vec::new();
    for name in dir::names(dir)? {
        match look(dir, &name)? {
            Found::Apart => return Ok(Err(name)),
            Found::Directory => out.push(name),
            Found::File | Found::Gone => {}
        }
    }
    Ok(Ok(out.into_iter()))
}

fn text(name: &CStr) -> PathBuf {
    OsStr::from_bytes(name.to_bytes()).into()
}

#[cfg(test)]
#[cfg(target_os = "linux")]
pub(super) mod tests {
    use super::*;
    use crate::local::dir::tests::{nest, with_few_files};
    use std::{fs, path::Path, process::Command};

    /// Runs a test again, in a process that sees a directory `from` also as `to`. Where the system allows nobody that, nothing is run.
    pub(in super::super) fn with_mount(test: &str, work: impl FnOnce(&Path)) {
        const MARK: &str = "RESHARD_TEST_MOUNT";
        if let Some(resolved) = std::env::var_os(MARK) {
            return work(Path::new(&resolved));
        }
        let unshare = || {
            let mut c = Command::new("unshare");
            c.args(["--user", "--map-root-user", "--mount"]);
            c
        };
        if !unshare().arg("true").status().is_ok_and(|s| s.success()) {
            return;
        }
        let resolved = tempfile::tempdir().unwrap();
        let script = r#"mkdir -p "$2"/from/sub && echo gold > "$2"/from/gold && echo gold > "$2"/from/sub/gold && exec "$0" --exact "$1" --test-threads=1"#;
        let mut again = unshare();
        again
            .args(["sh", "-c", script])
            .arg(std::env::current_exe().unwrap())
            .arg(test)
            .arg(resolved.path());
        let out = again.env(MARK, resolved.path()).output().unwrap();
        let text = String::from_utf8_lossy(&out.stdout);
        assert!(out.status.success() && text.contains("1 passed"), "{text}");
        for gold in ["gold", "sub/gold"] {
            assert!(
                resolved.path().join("from").join(gold).exists(),
                "{gold} is gone"
            );
        }
    }

    /// Lets a directory, or a file, be seen as another one, too.
    pub(in super::super) fn bind(from: &Path, to: &Path) {
        let done = Command::new("mount")
            .arg("--bind")
            .args([from, to])
            .status()
            .unwrap();
        assert!(done.success());
    }

    pub(in super::super) fn unbind(to: &Path) {
        assert!(Command::new("umount").arg(to).status().unwrap().success());
    }

    #[test]
    fn the_root_of_a_file_system_is_told_from_a_directory_in_it() {
        let root = dir::hold(Path::new("/")).unwrap();
        assert_eq!(is_mount(&root, "proc"), Ok(true));
        let resolved = tempfile::tempdir().unwrap();
        fs::create_dir(resolved.path().join("d")).unwrap();
        let resolved = dir::hold(resolved.path()).unwrap();
        assert_eq!(
            (
                is_mount(&resolved, "d"),
                is_mount(&resolved, "none").is_err()
            ),
            (Ok(false), true)
        );
        let proc = dir::open(&root, "proc").unwrap();
        assert_eq!(is_apart(&proc, &root), Ok(true));
        assert_eq!(
            is_apart(&dir::open(&resolved, "d").unwrap(), &resolved),
            Ok(false)
        );
        let first = first_below(&dir::open(rustix::fs::CWD, "/").unwrap())
            .unwrap()
            .unwrap();
        assert!(first.iter().count() == 1, "{}", first.display());
    }

    #[test]
    fn a_mount_is_found_wherever_it_lies() {
        with_mount(
            "local::mount::tests::a_mount_is_found_wherever_it_lies",
            |resolved| {
                let tree = resolved.join("tree");
                for d in ["a/b/c", "d/e", "z"] {
                    fs::create_dir_all(tree.join(d)).unwrap();
                }
                fs::write(tree.join("z/f"), "").unwrap();
                std::os::unix::fs::symlink(resolved.join("from"), tree.join("a/link")).unwrap();
                let first = || first_below(&dir::open(rustix::fs::CWD, &tree).unwrap()).unwrap();
                assert_eq!(first(), None);
                bind(&resolved.join("from/gold"), &tree.join("z/f"));
                assert_eq!(first(), Some("z/f".into()));
                bind(&resolved.join("from"), &tree.join("z"));
                assert_eq!(first(), Some("z".into()));
            },
        );
    }

    #[test]
    fn a_nest_of_any_depth_is_looked_through() {
        with_few_files(
            "local::mount::tests::a_nest_of_any_depth_is_looked_through",
            || {
                let resolved = tempfile::tempdir().unwrap();
                nest(resolved.path(), 3_000, "d", "f");
                nest(&resolved.path().join("d/d"), 100, "e", "f");
                let at = dir::open(rustix::fs::CWD, resolved.path()).unwrap();
                assert_eq!(first_below(&at), Ok(None));
                let up = dir::hold(resolved.path().parent().unwrap()).unwrap();
                super::super::remove::remove_tree(
                    &up,
                    resolved.path().file_name().unwrap(),
                    resolved.path(),
                )
                .unwrap();
            },
        );
    }
}
