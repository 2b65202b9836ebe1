//! Groups of ranks, which meet by way of `torch.distributed` and then talk to each other directly.

use crate::{
    error::exception_of_kind,
    wait::{on_thread, wait},
};
use pyo3::prelude::*;
use reshard::{
    ErrorKind, ProcessGroup,
    comm::{Cause, Comm},
};
use reshard_comm_tcp::{Serve, StoreServer, TcpError, TcpGroup};
use std::{
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
    time::Duration,
};

/// A group of ranks.
#[pyclass(frozen, module = "reshard._reshard")]
pub(crate) struct Group {
    group: Arc<TcpGroup>,
    deadline: Duration,
}

/// A store at which ranks meet. It serves as long as it lives.
#[pyclass(frozen, module = "reshard._reshard")]
pub(crate) struct Meeting(StoreServer);

#[pymethods]
impl Meeting {
    /// Serves a store, for ranks of this machine or of others.
    #[new]
    fn new(local: bool) -> PyResult<Self> {
        let ip = if local {
            Ipv4Addr::LOCALHOST
        } else {
            Ipv4Addr::UNSPECIFIED
        };
        Ok(Self(StoreServer::bind((IpAddr::V4(ip), 0).into())?))
    }

    #[getter]
    fn port(&self) -> u16 {
        self.0.address().port()
    }
}

#[pymethods]
impl Group {
    /// Meets the other ranks at a store. All of them give the same name.
    #[new]
    fn new(
        py: Python<'_>,
        rank: u32,
        size: u32,
        host: String,
        port: u16,
        name: String,
        deadline: f64,
    ) -> PyResult<Self> {
        let deadline = seconds(deadline);
        let builder = TcpGroup::builder().rank(rank, size).master(host, port);
        let builder = builder.serve(Serve::Nobody).name(name).deadline(deadline);
        let group = on_thread(py, move || builder.connect())?;
        let group = group.map_err(|e: TcpError| exception_of_kind(py, e.kind(), &e))?;
        Ok(Self {
            group: Arc::new(group),
            deadline,
        })
    }

    /// Tells all ranks that this one can't go on. The group is of no use afterwards.
    fn abort(&self, why: &str) {
        self.group.abort(Cause::new(ErrorKind::PeerFailed, why));
    }

    /// Waits until all ranks have come.
    fn barrier(&self, py: Python<'_>) -> PyResult<()> {
        let comm = Comm::new(&*self.group).with_deadline(self.deadline);
        let met = wait(py, comm.agree("barrier", Ok(())))?;
        met.map_err(|e| exception_of_kind(py, e.kind(), &e))
    }
}

impl Group {
    pub(crate) fn ranks(&self) -> &Arc<TcpGroup> {
        &self.group
    }
}

/// A time in seconds. One that is no time is as long as it gets.
pub(crate) fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}
