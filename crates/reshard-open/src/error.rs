use crate::whereabouts::Whereabouts;
use reshard_comm::CommError;
use reshard_model::{ErrorKind, ModelError};
use reshard_plan::PlanError;
use reshard_storage::{StorageError, without_secrets};
use reshard_strategy::StrategyError;
use std::fmt;

/// Result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The step of a load in which all ranks open the checkpoint.
pub const OPEN: &str = "open";

/// What went wrong, and where. Its `Debug` is the message with its causes, so a `main` that returns it prints that.
pub struct Error {
    doing: &'static str,
    url: String,
    source: StrategyError,
    whereabouts: Option<Box<Whereabouts>>,
    advice: Option<&'static str>,
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        reshard_model::write_with_causes(self, f)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        self.write(&mut text)?;
        // The store may be of another crate, and show in its errors what it was given.
        f.write_str(&without_secrets(&text))
    }
}

impl Error {
    fn write(&self, f: &mut impl fmt::Write) -> fmt::Result {
        f.write_str(self.doing)?;
        // What is done for several checkpoints has no URL.
        if !self.url.is_empty() {
            write!(f, " {}", self.url)?;
        }
        if let Some(found) = &self.whereabouts {
            write!(f, ": {}; {}", found.what(), found.hint())?;
            return match found.instead() {
                Some(instead) => write!(f, ", such as {instead}"),
                None => Ok(()),
            };
        }
        match &self.source {
            // The inner message would only repeat the URL in another form.
            StrategyError::NotACheckpoint { why, .. } => {
                write!(f, ": it is not a checkpoint: {why}")
            }
            e => write!(f, ": {e}"),
        }?;
        match self.advice {
            Some(advice) => write!(f, "; {advice}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {
    /// The source of the error that the message already contains.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(&self.source)
    }
}

impl Error {
    /// An error of an operation at a place.
    pub fn new(doing: &'static str, url: &str, source: impl Into<StrategyError>) -> Self {
        Self {
            doing,
            url: without_secrets(url).into(),
            source: source.into(),
            whereabouts: None,
            advice: None,
        }
    }

    /// With what to do about it, in the words of this crate's options.
    pub fn with_advice(self, advice: Option<&'static str>) -> Self {
        Self { advice, ..self }
    }

    /// With what lies there instead of a checkpoint.
    pub fn with_whereabouts(mut self, found: Option<Whereabouts>) -> Self {
        self.whereabouts = found.map(Box::new);
        self
    }

    /// If no checkpoint lies at the place: what lies there, and what to open instead. Only of places on this machine.
    ///
    /// ```
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let url = dir.path().join("step-1000").display().to_string();
    /// let e = reshard::blocking::Checkpoint::open(&url).unwrap_err();
    /// assert_eq!(e.whereabouts().unwrap().what(), format!("nothing lies at {url}"));
    /// ```
    pub fn whereabouts(&self) -> Option<&Whereabouts> {
        self.whereabouts.as_deref()
    }

    /// What the caller can do.
    pub fn kind(&self) -> ErrorKind {
        match self.whereabouts {
            Some(_) => ErrorKind::NotFound,
            None => self.source.kind(),
        }
    }

    /// Whether there is no checkpoint at all, so that your program may start from scratch. Don't use
    /// [`kind`](Self::kind) for this: it is the same when a checkpoint exists and lacks a key.
    ///
    /// ```
    /// use reshard::{DType, ShardedTensor, StateDict, blocking};
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let url = dir.path().join("latest").display().to_string();
    /// let mut template = StateDict::new();
    /// template.insert("weight", ShardedTensor::template("weight", DType::Float32, &[2]));
    /// match blocking::load(template, &url).map_err(reshard::Error::from) {
    ///     Ok(state) => println!("going on with {state:?}"),
    ///     Err(e) if e.is_no_checkpoint() => println!("starting anew"),
    ///     Err(e) => panic!("{e}"),
    /// }
    /// ```
    pub fn is_no_checkpoint(&self) -> bool {
        if self.whereabouts.is_some() {
            return true;
        }
        match &self.source {
            StrategyError::NotACheckpoint { .. }
            | StrategyError::Storage(StorageError::NotFound { .. }) => true,
            // Until a checkpoint is open, nothing else can be missing.
            StrategyError::Comm(CommError::Ranks { step: OPEN, causes }) => {
                causes.values().all(|c| c.kind == ErrorKind::NotFound)
            }
            _ => false,
        }
    }

    /// The checkpoint in question.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The error itself.
    pub fn strategy_error(&self) -> &StrategyError {
        &self.source
    }
}

/// Attaches the operation and the URL of the checkpoint.
pub trait Context<T> {
    /// Says what was done, and where.
    ///
    /// # Errors
    /// That of `self`.
    fn during(self, doing: &'static str, url: &str) -> Result<T>;
}

macro_rules! context {
    ($($e:ty),*) => {$(
        impl<T> Context<T> for Result<T, $e> {
            fn during(self, doing: &'static str, url: &str) -> Result<T> {
                self.map_err(|e| Error::new(doing, url, e))
            }
        }
    )*};
}
context!(
    StrategyError,
    StorageError,
    ModelError,
    PlanError,
    CommError
);

/// An error, and what its operation had until then: the template of a load, the report of a prune.
pub struct ErrorWith<T> {
    error: Error,
    rest: Box<T>,
}

impl<T> ErrorWith<T> {
    /// Both together.
    pub fn new(error: Error, rest: T) -> Self {
        Self {
            error,
            rest: Box::new(rest),
        }
    }

    /// Why it failed.
    pub fn error(&self) -> &Error {
        &self.error
    }

    /// As [`Error::kind`].
    pub fn kind(&self) -> ErrorKind {
        self.error.kind()
    }

    /// As [`Error::is_no_checkpoint`].
    pub fn is_no_checkpoint(&self) -> bool {
        self.error.is_no_checkpoint()
    }

    /// What the operation had.
    pub fn rest(&self) -> &T {
        &self.rest
    }

    /// The error, and what the operation had.
    pub fn into_parts(self) -> (Error, T) {
        (self.error, *self.rest)
    }
}

impl<T> fmt::Debug for ErrorWith<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.error, f)
    }
}

impl<T> fmt::Display for ErrorWith<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.error, f)
    }
}

impl<T> std::error::Error for ErrorWith<T> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(&self.error)
    }
}

impl<T> From<ErrorWith<T>> for Error {
    fn from(e: ErrorWith<T>) -> Self {
        e.error
    }
}
