//! All formats, by the tags of their settings, and places for their checkpoints.

use crate::place::Place;
use proptest::prelude::*;
use reshard::{
    BackendVersion, DType, Registry,
    strategy::{LoadShardedStrategy, Make, SaveShardedStrategy},
};
use serde_json::{Value as Json, json};
use std::path::Path;
use tempfile::TempDir;

/// A format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    /// The tag of its settings.
    pub tag: &'static str,
    /// The name of its only file, if it is stored in one file.
    file: Option<&'static str>,
    /// Whether it stores objects in PyTorch's dialect.
    pub stores_objects: bool,
}

const fn folder(tag: &'static str, stores_objects: bool) -> Format {
    Format {
        tag,
        file: None,
        stores_objects,
    }
}

const fn file(tag: &'static str, file: &'static str, stores_objects: bool) -> Format {
    Format {
        tag,
        file: Some(file),
        stores_objects,
    }
}

/// All formats.
pub const FORMATS: [Format; 9] = [
    folder("torch_dist", true),
    folder("torch_save", true),
    file("torch_save", "model.pt", true),
    folder("safetensors", false),
    file("safetensors", "model.safetensors", false),
    folder("tensor_bundle", true),
    folder("zarr", false),
    folder("zarr3", false),
    folder("example", true),
];

/// All linked formats that can both save and load, by name.
pub fn linked() -> Vec<BackendVersion> {
    let registry = Registry::linked().unwrap();
    let saves = registry
        .iter()
        .filter(|r| matches!(r.make, Make::SaveSharded(_)))
        .map(|r| BackendVersion::new(r.backend, r.version));
    saves.filter(|f| registry.load_sharded(f).is_ok()).collect()
}

/// Any format.
pub fn format() -> impl Strategy<Value = Format> {
    prop::sample::select(&FORMATS[..])
}

impl Format {
    /// The settings of a save.
    pub fn save_config(&self) -> SaveShardedStrategy {
        let settings = match self.tag {
            "tensor_bundle" => json!({ "format": self.tag, "in_folder": "ckpt" }),
            tag => json!({ "format": tag }),
        };
        serde_json::from_value(settings).unwrap()
    }

    /// The settings of a load.
    pub fn load_settings(&self) -> Json {
        json!({ "format": self.tag })
    }

    /// Where nothing is yet: in memory, or on disk if the format is a file.
    pub fn place(&self) -> FormatPlace {
        match self.file {
            None => FormatPlace::Memory(Place::new()),
            Some(name) => {
                let dir = tempfile::tempdir().unwrap();
                let url = dir.path().join(name).display().to_string();
                FormatPlace::Disk(url, dir)
            }
        }
    }

    /// Whether it is stored in one file.
    pub fn is_file(&self) -> bool {
        self.file.is_some()
    }

    /// A place in a folder of the disk.
    pub fn on_disk(&self, folder: &Path) -> String {
        let place = folder.join(self.file.unwrap_or("ckpt"));
        place.display().to_string()
    }

    /// A type that all formats store.
    pub fn common_dtype(dtype: DType) -> DType {
        crate::zarrs::Zarr::named(dtype)
    }
}

/// The settings of a load, of JSON.
pub fn load_config(settings: &Json) -> LoadShardedStrategy {
    serde_json::from_value(settings.clone()).unwrap()
}

/// A place for a checkpoint, until it is dropped.
#[derive(Debug)]
pub enum FormatPlace {
    /// In memory.
    Memory(Place),
    /// A file on disk, with its folder.
    Disk(String, TempDir),
}

impl FormatPlace {
    /// Its URL.
    pub fn url(&self) -> &str {
        match self {
            Self::Memory(place) => place.url(),
            Self::Disk(url, _) => url,
        }
    }

    /// Whether nothing is stored, and nothing is left of an attempt.
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Memory(place) => place.files().is_empty() && place.leftovers() == 0,
            Self::Disk(_, dir) => std::fs::read_dir(dir.path()).unwrap().next().is_none(),
        }
    }
}
