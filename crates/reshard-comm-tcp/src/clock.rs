//! Limits of time.

use reshard_comm::mesh::Limit;
use std::{
    borrow::Borrow,
    io::{self, Read, Write},
    net::TcpStream,
};

/// A connection of which all reads and writes together end at the limit, so that a slow peer gains nothing.
#[derive(Debug)]
pub(crate) struct Timed<S> {
    pub(crate) stream: S,
    pub(crate) limit: Limit,
}

impl<S: Borrow<TcpStream>> Read for Timed<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut stream = self.stream.borrow();
        stream.set_read_timeout(Some(self.limit.left()?))?;
        stream.read(buffer)
    }
}

impl<S: Borrow<TcpStream>> Write for Timed<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut stream = self.stream.borrow();
        stream.set_write_timeout(Some(self.limit.left()?))?;
        stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.borrow().flush()
    }
}
