//! Announces the schemes of the features to programs that link this crate.

#[cfg(any(
    feature = "aws",
    feature = "gcp",
    feature = "azure",
    feature = "http",
    feature = "memory"
))]
mod schemes {
    use crate::ObjectStores;
    use reshard_storage::{OpenStore, Result, Store, StoreScheme, inventory};
    use std::sync::{Arc, LazyLock};

    /// All places that are opened by URLs alone share their clients.
    static STORES: LazyLock<ObjectStores> = LazyLock::new(ObjectStores::new);

    fn open(url: &str) -> Result<Arc<dyn Store>> {
        STORES.open(url)
    }

    const fn scheme(name: &'static str) -> StoreScheme {
        StoreScheme::new(
            name,
            env!("CARGO_PKG_NAME"),
            env!("CARGO_PKG_VERSION"),
            open,
        )
    }

    macro_rules! announce {
        ($($feature:literal: $($name:literal)*,)*) => {
            $($(#[cfg(feature = $feature)] inventory::submit! { scheme($name) })*)*
        };
    }
    announce! { "aws": "s3" "s3a", "gcp": "gs", "azure": "az" "abfs" "abfss", "http": "http" "https", "memory": "memory", }
}
