#![expect(clippy::unwrap_used, reason = "what is missing fails the test")]

use crate::root;
use serde_json::Value;
use std::{fs, io, path::Path};

/// The cases of one of TensorFlow's golden files.
///
/// # Panics
/// When the file is not there, can't be read, or does not hold as many cases as it says.
pub fn cases(name: &str) -> Vec<Value> {
    let file = root().join("tf/goldens").join(name).with_extension("json");
    let text = fs::read_to_string(&file).unwrap_or_else(|e| missing(&file, &e));
    let golden: Value = serde_json::from_str(&text).unwrap();
    let cases = golden["cases"].as_array().unwrap().clone();
    assert_eq!(
        Some(cases.len() as u64),
        golden["n"].as_u64(),
        "{}",
        file.display()
    );
    assert!(!cases.is_empty());
    cases
}

#[expect(
    clippy::panic,
    reason = "for tests: a folder without the cases must not be passed over"
)]
fn missing(file: &Path, why: &io::Error) -> ! {
    panic!(
        "{}: {why}; it has to be in the folder that RESHARD_FIXTURES names",
        file.display()
    )
}
