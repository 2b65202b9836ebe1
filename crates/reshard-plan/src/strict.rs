//! What a load does with keys that only the template or only the checkpoint has.

use crate::Entry;
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// Megatron Core's choices for keys that only one side has.
///
/// Megatron calls a key that is asked for but not stored *unexpected*, and a stored key that no rank asks for *missing*; PyTorch's words
/// are the reverse. Only these names and their strings are Megatron's. Everywhere else such keys are called *not stored* and *not
/// requested*: [`LoadPlan::not_stored`](crate::LoadPlan::not_stored) has those of one rank,
/// [`LoadPlan::not_requested`](crate::LoadPlan::not_requested) those of all ranks together.
///
/// A leaf that is not stored keeps its contents if that is no error. If it has no data, the result lacks it.
///
/// ```
/// use reshard_plan::StrictHandling;
/// assert_eq!("log_all".parse(), Ok(StrictHandling::LogAll));
/// assert_eq!(StrictHandling::default().to_string(), "assume_ok_unexpected");
/// assert!("strict".parse::<StrictHandling>().unwrap_err().to_string().contains("raise_all"));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StrictHandling {
    /// Keys that are not stored are an error, found when they are planned. Nobody looks for keys that are not requested.
    #[default]
    AssumeOkUnexpected,
    /// Keys that are not stored are left alone and logged. Nobody looks for keys that are not requested.
    LogUnexpected,
    /// Both are left alone and logged.
    LogAll,
    /// As [`AssumeOkUnexpected`](Self::AssumeOkUnexpected). In Megatron Core these differ in who finds the error.
    RaiseUnexpected,
    /// Both are errors. Keys that are not stored are told first.
    RaiseAll,
    /// Keys that are not stored are left alone and reported. Nobody looks for keys that are not requested.
    ReturnUnexpected,
    /// Both are left alone and reported.
    ReturnAll,
    /// Keys that are not stored are left alone. Nobody looks for keys that are not requested.
    IgnoreAll,
}

impl StrictHandling {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::AssumeOkUnexpected,
        Self::LogUnexpected,
        Self::LogAll,
        Self::RaiseUnexpected,
        Self::RaiseAll,
        Self::ReturnUnexpected,
        Self::ReturnAll,
        Self::IgnoreAll,
    ];

    /// Megatron Core's string.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::AssumeOkUnexpected => "assume_ok_unexpected",
            Self::LogUnexpected => "log_unexpected",
            Self::LogAll => "log_all",
            Self::RaiseUnexpected => "raise_unexpected",
            Self::RaiseAll => "raise_all",
            Self::ReturnUnexpected => "return_unexpected",
            Self::ReturnAll => "return_all",
            Self::IgnoreAll => "ignore_all",
        }
    }

    /// Whether a key that is asked for, but not stored, makes a load fail.
    pub fn needs_stored(self) -> bool {
        use StrictHandling::{AssumeOkUnexpected, RaiseAll, RaiseUnexpected};
        matches!(self, AssumeOkUnexpected | RaiseUnexpected | RaiseAll)
    }

    /// Whether a load looks for stored keys that no rank asks for.
    pub fn finds_not_requested(self) -> bool {
        matches!(self, Self::LogAll | Self::RaiseAll | Self::ReturnAll)
    }

    /// Whether what is left alone is logged.
    pub fn logs(self) -> bool {
        matches!(self, Self::LogUnexpected | Self::LogAll)
    }
}

impl fmt::Display for StrictHandling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// What a load need not ask for, because somebody else of the same load reads it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Elsewhere {
    /// All tensors.
    pub tensors: bool,
    /// All objects.
    pub objects: bool,
    /// The tensors and objects of these keys.
    pub keys: Vec<Box<str>>,
}

impl Elsewhere {
    /// Nothing.
    pub const NOTHING: &'static Self = &Self {
        tensors: false,
        objects: false,
        keys: Vec::new(),
    };

    /// Whether somebody else reads this.
    pub fn has(&self, entry: &Entry<'_>) -> bool {
        let kind = match entry {
            Entry::Tensor(_) => self.tensors,
            Entry::Object(..) => self.objects,
        };
        kind || self.has_key(entry.key())
    }

    /// Whether somebody else reads the item of this key, whatever it is.
    pub fn has_key(&self, key: &str) -> bool {
        self.keys.iter().any(|k| **k == *key)
    }
}

/// A string that is none of [`StrictHandling`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no strictness {0:?}; it is one of {all}", all = StrictHandling::ALL.map(StrictHandling::as_str).join(", "))]
pub struct UnknownStrictness(String);

impl FromStr for StrictHandling {
    type Err = UnknownStrictness;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|strict| strict.as_str() == s);
        found.ok_or_else(|| UnknownStrictness(s.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_its_string() {
        for strict in StrictHandling::ALL {
            assert_eq!(strict.as_str().parse(), Ok(strict));
            let bytes = postcard::to_allocvec(&strict).unwrap();
            assert_eq!(postcard::from_bytes(&bytes), Ok(strict));
        }
        let e = "RAISE_ALL".parse::<StrictHandling>().unwrap_err();
        insta::assert_snapshot!(e, @r#"there is no strictness "RAISE_ALL"; it is one of assume_ok_unexpected, log_unexpected, log_all, raise_unexpected, raise_all, return_unexpected, return_all, ignore_all"#);
    }
}
