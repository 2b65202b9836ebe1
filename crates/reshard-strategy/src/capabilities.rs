//! What a save strategy can write. Tools ask before they save.

use reshard_model::{DType, Dialect};
use reshard_plan::AnnotationKind;
use reshard_storage::PlaceKind;

/// What a save strategy can write. A tool that chooses a strategy for a checkpoint asks it, so that it can say what will not fit, and what
/// to do. A save does not need to be asked: it refuses what it can't write.
///
/// The default is what most formats can: every dialect, every element type, folders, objects as `torch.save` writes them.
///
/// ```
/// use reshard_model::{DType, Dialect};
/// use reshard_storage::PlaceKind;
/// use reshard_strategy::Capabilities;
///
/// let one_file = Capabilities::default()
///     .with_dialects(&[Dialect::TensorsOnly])
///     .with_dtypes(|dtype| !dtype.is_complex())
///     .with_places(|name| match name.ends_with(".weights") {
///         true => PlaceKind::File,
///         false => PlaceKind::Folder,
///     });
/// assert!(one_file.holds(DType::BFloat16) && !one_file.holds(DType::Complex64));
/// assert_eq!(one_file.place("model.weights"), PlaceKind::File);
/// assert!(!one_file.saves(Dialect::Megatron));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Capabilities {
    dialects: &'static [Dialect],
    dtypes: fn(DType) -> bool,
    places: fn(&str) -> PlaceKind,
    objects: fn(PlaceKind, bool) -> bool,
    codec: &'static str,
    sharded_objects: bool,
    object_lists: bool,
    splits_objects: bool,
    no_rank_local: Option<&'static str>,
    takes_folder: bool,
    ties: bool,
    annotations: fn(PlaceKind, bool) -> &'static [AnnotationKind],
}

impl Default for Capabilities {
    fn default() -> Self {
        Self {
            dialects: Dialect::ALL,
            dtypes: |_| true,
            places: |_| PlaceKind::Folder,
            objects: |_, _| true,
            codec: "torch.save",
            sharded_objects: true,
            object_lists: false,
            splits_objects: false,
            no_rank_local: None,
            takes_folder: false,
            ties: false,
            annotations: |_, _| &[],
        }
    }
}

impl Capabilities {
    /// Sets the dialects in which it can save, the most natural one first.
    #[must_use]
    pub fn with_dialects(self, dialects: &'static [Dialect]) -> Self {
        Self { dialects, ..self }
    }

    /// Sets which element types it can store.
    #[must_use]
    pub fn with_dtypes(self, dtypes: fn(DType) -> bool) -> Self {
        Self { dtypes, ..self }
    }

    /// Sets which kind of place a checkpoint is, by the last part of its URL.
    #[must_use]
    pub fn with_places(self, places: fn(&str) -> PlaceKind) -> Self {
        Self { places, ..self }
    }

    /// Sets in which checkpoints objects have a place: by the kind of the place, and by whether a sharding policy decides on files. It
    /// matters if the strategy [stores objects](crate::SaveShardedStrategy::can_handle_sharded_objects).
    #[must_use]
    pub fn with_objects(self, objects: fn(PlaceKind, bool) -> bool) -> Self {
        Self { objects, ..self }
    }

    /// Sets whether it stores sharded objects itself. If not, the common strategy stores them.
    #[must_use]
    pub fn with_sharded_objects(self, sharded_objects: bool) -> Self {
        Self {
            sharded_objects,
            ..self
        }
    }

    /// Refuses rank-local saves. The error contains the reason, such as `a file holds whole tensors`.
    #[must_use]
    pub fn without_rank_local(self, why: &'static str) -> Self {
        Self {
            no_rank_local: Some(why),
            ..self
        }
    }

    /// Sets the [name](reshard_model::ObjectCodec::name) of the codec of its objects. Objects of another codec are decoded before they are
    /// given to it.
    #[must_use]
    pub fn with_codec(self, codec: &'static str) -> Self {
        Self { codec, ..self }
    }

