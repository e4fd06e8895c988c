//! Kernels on the slices of a caller, without a model: the usual way of the functions for single
//! tensors.
//!
//! A function here takes only arguments whose lengths fit exactly, and gives `None` for any other.
//! Those go through a model of one weight (`model`), whose checks say what is wrong. The values are
//! the same on both ways.

use std::ops::Range;

use half::bf16;
use zerocopy::{FromBytes, IntoBytes};

use crate::compat::slabs::{for_each_slab, is_serial, slab_of};
use crate::element::Out;
use crate::limits::{empty_with_room, zeroed_on_write};
use crate::remember::bnb::is_block_size;
use crate::remember::kernels::awq::{AwqInputRows, PER_WORD, POSITION};
use crate::remember::kernels::bnb::{Int8Rows, fp4_codebook, nested_absmax};
use crate::remember::kernels::codebook::{AppendCodebookBlocks, CodebookBlocks, PairTable};
use crate::remember::kernels::fp8::E4M3;
use crate::remember::kernels::gptq::{GptqInputRows, GptqPacking};
use crate::remember::kernels::grouped::{Formula, GroupedRows};
use crate::remember::kernels::scale_grid::ScaleGrid;
use crate::remember::kernels::widen::Widen;
use crate::simd::{KERNELS, Kernel, Level, dispatch, perform};
use crate::{Dtype, Result};

/// What an output is called in errors.
const VALUES: &str = "the values of a tensor";

/// The BF16 values that `kernel` decodes, slab by slab, of a tensor of `n` values. Slabs are whole
/// units.
fn decode<K: Kernel>(
    n: usize,
    unit: usize,
    kernel: impl Fn(Range<usize>) -> K + Sync,
) -> Result<Vec<u8>> {
    decode_with(n, unit, |values, out| {
        dispatch(Level::detect(), &kernel(values), out);
    })
}

/// The BF16 values of a decoder that is not a [`Kernel`].
pub(super) fn decode_with(
    n: usize,
    unit: usize,
    decode: impl Fn(Range<usize>, Out<'_>) + Sync,
) -> Result<Vec<u8>> {
    KERNELS.require("decoding")?;
    let mut out = zeroed_on_write((n as u64).saturating_mul(2), VALUES)?;
    let slab = slab_of(unit, n);
    let fill = |values: &mut [bf16]| {
        for_each_slab(n, values.chunks_mut(slab).enumerate(), |(i, out)| {
            decode(i * slab..i * slab + out.len(), Out::Bf16(out));
        });
    };
    match <[bf16]>::mut_from_bytes(&mut out) {
        Ok(values) => fill(values),
        // Allocators may place bytes at an odd address; those that we know do not.
        Err(_) => {
            let mut values = vec![bf16::ZERO; n];
            fill(&mut values);
            out.copy_from_slice(values.as_bytes());
        }
    }
    Ok(out)
}

/// `n` floats of `dtype`, widened; `None` if it is no dtype of floats or the bytes are not `n`.
fn floats(bytes: &[u8], dtype: Dtype, n: usize) -> Option<Vec<f32>> {
    let is_float = matches!(dtype, Dtype::F32 | Dtype::F16 | Dtype::BF16);
    if !is_float || dtype.byte_len(&[n]) != Some(bytes.len()) {
        return None;
    }
    Some(Widen { dtype, bytes }.to_f32(Level::detect()))
}

/// The number of values of a matrix, unless it has none.
fn area(rows: usize, cols: usize) -> Option<usize> {
    rows.checked_mul(cols).filter(|&n| n > 0)
}

/// FP8 of one scale.
pub(super) fn fp8_per_tensor(weight: &[u8], scale: f32) -> Result<Vec<u8>> {
    let n = weight.len();
    decode_with(n, 1, |values, out| {
        let len = values.len();
        let grid = ScaleGrid {
            matrix_rows: 1,
            block_rows: 1,
            block_cols: len,
            rows_per_matrix: 1,
            cols: 1,
        };
        fp8_rows(&weight[values], 0..1, len, grid, std::slice::from_ref(&scale))
            .decode(Level::detect(), out);
    })
}

/// FP8 `[rows, cols]` with a scale for each block of `block` rows and columns.
pub(super) fn fp8(
    weight: &[u8],
    scales: &[u8],
    [rows, cols]: [usize; 2],
    [block_rows, block_cols]: [usize; 2],
    scale_dtype: Dtype,
) -> Result<Option<Vec<u8>>> {
    let grid = ScaleGrid {
        matrix_rows: rows,
        block_rows,
        block_cols,
        rows_per_matrix: rows.div_ceil(block_rows),
        cols: cols.div_ceil(block_cols),
    };
    let n = area(rows, cols).filter(|&n| n == weight.len());
    // No more scales than values, so that the product does not overflow.
    let scales = n.and_then(|_| floats(scales, scale_dtype, grid.rows_per_matrix * grid.cols));
    let (Some(n), Some(scales)) = (n, scales) else {
        return Ok(None);
    };
    decode_with(n, cols, |values, out| {
        let rows = values.start / cols..values.end / cols;
        fp8_rows(&weight[values], rows, cols, grid, &scales).decode(Level::detect(), out);
    })
    .map(Some)
}

/// The kernel for whole rows of FP8. `scales` are those of all rows.
fn fp8_rows<'a>(
    bytes: &'a [u8],
    rows: Range<usize>,
    cols: usize,
    grid: ScaleGrid,
    scales: &'a [f32],
) -> GroupedRows<'a, E4M3> {
    GroupedRows {
        bytes,
        row_bytes: cols,
        bits: 8,
        code_bits: 8,
        rows,
        cols: 0..cols,
        format: E4M3,
        grid,
        scales,
        offsets: &[],
        scale_rows: 0..grid.rows_per_matrix,
        scale_cols: 0..grid.cols,
        formula: Formula::Scale,
        round: false,
        columns: &[],
    }
}

