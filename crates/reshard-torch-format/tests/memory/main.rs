//! Files of a few kilobytes that ask for gigabytes or hours get neither, measured where memory is allocated.
#![expect(unsafe_code, reason = "an allocator that counts can't be had without")]
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod asm;
mod bombs;
mod counting;
mod packed;
mod shared;
