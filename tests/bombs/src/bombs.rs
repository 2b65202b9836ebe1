//! The bombs, by their place in a checkpoint.

mod archives;
mod built;
mod chunks;
mod faults;
mod files;
mod flat;
mod keys;
mod many;
mod maps;
mod metadata;
mod packed;
mod safetensors;
mod spread;
mod tensor_bundle;
mod tensors;
mod values;
mod zarr;

use crate::{
    checkpoint::{Item, put, put_common, put_items},
    pickle::Type,
    zip,
};
use anyhow::Result;
use reshard_model::testkit::is_thorough;
use std::{fmt, path::Path};

pub use archives::archives;
pub use chunks::chunks;
pub use faults::faults;
pub use files::files;
pub use flat::flat;
pub use keys::keys;
pub use many::many;
pub use maps::maps;
pub use metadata::metadata;
pub use packed::packed;
pub use safetensors::safetensors;
pub use spread::spread;
pub use tensor_bundle::tensor_bundle;
pub use tensors::tensors;
pub use zarr::zarr;

type Make = Box<dyn Fn(&Path) -> Result<()>>;

/// A checkpoint that asks for too much.
pub struct Bomb {
    /// Its name.
    pub name: String,
    /// Writes it into an empty directory.
    pub make: Make,
    /// Commands that are tried besides the usual ones.
    pub commands: Vec<Vec<String>>,
    /// Whether the usual ones are tried. If what is hostile is no part of the checkpoint, they say nothing.
    pub usual: bool,
    /// The most resident memory that a command may take, in bytes, if it is less than usual.
    pub resident: Option<u64>,
}

impl fmt::Debug for Bomb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bomb")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl Bomb {
    fn new(name: &str, make: impl Fn(&Path) -> Result<()> + 'static) -> Self {
        Self {
            name: name.into(),
            make: Box::new(make),
            commands: Vec::new(),
            usual: true,
            resident: None,
        }
    }

    /// With at most so many bytes of resident memory.
    fn within(mut self, bytes: u64) -> Self {
        self.resident = Some(bytes);
        self
    }

    /// A `.metadata`, and nothing else.
    fn metadata(name: &str, make: impl Fn() -> Vec<u8> + 'static) -> Self {
        Self::new(name, move |dir| put(dir, ".metadata", &make()))
    }

    /// Without the usual commands.
    fn only(mut self) -> Self {
        self.usual = false;
        self
    }

    fn with(mut self, command: &[&str]) -> Self {
        self.commands
            .push(command.iter().map(ToString::to_string).collect());
        self
    }
}

/// Storages that most pickles refer to, if to any.
const STORAGES: [(&str, &[u8]); 1] = [("0", &[0; 4])];

/// Pickles as objects.
pub fn objects() -> Vec<Bomb> {
    home(0, "object", |dir, pickle| {
        put_items(dir, &[Item::object("o", zip::torch(&pickle, &STORAGES))])
    })
}

/// Pickles as common state.
pub fn common() -> Vec<Bomb> {
    home(1, "common", |dir, pickle| {
        put_common(dir, &zip::torch(&pickle, &STORAGES))
    })
}

/// Pickles as common state, without an archive around them.
pub fn bare() -> Vec<Bomb> {
    home(2, "bare", |dir, pickle| put_common(dir, &pickle))
}

/// Pickles as files of `torch.save`: in an archive, before 1.6, and alone.
pub fn saved() -> Vec<Bomb> {
    let put_file = |dir: &Path, bytes: &[u8]| put(dir, "pytorch_model.bin", bytes);
    let archives = home(3, "saved", move |dir, pickle| {
        put_file(dir, &zip::torch(&pickle, &STORAGES))
    });
    let old = home(4, "saved_legacy", move |dir, pickle| {
        // Magic number, protocol and facts, the object, and no storages.
        let before = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.\x80\x02}.";
        put_file(dir, &[&before[..], &pickle, b"\x80\x02]."].concat())
    });
    let bare = home(5, "saved_bare", move |dir, pickle| put_file(dir, &pickle));
    archives.into_iter().chain(old).chain(bare).collect()
}

/// Pickles where that of a tensor is.
pub fn in_tensors() -> Vec<Bomb> {
    home(6, "tensor", |dir, pickle| {
        put_items(
            dir,
            &[Item::tensor(
                "t",
                Type::F32,
                &[1],
                zip::torch(&pickle, &STORAGES),
            )],
        )
    })
}

/// Places that a pickle may have in a checkpoint.
const PLACES: usize = 7;

/// All pickles in one place. If tests are not thorough, and none is chosen by name, each pickle is tried in only one of the places.
fn home(
    number: usize,
    place: &str,
    put: impl Fn(&Path, Vec<u8>) -> Result<()> + Copy + 'static,
) -> Vec<Bomb> {
    let all = values::values().into_iter().chain(built::built());
    let everywhere = is_thorough() || std::env::var_os("RESHARD_BOMBS").is_some();
    let chosen = all
        .enumerate()
        .filter(|(i, _)| everywhere || i % PLACES == number);
    chosen
        .map(|(_, (name, make))| Bomb::new(&format!("{name}/{place}"), move |dir| put(dir, make())))
        .collect()
}