/// What double-quantized scales have besides their codes.
#[derive(Clone, Copy)]
pub(super) struct NestedAbsmax<'a> {
    pub absmax: &'a [u8],
    pub quant_map: &'a [u8],
    pub offset: f32,
    /// Scales that share one of `absmax`.
    pub block: usize,
}

impl NestedAbsmax<'_> {
    /// The scales that `codes` stand for, which must be `n`.
    fn decode(&self, codes: &[u8], n: usize) -> Option<Vec<f32>> {
        // An offset that JSON cannot hold is in no file.
        if codes.len() != n || !is_block_size(self.block) || !self.offset.is_finite() {
            return None;
        }
        let map = floats(self.quant_map, Dtype::F32, 256)?;
        let outer = floats(self.absmax, Dtype::F32, n.div_ceil(self.block))?;
        let mut scales = Vec::with_capacity(n);
        nested_absmax(codes, 0..n, &map, &outer, self.block, self.offset, &mut scales);
        Some(scales)
    }
}

/// What a weight of bitsandbytes' four bits has.
#[derive(Clone, Copy)]
pub(super) struct Bnb4Slices<'a> {
    pub codes: &'a [u8],
    /// F32, or U8 with `nested`.
    pub absmax: &'a [u8],
    pub quant_map: &'a [u8],
    pub nested: Option<NestedAbsmax<'a>>,
    /// The number of values.
    pub values: usize,
    /// Values of a block.
    pub block: usize,
}

/// bitsandbytes' codes of four bits.
pub(super) fn bnb4(slices: Bnb4Slices<'_>) -> Result<Option<Vec<u8>>> {
    let Bnb4Slices { codes, absmax, quant_map, nested, values: n, block } = slices;
    if n == 0 || !is_block_size(block) || codes.len() != n.div_ceil(2) {
        return Ok(None);
    }
    let blocks = n.div_ceil(block);
    let scales = match nested {
        None => floats(absmax, Dtype::F32, blocks),
        Some(nested) => nested.decode(absmax, blocks),
    };
    let numbers = floats(quant_map, Dtype::F32, 16)
        .and_then(|map| <[f32; 16]>::try_from(map).ok())
        .zip(scales);
    let Some((levels, scales)) = numbers else {
        return Ok(None);
    };
    // In NF4, code 8 is no zero, so that this leaves its levels as they are.
    let pairs = PairTable::new(&fp4_codebook(levels), true);
    let blocks = |values: Range<usize>| CodebookBlocks {
        pairs: &pairs,
        bytes: &codes[values.start / 2..values.end.div_ceil(2)],
        start: 0,
        block,
        scales: &scales[values.start / block..],
    };
    // Other values than those are appended by way of a copy, which takes as long as the zeros that
    // it saves.
    if !is_serial(n) || !blocks(0..n).are_looked_up(Level::detect()) {
        return decode(n, block, blocks).map(Some);
    }
    KERNELS.require("decoding")?;
    let mut out = empty_with_room((n as u64).saturating_mul(2), VALUES)?;
    let mut routine = AppendCodebookBlocks { blocks: blocks(0..n), values: n, out: &mut out };
    perform(Level::detect(), &mut routine);
    Ok(Some(out))
}

