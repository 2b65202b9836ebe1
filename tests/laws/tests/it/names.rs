//! No place or file is opened, overwritten or removed because its name begins with another's.

use proptest::prelude::*;
use reshard::{
    Durability, ShardedTensor, StateDict, Tensor,
    blocking::{self, Checkpoint},
    safetensors::SafetensorsConfig,
    strategy::SaveShardedStrategy,
    tensor_bundle::TensorBundleConfig,
    torch_dist::TorchDistConfig,
    torch_save::TorchSaveConfig,
    zarr::{Zarr3Config, ZarrConfig},
};
use reshard_example::ExampleConfig;
use reshard_laws::law;
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// Names of places that lie next to each other. Each one begins with the first.
const PLACES: [&str; 8] = [
    "n",
    "n.5",
    "n.index",
    "n-1",
    "n.pt",
    "n.safetensors",
    "n.reshard",
    "n.5.json",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    TorchDist,
    TorchSave,
    Safetensors,
    Zarr,
    Zarr3,
    /// TensorFlow's, by its prefix.
    Bundle,
    /// TensorFlow's, in a folder.
    BundleInFolder,
    Example,
}

const FORMATS: [Format; 8] = [
    Format::TorchDist,
    Format::TorchSave,
    Format::Safetensors,
    Format::Zarr,
    Format::Zarr3,
    Format::Bundle,
    Format::BundleInFolder,
    Format::Example,
];

impl Format {
    fn config(self) -> SaveShardedStrategy {
        match self {
            Self::TorchDist => TorchDistConfig::new().into(),
            Self::TorchSave => TorchSaveConfig::default().into(),
            Self::Safetensors => SafetensorsConfig::default().into(),
            Self::Zarr => ZarrConfig::default().into(),
            Self::Zarr3 => Zarr3Config::default().into(),
            Self::Bundle => TensorBundleConfig::default().into(),
            Self::BundleInFolder => TensorBundleConfig::default().with_in_folder("n").into(),
            Self::Example => ExampleConfig::default().into(),
        }
    }

    /// Whether a checkpoint of this format at this place is a folder.
    fn is_folder(self, place: &str) -> bool {
        match self {
            Self::Bundle => false,
            Self::TorchSave => !place.ends_with(".pt"),
            Self::Safetensors => !place.ends_with(".safetensors"),
            _ => true,
        }
    }

    /// The names that a checkpoint of one file of data has in the folder of its place.
    fn names(self, place: &str) -> Vec<String> {
        match self {
            Self::Bundle => [
                ".index",
                ".data-00000-of-00001",
                ".reshard.json",
                ".reshard_bundle.json",
            ]
            .map(|end| format!("{place}{end}"))
            .into(),
            _ => vec![place.into()],
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Save { overwrite: bool },
    Remove,
}

fn op() -> impl Strategy<Value = (usize, Op)> {
    let op = prop_oneof![
        2 => any::<bool>().prop_map(|overwrite| Op::Save { overwrite }),
        1 => Just(Op::Remove),
    ];
    (0..PLACES.len(), op)
}

/// All files below a folder, with their bytes; folders without bytes.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let (mut found, mut waiting) = (BTreeMap::new(), vec![folder.to_path_buf()]);
    while let Some(folder) = waiting.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                found.insert(path.clone(), Vec::new());
                waiting.push(path);
            } else {
                let bytes = fs::read(&path).unwrap();
                found.insert(path, bytes);
            }
        }
    }
    found
}

/// The files of a folder that don't have, or lie in a folder that has, one of these names.
fn without(
    files: &BTreeMap<PathBuf, Vec<u8>>,
    home: &Path,
    names: &[String],
) -> BTreeMap<PathBuf, Vec<u8>> {
    let is_of = |path: &PathBuf| {
        let inside = path.strip_prefix(home).unwrap();
        let first = inside.iter().next().unwrap();
        names.iter().any(|name| **name == *first)
    };
    let others = files.iter().filter(|(path, _)| !is_of(path));
    others
        .map(|(path, bytes)| (path.clone(), bytes.clone()))
        .collect()
}

