//! AWQ as its kernels for single tokens have it, four bits, rows of the weight being rows of the
//! file.
//!
//! GEMV: `X.qweight` I32 `[out, in / 8]`, the first nibble lowest; `X.qzeros` I32 `[out, zw]` and
//! `X.scales` `[out, 8 * zw]`, filled up with zeros: `(q - z) * s`. GEMV-fast, llm-awq: `X.qweight`
//! I16 `[out / 4, in]`; `X.scales` and `X.qzeros` or `X.scaled_zeros`, floats `[8 * zw, out]`,
//! filled up likewise: `q * s + z`. 64 columns of four rows are a run of 128 bytes, 32 for each
//! row.
//!
//! Layouts: AutoAWQ `modules/linear/gemv.py`, `gemv_fast.py` (`pack_intweight`,
//! `calculate_zeros_width`).

use std::ops::Range;

use crate::config::Module;
use crate::model::{Part, Tensor};
use crate::remember::kernels::grouped::Int;
use crate::remember::layout::group_size::configured_group;
use crate::remember::packed::{PackedLayer, PackedLayout};
use crate::remember::seam::grouped::{
    CodeFormat, Codes, GroupFormula, GroupOffsets, Grouped, Unpack, row_groups,
};
use crate::remember::seam::scale_matrix::{Matrix, ScaleMatrix, Transposed};
use crate::remember::seam::{
    CodeType, Floats, Granularity, Group, Identity, Index, QuantScheme, Scheme, TensorRole, Tile,
    read, refused, wrong,
};
use crate::simd::zip;
use crate::{Dtype, Result};

pub(in crate::remember) struct Gemv;

static IDENTITY: Identity = Identity { name: "AWQ GEMV", over: &["Marlin"], ..super::IDENTITY };

impl Scheme for Gemv {
    fn identity(&self) -> &'static Identity {
        &IDENTITY
    }

    fn claim<'m>(&self, t: &Tensor<'m>, all: &Index<'m>) -> Result<Option<Group<'m>>> {
        let Some(packed) = PackedLayer::find(t, all)? else {
            return Ok(None);
        };
        let layout = packed.layout(all)?;
        if !matches!(layout, PackedLayout::Gemv | PackedLayout::GemvFast) {
            return Ok(None);
        }
        let Some(zeros) = packed.qzeros else {
            return Ok(None);
        };
        let module = all.config.at(packed.module());
        packed.check_awq(layout, &module, all)?;
        let decoder = if layout == PackedLayout::Gemv {
            gemv(&packed, &zeros, &module)
        } else {
            fast(&packed, &zeros, &module)
        }?;
        // The group size is known only now; in both layouts it came from the width of the zero
        // points.
        let scales = Granularity::Group(decoder.grid.block_cols);
        let family = if layout == PackedLayout::Gemv {
            "AWQ GEMV"
        } else {
            "AWQ GEMV-fast"
        };
        let scheme = QuantScheme::Grouped { family, codes: CodeType::Int(4), scales };
        let shape = vec![decoder.rows, decoder.cols];
        let parts = vec![
            (TensorRole::Quantized, *t),
            (TensorRole::Scale, packed.scales),
            (TensorRole::ZeroPoint, zeros),
        ];
        Ok(Some(Group::new(packed.weight(), shape, scheme, parts, Box::new(decoder))))
    }
}

fn gemv<'m>(
    packed: &PackedLayer<'m>,
    zeros: &Tensor<'m>,
    module: &Module<'_>,
) -> Result<Grouped<'m>> {
    let t = &packed.qweight;
    packed.check_words(&[Dtype::I32, Dtype::U32])?;
    let [n, words] = packed.words;
    let k = words
        .checked_mul(8)
        .ok_or_else(|| wrong(t, "its rows are too long"))?;
    // `scales` are `[out, 8 * zw]`, as `layout` has checked, so the division is exact.
    let zw = packed.n / 8;
    let group = group_size(t, k, zw, module)?;
    check_padding(&packed.scales, k / group, false)?;
    let codes = Codes::Rows {
        // Eight nibbles of a little-endian word, lowest first, are four bytes of a bit stream.
        part: t.part(),
        row_bytes: words * 4,
    };
    let scales = Box::new(Matrix {
        floats: Floats::ieee(&packed.scales)?,
        // Scales lie in rows of `8 * zw`, of which only the first G are groups. The rest is
        // padding, and the grid never reaches it.
        cols: packed.n,
    });
    let int = CodeFormat::Int(Int::UNSIGNED);
    let mut decoder = Grouped::scaled(codes, 4, int, [n, k], row_groups(k, group), scales);
    let zero_points = Box::new(Nibbles { part: zeros.part(), row_bytes: zw * 4 });
    decoder.formula = GroupFormula::ShiftScale(GroupOffsets::new(zero_points));
    Ok(decoder)
}

