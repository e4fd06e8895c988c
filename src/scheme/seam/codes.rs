//! Codes as they are stored: what schemes have in common that differ only in where they put them, so that codes can move
//! from one to another without being decoded.
#![cfg_attr(not(feature = "lethe"), allow(dead_code))]

use crate::{Dtype, TargetDtype};

/// What codes and the numbers of their groups are. Groups are runs of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    /// E2M1 with an exponent for 32 values. The last exponent is 2^128 if they are `wide`, else no number.
    Mxfp4 { wide: bool },
    /// Integers without a sign: `(code - zero point) * scale`.
    Int {
        bits: usize,
        group: usize,
        /// Type of the scales.
        scales: TargetDtype,
        /// Whether every zero point is the middle of the range.
        symmetric: bool,
    },
}

impl Family {
    /// Integers whose scales are of type `scales`, if `cols` columns are whole groups.
    pub(crate) fn int(
        bits: usize,
        group: usize,
        cols: usize,
        scales: Dtype,
        symmetric: bool,
    ) -> Option<Self> {
        let scales = TargetDtype::of(scales).filter(|_| group > 0 && cols.is_multiple_of(group))?;
        Some(Self::Int {
            bits,
            group,
            scales,
            symmetric,
        })
    }

    /// Whether all that is in this family can be stored in `to` as it is, or why not. None: they have little in common.
    pub(crate) fn fits(self, to: Self) -> Option<Result<(), String>> {
        match (self, to) {
            (Self::Mxfp4 { .. }, Self::Mxfp4 { .. }) => Some(Ok(())),
            (
                Self::Int {
                    bits,
                    group,
                    scales,
                    symmetric,
                },
                Self::Int {
                    bits: to_bits,
                    group: to_group,
                    scales: to_scales,
                    symmetric: to_symmetric,
                },
            ) if bits == to_bits => Some(match () {
                () if group != to_group => {
                    Err(format!("groups of {group} are no groups of {to_group}"))
                }
                () if scales != to_scales && to_scales != TargetDtype::F32 => {
                    let (from, to) = (scales.dtype(), to_scales.dtype());
                    Err(format!("scales in {from} cannot all be had in {to}"))
                }
                () if to_symmetric && !symmetric => {
                    Err("there are zero points, and it has none".to_owned())
                }
                () => Ok(()),
            }),
            _ => None,
        }
    }

    /// The number of a group that is something else in `to`, and why.
    pub(crate) fn differs(self, to: Self, codes: &GroupCodes) -> Option<(usize, &'static str)> {
        let at = codes
            .exponents
            .iter()
            .position(|&exponent| exponent == u8::MAX)
            .filter(|_| self != to)?;
        Some((
            at,
            "its exponent is 255, which is 2^128 in one of the schemes and no number in the other",
        ))
    }
}

/// Codes of a tile, with what belongs to their groups.
#[derive(Debug, Default)]
pub(crate) struct GroupCodes {
    /// A byte each, row by row.
    pub codes: Vec<u8>,
    /// Exponents of MXFP4, row by row of groups.
    pub exponents: Vec<u8>,
    /// Scales of integers, likewise.
    pub scales: Vec<f32>,
    /// Zero points of integers, likewise, without a sign as codes are.
    pub zeros: Vec<u8>,
}

impl GroupCodes {
    /// Makes the codes those of rows of `row_bytes` bytes, `width` codes of `bits` bits in each, least significant bit
    /// first.
    pub(crate) fn unpack(&mut self, bytes: &[u8], row_bytes: usize, width: usize, bits: usize) {
        self.codes.clear();
        for row in bytes.chunks_exact(row_bytes.max(1)) {
            match bits {
                8 => self.codes.extend_from_slice(&row[..width]),
                4 => self.codes.extend(
                    row.iter()
                        .flat_map(|byte| [byte & 15, byte >> 4])
                        .take(width),
                ),
                _ => self.codes.extend((0..width).map(|i| {
                    let (at, shift) = (i * bits / 8, i * bits % 8);
                    let next = row.get(at + 1).copied().unwrap_or(0);
                    (u16::from_le_bytes([row[at], next]) >> shift) as u8
                        & ((1u16 << bits) - 1) as u8
                })),
            }
        }
    }

