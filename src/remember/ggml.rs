//! GGUF: tensors of ggml's block types. A block has its scales and its codes. A weight, also one of
//! floats, may have a further scale outside, as [`factors`] says.
//!
//! Rows of some types of ik_llama.cpp begin with a header, which has the scale of all their blocks.
//! Other types of it store several rows interleaved: their headers one after another, then blocks
//! with values of all of them.
//!
//! Weights that PrismML has rotated are plain ones here, as [`prism`] says.

mod byte_order;
mod factors;
mod interleaved;
pub(super) mod prism;
mod undecoded;

use std::ops::Range;

use crate::element::Out;
use crate::model::{Part, Tensor};
use crate::remember::kernels::ggml::interleaved::RowsDecoder;
use crate::remember::kernels::ggml::{GgmlDecoder, decoder, row_scale};
use crate::remember::seam::scale_layout::rows_and_cols;
use crate::remember::seam::{
    Buffers, CodeFamily, Decode, ExtractCodes, Floats, Grid, Group, GroupCodes, Identity, Index,
    QuantScheme, RelaySource, Scheme, TensorRole, Tile, TopExponent,
};
use crate::remember::seam::{read, refused, wrong};
use crate::simd::Level;
use crate::{Dtype, ParsedModel, Result};

pub(super) struct Ggml;

static IDENTITY: Identity = Identity {
    name: "GGUF",
    over: &[],
    methods: &[],
    codes: &[],
    companions: &[],
    optional: &[],
    activations: &[],
    markers: &[],
    sidecars: &[],
    container: Some(ParsedModel::is_ggml),
};

impl Scheme for Ggml {
    fn identity(&self) -> &'static Identity {
        &IDENTITY
    }

    fn kind(&self, t: &Tensor<'_>, _all: &Index<'_>) -> QuantScheme {
        QuantScheme::Ggml { dtype: t.dtype() }
    }

    fn is_activation(&self, t: &Tensor<'_>, all: &Index<'_>) -> bool {
        factors::is_input_scale(t, all)
    }

    fn claim<'m>(&self, t: &Tensor<'m>, all: &Index<'m>) -> Result<Option<Group<'m>>> {
        if let Dtype::UnknownGgml(id) = t.dtype() {
            let (name, reason) = undecoded::name_and_reason(id);
            return Err(refused(t, &name, reason));
        }
        byte_order::check(t)?;
        // A type without a decoder here is a plain one (F32, integers): its tensors are copied.
        if decoder(t.dtype()).is_none() && t.dtype().interleaved_rows().is_none() {
            return factors::scaled_floats(t, all);
        }
        if t.info().has_unknown_order() {
            return Err(refused(
                t,
                "big-endian GGUF",
                "no byte order is defined for the blocks of this type",
            ));
        }
        if let Some((together, _)) = t.dtype().interleaved_rows() {
            let rows = t.shape().iter().rev().nth(1).copied().unwrap_or(1);
            if !rows.is_multiple_of(together) {
                let what = format!("{together} rows are interleaved, and it has {rows}");
                return Err(wrong(t, what));
            }
        }
        let scale = factors::scale_of(t, all)?;
        let has_kernel = decoder(t.dtype()).is_some() && t.dtype().row_header() == 0;
        let scales = scale
            .as_ref()
            .filter(|_| has_kernel)
            .map(|s| Floats::ieee(s).map(|floats| (floats, s.elements())))
            .transpose()?;
        let decoder: Box<dyn Decode> = match RowsDecoder::of(t.dtype()) {
            Some(rows) => Box::new(interleaved::InterleavedWeight::new(t, rows)),
            None => match GgmlWeight::new(t.part(), t.dtype(), t.shape(), scales) {
                Some(decoder) => Box::new(decoder),
                None => return Ok(None),
            },
        };
        // The kernels of rows that begin with their scale take no other one.
        let decoder = match scale {
            Some(scale) if !has_kernel => factors::scaled(t, decoder, scale)?,
            _ => decoder,
        };
        let parts = [(TensorRole::Quantized, *t)]
            .into_iter()
            .chain(scale.map(|s| (TensorRole::Scale, s)))
            .collect();
        let scheme = self.kind(t, all);
        Ok(Some(Group::new(t.name(), t.shape(), scheme, parts, decoder)))
    }
}

/// The decoder of `t` of bytes, which are blocks of `dtype` and of `shape`; `None` if `dtype` has
/// no blocks. Its caller checks that there are as many bytes.
pub(super) fn of_bytes<'m>(
    t: &Tensor<'m>,
    dtype: Dtype,
    shape: &[usize],
) -> Option<Box<dyn Decode + 'm>> {
    Some(Box::new(GgmlWeight::new(t.part(), dtype, shape, None)?))
}

/// Decoder of a tensor of blocks.
struct GgmlWeight<'m> {
    codes: Part<'m>,
    dtype: Dtype,
    decode: GgmlDecoder,
    block: usize,
    block_bytes: usize,
    /// Bytes before the blocks of each row, which begin with the row's scale.
    header: usize,
    rows: usize,
    cols: usize,
    /// The scales outside of the tensor, and their number.
    scales: Option<(Floats<'m>, usize)>,
    rows_per_scale: usize,
}

