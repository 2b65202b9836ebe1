use crate::{Cause, Rank, rank::Ranks};
use reshard_model::ErrorKind;
use std::{collections::BTreeMap, fmt};

/// What a collective returns.
pub type Result<T, E = CommError> = std::result::Result<T, E>;

/// How a step that all ranks take together can fail.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum CommError {
    /// Some ranks failed in their part of the step. Every rank gets this same error, and the group stays usable.
    #[error("step `{step}` failed on {}", Causes(causes))]
    Ranks {
        /// The step.
        step: &'static str,
        /// Why, for each rank that failed.
        causes: BTreeMap<Rank, Cause>,
    },
    /// A rank left: it panicked, dropped a collective, or called `abort`. The group can't be used any more.
    #[error("the process group is broken: {0}; make a new group to go on")]
    Broken(Cause),
    /// Ranks called different methods, or one rank passed wrong arguments. The group can't be used any more.
    #[error("ranks are out of step: {0}; all ranks must make the same calls in the same order")]
    OutOfStep(String),
    /// Some ranks did not answer in time. The group can't be used any more. Ranks that did not reach the deadline
    /// themselves get [`Broken`](Self::Broken) with the same text.
    #[error("step `{step}`: no answer within {seconds} s from {}", Silent(silent))]
    Deadline {
        /// The step.
        step: &'static str,
        /// The deadline.
        seconds: f64,
        /// Which ranks were missing, as far as the transport knows.
        silent: Vec<Rank>,
    },
}

/// The message with its causes.
impl fmt::Debug for CommError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        reshard_model::write_with_causes(self, f)
    }
}

impl CommError {
    /// What the caller can do: the kind that the causes share, without causes that only result from other ranks'
    /// failures. If one rank found damage, the kind is damage.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Ranks { causes, .. } => {
                let mut kinds = causes
                    .values()
                    .map(|c| c.kind)
                    .filter(|k| *k != ErrorKind::PeerFailed);
                match kinds.next() {
                    Some(first) if kinds.all(|k| k == first) => first,
                    Some(_) if causes.values().any(|c| c.kind == ErrorKind::Corrupt) => {
                        ErrorKind::Corrupt
                    }
                    _ => ErrorKind::PeerFailed,
                }
            }
            Self::Broken(_) | Self::Deadline { .. } => ErrorKind::PeerFailed,
            Self::OutOfStep(_) => ErrorKind::Invalid,
        }
    }

    /// The cause to send to the other ranks.
    pub fn to_cause(&self) -> Cause {
        match self {
            Self::Broken(cause) => cause.clone(),
            other => Cause::new(other.kind(), other.to_string()),
        }
    }

    pub(crate) fn rank_left(rank: Rank, what: impl fmt::Display) -> Self {
        let why = if std::thread::panicking() {
            ", because it panicked"
        } else {
            ""
        };
        Self::Broken(Cause::new(
            ErrorKind::PeerFailed,
            format!("rank {rank} left {what}{why}"),
        ))
    }
}

struct Causes<'a>(&'a BTreeMap<Rank, Cause>);

impl fmt::Display for Causes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 8;
        write!(
            f,
            "{} rank{}",
            self.0.len(),
            if self.0.len() == 1 { "" } else { "s" }
        )?;
        // Ranks that failed for the same reason are named together, so that the reason is told once.
        let mut told: Vec<(String, Vec<Rank>)> = Vec::new();
        let mut more = 0;
        for (rank, cause) in self.0 {
            let why = cause.to_string();
            match told.iter().position(|(known, _)| *known == why) {
                Some(at) => told[at].1.push(*rank),
                None if told.len() < SHOWN => told.push((why, vec![*rank])),
                None => more += 1,
            }
        }
        for (i, (why, ranks)) in told.iter().enumerate() {
            write!(
                f,
                "{} {}: {why}",
                if i == 0 { ":" } else { ";" },
                Ranks(ranks)
            )?;
        }
        match more {
            0 => Ok(()),
            more => write!(f, "; and {more} more"),
        }
    }
}

pub(crate) struct Silent<'a>(pub(crate) &'a [Rank]);

impl fmt::Display for Silent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            [] => f.write_str("the other ranks"),
            some => Ranks(some).fmt(f),
        }
    }
}
