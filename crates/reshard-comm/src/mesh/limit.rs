use std::{
    io,
    time::{Duration, Instant},
};

/// A moment at which something must be done.
#[derive(Clone, Copy, Debug)]
pub struct Limit(Instant);

impl Limit {
    /// So long from now.
    pub fn after(duration: Duration) -> Self {
        const FAR: Duration = Duration::from_secs(365 * 24 * 3600);
        Self(Instant::now() + duration.min(FAR))
    }

    /// The earlier one of this moment and `duration` from now.
    pub fn at_most(self, duration: Duration) -> Self {
        Self(self.0.min(Self::after(duration).0))
    }

    /// How long it is until then; never zero, because sockets refuse that.
    ///
    /// # Errors
    /// `TimedOut` if the moment is past.
    pub fn left(self) -> io::Result<Duration> {
        let left = self.0.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(left)
    }
}
