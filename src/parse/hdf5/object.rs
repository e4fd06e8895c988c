//! Object headers: the messages of a group or a dataset.

use super::file::{Hdf5File, StructureFields, wrong};
use crate::limits::cap;
use crate::{AnamnesisError, Result};

/// Kinds of messages.
pub(super) mod kind {
    pub const DATASPACE: u16 = 0x01;
    pub const LINK_INFO: u16 = 0x02;
    pub const DATATYPE: u16 = 0x03;
    pub const OLD_FILL_VALUE: u16 = 0x04;
    pub const FILL_VALUE: u16 = 0x05;
    pub const LINK: u16 = 0x06;
    pub const EXTERNAL_FILES: u16 = 0x07;
    pub const LAYOUT: u16 = 0x08;
    pub const FILTERS: u16 = 0x0b;
    pub const ATTRIBUTE: u16 = 0x0c;
    pub const CONTINUATION: u16 = 0x10;
    pub const SYMBOL_TABLE: u16 = 0x11;
}

/// Most messages of an object.
const MAX_MESSAGES: usize = 1 << 16;

/// Most bytes of the messages of an object, which are kept in memory.
const MAX_OBJECT: u64 = 64 << 20;

/// A message that lies in another object, such as a type that has a name.
const SHARED: u8 = 0x02;

/// A message of an object header.
pub(super) struct Message {
    pub kind: u16,
    flags: u8,
    content: Vec<u8>,
    /// Address of the content.
    address: u64,
}

/// The messages of an object.
pub(super) struct Object(Vec<Message>);

impl Object {
    /// Reads the object header at `address`, with its continuations.
    pub(super) fn read(file: &mut Hdf5File<'_>, address: u64) -> Result<Self> {
        let mut object = Self(Vec::new());
        let head = file.structure(address, 16)?;
        let mut blocks = match head.starts_with(b"OHDR") {
            true => object.begin_v2(file, address)?,
            false => object.begin_v1(file, address, &head)?,
        };
        let is_v2 = head.starts_with(b"OHDR");
        let (mut next, mut read) = (0, 0u64);
        while let Some(&(at, len, flags)) = blocks.get(next) {
            next += 1;
            read = read.saturating_add(len);
            cap("MAX_HDF5_OBJECT", read, MAX_OBJECT, "bytes of the messages of an object")?;
            let bytes = file.structure(at, len)?;
            let first = object.0.len();
            match is_v2 {
                true => object.messages_v2((file.fields(&bytes), at), flags)?,
                false => object.messages_v1((file.fields(&bytes), at))?,
            }
            for message in &object.0[first..] {
                if message.kind == kind::CONTINUATION {
                    let mut fields = file.fields(&message.content);
                    let (at, len) = (fields.some_address()?, fields.length()?);
                    // Behind its magic, and before its checksum.
                    blocks.push(match is_v2 {
                        true => (at.saturating_add(4), len.saturating_sub(8), flags),
                        false => (at, len, flags),
                    });
                }
            }
        }
        Ok(object)
    }

    /// The block of messages of a header of version 1: its address, its length and no flags.
    fn begin_v1(
        &mut self,
        file: &Hdf5File<'_>,
        address: u64,
        head: &[u8],
    ) -> Result<Vec<(u64, u64, u8)>> {
        let mut fields = file.fields(head);
        if fields.u8()? != 1 {
            return Err(wrong(&format!("no object header at {address}")));
        }
        fields.take(7)?;
        let len = fields.u32()?;
        Ok(vec![(address + 16, len.into(), 0)])
    }

    /// The same of a header of version 2.
    fn begin_v2(&mut self, file: &mut Hdf5File<'_>, address: u64) -> Result<Vec<(u64, u64, u8)>> {
        let prefix = file.structure(address, 6)?;
        let (version, flags) = (prefix[4], prefix[5]);
        if version != 2 {
            return Err(AnamnesisError::unsupported(
                format!("HDF5 object header version {version}"),
                "1 and 2 are read",
            ));
        }
        let size = 1 << (flags & 3);
        let times = if flags & 0x20 != 0 { 16 } else { 0 };
        let phases = if flags & 0x10 != 0 { 4 } else { 0 };
        let head = file.structure(address + 6, times + phases + size)?;
        let mut fields = file.fields(&head[(times + phases) as usize..]);
        let len = fields.number(size as usize)?;
        Ok(vec![(address + 6 + times + phases + size, len, flags)])
    }

