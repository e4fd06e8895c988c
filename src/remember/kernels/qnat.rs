//! QNAT blocks: `(level + zero point) * scale`, low nibble first, each block of whole bytes.
//!
//! Formula and levels: qlora-rs 1.0.5 `quantization.rs`, `dequantize_nf4`
//! (<https://github.com/tzervas/qlora-rs/blob/a203ca9c735856a9b091fe02328d74cd93d32c29/src/quantization.rs#L451>).

use crate::element::Element;
use crate::simd::{Kernel, zip};

/// The levels of NF4, as bits.
#[rustfmt::skip]
const LEVEL_BITS: [u32; 16] = [
    0xbf80_0000, 0xbf32_39b1, 0xbf06_6b30, 0xbeca_32a0, 0xbe91_a24d, 0xbe3d_353f, 0xbdba_7871, 0x0000_0000,
    0x3da2_faff, 0x3e24_cae3, 0x3e7c_04dd, 0x3ead_033a, 0x3ee1_a4b8, 0x3f10_07ab, 0x3f39_13b3, 0x3f80_0000,
];

/// Level `code` of NF4.
#[inline(always)]
pub(crate) fn level(code: usize) -> f32 {
    f32::from_bits(LEVEL_BITS[code])
}

/// Blocks of codes (whole ones, or the same columns of each), with a scale and a zero point each.
pub(crate) struct QnatRows<'a> {
    pub codes: &'a [u8],
    pub cols: usize,
    pub scales: &'a [f32],
    pub zeros: &'a [f32],
}

impl Kernel for QnatRows<'_> {
    const ROUNDS_ON_THE_WAY: bool = true;

    fn is_rounded_last(&self) -> bool {
        false
    }

    #[inline(always)]
    fn run<E: Element>(&self, out: &mut [E]) {
        let width = self.cols.div_ceil(2).max(1);
        let rows = zip(self.codes.chunks_exact(width), zip(self.scales.iter(), self.zeros));
        for ((codes, (&scale, &zero)), out) in zip(rows, out.chunks_exact_mut(self.cols.max(1))) {
            // 16 values serve a whole block, so that levels are rounded once for each code and not
            // for each value.
            let mut table = [E::from_f32(0.0); 16];
            for (code, value) in table.iter_mut().enumerate() {
                *value = E::from_f32((level(code) + zero) * scale);
            }
            for (pair, &byte) in zip(out.chunks_mut(2), codes) {
                pair[0] = table[usize::from(byte & 15)];
                if let Some(second) = pair.get_mut(1) {
                    *second = table[usize::from(byte >> 4)];
                }
            }
        }
    }
}
