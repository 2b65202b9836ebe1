//! the same data, written and read here and by the real programs
