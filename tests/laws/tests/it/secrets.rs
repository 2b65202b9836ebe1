//! No error of the library has the password or the signature of a URL, whatever is called with it.

use futures::executor::block_on;
use reshard::{OpenOptions, StateDict, Stores, Tensor, blocking, storage::StorageError};
use reshard_convert::convert;
use reshard_storage::LocalStore;
use std::{error::Error, iter::successors};

const URLS: [&str; 7] = [
    "file://user:PASSWORD@/a",
    "file://user:PASSWORD@host/a",
    "https://user:PASSWORD@127.0.0.1:1/a?X-Amz-Signature=SIGNATURE",
    "s3://key:PASS/WORD@bucket/a",
    "unknown://user:PASSWORD@host/a?token=SIGNATURE",
    "own://user:PASSWORD@host/a",
    "own://host/a?sig=SIGNATURE",
];

/// A store of somebody else, whose errors quote what it was given.
fn stores() -> Stores {
    let open = |url: &str| Err(StorageError::invalid(format!("{url} can't be opened")));
    Stores::linked().unwrap().with("own", open)
}

fn state() -> StateDict {
    let mut state = StateDict::new();
    state.insert("w", Tensor::from_vec(&[2], vec![1f32, 2.]).unwrap());
    state
}

type Failed = Box<dyn Error>;

fn failed<T, E: Error + 'static>(outcome: Result<T, E>) -> Failed {
    match outcome {
        Ok(_) => panic!("it worked"),
        Err(e) => Box::new(e),
    }
}

/// What goes wrong in each call that takes a place.
fn errors(url: &str) -> Vec<(&'static str, Failed)> {
    let dir = tempfile::tempdir().unwrap();
    let sound = dir.path().join("sound");
    blocking::save(&state(), &sound).unwrap();
    let source = blocking::Checkpoint::open(&sound).unwrap();
    let source = &*source;
    let run = |place: &str| block_on(reshard_manager::steps(place).stores(stores()).latest()).err();
    let mut all = vec![
        (
            "open",
            failed(block_on(OpenOptions::new().stores(stores()).open(url))),
        ),
        (
            "save",
            failed(block_on(async {
                reshard::save(&state(), url).stores(stores()).await
            })),
        ),
        (
            "load",
            failed(block_on(async {
                reshard::load(state(), url).stores(stores()).await
            })),
        ),
        (
            "prune",
            failed(block_on(async {
                reshard_manager::prune(url).stores(stores()).await
            })),
        ),
        (
            "remove",
            failed(block_on(async {
                reshard_manager::remove_sharded_tensors(url, "w")
                    .stores(stores())
                    .await
            })),
        ),
        (
            "remove_checkpoint",
            failed(block_on(async {
                reshard_manager::remove_checkpoint(url)
                    .stores(stores())
                    .await
            })),
        ),
        (
            "convert",
            failed(block_on(async {
                convert(source, url).stores(stores()).await
            })),
        ),
        (
            "convert, resumed",
            failed(block_on(async {
                convert(source, url)
                    .stores(stores())
                    .journal("none")
                    .resume(true)
                    .await
            })),
        ),
        ("load_common", failed(block_on(reshard::load_common(url)))),
        (
            "load_plain_tensors",
            failed(block_on(reshard::load_plain_tensors(url))),
        ),
        (
            "load_tensors_metadata",
            failed(block_on(reshard::load_tensors_metadata(url))),
        ),
    ];
    all.extend(run(url).map(|e| ("steps", Box::new(e) as Failed)));
    all
}

#[test]
fn no_error_of_the_library_has_the_secrets_of_a_url() {
    for url in URLS {
        for (what, e) in errors(url) {
            let texts = [
                e.to_string(),
                format!("{e:?}"),
                reshard::strategy::with_sources(e.to_string(), &*e),
            ];
            for text in texts {
                assert!(
                    !text.contains("PASS") && !text.contains("SIGNATURE"),
                    "{what} {url}: {text}"
                );
            }
        }
    }
    // Stores of reshard quote no secret themselves, so no source of an error has one.
    for url in &URLS[..5] {
        let e = stores().open(url).unwrap_err();
        for e in successors(Some(&e as &dyn Error), |&e| e.source()) {
            assert!(
                !e.to_string().contains("PASS") && !e.to_string().contains("SIGNATURE"),
                "{url}: {e}"
            );
        }
        assert!(
            LocalStore::open(url).is_err() || !url.starts_with("file"),
            "{url}"
        );
    }
}
