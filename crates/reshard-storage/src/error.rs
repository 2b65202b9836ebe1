use crate::{Length, Name};
use reshard_model::{BoxError, ErrorKind, ModelError, SourceError};
use std::{
    fmt, io,
    ops::Range,
    path::{Path, PathBuf},
};

/// The errors of stores and transactions.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum StorageError {
    /// A name that can't be a file of a checkpoint, or would leave its directory.
    #[error("{name:?} can't name a file of a checkpoint: {why}")]
    Name {
        /// The offending name.
        name: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A call that contradicts itself.
    #[error("{what}")]
    Invalid {
        /// What is wrong.
        what: String,
    },
    /// The file or the place does not exist.
    #[error("{path}: not found")]
    NotFound {
        /// Which one: a path or a URL.
        path: String,
    },
    /// The place holds something already.
    #[error(
        "{path} exists already and is not empty; choose another place, or ask for it to be replaced"
    )]
    Exists {
        /// Which place: a path or a URL.
        path: String,
    },
    /// The operating system refused.
    #[error("could not {action} {path}: {source}")]
    Io {
        /// What was being done.
        action: &'static str,
        /// To what: a path or a URL.
        path: String,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// A file ends before what should be in it.
    #[error("{path} has {size} bytes, but bytes {}..{} are needed; the file is cut short or damaged", range.start, range.end)]
    Short {
        /// The file.
        path: String,
        /// What was wanted of it, in bytes.
        range: Range<u64>,
        /// How long it is.
        size: u64,
    },
    /// A file is longer than the caller can use.
    #[error("{path} has {size} bytes, and at most {max} are read")]
    Longer {
        /// The file.
        path: String,
        /// How long it is.
        size: u64,
        /// How long it may be.
        max: u64,
    },
    /// Something else lies where a file should be.
    #[error("{path} is not a file: {what}")]
    NoFile {
        /// Its path.
        path: String,
        /// What lies there.
        what: &'static str,
    },
    /// Elements should lie in a record, but reach beyond its end.
    #[error("{name}: a record of {} bytes at {} can't hold elements up to its byte {need}", range.end.saturating_sub(range.start), range.start)]
    Record {
        /// The file.
        name: Name,
        /// The record, in bytes of the file.
        range: Range<u64>,
        /// Where the last element ends, from the record's start.
        need: u64,
    },
    /// This place can't do the operation.
    #[error("{what} is not possible here: {why}")]
    Unsupported {
        /// What was asked, with the place.
        what: String,
        /// Why it is not possible, and what to do instead.
        why: String,
    },
    /// The bytes of a record differ from those that were written.
    #[error("{name}, bytes {}..{}: {source}", range.start, range.end)]
    Check {
        /// The file.
        name: Name,
        /// The record, in bytes of the file.
        range: Range<u64>,
        /// What the check found.
        #[source]
        source: BoxError,
    },
    /// An extent gave more or fewer bytes than it promised.
    #[error("{name}: the extent at byte {offset} promised {want} bytes and gave {}", gave(*want, *got))]
    ExtentLength {
        /// The file.
        name: Name,
        /// Where the extent starts in it.
        offset: u64,
        /// Bytes promised.
        want: Length,
        /// Bytes given, at least.
        got: u64,
    },
    /// An extent could not make its bytes.
    #[error("{name}: the source of the bytes at {offset} failed: {source}")]
    Source {
        /// The file that was being written.
        name: Name,
        /// Where in the file.
        offset: u64,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A part of a record does not fit the region that it goes to.
    #[error("{name}, bytes {}..{}: {source}", range.start, range.end)]
    Region {
        /// The file.
        name: Name,
        /// The record, in bytes of the file.
        range: Range<u64>,
        /// Why.
        #[source]
        source: ModelError,
    },
    /// A file that lies behind a link to a directory.
    #[error(
        "{path}: {directory} is a link to a directory, which is not followed inside a checkpoint; put the directory itself \
         there, or links to its files"
    )]
    LinkedDirectory {
        /// The file.
        path: String,
        /// The link, as a name in the checkpoint.
        directory: String,
    },
    /// A new version lacks something that was written. It is not committed.
    #[error(
        "{path}: {what}; nothing is committed, and what was there stays. Somebody has changed what ranks wrote, or ranks write to \
         different places: give all of them the same directory, then save again"
    )]
    Incomplete {
        /// Where the new version was built.
        path: String,
        /// What it lacks.
        what: String,
    },
    /// The place no longer holds the version that was to be replaced.
    #[error(
        "{path}: somebody has put something else there since this save began; nothing is committed, and what is there stays; \
         save again, and let no other save to this place run at the same time"
    )]
    Changed {
        /// The place.
        path: String,
    },
    /// The place no longer holds the version that is being read.
    #[error(
        "{path} was replaced, moved or removed while it was read; what was read before is of the old version; read it again"
    )]
    Replaced {
        /// The place.
        path: String,
    },
    /// Somebody else exchanged directories at the place during this save, and they could not be put back.
    #[error(
        "{path}: somebody renamed directories there while this save exchanged two of them, so the save has moved another directory \
         than it should; nothing is removed. The directory that it took out is {kept}. The version that it should replace is \
         {old}. The new version, whole, is {new}. Rename them as they should be"
    )]
    Displaced {
        /// The place.
        path: String,
        /// What the save took out of it, beside the place.
        kept: String,
        /// Where the version is that was to be replaced.
        old: String,
        /// Where the new version is.
        new: String,
    },
    /// This rank does not find the version that another rank has begun.
    #[error(
        "{path}: this rank does not see the save that the coordinator has begun there (attempt {attempt}); all ranks must see \
         the same directory under this path, and nobody may rename it during the save"
    )]
    NotJoined {
        /// The place, as this rank knows it.
        path: String,
        /// The attempt.
        attempt: String,
    },
    /// The new version is committed and whole, but a crash of the machine may still undo it.
    #[error(
        "{path} is committed, but a crash of the machine may still undo that, because it could not be synced: {source}"
    )]
    NotDurable {
        /// The place.
        path: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The new version is committed and whole, but files of other programs could not be moved into it from the old one.
    #[error(
        "{path} holds the new checkpoint, but {count} files and directories of other programs that lay there could not be moved \
         to it and stay in {kept}, such as {first}: {source}"
    )]
    NotCarried {
        /// The place.
        path: String,
        /// Where they are now.
        kept: String,
        /// How many.
        count: usize,
        /// One of them.
        first: String,
        /// Why that one could not be moved.
        #[source]
        source: io::Error,
    },
    /// A service in the network refused, or did not answer.
    #[error("could not {action} {url}: {fault}. {hint} ({source})")]
    Service {
        /// What was being done.
        action: &'static str,
        /// To what.
        url: String,
        /// What is wrong.
        fault: ServiceFault,
        /// What to do: which setting is wrong, or how often it was tried.
        hint: String,
        /// What the client of the service said.
        #[source]
        source: BoxError,
    },
    /// No store that is linked into this program has the scheme of a URL.
    #[error("no store is linked for `{scheme}` (of {url}); linked: {linked}. {hint}")]
    UnknownScheme {
        /// The URL.
        url: String,
        /// Its scheme.
        scheme: String,
        /// The schemes that are linked, comma-joined.
        linked: String,
        /// What would add it.
        hint: String,
    },
    /// Two crates register one URL scheme.
    #[error(
        "the store scheme `{scheme}` is claimed by both {first} and {second}; link only one of them"
    )]
    DuplicateScheme {
        /// The scheme.
        scheme: String,
        /// Crate that claimed it first.
        first: String,
        /// Crate that claimed it too.
        second: String,
    },
    /// A bug.
    #[error("{what}; this is a bug in reshard, please report it")]
    Internal {
        /// What should not be.
        what: String,
    },
    /// Code that ran on an I/O thread panicked.
    #[error("an I/O task panicked: {message}")]
    Panicked {
        /// What it said.
        message: String,
    },
}

