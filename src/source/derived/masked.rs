//! [`MaskedValues`]: a tensor of which a bit for each element tells whether it is stored.

use crate::source::Source;
use crate::{AnamnesisError, Result};

/// Elements between two places that are noted. Reading begins at one of them.
const STEP: u64 = 4096;

/// Bytes of the mask of so many elements.
const STEP_BYTES: usize = STEP as usize / 8;

/// The elements whose bits are set, and one value everywhere else.
#[derive(Debug)]
pub(crate) struct MaskedValues {
    mask: SourceAt,
    values: SourceAt,
    format: MaskedFormat,
    /// Elements of the tensor.
    count: u64,
    /// For each multiple of [`STEP`], how many elements before it are stored.
    stored_before: Vec<u64>,
}

/// A source, and where in it data begins.
#[derive(Debug)]
pub(crate) struct SourceAt {
    pub source: Source,
    pub offset: u64,
}

/// How elements are stored, and how the tensor has them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MaskedFormat {
    /// Bits of a stored element: 1 to 8, or those of `width` bytes. The lowest bits come first.
    pub bits: usize,
    /// Whether the highest of fewer than eight bits is a sign.
    pub is_signed: bool,
    /// Bytes of an element of the tensor.
    pub width: usize,
    /// The element of which nothing is stored, of at most two bytes.
    pub fill: u16,
}

impl MaskedValues {
    /// Reads the mask of `count` elements once, lowest bits first, to count them.
    ///
    /// # Errors
    /// `Parse` if not `stored` bits of it are set, or one behind the last element is; `Io`.
    pub(crate) fn new(
        mask: SourceAt,
        values: SourceAt,
        format: MaskedFormat,
        count: u64,
        stored: u64,
    ) -> Result<Self> {
        let (mut found, mut stored_before) = (0, Vec::new());
        let mut bits = Vec::new();
        let mut first = 0;
        while first < count {
            stored_before.push(found);
            let n = (count - first).min(STEP);
            bits.resize(n.div_ceil(8) as usize, 0);
            mask.source.read_at(mask.offset + first / 8, &mut bits)?;
            if let (Some(last), 1..) = (bits.last(), n % 8)
                && last >> (n % 8) != 0
            {
                return Err(AnamnesisError::parse("its mask has bits behind the last element"));
            }
            found += bits
                .iter()
                .map(|byte| u64::from(byte.count_ones()))
                .sum::<u64>();
            first += n;
        }
        if found != stored {
            return Err(AnamnesisError::parse(format!(
                "its mask has {found} elements, of which {stored} are stored"
            )));
        }
        Ok(Self { mask, values, format, count, stored_before })
    }

    pub(super) fn len(&self) -> u64 {
        self.count * self.format.width as u64
    }

    pub(super) fn base(&self) -> &Source {
        &self.values.source
    }

