use reshard_model::ErrorKind;
use serde::{Deserialize, Serialize};
use std::{any::Any, error::Error, fmt, iter::successors};

/// Why a rank failed, in a form that can be sent to other ranks. A typed error can't be sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cause {
    /// What the caller can do about it.
    pub kind: ErrorKind,
    /// What happened.
    pub message: String,
    /// The messages of its sources, from the nearest source to the root.
    pub chain: Vec<String>,
}

impl Cause {
    /// A cause without sources.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            chain: Vec::new(),
        }
    }

    /// Takes the message of `error` and those of its sources.
    pub fn from_error(kind: ErrorKind, error: &dyn Error) -> Self {
        const DEEPEST: usize = 32; // an error that is its own source must not hang us
        let chain = successors(error.source(), |&e| e.source())
            .take(DEEPEST)
            .map(ToString::to_string)
            .collect();
        Self {
            kind,
            message: error.to_string(),
            chain,
        }
    }

    /// Takes the message of a panic.
    pub fn from_panic(payload: &(dyn Any + Send)) -> Self {
        let said = payload
            .downcast_ref::<&str>()
            .copied()
            .or_else(|| payload.downcast_ref::<String>().map(|s| &**s));
        Self::new(
            ErrorKind::Internal,
            format!("panicked: {}", said.unwrap_or("(no message)")),
        )
    }
}

/// Prints the message, then each source that adds something new.
impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        let mut said = &self.message;
        for why in self.chain.iter().filter(|why| !why.is_empty()) {
            if !said.contains(why.as_str()) {
                write!(f, ": {why}")?;
                said = why;
            }
        }
        Ok(())
    }
}

impl Error for Cause {}
