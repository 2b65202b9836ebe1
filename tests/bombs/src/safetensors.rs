//! Files of safetensors.

use crate::checkpoint::put_sparse;
use anyhow::Result;
use std::path::Path;

/// A tensor of a file: key, type, shape, and how many bytes it has.
pub type Tensor<'t> = (&'t str, &'t str, &'t [u64], u64);

/// The header of a file with these tensors, and the bytes that they have together.
pub fn header(tensors: &[Tensor<'_>]) -> (String, u64) {
    let (mut entries, mut at) = (Vec::with_capacity(tensors.len()), 0);
    for (key, dtype, shape, bytes) in tensors {
        let end = at + bytes;
        entries.push(format!(
            r#""{key}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{at},{end}]}}"#
        ));
        at = end;
    }
    (format!("{{{}}}", entries.join(",")), at)
}

/// Writes a file with a header, and a hole of so many bytes behind it.
///
/// # Errors
/// I/O.
pub fn put_header(dir: &Path, name: &str, header: &str, bytes: u64) -> Result<()> {
    let length = header.len() as u64;
    let text = [&length.to_le_bytes(), header.as_bytes()].concat();
    put_sparse(dir, name, &text, 8 + length + bytes)
}

/// Writes a file of tensors whose elements are all 0.
///
/// # Errors
/// I/O.
pub fn put_tensors(dir: &Path, name: &str, tensors: &[Tensor<'_>]) -> Result<()> {
    let (header, bytes) = header(tensors);
    put_header(dir, name, &header, bytes)
}
