use crate::{
    Result, TcpError, TcpGroup,
    connection::Watch,
    files,
    gate::Gate,
    group::Node,
    handshake::{Process, Token},
    listen,
    meet::{Guest, meet},
    store::{StoreClient, StoreServer, wake_listener},
    tasks::{self, Job},
};
use reshard_comm::mesh::{Limit, Mesh};
use std::{
    ffi::OsString,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs},
    sync::Arc,
    time::Duration,
};

/// Who serves the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Serve {
    /// Rank 0 looks whether somebody serves a store at the master's address. If nobody listens there, rank 0 serves one.
    /// The other ranks wait until there is one.
    #[default]
    Auto,
    /// Rank 0 serves it. It is an error if somebody else does.
    Rank0,
    /// Somebody else serves it, for example torchrun.
    Nobody,
}

/// Settings of a [`TcpGroup`]. Made by [`TcpGroup::builder`].
#[derive(Clone, Debug, derive_setters::Setters)]
#[setters(generate = false)]
pub struct Builder {
    pub(crate) rank: Option<u32>,
    pub(crate) size: Option<u32>,
    pub(crate) master: Option<(String, u16)>,
    /// Tells groups apart that meet at the same store at the same time. All ranks of a group give the same name. By
    /// default it is `default`.
    #[setters(generate, into)]
    name: String,
    /// Tells attempts apart, if a job starts again and its store lives on. All ranks give the same text.
    #[setters(generate, into)]
    pub(crate) attempt: String,
    /// Sets the id of the job. All ranks of a job give the same one, and no other job that may be given the same store by accident. By default it is
    /// `RESHARD_JOB_ID`, else the run id of torchrun (`TORCHELASTIC_RUN_ID`) unless it is `none`, else `SLURM_JOB_ID`. Empty text means no id.
    ///
    /// If a running job with another id uses the store, or one without an id, [`connect`](Self::connect) fails at once, and that job is not disturbed.
    #[setters(generate, into, strip_option)]
    job_id: Option<String>,
    /// Who serves the store. By default it is [`Serve::Auto`].
    #[setters(generate)]
    pub(crate) serve: Serve,
    /// The address of this host at which this rank listens for others. By default it is the address from which this
    /// rank reaches the store, so strangers on other networks find nothing.
    #[setters(generate, strip_option)]
    bind: Option<IpAddr>,
    /// How long this rank waits until all have come, and how long it tries to connect to another one. By default it is
    /// 5 minutes.
    #[setters(generate)]
    deadline: Duration,
    /// How often a rank that has nothing to send says that it is alive. By default it is 5 seconds.
    #[setters(generate)]
    heartbeat: Duration,
    /// How long another rank may send nothing, or take nothing, before it counts as vanished. It must be at least
    /// twice the heartbeat of the other ranks. By default it is 60 seconds.
    #[setters(generate)]
    silence: Duration,
    /// How long a message of another rank may be, in bytes. By default it is 1 TiB.
    #[setters(generate)]
    message_limit: u64,
    /// How many ranks send to one rank, or get something from it, in collectives with a root; larger groups are trees. Only
    /// the setting of rank 0 counts. By default it is 64.
    #[setters(generate)]
    fan_out: u32,
}

impl TcpGroup {
    /// Settings to fill in by hand.
    pub fn builder() -> Builder {
        Builder {
            rank: None,
            size: None,
            master: None,
            name: "default".to_owned(),
            attempt: "none/0".to_owned(),
            job_id: None,
            serve: Serve::Auto,
            bind: None,
            deadline: Duration::from_secs(300),
            heartbeat: Duration::from_secs(5),
            silence: Duration::from_secs(60),
            message_limit: 1 << 40,
            fan_out: 64,
        }
    }
}

impl Builder {
    /// The number of this process, and how many there are.
    #[must_use]
    pub fn rank(self, rank: u32, size: u32) -> Self {
        Self {
            rank: Some(rank),
            size: Some(size),
            ..self
        }
    }

    /// The number of this process, if it is set.
    pub fn number(&self) -> Option<u32> {
        self.rank
    }

