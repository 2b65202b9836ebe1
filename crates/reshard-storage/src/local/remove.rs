//! Removes directories with all that is in them, and nothing that is mounted there.

use super::{
    dir::{Identity, names, open},
    mount,
};
use crate::{Result, StorageError};
use rustix::{fs::AtFlags, io::Errno};
use std::{
    ffi::{CStr, OsStr},
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
};

/// Removes a directory with all that is in it. One that is not there is no error.
pub(super) fn remove_tree(at: impl AsFd, name: &OsStr, path: &Path) -> Result<()> {
    again_and_again(path, || match open(&at, name) {
        // No directory, or a link.
        Err(Errno::NOTDIR | Errno::LOOP) => Ok(rustix::fs::unlinkat(&at, name, AtFlags::empty())?),
        other => remove_open(&at, name, &other?),
    })
}

/// The same, if the name means this open directory. What else bears the name by now is not ours, and stays.
pub(super) fn remove_held(at: impl AsFd, name: &OsStr, dir: &OwnedFd, path: &Path) -> Result<()> {
    again_and_again(path, || match Identity::named(&at, name)? {
        None => Ok(()),
        found if found == Some(Identity::of(dir)?) => remove_open(&at, name, dir),
        _ => {
            tracing::warn!(path = %path.display(), "not removed: it is not the directory that this save has made");
            Ok(())
        }
    })
}

/// Why a directory is not removed.
enum Failed {
    /// Something in it, or itself if the path is empty, is the root of a mounted file system or lies on another device.
    Apart(PathBuf),
    System(Errno),
}

impl From<Errno> for Failed {
    fn from(e: Errno) -> Self {
        Self::System(e)
    }
}

/// Fails if something is mounted in a directory that is found in `at`. To be asked before anything in it is moved or removed.
pub(super) fn check_mounts(at: impl AsFd, dir: &OwnedFd, path: &Path) -> Result<()> {
    again_and_again(path, || nothing_apart(&at, dir))
}

fn nothing_apart(at: impl AsFd, dir: &OwnedFd) -> Result<(), Failed> {
    if mount::is_apart(dir, &at)? {
        return Err(Failed::Apart(PathBuf::new()));
    }
    match mount::first_below(dir) {
        Ok(None) => Ok(()),
        Ok(Some(apart)) => Err(Failed::Apart(apart)),
        // Somebody else is removing it, too.
        Err(Errno::NOENT | Errno::STALE) => Err(Errno::NOTEMPTY.into()),
        Err(e) => Err(e.into()),
    }
}

/// Before anything is removed, all of it is looked at: what is mounted there is somebody else's.
fn remove_open(at: impl AsFd, name: &OsStr, dir: &OwnedFd) -> Result<(), Failed> {
    nothing_apart(&at, dir)?;
    clear(dir)?;
    Ok(rustix::fs::unlinkat(&at, name, AtFlags::REMOVEDIR)?)
}

fn again_and_again(path: &Path, mut remove: impl FnMut() -> Result<(), Failed>) -> Result<()> {
    // Another rank may remove it too, or still be adding a file.
    let mut tries = 0;
    loop {
        match remove() {
            Ok(()) | Err(Failed::System(Errno::NOENT)) => return Ok(()),
            Err(Failed::System(Errno::NOTEMPTY | Errno::EXIST)) if tries < 100 => tries += 1,
            Err(Failed::System(e)) => return Err(StorageError::io("remove", path, e)),
            Err(Failed::Apart(apart)) => return Err(not_removed(path, &apart)),
        }
    }
}

fn not_removed(path: &Path, apart: &Path) -> StorageError {
    // Joining an empty path would add a slash.
    let mounted = if apart.as_os_str().is_empty() {
        path.to_path_buf()
    } else {
        path.join(apart)
    };
    StorageError::unsupported(
        format!("removing {}", path.display()),
        format!(
            "{} is mounted, or lies on another device, and what lies in it would be removed too; unmount it or move it away, \
             then try again",
            mounted.display()
        ),
    )
}

/// So many directories are open, one in the other, while a tree is removed.
const OPEN: usize = 32;

/// Removes all that is in a directory. What lies deeper than [`OPEN`] is first moved up, so that neither stack nor descriptors
/// grow with the depth.
fn clear(dir: &OwnedFd) -> Result<(), Errno> {
    let mut lifted = 0;
    loop {
        let before = lifted;
        for name in names(dir)? {
            remove_all(dir, dir, &name, OPEN, &mut lifted)?;
        }
        if lifted == before {
            return Ok(());
        }
    }
}

fn remove_all(
    top: &OwnedFd,
    at: &OwnedFd,
    name: &CStr,
    levels: usize,
    lifted: &mut u64,
) -> Result<(), Errno> {
    match rustix::fs::unlinkat(at, name, AtFlags::empty()) {
        // How systems say that it is a directory.
        Err(Errno::ISDIR | Errno::PERM) => {}
        other => return gone(other),
    }
    if levels == 0 {
        return gone(lift(top, at, name, lifted));
    }
    let dir = match open(at, name) {
        // No directory, or a link.
        Err(Errno::NOTDIR | Errno::LOOP) => {
            return gone(rustix::fs::unlinkat(at, name, AtFlags::empty()));
        }
        Err(Errno::NOENT) => return Ok(()),
        other => other?,
    };
    // It was mounted after all was looked at.
    if mount::is_apart(&dir, at)? {
        return Err(Errno::XDEV);
    }
    for name in names(&dir)? {
        remove_all(top, &dir, &name, levels - 1, lifted)?;
    }
    gone(rustix::fs::unlinkat(at, name, AtFlags::REMOVEDIR))
}

