//! What can go wrong, what the program's exit code says of it, and what to do.

use crate::table::{shown, shown_lines};
use reshard::{
    ErrorKind, LoadError, Registry, Whereabouts,
    storage::StorageError,
    strategy::{LimitOption, StrategyError, with_sources},
};
use reshard_convert::ConvertError;
use std::{collections::BTreeSet, error::Error, io};

pub(crate) type Result<T, E = CliError> = std::result::Result<T, E>;

/// Done, or sound.
pub(crate) const OK: u8 = 0;
/// The checkpoint is damaged.
pub(crate) const DAMAGED: u8 = 1;
/// The two checkpoints of `diff` differ.
pub(crate) const DIFFERENT: u8 = 1;
/// I/O, what is not understood or beyond a limit, or a request that can't be carried out.
pub(crate) const FAILED: u8 = 2;
/// No checkpoint lies there.
pub(crate) const NO_CHECKPOINT: u8 = 3;

#[derive(Debug, thiserror::Error)]
pub(crate) enum CliError {
    /// The library's.
    #[error(transparent)]
    Reshard(reshard::Error),
    /// The library's, of a registry or a store.
    #[error(transparent)]
    Strategy(#[from] StrategyError),
    /// Output, or temporary files.
    #[error("{what}: {source}")]
    Io {
        /// What was being done.
        what: &'static str,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// Something else lies where a checkpoint should, in the words of a command line.
    #[error("{}", found.what())]
    Elsewhere {
        /// What the library found.
        found: Box<Whereabouts>,
        /// What to do.
        hint: String,
    },
    /// What this program finds itself.
    #[error("{what}")]
    Told {
        /// What is wrong.
        what: String,
        /// What to do.
        hint: String,
        /// Exit code.
        code: u8,
    },
    /// The same, with lines of a file that the user gave.
    #[error("{what}")]
    Quoted {
        /// What is wrong; its lines stay lines.
        what: String,
        /// What to do.
        hint: String,
    },
}

/// Errors of writing results.
impl From<io::Error> for CliError {
    fn from(source: io::Error) -> Self {
        Self::Io {
            what: "the output can't be written",
            source,
        }
    }
}

impl From<serde_json::Error> for CliError {
    fn from(e: serde_json::Error) -> Self {
        io::Error::from(e).into()
    }
}

impl From<reshard::Error> for CliError {
    fn from(e: reshard::Error) -> Self {
        let Some(found) = e.whereabouts() else {
            return Self::Reshard(e);
        };
        let hint = match found.instead() {
            Some(instead) => format!("{}, such as {instead}", found.hint()),
            None => found.hint().to_owned(),
        };
        Self::Elsewhere {
            found: Box::new(found.clone()),
            hint,
        }
    }
}

impl From<LoadError> for CliError {
    fn from(e: LoadError) -> Self {
        reshard::Error::from(e).into()
    }
}

/// The exit code after the results were printed. Whoever closed the pipe still gets the right one.
pub(crate) fn printed(results: Result<()>, code: u8) -> Result<u8> {
    match results {
        Err(e) if e.is_closed_pipe() => Ok(code),
        results => results.map(|()| code),
    }
}

impl CliError {
    pub(crate) fn told(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Told {
            what: what.into(),
            hint: hint.into(),
            code: FAILED,
        }
    }

    pub(crate) fn damaged(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Told {
            what: what.into(),
            hint: hint.into(),
            code: DAMAGED,
        }
    }

    /// What `stats` and `diff` of the library return.
    pub(crate) fn from_analysis(e: ConvertError) -> Self {
        match e {
            ConvertError::Read(e) => e.into(),
            ConvertError::Failed(e) => e.into(),
            e => Self::told(e.to_string(), ""),
        }
    }

    /// With the crate to which a bug is to be reported, if the program links strategies of other crates than reshard's.
    pub(crate) fn with_reporter(self, registry: &Registry) -> Self {
        let others = registry.iter().filter(|r| !is_own(r.origin));
        let others: BTreeSet<String> = others
            .map(|r| format!("{} {} ({})", r.origin, r.origin_version, r.backend))
            .collect();
        if self.kind() != Some(ErrorKind::Internal) || others.is_empty() {
            return self;
        }
        let others: Vec<String> = others.into_iter().collect();
        let hint = format!(
            "if the checkpoint is of a format of another crate, the bug may be there, so report it to that crate: {}",
            others.join(", ")
        );
        let (what, code) = (self.message(), self.exit_code());
        Self::Told { what, hint, code }
    }

    /// Somebody who read the output, such as `head`, has enough.
    pub(crate) fn is_closed_pipe(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::BrokenPipe)
    }

    pub(crate) fn kind(&self) -> Option<ErrorKind> {
        match self {
            Self::Reshard(e) => Some(e.kind()),
            Self::Strategy(e) => Some(e.kind()),
            Self::Io { .. } => Some(ErrorKind::Unavailable),
            Self::Elsewhere { .. } | Self::Told { .. } | Self::Quoted { .. } => None,
        }
    }

    fn is_no_checkpoint(&self) -> bool {
        match self {
            Self::Elsewhere { .. } => true,
            Self::Reshard(e) => e.is_no_checkpoint(),
            Self::Strategy(e) => matches!(e, StrategyError::NotACheckpoint { .. }),
            _ => false,
        }
    }

    fn strategy(&self) -> Option<&StrategyError> {
        match self {
            Self::Reshard(e) => Some(e.strategy_error()),
            Self::Strategy(e) => Some(e),
            _ => None,
        }
    }

    pub(crate) fn exit_code(&self) -> u8 {
        match (self, self.kind()) {
            (Self::Told { code, .. }, _) => *code,
            (_, Some(ErrorKind::Corrupt)) => DAMAGED,
            _ if self.is_no_checkpoint() => NO_CHECKPOINT,
            _ => FAILED,
        }
    }

    /// What the user can do, if the message does not say it: otherwise empty.
    pub(crate) fn hint(&self) -> &str {
        // What is known most precisely speaks first: the command itself, then the format, the store, and the kind at
        // last.
        if let Self::Elsewhere { hint, .. } | Self::Told { hint, .. } | Self::Quoted { hint, .. } =
            self
        {
            return hint;
        }
        match self.strategy() {
            Some(StrategyError::Limit { option, .. }) => return raise(*option),
            Some(StrategyError::Ambiguous { .. }) => {
                return "choose one of them with --format NAME";
            }
            Some(StrategyError::Unsupported { what, .. }) => {
                if let Some(hint) = instead(what) {
                    return hint;
                }
            }
            Some(StrategyError::Unknown { .. }) => return LINKED,
            Some(StrategyError::Storage(e)) => {
                if let Some(hint) = of_storage(e) {
                    return hint;
                }
            }
            _ => {}
        }
        match self.kind() {
            Some(ErrorKind::NotFound) if self.is_no_checkpoint() => {
                "check the path (`ls -a` shows what lies there); `reshard plugins` lists the formats that this program knows"
            }
            Some(ErrorKind::NotFound) => "`reshard ls` lists the keys that are stored",
            Some(ErrorKind::Exists) => {
                "choose another place, or replace what lies there with --overwrite"
            }
            Some(ErrorKind::Corrupt) => {
                "`reshard verify` lists all that is damaged; restore the files from a copy"
            }
            Some(ErrorKind::Limit) => RAISE,
            _ => "",
        }
    }

    /// What is wrong, in a word for programs.
    pub(crate) fn word(&self) -> &'static str {
        match self.exit_code() {
            DAMAGED => return "corrupt",
            NO_CHECKPOINT => return "not_a_checkpoint",
            _ => {}
        }
        match self.kind() {
            Some(ErrorKind::NotFound) => "not_found",
            Some(ErrorKind::Exists) => "exists",
            Some(ErrorKind::Unsupported) => "unsupported",
            Some(ErrorKind::Unavailable) => "unavailable",
            Some(ErrorKind::PeerFailed | ErrorKind::Internal) => "internal",
            _ => "invalid",
        }
    }

