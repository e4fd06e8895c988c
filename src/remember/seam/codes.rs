//! Relaying: codes move from one scheme to another without being decoded. Schemes that differ only
//! in where they store codes, scales and zero points have a code family in common; its codes lose
//! nothing on the way.
#![cfg_attr(not(feature = "lethe"), allow(dead_code))]

use super::Buffers;
use crate::{Dtype, TargetDtype};

/// What codes and the numbers of their groups mean, without regard to where they are stored. Groups
/// are runs of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CodeFamily {
    /// E2M1 with an exponent for 32 values.
    Mxfp4 {
        /// What exponent 255 means, in which layouts differ.
        top: TopExponent,
    },
    /// E2M1 with a scale in E4M3 for 16 values, and one in F32 for the tensor.
    Nvfp4,
    /// Unsigned integers: `(code - zero point) * scale`.
    Int {
        bits: u8,
        /// Values of a group.
        group: u32,
        /// The dtype of the scales.
        scales: TargetDtype,
        /// Whether F16 holds all of them.
        has_half_scales: bool,
        /// Whether every zero point is the middle of the range, so that none need be stored.
        is_symmetric: bool,
    },
}

/// The meaning of exponent 255 of MXFP4. All other exponents mean `2^(exponent - 127)` everywhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TopExponent {
    /// No number, as OCP defines E8M0.
    Nan,
    /// Infinity: the exponent is computed in F32, of which 2^128 is too large a value.
    Infinity,
    /// 2^128 times half of a code's value, with which ggml and gpt-oss compute.
    Power,
}

impl CodeFamily {
    /// Integers whose scales are of dtype `scales`, which F16 is only known to hold if it is that. `None` if a row of `cols` values ends within a
    /// group, or if no encoder stores scales of this dtype.
    pub(crate) fn int(
        bits: usize,
        group: usize,
        cols: usize,
        scales: Dtype,
        is_symmetric: bool,
    ) -> Option<Self> {
        // Encoders store scales in the dtypes that are also output types. A row that ends within a
        // group has no whole groups to hand over, which `ExtractCodes` promises.
        let scales = TargetDtype::of(scales).filter(|_| group > 0 && cols.is_multiple_of(group))?;
        Some(Self::Int {
            bits: bits as u8,
            group: u32::try_from(group).ok()?,
            scales,
            has_half_scales: scales == TargetDtype::F16,
            is_symmetric,
        })
    }

    /// Whether codes of this family can be stored as codes of `to`. An error is the reason why not
    /// all can, for users. `None` if the families have so little in common that nobody would expect
    /// it.
    pub(crate) fn fits(self, to: Self) -> Option<Result<(), String>> {
        match (self, to) {
            // Single blocks can still be in the way: see `first_difference`.
            (Self::Mxfp4 { .. }, Self::Mxfp4 { .. }) => Some(Ok(())),
            // If the range of its exponents fits, which a survey finds.
            (Self::Mxfp4 { .. }, Self::Nvfp4) => Some(Ok(())),
            (
                Self::Int { bits, group, scales, has_half_scales, is_symmetric },
                Self::Int {
                    bits: to_bits,
                    group: to_group,
                    scales: to_scales,
                    is_symmetric: to_symmetric,
                    ..
                },
            ) if bits == to_bits => Some(match () {
                () if !group.is_multiple_of(to_group) => {
                    Err(format!("groups of {group} are no groups of {to_group}"))
                }
                // F32 holds every F16 and BF16; these two hold neither all of each other's values nor
                // those of F32.
                () if scales != to_scales
                    && to_scales != TargetDtype::F32
                    && !(to_scales == TargetDtype::F16 && has_half_scales) =>
                {
                    let (from, to) = (scales.dtype(), to_scales.dtype());
                    Err(format!("scales in {from} cannot all be had in {to}"))
                }
                () if to_symmetric && !is_symmetric => {
                    Err("there are zero points, and it has none".to_owned())
                }
                () => Ok(()),
            }),
            _ => None,
        }
    }

    /// Into how many groups of `to`, which it fits, a group is cut.
    pub(crate) fn groups_of(self, to: Self) -> usize {
        match (self, to) {
            (Self::Int { group, .. }, Self::Int { group: to, .. }) => (group / to) as usize,
            _ => 1,
        }
    }

