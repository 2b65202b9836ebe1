//! A link on the way to a checkpoint leads elsewhere before the ranks join the version that the coordinator has begun.

use async_trait::async_trait;
use bytes::Bytes;
use reshard::{
    DType, Dialect, Region, ShardedTensor, StateDict, Tensor,
    blocking::Checkpoint,
    storage::{
        Depth, Head, Hints, IfExists, Listing, LocalStore, Name, Result, Store, Transaction,
    },
};
use reshard_laws::{
    place::Place,
    ranks::{group, save},
};
use std::{fs, ops::Range, os::unix::fs::symlink, path::PathBuf, sync::Arc};

const RANKS: u32 = 3;

/// A directory behind a link, which leads to another one as soon as a version is begun.
#[derive(Debug)]
struct Repointed {
    inner: LocalStore,
    link: PathBuf,
}

#[async_trait]
impl Store for Repointed {
    fn url(&self) -> String {
        self.inner.url()
    }
    fn hints(&self) -> Hints {
        self.inner.hints()
    }
    async fn read(&self, name: &Name, range: Range<u64>) -> Result<Bytes> {
        self.inner.read(name, range).await
    }
    async fn list(&self, below: Option<&Name>, depth: Depth) -> Result<Listing> {
        self.inner.list(below, depth).await
    }
    async fn remove(&self, names: &[Name]) -> Result<()> {
        self.inner.remove(names).await
    }
    async fn head(&self, name: &Name) -> Result<Option<Head>> {
        self.inner.head(name).await
    }
    async fn begin(&self, attempt: &str, if_exists: IfExists) -> Result<Arc<dyn Transaction>> {
        let begun = self.inner.begin(attempt, if_exists).await;
        fs::remove_file(&self.link).unwrap();
        symlink("two", &self.link).unwrap();
        begun
    }
    async fn join(&self, attempt: &str, place: Option<&str>) -> Result<Arc<dyn Transaction>> {
        self.inner.join(attempt, place).await
    }
}

#[test]
fn all_ranks_write_where_the_link_led_when_the_version_was_begun() {
    let home = tempfile::tempdir().unwrap();
    let [one, two, link] = ["one", "two", "latest"].map(|n| home.path().join(n));
    [&one, &two]
        .into_iter()
        .for_each(|dir| fs::create_dir(dir).unwrap());
    symlink("one", &link).unwrap();
    let place = Place::of(Repointed {
        inner: LocalStore::at(&link).unwrap(),
        link,
    });
    let states = (0..u64::from(RANKS)).map(|rank| {
        let mut state = StateDict::new();
        let region = Region::new([rank], [1]);
        let leaf = ShardedTensor::region_of("w", DType::UInt8, &[RANKS.into()], region);
        state.insert(
            "w",
            leaf.with_data(Tensor::from_vec(&[1], vec![rank as u8]).unwrap()),
        );
        state
    });
    let saved = save(group(RANKS), states.collect(), place.url(), |_, s| {
        s.dialect(Dialect::Dcp)
    });
    saved.into_iter().for_each(|s| drop(s.unwrap()));
    let checkpoint = Checkpoint::open(one.display().to_string()).unwrap();
    assert_eq!(
        checkpoint
            .tensor("w")
            .unwrap()
            .read(..)
            .unwrap()
            .to_vec::<u8>()
            .unwrap(),
        [0, 1, 2]
    );
    assert_eq!(fs::read_dir(two).unwrap().count(), 0);
    assert_eq!(
        fs::read_dir(home.path()).unwrap().count(),
        3,
        "nothing is left beside them"
    );
}
