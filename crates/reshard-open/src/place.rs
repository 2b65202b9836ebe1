//! How callers name a place: by a path or by a URL.

use std::path::Path;

/// The text of a place that is given by its path or its URL, for crates that take places as `reshard::save` does. A path that is no UTF-8
/// becomes a `file` URL.
pub fn place_text(place: impl AsRef<Path>) -> String {
    let path = place.as_ref();
    match path.to_str() {
        Some(text) => text.into(),
        None => url_of(path),
    }
}

#[cfg(feature = "local")]
fn url_of(path: &Path) -> String {
    use reshard_storage::{LocalStore, Store};
    // Without a working directory nobody can find the place, and opening it says so.
    LocalStore::at(path).map_or_else(|_| path.display().to_string(), |store| store.url())
}

#[cfg(not(feature = "local"))]
fn url_of(path: &Path) -> String {
    // Nobody can open it.
    path.display().to_string()
}
