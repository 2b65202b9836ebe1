//! A checkpoint that says nothing of its format is told by the names of its files; where those of two formats lie, by the user.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use reshard::{
    BackendVersion, CommonForm, Dialect, ErrorKind, OpenOptions, ShardedTensor, StateDict,
    StoredCommon, Tensor, Value,
    blocking::{self, Checkpoint},
    torch_dist::TorchDistLoadConfig,
};
use reshard_example::ExampleConfig;
use std::{fs, path::Path};

fn state(n: f32) -> StateDict {
    let mut state = StateDict::new();
    state.insert(
        "w",
        ShardedTensor::full("w", Tensor::from_vec(&[2], vec![n, n]).unwrap()),
    );
    state
}

fn element(checkpoint: &Checkpoint) -> f32 {
    checkpoint
        .tensor("w")
        .unwrap()
        .read(..)
        .unwrap()
        .to_vec::<f32>()
        .unwrap()[0]
}

fn open(url: &str, format: Option<&str>) -> reshard::Result<Checkpoint> {
    let options = OpenOptions::new();
    Checkpoint::open_with(
        match format {
            Some(name) => options.format(name.parse().unwrap()),
            None => options,
        },
        url,
    )
}

fn copy(from: &Path, to: &Path, name: &str) {
    fs::copy(from.join(name), to.join(name)).unwrap();
}

#[test]
fn what_a_checkpoint_says_of_itself_comes_before_names_and_names_before_nothing() {
    let home = tempfile::tempdir().unwrap();
    let [ours, theirs] = ["ours", "theirs"].map(|d| home.path().join(d));
    let [url, other] = [&ours, &theirs].map(|d| d.display().to_string());
    let (one, two) = (state(1.), state(2.));
    let example = reshard::save(&one, &url).dialect(Dialect::Dcp);
    blocking::run(example.strategy(ExampleConfig::default())).unwrap();
    blocking::run(reshard::save(&two, &other).dialect(Dialect::Dcp)).unwrap();
    let key = |name: &str| name.parse::<BackendVersion>().unwrap();

    // A file of the other format beside it changes nothing while reshard.json says which one it is.
    copy(&theirs, &ours, ".metadata");
    copy(&theirs, &ours, "__0_0.distcp");
    let touch = |name: &str, secs: u64| {
        let file = fs::File::options()
            .write(true)
            .open(ours.join(name))
            .unwrap();
        file.set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_secs(secs))
            .unwrap();
    };
    touch("example.index.json", 2_000);
    touch(".metadata", 2_000);
    assert_eq!(open(&url, None).unwrap().backend(), &key("example"));
    // One that came later may be a save of a program that knows nothing of the note.
    touch(".metadata", 3_000);
    assert_eq!(open(&url, None).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(
        open(&url, Some("torch_dist")).unwrap().backend(),
        &key("torch_dist")
    );
    // Such a place is not overwritten.
    let e = blocking::run(reshard::save(&one, &url).overwrite(true)).unwrap_err();
    assert!(
        e.to_string().contains("of example/1 and of torch_dist/1"),
        "{e}"
    );
    touch(".metadata", 1_000);
    fs::remove_file(ours.join("reshard.json")).unwrap();
    let e = open(&url, None).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Invalid);
    let said = reshard::strategy::with_sources(e.to_string(), &e);
    assert!(said.contains("example/1 or of torch_dist/1"), "{said}");
    for (name, element_is) in [("example", 1.), ("torch_dist", 2.)] {
        let checkpoint = open(&url, Some(name)).unwrap();
        assert_eq!(
            (checkpoint.backend(), element(&checkpoint)),
            (&key(name), element_is)
        );
    }
    // The program says how to choose, and is told.
    let run = |args: &[&str]| {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let program = reshard_cli::Program::new(
            reshard::Registry::linked().unwrap(),
            reshard::Stores::linked().unwrap(),
        );
        let mut io = reshard_cli::Io {
            out: &mut out,
            err: &mut err,
            bars: false,
        };
        let code = program.run(args, &mut io);
        (
            code,
            String::from_utf8(out).unwrap() + &String::from_utf8(err).unwrap(),
        )
    };
    let (code, told) = run(&["reshard", "ls", &url]);
    assert!(
        code == 2 && told.contains("choose one of them with --format NAME"),
        "{code} {told}"
    );
    let (code, told) = run(&["reshard", "verify", &url, "--format", "example/1"]);
    assert_eq!(code, 0, "{told}");
    let (code, told) = run(&["reshard", "prune", &url, "--dry-run", "--format", "example"]);
    assert!(code == 0 && told.contains(".metadata"), "{code} {told}");

    for name in [".metadata", "__0_0.distcp"] {
        fs::remove_file(ours.join(name)).unwrap();
    }
    assert_eq!(open(&url, None).unwrap().backend(), &key("example"));
    // Data of torch_dist without its metadata are likely an unfinished save of it, and that is what is told.
    fs::remove_file(theirs.join(".metadata")).unwrap();
    let e = open(&other, None).unwrap_err();
    assert!(e.to_string().contains("there is no .metadata"), "{e}");
    fs::rename(theirs.join("__0_0.distcp"), theirs.join("weights.bin")).unwrap();
    let e = open(&other, None).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NotFound);
    for format in [
        "example/1 (example.index.json)",
        "torch_dist/1 (.metadata, ",
    ] {
        assert!(e.to_string().contains(format), "{e}");
    }
}

