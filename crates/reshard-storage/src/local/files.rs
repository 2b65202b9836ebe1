//! How one file, or files with a common prefix, are put into the folder of others that is their place.

use super::{
    commit::{check, make_durable, write_record},
    dir::{self, Dir, Identity},
    remove,
    root::Root,
    version::{NewVersion, ResolvedPlace},
};
use crate::shown_path;
use crate::{
    Depth, Durability, Entry, FileBody, IfExists, Name, PlaceKind, Result, StorageError,
    action_log::{Action, note},
    failpoint,
    local::during::During as _,
    part::is_ending,
};
use bytes::Bytes;
use rustix::{
    fs::{AtFlags, FileType, Mode, OFlags, RenameFlags},
    io::Errno,
};
use std::{
    ffi::{OsStr, OsString},
    os::fd::OwnedFd,
    sync::Arc,
};

/// What the place of a file with a prefix is called in the folder.
fn with_prefix(version: &NewVersion, name: &Name) -> OsString {
    let mut out = version.name.clone();
    out.push(name.as_str());
    out
}

/// Takes back what a killed attempt has linked into the folder, unless it had come to the last file: the record.
pub(super) fn withdraw(version: &NewVersion, built: &Dir) -> Result<()> {
    let files = Root::list_held(&version.built, built.fd(), Depth::One)?.files;
    let mut linked = Vec::new();
    for file in &files {
        let outer = with_prefix(version, &file.name);
        let mine = Identity::named(built.fd(), OsStr::new(file.name.as_str()))
            .during("look at", &version.place)?;
        if mine.is_some()
            && Identity::named(&version.up, &outer).during("look at", &version.place)? == mine
        {
            linked.push(outer);
        }
    }
    if linked.len() == files.len() {
        return Ok(());
    }
    unlink_all(version, &linked)
}

/// Removes all that it can. Returns the first error.
fn unlink_all(version: &NewVersion, names: &[OsString]) -> Result<()> {
    let mut outcome = Ok(());
    for name in names {
        let removed = match rustix::fs::unlinkat(&version.up, &**name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(e) => Err(StorageError::io(
                "remove",
                version.place.with_file_name(name),
                e,
            )),
        };
        outcome = outcome.and(removed);
    }
    outcome
}

/// The file that the version replaces; `None` if there is none, or for a prefix.
pub(super) fn to_replace(
    resolved: &ResolvedPlace,
    version: &NewVersion,
    kind: PlaceKind,
    if_exists: &IfExists,
) -> Result<Option<OwnedFd>> {
    if kind != PlaceKind::File {
        return match if_exists {
            IfExists::Replace(files) if !files.is_empty() => Err(version.unsupported(
                "files with a common prefix can't be replaced in one step: new files have the names of old ones, so a crash could \
                 leave neither checkpoint; save to another prefix and remove the old files yourself, or save to a folder",
            )),
            _ => Ok(None),
        };
    }
    let old = standing(version)?;
    if old.is_some() && *if_exists == IfExists::Refuse {
        return Err(version.exists());
    }
    let found = old
        .as_ref()
        .map(Identity::of)
        .transpose()
        .during("look at", &version.place)?;
    if resolved.known.is_some_and(|known| known != found) {
        return Err(version.changed());
    }
    Ok(old)
}

/// Checks the number of the files of a version and their names. One file gets that of the place when it is put there.
pub(super) fn check_files(version: &NewVersion, kind: PlaceKind, files: &[FileBody]) -> Result<()> {
    if kind == PlaceKind::File {
        return check_count(version, files.len());
    }
    files.iter().try_for_each(|file| match &file.name {
        name if name.as_str().contains('/') => Err(version.unsupported(format!(
            "{name} would lie in a directory, but files with a common prefix all lie beside each other"
        ))),
        name => check_ending(version, name),
    })
}