    /// The whole chain, without what an error and its source both say.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Quoted { what, .. } => shown_lines(what),
            _ => shown(&self.message()).into_owned(),
        }
    }

    /// The same, for what escapes it itself.
    pub(crate) fn message(&self) -> String {
        chain(self)
    }
}

/// Whether a crate is one of reshard's.
fn is_own(origin: &str) -> bool {
    origin == "reshard" || origin.starts_with("reshard-")
}

/// What to do about something that asks for too much.
pub(crate) const RAISE: &str = "if you trust the checkpoint, raise the named limit with --max-memory SIZE, --max-whole SIZE, --max-kept SIZE or --allow-repeated";

/// What to do if the process has too little memory.
pub(crate) const MORE_MEMORY: &str = "give the process more memory: raise `ulimit -v`, or the memory limit of its cgroup or container";

/// For a name that is not linked.
const LINKED: &str =
    "`reshard plugins` lists the formats, stores and policies that this program knows";

/// What to do about something that a format does not support, by the beginning of its name.
fn instead(what: &str) -> Option<&'static str> {
    const INSTEAD: [(&str, &str); 3] = [
        (
            "a checkpoint of ",
            "--format or --dequantize asks for another format than that of the checkpoint; leave it out; --to of `convert` names the format to write",
        ),
        (
            "a sharding policy",
            "leave out --max-shard-size or --policy, or give another --to, such as torch_dist",
        ),
        (
            "removing sharded tensors",
            "`reshard convert` with --key writes a copy without them",
        ),
    ];
    let known = INSTEAD.iter().find(|(known, _)| what.starts_with(known));
    known.map(|(_, hint)| *hint)
}

