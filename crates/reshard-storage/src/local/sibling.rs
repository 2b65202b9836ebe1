//! Hidden siblings of a place, in which attempts work: how they are called, and what is found under such names.

use super::dir::{self, Identity};
use crate::{
    Result, StorageError,
    action_log::{Action, note},
};
use rustix::io::Errno;
use std::{
    ffi::{OsStr, OsString},
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    path::{Path, PathBuf},
};

/// Where the new version waits for the exchange with the old one, and the old one lies after it.
///
/// The name tells the number of the one and of the other directory. So whoever finds it knows which of them it is, and that it
/// is neither when the exchange took out what somebody else had put at the place.
#[derive(Clone, Debug)]
pub(super) struct Aside {
    pub(super) name: OsString,
    pub(super) path: PathBuf,
}

/// Stands for the number of the new version if there is none. No directory has it.
const NONE: &str = "0";

fn hex(number: u64) -> String {
    format!("{number:x}")
}

/// Where an attempt builds its version.
pub(super) fn built(place: &OsStr, attempt: &str) -> OsString {
    sibling(place, attempt, "tmp")
}

/// Where the old version lies while its files are removed. `new` is the version that replaces it, if one does.
pub(super) fn aside(
    place: &OsStr,
    attempt: &str,
    new: Option<Identity>,
    old: Identity,
) -> OsString {
    let new = new.map_or_else(|| NONE.to_owned(), |new| hex(new.number()));
    sibling(place, attempt, &format!("{new}-{}.old", hex(old.number())))
}

/// Where a directory stays of which nobody knows where it belongs.
pub(super) fn out(place: &OsStr, attempt: &str) -> OsString {
    sibling(place, attempt, "out")
}

fn sibling(place: &OsStr, attempt: &str, rest: &str) -> OsString {
    let mut out = OsString::from(".");
    out.push(place);
    out.push(format!(".{attempt}.{rest}"));
    out
}

fn is_attempt(s: &str) -> bool {
    !s.is_empty()
        && s.bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
}

pub(super) fn check_attempt(attempt: &str) -> Result<()> {
    if is_attempt(attempt) && attempt.len() <= 64 {
        return Ok(());
    }
    let what = format!(
        "{attempt:?} can't be the id of an attempt; it needs 1 to 64 letters, digits, `-` or `_`"
    );
    Err(StorageError::invalid(what))
}

/// What a sibling's name says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said<'n> {
    Built,
    Aside { new: &'n str, old: &'n str },
}

/// Which attempt a sibling is of, and what its name says.
fn parse<'n>(found: &'n OsStr, place: &OsStr) -> Option<(&'n str, Said<'n>)> {
    let rest = found
        .as_bytes()
        .strip_prefix(b".")?
        .strip_prefix(place.as_bytes())?
        .strip_prefix(b".")?;
    let (attempt, said) = match str::from_utf8(rest).ok()?.rsplit_once('.')? {
        (attempt, "tmp") => (attempt, Said::Built),
        (rest, "old") => {
            let (attempt, numbers) = rest.rsplit_once('.')?;
            let (new, old) = numbers.split_once('-')?;
            (attempt, Said::Aside { new, old })
        }
        _ => return None,
    };
    is_attempt(attempt).then_some((attempt, said))
}

/// What an attempt has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// What it was building.
    Built,
    /// The new version, ready to be exchanged.
    Ready,
    /// The old version, which was exchanged.
    Replaced,
    /// A version that was to be removed.
    Removed,
}

impl Said<'_> {
    /// What a directory is that bears such a name in `up`; `None` when it is not one that the name means.
    fn state(self, found: Identity, up: Identity) -> Option<State> {
        let Self::Aside { new, old } = self else {
            return Some(State::Built);
        };
        // Only on one device numbers tell directories apart. A device's own number is another one on other machines, and after
        // a restart, so it is not in the name.
        let number = hex(found.number_beside(up)?);
        // Exactly as it was written.
        if number == new {
            Some(State::Ready)
        } else if number == old && new == NONE {
            Some(State::Removed)
        } else if number == old {
            Some(State::Replaced)
        } else {
            None
        }
    }
}

/// A directory that an attempt has left beside a place.
pub(super) struct Sibling {
    pub(super) name: OsString,
    pub(super) attempt: String,
    pub(super) state: State,
    identity: Identity,
}

impl Sibling {
    /// Opens it. `None` when its name means something else by now.
    pub(super) fn open(&self, up: &OwnedFd) -> Result<Option<OwnedFd>, Errno> {
        let fd = match dir::open(up, &self.name) {
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(None),
            other => other?,
        };
        Ok((Identity::of(&fd)? == self.identity).then_some(fd))
    }
}

/// What bears a name in the directory that names a place, if an attempt has left it.
pub(super) fn sibling_called(
    up: &OwnedFd,
    place: &OsStr,
    name: &OsStr,
) -> Result<Option<Sibling>, Errno> {
    found(up, Identity::of(up)?, place, name)
}

fn found(
    up: &OwnedFd,
    above: Identity,
    place: &OsStr,
    name: &OsStr,
) -> Result<Option<Sibling>, Errno> {
    let Some((attempt, said)) = parse(name, place) else {
        return Ok(None);
    };
    // A link of such a name is not ours.
    let Some(identity) = Identity::of_directory(up, name)? else {
        return Ok(None);
    };
    let Some(state) = said.state(identity, above) else {
        tracing::warn!(name = %name.display(), "left alone: it is not the directory to which a save gave this name");
        return Ok(None);
    };
    Ok(Some(Sibling {
        name: name.to_owned(),
        attempt: attempt.to_owned(),
        state,
        identity,
    }))
}

