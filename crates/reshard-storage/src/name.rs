use crate::{Result, StorageError};
use serde::{Deserialize, Serialize};
use std::{fmt, sync::Arc};

/// The name of a file in a store. It is relative, with `/` between its parts. It is checked when it is made, so no name in a
/// checkpoint's metadata can lead out of the checkpoint's directory. Clones share its text.
///
/// ```
/// use reshard_storage::Name;
/// assert_eq!(Name::new("__0_0.distcp")?.as_str(), "__0_0.distcp");
/// assert!(Name::new("../../etc/passwd").is_err());
/// # Ok::<(), reshard_storage::StorageError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Name(Arc<str>);

impl Name {
    /// Checks a name.
    ///
    /// # Errors
    /// [`StorageError::Name`] when it is empty or absolute, has an empty part, a part `.` or `..`, a backslash, a NUL, or
    /// starts with a drive letter.
    pub fn new(name: impl Into<Box<str>>) -> Result<Self> {
        let name = name.into();
        match fault(&name) {
            Some(why) => Err(StorageError::Name {
                name: name.into(),
                why,
            }),
            None => Ok(Self(name.into())),
        }
    }

    /// Makes a name of a relative path that another program wrote, such as `./model.safetensors`. Parts `.` are left out.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn from_path(path: &str) -> Result<Self> {
        let parts: Vec<&str> = path.split('/').filter(|part| *part != ".").collect();
        Self::new(parts.join("/"))
    }

    /// The name of a file in the folder of this name.
    #[must_use]
    pub fn join(&self, file: &Self) -> Self {
        // The parts are checked, so the whole is a name, too.
        Self(format!("{self}/{file}").into())
    }

    /// The folder in which it lies; empty for the place itself.
    pub fn folder(&self) -> &str {
        self.0.rsplit_once('/').map_or("", |(folder, _)| folder)
    }

    /// That folder and those in which it lies, the outermost first.
    pub fn folders(&self) -> impl Iterator<Item = Self> + '_ {
        let ends = self.0.match_indices('/');
        ends.map(|(end, _)| Self(self.0[..end].into()))
    }

    /// The name as it is.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn fault(name: &str) -> Option<&'static str> {
    let b = name.as_bytes();
    if name.is_empty() {
        Some("it is empty")
    } else if name.contains('\0') {
        Some("it has a NUL byte")
    } else if name.contains('\\') {
        Some("it has a backslash")
    } else if name.starts_with('/')
        || (b.first().is_some_and(u8::is_ascii_alphabetic) && b.get(1) == Some(&b':'))
    {
        Some("it is absolute; only files in the checkpoint's directory are read")
    } else if name.split('/').any(|p| p == "..") {
        Some("it leads out of the checkpoint's directory")
    } else if name.split('/').any(|p| p.is_empty() || p == ".") {
        Some("it has an empty part")
    } else {
        None
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for Name {
    type Error = StorageError;
    fn try_from(s: String) -> Result<Self> {
        Self::new(s)
    }
}

impl From<Name> for String {
    fn from(n: Name) -> Self {
        n.as_str().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_a_name_without_its_dots() {
        for (path, name) in [
            ("./a", "a"),
            ("a", "a"),
            ("././a/./b", "a/b"),
            (".a/b.", ".a/b."),
        ] {
            assert_eq!(Name::from_path(path).unwrap().as_str(), name);
        }
        for bad in [".", "./", "", "./../a", "/./a", ".//a", "a/.."] {
            assert!(Name::from_path(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_folders_of_a_name_are_told_from_the_outermost_on() {
        let folders = |name: &str| {
            let name = Name::new(name).unwrap();
            let all: Vec<String> = name.folders().map(String::from).collect();
            (name.folder().to_owned(), all.join(" "))
        };
        assert_eq!(folders("a"), (String::new(), String::new()));
        assert_eq!(folders("a/b/c"), ("a/b".into(), "a a/b".into()));
    }

    #[test]
    fn names_that_leave_the_directory_are_refused_and_named() {
        for bad in [
            "", "/a", "..", "a/../b", "a//b", "a/", "./a", "a\\b", "a\0b", "C:x", "c:/x",
        ] {
            let e = Name::new(bad).unwrap_err();
            assert!(e.to_string().contains(&format!("{bad:?}")), "{e}");
        }
        for good in [
            "a",
            ".metadata",
            "__0_0.distcp",
            "a/b..c/d",
            "データ",
            "iter:1",
        ] {
            assert_eq!(Name::new(good).unwrap().to_string(), good);
        }
    }

    #[test]
    fn a_name_from_json_is_checked_too() {
        assert!(serde_json::from_str::<Name>("\"../a\"").is_err());
        let n: Name = serde_json::from_str("\"a/b\"").unwrap();
        assert_eq!(serde_json::to_string(&n).unwrap(), "\"a/b\"");
    }
}
