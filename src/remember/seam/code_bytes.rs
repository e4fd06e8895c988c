//! [`CodeBytes`]: the codes of a loaded tile, which are read from a file, or shared with a model in
//! memory.

use std::ops::{Deref, Range};

use super::read;
use crate::Result;
use crate::model::{Part, SharedBytes};

/// The codes of a loaded tile. Where the model is in memory and the bytes lie together, they are
/// not copied.
#[derive(Debug, Default)]
pub(crate) struct CodeBytes {
    read: Vec<u8>,
    /// Takes the place of `read`, which stays for the tiles that have to be read.
    shared: Option<SharedBytes>,
}

impl CodeBytes {
    /// The buffer that is read into, with what it held last.
    pub(crate) fn buffer(&mut self) -> &mut Vec<u8> {
        self.shared = None;
        &mut self.read
    }

    /// Loads rows `rows` and bytes `cols` of each, of a matrix with `stride` bytes a row; see
    /// [`read`].
    pub(crate) fn load(
        &mut self,
        part: &Part<'_>,
        stride: usize,
        rows: Range<usize>,
        cols: Range<usize>,
    ) -> Result<()> {
        if cols.len() == stride || rows.len() == 1 {
            let at = rows.start as u64 * stride as u64 + cols.start as u64;
            self.shared = part.shared_at(at, rows.len() as u64 * cols.len() as u64);
            if self.shared.is_some() {
                return Ok(());
            }
        }
        read(part, stride, rows, cols, self.buffer())
    }

    /// Loads `len` bytes of a tensor from byte `at` on.
    pub(crate) fn load_at(&mut self, part: &Part<'_>, at: u64, len: usize) -> Result<()> {
        self.shared = part.shared_at(at, len as u64);
        if self.shared.is_none() {
            self.read.resize(len, 0);
            part.read_at(at, &mut self.read)?;
        }
        Ok(())
    }
}

impl Deref for CodeBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.shared {
            Some(shared) => shared,
            None => &self.read,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Dtype;
    use crate::compat::whole::{WholeTensor, to_bytes_with};

    /// Rows of a model in memory are those of the model itself; columns are read. What a tile
    /// shares is not written to by the next one.
    #[test]
    fn memory_is_shared() {
        let data: Vec<u8> = (0..32).collect();
        let tensor = WholeTensor { name: "x", shape: &[4, 8], dtype: Dtype::U8, data: &data };
        let model = crate::parse_bytes(to_bytes_with(&[tensor], ("format", "pt")).unwrap());
        let model = model.unwrap();
        let tensor = model.tensor("x").unwrap();
        let (part, stored) = (tensor.part(), tensor.bytes().unwrap());
        let mut codes = CodeBytes::default();
        codes.load(&part, 8, 1..3, 0..8).unwrap();
        assert!(std::ptr::eq(&*codes, &stored[8..24]));
        codes.load(&part, 8, 3..4, 2..5).unwrap();
        assert!(std::ptr::eq(&*codes, &stored[26..29]));
        codes.load(&part, 8, 1..3, 2..4).unwrap();
        assert_eq!(*codes, [10, 11, 18, 19]);
        codes.load_at(&part, 4, 3).unwrap();
        assert!(std::ptr::eq(&*codes, &stored[4..7]));
        codes.buffer().fill(0);
        assert_eq!(stored, data);
        assert!(codes.load(&part, 8, 3..5, 0..8).is_err());
        assert!(codes.load_at(&part, 30, 3).is_err());
        assert!(part.shared_at(u64::MAX, 2).is_none());
    }
}