/// The message with its causes.
impl fmt::Debug for StorageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        reshard_model::write_with_causes(self, f)
    }
}

/// Why a service in the network did not do what it was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ServiceFault {
    /// The credentials are valid, but don't allow it.
    Denied,
    /// The credentials were valid once.
    Expired,
    /// There are no credentials, or the service does not accept them.
    Unauthenticated,
    /// The bucket or container does not exist.
    NoBucket,
    /// The bucket is in another region than the one that was asked.
    WrongRegion,
    /// The service redirects to an address to which no request is sent.
    Redirected,
    /// The service asks for fewer requests.
    Throttled,
    /// No connection, or no answer in time.
    Unreachable,
    /// The service failed, or its answer makes no sense.
    Failed,
}

impl fmt::Display for ServiceFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Denied => "access is denied",
            Self::Expired => "the credentials have expired",
            Self::Unauthenticated => "there are no valid credentials",
            Self::NoBucket => "there is no such bucket",
            Self::WrongRegion => "the bucket is in another region",
            Self::Redirected => "the service redirects to another address",
            Self::Throttled => "the service asks for fewer requests",
            Self::Unreachable => "the service can't be reached",
            Self::Failed => "the service failed",
        })
    }
}

impl ServiceFault {
    /// What the caller can do.
    fn kind(self) -> ErrorKind {
        match self {
            // The settings must change first. A bucket that does not exist is no missing file.
            Self::Denied
            | Self::Expired
            | Self::Unauthenticated
            | Self::NoBucket
            | Self::WrongRegion
            | Self::Redirected => ErrorKind::Invalid,
            Self::Throttled | Self::Unreachable | Self::Failed => ErrorKind::Unavailable,
        }
    }
}