/// LLM.int8() `[rows, cols]`.
pub(super) fn bnb_int8(
    codes: &[u8],
    scb: &[u8],
    [rows, cols]: [usize; 2],
) -> Result<Option<Vec<u8>>> {
    let n = area(rows, cols).filter(|&n| n == codes.len());
    let scb = n.and_then(|_| floats(scb, Dtype::F32, rows));
    let (Some(n), Some(scb)) = (n, scb) else {
        return Ok(None);
    };
    decode(n, cols, |values| Int8Rows {
        scb: &scb[values.start / cols..],
        codes: &codes[values],
        cols,
    })
    .map(Some)
}

/// What GPTQ and AWQ have in common: packed codes, and a scale and a packed zero point for each
/// group and output.
#[derive(Clone, Copy)]
pub(super) struct PackedSlices<'a> {
    pub codes: &'a [u8],
    pub scales: &'a [u8],
    pub zeros: &'a [u8],
    pub inputs: usize,
    pub outputs: usize,
    /// A divisor of `inputs`.
    pub group_size: usize,
    pub bits: usize,
    pub scale_dtype: Dtype,
}

impl PackedSlices<'_> {
    /// The number of values, and the scales. `None` if codes cross words or outputs do not fill
    /// them, or if a length does not fit.
    fn check(&self) -> Option<(usize, Vec<f32>)> {
        let per_word = match self.bits {
            2 | 4 | 8 => 32 / self.bits,
            _ => return None,
        };
        let n = area(self.inputs, self.outputs)?;
        // No more groups than inputs, so that the products do not overflow.
        let per_output = self.inputs / self.group_size;
        let fits = self.outputs.is_multiple_of(per_word)
            && self.inputs.is_multiple_of(per_word)
            && self.codes.len() == n / per_word * 4
            && self.zeros.len() == per_output * (self.outputs / per_word) * 4;
        let scales = || floats(self.scales, self.scale_dtype, per_output * self.outputs);
        fits.then(scales)?.map(|scales| (n, scales))
    }

    /// The words of the zero points, a row for each group.
    fn zero_words(&self) -> Vec<u32> {
        let words = self.zeros.as_chunks().0;
        words.iter().map(|&word| u32::from_le_bytes(word)).collect()
    }
}

/// GPTQ of version 1, `[in, out]`.
pub(super) fn gptq(packed: PackedSlices<'_>, g_idx: Option<&[u8]>) -> Result<Option<Vec<u8>>> {
    let PackedSlices { inputs, outputs: cols, group_size, bits, .. } = packed;
    let Some((n, scales)) = packed.check() else {
        return Ok(None);
    };
    let index = g_idx.unwrap_or_default().as_chunks().0;
    let index: Vec<u32> = index
        .iter()
        .map(|&group| u32::from_le_bytes(group))
        .collect();
    let groups = inputs / group_size;
    if g_idx.is_some_and(|bytes| bytes.len() / 4 != inputs || bytes.len() % 4 != 0)
        || index.iter().any(|&group| group as usize >= groups)
    {
        return Ok(None);
    }
    let packing = GptqPacking { bits, word_bits: 32, has_planes: false };
    let mut words = packed.zero_words();
    let mut zeros = vec![0.0; groups * cols];
    let rows = zeros.chunks_exact_mut(cols);
    for (row, words) in rows.zip(words.chunks_exact_mut(cols * bits / 32)) {
        let codes = packing.zero_points(words, true).flatten();
        for (zero, code) in row.iter_mut().zip(codes) {
            *zero = code as f32;
        }
    }
    decode(n, cols, |values| GptqInputRows {
        words: packed.codes,
        bits,
        rows: values.start / cols..values.end / cols,
        cols,
        group_size,
        index: &index,
        scales: &scales,
        zeros: &zeros,
    })
    .map(Some)
}

/// AWQ in its GEMM layout, `[in, out]`.
pub(super) fn awq(packed: PackedSlices<'_>) -> Result<Option<Vec<u8>>> {
    let cols = packed.outputs;
    let Some((n, scales)) = packed.check().filter(|_| packed.bits == 4) else {
        return Ok(None);
    };
    let of_word = |word| POSITION.map(|position| (word >> (position * 4) & 15) as f32);
    let zeros: Vec<f32> = packed.zero_words().into_iter().flat_map(of_word).collect();
    decode(n, cols, |values| AwqInputRows {
        words: &packed.codes[values.start / PER_WORD * 4..values.end / PER_WORD * 4],
        rows: values.start / cols..values.end / cols,
        cols,
        group_size: packed.group_size,
        scales: &scales,
        zeros: &zeros,
    })
    .map(Some)
}