    /// The index of the first group in `codes` that has another value in `to`, with the reason. The
    /// families fit, so only exponent 255 of MXFP4 can differ.
    pub(crate) fn first_difference(
        self,
        to: Self,
        codes: &GroupCodes,
    ) -> Option<(usize, &'static str)> {
        // Only MXFP4 has exponents: for integers the list is empty. Two MXFP4 families differ in
        // 255 alone.
        let at = codes
            .exponents
            .iter()
            .position(|&exponent| exponent == u8::MAX)
            .filter(|_| self != to && to != Self::Nvfp4)?;
        Some((
            at,
            "its exponent is 255, which is 2^128, infinity or no number in one of the schemes, and another in the other",
        ))
    }
}

/// A decoder's offer to relay codes. It is made once for a tensor, when the plan is made.
pub(crate) struct RelaySource {
    pub family: CodeFamily,
    pub codes: Box<dyn ExtractCodes>,
}

impl RelaySource {
    pub(crate) fn new(family: CodeFamily, codes: impl ExtractCodes + 'static) -> Self {
        Self { family, codes: Box::new(codes) }
    }
}

/// Access to the codes of a loaded tile. An implementation holds what it needs to read the
/// decoder's [`Buffers`].
pub(crate) trait ExtractCodes: Send + Sync {
    /// Replaces `out` with the codes of a tile of `rows` × `cols` values, and with the numbers of
    /// their groups. The tile has been loaded into `buffers`, and begins and ends with whole
    /// groups. Where it lies in the tensor does not matter.
    fn extract(&self, size: [usize; 2], buffers: &Buffers, out: &mut GroupCodes);
}

/// Codes of a tile with the numbers of their groups, in a layout that all schemes of a family
/// understand.
#[derive(Debug, Default)]
pub(crate) struct GroupCodes {
    /// One byte each, row-major.
    pub codes: Vec<u8>,
    /// Exponents of MXFP4, one for each group, row-major.
    pub exponents: Vec<u8>,
    /// The largest exponent of the whole tensor, for layouts that store it apart.
    pub top_exponent: u8,
    /// Scales of integers, one for each group, row-major.
    pub scales: Vec<f32>,
    /// Zero points of integers, one for each group, row-major. Unsigned, as the codes are.
    pub zero_points: Vec<u8>,
}

impl GroupCodes {
    /// Sets the codes from rows of `row_bytes` bytes, each with `width` codes of `bits` bits, least
    /// significant bit first.
    pub(crate) fn unpack(&mut self, bytes: &[u8], row_bytes: usize, width: usize, bits: usize) {
        self.codes.clear();
        // `chunks_exact` panics at 0, which is the length of a row without columns.
        for row in bytes.chunks_exact(row_bytes.max(1)) {
            match bits {
                8 => self.codes.extend_from_slice(&row[..width]),
                // An odd row leaves the upper half of its last byte unused.
                4 => self.codes.extend(
                    row.iter()
                        .flat_map(|byte| [byte & 15, byte >> 4])
                        .take(width),
                ),
                // A code of at most eight bits lies in at most two bytes.
                _ => self.codes.extend((0..width).map(|i| {
                    // `row[at]` exists: a row has room for `width` codes. The byte after it is
                    // missing if the last code ends with the row.
                    let (at, shift) = (i * bits / 8, i * bits % 8);
                    let next = row.get(at + 1).copied().unwrap_or(0);
                    (u16::from_le_bytes([row[at], next]) >> shift) as u8
                        & ((1u16 << bits) - 1) as u8
                })),
            }
        }
    }

    /// Takes `rows` rows of those that there are, which are `all`: for each the one that `source` says.
    pub(crate) fn take_rows(&mut self, rows: usize, all: usize, source: impl Fn(usize) -> usize) {
        fn taken<T: Copy>(
            values: &mut Vec<T>,
            (rows, all): (usize, usize),
            source: &impl Fn(usize) -> usize,
        ) {
            let width = values.len() / all.max(1);
            let row = |row: usize| &values[source(row) * width..][..width];
            *values = (0..rows).flat_map(row).copied().collect();
        }
        let Self { codes, exponents, scales, zero_points, top_exponent: _ } = self;
        taken(codes, (rows, all), &source);
        taken(exponents, (rows, all), &source);
        taken(scales, (rows, all), &source);
        taken(zero_points, (rows, all), &source);
    }

