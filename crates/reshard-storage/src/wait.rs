use std::{
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
};

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits for a future on this thread. It is for synchronous code, such as an [`Extent`](crate::Extent) that reads its bytes from
/// another store. Unlike with other executors, the future itself may call it again. On an I/O thread, the work of a
/// [`LocalStore`](crate::LocalStore) runs on this same thread, so threads never wait for each other in a circle.
///
/// ```
/// assert_eq!(reshard_storage::wait(async { reshard_storage::wait(async { 1 }) + 1 }), 2);
/// ```
pub fn wait<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(out) => return out,
            Poll::Pending => thread::park(),
        }
    }
}
