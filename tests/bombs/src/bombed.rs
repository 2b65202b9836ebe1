//! The program `reshard`, and with the command `library` what a program that loads checkpoints does.

use anyhow::Result;
use reshard::{DType, ShardedTensor, StateDict, Value, blocking};
use std::{
    io::{Write, stderr},
    process::ExitCode,
};

#[global_allocator]
static ALLOCATOR: reshard_cli::Allocator = reshard_cli::Allocator;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    match args.get(1..) {
        Some([command, dir]) if command == "library" => match failures(dir) {
            0 => ExitCode::SUCCESS,
            _ => ExitCode::from(2),
        },
        _ => reshard_cli::main_linked(),
    }
}

/// Calls all of the library that reads, one after the other; how many calls failed.
fn failures(dir: &str) -> usize {
    let opened = blocking::Checkpoint::open(dir);
    let mut failed = 0;
    let mut told = |what: &str, done: Result<()>| {
        if let Err(e) = done {
            failed += 1;
            // Who has gone needs no message.
            writeln!(stderr(), "error: {what}: {e:#}").unwrap_or(());
        }
    };
    told(
        "common",
        blocking::load_common(dir).map(drop).map_err(Into::into),
    );
    told(
        "plain tensors",
        blocking::load_plain_tensors(dir)
            .map(drop)
            .map_err(Into::into),
    );
    let checkpoint = match opened {
        Ok(checkpoint) => checkpoint,
        Err(e) => {
            told("open", Err(e.into()));
            return failed;
        }
    };
    told("state", checkpoint.state().map(drop).map_err(Into::into));
    for key in checkpoint.objects().take(FEW) {
        told(
            "object",
            checkpoint.object(key).map(drop).map_err(Into::into),
        );
    }
    for tensor in checkpoint.tensors().take(FEW) {
        for region in tensor.blocks(1 << 20).take(FEW) {
            told("block", tensor.read(region).map(drop).map_err(Into::into));
        }
    }
    told("load", load(&checkpoint, dir));
    failed
}

/// Of many keys or blocks so many are read.
const FEW: usize = 3;

/// A template of some keys, and of one that is nearly another.
fn load(checkpoint: &blocking::Checkpoint, dir: &str) -> Result<()> {
    let mut template = StateDict::new();
    for t in checkpoint.tensors().take(FEW) {
        template.insert(
            t.key(),
            ShardedTensor::template(t.key(), t.dtype(), t.shape()),
        );
        let near = format!("{}'", t.key());
        template.insert(&*near, ShardedTensor::template(&near, DType::Float32, &[1]));
    }
    template.insert("nothing", Value::None);
    blocking::load(template, dir)
        .map(drop)
        .map_err(|e| e.into_parts().0.into())
}