/// Fails if one file is the place of several.
fn check_count(version: &NewVersion, files: usize) -> Result<()> {
    match files {
        0 | 1 => Ok(()),
        _ => Err(version.unsupported(format!(
            "it is a single file, but the format writes {files} files; save to a directory"
        ))),
    }
}

/// Fails for a name that no file with a prefix can have: it would belong to another prefix.
fn check_ending(version: &NewVersion, name: &Name) -> Result<()> {
    match is_ending(name.as_str()) {
        true => Ok(()),
        false => Err(version.unsupported(format!(
            "{name} is no ending of a file with a prefix, such as .index; save to a directory"
        ))),
    }
}

/// The file at the place, held; `None` when there is nothing.
fn standing(version: &NewVersion) -> Result<Option<OwnedFd>> {
    let Some(stat) = dir::stat_of(&version.up, &version.name).during("look at", &version.place)?
    else {
        return Ok(None);
    };
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => {}
        FileType::Directory => {
            return Err(version.unsupported("a directory lies there, not a file"));
        }
        _ => return Err(version.unsupported("something other than a file lies there")),
    }
    // No right to read it is needed.
    let flags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
    rustix::fs::openat(&version.up, &version.name, flags, Mode::empty())
        .map(Some)
        .during("look at", &version.place)
}

/// Puts the one file of a version into its place, in one step.
fn put_file(version: &NewVersion, built: &Dir, file: &Name, old: Option<&OwnedFd>) -> Result<()> {
    let (up, name, file) = (&version.up, &*version.name, file.as_str());
    let fail = |e| StorageError::io("rename the new version to", &version.place, e);
    let rename = |flags| rustix::fs::renameat_with(built.fd(), file, up, name, flags);
    let Some(old) = old else {
        return match rename(RenameFlags::NOREPLACE) {
            // Somebody has put it there since.
            Err(Errno::EXIST) => Err(version.exists()),
            other => other.map_err(fail),
        };
    };
    if !dir::bears(up, name, old).map_err(fail)? {
        return Err(version.changed());
    }
    match rename(RenameFlags::EXCHANGE) {
        Ok(()) => {}
        // Then without looking at what is taken out.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
            return rustix::fs::renameat(built.fd(), file, up, name).map_err(fail);
        }
        Err(Errno::NOENT) => return Err(version.changed()),
        Err(e) => return Err(fail(e)),
    }
    failpoint::hit("commit.exchanged");
    if dir::bears(built.fd(), OsStr::new(file), old).map_err(fail)? {
        return Ok(());
    }
    // What came out is what somebody had put there just now.
    rename(RenameFlags::EXCHANGE).map_err(fail)?;
    Err(version.changed())
}

/// Links files into the folder, the last of them at last; takes them back when one can't be linked.
fn put_prefix(
    version: &NewVersion,
    built: &Dir,
    files: &[&Name],
    durability: Durability,
) -> Result<()> {
    let mut linked = Vec::new();

    // A link fails if the name exists, where a rename would replace somebody's file.
    let mut put = |name: &Name| {
        let outer = with_prefix(version, name);
        let path = version.place.with_file_name(&outer);
        match rustix::fs::linkat(
            built.fd(),
            name.as_str(),
            &version.up,
            &*outer,
            AtFlags::empty(),
        ) {
            Ok(()) => {}
            Err(Errno::EXIST) => {
                return Err(StorageError::Exists {
                    path: shown_path(&path),
                });
            }
            Err(Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS) => {
                return Err(version.unsupported("its file system has no hard links, so files with a common prefix can't become visible in one step; save to a directory"));
            }
            Err(e) => return Err(StorageError::io("link", &path, e)),
        }
        note(|| Action::Linked(path));
        linked.push(outer);
        Ok(())
    };

    // The last file is the record. It must not become visible, nor reach the disk, before the others.
    let outcome = match files.split_last() {
        None => Ok(()),
        Some((record, data)) => data.iter().try_for_each(|name| put(name)).and_then(|()| {
            if durability == Durability::Machine {
                version.sync_parent()?;
            }
            failpoint::hit("commit.ready");
            put(record)
        }),
    };

    outcome.inspect_err(|_| {
        // The reason why it failed is what the caller needs.
        if let Err(e) = unlink_all(version, &linked) {
            tracing::warn!(path = %version.place.display(), error = %e, "not all files of a failed save were taken back");
        }
    })
}

