//! What chunks of all kinds share: shuffled bytes, and errors.

use std::io;

use crate::AnamnesisError;

/// Elements of `size` bytes, of which the first bytes come first.
pub(super) fn unshuffled(bytes: &[u8], size: usize) -> Vec<u8> {
    let count = bytes.len() / size.max(1);
    let mut out = bytes.to_vec();
    if size > 1 && count > 1 {
        for (place, plane) in bytes.chunks_exact(count).take(size).enumerate() {
            for (element, &byte) in plane.iter().enumerate() {
                out[element * size + place] = byte;
            }
        }
    }
    out
}

/// The error for bytes that a decoder, or the file, does not give.
pub(super) fn unreadable(error: &io::Error) -> AnamnesisError {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => broken("has fewer bytes than it should have"),
        _ => broken(&format!("is not compressed as it should be: {error}")),
    }
}

pub(super) fn broken(what: &str) -> AnamnesisError {
    AnamnesisError::parse(format!("a chunk of the dataset {what}"))
}
