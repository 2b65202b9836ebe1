//! Every stored item of a folder of checkpoints that PyTorch and Megatron wrote, if there is one: set `RESHARD_FIXTURES`.
#![expect(clippy::unwrap_used, reason = "a test")]

use bytes::Bytes;
use reshard_torch_format::{
    Limits, TensorRef,
    archive::{Archive, ArchiveOptions, Era, Verify, write_archive},
};
use serde_json::Value as Json;
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};

/// `(folder, expected.json)` of every sound checkpoint.
fn checkpoints() -> Vec<(PathBuf, Json)> {
    let Some(root) = std::env::var_os("RESHARD_FIXTURES") else { return Vec::new() };
    let mut out: Vec<(PathBuf, Json)> = Vec::new();
    let mut folders = vec![PathBuf::from(root).join("dcp")];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        for entry in entries.map(|e| e.unwrap().path()).filter(|p| p.is_dir()) {
            match std::fs::read(entry.join("expected.json")) {
                Ok(text) => out.push((entry, serde_json::from_slice(&text).unwrap())),
                Err(_) => folders.push(entry),
            }
        }
    }
    out.retain(|(_, e)| e["expect"] == "ok");
    out.sort_by(|a, b| a.0.cmp(&b.0));
    out
}

fn blob(folder: &Path, at: &Json) -> Option<Bytes> {
    let file = std::fs::read(folder.join("ckpt").join(at["file"].as_str()?)).ok()?;
    let (from, len) = (at["offset"].as_u64()? as usize, at["length"].as_u64()? as usize);
    file.get(from..from + len).map(Bytes::copy_from_slice).filter(|b| b.starts_with(b"PK"))
}

#[test]
fn every_tensor_is_read_and_written_again_byte_for_byte() {
    let mut count = 0;
    for (folder, expected) in checkpoints() {
        let Some(tensors) = expected["tensors"].as_object() else { continue };
        for (fqn, t) in tensors {
            for chunk in t["chunks"].as_array().into_iter().flatten() {
                let Some(blob) = blob(&folder, chunk) else { continue };
                let name = format!("{} {fqn}", folder.display());
                let archive = Archive::open(blob.clone(), &Limits::default()).expect(&name);
                let pickle = archive.read("data.pkl", Verify::Crc).expect(&name);
                let tensor = TensorRef::parse(&pickle, &Limits::default()).expect(&name);
                assert_eq!(tensor.pickle().unwrap(), pickle, "{name}");
                let era = match archive.directory().find(".format_version") {
                    Some(_) => Era::Torch27,
                    None => Era::Torch21,
                };
                let data = archive.read(&tensor.storage.record(), Verify::Crc).expect(&name);
                let again =
                    write_archive(&pickle, &[&data], &ArchiveOptions::default().with_era(era)).unwrap();
                assert!(again == blob, "{name}");
                let order = archive.byte_order().unwrap();
                let tensor = tensor.tensor(std::sync::Arc::new(data), order).expect(&name);
                assert_eq!(tensor.dtype().name(), t["dtype"].as_str().unwrap(), "{name}");
                if t["chunks"].as_array().map(Vec::len) == Some(1) && t["sha256"].is_string() {
                    let sum = Sha256::digest(tensor.to_bytes());
                    let sum: String = sum.iter().map(|b| format!("{b:02x}")).collect();
                    assert_eq!(sum, t["sha256"].as_str().unwrap(), "{name}");
                }
                count += 1;
            }
        }
    }
    println!("{count} tensors");
}
