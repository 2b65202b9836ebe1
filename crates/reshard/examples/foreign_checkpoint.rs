//! Opens a checkpoint that another program wrote. Says who wrote it, lists what it has, and reads a region as 32-bit floats, whatever its type.
//!
//! `cargo run -p reshard --example foreign_checkpoint [-- CHECKPOINT KEY]`
//!
//! With the features of other formats it opens theirs, too: `--features full` for safetensors, `torch.save`, Zarr and TensorFlow.

#![expect(clippy::print_stdout, reason = "an example, which a test runs")]

use reshard::prelude::*;

/// Written by PyTorch's FSDP2 with Adam, on 4 ranks; `tests/fixtures` has the script.
pub(crate) const FSDP: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../tests/fixtures/dcp/fsdp2_adam_w4/ckpt"
);

#[cfg_attr(test, expect(dead_code, reason = "arguments of a test are others"))]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let place = args.next().unwrap_or_else(|| FSDP.into());
    show(&place, args.next().as_deref()).map(drop)
}

/// Prints what there is. Returns the elements that it has read.
pub(crate) fn show(place: &str, key: Option<&str>) -> Result<Vec<f32>, Box<dyn std::error::Error>> {
    // The format is recognised by the files. Nothing that is stored is executed.
    let checkpoint = blocking::Checkpoint::open(place)?;
    let producer = checkpoint.producer();
    println!("format      {}", checkpoint.backend());
    println!("written by  {}", producer.written_by.join("; "));
    println!("loads in    {}", producer.loadable_by.join("; "));
    for tensor in checkpoint.tensors() {
        let chunks = tensor.chunks().len();
        println!(
            "{} {} {}, chunks: {chunks}",
            tensor.key(),
            tensor.dtype(),
            tensor.shape()
        );
    }

    let tensor = match key {
        Some(key) => checkpoint.tensor(key)?,
        None => checkpoint
            .tensors()
            .max_by_key(|tensor| tensor.nbytes())
            .ok_or("it has no tensor")?,
    };
    // At most two indexes of each axis. Only their bytes are read, from whichever files have them.
    let corner = tensor.shape().iter().map(|n| 2.min(*n));
    let region = Region::new(vec![0; tensor.shape().len()], corner.collect::<Vec<u64>>());
    let elements: Vec<f32> = tensor.read_as(region.clone())?;
    println!("{} {region}: {elements:?}", tensor.key());
    Ok(elements)
}
