//! Limits of time.

use std::{
    borrow::Borrow,
    io::{self, Read, Write},
    net::TcpStream,
    time::{Duration, Instant},
};

/// A moment at which something must be done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit(Instant);

impl Limit {
    /// So long from now.
    pub(crate) fn after(duration: Duration) -> Self {
        const FAR: Duration = Duration::from_secs(365 * 24 * 3600);
        Self(Instant::now() + duration.min(FAR))
    }

    /// The earlier one of this moment and `duration` from now.
    pub(crate) fn at_most(self, duration: Duration) -> Self {
        Self(self.0.min(Self::after(duration).0))
    }

    /// How long it is until then; never zero, because sockets refuse that.
    ///
    /// # Errors
    /// `TimedOut` if the moment is past.
    pub(crate) fn left(self) -> io::Result<Duration> {
        let left = self.0.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(left)
    }
}

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