    /// Where the store is, or where rank 0 serves it.
    #[must_use]
    pub fn master(self, host: impl Into<String>, port: u16) -> Self {
        Self {
            master: Some((host.into(), port)),
            ..self
        }
    }

    /// The rank, the size, and the host and port of the master, if all settings have a meaning.
    fn checked(&self) -> Result<(u32, u32, String, u16)> {
        let (Some(rank), Some(size)) = (self.rank, self.size) else {
            return Err(setting("the group needs a rank and a size"));
        };
        let Some((host, port)) = self.master.clone() else {
            return Err(setting("the group needs the address of its master"));
        };
        if rank >= size {
            return Err(setting(format!("rank {rank} is not in a group of {size}")));
        }
        if self.heartbeat.is_zero() || self.silence < self.heartbeat * 2 {
            return Err(setting(
                "the heartbeat must not be 0, and at most half of the time of silence",
            ));
        }
        if self.fan_out == 0 {
            return Err(setting("at least 1 rank must be below another one"));
        }
        Ok((rank, size, host, port))
    }

    /// The id that was set, or that of the environment.
    fn id_of_job(&self) -> Option<String> {
        let own = self.job_id.clone();
        own.or_else(|| job_id(|name| std::env::var_os(name)))
            .filter(|id| !id.is_empty())
    }

    /// Makes the group. It blocks until all ranks have called it.
    ///
    /// If rank 0 serves the store, the store lives as long as its process.
    ///
    /// # Errors
    /// [`TcpError::Setting`] if a setting is missing or wrong; [`TcpError::Store`] if the store can't be reached;
    /// [`TcpError::OtherJob`] and [`TcpError::RankTaken`] if another job uses the store; [`TcpError::Missing`] names the
    /// ranks that don't come; [`TcpError::Io`] if the system refuses a port or a thread.
    pub fn connect(self) -> Result<TcpGroup> {
        let (rank, size, host, port) = self.checked()?;
        let limit = Limit::after(self.deadline);
        let serves = rank == 0 && serve(self.serve, size, &host, port, limit)?;
        let mut store = StoreClient::connect(&host, port, limit)?;
        let ip = match self.bind {
            Some(ip) => ip,
            None => store.local_ip()?,
        };
        let listener =
            TcpListener::bind((ip, 0)).map_err(TcpError::io("listening for other ranks"))?;
        let address = listener.local_addr();
        let address = address.map_err(TcpError::io("listening for other ranks"))?;

        let gate = Gate::new(
            Token::new().map_err(TcpError::io("making a random token"))?,
            Process::this().map_err(TcpError::io("making a random number"))?,
            rank,
            format!("{host}:{port}"),
        );
        // Others may knock from the moment at which this rank claims its number.
        let forming = Forming {
            gate: Arc::new(gate),
            address,
        };
        listen::start(&forming.gate, listener).map_err(TcpError::io("starting a thread"))?;

        let job_id = self.id_of_job();
        let base = format!("reshard/{}", self.name);
        let of_job = job_id.as_deref().unwrap_or("-");
        let prefix = format!("{base}/{of_job}/{}", self.attempt);
        let guest = Guest {
            rank,
            size,
            address,
            job_id: job_id.as_deref(),
            base: &base,
            prefix: &prefix,
            serves,
            fan: self.fan_out,
            deadline: self.deadline,
            limit,
            gate: &forming.gate,
        };
        guest.settle(&mut store)?;
        let met = meet(&mut store, &guest, |limit| {
            StoreClient::connect(&host, port, limit)
        })?;
        let job = Arc::new(Job {
            token: met.token,
            addresses: met.addresses,
            store_host: host,
            store_port: port,
            prefix: met.prefix,
            deadline: self.deadline,
            watch: Watch {
                heartbeat: self.heartbeat,
                silence: self.silence,
                message_limit: self.message_limit,
            },
        });
        let (mesh, waiting) = Mesh::new(rank, size, met.fan);
        let node = Node {
            mesh: Arc::new(mesh),
            address,
            patience: self.silence,
        };
        tasks::start(&node.mesh, Arc::clone(&job), waiting)
            .map_err(TcpError::io("starting a thread"))?;
        let mesh = Arc::clone(&node.mesh);
        let group = TcpGroup::whole(node);
        if forming.gate.open(&mesh, &job) {
            return Ok(group);
        }
        Err(guest.taken(rank))
    }
}

