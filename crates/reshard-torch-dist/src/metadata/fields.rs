//! Names of the fields that are looked at.

/// Declares each field once, with its name in Python.
macro_rules! fields {
    ($($field:ident $name:literal,)*) => {
        /// A field of one of the classes of a `.metadata` file.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Field { $($field,)* }

        /// The names of all of them, in the order of their numbers. Those of `Metadata` come first.
        pub(crate) const FIELDS: &[(Field, &str)] = &[$((Field::$field, $name),)*];
    };
}

fields! {
    StateDictMetadata "state_dict_metadata",
    PlannerData "planner_data",
    StorageData "storage_data",
    StorageMeta "storage_meta",
    Version "version",
    McoreData "mcore_data",
    AllLocalPlans "all_local_plans",
    Offsets "offsets",
    Sizes "sizes",
    Properties "properties",
    Size "size",
    Chunks "chunks",
    Fqn "fqn",
    Index "index",
    Offset "offset",
    RelativePath "relative_path",
    Length "length",
    TransformDescriptors "transform_descriptors",
    CheckpointId "checkpoint_id",
    SaveId "save_id",
    LoadId "load_id",
    Modules "modules",
}

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
        for (i, (field, name)) in FIELDS.iter().enumerate() {
            assert_eq!((*field as usize, field.name()), (i, *name));
        }
        assert_eq!(FIELDS[OF_ROOT - 1].0, Field::AllLocalPlans);
    }
}
