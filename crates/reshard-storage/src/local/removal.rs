//! Removes a version: one rename takes it away from its place, so that nobody takes what is left of it for a checkpoint. Then its files go.

use super::{
    dir::{self, Identity},
    remove,
    retire::{Retired, remove_all, retire},
    root::Root,
    sibling::Aside,
    version::{NewVersion, OTHER, ResolvedPlace},
};
use crate::{Depth, Durability, Name, Result, StorageError, failpoint, local::during::During as _};
use rustix::io::Errno;
use std::{collections::BTreeSet, os::fd::OwnedFd};

/// Removes these files of the version at a place. A place where nothing lies is no error.
pub(super) fn remove_version(
    resolved: &ResolvedPlace,
    attempt: &str,
    files: &[Name],
) -> Result<()> {
    let Some(version) = resolved.version(attempt)? else {
        return Ok(());
    };
    let Some(old) = version.standing()? else {
        return Ok(());
    };
    let found = Identity::of(&old).during("look at", &version.place)?;
    // Nobody knows the files of what came since.
    if resolved.known.is_some_and(|known| known != Some(found)) {
        return Err(version.not_removed(OTHER));
    }

    // What would fail half-way is refused before anything changes.
    if version.is_home() {
        let why = "it is your home directory or a directory above it; move the checkpoint into a directory of its own";
        return Err(version.not_removed(why));
    }
    if !version.may_write(&old)? {
        let why = "you don't have permission to write to it; change that with `chmod u+rwx`, or let its owner remove it";
        return Err(version.not_removed(why));
    }
    remove::check_mounts(&version.up, &old, &version.place)?;
    let aside = version.aside(None, &old)?;
    version.check_name(&aside)?;
    failpoint::hit("remove.ready");

    version.take_away(&old, &aside)?;
    failpoint::hit("remove.renamed");
    // If the machine crashes when some files are gone, the name may not come back.
    version.sync_parent()?;
    failpoint::hit("remove.synced");
    finish(&version, &aside, &old, files)
}

/// Removes these files of a version that lies aside. What is of others goes back to the place.
pub(super) fn finish(
    version: &NewVersion,
    aside: &Aside,
    old: &OwnedFd,
    files: &[Name],
) -> Result<()> {
    let fail = |e| StorageError::io("remove", &aside.path, e);
    let there = Root::list_held(&aside.path, old, Depth::All)?;
    let own: BTreeSet<&str> = files.iter().map(Name::as_str).collect();
    if there.names().all(|name| own.contains(name)) {
        remove_all(old, files).map_err(fail)?;
        dir::rmdir(&version.up, &aside.name).map_err(fail)?;
        if !dir::bears(&version.up, &aside.name, old).map_err(fail)? {
            return Ok(());
        }
    }

    // A link to a directory, a socket and the like are no files, but they are of others, too.
    match dir::make(&version.up, &version.name) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(e) => return Err(StorageError::io("create", &version.place, e)),
    }
    let new = dir::open(&version.up, &version.name).during("open", &version.place)?;
    let both = (old, &new);
    retire(
        version,
        aside,
        both,
        files,
        Durability::Machine,
        Retired::InPart,
    )
}

#[cfg(test)]
mod tests {
    use crate::{Leftover, LocalStore, Name, Result, Store, StoreExt};
    use futures_executor::block_on;
    use std::{
        fs,
        os::unix::fs::{MetadataExt, symlink},
        path::Path,
    };

    const ATTEMPT: &str = "1-1a2b3c4d5e6f7081-0";

    fn names(names: &[&str]) -> Vec<Name> {
        names.iter().map(|n| Name::new(*n).unwrap()).collect()
    }

    /// A place with two files of a checkpoint, in a directory of its own.
    fn place() -> (tempfile::TempDir, LocalStore) {
        let home = tempfile::tempdir().unwrap();
        let at = fs::canonicalize(home.path()).unwrap().join("x");
        fs::create_dir_all(at.join("w")).unwrap();
        fs::write(at.join("w/0"), "data").unwrap();
        fs::write(at.join("record"), "record").unwrap();
        (home, LocalStore::at(at).unwrap())
    }

    const FILES: [&str; 2] = ["w/0", "record"];