fn save(url: &str, format: Format, overwrite: bool, n: f32) -> reshard::Result<()> {
    let mut state = StateDict::new();
    let w = Tensor::from_vec(&[2], vec![n, -n]).unwrap();
    state.insert("w", ShardedTensor::full("w", w));
    let save = reshard::save(&state, url)
        .strategy(format.config())
        .overwrite(overwrite)
        .durability(Durability::Process);
    blocking::run(save).map(drop)
}

fn read(url: &str) -> reshard::Result<f32> {
    let opened = Checkpoint::open(url)?;
    let w = opened.tensor("w").unwrap().read(..)?;
    Ok(w.to_vec::<f32>().unwrap()[0])
}

/// Places side by side, and the number that was saved last at each.
struct Places {
    home: tempfile::TempDir,
    formats: [Format; PLACES.len()],
    saved: BTreeMap<usize, f32>,
}

impl Places {
    fn url(&self, place: usize) -> String {
        self.home.path().join(PLACES[place]).display().to_string()
    }

    /// Whether a file or folder of another place has a name that a checkpoint at this place needs.
    fn is_blocked(&self, place: usize) -> bool {
        let needed = self.formats[place].names(PLACES[place]);
        self.saved
            .keys()
            .filter(|other| **other != place)
            .any(|other| {
                let names = self.formats[*other].names(PLACES[*other]);
                names.iter().any(|name| needed.contains(name))
            })
    }

    /// Carries out an operation, which must succeed exactly if nothing of its own place prevents it.
    fn act(&mut self, place: usize, op: Op, n: f32) {
        let (format, url) = (self.formats[place], self.url(place));
        let was_saved = self.saved.contains_key(&place);
        let (done, can) = match op {
            Op::Save { overwrite } => {
                // Files with a prefix are never replaced.
                let can = !was_saved || (overwrite && format != Format::Bundle);
                let done = save(&url, format, overwrite, n);
                if done.is_ok() {
                    self.saved.insert(place, n);
                }
                (done, can && !self.is_blocked(place))
            }
            Op::Remove => {
                let done = blocking::run(reshard_manager::remove_checkpoint(&url)).map(drop);
                if done.is_ok() {
                    self.saved.remove(&place);
                }
                (done, was_saved && format.is_folder(PLACES[place]))
            }
        };
        let at = PLACES[place];
        match done {
            Ok(()) => assert!(can, "{op:?} of {format:?} at {at} succeeded"),
            Err(e) => assert!(!can, "{op:?} of {format:?} at {at}: {e:?}"),
        }
    }

    /// Opens all places.
    fn check(&self) {
        for (place, at) in PLACES.iter().enumerate() {
            let format = self.formats[place];
            match (read(&self.url(place)), self.saved.get(&place)) {
                (Ok(found), Some(saved)) => assert_eq!(found, *saved, "{at} of {format:?}"),
                (Err(_), None) => {}
                (found, saved) => panic!("{at} of {format:?} is {saved:?}, not {found:?}"),
            }
        }
    }
}

/// One format everywhere, or another one at each place.
fn formats() -> impl Strategy<Value = [Format; PLACES.len()]> {
    let format = || prop::sample::select(&FORMATS[..]);
    prop_oneof![
        2 => Just([Format::Bundle; PLACES.len()]),
        2 => format().prop_map(|format| [format; PLACES.len()]),
        2 => prop::array::uniform8(format()),
    ]
}

proptest! {
    #![proptest_config(law(60))]

    #[test]
    fn names_that_begin_alike_are_different_places(
        formats in formats(), ops in prop::collection::vec(op(), 1..10),
    ) {
        let home = tempfile::tempdir().unwrap();
        let mut places = Places { home, formats, saved: BTreeMap::new() };
        for (i, (place, op)) in ops.into_iter().enumerate() {
            let before = files(places.home.path());
            places.act(place, op, 1.0 + i as f32);
            let own = formats[place].names(PLACES[place]);
            let (home, after) = (places.home.path(), files(places.home.path()));
            prop_assert!(without(&before, home, &own) == without(&after, home, &own));
            places.check();
        }
    }
}
