#![expect(clippy::unwrap_used, reason = "what is missing fails the test")]

use crate::fixtures::root;
use serde_json::Value;
use std::{fs, path::Path};

/// The cases of one of TensorFlow's golden files: of `RESHARD_FIXTURES` if it has such, else of this repository.
///
/// # Panics
/// When the file can't be read, or does not hold as many cases as it says.
pub fn cases(name: &str) -> Vec<Value> {
    let path = |root: &Path| root.join("tf/goldens").join(name).with_extension("json");
    let file = Some(path(&root())).filter(|file| file.exists());
    let file = file.unwrap_or_else(|| path(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures")));
    let golden: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    let cases = golden["cases"].as_array().unwrap().clone();
    assert_eq!(Some(cases.len() as u64), golden["n"].as_u64(), "{}", file.display());
    assert!(!cases.is_empty());
    cases
}
