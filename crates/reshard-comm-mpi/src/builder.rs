use crate::{
    MpiError, MpiGroup, Result,
    raw::Handle,
    wire::PART_LIMIT,
    worker::{Settings, Source, Worker},
};
use mpi::{Threading, environment, ffi::MPI_Comm, raw::AsRaw};
use reshard_comm::ProcessGroup;
use std::time::Duration;

/// Settings of an [`MpiGroup`]. Made by [`MpiGroup::builder`].
#[derive(Clone, Debug)]
pub struct Builder {
    deadline: Duration,
    patience: Duration,
    message_limit: u64,
    part_limit: usize,
}

impl MpiGroup {
    /// Initializes MPI, and makes the group of all processes that `mpirun` or `srun` started. A process without a launcher
    /// is a job of one. The last drop of the group finalizes MPI.
    ///
    /// It can be called once in a process, and only if nothing else in the process uses MPI. The thread of the group
    /// initializes MPI, so it is the main thread for MPI, and `MPI_THREAD_FUNNELED` is enough.
    ///
    /// # Collective
    /// All processes of the job call it. It blocks until they have.
    ///
    /// # Errors
    /// [`MpiError::Initialized`], [`MpiError::Finalized`]; [`MpiError::Launcher`] if the launcher is that of another MPI library;
    /// [`MpiError::Missing`] at the [`deadline`](Builder::deadline); [`MpiError::Mpi`], [`MpiError::Thread`].
    pub fn init() -> Result<Self> {
        Self::builder().init()
    }

    /// Makes a group of the processes of a communicator of the job, for example `universe.world()`. It works on a
    /// duplicate, so its messages never meet those of the job.
    ///
    /// The job must have initialized MPI with `MPI_THREAD_MULTIPLE`, because the thread of the group calls MPI beside the
    /// job's own threads.
    ///
    /// # Collective
    /// All processes of the communicator call it. It blocks until they have.
    ///
    /// # Errors
    /// [`MpiError::Threads`], [`MpiError::NotInitialized`], [`MpiError::Finalized`]; [`MpiError::Setting`] for an
    /// inter-communicator; [`MpiError::Missing`] at the [`deadline`](Builder::deadline); [`MpiError::Mpi`],
    /// [`MpiError::Thread`].
    pub fn from_communicator(communicator: &impl AsRaw<Raw = MPI_Comm>) -> Result<Self> {
        Self::builder().from_communicator(communicator)
    }

    /// Settings to change, with their defaults.
    pub fn builder() -> Builder {
        Builder {
            deadline: Duration::from_secs(300),
            patience: Duration::from_secs(30 * 60),
            message_limit: 1 << 40,
            part_limit: PART_LIMIT,
        }
    }
}

impl Builder {
    /// How long all processes have to make the group: 5 minutes, unless set. The processes that came get
    /// [`MpiError::Missing`] then.
    #[must_use]
    pub fn deadline(self, deadline: Duration) -> Self {
        Self { deadline, ..self }
    }

    /// How long the last drop waits for the other ranks to leave: 30 minutes, unless set. See
    /// [`MpiGroup`](MpiGroup#leaving) for what happens then.
    #[must_use]
    pub fn patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// How many bytes one message may have: 1 TiB, unless set. A rank that sends more is lost for the others.
    #[must_use]
    pub fn message_limit(self, message_limit: u64) -> Self {
        Self {
            message_limit,
            ..self
        }
    }

    /// How many bytes go to MPI at a time: 1 GiB, unless set, and at most that. Longer messages go in parts. Ranks may
    /// differ in it.
    #[must_use]
    pub fn part_limit(self, part_limit: usize) -> Self {
        Self { part_limit, ..self }
    }

    /// Like [`MpiGroup::init`].
    ///
    /// # Errors
    /// Those of [`MpiGroup::init`]; [`MpiError::Setting`].
    pub fn init(self) -> Result<MpiGroup> {
        if environment::is_finalized() {
            return Err(MpiError::Finalized);
        }
        if environment::is_initialized() {
            return Err(MpiError::Initialized);
        }
        let group = self.start(Source::Init)?;
        match launched().filter(|_| group.size() == 1) {
            Some((variable, ranks)) => Err(MpiError::Launcher { variable, ranks }),
            None => Ok(group),
        }
    }

    /// Like [`MpiGroup::from_communicator`].
    ///
    /// # Errors
    /// Those of [`MpiGroup::from_communicator`]; [`MpiError::Setting`].
    pub fn from_communicator(self, communicator: &impl AsRaw<Raw = MPI_Comm>) -> Result<MpiGroup> {
        if environment::is_finalized() {
            return Err(MpiError::Finalized);
        }
        if !environment::is_initialized() {
            return Err(MpiError::NotInitialized);
        }
        let granted = match environment::threading_support() {
            Threading::Multiple => return self.start(Source::Job(Handle::of(communicator))),
            Threading::Serialized => "MPI_THREAD_SERIALIZED",
            Threading::Funneled => "MPI_THREAD_FUNNELED",
            Threading::Single => "MPI_THREAD_SINGLE",
        };
        Err(MpiError::Threads { granted })
    }

    fn start(self, source: Source) -> Result<MpiGroup> {
        if !(1..=PART_LIMIT).contains(&self.part_limit) {
            return Err(MpiError::Setting(format!(
                "the limit of parts is {} bytes, and must be 1 byte to 1 GiB",
                self.part_limit
            )));
        }
        let settings = Settings {
            deadline: self.deadline,
            message_limit: self.message_limit,
            part_limit: self.part_limit,
        };
        let worker = Worker::start(source, settings)?;
        Ok(MpiGroup::whole(worker, self.patience))
    }
}

/// How many processes a launcher says that it has started, if it is more than one; and the variable that says so.
fn launched() -> Option<(&'static str, u32)> {
    let more = |variable| {
        let ranks = std::env::var(variable).ok()?.parse().ok()?;
        (ranks > 1).then_some((variable, ranks))
    };
    ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"]
        .into_iter()
        .find_map(more)
}
