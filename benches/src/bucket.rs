//! Places in buckets. What lies there is removed past the proxy, so that it is in nobody's counts.

use anyhow::Result;
use std::path::Path;

/// The variable with the URL of the server itself.
pub(crate) const SERVER: &str = "RESHARD_BENCH_SERVER";

/// What clients of a server have to know.
pub(crate) fn settings(server: &str) -> [(&'static str, String); 5] {
    [
        ("AWS_ENDPOINT_URL", server.into()),
        ("AWS_ALLOW_HTTP", "true".into()),
        ("AWS_REGION", "us-east-1".into()),
        ("AWS_ACCESS_KEY_ID", "reshard".into()),
        ("AWS_SECRET_ACCESS_KEY", "not-secret".into()),
    ]
}

/// Whether this is the URL of a place in a bucket, and no directory.
pub(crate) fn is_url(place: &Path) -> bool {
    place.to_str().is_some_and(|text| text.contains("://"))
}

/// Removes a directory, or all objects of a place in a bucket of the server that the environment names.
pub(crate) fn remove(place: &Path) -> Result<()> {
    match is_url(place) {
        true => remove_objects(&place.display().to_string(), &std::env::var(SERVER)?),
        false => Ok(std::fs::remove_dir_all(place)?),
    }
}

/// Removes all objects of a place. The credentials are those of the environment, or those of the rows of places.
#[cfg(feature = "clouds")]
pub(crate) fn remove_objects(url: &str, server: &str) -> Result<()> {
    use reshard::{Stores, blocking, object_store::ObjectStores, storage::StoreExt as _};
    let stores = settings(server)
        .into_iter()
        .fold(ObjectStores::new(), |stores, (key, value)| {
            stores.with_option(key.to_ascii_lowercase(), value)
        });
    let store = Stores::linked()?.with("s3", stores).open(url)?;
    blocking::run(async {
        let files = store.files().await?.into_iter();
        let names: Vec<_> = files.map(|file| file.name).collect();
        Ok(store.remove(&names).await?)
    })
}

#[cfg(not(feature = "clouds"))]
pub(crate) fn remove_objects(url: &str, _: &str) -> Result<()> {
    anyhow::bail!("{url}: build with the feature clouds")
}
