//! A checkpoint is a folder, files with a prefix or one file; a place may be opened by the program and handed in.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use async_trait::async_trait;
use reshard::{
    BackendVersion, DType, Dialect, ErrorKind, OpenOptions, Registry, ShardedTensor, StateDict,
    Tensor,
    blocking::{self, Checkpoint},
    storage::{LocalStore, Name, PlaceKind, Store, StoreExt},
    strategy::{
        Detection, FormatInfo, LoadFormat, Make, OpenCx, Registration, Result, StorageReader,
    },
};
use reshard_example::{ExampleConfig, ExampleLoadConfig};
use reshard_storage::testkit::MemoryStore;
use std::{collections::BTreeMap, fs, path::Path, sync::Arc};

const INFO: FormatInfo = FormatInfo {
    backend: "one_file",
    detect: Some(|top| match top.names().all(|name| name.ends_with(".one")) {
        true => Detection::Yes,
        false => Detection::No,
    }),
    lives_in: &[PlaceKind::File],
    also_loads: &[3],
    ..FormatInfo::NEW
};

/// A whole checkpoint of the example format in one file: a JSON object of its files.
#[derive(Clone, Debug)]
struct OneFile;

#[async_trait]
impl LoadFormat for OneFile {
    fn info(&self) -> &FormatInfo {
        &INFO
    }

    fn settings(&self) -> serde_json::Value {
        serde_json::json!({})
    }

    async fn open(&self, cx: &OpenCx) -> Result<Arc<dyn StorageReader>> {
        let only = cx.store.files().await?.remove(0);
        let bytes = cx.store.read(&only.name, 0..only.bytes).await?;
        let files: BTreeMap<Name, Vec<u8>> = serde_json::from_slice(&bytes).unwrap();
        let store = MemoryStore::new();
        files
            .into_iter()
            .for_each(|(name, bytes)| store.put(name, bytes.into()));
        ExampleLoadConfig::default()
            .open(&OpenCx::new(Arc::new(store)).with_limits(cx.limits))
            .await
    }
}

fn registry() -> Registry {
    let mut all = Registry::linked().unwrap();
    all.register(Registration {
        backend: "one_file",
        version: 1,
        origin: "this test",
        origin_version: "0.0.0",
        make: Make::LoadSharded(|_| Ok(Arc::new(OneFile))),
    })
    .unwrap();
    all
}

fn save(dir: &Path) {
    let mut state = StateDict::new();
    state.insert(
        "w",
        ShardedTensor::full("w", Tensor::from_vec(&[3], vec![1u8, 2, 3]).unwrap()),
    );
    let url = dir.display().to_string();
    blocking::run(
        reshard::save(&state, &url)
            .dialect(Dialect::Dcp)
            .strategy(ExampleConfig::default()),
    )
    .unwrap();
}

fn template() -> StateDict {
    let mut template = StateDict::new();
    template.insert("w", ShardedTensor::template("w", DType::UInt8, &[3]));
    template
}

fn open(options: OpenOptions, at: &Path) -> reshard::Result<Checkpoint> {
    Checkpoint::open_with(options.registry(registry()), at.display().to_string())
}

fn said(e: &reshard::Error) -> String {
    reshard::strategy::with_sources(e.to_string(), e)
}

#[test]
fn a_format_of_folders_is_not_asked_about_files_with_a_prefix() {
    let home = tempfile::tempdir().unwrap();
    let at = |name: &str| home.path().join(name);
    // The ending would be the name of one of its files.
    let dcp = at("dcp");
    blocking::run(
        reshard::save(&template_of_zeros(), dcp.display().to_string()).dialect(Dialect::Dcp),
    )
    .unwrap();
    fs::copy(dcp.join(".metadata"), at("x.metadata")).unwrap();
    let e = open(OpenOptions::new(), &at("x")).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NotFound, "{}", said(&e));
}

fn template_of_zeros() -> StateDict {
    let mut state = StateDict::new();
    state.insert(
        "w",
        ShardedTensor::full("w", Tensor::zeros("w", DType::UInt8, &[3]).unwrap()),
    );
    state
}

