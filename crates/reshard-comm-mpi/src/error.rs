use reshard_model::ErrorKind;

/// What a call that makes a group returns.
pub type Result<T, E = MpiError> = std::result::Result<T, E>;

/// Why a group can't be made. Errors of a group that exists are [`CommError`](reshard_comm::CommError).
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum MpiError {
    /// This process has initialized MPI before.
    #[error(
        "MPI is initialized already; hand over the job's communicator to MpiGroup::from_communicator, or split the \
         group that exists"
    )]
    Initialized,
    /// The job has a communicator, but MPI is not initialized.
    #[error("MPI is not initialized; initialize it first, or call MpiGroup::init")]
    NotInitialized,
    /// MPI was finalized. No process can use it again.
    #[error(
        "MPI is finalized, and a process can't initialize it again; make the group earlier and keep it"
    )]
    Finalized,
    /// The job initialized MPI for fewer threads than it needs.
    #[error(
        "MPI was initialized with thread level {granted}, but a thread of the group calls it beside the job's own \
         threads; initialize it with MPI_THREAD_MULTIPLE (in Rust: initialize_with_threading(Threading::Multiple)), or \
         use another MPI library if this one does not grant it"
    )]
    Threads {
        /// The level that the MPI library granted.
        granted: &'static str,
    },
    /// MPI takes this process for a job of its own, but a launcher has started it with others.
    #[error(
        "MPI says that this process is alone, but a launcher has started {ranks} ({variable}); start the program with the \
         launcher of the MPI library that it was built against"
    )]
    Launcher {
        /// The variable of the launcher.
        variable: &'static str,
        /// What it says.
        ranks: u32,
    },
    /// A setting of the builder, or the communicator, is wrong.
    #[error("{0}")]
    Setting(String),
    /// Some processes did not come in time.
    #[error(
        "not all processes of the job made the group within {seconds} s; look whether all of them call it, and whether \
         mpirun and this program use the same MPI library"
    )]
    Missing {
        /// How long this process waited.
        seconds: f64,
    },
    /// The MPI library refused something.
    #[error("MPI failed at `{doing}`: {message}")]
    Mpi {
        /// The function.
        doing: &'static str,
        /// What the library says about it.
        message: String,
    },
    /// The system starts no thread.
    #[error("starting the thread that calls MPI failed")]
    Thread(#[source] std::io::Error),
}

/// The message with its causes.
impl std::fmt::Debug for MpiError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        reshard_model::write_with_causes(self, f)
    }
}

impl MpiError {
    /// What the caller can do.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Initialized
            | Self::NotInitialized
            | Self::Finalized
            | Self::Threads { .. }
            | Self::Launcher { .. }
            | Self::Setting(_) => ErrorKind::Invalid,
            Self::Missing { .. } => ErrorKind::PeerFailed,
            Self::Mpi { .. } | Self::Thread(_) => ErrorKind::Unavailable,
        }
    }
}
