use reshard_comm::Rank;
use reshard_model::ErrorKind;
use std::io;

/// What a call that makes a group returns.
pub type Result<T, E = TcpError> = std::result::Result<T, E>;

/// Why a group can't be made. Errors of a group that exists are [`CommError`](reshard_comm::CommError).
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum TcpError {
    /// An environment variable is missing or wrong.
    #[error("the environment variable {name} {why}")]
    Variable {
        /// The variable.
        name: &'static str,
        /// What is wrong with it, and what it should be.
        why: String,
    },
    /// A setting of the builder is missing or wrong.
    #[error("{0}")]
    Setting(String),
    /// The store can't be reached, or it answers wrongly.
    #[error("the store at {address} failed at `{doing}`")]
    Store {
        /// Where the store is.
        address: String,
        /// What this rank wanted from it.
        doing: String,
        /// What happened.
        source: io::Error,
    },
    /// Some ranks did not come to the meeting in time.
    #[error(
        "{} did not come to the store at {address} within {seconds} s; look whether they started, and whether \
         all processes have different values of RANK and the same WORLD_SIZE",
        Rank::list(ranks)
    )]
    Missing {
        /// Where the store is.
        address: String,
        /// Which ranks are missing.
        ranks: Vec<Rank>,
        /// How long this rank waited.
        seconds: f64,
    },
    /// The store belongs to another job that is still running.
    #[error(
        "the store at {address} is used by another job: {}, and {}; give each job a port of its own",
        job("its", theirs.as_deref()),
        job("this process's", own.as_deref())
    )]
    OtherJob {
        /// Where the store is.
        address: String,
        /// The job id of the ranks at the store. `None` if they have none.
        theirs: Option<String>,
        /// The job id of this process.
        own: Option<String>,
    },
    /// Two running processes claim the same rank. Both groups fail, because nobody knows which other ranks belong to which of them.
    #[error("{}", rank_taken(address, *rank))]
    RankTaken {
        /// Where the store is.
        address: String,
        /// The rank.
        rank: Rank,
    },
    /// The system refused something: a port, a thread, random bytes.
    #[error("{doing} failed")]
    Io {
        /// What this rank wanted.
        doing: &'static str,
        /// What happened.
        source: io::Error,
    },
}

/// The message with its causes.
impl std::fmt::Debug for TcpError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        reshard_model::write_with_causes(self, f)
    }
}

impl TcpError {
    /// What the caller can do.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Variable { .. }
            | Self::Setting(_)
            | Self::OtherJob { .. }
            | Self::RankTaken { .. } => ErrorKind::Invalid,
            Self::Store { .. } | Self::Io { .. } => ErrorKind::Unavailable,
            Self::Missing { .. } => ErrorKind::PeerFailed,
        }
    }

    pub(crate) fn io(doing: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { doing, source }
    }
}

fn job(whose: &str, id: Option<&str>) -> String {
    match id {
        Some(id) => format!("{whose} job id is `{id}`"),
        None => format!("{whose} job id is not set"),
    }
}

/// The message of [`TcpError::RankTaken`], which the ranks of a working group get, too.
pub(crate) fn rank_taken(address: &str, rank: Rank) -> String {
    format!(
        "two running processes are rank {rank} at the store at {address}; it may be shared by two jobs, so give each job a port of its own \
         and an id (RESHARD_JOB_ID), or two processes may have the same RANK"
    )
}
