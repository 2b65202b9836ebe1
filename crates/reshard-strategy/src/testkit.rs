//! Suites for strategies; filled below.
