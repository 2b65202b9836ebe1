//! Reads some rows of a tensor out of a checkpoint that PyTorch wrote, and nothing else of it.
//!
//! `cargo run -p reshard --example read_a_region [-- CHECKPOINT KEY]`

#![expect(clippy::print_stdout, reason = "an example, which a test runs")]

use reshard::prelude::*;

/// Written by `torch.distributed.checkpoint`; `tests/fixtures` has the script.
pub(crate) const GOLDEN: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../tests/fixtures/dcp/dt_1d_w3/ckpt"
);

#[cfg_attr(test, expect(dead_code, reason = "arguments of a test are others"))]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    first_row(args.next().as_deref().unwrap_or(GOLDEN), args.next())
}

pub(crate) fn first_row(url: &str, key: Option<String>) -> Result<(), Box<dyn std::error::Error>> {
    let checkpoint = blocking::Checkpoint::open(url)?;
    for tensor in checkpoint.tensors() {
        println!("{} {} {}", tensor.key(), tensor.dtype(), tensor.shape());
    }
    let tensor = match key {
        Some(key) => checkpoint.tensor(&key)?,
        None => checkpoint
            .tensors()
            .find(|t| t.shape().len() == 2)
            .ok_or("it has no matrix")?,
    };
    // The bytes of the first row are read, wherever they lie.
    let row = tensor.read(Region::rows(0..1))?;
    println!(
        "the first row of {} has {} bytes",
        tensor.key(),
        row.nbytes()
    );
    Ok(())
}
