//! Variables that lie in parts, and are one tensor everywhere else.