#[test]
fn in_megatrons_dialect_metadata_json_names_the_format() {
    let home = tempfile::tempdir().unwrap();
    let url = home.path().join("x").display().to_string();
    blocking::run(reshard::save(&state(3.), &url).strategy(ExampleConfig::default())).unwrap();
    fs::write(home.path().join("x/.metadata"), "of another program").unwrap();
    let checkpoint = open(&url, None).unwrap();
    assert_eq!(
        (checkpoint.dialect(), element(&checkpoint)),
        (Dialect::Megatron, 3.)
    );
    let e = open(&url, Some("torch_dist")).unwrap_err();
    assert!(
        e.to_string()
            .contains("a checkpoint of example/1 is not supported by torch_dist/1"),
        "{e}"
    );
}

#[test]
fn settings_are_no_choice_of_another_format_and_files_of_others_are_no_sign_of_megatron() {
    let home = tempfile::tempdir().unwrap();
    let url = home.path().join("x").display().to_string();
    let state = state(4.);
    let save = || {
        reshard::save(&state, &url)
            .strategy(ExampleConfig::default())
            .dialect(Dialect::Dcp)
    };
    blocking::run(save()).unwrap();
    let with = |options: OpenOptions| Checkpoint::open_with(options, &url);
    let settings = || OpenOptions::new().strategy(TorchDistLoadConfig::default());
    let e = with(settings()).unwrap_err();
    assert!(
        e.to_string()
            .contains("a checkpoint of example/1 is not supported by torch_dist/1"),
        "{e}"
    );
    let e = with(settings().format(BackendVersion::new("example", 1))).unwrap_err();
    assert!(
        e.to_string().contains(
            "the settings are of torch_dist/1, so they can't open a checkpoint as example/1"
        ),
        "{e}"
    );

    // A common.pt of somebody is not that of an unfinished save, while reshard.json says what lies here.
    fs::write(home.path().join("x/common.pt"), "of another program").unwrap();
    assert_eq!(element(&open(&url, None).unwrap()), 4.);
    fs::remove_file(home.path().join("x/reshard.json")).unwrap();
    let e = open(&url, None).unwrap_err();
    assert!(e.to_string().contains("its save was never finished"), "{e}");
    assert_eq!(element(&open(&url, Some("example")).unwrap()), 4.);
    fs::remove_file(home.path().join("x/common.pt")).unwrap();
    // It is known by its names alone, so it can be replaced by them.
    blocking::run(save().overwrite(true)).unwrap();
}

#[test]
fn common_state_may_be_an_object_of_any_format() {
    let home = tempfile::tempdir().unwrap();
    let url = home.path().join("x").display().to_string();
    let mut state = state(5.);
    state.insert("step", 7);
    let save = reshard::save(&state, &url).strategy(ExampleConfig::default());
    blocking::run(save.common_form(CommonForm::Object)).unwrap();
    assert!(!home.path().join("x/common.pt").exists());
    let common = blocking::load_common(&url).unwrap();
    assert_eq!(
        common.get("step").and_then(|step| step.leaf()),
        Some(&Value::Int(7))
    );
    let report = open(&url, None)
        .unwrap()
        .verify(true, Default::default())
        .unwrap();
    assert!(report.damage.is_empty(), "{report:?}");

    // As a tool copies it that has read it from torch_dist, where the cell is a list.
    let mut tensors = StateDict::new();
    let w = Tensor::from_vec(&[1], vec![5.]).unwrap();
    tensors.insert("w", ShardedTensor::full("w", w));
    let common = Value::Dict(vec![("step".into(), 8.into())]);
    let common = StoredCommon::new(CommonForm::Object, common);
    let save = reshard::save(&tensors, &url).stored_common(common);
    let save = save.overwrite(true).strategy(ExampleConfig::default());
    blocking::run(save).unwrap();
    let common = blocking::load_common(&url).unwrap();
    assert_eq!(common.int("step").unwrap(), 8);
}
