//! Messages between ranks: a version byte, a head, a body, both in postcard.
//!
//! The head says in which step the sender is and whether it succeeded, so that a rank in another step understands it
//! too. The body is one value, or nothing.

use crate::{Cause, CommError, Rank, Result, group::joined};
use bytes::Bytes;
use reshard_model::ErrorKind;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::collections::BTreeMap;

const VERSION: u8 = 1;

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Head {
    pub(crate) step: String,
    pub(crate) from: Rank,
    pub(crate) outcome: Outcome,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Outcome {
    Done,
    Failed(BTreeMap<Rank, Cause>),
    OutOfStep(String),
}

/// A message whose body `fill` writes. If `fill` fails, the message says so and has no body.
pub(crate) fn pack(
    step: &str,
    from: Rank,
    fill: impl FnOnce(&mut Vec<u8>) -> Result<(), Outcome>,
) -> Result<Bytes> {
    let head = |outcome| -> Result<Vec<u8>> {
        let head = Head {
            step: step.to_owned(),
            from,
            outcome,
        };
        postcard::to_extend(&head, vec![VERSION])
            .map_err(|e| CommError::Broken(Cause::from_error(ErrorKind::Internal, &e)))
    };
    let mut message = head(Outcome::Done)?;
    match fill(&mut message) {
        Ok(()) => Ok(message.into()),
        Err(outcome) => Ok(head(outcome)?.into()),
    }
}

/// The head and the body of a message. The error says what is wrong with the message.
pub(crate) fn unpack(message: &Bytes) -> Result<(Head, Bytes), String> {
    let body = match message.split_first() {
        Some((&VERSION, rest)) => rest,
        Some((other, _)) => {
            return Err(format!(
                "speaks version {other} of the protocol, not {VERSION}"
            ));
        }
        None => return Err("sent an empty message".to_owned()),
    };
    match postcard::take_from_bytes(body) {
        Ok((head, body)) => Ok((head, message.slice_ref(body))),
        Err(e) => Err(format!("sent a message that can't be read ({e})")),
    }
}

/// The first block of a message, which then has at least all of the head in it, as the sender packed it.
pub(crate) fn first_block(blocks: &mut Vec<Bytes>) -> Bytes {
    // A transport may cut messages as it likes.
    let whole = |block: &Bytes| unpack(block).is_ok();
    if blocks.len() > 1 && !blocks.first().is_some_and(whole) {
        *blocks = vec![joined(std::mem::take(blocks))];
    }
    blocks.first().cloned().unwrap_or_default()
}

/// Appends `value` to `to`.
pub(crate) fn encode<T: Serialize>(value: &T, to: &mut Vec<u8>) -> Result<(), Cause> {
    // `to_extend` takes the buffer and returns it only on success. Otherwise `pack` makes a new one.
    *to = postcard::to_extend(value, std::mem::take(to)).map_err(|e| unfit::<T>("sent", e))?;
    Ok(())
}

/// `value` alone.
pub(crate) fn encoded<T: Serialize>(value: &T) -> Result<Bytes, Cause> {
    let mut bytes = Vec::new();
    encode(value, &mut bytes)?;
    Ok(bytes.into())
}

/// The `count` values that follow each other in `bytes`, and nothing after them.
pub(crate) fn decode<T: DeserializeOwned>(mut bytes: &[u8], count: usize) -> Result<Vec<T>, Cause> {
    let mut values = Vec::with_capacity(count);
    for _ in 0..count {
        let (value, rest) =
            postcard::take_from_bytes(bytes).map_err(|e| unfit::<T>("received", e))?;
        values.push(value);
        bytes = rest;
    }
    match bytes {
        [] => Ok(values),
        _ => Err(unfit::<T>("received", "bytes are left over")),
    }
}

/// The one value of each body.
pub(crate) fn decode_each<T: DeserializeOwned>(bodies: &[Bytes]) -> Result<Vec<T>, Cause> {
    let values = bodies.iter().map(|body| decode(body, 1));
    Ok(values
        .collect::<Result<Vec<_>, _>>()?
        .into_iter()
        .flatten()
        .collect())
}

fn unfit<T>(done: &str, why: impl ToString) -> Cause {
    let message = format!("a {} can't be {done}", std::any::type_name::<T>());
    Cause {
        kind: ErrorKind::Internal,
        message,
        chain: vec![why.to_string()],
    }
}
