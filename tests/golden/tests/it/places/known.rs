//! Checkpoints of PyTorch and Megatron Core are in each place what `expected.json` says.

use crate::places::{files, put_files, verified};
use futures::executor::block_on;
use reshard::{
    Checkpoint, OpenOptions,
    storage::{Name, Store},
};
use reshard_golden::{Depth, Fixture, compare, fixtures};
use reshard_object_store::ObjectStorePlace;
use std::{collections::BTreeMap, fs, sync::Arc};

/// Files one of which every checkpoint has.
const RECORDS: [&str; 3] = [".metadata", "metadata.json", "__0.metadata"];

/// Puts the files of a fixture into a store, as they are.
fn put(fixture: &Fixture, store: &dyn Store) {
    let mut bodies = Vec::new();
    files(&fixture.checkpoint(), "", &mut bodies);
    let record = bodies
        .iter()
        .position(|body| RECORDS.contains(&body.name.as_str()));
    let name = bodies.swap_remove(record.unwrap()).name;
    let bytes = fs::read(fixture.checkpoint().join(name.as_str())).unwrap();
    put_files(bodies, (name, bytes), store);
}

/// Compares one in `step` of the sound checkpoints that `open` opens; it may say that one can't be opened there. Where nothing
/// can be listed, only those files are known that the metadata and the format name.
fn are_the_same(
    step: usize,
    lists: bool,
    open: impl Fn(&Fixture) -> Option<Checkpoint>,
) -> (usize, Vec<String>) {
    let (mut count, mut wrong, mut left_out) = (0, Vec::new(), Vec::new());
    let fixtures = fixtures();
    let sound = fixtures.iter().filter(|f| f.expected.sound);
    for f in sound.step_by(step) {
        let Some(checkpoint) = open(f) else {
            left_out.push(f.to_string());
            continue;
        };
        count += 1;
        let found = compare(&checkpoint, &f.expected, Depth::Places);
        let found = found
            .into_iter()
            .filter(|what| lists || !what.starts_with("\"files\": "));
        wrong.extend(found.map(|what| format!("{f}: {what}")));
        if !lists {
            let known: BTreeMap<String, u64> = block_on(checkpoint.files())
                .unwrap()
                .into_iter()
                .map(|file| (file.name.into(), file.bytes))
                .collect();
            let expected = &f.expected.files;
            let is_known = |name: &String| known.contains_key(name) || !expected.contains_key(name);
            if !known
                .iter()
                .all(|(name, bytes)| expected.get(name) == Some(bytes))
                || !checkpoint.item_files().iter().all(is_known)
            {
                wrong.push(format!("{f}: {known:?} instead of {expected:?}"));
            }
        }
        // Its bytes are checked, too, whatever the place.
        let local = block_on(Checkpoint::open(&f.url())).unwrap();
        let [report, there] = [&checkpoint, &local].map(|c| verified(c, lists));
        if format!("{report:?}") != format!("{there:?}") {
            wrong.push(format!("{f}: verify says {report:?} instead of {there:?}"));
        }
        let [beside, there] =
            [&checkpoint, &local].map(|c| block_on(c.beside_integrity()).unwrap());
        let is_known = |name: &&Name| lists || beside.contains(name);
        if !there.iter().filter(is_known).eq(&beside) {
            wrong.push(format!(
                "{f}: beside integrity.json {beside:?} instead of {there:?}"
            ));
        }
    }
    println!(
        "{count} checkpoints are the same; {} can't be opened there: {left_out:?}",
        left_out.len()
    );
    assert!(
        wrong.is_empty(),
        "{} differences:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    (count, left_out)
}

#[test]
fn every_checkpoint_is_the_same_in_an_object_store() {
    let (count, left_out) = are_the_same(1, true, |f| {
        let place = ObjectStorePlace::in_memory();
        put(f, &place);
        let open = OpenOptions::new().store(Arc::new(place));
        Some(block_on(open.open("memory://place")).unwrap())
    });
    assert!(count > 0 && left_out.is_empty());
}

#[cfg(feature = "clouds")]
mod clouds {
    use super::*;
    use crate::places::bucket_of_moto;
    use reshard::{
        megatron::{INTEGRITY, Integrity},
        storage::Progress,
    };
    use reshard_golden::{Scratch, root, serve, sha256};
    use reshard_model::testkit::one_in;
    use std::path::Path;

    #[test]
    fn every_checkpoint_that_names_its_files_is_the_same_behind_a_web_server() {
        let url = serve(&root()).unwrap();
        let (count, left_out) = are_the_same(one_in(3), false, |f| {
            let url = format!("{url}/{}/ckpt", f.name);
            block_on(Checkpoint::open(&url)).ok()
        });
        // Only a listing tells which arrays a folder of Zarr has, and which ranks have saved for themselves alone.
        assert!(count > left_out.len());
        for name in left_out {
            assert!(
                name.contains("zarr") || name.contains("rank_local"),
                "{name}"
            );
        }
    }

    #[test]
    fn the_digests_of_integrity_json_are_checked_behind_a_web_server() {
        let all = fixtures();
        let fixture = all.iter().find(|f| f.name.ends_with("mc020_integrity_w2"));
        let scratch = Scratch::of(&fixture.unwrap().checkpoint()).unwrap();
        // The directory in which it was made has got another name in `.metadata` since Megatron Core had listed the digest of that.
        let listed = fs::read(scratch.file(INTEGRITY)).unwrap();
        let mut listed = Integrity::parse(&listed).unwrap();
        let metadata = fs::read(scratch.file(".metadata")).unwrap();
        listed.insert(&Name::new(".metadata").unwrap(), sha256([metadata]));
        fs::write(scratch.file(INTEGRITY), listed.to_bytes()).unwrap();
        let other = all.iter().find(|f| f.name.ends_with("mc016_objects_w4"));
        let common = other.unwrap().checkpoint().join("common.pt");
        fs::copy(common, scratch.file("common.pt")).unwrap();
        let url = serve(Path::new(&scratch.url())).unwrap();
        let open = || block_on(Checkpoint::open(&url)).unwrap();
        let verify = |full| block_on(open().verify(full, Progress::default())).unwrap();

        let files = block_on(open().files()).unwrap().into_iter();
        let names: Vec<String> = files.map(|file| file.name.to_string()).collect();
        let there: Vec<String> = scratch.files().unwrap().into_iter().map(|f| f.0).collect();
        assert_eq!(names, there);
        let beside = block_on(open().beside_integrity()).unwrap();
        assert_eq!(beside, [Name::new("common.pt").unwrap()]);
        let damage = verify(true).damage;
        assert!(damage.is_empty(), "{damage:?}");

        // A file that nothing else checks.
        let record = scratch.file("metadata.json");
        let mut bytes = fs::read(&record).unwrap();
        bytes.push(b' ');
        fs::write(&record, bytes).unwrap();
        assert!(verify(false).damage.is_empty());
        let damage = verify(true).damage;
        assert_eq!(damage.len(), 1, "{damage:?}");
        assert!(damage[0].what.contains("its SHA-256 is"), "{damage:?}");
    }

    #[test]
    #[ignore = "needs RESHARD_MOTO; cargo xtask clouds runs it"]
    fn needs_clouds_every_checkpoint_is_the_same_in_a_bucket() {
        let stores = bucket_of_moto();
        let (count, left_out) = are_the_same(one_in(4), true, |f| {
            let url = format!("s3://reshard/golden {}/{}", std::process::id(), f.name);
            let place = Arc::new(stores.open_place(&url).unwrap());
            put(f, &*place);
            Some(block_on(OpenOptions::new().store(place).open(&url)).unwrap())
        });
        assert!(count > 0 && left_out.is_empty());
    }
}
