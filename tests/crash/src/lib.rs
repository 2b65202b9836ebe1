//! saves that are killed at any moment