fn gave(want: Length, got: u64) -> String {
    if got > want.at_most() {
        format!("more (at least {got})")
    } else {
        format!("only {got}")
    }
}

impl StorageError {
    /// What the caller can do.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Name { .. } | Self::Invalid { .. } | Self::UnknownScheme { .. } => {
                ErrorKind::Invalid
            }
            Self::NotFound { .. } => ErrorKind::NotFound,
            Self::Exists { .. } => ErrorKind::Exists,
            // The file is missing where it should be.
            Self::Short { .. }
            | Self::Check { .. }
            | Self::Record { .. }
            | Self::LinkedDirectory { .. }
            | Self::NoFile { .. } => ErrorKind::Corrupt,
            Self::Unsupported { .. } | Self::Longer { .. } => ErrorKind::Unsupported,
            Self::Source { source, .. } => source
                .get_ref()
                .map_or(ErrorKind::Unavailable, |e| SourceError::kind_of(e)),
            Self::Io { .. }
            | Self::Incomplete { .. }
            | Self::Changed { .. }
            | Self::Replaced { .. }
            | Self::Displaced { .. }
            | Self::NotJoined { .. }
            | Self::NotDurable { .. }
            | Self::NotCarried { .. } => ErrorKind::Unavailable,
            Self::Service { fault, .. } => fault.kind(),
            Self::Region { source, .. } => source.kind(),
            Self::ExtentLength { .. }
            | Self::Internal { .. }
            | Self::Panicked { .. }
            | Self::DuplicateScheme { .. } => ErrorKind::Internal,
        }
    }

    /// An I/O error with what was being done to which path; a missing file becomes [`NotFound`](Self::NotFound).
    pub fn io(
        action: &'static str,
        path: impl Into<PathBuf>,
        source: impl Into<io::Error>,
    ) -> Self {
        let (path, source) = (shown_path(&path.into()), source.into());
        match source.kind() {
            io::ErrorKind::NotFound => Self::NotFound { path },
            _ => Self::Io {
                action,
                path,
                source,
            },
        }
    }

    /// This place can't do an operation: what was asked, with the place, and why not.
    pub fn unsupported(what: impl Into<String>, why: impl Into<String>) -> Self {
        Self::Unsupported {
            what: what.into(),
            why: why.into(),
        }
    }

    /// A call that contradicts itself.
    pub fn invalid(what: impl Into<String>) -> Self {
        Self::Invalid { what: what.into() }
    }
}

/// A path as messages show it. Bytes of a path that is not UTF-8 are escaped, so that it can be told from others.
pub fn shown_path(path: &Path) -> String {
    let bytes = || path.as_os_str().as_encoded_bytes().escape_ascii();
    path.to_str()
        .map_or_else(|| bytes().to_string(), str::to_owned)
}

/// Result of this crate's functions.
pub type Result<T, E = StorageError> = std::result::Result<T, E>;
