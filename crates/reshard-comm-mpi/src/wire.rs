//! How a message travels: a head with the first bytes, and the rest in parts. No I/O.
//!
//! MPI counts bytes in 32 bits with a sign, so a message of many gigabytes needs several parts. Numbers are little-endian.

use bytes::Bytes;
use reshard_comm::mesh::{Call, Kind};
use std::ops::Range;

/// The length of a head without the first bytes of its message.
pub(crate) const HEAD: usize = 40;

/// How many bytes of a message travel with its head.
pub(crate) const INLINE: usize = 2048;

/// How many bytes a part may have, unless a setting says less.
pub(crate) const PART_LIMIT: usize = 1 << 30;

/// What announces a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) kind: Kind,
    pub(crate) group: u64,
    pub(crate) call: Call,
    pub(crate) about: u32,
    /// How many bytes the message has.
    pub(crate) length: u64,
    /// How many bytes each part but the last one has. It is the sender's setting.
    pub(crate) part: u32,
}

impl Head {
    /// The head and the first bytes of its message: kind, method, zeros; root; group; number of the call; length; length of
    /// parts; of or for whom; bytes.
    pub(crate) fn encode(&self, body: &[u8]) -> Bytes {
        let (first, _) = body.split_at(body.len().min(INLINE));
        let mut out = Vec::with_capacity(HEAD + first.len());
        out.extend([self.kind.code(), self.call.method, 0, 0]);
        out.extend(self.call.root.to_le_bytes());
        out.extend(self.group.to_le_bytes());
        out.extend(self.call.number.to_le_bytes());
        out.extend(self.length.to_le_bytes());
        out.extend(self.part.to_le_bytes());
        out.extend(self.about.to_le_bytes());
        out.extend(first);
        out.into()
    }

    /// The head, and the first bytes of its message.
    ///
    /// # Errors
    /// What is wrong with the bytes, for example a length of more than `limit`.
    pub(crate) fn decode(bytes: &[u8], limit: u64) -> Result<(Self, &[u8]), String> {
        let foreign = || "sent a message of no known kind".to_owned();
        let (head, first) = bytes.split_first_chunk::<HEAD>().ok_or_else(foreign)?;
        let [kind, method, 0, 0, rest @ ..] = head else {
            return Err(foreign());
        };
        let (root, rest) = split(rest);
        let (group, rest) = split(rest);
        let (number, rest) = split(rest);
        let (length, rest) = split(rest);
        let (part, rest) = split(rest);
        let (about, _) = split(rest);
        let head = Self {
            kind: Kind::from_code(*kind).ok_or_else(foreign)?,
            group: u64::from_le_bytes(group),
            call: Call {
                number: u64::from_le_bytes(number),
                method: *method,
                root: u32::from_le_bytes(root),
            },
            about: u32::from_le_bytes(about),
            length: u64::from_le_bytes(length),
            part: u32::from_le_bytes(part),
        };
        if head.length > limit {
            let length = head.length;
            return Err(format!(
                "announced a message of {length} bytes, more than the limit of {limit}"
            ));
        }
        let known = usize::try_from(head.length)
            .unwrap_or(usize::MAX)
            .min(INLINE);
        let right = (1..=PART_LIMIT).contains(&(head.part as usize));
        if !right || first.len() != known {
            return Err(foreign());
        }
        Ok((head, first))
    }
}

/// The first `N` bytes, and the rest. Missing bytes are 0; the callers pass enough.
fn split<const N: usize>(bytes: &[u8]) -> ([u8; N], &[u8]) {
    match bytes.split_first_chunk::<N>() {
        Some((first, rest)) => (*first, rest),
        None => ([0; N], &[]),
    }
}

/// How many parts a message of so many bytes has, besides what travels with its head.
pub(crate) fn count_parts(length: usize, part: usize) -> usize {
    length.saturating_sub(INLINE).div_ceil(part.max(1))
}

