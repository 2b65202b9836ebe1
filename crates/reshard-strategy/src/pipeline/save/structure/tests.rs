//! What makes a structure another one.