fn fast<'m>(
    packed: &PackedLayer<'m>,
    zeros: &Tensor<'m>,
    module: &Module<'_>,
) -> Result<Grouped<'m>> {
    let t = &packed.qweight;
    let ([quads, k], n, padded) = (packed.words, packed.n, packed.groups);
    // `pack_intweight` reshapes to four rows and runs of 64 columns, so no file has a remainder.
    if quads.checked_mul(ROWS) != Some(n) || !k.is_multiple_of(RUN) {
        let scales = packed.scales.shape();
        return Err(wrong(
            t,
            format!("with scales {scales:?} it is not [out / 4, in], of inputs in runs of {RUN}"),
        ));
    }
    // The padded number of groups is a multiple of eight, for `zw` counts words of eight nibbles.
    if zeros.shape() != packed.scales.shape() || !padded.is_multiple_of(8) {
        let what = format!("zeros and scales, {:?}, are [8 * n, {n}]", packed.scales.shape());
        return Err(wrong(zeros, what));
    }
    let group = group_size(t, k, padded / 8, module)?;
    check_padding(&packed.scales, k / group, true)?;
    let across =
        |t| Floats::ieee(t).map(|floats| Box::new(Transposed::of_floats(floats, n, padded)));
    let codes = Codes::Unpacked(Box::new(Quads { part: t.part(), k }));
    let int = CodeFormat::Int(Int::UNSIGNED);
    let mut decoder =
        Grouped::scaled(codes, 4, int, [n, k], row_groups(k, group), across(&packed.scales)?);
    decoder.formula = GroupFormula::ScaleShift(GroupOffsets::new(across(zeros)?));
    Ok(decoder)
}

/// Outputs whose scales are looked at: those of all outputs are padded alike.
const SAMPLE: usize = 16;

/// Checks that the first outputs have a scale for each of `groups` groups, and zeros behind them.
/// Nothing else proves the number of inputs, and AutoAWQ's scales are never 0. `across`: a row of
/// `scales` is a group, and not an output.
fn check_padding(scales: &Tensor<'_>, groups: usize, across: bool) -> Result<()> {
    let (&[rows, cols], true) = (scales.shape(), scales.part().is_readable()) else {
        return Ok(());
    };
    let floats = Floats::ieee(scales)?;
    let (mut staging, mut values) = (Vec::new(), Vec::new());
    let is_zero = |range: Range<usize>, staging: &mut Vec<u8>, values: &mut Vec<f32>| {
        let (rows, taken) = match across {
            true => (range, 0..cols.min(SAMPLE)),
            false => (0..rows.min(SAMPLE), range),
        };
        values.clear();
        floats.extend(cols, rows, taken, staging, values)?;
        Ok::<bool, crate::AnamnesisError>(values.iter().all(|&scale| scale == 0.0))
    };
    let all = if across { rows } else { cols };
    let fits = (1..=all).contains(&groups)
        && is_zero(groups..all, &mut staging, &mut values)?
        && !is_zero(groups - 1..groups, &mut staging, &mut values)?;
    if fits {
        return Ok(());
    }
    let what = format!("it has another number of groups than the {groups} of its weight");
    Err(wrong(scales, what))
}

/// The group size: the configured one, or the only one with which a row's zero points fill `zw`
/// words.
fn group_size(t: &Tensor<'_>, k: usize, zw: usize, module: &Module<'_>) -> Result<usize> {
    // AutoAWQ asserts that a group divides the inputs, and computes the width from that quotient.
    let fits = |size: usize| size > 0 && k.is_multiple_of(size) && zeros_width(k, size) == Some(zw);
    if let Some((size, place)) =
        configured_group(k, module).filter(|(size, _)| !module.uncertain || fits(*size))
    // A size that fits is taken even from an uncertain config: two witnesses agree.
    {
        return match size {
            _ if fits(size) => Ok(size),
            // `calculate_zeros_width` raises for groups below 32, so no file can have them.
            ..32 => Err(refused(t, "AWQ GEMV", format!("{place} says groups of {size} inputs"))),
            _ => Err(wrong(
                t,
                format!(
                    "{place} says groups of {size} inputs; {zw} words of zero points do not go with them"
                ),
            )),
        };
    }
    // `calculate_zeros_width` knows sizes from 32 on; `k` itself is one group for a row.
    let powers = (5..usize::BITS)
        .map(|e| 1usize << e)
        .take_while(|&size| size < k);
    let mut sizes = powers.chain([k]).filter(|&size| fits(size));
    match (sizes.next(), sizes.next()) {
        (Some(size), None) => Ok(size),
        _ => Err(wrong(
            t,
            format!("how {zw} words of zero points divide {k} inputs, no config tells"),
        )),
    }
}

