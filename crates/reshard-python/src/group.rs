//! Groups of ranks, which meet by way of `torch.distributed` and then talk to each other directly.

use crate::{error::exception_of_kind, wait::on_thread};
use pyo3::prelude::*;
use reshard::{ErrorKind, ProcessGroup, comm::Cause};
use reshard_comm_tcp::{Serve, StoreServer, TcpError, TcpGroup};
use std::{net::Ipv4Addr, sync::Arc, time::Duration};

/// A group of ranks.
#[pyclass(frozen, module = "reshard._reshard")]
pub(crate) struct Group(Arc<TcpGroup>);

/// A store at which ranks meet. It serves as long as it lives.
#[pyclass(frozen, module = "reshard._reshard")]
pub(crate) struct Meeting(StoreServer);

#[pymethods]
impl Meeting {
    /// Serves a store, for ranks of this machine or of others.
    #[new]
    fn new() -> PyResult<Self> {
        let any = (Ipv4Addr::UNSPECIFIED, 0);
        Ok(Self(StoreServer::bind(any.into())?))
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
        let builder = TcpGroup::builder().rank(rank, size).master(host, port);
        let builder = builder
            .serve(Serve::Nobody)
            .name(name)
            .deadline(seconds(deadline));
        let group = on_thread(py, move || builder.connect())?;
        let group = group.map_err(|e: TcpError| exception_of_kind(py, e.kind(), &e))?;
        Ok(Self(Arc::new(group)))
    }

    /// Tells all ranks that this one can't go on. The group is of no use afterwards.
    fn abort(&self, why: &str) {
        self.0.abort(Cause::new(ErrorKind::PeerFailed, why));
    }
}

impl Group {
    pub(crate) fn ranks(&self) -> &Arc<TcpGroup> {
        &self.0
    }
}

/// A time in seconds. One that is no time is as long as it gets.
pub(crate) fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}
