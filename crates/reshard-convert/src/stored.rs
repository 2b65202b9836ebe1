//! Objects and common state that are carried over in their stored form: all their bytes are checked, those of headers, too.

use crate::source::Source;
use reshard::{StoredCommon, megatron::COMMON, model::Payload, strategy::Damage};
use reshard_torch_format::{Error as FormatError, Limits, TorchSave, archive::Archive};

/// The byte with which every pickle begins, and so do files of torch before 1.6. They have no headers.
const PICKLE: u8 = 0x80;

impl Source {
    /// The first damage of what is carried over as it is stored. The copy would have it, too.
    pub(crate) fn damage(&self) -> Option<Damage> {
        let of_object = |(key, payload)| told(payload, Some(key), None);
        let of_common = |common: &StoredCommon| {
            let file = common.object_key().is_none().then_some(COMMON);
            told(common.payload(), common.object_key(), file)
        };
        let mut objects = self.objects_and_payloads();
        objects
            .find_map(of_object)
            .or_else(|| self.common().and_then(of_common))
    }
}

fn told(payload: &Payload, key: Option<&str>, file: Option<&str>) -> Option<Damage> {
    let e = damaged(payload)?;
    Some(Damage {
        key: key.map(Into::into),
        file: file.map(Into::into),
        offset: None,
        what: e.to_string(),
    })
}

/// A record that is not as its checksum says, or a header that is not as `torch.save` writes it, though the others are.
fn damaged(payload: &Payload) -> Option<FormatError> {
    let Payload::Encoded {
        codec: TorchSave::NAME,
        bytes,
    } = payload
    else {
        return None;
    };
    if bytes.first() == Some(&PICKLE) {
        return None;
    }
    let checked = Archive::open(bytes.clone(), &Limits::default()).and_then(|archive| {
        archive.check_records(|_| Ok(()))?;
        archive.check_framing()
    });
    checked.err().filter(|e| {
        let is_beyond_us = matches!(
            e,
            FormatError::Limit { .. } | FormatError::Unsupported { .. }
        );
        !is_beyond_us
    })
}