    fn messages_v1(&mut self, (mut fields, at): (StructureFields<'_>, u64)) -> Result<()> {
        let all = fields.rest.len();
        while fields.rest.len() >= 8 {
            let (kind, len, flags) = (fields.u16()?, fields.u16()?, fields.u8()?);
            fields.take(3)?;
            let address = at + (all - fields.rest.len()) as u64;
            self.add(kind, flags, (fields.take(len.into())?, address))?;
        }
        Ok(())
    }

    fn messages_v2(
        &mut self,
        (mut fields, at): (StructureFields<'_>, u64),
        header_flags: u8,
    ) -> Result<()> {
        let all = fields.rest.len();
        let order = if header_flags & 4 != 0 { 2 } else { 0 };
        // What is shorter than a message is a gap.
        while fields.rest.len() >= 4 + order {
            let (kind, len, flags) = (fields.u8()?, fields.u16()?, fields.u8()?);
            fields.take(order)?;
            let address = at + (all - fields.rest.len()) as u64;
            self.add(kind.into(), flags, (fields.take(len.into())?, address))?;
        }
        Ok(())
    }

    fn add(&mut self, kind: u16, flags: u8, (content, address): (&[u8], u64)) -> Result<()> {
        cap(
            "MAX_HDF5_MESSAGES",
            self.0.len() as u64,
            MAX_MESSAGES as u64,
            "messages of an object",
        )?;
        self.0
            .push(Message { kind, flags, content: content.to_vec(), address });
        Ok(())
    }

    /// The messages of a kind, of which those that lie in other objects are left out.
    pub(super) fn all(&self, kind: u16) -> impl Iterator<Item = &[u8]> {
        let of_kind = move |message: &&Message| message.kind == kind && message.flags & SHARED == 0;
        self.0
            .iter()
            .filter(of_kind)
            .map(|message| message.content.as_slice())
    }

    /// The address of the content of the first message of a kind.
    pub(super) fn address_of(&self, kind: u16) -> Option<u64> {
        self.0
            .iter()
            .find(|message| message.kind == kind)
            .map(|message| message.address)
    }

    /// The content of the message of a kind that an object may lack.
    ///
    /// # Errors
    /// Those of [`read_shared`](Self::read_shared): what lies elsewhere is not passed over.
    pub(super) fn read_optional(
        &self,
        file: &mut Hdf5File<'_>,
        kind: u16,
    ) -> Result<Option<Vec<u8>>> {
        match self.0.iter().any(|message| message.kind == kind) {
            true => self.read_shared(file, kind).map(Some),
            false => Ok(None),
        }
    }

    pub(super) fn find(&self, kind: u16) -> Option<&[u8]> {
        self.all(kind).next()
    }

    /// The content of the message of a kind, which may lie in another object.
    ///
    /// # Errors
    /// `Parse` if it is not there; `Unsupported` if it lies in a heap of shared messages.
    pub(super) fn read_shared(&self, file: &mut Hdf5File<'_>, kind: u16) -> Result<Vec<u8>> {
        let missing = || wrong("an object without a message that it needs");
        let message = self
            .0
            .iter()
            .find(|message| message.kind == kind)
            .ok_or_else(missing)?;
        if message.flags & SHARED == 0 {
            return Ok(message.content.clone());
        }
        let mut fields = file.fields(&message.content);
        let (version, place) = (fields.u8()?, fields.u8()?);
        match (version, place) {
            (1, _) => drop(fields.take(6)?),
            (2, _) | (3, 2) => {}
            _ => {
                let what = "it is in a heap that objects share";
                return Err(AnamnesisError::unsupported("HDF5 message", what));
            }
        }
        let address = fields.some_address()?;
        let other = Self::read(file, address)?;
        other.find(kind).map(<[u8]>::to_vec).ok_or_else(missing)
    }
}