    /// Sets whether a cell of an object array is stored as a list; see [`StorageWriter::object_lists`](crate::StorageWriter::object_lists).
    #[must_use]
    pub fn with_object_lists(self, object_lists: bool) -> Self {
        Self {
            object_lists,
            ..self
        }
    }

    /// Sets whether an object that is a dict is read as the items of that dict: the file has no sign of where it begins.
    #[must_use]
    pub fn with_split_objects(self, splits_objects: bool) -> Self {
        Self {
            splits_objects,
            ..self
        }
    }

    /// Sets whether its format record says in which files items lie, and its readers follow it into any folder of the place. Then a place that
    /// keeps versions side by side gets the data files of each version into a [folder](reshard_storage::Transaction::folder) of its own, and
    /// the checkpoint can be replaced there. The pipeline puts the files into the folder; the format finds their names in the results.
    #[must_use]
    pub fn with_folder(self, takes_folder: bool) -> Self {
        Self {
            takes_folder,
            ..self
        }
    }

    /// Sets whether elements that several tensors share are stored once, if one rank has these tensors whole and no sharding policy decides
    /// on files.
    #[must_use]
    pub fn with_ties(self, ties: bool) -> Self {
        Self { ties, ..self }
    }

    /// Sets which kinds of [annotations](reshard_plan::Annotations) have a place in a checkpoint, by the kind of the place, and by whether a
    /// sharding policy decides on files. The writer finds them in the metadata, and its reader returns them again, except those that only
    /// one file of the source states ([`AnnotationId::file`](reshard_plan::AnnotationId::file)). The default is none.
    #[must_use]
    pub fn with_annotations(
        self,
        annotations: fn(PlaceKind, bool) -> &'static [AnnotationKind],
    ) -> Self {
        Self {
            annotations,
            ..self
        }
    }

    /// Whether annotations of a kind have a place in a checkpoint of this kind, with a sharding policy or without one.
    pub fn annotates(&self, kind: AnnotationKind, place: PlaceKind, by_policy: bool) -> bool {
        (self.annotations)(place, by_policy).contains(&kind)
    }

    /// Whether it stores sharded objects itself.
    pub fn handles_sharded_objects(&self) -> bool {
        self.sharded_objects
    }

    /// Why it can't write a rank-local checkpoint. `None` if it can.
    pub fn no_rank_local(&self) -> Option<&'static str> {
        self.no_rank_local
    }

    /// Whether elements that several tensors share are stored once.
    pub fn has_ties(&self) -> bool {
        self.ties
    }

    /// Whether data files may lie in a folder.
    pub fn takes_folder(&self) -> bool {
        self.takes_folder
    }

    /// The dialects in which it can save, the most natural one first.
    pub fn dialects(&self) -> &'static [Dialect] {
        self.dialects
    }

    /// Whether it can save in a dialect.
    pub fn saves(&self, dialect: Dialect) -> bool {
        self.dialects.contains(&dialect)
    }

    /// Whether it can store elements of a type.
    pub fn holds(&self, dtype: DType) -> bool {
        (self.dtypes)(dtype)
    }

    /// Which kind of place a checkpoint is, by the last part of its URL: one file, files with a prefix, or a folder.
    pub fn place(&self, name: &str) -> PlaceKind {
        (self.places)(name)
    }

    /// Whether objects have a place in a checkpoint of this kind, with a sharding policy or without one.
    pub fn has_objects(&self, place: PlaceKind, by_policy: bool) -> bool {
        (self.objects)(place, by_policy)
    }

    /// Whether a cell of an object array is stored as a list.
    pub fn object_lists(&self) -> bool {
        self.object_lists
    }

    /// Whether an object that is a dict is read as the items of that dict.
    pub fn splits_objects(&self) -> bool {
        self.splits_objects
    }

    /// The name of the codec of its objects.
    pub fn codec(&self) -> &'static str {
        self.codec
    }
}
