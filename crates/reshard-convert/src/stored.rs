//! Objects and common state that are carried over in their stored form: all their bytes are checked, those of headers, too.

use crate::source::Source;
use reshard::{
    ReadLimits, StoredCommon,
    megatron::COMMON,
    model::{BoxError, Payload},
    strategy::{
        Damage,
        torch::{check_archive, is_beyond_us},
    },
};
use reshard_torch_format::TorchSave;

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
            .or_else(|| self.common.as_ref().and_then(of_common))
    }
}

fn told(payload: &Payload, key: Option<&str>, file: Option<&str>) -> Option<Damage> {
    let e = damaged(payload)?;
    Some(Damage {
        key: key.map(Into::into),
        file: file.map(Into::into),
        ..Damage::new(e.to_string())
    })
}

/// A record that is not as its checksum says, or a header that is not as `torch.save` writes it, though the others are.
fn damaged(payload: &Payload) -> Option<BoxError> {
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
    let e = BoxError::from(check_archive(bytes, &ReadLimits::default()).err()?);
    (!is_beyond_us(&e)).then_some(e)
}
