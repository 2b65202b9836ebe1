//! Any bytes as one of the files of a checkpoint in `zarr` or `zarr3`: the description of an array or a group, a chunk or a shard, or the record of
//! reshard, with the record or without it.
//!
//! The first byte says which file of which format, and whether the record is there. The rest is laid over it, byte by byte (exclusive or), and what is longer than
//! the file makes it longer.
#![no_main]

use std::{collections::BTreeMap, sync::LazyLock};

use libfuzzer_sys::fuzz_target;
use reshard::{
    Dialect, Region, StateDict, Tensor,
    blocking::{self, Checkpoint},
    storage::Progress,
    strategy::SaveShardedStrategy,
    zarr::{RECORD, Zarr3Config, ZarrConfig},
};
use reshard_storage::{Name, Store, StoreExt, testkit::MemoryStore};

const RECORD_3: &str = "reshard-zarr3.json";
const WEIGHT: [f32; 6] = [0., 1., 2., 3., 4., 5.];

/// A saved checkpoint.
struct Saved {
    /// Its place in memory.
    place: &'static str,
    record: &'static str,
    /// The files that are damaged.
    damaged: [&'static str; 5],
    files: BTreeMap<Name, Vec<u8>>,
}

impl Saved {
    fn url(&self) -> String {
        format!("memory://{}", self.place)
    }

    fn of(
        place: &'static str,
        record: &'static str,
        damaged: [&'static str; 5],
        format: SaveShardedStrategy,
    ) -> Self {
        let mut out = Self {
            place,
            record,
            damaged,
            files: BTreeMap::new(),
        };
        let mut state = StateDict::new();
        state.insert(
            "weight",
            Tensor::from_vec(&[3, 2], WEIGHT.to_vec()).expect("a tensor"),
        );
        state.insert(
            "large",
            Tensor::from_vec(&[64, 64], vec![1i32; 4096]).expect("a tensor"),
        );
        let url = out.url();
        let save = reshard::save(&state, &url)
            .dialect(Dialect::Dcp)
            .strategy(format);
        blocking::run(save).expect("it is saved");
        let store = MemoryStore::named(place);
        let read = |name: &Name, bytes| {
            blocking::run(store.read(name, 0..bytes))
                .expect("it is read")
                .to_vec()
        };
        let files = blocking::run(store.files()).expect("files");
        out.files = files
            .into_iter()
            .map(|f| (f.name.clone(), read(&f.name, f.bytes)))
            .collect();
        // A name that no file has would be one that is never damaged.
        for file in out.damaged {
            assert!(
                out.files.keys().any(|name| name.as_str() == file),
                "{file} was not saved"
            );
        }
        out
    }
}

static SOUND: LazyLock<[Saved; 2]> = LazyLock::new(|| {
    [
        Saved::of(
            "fuzz-zarr",
            RECORD,
            [
                "weight/.zarray",
                "weight/0.0",
                RECORD,
                "large/.zarray",
                "large/0.0",
            ],
            ZarrConfig::default().into(),
        ),
        Saved::of(
            "fuzz-zarr3",
            RECORD_3,
            [
                "weight/zarr.json",
                "weight/c/0/0",
                RECORD_3,
                "zarr.json",
                "large/c/0/0",
            ],
            Zarr3Config::default().with_inner_chunk(1024).into(),
        ),
    ]
});

fuzz_target!(|bytes: &[u8]| {
    let Some((&which, over)) = bytes.split_first() else {
        return;
    };
    let with_record = which < 128;
    let saved = &SOUND[usize::from(which & 64 != 0)];
    let damaged = saved.damaged[usize::from(which & 63) % saved.damaged.len()];
    let store = MemoryStore::named(saved.place);
    for (name, sound) in &saved.files {
        let mut file = sound.clone();
        if name.as_str() == damaged {
            file.resize(file.len().max(over.len()), 0);
            file.iter_mut().zip(over).for_each(|(at, byte)| *at ^= byte);
        }
        store.put(name.clone(), file.into());
    }
    if !with_record {
        let names = [saved.record, "reshard.json"].map(|name| Name::new(name).expect("a name"));
        blocking::run(store.remove(&names)).expect("they are removed");
    }
    let Ok(checkpoint) = Checkpoint::open(&saved.url()) else {
        return;
    };
    drop(checkpoint.verify(true, Progress::none()));
    for key in ["weight", "large"] {
        let Ok(tensor) = checkpoint.tensor(key) else {
            continue;
        };
        // An array may claim any shape, and then has elements that are not stored.
        if tensor.nbytes() > 1 << 20 {
            continue;
        }
        drop(tensor.read(Region::rows(1..2)));
        let whole = tensor.read(..);
        // With checksums nothing but what was saved comes back.
        if let (true, "weight", Ok(whole)) = (with_record, key, whole) {
            assert_eq!(whole.to_vec::<f32>().unwrap(), WEIGHT);
        }
    }
});
