//! Small checkpoints that ask for absurd amounts of memory, time or disk, and what runs the program on them.
//!
//! All of them are assembled by hand: [`pickle`] writes pickles, [`zip`] archives, [`safetensors`] such files,
//! [`checkpoint`] what lies in a directory.
//! [`bombs`] has the bombs, [`run`] the limits under which each command must end by itself.

pub mod bombs;
pub mod checkpoint;
pub mod pickle;
pub mod run;
pub mod safetensors;
pub mod zip;
pub mod zstd;

pub use bombs::Bomb;
