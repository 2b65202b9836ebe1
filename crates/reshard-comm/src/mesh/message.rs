use bytes::Bytes;

/// What a rank says when it leaves is cut after so many characters.
const WORDS_LIMIT: usize = 4 << 10;

/// What a [`Message`] is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[repr(u8)]
pub enum Kind {
    /// What a rank sends to another one in a collective.
    Data = 1,
    /// How many messages of a group the sender has used so far.
    Used,
    /// A group is broken; the bytes say why.
    Abort,
    /// The sender left a group. A byte says whether it panicked; words say what went wrong on it before, if anything did.
    Leave,
    /// The sender left all groups. It sends nothing more. Words say what went wrong on it before, if anything did.
    Bye,
    /// The sender is alive.
    Alive,
}

impl Kind {
    const ALL: [Self; 6] = [
        Self::Data,
        Self::Used,
        Self::Abort,
        Self::Leave,
        Self::Bye,
        Self::Alive,
    ];

    /// Its number, for transports.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// The kind with this number.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.code() == code)
    }
}

/// The collective to which a message belongs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Call {
    /// How many calls the sender made in this group before.
    pub number: u64,
    /// Which method it is. Only equality counts for a transport.
    pub method: u8,
    /// The root, counted in the group; 0 if the method has none.
    pub root: u32,
}

/// What one rank tells another one: a message or a notice, of any length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// What it is for.
    pub kind: Kind,
    /// The group that it belongs to; 0 is the whole group.
    pub group: u64,
    /// The call that it belongs to.
    pub call: Call,
    /// The rank of the group of or for which it is, if others hand it on.
    pub about: u32,
    /// Its bytes.
    pub body: Bytes,
}

impl Message {
    /// Why nothing more comes from the sender of this [`Kind::Bye`], for [`Mesh::gone`](super::Mesh::gone).
    pub fn goodbye(&self) -> String {
        match heard(&self.body) {
            Some(what) => format!("left the job, after {what}"),
            None => "left the job".to_owned(),
        }
    }

    /// A notice about a group.
    pub fn notice(kind: Kind, group: u64, body: Bytes) -> Self {
        Self {
            kind,
            group,
            call: Call::default(),
            about: 0,
            body,
        }
    }
}

/// How a rank says what went wrong on it.
pub(super) fn words(what: &str) -> Bytes {
    what.chars().take(WORDS_LIMIT).collect::<String>().into()
}

/// What a rank said that went wrong on it, if it said anything.
pub(super) fn heard(words: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(words);
    (!words.is_empty()).then(|| text.chars().take(WORDS_LIMIT).collect())
}