impl<'m> GgmlWeight<'m> {
    /// The decoder of `codes` of this dtype and shape; `None` if the dtype has no blocks.
    fn new(
        codes: Part<'m>,
        dtype: Dtype,
        shape: &[usize],
        scales: Option<(Floats<'m>, usize)>,
    ) -> Option<Self> {
        let (rows, cols) = rows_and_cols(shape);
        let header = dtype.row_header();
        Some(Self {
            codes,
            dtype,
            decode: decoder(dtype)?,
            block: dtype.block_size(),
            block_bytes: dtype.type_size()?,
            // A tensor without values has no headers, either.
            header: if cols > 0 { header } else { 0 },
            rows,
            cols,
            // As many rows to a scale as a matrix has. `scale_of` has refused a count of 0, and
            // `max(1)` keeps an empty tensor from dividing by it.
            rows_per_scale: match &scales {
                Some((_, n)) => (rows / n).max(1),
                None if header > 0 => 1,
                None => rows.max(1),
            },
            scales,
        })
    }
}

impl GgmlWeight<'_> {
    /// The bytes that `cols` columns have after the header.
    fn blocks_of(&self, cols: usize) -> usize {
        cols / self.block * self.block_bytes
    }

    /// The bytes of a header that each row of `tile` has in the buffers: a tile that begins with
    /// the row has it.
    fn loaded_header(&self, tile: &Tile) -> usize {
        if tile.cols.start == 0 { self.header } else { 0 }
    }
}

impl Decode for GgmlWeight<'_> {
    fn grid(&self) -> Grid {
        // Scales lie inside the blocks or before them, so their bytes count as bytes of codes.
        let row_bytes = (self.header + self.blocks_of(self.cols)).max(1);
        let load_bits = row_bytes as f64 * 8.0 / self.cols.max(1) as f64;
        Grid {
            rows: self.rows,
            cols: self.cols,
            row_align: 1,
            // A block cannot be decoded in part; rows are whole blocks, as the parser has checked.
            col_align: self.block,
            load_bits,
            transposed: None,
        }
    }

    fn read(&self, tile: &Tile, buffers: &mut Buffers) -> Result<()> {
        let (header, stride) = (self.header, self.header + self.blocks_of(self.cols));
        let end = header + self.blocks_of(tile.cols.end);
        let width = self.loaded_header(tile) + self.blocks_of(tile.cols.len());
        buffers
            .bytes
            .load(&self.codes, stride, tile.rows.clone(), end - width..end)?;
        buffers.scales.clear();
        if header > 0 && tile.cols.start == 0 {
            let rows = buffers.bytes.chunks_exact(width);
            buffers
                .scales
                .extend(rows.map(|row| row_scale(&row[..header])));
        } else if header > 0 {
            let staging = &mut buffers.staging;
            read(&self.codes, stride, tile.rows.clone(), 0..header, staging)?;
            let headers = staging.chunks_exact(header);
            buffers.scales.extend(headers.map(row_scale));
        }
        if let Some((floats, n)) = &self.scales {
            let scales =
                tile.rows.start / self.rows_per_scale..tile.rows.end.div_ceil(self.rows_per_scale);
            floats.extend(*n, 0..1, scales, &mut buffers.staging, &mut buffers.scales)?;
        }
        Ok(())
    }

    fn decode(
        &self,
        tile: &Tile,
        rows: Range<usize>,
        buffers: &Buffers,
        level: Level,
        mut out: Out<'_>,
    ) {
        let (width, first_scale) = (tile.cols.len(), tile.rows.start / self.rows_per_scale);
        let header = self.loaded_header(tile);
        let row_bytes = header + self.blocks_of(width);
        let mut row = rows.start;
        while row < rows.end {
            // The kernel takes one scale: decode the rows that share it, or all rows if there is
            // none. A row with a header has a scale of its own, so that its header is all that is
            // skipped.
            let end = ((row / self.rows_per_scale + 1) * self.rows_per_scale).min(rows.end);
            let first = (row - tile.rows.start) * row_bytes + header;
            let bytes = first..(end - tile.rows.start) * row_bytes;
            let scale = buffers
                .scales
                .get(row / self.rows_per_scale - first_scale)
                .copied();
            let (now, rest) = out.split_at((end - row) * width);
            (self.decode)(&buffers.bytes[bytes], scale, level, now);
            (row, out) = (end, rest);
        }
    }

    fn find_relay(&self) -> Result<Option<RelaySource>> {
        // ggml's exponent 255 is 2^128, and not the NaN of OCP.
        let (family, block_bytes) =
            (CodeFamily::Mxfp4 { top: TopExponent::Power }, self.block_bytes);
        // A factor beside the tensor is in no exponent.
        let is_mxfp4 = self.dtype == Dtype::MXFP4 && self.scales.is_none();
        Ok(is_mxfp4.then(|| RelaySource::new(family, Mxfp4Codes { block_bytes })))
    }
}

/// Extracts codes and exponents from MXFP4 blocks in a decoder's buffers.
struct Mxfp4Codes {
    block_bytes: usize,
}

impl ExtractCodes for Mxfp4Codes {
    fn extract(&self, _size: [usize; 2], buffers: &Buffers, out: &mut GroupCodes) {
        out.codes.clear();
        out.exponents.clear();
        // A block is an exponent and 16 bytes. Low nibbles are its first half, high nibbles its
        // second.
        for block in buffers.bytes.chunks_exact(self.block_bytes.max(1)) {
            if let Some((&exponent, nibbles)) = block.split_first() {
                out.exponents.push(exponent);
                out.codes.extend(nibbles.iter().map(|byte| byte & 15));
                out.codes.extend(nibbles.iter().map(|byte| byte >> 4));
            }
        }
    }
}
