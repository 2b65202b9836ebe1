//! Names that Megatron Core has for itself.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use reshard::{CommonForm, Dialect, ErrorKind, ShardedObject, StateDict, Value};

fn save(
    state: &StateDict,
    form: CommonForm,
    dialect: Dialect,
) -> reshard::Result<reshard::SaveReport> {
    let dir = tempfile::tempdir().unwrap();
    let url = dir.path().join("ckpt").display().to_string();
    let saved = reshard::blocking::run(
        reshard::save(state, &url)
            .common_form(form)
            .dialect(dialect),
    );
    assert_eq!(saved.is_ok(), dir.path().join("ckpt").exists());
    saved
}

#[test]
fn keys_of_common_state_are_refused_at_the_top_and_only_there() {
    for key in ["common_state", "content_metadata"] {
        let mut state = StateDict::new();
        state.insert(key, 1);
        for form in [CommonForm::File, CommonForm::Object] {
            let error = save(&state, form, Dialect::Megatron).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.to_string().contains(key), "{error}");
        }
        save(&state, CommonForm::File, Dialect::Dcp).unwrap();
        let mut outer = StateDict::new();
        outer.insert_tree("inner", state);
        save(&outer, CommonForm::File, Dialect::Megatron).unwrap();
    }
}

#[test]
fn a_sharded_object_cannot_pass_for_common_state() {
    let mut state = StateDict::new();
    let object = ShardedObject::new("common_state", Value::Int(1), &[1], &[0], 0).unwrap();
    state.insert("mine", object);
    let error = save(&state, CommonForm::File, Dialect::Megatron).unwrap_err();
    assert!(
        error.to_string().contains("mine") && error.to_string().contains("common_state"),
        "{error}"
    );
}

#[test]
fn metadata_json_is_byte_for_byte_megatrons() {
    let dir = tempfile::tempdir().unwrap();
    let url = dir.path().join("ckpt").display().to_string();
    reshard::blocking::save(&StateDict::new(), &url).unwrap();
    let bytes = std::fs::read(dir.path().join("ckpt/metadata.json")).unwrap();
    let want = r#"{"sharded_backend": "torch_dist", "sharded_backend_version": 1, "common_backend": "torch", "common_backend_version": 1}"#;
    assert_eq!(String::from_utf8(bytes).unwrap(), want);
}
