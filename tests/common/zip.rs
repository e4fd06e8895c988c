//! ZIP archives made in memory, valid except for the changes of a test.
#![allow(dead_code, clippy::unwrap_used, clippy::panic)]

use std::io::Write;

/// The fields of a member's local header or directory entry. Lengths and offsets that are `None`
/// are written as they really are.
#[derive(Clone, Default)]
pub struct Header {
    pub signature: u32,
    pub flags: u16,
    pub method: u16,
    pub crc: u32,
    pub stored_len: u32,
    pub len: u32,
    pub name: Vec<u8>,
    pub name_len: Option<u16>,
    pub extra: Vec<u8>,
    pub extra_len: Option<u16>,
    /// This field and those below are in the directory alone.
    pub comment_len: u16,
    pub disk: u16,
    pub offset: Option<u32>,
}

/// A member: its local header, its directory entry, and its stored bytes.
#[derive(Clone)]
pub struct Member {
    pub local: Header,
    pub central: Header,
    pub data: Vec<u8>,
}

/// The end record.
#[derive(Clone, Default)]
pub struct End {
    pub disks: [u16; 2],
    pub entries: [Option<u16>; 2],
    pub len: Option<u32>,
    pub offset: Option<u32>,
    pub comment_len: Option<u16>,
    pub comment: Vec<u8>,
}

/// The 64-bit end record and its locator.
#[derive(Clone, Default)]
pub struct End64 {
    pub signature: Option<u32>,
    pub size: Option<u64>,
    pub disks: [u32; 2],
    pub entries: [Option<u64>; 2],
    pub len: Option<u64>,
    pub offset: Option<u64>,
    /// The offset of the record that the locator gives.
    pub record_disk: u32,
    pub place: Option<u64>,
    pub all_disks: Option<u32>,
    /// Whether the locator is written without the record.
    pub missing: bool,
}

#[derive(Clone, Default)]
pub struct Zip {
    pub members: Vec<Member>,
    /// Bytes between the last member and the directory.
    pub gap: Vec<u8>,
    pub end: End,
    pub end64: Option<End64>,
}

impl Member {
    fn new(name: &str, method: u16, content: &[u8], data: Vec<u8>) -> Self {
        let (crc, stored_len, len) =
            (crc32fast::hash(content), data.len() as u32, content.len() as u32);
        let head =
            Header { signature: 0x0403_4b50, method, crc, stored_len, len, ..Header::default() };
        let local = Header { name: name.as_bytes().to_vec(), ..head };
        Self { central: Header { signature: 0x0201_4b50, ..local.clone() }, local, data }
    }

    pub fn stored(name: &str, content: &[u8]) -> Self {
        Self::new(name, 0, content, content.to_vec())
    }

    pub fn deflated(name: &str, content: &[u8]) -> Self {
        let mut encoder =
            flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::best());
        encoder.write_all(content).unwrap();
        Self::new(name, 8, content, encoder.finish().unwrap())
    }

    /// Changes both headers.
    pub fn both(mut self, change: impl Fn(&mut Header)) -> Self {
        change(&mut self.local);
        change(&mut self.central);
        self
    }

    /// Changes the directory entry.
    pub fn central(mut self, change: impl Fn(&mut Header)) -> Self {
        change(&mut self.central);
        self
    }

    /// Changes the local header.
    pub fn local(mut self, change: impl Fn(&mut Header)) -> Self {
        change(&mut self.local);
        self
    }
}

impl Header {
    /// The header's bytes. `place` is the real offset of the local header if this is a directory
    /// entry.
    fn bytes(&self, place: Option<u32>) -> Vec<u8> {
        let mut out = self.signature.to_le_bytes().to_vec();
        let mut put = |bytes: &[u8]| out.extend(bytes);
        place.iter().for_each(|_| put(&[20, 3]));
        put(&[20, 0]);
        [self.flags, self.method, 0, 0x21]
            .iter()
            .for_each(|n| put(&n.to_le_bytes()));
        [self.crc, self.stored_len, self.len]
            .iter()
            .for_each(|n| put(&n.to_le_bytes()));
        put(&self
            .name_len
            .unwrap_or(self.name.len() as u16)
            .to_le_bytes());
        put(&self
            .extra_len
            .unwrap_or(self.extra.len() as u16)
            .to_le_bytes());
        if let Some(place) = place {
            [self.comment_len, self.disk, 0, 0, 0]
                .iter()
                .for_each(|n| put(&n.to_le_bytes()));
            put(&self.offset.unwrap_or(place).to_le_bytes());
        }
        put(&self.name);
        put(&self.extra);
        out
    }
}

impl Zip {
    pub fn of(members: &[Member]) -> Self {
        Self { members: members.to_vec(), ..Self::default() }
    }