/// A rank that meets others. Its listener ends with it, unless there is a group by then.
struct Forming {
    gate: Arc<Gate>,
    address: SocketAddr,
}

impl Drop for Forming {
    fn drop(&mut self) {
        if self.gate.give_up() {
            wake_listener(self.address);
        }
    }
}

fn setting(why: impl Into<String>) -> TcpError {
    TcpError::Setting(why.into())
}

/// The id of the job to which this process belongs: `RESHARD_JOB_ID`, else the run id of torchrun unless it is `none`, else the job id of SLURM.
fn job_id(look_up: impl Fn(&str) -> Option<OsString>) -> Option<String> {
    ["RESHARD_JOB_ID", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID"]
        .into_iter()
        .filter_map(|name| {
            let value = look_up(name)?;
            let value = value.to_string_lossy().trim().to_owned();
            // torchrun's run id is `none` unless `--rdzv-id` sets it.
            let is_none = name == "TORCHELASTIC_RUN_ID" && value == "none";
            (!is_none && !value.is_empty()).then_some(value)
        })
        .next()
}

/// Rank 0 serves the store, if it is to do so. Returns whether it does.
fn serve(serve: Serve, size: u32, host: &str, port: u16, limit: Limit) -> Result<bool> {
    let failed = |source| TcpError::Store {
        address: format!("{host}:{port}"),
        doing: "serve".to_owned(),
        source,
    };
    let found = match serve {
        Serve::Nobody => return Ok(false),
        Serve::Rank0 => false,
        // Whatever is wrong with a store that answers is reported by whoever uses it next.
        Serve::Auto => match StoreClient::connect_once(host, port, limit) {
            Ok(_) => true,
            Err(e) => e.kind() != io::ErrorKind::ConnectionRefused,
        },
    };
    if found {
        return Ok(false);
    }
    files::suffice(size.into(), &format!("serving the store for {size} ranks")).map_err(setting)?;
    let bound = place(host, port).and_then(StoreServer::bind);
    match bound {
        Ok(server) => {
            server.detach();
            Ok(true)
        }
        // Somebody was faster.
        Err(e) if e.kind() == io::ErrorKind::AddrInUse && serve == Serve::Auto => Ok(false),
        Err(e) => Err(failed(e)),
    }
}

/// Where rank 0 serves a store that others look for at `host`.
fn place(host: &str, port: u16) -> io::Result<SocketAddr> {
    let mut addresses = (host, port).to_socket_addrs()?;
    let first = addresses.next().ok_or(io::ErrorKind::NotFound)?;
    // It must be an address of this host, else nobody will find the store.
    drop(TcpListener::bind((first.ip(), 0))?);
    let is_literal = host == "localhost" || host.parse::<IpAddr>().is_ok();
    if is_literal || !first.ip().is_loopback() {
        return Ok(first);
    }
    // Some systems give the host's own name a loopback address, but others know it by another one.
    let any: IpAddr = match first.ip() {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    Ok(SocketAddr::new(any, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_job_id_counts() {
        let id = |variables: &[(&str, &str)]| {
            job_id(|asked| {
                let found = variables.iter().find(|(name, _)| *name == asked);
                found.map(|(_, value)| OsString::from(value))
            })
        };
        let all = [
            ("SLURM_JOB_ID", "7"),
            ("TORCHELASTIC_RUN_ID", "run"),
            ("RESHARD_JOB_ID", "mine"),
        ];
        assert_eq!(id(&all).as_deref(), Some("mine"));
        assert_eq!(id(&all[..2]).as_deref(), Some("run"));
        assert_eq!(id(&all[..1]).as_deref(), Some("7"));
        let none = ("TORCHELASTIC_RUN_ID", "none");
        assert_eq!(id(&[none, all[0]]).as_deref(), Some("7"));
        assert_eq!(id(&[none, ("RESHARD_JOB_ID", " ")]), None);
    }
}
