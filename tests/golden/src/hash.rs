//! What stands for elements where they are too many to be listed.

use sha2::{Digest, Sha256};

/// SHA-256 of blocks of bytes, in hexadecimal digits.
pub fn sha256(blocks: impl IntoIterator<Item = impl AsRef<[u8]>>) -> String {
    let mut hash = Sha256::new();
    blocks.into_iter().for_each(|b| hash.update(b));
    hash.finalize().iter().map(|b| format!("{b:02x}")).collect()
}
