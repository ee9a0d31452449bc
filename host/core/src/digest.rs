//! What bytes are known by, in every text of this project: `sha256:<hex>`.

use std::fmt::Write as _;

use sha2::{Digest, Sha256};

/// Of bytes.
#[must_use]
pub fn of(bytes: &[u8]) -> String {
    text(&Sha256::digest(bytes))
}

/// Of a hash that was made elsewhere.
#[must_use]
pub fn text(hash: &[u8]) -> String {
    let mut text = "sha256:".to_owned();
    for byte in hash {
        // Into a String nothing fails.
        let _written = write!(text, "{byte:02x}");
    }
    text
}