    fn remove(store: &dyn Store, files: &[&str]) -> Result<()> {
        block_on(store.remove_version(ATTEMPT, None, &names(files)))
    }

    fn count(dir: &Path) -> usize {
        fs::read_dir(dir).unwrap().count()
    }

    #[test]
    fn a_version_is_removed_as_a_whole() {
        let (home, store) = place();
        remove(&store, &FILES).unwrap();
        assert_eq!(count(home.path()), 0);
        // Also if nothing lies there, or not even the directory above.
        remove(&store, &FILES).unwrap();
        let none = LocalStore::at(home.path().join("no/x")).unwrap();
        remove(&none, &FILES).unwrap();
        assert_eq!(count(home.path()), 0);
    }

    #[test]
    fn what_is_of_others_stays_at_the_place() {
        let (home, store) = place();
        let at = store.path();
        fs::create_dir(at.join("logs")).unwrap();
        fs::write(at.join("logs/today"), "log").unwrap();
        fs::write(at.join("w/README"), "text").unwrap();
        remove(&store, &FILES).unwrap();
        let left: Vec<_> = block_on(store.files()).unwrap();
        let left: Vec<_> = left.iter().map(|f| f.name.as_str()).collect();
        assert_eq!(left, ["logs/today", "w/README"]);
        assert_eq!(count(home.path()), 1);
    }

    #[test]
    fn what_is_no_file_stays_at_the_place_too() {
        let (home, store) = place();
        let link = store.path().join("to-nothing");
        symlink("nothing", &link).unwrap();
        remove(&store, &FILES).unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!((count(store.path()), count(home.path())), (1, 1));
    }

    #[test]
    fn a_directory_that_came_since_it_was_looked_at_is_not_removed() {
        let (home, store) = place();
        let resolved = block_on(store.resolved()).unwrap().unwrap();
        fs::rename(store.path(), home.path().join("moved")).unwrap();
        fs::create_dir(store.path()).unwrap();
        fs::write(store.path().join("record"), "of another").unwrap();
        let e = remove(&*resolved, &FILES).unwrap_err().to_string();
        assert!(e.contains("another directory there meanwhile"), "{e}");
        assert!(store.path().join("record").exists());
    }

    #[test]
    fn what_a_killed_removal_has_left_is_finished() {
        let (home, store) = place();
        let at = store.path();
        fs::write(at.join("README"), "text").unwrap();
        let number = fs::metadata(at).unwrap().ino();
        let aside = |new: &str| format!(".x.{ATTEMPT}.{new}-{number:x}.old");
        fs::rename(at, at.with_file_name(aside("0"))).unwrap();
        let leftovers = || block_on(store.leftovers()).unwrap();
        let [left]: [Leftover; 1] = leftovers().try_into().unwrap();
        assert!(left.removed && left.replaced);
        block_on(store.finish_replacing(&left, &names(&FILES))).unwrap();
        assert!(leftovers().is_empty() && at.join("README").exists());
        assert_eq!((count(at), count(home.path())), (1, 1));
    }

    #[test]
    fn a_replaced_version_is_no_removed_one() {
        let (_home, store) = place();
        let at = store.path();
        let number = fs::metadata(at).unwrap().ino();
        let aside = format!(".x.{ATTEMPT}.{:x}-{number:x}.old", number + 1);
        fs::rename(at, at.with_file_name(aside)).unwrap();
        let [left]: [Leftover; 1] = block_on(store.leftovers()).unwrap().try_into().unwrap();
        assert!(left.replaced && !left.removed);
    }

    #[test]
    fn what_may_not_be_written_to_is_left_alone() {
        use std::os::unix::fs::PermissionsExt;
        if rustix::process::geteuid().is_root() {
            return;
        }
        let (_home, store) = place();
        fs::set_permissions(store.path(), fs::Permissions::from_mode(0o555)).unwrap();
        let e = remove(&store, &FILES).unwrap_err().to_string();
        assert!(e.contains("chmod u+rwx"), "{e}");
        fs::set_permissions(store.path(), fs::Permissions::from_mode(0o755)).unwrap();
        assert!(store.path().join("w/0").exists());
    }
}
