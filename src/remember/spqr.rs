//! SpQR: codes of three bits in tiles, whose scales and zero points are codes as well, and single
//! values that are added.
//!
//! | tensor | contents |
//! |---|---|
//! | `P.dense_weights` I64 | for each tile of 16 × 16 values 16 words: a row of codes, its scale and zero point, a byte of those of the tile |
//! | `P.row_offsets` I32 | where the single values of each row begin, or of 16 rows, whose values then take turns (PTCSR) |
//! | `P.col_vals` I32 | single values: a column in the lower half, F16 in the upper |
//! | `P.in_perm` I32 `[in / 2]` or empty | the input of each stored column, two in a word |
//!
//! Layout: SpQR `inference_lib/src/spqr_quant/inference.py` (`QuantizedLinear`),
//! `inference_kernels/spqr_cuda.cpp`; order of the inputs: `spqr_cuda_kernel.cu` (`x[in_order]`).

mod shape;

use std::ops::Range;

use self::shape::SpqrShape;
use crate::config::QuantMethod;
use crate::element::Out;
use crate::model::Tensor;
use crate::remember::kernels::spqr::{SpqrRows, TILE};
use crate::remember::seam::NamePattern::Ends;
use crate::remember::seam::{
    Buffers, CodeType, Decode, Granularity, Grid, Group, Identity, Index, QuantScheme, Scheme,
    TensorRole, Tile, base_of, read, refused, wrong,
};
use crate::simd::{Level, dispatch};
use crate::{Dtype, Result};

pub(super) struct Spqr;

/// Name in listings.
const FAMILY: &str = "SpQR";

static IDENTITY: Identity = Identity {
    name: FAMILY,
    over: &[],
    methods: &[QuantMethod::Spqr],
    codes: &[".dense_weights"],
    companions: &[
        (Ends(".row_offsets"), TensorRole::QuantState),
        (Ends(".col_vals"), TensorRole::GroupIndex),
        (Ends(".in_perm"), TensorRole::GroupIndex),
    ],
    optional: &[],
    activations: &[],
    markers: &[],
    sidecars: &[],
    container: None,
};

impl Scheme for Spqr {
    fn identity(&self) -> &'static Identity {
        &IDENTITY
    }

    fn claim<'m>(&self, t: &Tensor<'m>, all: &Index<'m>) -> Result<Option<Group<'m>>> {
        let Some(base) = base_of(t.name(), "dense_weights") else {
            return Ok(None);
        };
        let [offsets, singles, order] = [
            all.need(t, base, "row_offsets")?,
            all.need(t, base, "col_vals")?,
            all.need(t, base, "in_perm")?,
        ];
        if let Some(weight) = all.at(base, "weight") {
            let what = format!("`{}` is beside it", weight.name());
            return Err(wrong(t, what));
        }
        check_config(t, base, all)?;
        check_integers(t, Dtype::I64)?;
        check_integers(&offsets, Dtype::I32)?;
        // Without any, the library stores an empty tensor of floats.
        if singles.elements() > 0 {
            check_integers(&singles, Dtype::I32)?;
        }
        check_integers(&order, Dtype::I32)?;
        let known = all.config.layer_sizes(base.trim_end_matches('.'));
        let ordered = Some(order.elements()).filter(|&n| n > 0);
        let shape = SpqrShape::new(t, offsets.elements(), ordered, known)?;
        let parts = vec![
            (TensorRole::Quantized, *t),
            (TensorRole::QuantState, offsets),
            (TensorRole::GroupIndex, singles),
            (TensorRole::GroupIndex, order),
        ];
        let dims = vec![shape.rows, shape.cols];
        let decoder = SpqrWeight { words: *t, offsets, singles, order, shape };
        let scheme = QuantScheme::Grouped {
            family: FAMILY,
            codes: CodeType::Uint(3),
            scales: Granularity::Group(TILE),
        };
        let name = format!("{base}weight");
        Ok(Some(Group::new(name, dims, scheme, parts, Box::new(decoder))))
    }
}

/// # Errors
/// A config says that codes or tiles have another size than the library writes.
fn check_config(t: &Tensor<'_>, base: &str, all: &Index<'_>) -> Result<()> {
    let module = all.config.at(base.trim_end_matches('.'));
    for (key, size) in [("bits", 3), ("beta1", TILE as i64), ("beta2", TILE as i64)] {
        if let Some((stated, place)) = module.int(&[key])
            && stated != size
        {
            let what = format!("{place} says `{key}` {stated}; {size} is decoded");
            return Err(refused(t, FAMILY, what));
        }
    }
    Ok(())
}

/// # Errors
/// `t` is no vector of `dtype`.
fn check_integers(t: &Tensor<'_>, dtype: Dtype) -> Result<()> {
    if t.dtype() != dtype || t.shape().len() != 1 {
        return Err(wrong(t, format!("it is {dtype} in one dimension")));
    }
    Ok(())
}

/// The decoder of a layer.
struct SpqrWeight<'m> {
    words: Tensor<'m>,
    offsets: Tensor<'m>,
    singles: Tensor<'m>,
    order: Tensor<'m>,
    shape: SpqrShape,
}