    /// Makes the exponents those of powers of two, or of their halves if they are `halved`.
    pub(crate) fn take_exponents(&mut self, powers: &[f32], halved: bool) {
        let exponent = |power: &f32| match (power.to_bits() >> 23, halved) {
            // 2^-127 and 2^-128 have no exponent of their own.
            (0, false) => 0,
            (0, true) => (power.to_bits() >> 22) as u8,
            (exponent, false) => exponent as u8,
            (exponent, true) => (exponent + 1) as u8,
        };
        self.exponents.clear();
        self.exponents.extend(powers.iter().map(exponent));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::remember::fp8::{f32_from_e8m0, f32_from_exponent, half_of_exponent};

    #[test]
    fn every_exponent_is_found_again() {
        let all: Vec<u8> = (0..=255).collect();
        let mut found = GroupCodes::default();
        for (widen, halved) in [
            (f32_from_e8m0 as fn(u8) -> f32, false),
            (f32_from_exponent, false),
            (half_of_exponent, true),
        ] {
            let powers: Vec<f32> = all.iter().map(|&e| widen(e)).collect();
            found.take_exponents(&powers, halved);
            assert_eq!(found.exponents, all);
        }
    }

    #[test]
    fn codes_of_every_width() {
        for bits in 1..=8usize {
            let codes: Vec<u8> = (0..3 * 40)
                .map(|i| (i * 37 % (1usize << bits)) as u8)
                .collect();
            let row_bytes = (40 * bits).div_ceil(8);
            let mut bytes = vec![0u8; 3 * row_bytes];
            for (row, codes) in bytes.chunks_exact_mut(row_bytes).zip(codes.chunks(40)) {
                for (i, bit) in (0..40 * bits).map(|i| (i, codes[i / bits] >> (i % bits) & 1)) {
                    row[i / 8] |= bit << (i % 8);
                }
            }
            let mut found = GroupCodes::default();
            found.unpack(&bytes, row_bytes, 40, bits);
            assert_eq!(found.codes, codes, "{bits} bits");
        }
    }

    #[test]
    fn what_fits() {
        let int = |group, scales, symmetric| Family::Int {
            bits: 4,
            group,
            scales,
            symmetric,
        };
        let (half, brain, single) = (TargetDtype::F16, TargetDtype::BF16, TargetDtype::F32);
        let fits = |from: Family, to| from.fits(to).map(|fit| fit.is_ok());
        assert_eq!(fits(int(32, half, true), int(32, half, false)), Some(true));
        assert_eq!(fits(int(32, half, true), int(32, single, true)), Some(true));
        assert_eq!(fits(int(32, half, false), int(32, half, true)), Some(false));
        assert_eq!(fits(int(32, half, true), int(64, half, true)), Some(false));
        for (from, to) in [(half, brain), (brain, half), (single, half)] {
            assert_eq!(fits(int(32, from, true), int(32, to, true)), Some(false));
        }
        assert_eq!(
            fits(int(32, half, true), Family::Mxfp4 { wide: true }),
            None
        );
        let mxfp4 = |wide| Family::Mxfp4 { wide };
        assert_eq!(fits(mxfp4(false), mxfp4(true)), Some(true));
        let codes = GroupCodes {
            exponents: vec![254, 0, 255, 3],
            ..GroupCodes::default()
        };
        assert_eq!(
            mxfp4(true).differs(mxfp4(false), &codes).map(|(at, _)| at),
            Some(2)
        );
        assert_eq!(mxfp4(false).differs(mxfp4(false), &codes), None);
    }
}