/// All that attempts have left in the directory that names a place, which lies at `parent`.
pub(super) fn siblings(up: &OwnedFd, parent: &Path, place: &OsStr) -> Result<Vec<Sibling>, Errno> {
    note(|| Action::Listed(parent.into()));
    let up = dir::open(up, c".")?;
    let above = Identity::of(&up)?;
    let mut out = Vec::new();
    for name in dir::names(&up)? {
        out.extend(found(
            &up,
            above,
            place,
            OsStr::from_bytes(name.to_bytes()),
        )?);
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, symlink};

    #[test]
    fn an_attempt_has_a_plain_name_of_some_letters() {
        for good in ["a", "a-1", "_", "-", &"x".repeat(64)] {
            assert!(check_attempt(good).is_ok(), "{good}");
        }
        for bad in ["", "a b", "a.b", "a/b", "é", &"x".repeat(65)] {
            let e = check_attempt(bad).unwrap_err().to_string();
            assert!(e.contains(&format!("{bad:?}")), "{e}");
        }
    }

    #[test]
    fn siblings_are_told_by_their_names() {
        let aside = |new, old| Said::Aside { new, old };
        for (found, want) in [
            (".x.a-1.tmp", Some(("a-1", Said::Built))),
            (".x.a_1.7-f0.old", Some(("a_1", aside("7", "f0")))),
            (".x.a_1.old", None),
            (".x.a_1.7.old", None),
            (".x.a_1.7-f0.tmp", None),
            (".x.a_1.7-f0.out", None),
            (".x.7-f0.old", None),
            ("x.a.tmp", None),
            (".y.a.tmp", None),
            (".xa.tmp", None),
            (".x..tmp", None),
            (".x..7-f0.old", None),
            (".x.a.b.tmp", None),
            (".x.a.b.7-f0.old", None),
            (".x.a", None),
        ] {
            assert_eq!(parse(OsStr::new(found), OsStr::new("x")), want, "{found}");
        }
        // Whatever the place is called, no name is of two.
        assert_eq!(parse(OsStr::new(".x.a.7-f0.old"), OsStr::new("x.a")), None);
    }

    fn number(path: &Path) -> u64 {
        fs::metadata(path).unwrap().ino()
    }

    #[test]
    fn what_lies_aside_is_the_new_version_or_the_old_one_or_not_ours() {
        let home = tempfile::tempdir().unwrap();
        let dir = |name: &str| {
            let path = home.path().join(name);
            fs::create_dir(&path).unwrap();
            path
        };
        for d in ["ready", "replaced", "other", "plus", "zeros", "both"].map(dir) {
            let n = number(&d);
            let called = match d.file_name().unwrap().to_str().unwrap() {
                "ready" => format!(".x.ready.{n:x}-1.old"),
                "replaced" => format!(".x.replaced.1-{n:x}.old"),
                "other" => ".x.other.1-2.old".into(),
                "plus" => format!(".x.plus.1-+{n:x}.old"),
                "zeros" => format!(".x.zeros.1-0{n:x}.old"),
                _ => format!(".x.both.{n:x}-{n:x}.old"),
            };
            fs::rename(&d, home.path().join(called)).unwrap();
        }
        let up = dir::open(rustix::fs::CWD, home.path()).unwrap();
        let mut found: Vec<_> = siblings(&up, home.path(), OsStr::new("x"))
            .unwrap()
            .into_iter()
            .map(|s| (s.attempt, s.state))
            .collect();
        found.sort_by(|a, b| a.0.cmp(&b.0));
        let want = [
            ("both", State::Ready),
            ("ready", State::Ready),
            ("replaced", State::Replaced),
        ];
        assert_eq!(
            found,
            want.map(|(attempt, state)| (attempt.to_owned(), state))
        );
    }

    #[test]
    fn a_number_counts_only_on_the_device_of_the_directory_above() {
        let one = |path: &str| {
            Identity::named(rustix::fs::CWD, OsStr::new(path))
                .unwrap()
                .unwrap()
        };
        let (root, said) = (
            one("/"),
            Said::Aside {
                new: "1f",
                old: &hex(one("/").number()),
            },
        );
        assert_eq!(said.state(root, root), Some(State::Replaced));
        if cfg!(target_os = "linux") {
            assert_eq!(said.state(root, one("/proc")), None);
        }
    }

    #[test]
    fn a_sibling_that_is_another_one_by_now_is_not_opened() {
        let home = tempfile::tempdir().unwrap();
        let [tmp, away] = [".x.a.tmp", "away"].map(|d| home.path().join(d));
        fs::create_dir(&tmp).unwrap();
        let up = dir::open(rustix::fs::CWD, home.path()).unwrap();
        let found = siblings(&up, home.path(), OsStr::new("x"))
            .unwrap()
            .pop()
            .unwrap();
        assert!(found.open(&up).unwrap().is_some());
        fs::rename(&tmp, &away).unwrap();
        assert!(found.open(&up).unwrap().is_none());
        symlink("away", &tmp).unwrap();
        assert!(found.open(&up).unwrap().is_none());
        fs::remove_file(&tmp).unwrap();
        fs::create_dir(&tmp).unwrap();
        assert!(found.open(&up).unwrap().is_none());
    }
}
