//! Databases of OCDBT, made of the bodies of their nodes.

/// The sum of the CRC-32C.
pub fn crc32c(bytes: &[u8]) -> u32 {
    let bit = |sum: u32, _| sum >> 1 ^ (0x82f6_3b78 * (sum & 1));
    let byte = |sum: u32, &byte: &u8| (0..8).fold(sum ^ u32::from(byte), bit);
    !bytes.iter().fold(u32::MAX, byte)
}

pub fn varint(mut n: u64) -> Vec<u8> {
    let mut out = Vec::new();
    while n > 127 {
        out.push(n as u8 | 128);
        n >>= 7;
    }
    out.push(n as u8);
    out
}

pub fn varints(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|&n| varint(n)).collect()
}

/// A node of this body, which is not compressed.
pub fn node(magic: u32, body: &[u8]) -> Vec<u8> {
    let mut node = magic.to_be_bytes().to_vec();
    node.extend((body.len() as u64 + 18).to_le_bytes());
    node.extend([0, 0]);
    node.extend(body);
    let sum = crc32c(&node);
    node.extend(sum.to_le_bytes());
    node
}

pub const MANIFEST: u32 = 0x0cdb_3a2a;
pub const TREE: u32 = 0x0cdb_20de;

/// A manifest whose last version has a root of `len` bytes at `offset` of the file `path`.
pub fn manifest(path: &str, height: u8, offset: u64, len: u64) -> Vec<u8> {
    let mut body = vec![0; 16];
    body.extend(varints(&[0, 100, 1 << 20]));
    body.push(4);
    body.extend(varints(&[0, 1, path.len() as u64, 0]));
    body.extend(path.as_bytes());
    body.extend(varints(&[1, 1]));
    body.push(height);
    body.extend(varints(&[0, offset, len, 1, len, 0]));
    body.extend([0; 9]);
    node(MANIFEST, &body)
}

/// The body of a leaf with these keys and values, which are inside of it.
pub fn leaf(values: &[(&str, &[u8])]) -> Vec<u8> {
    let mut body = vec![0, 0];
    body.extend(varint(values.len() as u64));
    body.extend(vec![0; values.len().saturating_sub(1)]);
    values
        .iter()
        .for_each(|(key, _)| body.extend(varint(key.len() as u64)));
    values
        .iter()
        .for_each(|(key, _)| body.extend(key.as_bytes()));
    values
        .iter()
        .for_each(|(_, value)| body.extend(varint(value.len() as u64)));
    body.extend(vec![0; values.len()]);
    values.iter().for_each(|(_, value)| body.extend(*value));
    body
}
