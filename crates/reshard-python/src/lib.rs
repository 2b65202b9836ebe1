//! The native part of the Python package `reshard`. Its Python part is in `python/reshard`; `docs/python.md` describes the package.
//!
//! Python describes memory by its address and strides, and names keys and regions. This crate reads into that memory and writes from it, without
//! the interpreter's lock, and turns errors into the classes of `reshard._errors`.

mod error;
mod memory;
mod program;
mod source;
mod value;
mod version;
mod wait;

// A Python process may run the program, which has a limit of memory of its own.
#[global_allocator]
static ALLOCATOR: reshard_cli::Allocator = reshard_cli::Allocator;

#[pyo3::pymodule(gil_used = false)]
mod _reshard {
    #[pymodule_export]
    #[expect(non_upper_case_globals, reason = "Python's name")]
    const __version__: &str = env!("CARGO_PKG_VERSION");
    #[pymodule_export]
    use crate::program::{command, main};
    #[pymodule_export]
    use crate::source::{Source, open};
    #[pymodule_export]
    use crate::value::{HostTensor, decode_object};
    #[pymodule_export]
    use crate::version::{Version, begin, join};
}
