//! Capabilities of formats. Tools ask before they save.

use reshard_model::{DType, Dialect};
use reshard_plan::AnnotationKind;
use reshard_storage::PlaceKind;

/// The dialects, element types, places and objects that a format supports. A tool that chooses a format for a checkpoint finds here what
/// will not fit. A save refuses what its format doesn't support, so it need not be asked.
///
/// The default is what most formats can: every dialect, every element type, folders, objects as `torch.save` writes them.
///
/// ```
/// use reshard_model::{DType, Dialect};
/// use reshard_storage::PlaceKind;
/// use reshard_strategy::Capabilities;
///
/// let one_file = Capabilities {
///     dialects: &[Dialect::TensorsOnly],
///     dtypes: |dtype| !dtype.is_complex(),
///     places: |name| match name.ends_with(".weights") {
///         true => PlaceKind::File,
///         false => PlaceKind::Folder,
///     },
///     ..Capabilities::DEFAULT
/// };
/// assert!(one_file.holds(DType::BFloat16) && !one_file.holds(DType::Complex64));
/// assert_eq!(one_file.place("model.weights"), PlaceKind::File);
/// assert!(!one_file.saves(Dialect::Megatron));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Capabilities {
    /// The dialects in which it can save, the most natural one first.
    pub dialects: &'static [Dialect],
    /// Which element types it can store.
    pub dtypes: fn(DType) -> bool,
    /// The kind of place of a checkpoint, by the last part of its URL.
    pub places: fn(&str) -> PlaceKind,
    /// In which checkpoints objects have a place: by the kind of the place, and by whether a sharding policy decides on files. It matters
    /// if the format stores objects.
    pub objects: fn(PlaceKind, bool) -> bool,
    /// Advice for saves with sharded objects, if it stores none: then the common strategy stores them, and a save without one fails.
    /// `None` if it stores objects.
    pub no_sharded_objects: Option<&'static str>,
    /// The [name](reshard_model::ObjectCodec::name) of the codec of its objects. Objects of another codec are decoded before they are
    /// given to it.
    pub codec: &'static str,
    /// Whether a cell of an object array is stored as a list; see [`StorageWriter::object_lists`](crate::StorageWriter::object_lists).
    pub object_lists: bool,
    /// Whether an object that is a dict is read as the items of that dict, because the file doesn't record where it begins.
    pub splits_objects: bool,
    /// Why it can't write a rank-local checkpoint, such as `a file holds whole tensors`. `None` if it can.
    pub no_rank_local: Option<&'static str>,
    /// Whether its format record names the files of items, and its readers follow it into any folder of the place. Then a place that
    /// keeps versions side by side gets the data files of each version into a [folder](reshard_storage::Transaction::folder) of its own, and
    /// the checkpoint can be replaced there. The pipeline puts the files into the folder; the format finds their names in the results.
    pub takes_folder: bool,
    /// Whether elements that several tensors share are stored once, if one rank has these tensors whole and no sharding policy decides
    /// on files.
    pub ties: bool,
    /// Which kinds of [annotations](reshard_plan::Annotations) have a place in a checkpoint, by the kind of the place, and by whether a
    /// sharding policy decides on files. The writer finds them in the metadata, and its reader returns them again, except those that only
    /// one file of the source states ([`AnnotationId::file`](reshard_plan::AnnotationId::file)).
    pub annotations: fn(PlaceKind, bool) -> &'static [AnnotationKind],
}

impl Default for Capabilities {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl Capabilities {
    /// The default.
    pub const DEFAULT: Self = Self {
        dialects: Dialect::ALL,
        dtypes: |_| true,
        places: |_| PlaceKind::Folder,
        objects: |_, _| true,
        no_sharded_objects: None,
        codec: "torch.save",
        object_lists: false,
        splits_objects: false,
        no_rank_local: None,
        takes_folder: false,
        ties: false,
        annotations: |_, _| &[],
    };

    /// Whether annotations of a kind have a place in a checkpoint of this kind, with a sharding policy or without one.
    pub fn annotates(&self, kind: AnnotationKind, place: PlaceKind, by_policy: bool) -> bool {
        (self.annotations)(place, by_policy).contains(&kind)
    }

    /// Whether it can save in a dialect.
    pub fn saves(&self, dialect: Dialect) -> bool {
        self.dialects.contains(&dialect)
    }

    /// Whether it can store elements of a type.
    pub fn holds(&self, dtype: DType) -> bool {
        (self.dtypes)(dtype)
    }

    /// The kind of place of a checkpoint, by the last part of its URL: one file, files with a prefix, or a folder.
    pub fn place(&self, name: &str) -> PlaceKind {
        (self.places)(name)
    }

    /// Whether objects have a place in a checkpoint of this kind, with a sharding policy or without one.
    pub fn has_objects(&self, place: PlaceKind, by_policy: bool) -> bool {
        (self.objects)(place, by_policy)
    }
}
