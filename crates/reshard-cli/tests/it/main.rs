//! The program as its users see it: what it prints, and its exit codes.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod convert;
mod digest;
mod handmade;
mod help;
mod hostile;
mod inspect;
mod layouts;
mod limits;
mod links;
mod memory;
mod parts;
mod prune;
mod states;
mod understood;
mod verify;
mod whereabouts;

use reshard::{Registry, Stores};
use reshard_cli::{Io, Program};

/// What a run left.
pub(crate) struct Ran {
    pub(crate) code: u8,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ran {
    /// The output of a run that went well.
    pub(crate) fn ok(self) -> String {
        assert_eq!((self.code, self.err.as_str()), (0, ""), "{}", self.out);
        self.out
    }

    /// The JSON of such a run.
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
    let program = Program::new(Registry::linked().unwrap(), Stores::linked().unwrap());
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let args = std::iter::once("reshard").chain(args.iter().copied());
    let code = program.run(
        args,
        &mut Io {
            out: &mut out,
            err: &mut err,
            bars: false,
        },
    );
    Ran {
        code,
        out: String::from_utf8(out).unwrap(),
        err: String::from_utf8(err).unwrap(),
    }
}

/// The same, with stores.
pub(crate) fn run_with(stores: Stores, args: &[&str]) -> Ran {
    let program = Program::new(Registry::linked().unwrap(), stores);
    let (mut out, mut err) = (
        anstream::StripStream::new(Vec::new()),
        anstream::StripStream::new(Vec::new()),
    );
    let args = std::iter::once("reshard").chain(args.iter().copied());
    let code = program.run(
        args,
        &mut Io {
            out: &mut out,
            err: &mut err,
            bars: false,
        },
    );
    let text = |s: anstream::StripStream<Vec<u8>>| String::from_utf8(s.into_inner()).unwrap();
    Ran {
        code,
        out: text(out),
        err: text(err),
    }
}
