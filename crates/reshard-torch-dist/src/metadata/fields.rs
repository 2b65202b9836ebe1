//! Names of the fields that are looked at.

/// A field of one of the classes of a `.metadata` file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Field {
    StateDictMetadata,
    PlannerData,
    StorageData,
    StorageMeta,
    Version,
    McoreData,
    AllLocalPlans,
    Offsets,
    Sizes,
    Properties,
    Size,
    Chunks,
    Fqn,
    Index,
    Offset,
    RelativePath,
    Length,
    TransformDescriptors,
    CheckpointId,
    SaveId,
    LoadId,
    Modules,
}

/// All of them, in the order of their numbers. Those of `Metadata` come first.
pub(crate) const FIELDS: [(Field, &str); 22] = [
    (Field::StateDictMetadata, "state_dict_metadata"),
    (Field::PlannerData, "planner_data"),
    (Field::StorageData, "storage_data"),
    (Field::StorageMeta, "storage_meta"),
    (Field::Version, "version"),
    (Field::McoreData, "mcore_data"),
    (Field::AllLocalPlans, "all_local_plans"),
    (Field::Offsets, "offsets"),
    (Field::Sizes, "sizes"),
    (Field::Properties, "properties"),
    (Field::Size, "size"),
    (Field::Chunks, "chunks"),
    (Field::Fqn, "fqn"),
    (Field::Index, "index"),
    (Field::Offset, "offset"),
    (Field::RelativePath, "relative_path"),
    (Field::Length, "length"),
    (Field::TransformDescriptors, "transform_descriptors"),
    (Field::CheckpointId, "checkpoint_id"),
    (Field::SaveId, "save_id"),
    (Field::LoadId, "load_id"),
    (Field::Modules, "modules"),
];

/// How many of them `Metadata` has.
pub(crate) const OF_ROOT: usize = 7;

impl Field {
    /// The field whose name has this number among the texts.
    pub(crate) fn at(number: u32) -> Option<Self> {
        FIELDS.get(number as usize).map(|(field, _)| *field)
    }

    pub(crate) fn name(self) -> &'static str {
        FIELDS[self as usize].1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_lie_in_the_order_of_their_numbers() {
        for (i, (field, name)) in FIELDS.into_iter().enumerate() {
            assert_eq!((field as usize, field.name()), (i, name));
        }
        assert_eq!(FIELDS[OF_ROOT - 1].0, Field::AllLocalPlans);
    }
}
