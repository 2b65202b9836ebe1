//! The program's allocator: a lack of memory ends the program with an error message, not with a signal.

#![expect(
    unsafe_code,
    reason = "an allocator and a handler of signals can't be written without"
)]

use crate::error::{FAILED, MORE_MEMORY};
use reshard::model::MemoryLimit;
use std::{
    alloc::{GlobalAlloc, Layout, System},
    io::{Cursor, Write},
    ptr::null_mut,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
};

/// The system's allocator within the memory limit of the process.
///
/// Most of Rust's collections abort the process if an allocation fails. With this allocator the program prints an error with the limit
/// instead, and exits with code 2. It knows the limit of a cgroup, whose processes the system kills without a word.
///
/// ```no_run
/// #[global_allocator]
/// static ALLOCATOR: reshard_cli::Allocator = reshard_cli::Allocator;
///
/// fn main() -> std::process::ExitCode {
///     reshard_cli::main_linked()
/// }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Allocator;

/// Bytes that are allocated.
static USED: AtomicUsize = AtomicUsize::new(0);
/// The most bytes that may be allocated.
static MAX: AtomicUsize = AtomicUsize::new(usize::MAX);
/// Whether the limit was determined, which allocates.
static IS_KNOWN: AtomicBool = AtomicBool::new(false);
/// Whether the error is also printed as JSON.
static JSON: AtomicBool = AtomicBool::new(false);
/// Bytes of a large allocation that failed; 0 if none has.
static FAILED_LARGE: AtomicUsize = AtomicUsize::new(0);

/// Allocations from this size on may fail: code that allocates as much as a file asks for handles that, and names the file. A smaller
/// allocation fails only if nearly all memory is used.
const LARGE: usize = 16 << 20;

/// Begins to enforce the memory limit of the process.
pub(crate) fn enforce() {
    if let Some(limit) = MemoryLimit::of_process() {
        let bytes = usize::try_from(limit.bytes).unwrap_or(usize::MAX);
        // Code, stacks, and the memory of libraries in C need some, too.
        MAX.store(bytes - bytes / 8, Relaxed);
    }
    IS_KNOWN.store(true, Relaxed);
    let ends = || {
        let bytes = FAILED_LARGE.load(Relaxed);
        if bytes > 0 {
            end(bytes);
        }
    };
    // SAFETY: the handler only reads atomics, writes to a file descriptor and ends the process, which signal handlers may do.
    let registered =
        unsafe { signal_hook::low_level::register(signal_hook::consts::SIGABRT, ends) };
    // Without it the process is aborted, after a message.
    registered.map(drop).unwrap_or(());
}

/// Also prints the error as JSON, on stdout.
pub(crate) fn report_as_json() {
    JSON.store(true, Relaxed);
}

/// Prints that there is no memory for so many bytes, and ends the process. It takes no memory for that.
fn end(bytes: usize) -> ! {
    let mut text = Cursor::new([0u8; 512]);
    let limit = IS_KNOWN
        .load(Relaxed)
        .then(MemoryLimit::of_process)
        .flatten();
    let message = |to: &mut Cursor<[u8; 512]>| {
        write!(to, "there is no memory for {bytes} bytes")?;
        limit.map_or(Ok(()), |limit| write!(to, "; {limit}"))
    };
    let mut print = |to, write: &dyn Fn(&mut Cursor<[u8; 512]>) -> std::io::Result<()>| {
        text.set_position(0);
        if write(&mut text).is_ok() {
            let length = text.position() as usize;
            let bytes = text.get_ref().get(..length).unwrap_or_default();
            // A closed pipe changes nothing.
            rustix::io::write(to, bytes).map(drop).unwrap_or(());
        }
    };
    if JSON.load(Relaxed) {
        print(rustix::stdio::stdout(), &|to| {
            write!(
                to,
                "{{\"schema\":1,\"error\":{{\"kind\":\"unavailable\",\"url\":null,\"message\":\""
            )?;
            message(to)?;
            writeln!(to, "\",\"hint\":\"{MORE_MEMORY}\"}}}}")
        });
    }
    print(rustix::stdio::stderr(), &|to| {
        write!(to, "error: ")?;
        message(to)?;
        writeln!(to, "\nhint: {MORE_MEMORY}")
    });
    signal_hook::low_level::exit(i32::from(FAILED))
}

/// Allocates with `make`, which the limit allows to take `more` bytes.
fn within(more: usize, make: impl FnOnce() -> *mut u8) -> *mut u8 {
    let used = USED.fetch_add(more, Relaxed).saturating_add(more);
    let made = match used <= MAX.load(Relaxed) {
        true => make(),
        false => null_mut(),
    };
    if !made.is_null() {
        return made;
    }
    USED.fetch_sub(more, Relaxed);
    if more < LARGE {
        end(more);
    }
    FAILED_LARGE.store(more, Relaxed);
    made
}

// SAFETY: all memory is the system's; an allocation beyond the limit fails.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller promises.
        within(layout.size(), || unsafe { System.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller promises.
        within(layout.size(), || unsafe { System.alloc_zeroed(layout) })
    }

    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        USED.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(p, layout) }
    }

    unsafe fn realloc(&self, p: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as the caller promises.
        let make = || unsafe { System.realloc(p, layout, size) };
        match size.checked_sub(layout.size()) {
            Some(more) => within(more, make),
            None => {
                let made = make();
                if !made.is_null() {
                    USED.fetch_sub(layout.size() - size, Relaxed);
                }
                made
            }
        }
    }
}
