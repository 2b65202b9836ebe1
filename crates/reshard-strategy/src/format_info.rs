//! What is known of a format without opening anything.

use crate::BackendVersion;
use reshard_storage::{Entry, Listing, PlaceKind};

/// The name of a format, and how its checkpoints are recognised. Nothing else is asked before one is opened. It is data, so start from
/// [`NEW`](Self::NEW):
///
/// ```
/// use reshard_strategy::{Detection, FormatInfo, OwnFile};
/// use reshard_storage::{Entry, Listing, Name};
///
/// const INFO: FormatInfo = FormatInfo {
///     backend: "mine",
///     own_file: |name| (name == "mine.json").then_some(OwnFile::Record),
///     probes: &["mine.json"],
///     ..FormatInfo::NEW
/// };
/// let file = Entry { name: Name::new("mine.json")?, bytes: 2 };
/// assert_eq!(INFO.detect(&Listing::of(vec![file])), Detection::Yes);
/// assert_eq!(INFO.key().to_string(), "mine/1");
/// # Ok::<(), reshard_storage::StorageError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct FormatInfo {
    /// Its name.
    pub backend: &'static str,
    /// Its version. The default is 1.
    pub version: u32,
    /// Newer versions whose checkpoints it loads, too. It loads older ones in any case. The default is none.
    pub also_loads: &'static [u32],
    /// Whether it loads sharded objects. If not, the common strategy loads them. The default is that it does.
    pub loads_objects: bool,
    /// What a file directly in the place is, if the programs of this format give a file such a name. Only this decides
    /// whether a format is recognised, and which files belong to a damaged or unfinished checkpoint. An
    /// [`IndexReader`](crate::IndexReader) also asks it which files are its own, with the folders in which they lie: `data/0.bin`.
    pub own_file: fn(&str) -> Option<OwnFile>,
    /// Whether a place holds a checkpoint of this format, by the names of its files alone. By default it uses
    /// [`own_file`](Self::own_file). It is called if nothing else in the checkpoint names the format. A format that never
    /// answers `Yes` is found only if the checkpoint names it or the user chooses it.
    pub detect: Option<fn(&Listing) -> Detection>,
    /// Whether one file is a checkpoint of this format, by its name. It is asked of formats that [live](Self::lives_in) in files. By default it
    /// is what [`detect`](Self::detect) says of a folder with this file alone.
    pub detect_file: Option<fn(&Entry) -> Detection>,
    /// Whether one file is a checkpoint of this format, by its first [`HEAD`](crate::HEAD) bytes. It is called only if no format opens the file
    /// by its name. By default no content is known.
    pub detect_content: Option<fn(&[u8]) -> bool>,
    /// File names of which most checkpoints of this format have one. They are looked for before the place is listed,
    /// because listing many files takes long or is impossible. Files with a prefix in a place where requests are dear are found by
    /// these names alone, if each format that [lives](Self::lives_in) so has one without a folder.
    pub probes: &'static [&'static str],
    /// Names of files by which checkpoints of this format are recognised, in the folders of a place and in folders of these. They are looked for if
    /// nothing else tells the format, in some of the folders; [`detect`](Self::detect) gets them as `FOLDER/NAME`. The default is none.
    pub probes_in_folders: &'static [&'static str],
    /// The kinds of places in which its checkpoints can be. The default is a folder.
    pub lives_in: &'static [PlaceKind],
}

impl FormatInfo {
    /// A format without a name, of which nothing is recognised.
    pub const NEW: Self = Self {
        backend: "",
        version: 1,
        also_loads: &[],
        loads_objects: true,
        own_file: |_| None,
        detect: None,
        detect_file: None,
        detect_content: None,
        probes: &[],
        probes_in_folders: &[],
        lives_in: &[PlaceKind::Folder],
    };

    /// Its name and version.
    pub fn key(&self) -> BackendVersion {
        BackendVersion::new(self.backend, self.version)
    }

    /// What a file of this name is to it, if it is one of its own.
    pub fn own_file(&self, name: &str) -> Option<OwnFile> {
        (self.own_file)(name)
    }

    /// Whether a place with these files holds a checkpoint of this format.
    pub fn detect(&self, top: &Listing) -> Detection {
        match self.detect {
            Some(detect) => detect(top),
            None => {
                let own = top.names().filter_map(self.own_file);
                own.map(OwnFile::detected).max().unwrap_or(Detection::No)
            }
        }
    }

    /// Whether one file is a checkpoint of this format.
    pub fn detect_file(&self, file: &Entry) -> Detection {
        match self.detect_file {
            Some(detect) => detect(file),
            None => self.detect(&Listing::of(vec![file.clone()])),
        }
    }

    /// Whether a checkpoint of this format can be a place of this kind.
    pub fn lives_in(&self, kind: PlaceKind) -> bool {
        self.lives_in.contains(&kind)
    }
}

/// How sure a format is that a place holds one of its checkpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Detection {
    /// No file looks like this format.
    No,
    /// Files look like this format, but the file that makes them a checkpoint is missing, or another format may fit better.
    Likely,
    /// The place holds such a checkpoint, whole or damaged.
    Yes,
}

/// What a file is, by its name alone, for a format whose programs give such names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OwnFile {
    /// The format record. If it is there, there is a checkpoint.
    Record,
    /// It holds items, or describes them.
    Data,
    /// A record that is not renamed yet, or something else that an unfinished save leaves.
    Unfinished,
}

impl OwnFile {
    /// What such a file says about its place.
    pub fn detected(self) -> Detection {
        match self {
            Self::Record => Detection::Yes,
            Self::Data | Self::Unfinished => Detection::Likely,
        }
    }
}
