//! Fixtures in safetensors, which say less than those of other formats.

use crate::root;
use serde_json::Value as Json;
use std::{fs, path::PathBuf};

/// A checkpoint with what is known of it.
#[derive(Debug)]
pub struct OfSafetensors {
    /// Path below the root: `dcp/hf_rank0`.
    pub name: String,
    /// Its folder.
    pub folder: PathBuf,
    /// What its writer said: `tensors`, and `dequantized`.
    pub expected: Json,
}

impl OfSafetensors {
    /// The folders that hold the same tensors: the checkpoint, and the files of ranks of which it was put together.
    pub fn places(&self) -> Vec<PathBuf> {
        let whole = self.folder.join("ckpt");
        let sharded = whole.join("sharded");
        [whole, sharded]
            .into_iter()
            .filter(|place| place.is_dir())
            .collect()
    }
}

/// All of them, by name.
///
/// # Panics
/// When there is none, or one can't be parsed: a test that looks at nothing proves nothing.
pub fn of_safetensors() -> Vec<OfSafetensors> {
    let folders = fs::read_dir(root().join("dcp")).into_iter().flatten();
    let mut out = Vec::new();
    for entry in folders.filter_map(Result::ok) {
        let folder = entry.path();
        let Ok(text) = fs::read_to_string(folder.join("expected.json")) else {
            continue;
        };
        let parsed: Json = serde_json::from_str(&text).unwrap_or_default();
        let name = format!("dcp/{}", entry.file_name().display());
        if parsed["format"] == "safetensors" {
            let expected = parsed;
            out.push(OfSafetensors {
                name,
                folder,
                expected,
            });
        }
    }
    out.sort_by(|a, b| a.name.cmp(&b.name));
    assert!(
        !out.is_empty(),
        "no fixtures of safetensors in {}",
        root().display()
    );
    out
}
