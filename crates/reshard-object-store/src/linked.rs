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

    #[cfg(feature = "aws")]
    inventory::submit! { scheme("s3") }
    #[cfg(feature = "aws")]
    inventory::submit! { scheme("s3a") }
    #[cfg(feature = "gcp")]
    inventory::submit! { scheme("gs") }
    #[cfg(feature = "azure")]
    inventory::submit! { scheme("az") }
    #[cfg(feature = "azure")]
    inventory::submit! { scheme("abfs") }
    #[cfg(feature = "azure")]
    inventory::submit! { scheme("abfss") }
    #[cfg(feature = "http")]
    inventory::submit! { scheme("http") }
    #[cfg(feature = "http")]
    inventory::submit! { scheme("https") }
    #[cfg(feature = "memory")]
    inventory::submit! { scheme("memory") }
}
