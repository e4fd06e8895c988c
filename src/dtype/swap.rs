//! Tensors whose numbers are stored with the most significant byte first, turned round.

use super::Dtype;

impl Dtype {
    /// Where the numbers of a block are that files of the other byte order store turned round: `(at, width)`.
    /// `None` if no such layout is defined.
    ///
    /// Block types: gguf-py `scripts/gguf_convert_endian.py`, which knows no others.
    fn words(self) -> Option<&'static [(usize, usize)]> {
        match self {
            Self::Bool | Self::U8 | Self::I8 | Self::MXFP4 | Self::NVFP4 => Some(&[]),
            Self::U16 | Self::I16 | Self::F16 | Self::BF16 | Self::Q4_0 | Self::Q8_0 => {
                Some(&[(0, 2)])
            }
            Self::U32 | Self::I32 | Self::F32 => Some(&[(0, 4)]),
            Self::C64 => Some(&[(0, 4), (4, 4)]),
            Self::U64 | Self::I64 | Self::F64 => Some(&[(0, 8)]),
            Self::Q4_K => Some(&[(0, 2), (2, 2)]),
            Self::Q6_K => Some(&[(208, 2)]),
            _ => None,
        }
    }

    /// Whether [`swap_bytes`](Self::swap_bytes) can turn the type's numbers round.
    pub(crate) fn can_swap(self) -> bool {
        self.words().is_some()
    }

    /// Turns the numbers in whole blocks (or elements) round. What is not a whole block, or has no layout for
    /// it, stays; callers have asked [`can_swap`](Self::can_swap).
    pub(crate) fn swap_bytes(self, bytes: &mut [u8]) {
        let (Some(words), Some(size)) = (self.words(), self.type_size()) else {
            return;
        };
        for block in bytes.chunks_exact_mut(size) {
            words
                .iter()
                .for_each(|&(at, width)| block[at..at + width].reverse());
        }
    }
}
