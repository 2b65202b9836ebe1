//! How many files a process may have open: each connection is one.

use rustix::io::Errno;
use std::io;

/// Those that are not connections of the group: listeners, the store, streams, what the program has open.
const OTHERS: u64 = 32;

/// What to do about it.
pub(crate) const HINT: &str = "raise the limit of open files (`ulimit -n`)";

/// # Errors
/// A text that says how many files `what` needs, if this process may not have so many.
pub(crate) fn suffice(connections: u64, what: &str) -> Result<(), String> {
    let needed = connections.saturating_add(OTHERS);
    match rustix::process::getrlimit(rustix::process::Resource::Nofile).current {
        Some(limit) if needed > limit => Err(format!(
            "{what} needs {connections} connections, but this process may have only {limit} files open; {HINT} to {needed} at least"
        )),
        _ => Ok(()),
    }
}

/// Whether the process, or the system, has too many files open.
pub(crate) fn are_too_many(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    errno.is_some_and(|errno| [Errno::MFILE, Errno::NFILE].contains(&errno))
}
