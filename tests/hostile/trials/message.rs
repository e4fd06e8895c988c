//! Messages of Protocol Buffers.

pub use crate::common::ocdbt::varint;

/// A field that is a number.
pub fn number(field: u64, n: u64) -> Vec<u8> {
    [varint(field << 3), varint(n)].concat()
}

/// A field that is a text or a message.
pub fn bytes(field: u64, content: impl AsRef<[u8]>) -> Vec<u8> {
    let content = content.as_ref();
    [&varint(field << 3 | 2)[..], &varint(content.len() as u64), content].concat()
}
