use crate::{Head, Name};

/// One version of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tagged {
    /// The file.
    pub name: Name,
    /// What is known about it.
    pub head: Head,
    /// What no other version of the file has, such as an ETag.
    pub tag: String,
}

impl Tagged {
    /// A version of a file.
    pub fn new(name: Name, head: Head, tag: impl Into<String>) -> Self {
        Self {
            name,
            head,
            tag: tag.into(),
        }
    }
}

/// Which files were looked for. A file that is among them and not found does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Among {
    /// Only the file that was asked for.
    File,
    /// All that lie in the same folder as the file that was asked for.
    Folder,
    /// All of the place.
    Place,
}

/// Versions of files, as a store learns them with one request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tags {
    /// The files that were found.
    pub files: Vec<Tagged>,
    /// Which were looked for.
    pub among: Among,
}

impl Tags {
    /// These files, of those that were looked for.
    pub fn new(files: Vec<Tagged>, among: Among) -> Self {
        Self { files, among }
    }
}
