//! Blocks that are made on another thread before they are asked for: DCP's `per_thread_copy_ahead`, for saves.

use crate::Blocks;
use bytes::Bytes;
use reshard_model::{BoxError, DType, Data, Dims, Region, TensorSource};
use std::{
    io,
    sync::{
        Arc,
        mpsc::{self, Receiver},
    },
    thread::{self, JoinHandle},
};

/// More blocks than this are never ahead, whatever a source allows.
const MOST: u64 = 64;

/// Data whose copies may run ahead by so many bytes, if they lie on a device.
pub(crate) fn running_ahead(data: Data, bytes: u64) -> Data {
    let source: Arc<dyn TensorSource> = match data {
        Data::Device(device) => Arc::new(device),
        Data::Lazy(source) if source.ahead() > 0 => source,
        other => return other,
    };
    Data::Lazy(Arc::new(Bounded { source, bytes }))
}

/// A source of which at most so many bytes are read ahead.
struct Bounded {
    source: Arc<dyn TensorSource>,
    bytes: u64,
}

impl TensorSource for Bounded {
    fn dtype(&self) -> DType {
        self.source.dtype()
    }

    fn shape(&self) -> Dims {
        self.source.shape()
    }

    fn block(&self) -> Option<u64> {
        self.source.block()
    }

    fn ahead(&self) -> u64 {
        self.source.ahead().min(self.bytes)
    }

    fn identity(&self) -> Option<String> {
        self.source.identity()
    }

    fn read(&self, region: &Region, out: &mut [u8]) -> Result<(), BoxError> {
        self.source.read(region, out)
    }
}

/// The blocks of `whole`, whose elements have `size` bytes, in row-major order: each of about `block` bytes, made by `make`. If there are
/// several, up to `ahead` bytes are made on another thread while the caller has earlier ones. The thread begins with the first block that
/// is asked for, because a save has the blocks of all its items from the start.
pub(crate) fn ahead(
    whole: Region,
    size: u64,
    (block, ahead): (u64, u64),
    make: impl FnMut(Region) -> io::Result<Bytes> + Send + 'static,
) -> Blocks {
    let several = whole.volume().unwrap_or(u64::MAX).saturating_mul(size) > block;
    let blocks = Box::new(whole.blocks(block / size.max(1)).map(make));
    match (ahead / block.max(1)).min(MOST) {
        n @ 1.. if several => Box::new(Ahead::Waits(blocks, n as usize)),
        _ => blocks,
    }
}

enum Ahead {
    Waits(Blocks, usize),
    Runs(Receiver<io::Result<Bytes>>, Option<JoinHandle<()>>),
}

impl Iterator for Ahead {
    type Item = io::Result<Bytes>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Self::Waits(blocks, n) = self {
            let blocks = std::mem::replace(blocks, Box::new(std::iter::empty()));
            let (sender, receiver) = mpsc::sync_channel(*n);
            let thread = thread::Builder::new().name("reshard-ahead".into());
            // It ends when all blocks are made, when one fails, or when nobody takes them any more.
            let begun = thread.spawn(move || {
                let mut blocks = blocks;
                blocks.all(|block| {
                    let goes_on = block.is_ok();
                    sender.send(block).is_ok() && goes_on
                });
            });
            match begun {
                Ok(thread) => *self = Self::Runs(receiver, Some(thread)),
                Err(e) => {
                    let e = format!("no thread for copies from a device: {e}");
                    return Some(Err(io::Error::other(e)));
                }
            }
        }
        let Self::Runs(receiver, thread) = self else {
            return None;
        };
        if let Ok(block) = receiver.recv() {
            return Some(block);
        }
        match thread.take().map(JoinHandle::join) {
            Some(Err(panic)) => {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
                let e = format!(
                    "a copy from a device panicked: {}",
                    text.unwrap_or("no text")
                );
                Some(Err(io::Error::other(e)))
            }
            Some(Ok(())) | None => None,
        }
    }
}

