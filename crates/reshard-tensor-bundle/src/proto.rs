//! Protocol buffers, as far as the messages of a bundle need them: varints, fixed numbers and lengths. Unknown fields are passed over.

use crate::varint;

/// A value of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Field<'a> {
    Varint(u64),
    Fixed64(u64),
    Fixed32(u32),
    Bytes(&'a [u8]),
}

/// The bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotAMessage;

/// The fields of a message, in stored order. It ends after an error.
pub(crate) struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    pub(crate) fn of(message: &'a [u8]) -> Self {
        Self(message)
    }

    fn take(&mut self) -> Option<(u64, Field<'a>)> {
        let tag = varint::take(&mut self.0)?;
        let number = tag >> 3;
        // Field numbers have 29 bits and begin at 1.
        if number == 0 || number >= 1 << 29 {
            return None;
        }
        let field = match tag & 7 {
            0 => Field::Varint(varint::take(&mut self.0)?),
            1 => {
                let (bytes, rest) = self.0.split_first_chunk()?;
                self.0 = rest;
                Field::Fixed64(u64::from_le_bytes(*bytes))
            }
            2 => {
                let length = usize::try_from(varint::take(&mut self.0)?).ok()?;
                let (bytes, rest) = self.0.split_at_checked(length)?;
                self.0 = rest;
                Field::Bytes(bytes)
            }
            5 => {
                let (bytes, rest) = self.0.split_first_chunk()?;
                self.0 = rest;
                Field::Fixed32(u32::from_le_bytes(*bytes))
            }
            // Groups are in no message of proto3.
            _ => return None,
        };
        Some((number, field))
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u64, Field<'a>), NotAMessage>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.take();
        if field.is_none() {
            self.0 = &[];
        }
        Some(field.ok_or(NotAMessage))
    }
}

impl<'a> Field<'a> {
    /// An int64 or enum.
    pub(crate) fn int(self) -> Result<i64, NotAMessage> {
        match self {
            Self::Varint(n) => Ok(n as i64),
            _ => Err(NotAMessage),
        }
    }

    /// A nested message, bytes or text.
    pub(crate) fn bytes(self) -> Result<&'a [u8], NotAMessage> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            _ => Err(NotAMessage),
        }
    }

    pub(crate) fn fixed32(self) -> Result<u32, NotAMessage> {
        match self {
            Self::Fixed32(n) => Ok(n),
            _ => Err(NotAMessage),
        }
    }
}

/// Writes a message. As in proto3, a number that is 0 is left out.
#[derive(Debug, Default)]
pub(crate) struct Message(Vec<u8>);

impl Message {
    pub(crate) fn int(&mut self, number: u64, n: i64) {
        if n != 0 {
            self.always(number, n);
        }
    }

    /// A number whose presence counts, also if it is 0.
    pub(crate) fn always(&mut self, number: u64, n: i64) {
        varint::put(&mut self.0, number << 3);
        varint::put(&mut self.0, n as u64);
    }

    pub(crate) fn fixed32(&mut self, number: u64, n: u32) {
        if n != 0 {
            varint::put(&mut self.0, number << 3 | 5);
            self.0.extend(n.to_le_bytes());
        }
    }

    /// A nested message. It is written if it is empty, too.
    pub(crate) fn message(&mut self, number: u64, message: &[u8]) {
        varint::put(&mut self.0, number << 3 | 2);
        varint::put(&mut self.0, message.len() as u64);
        self.0.extend(message);
    }

    pub(crate) fn text(&mut self, number: u64, text: &str) {
        if !text.is_empty() {
            self.message(number, text.as_bytes());
        }
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn fields_are_read_as_they_were_written() {
        let mut message = Message::default();
        message.int(1, -1);
        message.int(2, 0);
        message.always(3, 0);
        message.fixed32(4, 5);
        message.message(5, &[]);
        message.text(6, "é");
        message.text(7, "");
        let bytes = message.into_bytes();
        let fields: Vec<_> = Fields::of(&bytes).map(Result::unwrap).collect();
        assert_eq!(
            fields,
            [
                (1, Field::Varint(u64::MAX)),
                (3, Field::Varint(0)),
                (4, Field::Fixed32(5)),
                (5, Field::Bytes(&[])),
                (6, Field::Bytes("é".as_bytes())),
            ]
        );
        assert_eq!(fields[0].1.int(), Ok(-1));
        assert!(fields[0].1.bytes().is_err() && fields[2].1.int().is_err());
    }

    proptest! {
        #![proptest_config(reshard_model::testkit::law(256))]
        #[test]
        fn no_bytes_make_the_reader_panic_or_go_on_for_ever(bytes: Vec<u8>) {
            prop_assert!(Fields::of(&bytes).count() <= bytes.len());
        }
    }
}