/// Where part `at` lies in its message.
pub(crate) fn part_at(length: usize, part: usize, at: usize) -> Option<Range<usize>> {
    let start = at.checked_mul(part.max(1))?.checked_add(INLINE)?;
    (start < length).then(|| start..start.saturating_add(part.max(1)).min(length))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn heads() -> impl Strategy<Value = (Head, Vec<u8>)> {
        let call = (any::<u64>(), any::<u8>(), any::<u32>());
        let body = prop::collection::vec(any::<u8>(), 0..3 * INLINE);
        let part = 1..=PART_LIMIT as u32;
        (1..=6_u8, any::<u64>(), call, body, part).prop_map(
            |(kind, group, (number, method, root), body, part)| {
                let call = Call {
                    number,
                    method,
                    root,
                };
                let (kind, length) = (Kind::from_code(kind).unwrap(), body.len() as u64);
                let head = Head {
                    kind,
                    group,
                    call,
                    about: root,
                    length,
                    part,
                };
                (head, body)
            },
        )
    }

    proptest! {
        #![proptest_config(reshard_model::testkit::law(256))]
        #[test]
        fn a_head_and_the_first_bytes_are_read_as_they_were_written((head, body) in heads()) {
            let bytes = head.encode(&body);
            prop_assert!(bytes.len() <= HEAD + INLINE);
            let (read, first) = Head::decode(&bytes, u64::MAX).unwrap();
            prop_assert_eq!(read, head);
            prop_assert_eq!(first, &body[..body.len().min(INLINE)]);
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            drop(Head::decode(&bytes, 1000));
        }

        #[test]
        fn a_damaged_head_is_read_without_a_panic(
            (head, body) in heads(), at in 0..HEAD, byte in any::<u8>(), cut in 0..3000_usize
        ) {
            let mut bytes = head.encode(&body).to_vec();
            bytes[at] = byte;
            bytes.truncate(cut);
            drop(Head::decode(&bytes, 1000));
        }

        #[test]
        fn parts_in_any_order_are_the_message(
            body in prop::collection::vec(any::<u8>(), 0..3 * INLINE), part in 1..INLINE, seed in any::<u64>()
        ) {
            let mut order: Vec<_> = (0..count_parts(body.len(), part)).collect();
            // Some order: by a hash of seed and place.
            order.sort_by_key(|at| (*at as u64 ^ seed).wrapping_mul(0x9E37_79B9_7F4A_7C15));
            let first = body.len().min(INLINE);
            let mut got = vec![None; body.len()];
            got[..first].iter_mut().zip(&body).for_each(|(to, byte)| *to = Some(*byte));
            for at in order {
                let range = part_at(body.len(), part, at).unwrap();
                prop_assert!(!range.is_empty() && range.len() <= part);
                for (to, byte) in got[range.clone()].iter_mut().zip(&body[range]) {
                    prop_assert_eq!(to.replace(*byte), None, "no byte travels twice");
                }
            }
            prop_assert_eq!(got.into_iter().collect::<Option<Vec<u8>>>(), Some(body));
        }

        #[test]
        fn parts_follow_each_other_in_a_message_of_any_length(
            length in 0..1_usize << 50, part in 1..=PART_LIMIT, at in any::<usize>()
        ) {
            let count = count_parts(length, part);
            prop_assert_eq!(part_at(length, part, count), None);
            prop_assert_eq!(part_at(length, part, count.saturating_add(at)), None);
            if let Some(last) = count.checked_sub(1) {
                prop_assert_eq!(part_at(length, part, last).unwrap().end, length);
                prop_assert_eq!(part_at(length, part, 0).unwrap().start, INLINE);
                let at = at % count;
                let this = part_at(length, part, at).unwrap();
                let next = part_at(length, part, at + 1).map_or(length, |next| next.start);
                prop_assert_eq!(this.end, next);
            }
        }
    }

    #[test]
    fn a_message_of_5_gib_is_cut_at_1_gib() {
        let length = 5 << 30;
        let part = |at| part_at(length, PART_LIMIT, at);
        let cut: Vec<_> = (0..).map_while(part).map(|range| range.len()).collect();
        assert_eq!(cut.len(), 5);
        assert_eq!(cut.iter().sum::<usize>() + INLINE, length);
        assert!(cut.iter().all(|part| i32::try_from(*part).is_ok()));
    }

    #[test]
    fn a_head_that_no_rank_sends_is_named() {
        let call = Call::default();
        let head = Head {
            kind: Kind::Data,
            group: 0,
            call,
            about: 0,
            length: 7,
            part: 3,
        };
        let bytes = head.encode(b"1234567");
        assert!(Head::decode(&bytes, 7).is_ok());
        let error = Head::decode(&bytes, 6).unwrap_err();
        assert_eq!(
            error,
            "announced a message of 7 bytes, more than the limit of 6"
        );
        for (at, byte) in [(0, 0), (0, 7), (2, 1), (24, 6), (35, 0x80)] {
            let mut bytes = bytes.to_vec();
            bytes[at] = byte;
            let error = Head::decode(&bytes, 7).unwrap_err();
            assert_eq!(error, "sent a message of no known kind", "{byte} at {at}");
        }
        assert!(Head::decode(&bytes[..HEAD + 6], 7).is_err());
    }
}