/// Gives a directory a free name in the topmost one.
fn lift(top: &OwnedFd, at: &OwnedFd, name: &CStr, lifted: &mut u64) -> Result<(), Errno> {
    loop {
        let free = format!(".lifted-{}-{lifted}", std::process::id());
        *lifted += 1;
        match rustix::fs::renameat(at, name, top, free) {
            // Something bears that name.
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => {}
            other => return other,
        }
    }
}

fn gone(outcome: Result<(), Errno>) -> Result<(), Errno> {
    if outcome == Err(Errno::NOENT) {
        Ok(())
    } else {
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local::dir::{
        hold, path_of,
        tests::{nest, with_few_files},
    };
    use std::fs;

    #[test]
    fn what_is_gone_already_is_no_error() {
        assert_eq!(
            [gone(Ok(())), gone(Err(Errno::NOENT)), gone(Err(Errno::IO))],
            [Ok(()), Ok(()), Err(Errno::IO)]
        );
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn nothing_is_removed_of_a_directory_in_which_something_is_mounted() {
        use crate::local::mount::tests::{bind, with_mount};
        with_mount(
            "local::remove::tests::nothing_is_removed_of_a_directory_in_which_something_is_mounted",
            |home| {
                let at = hold(home).unwrap();
                // A directory, a file, and the topmost one itself.
                for (tree, mount, from) in [
                    ("one", "m/n", "from"),
                    ("two", "z", "from/gold"),
                    ("three", "", "from"),
                ] {
                    let path = home.join(tree);
                    fs::create_dir_all(path.join("a")).unwrap();
                    fs::write(path.join("a/first"), "").unwrap();
                    let to = if mount.is_empty() {
                        path.clone()
                    } else {
                        path.join(mount)
                    };
                    match from {
                        "from" => fs::create_dir_all(&to).unwrap(),
                        _ => fs::write(&to, "").unwrap(),
                    }
                    bind(&home.join(from), &to);
                    let held = open(&at, tree).unwrap();
                    let removed = remove_tree(&at, tree.as_ref(), &path);
                    for e in [removed, remove_held(&at, tree.as_ref(), &held, &path)]
                        .map(Result::unwrap_err)
                    {
                        let told = format!(
                            "removing {} is not possible here: {} is mounted",
                            path.display(),
                            to.display()
                        );
                        assert!(e.to_string().starts_with(&told), "{e}");
                    }
                    assert!(mount.is_empty() || path.join("a/first").exists());
                    // What was mounted later is not emptied, either.
                    if (mount, from) == ("m/n", "from") {
                        assert_eq!(clear(&held), Err(Errno::XDEV));
                    }
                }
            },
        );
    }

    #[test]
    fn what_is_being_filled_is_removed_a_hundred_times_again_and_then_given_up() {
        for (e, tries) in [(Errno::NOTEMPTY, 101), (Errno::EXIST, 101), (Errno::IO, 1)] {
            let mut calls = 0;
            let outcome = again_and_again(Path::new("x"), || {
                calls += 1;
                assert!(calls < 1000, "{e}");
                Err(e.into())
            });
            assert!(
                matches!(outcome, Err(StorageError::Io { .. })),
                "{outcome:?}"
            );
            assert_eq!(calls, tries, "{e}");
        }
        let mut calls = 0;
        let late = || {
            calls += 1;
            if calls <= 100 {
                Err(Errno::NOTEMPTY.into())
            } else {
                Ok(())
            }
        };
        assert!(again_and_again(Path::new("x"), late).is_ok());
    }

    #[test]
    fn a_tree_of_any_depth_is_removed() {
        with_few_files(
            "local::remove::tests::a_tree_of_any_depth_is_removed",
            any_depth,
        );
    }

    fn any_depth() {
        let home = tempfile::tempdir().unwrap();
        let at = hold(home.path()).unwrap();
        let tree = home.path().join("tree");
        for held in [false, true] {
            fs::create_dir_all(tree.join("a/b")).unwrap();
            nest(&tree, 3_000, "d", "f");
            nest(&tree.join("d"), 100, "e", "f");
            // Names that are used to move directories up may be there.
            let taken = |n: u32| tree.join(format!(".lifted-{}-{n}", std::process::id()));
            fs::create_dir_all(taken(0).join("x")).unwrap();
            fs::write(taken(1), "").unwrap();
            if held {
                remove_held(&at, "tree".as_ref(), &open(&at, "tree").unwrap(), &tree).unwrap();
            } else {
                remove_tree(&at, "tree".as_ref(), &tree).unwrap();
            }
            assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0);
        }
    }

    #[test]
    fn a_directory_that_is_another_one_by_now_stays() {
        let home = tempfile::tempdir().unwrap();
        let at = hold(home.path()).unwrap();
        let [ours, theirs] = ["ours", "theirs"].map(|d| home.path().join(d));
        for d in [&ours, &theirs] {
            fs::create_dir(d).unwrap();
            fs::write(d.join("f"), "").unwrap();
        }
        let held = open(&at, "ours").unwrap();
        assert_eq!(path_of(&held).is_some(), cfg!(target_os = "linux"));
        remove_held(&at, "theirs".as_ref(), &held, &theirs).unwrap();
        remove_held(&at, "nothing".as_ref(), &held, &theirs).unwrap();
        assert!(ours.join("f").exists() && theirs.join("f").exists());
        remove_held(&at, "ours".as_ref(), &held, &ours).unwrap();
        assert!(!ours.exists() && theirs.join("f").exists());
        assert_eq!(path_of(&held), None);
    }
}
