//! Items of one shape are recognised by their likeness: what is read of one does not depend on what was read before it.

use futures::executor::block_on;
use proptest::prelude::*;
use reshard::{DType, Durability, Region, ShardedTensor, StateDict, Tensor, Value};
use reshard_laws::law;
use std::{fs, path::Path};

const TENSORS: u64 = 6;
const ROWS: u64 = 50;
const COLUMNS: u64 = 32;

fn key(i: u64) -> String {
    format!("t{i}")
}

fn dtype(i: u64) -> DType {
    if i.is_multiple_of(3) {
        DType::Int32
    } else {
        DType::Float32
    }
}

fn elements(i: u64) -> Vec<u8> {
    (0..ROWS * COLUMNS * 4)
        .map(|n| (n * 7 + i * 13) as u8)
        .collect()
}

/// Bytes of a file that are no elements.
fn around(file: &[u8]) -> Vec<usize> {
    let mut rest: Vec<usize> = (0..file.len()).collect();
    for i in 0..TENSORS {
        let want = elements(i);
        let at = file.windows(want.len()).position(|w| w == want).unwrap();
        rest.retain(|byte| !(at..at + want.len()).contains(byte));
    }
    rest
}

fn write(dir: &Path) {
    let mut state = StateDict::new();
    for i in 0..TENSORS {
        let tensor = Tensor::new(dtype(i), &[ROWS, COLUMNS], elements(i)).unwrap();
        state.insert(key(i), ShardedTensor::full(&key(i), tensor));
    }
    block_on(async {
        reshard::save(&state, dir.display().to_string())
            .durability(Durability::Process)
            .await
    })
    .unwrap();
}

/// The wanted rows of these tensors; `None` if any of them can't be read.
fn read(
    dir: &Path,
    which: impl Iterator<Item = u64>,
    rows: &Region,
    verify: bool,
) -> Option<Vec<Vec<u8>>> {
    let (mut template, mut keys) = (StateDict::new(), Vec::new());
    for i in which {
        keys.push(key(i));
        let leaf = ShardedTensor::region_of(&key(i), dtype(i), &[ROWS, COLUMNS], rows.clone());
        template.insert(key(i), leaf);
    }
    let loaded = block_on(async {
        reshard::load(template, dir.display().to_string())
            .verify(verify)
            .await
    });
    let loaded = loaded.ok()?;
    let tensor = |key: &String| {
        loaded
            .get(key)?
            .leaf()
            .and_then(Value::as_tensor)
            .map(|t| t.to_bytes().to_vec())
    };
    keys.iter().map(tensor).collect()
}

proptest! {
    #![proptest_config(law(150))]

    #[test]
    fn what_is_read_with_others_is_what_is_read_alone(
        from in 0..ROWS, len in 1..=ROWS, at in any::<prop::sample::Index>(), bit in 0u8..8, verify in any::<bool>(),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("c");
        write(&dir);
        let file = dir.join("__0_0.distcp");
        let mut bytes = fs::read(&file).unwrap();
        // Elements are most of the file; what lies around them is what matters here.
        let around = around(&bytes);
        bytes[around[at.index(around.len())]] ^= 1 << bit;
        fs::write(&file, bytes).unwrap();

        let rows = Region::new([from, 0], [len.min(ROWS - from), COLUMNS]);
        let alone: Option<Vec<_>> = (0..TENSORS)
            .map(|i| Some(read(&dir, [i].into_iter(), &rows, verify)?.remove(0)))
            .collect();
        let together = read(&dir, 0..TENSORS, &rows, verify);
        prop_assert!(together == alone, "alone {}, together {}", alone.is_some(), together.is_some());
        let right = |(i, got): (usize, &Vec<u8>)| {
            let row = COLUMNS as usize * 4;
            *got == elements(i as u64)[from as usize * row..][..got.len()]
        };
        prop_assert!(together.iter().flat_map(|t| t.iter().enumerate()).all(right));
    }
}
