//! What is in memory of files that are sound.

use crate::{
    asm::{Asm, FS, MD, bytes_item, same},
    counting::{peak_of, turn},
};
use reshard_storage::LocalStore;
use reshard_strategy::{LoadShardedStrategy, OpenCx};
use reshard_torch_dist::{TorchDistLoadConfig, parse_metadata};
use std::sync::Arc;

/// A tensor of so many chunks of one row, each with its place. Columns that grow by doubling have no room left then.
const CHUNKS: u32 = 1 << 14;

fn large() -> Vec<u8> {
    // In batches, as PyTorch does.
    let batch = |a: Asm, i: u32, end: &[u8]| {
        if i % 512 == 511 {
            a.op(end).op(b"(")
        } else {
            a
        }
    };
    let chunk = |a: Asm, i| {
        let a = a.object(MD, "ChunkStorageMetadata", |a| {
            a.str("offsets").size(&[i, 0]).str("sizes").size(&[1, 8])
        });
        batch(a, i, b"e")
    };
    let place = |a: Asm, i| {
        let index = a.object(MD, "MetadataIndex", |a| {
            a.str("fqn")
                .str("w")
                .str("index")
                .int(i)
                .str("offset")
                .size(&[i, 0])
        });
        let a = index.object(FS, "_StorageInfo", |a| {
            a.str("relative_path")
                .str("__0_0.distcp")
                .str("offset")
                .int(64 * i)
                .str("length")
                .int(64)
        });
        batch(a, i, b"u")
    };
    Asm::new().metadata(
        |a| {
            a.str("w").object(MD, "TensorStorageMetadata", |a| {
                let a = a
                    .str("properties")
                    .properties(same)
                    .str("size")
                    .size(&[CHUNKS, 8]);
                a.str("chunks").op(b"](").many(CHUNKS, chunk).op(b"e")
            })
        },
        |a| a.many(CHUNKS, place),
        same,
    )
}

#[test]
fn a_file_is_given_back_before_the_table_is_built() {
    let _turn = turn();
    let pickle = large();
    let len = pickle.len();
    let (found, peak) = peak_of(|| parse_metadata(pickle.clone()));
    assert_eq!(found.unwrap(), (1, CHUNKS as usize, 0));
    let each = peak.saturating_sub(len) as f64 / f64::from(CHUNKS);
    // Those of the columns. Beside a file that stays, what is built of them would be 14 more.
    assert!(each <= 72.0, "{each} bytes a chunk beside the file");
}

/// A file of one object, with a megabyte that means nothing.
fn rank(r: u32) -> Vec<u8> {
    let a = Asm::new()
        .op(b"B")
        .op(&MIB.to_le_bytes())
        .op(&vec![0; MIB as usize])
        .op(b"0");
    a.metadata(|a| bytes_item(a, &format!("o{r}")), same, same)
}

const MIB: u32 = 1 << 20;

#[test]
fn of_the_files_of_all_ranks_one_is_in_memory_at_a_time() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    for r in 0..8 {
        std::fs::write(dir.path().join(format!("__{r}.metadata")), rank(r)).unwrap();
    }
    let cx = OpenCx::new(Arc::new(
        LocalStore::open(dir.path().to_str().unwrap()).unwrap(),
    ));
    let strategy = LoadShardedStrategy::new(TorchDistLoadConfig::default());
    let (reader, peak) = peak_of(|| futures::executor::block_on(strategy.open(&cx)));
    assert_eq!(reader.unwrap().metadata().object_count(), 8);
    assert!(peak < 2 * MIB as usize, "{peak}");
}
