//! Digests of files of any size, in bounded memory.

use reshard_storage::{Name, Store, StoreExt};
use reshard_strategy::Formats;
use reshard_strategy::{Result, hex};
use sha2::{Digest, Sha256};
use std::sync::Arc;

/// The longest format record: for a name that a linked format gives its record, and for any other name.
const RECORD: u64 = 4 << 30;
pub(crate) const OTHER_RECORD: u64 = 256 << 20;
/// Bytes that are hashed at a time.
const BLOCK: u64 = 4 << 20;

/// The SHA-256 of a format record, in hexadecimal. `None` if there is none, or if the file is longer than any format
/// record, because hashing a sparse file of terabytes would never end.
///
/// # Errors
/// What the store says.
pub async fn sha256(
    store: &Arc<dyn Store>,
    name: &Name,
    formats: &Formats,
) -> Result<Option<String>> {
    let most = if formats.of_record(name.as_str()).is_some() {
        RECORD
    } else {
        OTHER_RECORD
    };
    let Some(len) = store.len(name).await?.filter(|len| *len <= most) else {
        return Ok(None);
    };
    let mut hasher = Sha256::new();
    let mut at = 0;
    while at < len {
        let end = len.min(at + BLOCK);
        hasher.update(store.read(name, at..end).await?);
        at = end;
    }
    Ok(Some(hex(&hasher.finalize())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use async_trait::async_trait;
    use bytes::Bytes;
    use futures_executor::block_on;
    use reshard_storage::{Depth, Head, Hints, IfExists, Listing, StorageError, Transaction};
    use reshard_strategy::{Registry, SMALL, read_small};
    use reshard_torch_dist as _;
    use std::{io, ops::Range};

    /// All its files are so long, and none can be read.
    #[derive(Debug)]
    struct Long(u64);

    #[async_trait]
    impl Store for Long {
        fn url(&self) -> String {
            "long://".into()
        }
        fn hints(&self) -> Hints {
            Hints::default()
        }
        async fn read(&self, name: &Name, _: Range<u64>) -> reshard_storage::Result<Bytes> {
            Err(StorageError::io(
                "read",
                name.as_str(),
                io::Error::other("nothing is read here"),
            ))
        }
        async fn list(&self, _: Option<&Name>, _: Depth) -> reshard_storage::Result<Listing> {
            Ok(Listing::default())
        }
        async fn remove(&self, _: &[Name]) -> reshard_storage::Result<()> {
            Ok(())
        }
        async fn head(&self, _: &Name) -> reshard_storage::Result<Option<Head>> {
            Ok(Some(Head::new(self.0, None)))
        }
        async fn begin(
            &self,
            _: &str,
            _: IfExists,
        ) -> reshard_storage::Result<Arc<dyn Transaction>> {
            Err(StorageError::invalid("nothing is written here"))
        }
        async fn join(
            &self,
            _: &str,
            _: Option<&str>,
        ) -> reshard_storage::Result<Arc<dyn Transaction>> {
            Err(StorageError::invalid("nothing is written here"))
        }
    }

    fn file(name: &str, len: u64) -> (Arc<dyn Store>, Name) {
        (Arc::new(Long(len)), Name::new(name).unwrap())
    }

    #[test]
    fn no_byte_is_hashed_of_what_is_longer_than_a_commit_record() {
        let formats = Formats::of(&Registry::linked().unwrap()).unwrap();
        for (name, most) in [
            (".metadata", RECORD),
            ("__3.metadata", RECORD),
            ("manifest", OTHER_RECORD),
        ] {
            for len in [most + 1, 8 << 40, u64::MAX] {
                let (store, name) = file(name, len);
                assert!(
                    block_on(sha256(&store, &name, &formats)).unwrap().is_none(),
                    "{name} of {len} bytes"
                );
            }
            let (store, name) = file(name, most);
            assert!(
                block_on(sha256(&store, &name, &formats)).is_err(),
                "{name} may be so long, so it is read"
            );
        }
    }

    #[test]
    fn no_byte_is_read_of_what_is_longer_than_a_small_file() {
        for (len, why) in [
            (SMALL + 1, "it has 67108865 bytes"),
            (SMALL, "nothing is read here"),
        ] {
            let (store, name) = file("metadata.json", len);
            let e = block_on(read_small(&store, &name)).unwrap_err();
            assert!(format!("{e:?}").contains(why), "{e:?}");
        }
    }
}