    /// Cuts each group into `n`, which have its numbers.
    pub(crate) fn cut_groups(&mut self, n: usize) {
        fn repeated<T: Copy>(all: &mut Vec<T>, n: usize) {
            *all = all
                .iter()
                .flat_map(|&x| std::iter::repeat_n(x, n))
                .collect();
        }
        if n > 1 {
            repeated(&mut self.scales, n);
            repeated(&mut self.zero_points, n);
        }
    }

    /// Sets the exponents from the powers of two that [`Floats`](super::Floats) made of them, or
    /// from halves of those powers if `is_halved`.
    pub(crate) fn set_exponents(&mut self, powers: &[f32], is_halved: bool) {
        let exponent = |power: &f32| match (power.to_bits() >> 23, is_halved) {
            // An E8M0 exponent has the bias of F32's, so it is F32's exponent field. The smallest
            // powers are subnormal and have a field of 0: 2^-127 is exponent 0, and halved
            // exponents 0 and 1 are 2^-128 and 2^-127, which differ in the two upper bits of the
            // mantissa.
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
    use crate::remember::kernels::fp8::{f32_from_e8m0, f32_from_exponent, half_of_exponent};

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
            found.set_exponents(&powers, halved);
            assert_eq!(found.exponents, all);
        }
    }

    #[test]
    fn codes_of_every_width_are_unpacked() {
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
    fn rows_are_taken() {
        let mut codes = GroupCodes {
            codes: (0..12).collect(),
            scales: vec![0.5, 1.5, 2.5, 3.5],
            ..Default::default()
        };
        codes.take_rows(2, 4, |row| 2 * row + 1);
        assert_eq!((codes.codes, codes.scales), (vec![3, 4, 5, 9, 10, 11], vec![1.5, 3.5]));
    }

    #[test]
    fn families_that_fit() {
        let int = |group, scales, is_symmetric| {
            let has_half_scales = scales == TargetDtype::F16;
            CodeFamily::Int { bits: 4, group, scales, has_half_scales, is_symmetric }
        };
        let (half, brain, single) = (TargetDtype::F16, TargetDtype::BF16, TargetDtype::F32);
        let fits = |from: CodeFamily, to| from.fits(to).map(|fit| fit.is_ok());
        assert_eq!(fits(int(32, half, true), int(32, half, false)), Some(true));
        assert_eq!(fits(int(32, half, true), int(32, single, true)), Some(true));
        assert_eq!(fits(int(32, half, false), int(32, half, true)), Some(false));
        assert_eq!(fits(int(32, half, true), int(64, half, true)), Some(false));
        assert_eq!(fits(int(96, half, true), int(32, half, true)), Some(true));
        assert_eq!(int(96, half, true).groups_of(int(32, half, true)), 3);
        let holding = CodeFamily::Int {
            bits: 4,
            group: 32,
            scales: brain,
            has_half_scales: true,
            is_symmetric: true,
        };
        assert_eq!(fits(holding, int(32, half, true)), Some(true));
        for (from, to) in [(half, brain), (brain, half), (single, half)] {
            assert_eq!(fits(int(32, from, true), int(32, to, true)), Some(false));
        }
        assert_eq!(fits(int(32, half, true), CodeFamily::Mxfp4 { top: TopExponent::Power }), None);
        let mxfp4 = |top| CodeFamily::Mxfp4 { top };
        assert_eq!(fits(mxfp4(TopExponent::Nan), mxfp4(TopExponent::Power)), Some(true));
        let codes = GroupCodes { exponents: vec![254, 0, 255, 3], ..GroupCodes::default() };
        assert_eq!(
            mxfp4(TopExponent::Power)
                .first_difference(mxfp4(TopExponent::Infinity), &codes)
                .map(|(at, _)| at),
            Some(2)
        );
        let nan = mxfp4(TopExponent::Nan);
        assert!(
            nan.first_difference(mxfp4(TopExponent::Infinity), &codes)
                .is_some()
        );
        assert_eq!(nan.first_difference(nan, &codes), None);
    }
}
