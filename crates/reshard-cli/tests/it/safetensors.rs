//! safetensors, by the commands of the program.

use crate::run;
use reshard::{Dialect, StateDict, Tensor, blocking, safetensors::SafetensorsConfig};

/// A folder with a quantised tensor, and another one.
fn saved() -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let url = dir.path().join("model").display().to_string();
    let mut state = StateDict::new();
    state.insert(
        "e_blocks",
        Tensor::from_vec(&[2, 1, 4], vec![0x21u8; 8]).unwrap(),
    );
    state.insert(
        "e_scales",
        Tensor::from_vec(&[2, 1], vec![127u8; 2]).unwrap(),
    );
    state.insert("norm", Tensor::from_vec(&[3], vec![1f32, 2., 3.]).unwrap());
    let save = reshard::save(&state, &url)
        .dialect(Dialect::TensorsOnly)
        .strategy(SafetensorsConfig::default());
    blocking::run(save).unwrap();
    (dir, url)
}

#[test]
fn a_folder_and_its_file_are_listed_and_verified() {
    let (_dir, url) = saved();
    let file = format!("{url}/model.safetensors");
    for place in [&url, &file] {
        let ran = run(&["ls", place]).ok();
        assert!(ran.contains("e_blocks") && ran.contains("norm"), "{ran}");
        assert_eq!(run(&["verify", place]).code, 0);
    }
    let digest = |place: &str| run(&["digest", place]).ok();
    assert_eq!(digest(&url), digest(&file));
}

#[test]
fn quantised_tensors_are_read_as_numbers_if_asked_to() {
    let (_dir, url) = saved();
    let listed = run(&["ls", &url, "--dequantize"]).ok();
    assert!(
        listed.contains("float32") && !listed.contains("e_scales"),
        "{listed}"
    );
    assert!(!listed.contains("uint8"), "{listed}");
    let listed = run(&["ls", &url, "--dequantize=bfloat16"]).ok();
    assert!(listed.contains("bfloat16"), "{listed}");
    assert_eq!(
        run(&["ls", &url, "--dequantize=int8"]).code,
        2,
        "it is no floating-point type"
    );
}