/// What to do about an error of a place.
fn of_storage(e: &StorageError) -> Option<&'static str> {
    Some(match e {
        StorageError::UnknownScheme { .. } => LINKED,
        StorageError::Replaced { .. } => {
            "read it again when nothing writes there; nothing says that it is damaged"
        }
        StorageError::Displaced { .. } => {
            "rename the directories as the message says; nothing is lost, and `reshard verify` tells which one is whole"
        }
        StorageError::NotCarried { .. } => {
            "the new checkpoint is in its place; move away what has that name, and `reshard prune` moves the files that were kept"
        }
        _ => return None,
    })
}

fn raise(option: LimitOption) -> &'static str {
    match option {
        LimitOption::MaxMemory => {
            "if you trust the checkpoint, raise that limit with --max-memory SIZE"
        }
        LimitOption::MaxWhole => {
            "if you trust the checkpoint, raise that limit with --max-whole SIZE"
        }
        LimitOption::MaxKept => "if you have the memory, raise that limit with --max-kept SIZE",
        LimitOption::Process => MORE_MEMORY,
        LimitOption::AllowRepeated => "if you trust the checkpoint, read it with --allow-repeated",
        _ => RAISE,
    }
}

/// Exit code of two findings: damage comes before all else.
pub(crate) fn worse(a: u8, b: u8) -> u8 {
    if a == DAMAGED || b == DAMAGED {
        DAMAGED
    } else {
        a.max(b)
    }
}

/// An error with its sources, without repetitions.
pub(crate) fn chain(e: &dyn Error) -> String {
    with_sources(e.to_string(), e)
}

#[cfg(test)]
mod tests {
    use super::*;
    use reshard::strategy::{Make, Registration};

    #[test]
    fn a_bug_that_may_be_of_another_crate_is_reported_there() {
        let bug = || CliError::from(StrategyError::Internal("no receipt".into()));
        let own = Registry::linked().unwrap();
        assert_eq!(bug().with_reporter(&own).hint(), "");
        let mut with_other = own;
        let make: fn(serde_json::Value) -> _ =
            |_| Err(StrategyError::Invalid("it is a test".into()));
        with_other
            .register(Registration {
                backend: "theirs",
                version: 1,
                origin: "their-format",
                origin_version: "2.3.4",
                make: Make::LoadSharded(make),
            })
            .unwrap();
        let told = bug().with_reporter(&with_other);
        assert!(
            told.hint().contains("their-format 2.3.4 (theirs)"),
            "{}",
            told.hint()
        );
        assert_eq!(told.exit_code(), FAILED);
        // What is no bug is not theirs.
        let other = CliError::from(StrategyError::Invalid("no".into()));
        assert_eq!(other.with_reporter(&with_other).hint(), "");
    }
}