pub(super) fn commit(
    version: &NewVersion,
    built: &Dir,
    kind: PlaceKind,
    record: Option<(Name, Bytes)>,
    files: &[Entry],
    (durability, old): (Durability, Option<Arc<OwnedFd>>),
) -> Result<()> {
    match (kind, record) {
        (PlaceKind::File, Some((name, _))) => {
            return Err(version.unsupported(format!(
                "it is a single file, but the format also writes {name}; save to a directory"
            )));
        }
        (PlaceKind::File, None) => {
            check_count(version, files.len())?;
            let [Entry { name, .. }] = files else {
                return Err(version.unsupported("no file was written for it"));
            };
            check(version, built, files)?;
            if let Some(old) = &old
                && let Ok(stat) = rustix::fs::fstat(old)
                && let Err(e) = rustix::fs::chmodat(
                    built.fd(),
                    name.as_str(),
                    Mode::from_raw_mode(stat.st_mode),
                    AtFlags::empty(),
                )
            {
                tracing::warn!(path = %version.place.display(), error = %e, "the new file has other permissions");
            }
            put_file(version, built, name, old.as_deref())?;
            note(|| Action::Renamed(version.built.join(name.as_str()), version.place.clone()));
        }
        (_, None) => {
            return Err(version.unsupported(
                "the format has no commit record, which makes files with a common prefix visible; save to a directory",
            ));
        }
        (_, Some((name, bytes))) => {
            check_ending(version, &name)?;
            write_record(built, &name, &bytes, durability)?;
            check(version, built, files)?;
            let all: Vec<&Name> = files.iter().map(|file| &file.name).chain([&name]).collect();
            put_prefix(version, built, &all, durability)?;
        }
    }
    failpoint::hit("commit.renamed");
    let durable = make_durable(version, durability);
    failpoint::hit("commit.parent_synced");
    // The new version is there, whatever becomes of this, which shows among the leftovers.
    if let Err(e) =
        remove::remove_held(&version.up, &version.built_name, built.fd(), &version.built)
    {
        tracing::warn!(path = %version.built.display(), error = %e, "the attempt's directory was not removed");
    }
    durable
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn what_can_not_be_taken_back_keeps_nothing_else_there_and_hides_no_cause() {
        let home = tempfile::tempdir().unwrap();
        let version = ResolvedPlace::find(&home.path().join("x-"))
            .unwrap()
            .made_version("a")
            .unwrap();
        let built = version.make().unwrap();
        for file in ["a", "b", "record"] {
            fs::write(version.built.join(file), "").unwrap();
        }
        // What can't be unlinked, between two that can.
        let names = ["x-a", "x-d", "x-b"].map(OsString::from);
        for file in ["x-a", "x-b"] {
            fs::write(home.path().join(file), "").unwrap();
        }
        fs::create_dir(home.path().join("x-d")).unwrap();
        let e = unlink_all(&version, &names).unwrap_err();
        assert!(e.to_string().contains("x-d"), "{e}");
        let there = |name: &str| home.path().join(name).exists();
        assert_eq!(["x-a", "x-d", "x-b"].map(there), [false, true, false]);

        // The record is somebody's, so the others are taken back.
        fs::write(home.path().join("x-record"), "").unwrap();
        let files = ["a", "b", "record"].map(|f| Name::new(f).unwrap());
        let files: Vec<&Name> = files.iter().collect();
        let e = put_prefix(&version, &built, &files, Durability::Process).unwrap_err();
        assert!(
            matches!(&e, StorageError::Exists { path } if path.ends_with("x-record")),
            "{e}"
        );
        assert_eq!(["x-a", "x-b"].map(there), [false, false]);
    }
}
