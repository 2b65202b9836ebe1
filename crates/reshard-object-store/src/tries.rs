//! Since when a request is tried.

use std::{cell::Cell, time::Instant};

tokio::task_local! {
    /// The client of a service tries a request again within one task. So the task knows when its first try began.
    static BEGAN: Cell<Instant>;
}

/// Work that makes requests, one after the other.
pub(crate) async fn counted<T>(work: impl Future<Output = T>) -> T {
    BEGAN.scope(Cell::new(Instant::now()), work).await
}

/// When the first try of the request began that the task makes now, or a little earlier.
#[cfg(any(feature = "aws", feature = "gcp", feature = "azure", feature = "http"))]
pub(crate) fn began() -> Instant {
    BEGAN.try_with(Cell::get).unwrap_or_else(|_| Instant::now())
}

/// The request has its answer. What the task asks next is another request.
#[cfg(any(feature = "aws", feature = "gcp", feature = "azure", feature = "http"))]
pub(crate) fn answered() {
    // Outside of such work nothing counts.
    BEGAN
        .try_with(|began| began.set(Instant::now()))
        .unwrap_or_default();
}

#[cfg(all(
    test,
    any(feature = "aws", feature = "gcp", feature = "azure", feature = "http")
))]
mod tests {
    use super::*;
    use futures::executor::block_on;
    use std::{thread::sleep, time::Duration};

    #[test]
    fn the_time_of_a_request_counts_from_the_answer_to_the_one_before_it() {
        let pause = || sleep(Duration::from_millis(5));
        block_on(counted(async {
            let first = began();
            pause();
            assert_eq!(began(), first);
            answered();
            assert!(began() > first);
        }));
        // Without such work each moment is the first.
        let first = began();
        answered();
        pause();
        assert!(began() > first);
    }
}
