//! Quantised checkpoints, read as the numbers that they stand for.
//!
//! - Block float8, as DeepSeek has it: `X.weight` of a float8 type, with a scale in `X.weight_scale_inv` for each block of rows and columns.
//! - MXFP4, as gpt-oss has it: `X_blocks` of bytes, two numbers in each, with a scale in `X_scales` for each group.
//!
//! Only the wanted region is read, with the scales of its blocks.

mod math;
mod pairs;
mod reader;

pub(crate) use pairs::Quantization;
pub(crate) use reader::Dequantized;
