//! AWQ of five to seven bits, by AutoRound (`auto_awq`): `X.qweight` I32 `[in, out * bits / 32]`,
//! `X.qzeros` I32 `[groups, out * bits / 32]`, `X.scales` `[groups, out]`. Each eight columns are
//! put in the order 0, 2, 4, 6, 1, 3, 5, 7; then a row is one bit stream, so that eight codes fill
//! as many bytes as they have bits. The weight is `X.weight` `[out, in]`: `(q - z) * s`.
//!
//! Layout: auto-round `utils/bit_packing.py` (`pack_awq_bitstream`),
//! `export/export_to_awq/utils.py` (`dequantize_gemm`).

use std::ops::Range;

use crate::model::{Part, Tensor};
use crate::remember::awq::packed_zeros;
use crate::remember::kernels::awq::{PER_WORD, POSITION};
use crate::remember::kernels::grouped::Int;
use crate::remember::layout::group_size::{ShortGroup, group_size};
use crate::remember::packed::{PackedLayer, PackedLayout};
use crate::remember::seam::grouped::{
    CodeFormat, Codes, GroupFormula, GroupOffsets, Grouped, Unpack, row_groups,
};
use crate::remember::seam::scale_matrix::{ScaleMatrix, Transposed};
use crate::remember::seam::{
    CodeType, Floats, Granularity, Group, Identity, Index, QuantScheme, Scheme, StoredRows,
    TensorRole, Tile, read, wrong,
};
use crate::{Dtype, Result};

pub(in crate::remember) struct AwqWide;

static IDENTITY: Identity =
    Identity { name: "AWQ of five to seven bits", over: &["AWQ GEMV"], ..super::IDENTITY };

impl Scheme for AwqWide {
    fn identity(&self) -> &'static Identity {
        &IDENTITY
    }

    fn kind(&self, _t: &Tensor<'_>, _all: &Index<'_>) -> QuantScheme {
        QuantScheme::Awq
    }

    fn claim<'m>(&self, t: &Tensor<'m>, all: &Index<'m>) -> Result<Option<Group<'m>>> {
        let Some(packed) = PackedLayer::find(t, all)? else {
            return Ok(None);
        };
        let layout = packed.layout(all)?;
        let bits = match layout {
            // 4 bits are left to `Awq`, whose decoder is faster.
            PackedLayout::Gemm { bits } if bits != 4 => bits,
            _ => return Ok(None),
        };
        let module = all.config.at(packed.module());
        packed.check_awq(layout, &module, all)?;
        packed.check_words(&[Dtype::I32, Dtype::U32])?;
        let ([k, words], n, groups) = (packed.words, packed.n, packed.groups);
        if !n.is_multiple_of(PER_WORD) {
            return Err(wrong(t, format!("{n} outputs are not interleaved by eight")));
        }
        let group = group_size(t, groups, k, ShortGroup::Never, &module)?;
        // At these widths AutoRound always writes zero points, so there is no symmetric case to
        // allow for.
        let Some(zeros) = packed_zeros(&packed)? else {
            return Err(wrong(t, format!("its `{}qzeros` is missing", packed.base)));
        };
        let row_bytes = words * 4;
        let codes = Codes::Unpacked(Box::new(InterleavedBits { part: t.part(), row_bytes, bits }));
        let scales = Box::new(Transposed::of_floats(Floats::ieee(&packed.scales)?, n, groups));
        let int = CodeFormat::Int(Int::UNSIGNED);
        let mut decoder = Grouped::scaled(codes, bits, int, [n, k], row_groups(k, group), scales);
        let zero_points = Box::new(InterleavedBits { part: zeros.part(), row_bytes, bits });
        decoder.formula = GroupFormula::ShiftScale(GroupOffsets::new(zero_points));
        let parts = vec![
            (TensorRole::Quantized, *t),
            (TensorRole::Scale, packed.scales),
            (TensorRole::ZeroPoint, zeros),
        ];
        let scheme = QuantScheme::Grouped {
            family: "AWQ",
            codes: CodeType::Int(bits as u8),
            scales: Granularity::Group(group),
        };
        Ok(Some(Group::new(packed.weight(), vec![n, k], scheme, parts, Box::new(decoder))))
    }
}

/// Stored rows that are transposed together.
const STRIP: usize = 32;

/// A transposed matrix of codes or zero points: its columns are the stored rows.
struct InterleavedBits<'m> {
    part: Part<'m>,
    row_bytes: usize,
    bits: usize,
}

impl InterleavedBits<'_> {
    /// Calls `each(row, column, code)` for each code in `rows` × `cols`, with its place in that
    /// rectangle.
    fn each(
        &self,
        rows: Range<usize>,
        cols: Range<usize>,
        staging: &mut Vec<u8>,
        mut each: impl FnMut(usize, usize, u8),
    ) -> Result<()> {
        // Rows come in multiples of eight outputs, which `align` demands; eight codes take `bits`
        // whole bytes.
        let bytes = rows.start / PER_WORD * self.bits..rows.end.div_ceil(PER_WORD) * self.bits;
        let mask = (1u64 << self.bits) - 1;
        for first in cols.clone().step_by(STRIP) {
            let strip = first..(first + STRIP).min(cols.end);
            read(&self.part, self.row_bytes, strip.clone(), bytes.clone(), staging)?;
            // Runs outside, lines inside: 32 columns of eight output rows are written before the
            // next eight rows are.
            for run in 0..bytes.len() / self.bits {
                for (line, col) in staging
                    .chunks_exact(bytes.len().max(1))
                    .zip(strip.start - cols.start..)
                {
                    // Eight codes of at most seven bits take seven bytes, so they fit a word of 64
                    // bits.
                    let mut wide = [0; 8];
                    wide[..self.bits].copy_from_slice(&line[run * self.bits..][..self.bits]);
                    let word = u64::from_le_bytes(wide);
                    for (r, position) in POSITION.into_iter().enumerate() {
                        each(
                            run * PER_WORD + r,
                            col,
                            (word >> (position as usize * self.bits) & mask) as u8,
                        );
                    }
                }
            }
        }
        Ok(())
    }
}

impl Unpack for InterleavedBits<'_> {
    fn unpack(&self, tile: &Tile, staging: &mut Vec<u8>, out: &mut Vec<u8>) -> Result<()> {
        let width = tile.cols.len();
        out.resize(tile.rows.len() * width, 0);
        self.each(tile.rows.clone(), tile.cols.clone(), staging, |r, c, code| {
            out[r * width + c] = code;
        })
    }

    fn align(&self) -> (usize, usize) {
        (PER_WORD, STRIP)
    }

    fn transposed(&self) -> Option<StoredRows> {
        Some(StoredRows::of_one(self.bits, 1))
    }
}

impl ScaleMatrix for InterleavedBits<'_> {
    fn extend(
        &self,
        rows: Range<usize>,
        cols: Range<usize>,
        staging: &mut Vec<u8>,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        let (at, width) = (out.len(), cols.len());
        out.resize(at + rows.len() * width, 0.0);
        self.each(rows, cols, staging, |r, c, code| {
            out[at + r * width + c] = f32::from(code);
        })
    }
}
