//! What the files of a place are.

use super::opened::SafetensorsReader;
use crate::{OBJECTS, names::Named};
use reshard_storage::{Entry, Name};
use reshard_strategy::{FileRole, Producer};

/// Whether a save gives a file such a name.
pub(super) fn owns(name: &Name) -> bool {
    Named::of(name.as_str()).is_some_and(Named::is_saved)
}

/// The role of a file in which no tensor lies.
pub(super) fn role(reader: &SafetensorsReader, file: &Entry) -> FileRole {
    match Named::of(file.name.as_str()) {
        None => FileRole::Foreign,
        Some(Named::Record) => FileRole::Part,
        // Items lie in it if the record says so.
        Some(Named::Objects) if !reader.has_record => FileRole::Part,
        Some(Named::Index(_)) if reader.has_record => FileRole::Part,
        Some(Named::Index(_)) if reader.index.as_ref() == Some(&file.name) => FileRole::Part,
        Some(Named::Tensors(_)) if reader.files.contains(&file.name) => FileRole::Part,
        // Its index has forgotten it.
        Some(Named::Tensors(_)) if reader.unnamed.contains(&file.name) => FileRole::Part,
        // With a record it is known that nothing needs it. Without one, or with another name, it may be another model.
        Some(named) if reader.has_record && named.is_usual() => FileRole::Leftover,
        Some(_) => FileRole::Foreign,
    }
}

/// Whether the record has checksums of all bytes of a file: of its header, and of all tensors in it.
pub(super) fn covers(reader: &SafetensorsReader, file: &Name) -> bool {
    if file.as_str() == OBJECTS {
        return reader.has_record;
    }
    let number = reader.files.iter().position(|name| name == file);
    let number = number.and_then(|n| u32::try_from(n).ok());
    let mut of_file = reader.chunks.iter().filter(|c| Some(c.file) == number);
    reader.has_record && number.is_some() && of_file.all(|chunk| chunk.crc.is_some())
}

/// Which programs wrote it.
pub(super) fn producer(reader: &SafetensorsReader) -> Producer {
    let (by, can) = match (reader.has_record, reader.is_sharded) {
        (true, false) => (
            "reshard",
            "reshard, transformers, and what reads safetensors",
        ),
        (true, true) => ("reshard", "reshard, and PyTorch's HuggingFaceStorageReader"),
        (false, true) => (
            "PyTorch's HuggingFaceStorageWriter",
            "PyTorch's HuggingFaceStorageReader",
        ),
        (false, false) => (
            "a program that writes safetensors",
            "what reads safetensors",
        ),
    };
    Producer {
        written_by: vec![by.into()],
        loadable_by: vec![can.into()],
        notes: reader.notes.clone(),
        warnings: reader.warnings.clone(),
        ..Producer::default()
    }
    .with_refused(&reader.refused)
}