/// Nobody copies any more when it is gone, so the caller may free the device's memory.
impl Drop for Ahead {
    fn drop(&mut self) {
        if let Self::Runs(receiver, thread) = self {
            // The thread waits at a full channel until nobody receives.
            *receiver = mpsc::channel().1;
            if let Some(thread) = thread.take() {
                drop(thread.join());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Condvar, Mutex};

    /// The number of blocks that were made, and of those that were taken.
    type Counts = Arc<(Mutex<(u64, u64)>, Condvar)>;

    /// Blocks of one byte each.
    fn of(
        blocks: u64,
        most: u64,
        mut make: impl FnMut(u64) -> io::Result<Bytes> + Send + 'static,
    ) -> Blocks {
        let whole = Region::whole(&[blocks]);
        ahead(whole, 1, (1, most), move |block| make(block.offsets[0]))
    }

    fn counted(counts: &Counts) -> impl FnMut(u64) -> io::Result<Bytes> + Send + 'static {
        let counts = Arc::clone(counts);
        move |i| {
            let mut now = counts.0.lock().unwrap();
            now.0 += 1;
            // One is in the hand of the thread, and one that is taken may not be counted yet.
            assert!(now.0 <= now.1 + 3 + 2, "{now:?}");
            counts.1.notify_all();
            Ok(Bytes::from(vec![i as u8]))
        }
    }

    #[test]
    fn blocks_are_made_while_earlier_ones_are_written_and_not_too_many() {
        let counts = Counts::default();
        let mut blocks = of(40, 3, counted(&counts));
        assert_eq!(counts.0.lock().unwrap().0, 0, "nobody has asked yet");
        for i in 0..40u64 {
            assert_eq!(blocks.next().unwrap().unwrap()[..], [i as u8]);
            let mut now = counts.0.lock().unwrap();
            now.1 += 1;
            // The next ones come without being asked for.
            while now.0 < (i + 1 + 3).min(40) {
                now = counts.1.wait(now).unwrap();
            }
        }
        assert!(blocks.next().is_none() && blocks.next().is_none());
        drop(of(40, 3, counted(&Counts::default())).next());
    }

    #[test]
    fn without_room_for_a_block_or_without_a_second_one_nothing_runs_ahead() {
        // The second has room for a block, but it is the only one.
        for (bytes, block, most) in [(16, 4, 3), (4, 4, 8)] {
            let here = thread::current().id();
            let mut blocks = ahead(Region::whole(&[bytes]), 1, (block, most), move |_| {
                assert_eq!(thread::current().id(), here);
                Ok(Bytes::new())
            });
            blocks.next().unwrap().unwrap();
        }
    }

    #[test]
    fn a_panic_of_a_device_is_an_error() {
        let mut blocks = of(2, 8, |i| match i {
            0 => Ok(Bytes::new()),
            _ => panic!("a device is on fire"),
        });
        assert!(blocks.next().unwrap().is_ok());
        let e = blocks.next().unwrap().unwrap_err();
        assert!(
            e.to_string().contains("panicked: a device is on fire"),
            "{e}"
        );
        assert!(blocks.next().is_none());
    }

    #[test]
    fn nothing_is_copied_after_a_failure_or_when_nobody_takes_it() {
        let made = Arc::new(Mutex::new(0));
        let count = Arc::clone(&made);
        let mut blocks = of(9, 8, move |i| {
            *count.lock().unwrap() += 1;
            match i {
                1 => Err(io::Error::other("lost")),
                _ => Ok(Bytes::new()),
            }
        });
        assert!(blocks.next().unwrap().is_ok() && blocks.next().unwrap().is_err());
        assert!(blocks.next().is_none());
        assert_eq!(*made.lock().unwrap(), 2);

        let held = Arc::new(());
        let inside = Arc::clone(&held);
        let mut blocks = of(u64::MAX, 8, move |_| {
            let _inside = &inside;
            Ok(Bytes::new())
        });
        blocks.next().unwrap().unwrap();
        drop(blocks);
        assert_eq!(Arc::strong_count(&held), 1, "the thread has ended");
    }
}