/// Words of zero points in a row. AutoAWQ `calculate_zeros_width` rounds them up to what a warp
/// reads at once.
fn zeros_width(k: usize, group: usize) -> Option<usize> {
    let multiple = match group {
        128.. => 1,
        64 => 2,
        32 => 4,
        _ => return None,
    };
    Some((k / group).div_ceil(8).next_multiple_of(multiple))
}

/// Zero points in rows, eight to a word, the first in the lowest bits.
struct Nibbles<'m> {
    part: Part<'m>,
    row_bytes: usize,
}

impl ScaleMatrix for Nibbles<'_> {
    fn extend(
        &self,
        rows: Range<usize>,
        cols: Range<usize>,
        staging: &mut Vec<u8>,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        let bytes = cols.start / 2..cols.end.div_ceil(2);
        read(&self.part, self.row_bytes, rows, bytes.clone(), staging)?;
        // `max(1)`: a rectangle without columns has no bytes, and `chunks_exact` panics at 0.
        for row in staging.chunks_exact(bytes.len().max(1)) {
            out.extend(
                cols.clone()
                    .map(|c| f32::from(row[c / 2 - bytes.start] >> (c % 2 * 4) & 15)),
            );
        }
        Ok(())
    }
}

/// Rows and columns whose codes lie in one run of bytes.
const ROWS: usize = 4;
const RUN: usize = 64;

/// Bytes of a row's codes in a run.
const RUN_BYTES: usize = RUN / 2;

/// Codes of a row that are reordered among themselves.
const REORDERED: usize = 32;

/// Codes of four rows in turn, 64 columns of each.
pub(in crate::remember) struct Quads<'m> {
    pub part: Part<'m>,
    /// Columns, and words of 16 bits in a row.
    pub k: usize,
}

impl Quads<'_> {
    /// The codes of row `row`, in columns `cols`, which are whole runs.
    pub(in crate::remember) fn unpack_row(
        &self,
        row: usize,
        cols: &Range<usize>,
        staging: &mut Vec<u8>,
        out: &mut [u8],
    ) -> Result<()> {
        self.read_quad(row / ROWS, cols, staging)?;
        row_of_quad(staging, row % ROWS, out);
        Ok(())
    }

    fn read_quad(&self, quad: usize, cols: &Range<usize>, staging: &mut Vec<u8>) -> Result<()> {
        let bytes = cols.start * 2..cols.end * 2;
        read(&self.part, self.k * 2, quad..quad + 1, bytes, staging)
    }
}

/// The codes of row `r` of the four whose bytes are `quad`.
fn row_of_quad(quad: &[u8], r: usize, out: &mut [u8]) {
    // A run of bytes is | row 0: 32 | row 1: 32 | row 2: 32 | row 3: 32 |, so row r has every
    // fourth piece from r on.
    let runs = quad.chunks_exact(RUN_BYTES).skip(r).step_by(ROWS);
    for (run, codes) in zip(runs, out.chunks_exact_mut(RUN)) {
        let pieces = run.chunks_exact(REORDERED / 2);
        for (bytes, codes) in zip(pieces, codes.chunks_exact_mut(REORDERED)) {
            // Nibble a of word i of 16 bits is the code of column 8a + i.
            let words = bytes.as_chunks::<2>().0;
            for (a, codes) in codes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                for (code, &word) in zip(&mut codes[..], words) {
                    *code = (u16::from_le_bytes(word) >> (a * 4) & 15) as u8;
                }
            }
        }
    }
}

impl Unpack for Quads<'_> {
    fn unpack(&self, tile: &Tile, staging: &mut Vec<u8>, out: &mut Vec<u8>) -> Result<()> {
        let width = tile.cols.len();
        out.resize(tile.rows.len() * width, 0);
        let quads = tile.rows.start / ROWS..tile.rows.end.div_ceil(ROWS);
        for (quad, rows) in zip(quads, out.chunks_mut(ROWS * width.max(1))) {
            self.read_quad(quad, &tile.cols, staging)?;
            for (r, row) in rows.chunks_exact_mut(width.max(1)).enumerate() {
                row_of_quad(staging, r, row);
            }
        }
        Ok(())
    }

    fn align(&self) -> (usize, usize) {
        // Whole runs only: the codes of 32 columns are shuffled among 16 bytes.
        (ROWS, RUN)
    }
}
