//! What Python imports as `reshard._reshard`.

// A Python process may run the program, which has a limit of memory of its own.
#[global_allocator]
static ALLOCATOR: reshard_cli::Allocator = reshard_cli::Allocator;

#[pyo3::pymodule(gil_used = false)]
mod _reshard {
    #[pymodule_export]
    #[expect(non_upper_case_globals, reason = "Python's name")]
    const __version__: &str = env!("CARGO_PKG_VERSION");
    #[pymodule_export]
    use crate::group::{Group, Meeting};
    #[pymodule_export]
    use crate::job::{Pending, Saver, load, save};
    #[pymodule_export]
    use crate::program::{command, main};
    #[pymodule_export]
    use crate::source::{Source, open};
    #[pymodule_export]
    use crate::value::HostTensor;
    #[pymodule_export]
    use crate::version::{Version, begin, join};
}
