//! What `verify` says of records that it checks in pieces.

use reshard::{Dialect, StateDict, Tensor, blocking, storage::Progress};
use std::os::unix::fs::FileExt;

/// More than one piece of 4 MiB, and not a whole number of them.
const ELEMENTS: u64 = (9 << 20) / 4 + 5;

#[test]
fn a_wrong_byte_anywhere_in_a_large_record_is_damage() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("step");
    let url = dir.display().to_string();
    let mut state = StateDict::new();
    let values: Vec<f32> = (0..ELEMENTS).map(|i| i as f32).collect();
    state.insert("w", Tensor::from_vec(&[ELEMENTS], values).unwrap());
    blocking::run(reshard::save(&state, &url).dialect(Dialect::Dcp)).unwrap();
    let opened = blocking::run(reshard::Checkpoint::open(&url)).unwrap();
    let verify = || blocking::run(opened.verify(true, Progress::default())).unwrap();
    let report = verify();
    assert!(
        report.damage.is_empty() && report.unchecked.is_empty(),
        "{report:?}"
    );

    let file = std::fs::File::options()
        .read(true)
        .write(true)
        .open(dir.join("__0_0.distcp"))
        .unwrap();
    let bytes = std::fs::read(dir.join("__0_0.distcp")).unwrap();
    let elements: Vec<u8> = (0..64u64).flat_map(|i| (i as f32).to_le_bytes()).collect();
    let first = bytes
        .windows(elements.len())
        .position(|w| w == elements)
        .unwrap() as u64;
    for at in [0, (4 << 20) - 1, 4 << 20, (8 << 20) + 7, ELEMENTS * 4 - 1].map(|at| first + at) {
        let was = bytes[at as usize];
        file.write_all_at(&[was ^ 0x10], at).unwrap();
        let report = verify();
        assert_eq!(report.damage.len(), 1, "byte {at}: {report:?}");
        let damage = &report.damage[0];
        assert_eq!(damage.key.as_deref(), Some("w"));
        assert_eq!(damage.file.as_deref(), Some("__0_0.distcp"));
        assert!(
            damage.what.contains("CRC-32 of archive/data/0"),
            "{damage:?}"
        );
        file.write_all_at(&[was], at).unwrap();
    }
    assert!(verify().damage.is_empty());
}