    /// The whole file.
    pub fn file(&self) -> Vec<u8> {
        let (mut out, mut directory) = (Vec::new(), Vec::new());
        for member in &self.members {
            directory.extend(member.central.bytes(Some(out.len() as u32)));
            out.extend(member.local.bytes(None));
            out.extend(&member.data);
        }
        out.extend(&self.gap);
        let (n, len, offset) = (self.members.len(), directory.len(), out.len());
        out.extend(directory);
        self.end64
            .iter()
            .for_each(|end| end.write(&mut out, [n, len, offset]));
        let End { disks, entries, comment, .. } = &self.end;
        out.extend(b"PK\x05\x06");
        let entries = entries.map(|said| said.unwrap_or(n as u16));
        [disks[0], disks[1], entries[0], entries[1]]
            .iter()
            .for_each(|n| out.extend(n.to_le_bytes()));
        out.extend(self.end.len.unwrap_or(len as u32).to_le_bytes());
        out.extend(self.end.offset.unwrap_or(offset as u32).to_le_bytes());
        out.extend(
            self.end
                .comment_len
                .unwrap_or(comment.len() as u16)
                .to_le_bytes(),
        );
        out.extend(comment);
        out
    }
}

impl End64 {
    fn write(&self, out: &mut Vec<u8>, [n, len, offset]: [usize; 3]) {
        let place = out.len() as u64;
        let mut record = self.signature.unwrap_or(0x0606_4b50).to_le_bytes().to_vec();
        record.extend(self.size.unwrap_or(44).to_le_bytes());
        record.extend([45, 3, 45, 0]);
        self.disks
            .iter()
            .for_each(|n| record.extend(n.to_le_bytes()));
        self.entries
            .iter()
            .for_each(|said| record.extend(said.unwrap_or(n as u64).to_le_bytes()));
        record.extend(self.len.unwrap_or(len as u64).to_le_bytes());
        record.extend(self.offset.unwrap_or(offset as u64).to_le_bytes());
        out.extend(record.iter().filter(|_| !self.missing));
        out.extend(b"PK\x06\x07");
        out.extend(self.record_disk.to_le_bytes());
        out.extend(self.place.unwrap_or(place).to_le_bytes());
        out.extend(self.all_disks.unwrap_or(1).to_le_bytes());
    }
}

/// A file of a tar archive, with `size` as its size field.
pub fn tarred(name: &str, size: &str, content: &[u8]) -> Vec<u8> {
    let mut file = vec![0; 512];
    file[..name.len()].copy_from_slice(name.as_bytes());
    file[124..124 + size.len()].copy_from_slice(size.as_bytes());
    file[257..262].copy_from_slice(b"ustar");
    file[148..156].fill(b' ');
    let sum: u32 = file.iter().copied().map(u32::from).sum();
    file[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    file.extend(content);
    file.resize(file.len().next_multiple_of(512), 0);
    file
}

/// An NPY array of version 1 with this header, without padding.
pub fn npy(header: &str, data: &[u8]) -> Vec<u8> {
    [&b"\x93NUMPY\x01\0"[..], &(header.len() as u16).to_le_bytes(), header.as_bytes(), data]
        .concat()
}

/// An NPY header with these three values.
pub fn dict(descr: &str, fortran: &str, shape: &str) -> String {
    format!("{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}, }}\n")
}

/// An array of zeros.
pub fn zeros(n: usize) -> Vec<u8> {
    npy(&dict("'|u1'", "False", &format!("({n},)")), &vec![0; n])
}

pub fn two() -> Zip {
    Zip::of(&[Member::stored("a.npy", &zeros(9)), Member::deflated("b.npy", &zeros(300))])
}

/// An archive of two arrays, changed.
pub fn changed(change: impl FnOnce(&mut Zip)) -> Vec<u8> {
    let mut zip = two();
    change(&mut zip);
    zip.file()
}

/// An archive of two arrays with a 64-bit end record; the fields of the 32-bit record refer to it.
pub fn wide(end: End64) -> Vec<u8> {
    changed(|zip| {
        (zip.end.entries, zip.end.len, zip.end.offset) =
            ([Some(u16::MAX); 2], Some(u32::MAX), Some(u32::MAX));
        zip.end64 = Some(end);
    })
}

/// One array whose headers are changed.
pub fn both(change: impl Fn(&mut Header)) -> Vec<u8> {
    Zip::of(&[Member::stored("a.npy", &zeros(9)).both(change)]).file()
}

pub fn central(change: impl Fn(&mut Header)) -> Vec<u8> {
    Zip::of(&[Member::stored("a.npy", &zeros(9)).central(change)]).file()
}

pub fn local(change: impl Fn(&mut Header)) -> Vec<u8> {
    Zip::of(&[
        Member::stored("b.npy", &zeros(300)),
        Member::stored("a.npy", &zeros(9)).local(change),
    ])
    .file()
}
