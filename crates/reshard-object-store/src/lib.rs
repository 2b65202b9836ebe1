//! Checkpoints in object stores: Amazon S3 and services like it, Google Cloud Storage, Azure Blob Storage; and, only for reading, files
//! behind HTTP.
//!
//! - [`ObjectStorePlace`] is a [`Store`](reshard_storage::Store). It reads ranges, streams files into multipart uploads, and
//!   commits a version by one conditional put.
//! - [`ObjectStores`] opens places by their URLs. It holds what a URL does not say: options, a runtime, a client of your own.
//!   Programs that link this crate open the schemes of its features without it.
//!
//! | URL | feature | settings from the environment |
//! | --- | --- | --- |
//! | `s3://BUCKET/PATH`, `s3a://` | `aws` | `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`, `AWS_REGION`, `AWS_ENDPOINT_URL`, `AWS_ALLOW_HTTP`, … |
//! | `gs://BUCKET/PATH` | `gcp` | `GOOGLE_SERVICE_ACCOUNT`, `GOOGLE_APPLICATION_CREDENTIALS`, … |
//! | `az://CONTAINER/PATH`, `abfs://`, `abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH` | `azure` | `AZURE_STORAGE_ACCOUNT_NAME`, `AZURE_STORAGE_ACCOUNT_KEY`, … |
//! | `http://`, `https://` | `http` | |
//! | `memory://NAME` | `memory` | |
//!
//! # How a version is committed
//!
//! Nothing can be renamed in an object store. So versions lie side by side: the data files of a version go into a folder that
//! has the name of the attempt ([`Transaction::folder`](reshard_storage::Transaction::folder)). The commit record is put last, on
//! the condition that it is still as it was when the save began. Readers of the old version go on reading its files, until
//! somebody removes the old folder.
//!
//! # A cache on disk
//!
//! [`read_through`] keeps what was read in a local directory. Versions of files are known by their tags, so whoever reads a checkpoint again makes one request
//! to learn these, and reads the rest from the disk: `Stores::linked()?.around(move |store| cache.around(store))`.
//!
//! # Runtime
//!
//! The clients need a tokio runtime. This crate brings one, which starts with the first request, so any executor may poll the
//! futures. [`ObjectStores::with_runtime`] uses yours.
//!
//! ```
//! use reshard_object_store::ObjectStorePlace;
//! use reshard_storage::{IfExists, Name, Store};
//!
//! # futures::executor::block_on(async {
//! let place = ObjectStorePlace::in_memory();
//! let version = place.begin("1-1a2b3c4d5e6f7081-0", IfExists::Refuse).await?;
//! let record = (Name::new("record")?, "done".into());
//! version.commit(Some(record), &[], Default::default()).await?;
//! assert_eq!(place.read(&Name::new("record")?, 0..4).await?, "done");
//! # Ok::<_, reshard_storage::StorageError>(()) }).unwrap();
//! ```

#![forbid(unsafe_code)]

mod asked;
mod client;
#[cfg(any(feature = "aws", feature = "gcp", feature = "azure", feature = "http"))]
mod clouds;
mod fault;
mod linked;
mod open;
mod part_source;
#[cfg(any(feature = "aws", feature = "gcp", feature = "azure", feature = "http"))]
mod pause;
mod pin;
mod place;
mod read;
mod recovery;
mod runtime;
mod scheme;
#[cfg(any(feature = "aws", feature = "gcp", feature = "azure", feature = "http"))]
mod silence;
mod single;
mod store;
mod tagged;
mod transaction;
mod tries;
mod unfinished;
mod upload;
#[cfg(any(feature = "aws", feature = "gcp", feature = "azure", feature = "http"))]
mod web;

pub use object_store;
pub use open::ObjectStores;
pub use place::ObjectStorePlace;
pub use reshard_storage::{DiskCache, read_through};
