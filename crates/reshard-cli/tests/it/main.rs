//! The program as its users see it: what it prints, and its exit codes.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod analysis;
mod bytes;
mod changed;
mod common;
mod convert;
mod cost;
mod damage;
mod digest;
mod dry_run;
mod findings;
mod flips;
mod foreign;
mod handmade;
mod help;
mod hostile;
mod hub;
mod inspect;
mod interrupt;
mod layouts;
mod ledger;
mod limits;
mod links;
mod mapping;
mod memory;
mod optimizer;
mod parts;
mod pickles;
mod places;
mod prune;
mod rank_files;
mod ranks;
mod remove;
mod resume;
mod safetensors;
mod sample;
mod secrets;
mod show;
mod sound;
mod states;
mod steps;
mod to_megatron;
mod torch_save;
mod torchao;
mod trace;
mod understood;
mod unread;
mod verify;
#[cfg(feature = "http")]
mod web;
mod whereabouts;
mod zarr;
mod zarr3;

use reshard::{Registry, Stores};
use reshard_cli::{Io, Program};
use std::io::Write;

/// What a run left.
pub(crate) struct Ran {
    pub(crate) code: u8,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ran {
    fn of(code: u8, out: Vec<u8>, err: Vec<u8>) -> Self {
        let [out, err] = [out, err].map(|bytes| String::from_utf8(bytes).unwrap());
        Self { code, out, err }
    }

    /// The output of a run that went well.
    pub(crate) fn ok(self) -> String {
        assert_eq!((self.code, self.err.as_str()), (0, ""), "{}", self.out);
        self.out
    }

    /// The output of a run with `--no-verify` that went well.
    pub(crate) fn unverified(self) -> String {
        let note = "note: no checksum was checked before reading (--no-verify)\n";
        assert_eq!((self.code, self.err.as_str()), (0, note), "{}", self.out);
        self.out
    }

    /// The output of a run that went well, and has found damage.
    pub(crate) fn damaged(self) -> String {
        assert_eq!((self.code, self.err.as_str()), (1, ""), "{}", self.out);
        self.out
    }

    /// The JSON of a run that went well.
    pub(crate) fn json(self) -> serde_json::Value {
        serde_json::from_str(&self.ok()).unwrap()
    }
}

/// Runs a command in this process; output without styles.
pub(crate) fn run(args: &[&str]) -> Ran {
    run_with(Stores::linked().unwrap(), args)
}

/// The same, with styles.
pub(crate) fn run_raw(args: &[&str]) -> Ran {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let code = run_into(Stores::linked().unwrap(), args, &mut out, &mut err);
    Ran::of(code, out, err)
}

/// The same, with stores.
pub(crate) fn run_with(stores: Stores, args: &[&str]) -> Ran {
    let stripped = || anstream::StripStream::new(Vec::new());
    let (mut out, mut err) = (stripped(), stripped());
    let code = run_into(stores, args, &mut out, &mut err);
    Ran::of(code, out.into_inner(), err.into_inner())
}

fn run_into(stores: Stores, args: &[&str], out: &mut dyn Write, err: &mut dyn Write) -> u8 {
    let program = Program::new(Registry::linked().unwrap(), stores);
    let args = std::iter::once("reshard").chain(args.iter().copied());
    let bars = false;
    program.run(args, &mut Io { out, err, bars })
}
