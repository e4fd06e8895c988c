//! Byte swapping of tensors whose numbers are stored with the most significant byte first.

use super::ggml::ggml_block_types;
use super::{Dtype, optional};

/// Makes the function that looks up a block type's byte-swapped words in the table.
macro_rules! block_words {
    ({ $($block:ident $number:literal $bytes:literal / $values:literal $what:literal $words:tt;)* } $ik:tt $interleaved:tt) => {
        /// The `(byte offset, width)` of the numbers in a block of `dtype` that are stored
        /// reversed; `None` if there is no such layout, or `dtype` is no block type.
        fn block_words(dtype: Dtype) -> Option<&'static [(usize, usize)]> {
            match dtype {
                $(Dtype::$block => optional!($words &$words),)*
                _ => None,
            }
        }
    };
}
ggml_block_types! { block_words {} }

impl Dtype {
    /// The `(byte offset, width)` of the numbers in an element or block that files of the other
    /// byte order store reversed. `None` if no such layout is defined.
    pub(crate) fn swapped_words(self) -> Option<&'static [(usize, usize)]> {
        match self {
            Self::Bool | Self::U8 | Self::I8 => Some(&[]),
            Self::U16 | Self::I16 | Self::F16 | Self::BF16 => Some(&[(0, 2)]),
            Self::U32 | Self::I32 | Self::F32 => Some(&[(0, 4)]),
            Self::C64 => Some(&[(0, 4), (4, 4)]),
            Self::U64 | Self::I64 | Self::F64 => Some(&[(0, 8)]),
            _ => block_words(self),
        }
    }

    /// Whether [`swap_bytes`](Self::swap_bytes) knows where the type's numbers are.
    pub(crate) fn can_swap(self) -> bool {
        self.swapped_words().is_some()
    }

    /// Reverses the bytes of every number in `bytes`, which holds whole elements or blocks. A
    /// trailing partial one stays as it is; so does everything if [`can_swap`](Self::can_swap) is
    /// false, which callers check first.
    pub(crate) fn swap_bytes(self, bytes: &mut [u8]) {
        let (Some(words), Some(size)) = (self.swapped_words(), self.type_size()) else {
            return;
        };
        for block in bytes.chunks_exact_mut(size) {
            words
                .iter()
                .for_each(|&(at, width)| block[at..at + width].reverse());
        }
    }
}
