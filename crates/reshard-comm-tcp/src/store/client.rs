use super::wire::{self, MAGIC, Request};
use crate::{Result, TcpError, clock::Timed};
use reshard_comm::mesh::Limit;
use std::{
    io::{self, Write},
    net::{IpAddr, TcpStream, ToSocketAddrs},
    thread,
    time::Duration,
};

/// A connection to a store. Keys begin with `/`, as those of PyTorch's own clients do.
#[derive(Debug)]
pub(crate) struct StoreClient {
    address: String,
    stream: Timed<TcpStream>,
}

impl StoreClient {
    /// Connects to the store at `host:port`. It tries again until the limit, because the store may start later.
    ///
    /// # Errors
    /// [`TcpError::Store`]: nobody listens there within the limit, or it is no TCPStore.
    pub(crate) fn connect(host: &str, port: u16, limit: Limit) -> Result<Self> {
        const SHORTEST: Duration = Duration::from_millis(10);
        const LONGEST: Duration = Duration::from_millis(250);
        let mut pause = SHORTEST;
        loop {
            let source = match Self::connect_once(host, port, limit) {
                Ok(client) => return Ok(client),
                Err(e) => e,
            };
            // Another protocol does not become right by waiting.
            if source.kind() == io::ErrorKind::InvalidData || limit.left().is_err() {
                return Err(TcpError::Store {
                    address: format!("{host}:{port}"),
                    doing: "connect".to_owned(),
                    source,
                });
            }
            thread::sleep(pause.min(limit.left().unwrap_or(SHORTEST)));
            pause = (pause * 2).min(LONGEST);
        }
    }

    /// Connects to the store, in one attempt.
    ///
    /// # Errors
    /// `ConnectionRefused` if nobody listens there; `InvalidData` if it is no TCPStore.
    pub(crate) fn connect_once(host: &str, port: u16, limit: Limit) -> io::Result<Self> {
        const ATTEMPT: Duration = Duration::from_secs(5);
        let limit = limit.at_most(ATTEMPT);
        let mut last = io::Error::new(io::ErrorKind::NotFound, format!("{host} has no address"));
        for address in (host, port).to_socket_addrs()? {
            let stream = match TcpStream::connect_timeout(&address, limit.left()?) {
                Ok(stream) => stream,
                Err(e) => {
                    last = e;
                    continue;
                }
            };
            stream.set_nodelay(true)?;
            let mut client = Self {
                address: format!("{host}:{port}"),
                stream: Timed { stream, limit },
            };
            client.greet()?;
            return Ok(client);
        }
        Err(last)
    }

    fn greet(&mut self) -> io::Result<()> {
        let nonce = std::process::id();
        let both = [
            Request::Validate(MAGIC).encode(),
            Request::Ping(nonce).encode(),
        ]
        .concat();
        self.stream.write_all(&both)?;
        let echo = u32::from_ne_bytes(wire::take(&mut self.stream)?);
        if echo != nonce {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "what listens there is no TCPStore of PyTorch 2.1 or later",
            ));
        }
        Ok(())
    }

    /// The address of this host from which the store is reached.
    ///
    /// # Errors
    /// [`TcpError::Store`] if the connection is closed.
    pub(crate) fn local_ip(&self) -> Result<IpAddr> {
        let local = self.stream.stream.local_addr().map(|a| a.ip());
        local.map_err(|source| self.failed("local address", source))
    }

    /// Stores a value.
    ///
    /// # Errors
    /// [`TcpError::Store`], like all calls.
    pub(crate) fn set(&mut self, key: &str, value: &[u8], limit: Limit) -> Result<()> {
        let set = Request::Set(stored(key), value.to_vec());
        self.ask("set", key, &set, limit, |_| Ok(()))
    }

    /// The value of a key, as soon as it exists.
    ///
    /// # Errors
    /// [`TcpError::Store`] if there is none within the limit. Then the connection can't be used any more.
    pub(crate) fn get(&mut self, key: &str, limit: Limit) -> Result<Vec<u8>> {
        let wait = Request::Wait(vec![stored(key)]);
        self.ask("wait", key, &wait, limit, |stream| {
            match wire::take(stream)? {
                [0] => Ok(()),
                [_] => Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "the store gave up waiting",
                )),
            }
        })?;
        self.ask("get", key, &Request::Get(stored(key)), limit, wire::value)
    }

    /// Adds to a number that is 0 at first. Returns the sum.
    ///
    /// # Errors
    /// [`TcpError::Store`].
    pub(crate) fn add(&mut self, key: &str, number: i64, limit: Limit) -> Result<i64> {
        let add = Request::Add(stored(key), number);
        self.ask("add", key, &add, limit, |stream| {
            Ok(i64::from_ne_bytes(wire::take(stream)?))
        })
    }

    /// Sets a value if the key has the value `old`, or if `old` is empty and the key is missing. Returns the value afterwards.
    ///
    /// # Errors
    /// [`TcpError::Store`].
    pub(crate) fn compare_set(
        &mut self,
        key: &str,
        old: &[u8],
        new: &[u8],
        limit: Limit,
    ) -> Result<Vec<u8>> {
        let set = Request::CompareSet(stored(key), old.to_vec(), new.to_vec());
        self.ask("compare_set", key, &set, limit, wire::value)
    }

    /// A handle of the connection. Shutting it down ends a request that waits.
    ///
    /// # Errors
    /// [`TcpError::Store`] if the system refuses.
    pub(crate) fn handle(&self) -> Result<TcpStream> {
        let handle = self.stream.stream.try_clone();
        handle.map_err(|source| self.failed("connect", source))
    }

    /// Whether a key exists.
    ///
    /// # Errors
    /// [`TcpError::Store`].
    pub(crate) fn has(&mut self, key: &str, limit: Limit) -> Result<bool> {
        let check = Request::Check(vec![stored(key)]);
        self.ask("check", key, &check, limit, |stream| {
            Ok(wire::take(stream)? == [0])
        })
    }

    /// Removes a key.
    ///
    /// # Errors
    /// [`TcpError::Store`].
    pub(crate) fn delete(&mut self, key: &str, limit: Limit) -> Result<()> {
        let delete = Request::Delete(stored(key));
        self.ask("delete", key, &delete, limit, |stream| {
            wire::take::<8>(stream).map(drop)
        })
    }

    fn ask<T>(
        &mut self,
        verb: &str,
        key: &str,
        request: &Request,
        limit: Limit,
        answer: impl FnOnce(&mut Timed<TcpStream>) -> io::Result<T>,
    ) -> Result<T> {
        self.stream.limit = limit;
        let asked = self.stream.write_all(&request.encode());
        asked
            .and_then(|()| answer(&mut self.stream))
            .map_err(|source| {
                // A key may have any characters in it, since the name of a run is part of it.
                self.failed(&format!("{verb} {key:?}"), source)
            })
    }

    fn failed(&self, doing: &str, source: io::Error) -> TcpError {
        TcpError::Store {
            address: self.address.clone(),
            doing: doing.to_owned(),
            source,
        }
    }
}

fn stored(key: &str) -> Vec<u8> {
    format!("/{key}").into_bytes()
}