#[test]
fn one_file_is_a_checkpoint_of_a_format_that_has_such() {
    let home = tempfile::tempdir().unwrap();
    let at = |name: &str| home.path().join(name);
    save(&at("folder"));
    let files: BTreeMap<String, Vec<u8>> = fs::read_dir(at("folder"))
        .unwrap()
        .map(|e| e.unwrap().path())
        .map(|path| {
            (
                path.file_name().unwrap().to_str().unwrap().to_owned(),
                fs::read(path).unwrap(),
            )
        })
        .collect();
    for name in ["all.one", "all.other"] {
        fs::write(at(name), serde_json::to_vec(&files).unwrap()).unwrap();
    }
    let key = || BackendVersion::new("one_file", 1);
    for (name, options) in [
        ("all.one", OpenOptions::new()),
        ("all.other", OpenOptions::new().format(key())),
    ] {
        let found = open(options, &at(name)).unwrap();
        assert_eq!(
            found
                .tensor("w")
                .unwrap()
                .read(reshard::Region::rows(1..2))
                .unwrap()
                .to_vec::<u8>()
                .unwrap(),
            [2]
        );
        assert_eq!(*found.backend(), key());
    }
    let url = at("all.one").display().to_string();
    let loaded = blocking::run(reshard::load(template(), &url).registry(registry())).unwrap();
    assert_eq!(
        loaded
            .get("w")
            .unwrap()
            .leaf()
            .unwrap()
            .as_tensor()
            .unwrap()
            .to_vec::<u8>()
            .unwrap(),
        [1, 2, 3]
    );
    let e = said(&open(OpenOptions::new(), &at("all.other")).unwrap_err());
    assert!(
        e.contains("is a file, and its name is not one") && e.contains("one_file/1"),
        "{e}"
    );
    let e = Checkpoint::open(&url).unwrap_err();
    let told = said(&e);
    // Which other formats are linked depends on what is built together with this crate.
    assert!(
        told.contains("is a file, and") && !told.contains("one_file/1"),
        "{told}"
    );
    assert_eq!(e.kind(), ErrorKind::NotFound);
    // A format of folders that is chosen by hand reads no file.
    assert!(
        open(
            OpenOptions::new().format(BackendVersion::new("torch_dist", 1)),
            &at("all.one")
        )
        .is_err()
    );
}

#[test]
fn a_place_that_is_open_already_is_saved_to_and_loaded_from() {
    let place: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let mut state = StateDict::new();
    state.insert(
        "w",
        ShardedTensor::full("w", Tensor::from_vec(&[3], vec![4u8, 5, 6]).unwrap()),
    );
    // No store is linked for such a URL.
    let url = "bucket://of mine";
    blocking::run(reshard::save(&state, url).store(Arc::clone(&place))).unwrap();
    let loaded = blocking::run(reshard::load(template(), url).store(Arc::clone(&place))).unwrap();
    assert_eq!(
        loaded
            .get("w")
            .unwrap()
            .leaf()
            .unwrap()
            .as_tensor()
            .unwrap()
            .to_vec::<u8>()
            .unwrap(),
        [4, 5, 6]
    );
    let found = Checkpoint::open_with(OpenOptions::new().store(Arc::clone(&place)), url).unwrap();
    assert_eq!((found.url(), found.metadata().tensors().count()), (url, 1));
    let e = blocking::run(reshard::save(&state, url).store(place)).unwrap_err();
    assert!(
        e.kind() == ErrorKind::Exists && said(&e).contains(url),
        "{}",
        said(&e)
    );
    // A part of a folder that is handed in is a place as well.
    let home = tempfile::tempdir().unwrap();
    save(&home.path().join("x"));
    let folder = LocalStore::at(home.path().join("x")).unwrap();
    assert!(Checkpoint::open_with(OpenOptions::new().store(Arc::new(folder)), "x").is_ok());
}

#[test]
fn a_format_loads_what_it_says_that_it_loads_too() {
    let registry = registry();
    let found = |text: &str| {
        let config = registry.load_sharded(&text.parse().unwrap());
        config.map(|config| config.key().to_string())
    };
    assert_eq!(found("one_file/1").unwrap(), "one_file/1");
    assert_eq!(found("one_file/3").unwrap(), "one_file/1");
    found("one_file/2").unwrap_err();
}