impl SpqrWeight<'_> {
    /// Replaces `order` with the input of each stored column.
    ///
    /// # Errors
    /// An input has no column, or two.
    fn load_order(&self, staging: &mut Vec<u8>, order: &mut Vec<u32>) -> Result<()> {
        let cols = self.shape.cols;
        order.clear();
        let tensor = &self.order;
        if tensor.elements() == 0 {
            order.extend(0..cols as u32);
            return Ok(());
        }
        read(&tensor.part(), 2 * cols, 0..1, 0..2 * cols, staging)?;
        let inputs = staging.as_chunks().0.iter();
        order.extend(inputs.map(|&input| u32::from(u16::from_le_bytes(input))));
        let mut is_there = vec![false; cols];
        for &input in &*order {
            match is_there.get_mut(input as usize) {
                Some(seen) if !*seen => *seen = true,
                _ => {
                    let what = format!("input {input} of {cols}, or it is there twice");
                    return Err(wrong(tensor, what));
                }
            }
        }
        Ok(())
    }

    /// Replaces `singles` with the single values of `rows`, which begin at a multiple of 16, row by
    /// row, and `starts` with where those of each row begin.
    ///
    /// # Errors
    /// Offsets do not ascend from the first value to the last, rows have more values than columns,
    /// or a column lies beyond the last.
    fn load_singles(
        &self,
        rows: Range<usize>,
        staging: &mut Vec<u8>,
        starts: &mut Vec<u32>,
        singles: &mut Vec<u32>,
    ) -> Result<()> {
        let per_offset = self.shape.rows_per_offset;
        let offsets = rows.start / per_offset..rows.end.div_ceil(per_offset) + 1;
        let count = self.offsets.elements();
        let bytes = offsets.start * 4..offsets.end * 4;
        read(&self.offsets.part(), count * 4, 0..1, bytes, staging)?;
        let offsets: Vec<usize> = words(staging).map(|offset| offset as usize).collect();
        let total = self.singles.elements();
        let (first, last) = (offsets[0], offsets[offsets.len() - 1]);
        let has_odd_end =
            rows.start == 0 && first != 0 || rows.end == self.shape.rows && last != total;
        if !offsets.is_sorted() || last > total || has_odd_end {
            let what = format!("offsets do not ascend from 0 to {total}");
            return Err(wrong(&self.offsets, what));
        }
        // Their number is what bounds the memory that is taken.
        let most = per_offset * self.shape.cols;
        let counts = offsets.windows(2).map(|ends| ends[1] - ends[0]);
        if let Some(count) = counts.max().filter(|&count| count > most) {
            let what = format!("{count} single values in {most} places");
            return Err(wrong(&self.offsets, what));
        }
        read(&self.singles.part(), total * 4, 0..1, first * 4..last * 4, staging)?;
        let stored: Vec<u32> = words(staging).collect();
        let beyond = |single: &&u32| (**single & 0xffff) as usize >= self.shape.cols;
        if let Some(single) = stored.iter().find(beyond) {
            let what = format!("column {} of {}", single & 0xffff, self.shape.cols);
            return Err(wrong(&self.singles, what));
        }
        starts.clear();
        singles.clear();
        for row in rows.clone() {
            starts.push(singles.len() as u32);
            let at = (row - rows.start) / per_offset;
            let (begin, end) = (offsets[at], offsets[at + 1]);
            let of_row = (begin..end).filter(|j| per_offset == 1 || j % TILE == row % TILE);
            singles.extend(of_row.map(|j| stored[j - first]));
        }
        starts.push(singles.len() as u32);
        Ok(())
    }
}

/// The little-endian words of `bytes`.
fn words(bytes: &[u8]) -> impl Iterator<Item = u32> {
    bytes.as_chunks().0.iter().map(|&b| u32::from_le_bytes(b))
}

impl Decode for SpqrWeight<'_> {
    fn grid(&self) -> Grid {
        let SpqrShape { rows, cols, .. } = self.shape;
        // Single values are few, but a row may have any number of them.
        let singles = self.singles.elements() as f64 / (rows * cols).max(1) as f64;
        Grid {
            rows,
            cols,
            row_align: TILE,
            // The inputs of a row may be in any order.
            col_align: cols.max(1),
            load_bits: 4.0 + 32.0 / TILE as f64 + 32.0 * singles,
            transposed: None,
        }
    }

    fn read(&self, tile: &Tile, buffers: &mut Buffers) -> Result<()> {
        let Buffers { bytes, staging, index, words, scale_words, .. } = buffers;
        let stride = self.shape.cols.div_ceil(TILE) * TILE * 8;
        let groups = tile.rows.start / TILE..tile.rows.end.div_ceil(TILE);
        bytes.load(&self.words.part(), stride, groups, 0..stride)?;
        self.load_order(staging, index)?;
        self.load_singles(tile.rows.clone(), staging, scale_words, words)
    }

    fn decode(
        &self,
        tile: &Tile,
        rows: Range<usize>,
        buffers: &Buffers,
        level: Level,
        out: Out<'_>,
    ) {
        let kernel = SpqrRows {
            words: buffers.bytes.as_chunks().0,
            first: rows.start - tile.rows.start,
            order: &buffers.index,
            starts: &buffers.scale_words,
            singles: &buffers.words,
        };
        dispatch(level, &kernel, out);
    }
}
