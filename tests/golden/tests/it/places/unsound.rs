//! Damaged checkpoints are told in each place as they are on a local disk.

use crate::places::{files, verified};
use futures::executor::block_on;
use reshard::{Checkpoint, OpenOptions};
use reshard_golden::{Fixture, chain, fixtures};
use reshard_object_store::{
    ObjectStorePlace,
    object_store::{ObjectStore, ObjectStoreExt as _, memory::InMemory, path::Path},
};
use std::sync::Arc;

/// Puts the files of a fixture below a path of a bucket, as they are: no record completes them.
fn put(fixture: &Fixture, bucket: &dyn ObjectStore, folder: &str) {
    let mut bodies = Vec::new();
    files(&fixture.checkpoint(), "", &mut bodies);
    for body in bodies {
        let path = fixture.checkpoint().join(body.name.as_str());
        let to = Path::parse(format!("{folder}/{}", body.name)).unwrap();
        let bytes = std::fs::read(path).unwrap();
        block_on(bucket.put(&to, bytes.into())).unwrap();
    }
}

/// All that opening and verifying say. Places are left out, and files of others where nothing is listed.
fn said(opened: reshard::Result<Checkpoint>, url: &str, lists: bool) -> String {
    let checkpoint = match opened {
        Ok(checkpoint) => checkpoint,
        Err(e) => return format!("{:?}: {}", e.kind(), chain(&e).replace(url, "URL")),
    };
    match verified(&checkpoint, lists) {
        Ok(report) => format!("{report:?}").replace(url, "URL"),
        Err(e) => format!("{:?}: {}", e.kind(), chain(&e).replace(url, "URL")),
    }
}

/// Compares all damaged checkpoints; `open` says where it has put one, and opens it. Without a listing nobody knows what else is there where no metadata are.
fn all_are_told_alike(
    lists: bool,
    open: impl Fn(&Fixture) -> (String, reshard::Result<Checkpoint>),
) {
    let (mut count, mut wrong) = (0, Vec::new());
    for f in fixtures().iter().filter(|f| !f.expected.sound) {
        count += 1;
        let (url, opened) = open(f);
        let there = said(opened, &url, lists);
        let local = said(block_on(Checkpoint::open(&f.url())), &f.url(), lists);
        let is_lost = !lists
            && there.contains("listing URL is not possible here")
            && local.starts_with("NotFound");
        if there != local && !is_lost {
            wrong.push(format!("{f}:\n  {there}\n  instead of\n  {local}"));
        }
    }
    println!("{count} damaged checkpoints are told alike");
    assert!(count > 0, "no damaged checkpoint was read");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn in_a_bucket(bucket: Arc<dyn ObjectStore>, home: &str) {
    all_are_told_alike(true, |f| {
        let folder = format!("{home}/{}", f.name);
        put(f, &*bucket, &folder);
        let url = format!("s3://reshard/{folder}");
        let place = ObjectStorePlace::new(Arc::clone(&bucket), &*url, &folder).unwrap();
        let open = OpenOptions::new().store(Arc::new(place));
        (url.clone(), block_on(open.open(&url)))
    });
}

#[test]
fn damaged_checkpoints_are_told_alike_in_an_object_store() {
    in_a_bucket(Arc::new(InMemory::new()), "damaged");
}

#[cfg(feature = "clouds")]
mod clouds {
    use super::*;
    use reshard_golden::{root, serve};

    #[test]
    fn damaged_checkpoints_are_told_alike_behind_a_web_server() {
        let url = serve(&root()).unwrap();
        all_are_told_alike(false, |f| {
            let url = format!("{url}/{}/ckpt", f.name);
            let opened = block_on(Checkpoint::open(&url));
            (url, opened)
        });
    }
}