    /// Fills `out` with the bytes of the tensor from `offset` on.
    pub(super) fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let end = offset.checked_add(out.len() as u64);
        let end = end.filter(|&end| end <= self.len());
        let end = end.ok_or_else(|| AnamnesisError::parse("tensor data past the end"))?;
        let step_len = STEP * self.format.width as u64;
        let mut dense = Vec::new();
        for step in offset / step_len..end.div_ceil(step_len) {
            self.step(step, &mut dense)?;
            let begin = step * step_len;
            let (from, to) = (offset.max(begin), end.min(begin + step_len));
            out[(from - offset) as usize..(to - offset) as usize]
                .copy_from_slice(&dense[(from - begin) as usize..(to - begin) as usize]);
        }
        Ok(())
    }

    /// Replaces `dense` with the elements between two places that are noted.
    fn step(&self, step: u64, dense: &mut Vec<u8>) -> Result<()> {
        let MaskedFormat { bits, is_signed, width, fill } = self.format;
        let n = (self.count - step * STEP).min(STEP) as usize;
        let mut mask = [0; STEP_BYTES];
        let mask = &mut mask[..n.div_ceil(8)];
        let at = self.mask.offset + step * STEP_BYTES as u64;
        self.mask.source.read_at(at, mask)?;
        let stored: usize = mask.iter().map(|byte| byte.count_ones() as usize).sum();
        let first = self.stored_before[step as usize] * bits as u64;
        let skip = (first % 8) as usize;
        let mut values = vec![0; (skip + stored * bits).div_ceil(8)];
        self.values
            .source
            .read_at(self.values.offset + first / 8, &mut values)?;
        dense.clear();
        let mut bit = skip;
        for i in 0..n {
            if mask[i / 8] >> (i % 8) & 1 == 0 {
                dense.extend(&fill.to_le_bytes()[..width.min(2)]);
                dense.resize((i + 1) * width, 0);
                continue;
            }
            if bits >= 8 {
                dense.extend(&values[bit / 8..][..bits / 8]);
            } else {
                let high = values.get(bit / 8 + 1).copied().unwrap_or(0);
                let code = u16::from_le_bytes([values[bit / 8], high]) >> (bit % 8);
                let unused = 16 - bits;
                let code = match is_signed {
                    true => ((code << unused) as i16 >> unused) as u16,
                    false => code << unused >> unused,
                };
                dense.extend(&code.to_le_bytes()[..width.min(2)]);
            }
            dense.resize((i + 1) * width, 0);
            bit += bits;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn bytes(bytes: &[u8]) -> SourceAt {
        SourceAt { source: Source::Bytes(Arc::new(bytes.to_vec())), offset: 0 }
    }

    /// 9000 elements, of which every third is stored.
    fn masked(format: MaskedFormat, stored: impl Fn(u64) -> u64) -> (MaskedValues, Vec<u8>) {
        let n = 9000;
        let mut mask = vec![0u8; 1125];
        let (mut values, mut dense, mut bit) = (vec![0u8; 3000 * 8], Vec::new(), 0);
        for i in 0..n {
            let mut element = u64::from(format.fill);
            if i % 3 == 1 {
                mask[i / 8] |= 1 << (i % 8);
                let value = stored(i as u64);
                for b in 0..format.bits {
                    values[(bit + b) / 8] |= ((value >> b & 1) as u8) << ((bit + b) % 8);
                }
                bit += format.bits;
                let unused = 64 - format.bits;
                element = match format.is_signed {
                    true => ((value << unused) as i64 >> unused) as u64,
                    false => value << unused >> unused,
                };
            }
            dense.extend(&element.to_le_bytes()[..format.width]);
        }
        values.truncate(bit.div_ceil(8));
        let found = MaskedValues::new(bytes(&mask), bytes(&values), format, n as u64, 3000);
        (found.unwrap(), dense)
    }

    #[test]
    fn every_range_is_dense() {
        let formats = [
            (1, false, 1, 2),
            (3, false, 1, 8),
            (4, true, 1, 0),
            (6, false, 1, 64),
            (8, false, 2, 256),
        ];
        let wide = [(8, false, 1, 0), (16, false, 2, 0), (32, false, 4, 0)];
        for (bits, is_signed, width, fill) in formats.into_iter().chain(wide) {
            let format = MaskedFormat { bits, is_signed, width, fill };
            let (masked, dense) = masked(format, |i| i.wrapping_mul(2_654_435_761));
            assert_eq!(masked.len(), dense.len() as u64);
            for (from, to) in
                [(0, dense.len()), (0, 0), (5, 6), (4090, 4101), (8191, 8999), (8999, 9000)]
            {
                let mut out = vec![9; to - from];
                masked.read_at(from as u64, &mut out).unwrap();
                assert_eq!(out, &dense[from..to], "{bits} bits, {from}..{to}");
            }
            assert!(masked.read_at(dense.len() as u64, &mut [0]).is_err());
        }
        let format = MaskedFormat { bits: 8, is_signed: false, width: 1, fill: 0 };
        let new = |mask: &[u8], count, stored| {
            MaskedValues::new(bytes(mask), bytes(&[1; 8]), format, count, stored).is_ok()
        };
        assert!(new(&[0b101], 3, 2) && new(&[], 0, 0));
        assert!(!new(&[0b101], 3, 3) && !new(&[0b101], 2, 2) && !new(&[1], 9, 1));
    }
}
