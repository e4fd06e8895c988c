//! NVFP4. ModelOpt: `X` U8 `[…, out, in / 2]`, `X_scale` F8_E4M3 `[…, out, in / 16]`, `X_scale_2` F32, which
//! multiplies. compressed-tensors: `P.weight_packed`, `P.weight_scale`, `P.weight_global_scale`, which
//! divides. Global scales are one, or one for each matrix of a stack.
//!
//! Layouts: modelopt `NVFP4QTensor`; compressed-tensors `compressors/nvfp4`.

use std::ops::Range;

use super::{Buffers, Decode, Floats, Grid, Group, Index, QuantScheme, Scheme, TensorRole, Tile};
use super::{read, wrong};
use crate::element::Out;
use crate::model::{Part, Tensor};
use crate::remember::codebook::{Blocks, Pairs};
use crate::remember::nvfp4::{BLOCK, block_scale, e2m1};
use crate::simd::{Level, dispatch};
use crate::{Dtype, Result};

pub(super) struct Nvfp4;

impl Scheme for Nvfp4 {
    fn kind(&self, t: &Tensor<'_>, _all: &Index<'_>) -> QuantScheme {
        QuantScheme::Nvfp4 { divides: t.name().ends_with("_packed") }
    }

    fn claim<'m>(&self, t: &Tensor<'m>, all: &Index<'m>) -> Result<Option<Group<'m>>> {
        if t.dtype() != Dtype::U8 {
            return Ok(None);
        }
        // The name tells the producer, and the producer what the global scale does. Fused experts have no
        // `weight` in their own name, but in their scales'.
        let (name, suffixes, divides) = match t.name().strip_suffix("_packed") {
            Some(name) => (name, ["_scale", "_global_scale"], true),
            None if all.at(t.name(), "_weight_scale_2").is_some() => {
                (t.name(), ["_weight_scale", "_weight_scale_2"], false)
            }
            None => (t.name(), ["_scale", "_scale_2"], false),
        };
        let block_scales = all.at(name, suffixes[0]).filter(|s| s.dtype() == Dtype::F8E4M3);
        let (scales, global) = match (block_scales, all.at(name, suffixes[1])) {
            (None, None) => return Ok(None),
            (Some(scales), Some(global)) => (scales, global),
            _ => {
                return Err(wrong(
                    t,
                    format!("NVFP4 wants both `{name}{}` (F8_E4M3) and `{name}{}`", suffixes[0], suffixes[1]),
                ));
            }
        };
        let (scheme, shape) = (QuantScheme::Nvfp4 { divides }, logical_shape(t, &scales)?);
        let (&k, rows) = shape.split_last().unwrap_or((&0, &[]));
        let stack = rows.split_last().map_or(1, |(_, stack)| stack.iter().product());
        let globals = global.elements();
        if globals == 0 || globals != 1 && globals != stack {
            return Err(wrong(&global, format!("`{}` has {stack} matrices", t.name())));
        }
        let rows: usize = rows.iter().product();
        let decoder = Box::new(Weight {
            codes: t.part(),
            scales: scales.part(),
            global: Floats::ieee(&global)?,
            globals,
            divides,
            rows,
            k,
            rows_per_global: (rows / globals).max(1),
        });
        let parts = vec![(TensorRole::Quantized, *t), (TensorRole::Scale, scales), (TensorRole::Scale, global)];
        Ok(Some(Group { name: name.to_owned(), shape, scheme, parts, split: vec![], keeps: None, decoder }))
    }
}

/// The shape of the codes, two to a byte, if the scales fit it.
fn logical_shape(t: &Tensor<'_>, scales: &Tensor<'_>) -> Result<Vec<usize>> {
    let mut shape = t.shape().to_vec();
    let fits = match (shape.split_last_mut(), scales.shape().split_last()) {
        (Some((bytes, rows)), Some((&blocks, scale_rows))) if !rows.is_empty() => {
            *bytes = bytes.saturating_mul(2);
            rows == scale_rows && blocks.checked_mul(BLOCK) == Some(*bytes)
        }
        _ => false,
    };
    if !fits {
        return Err(wrong(
            t,
            format!("its scales `{}` {:?} are not one for 16 values of a row", scales.name(), scales.shape()),
        ));
    }
    Ok(shape)
}

/// An NVFP4 weight.
struct Weight<'m> {
    codes: Part<'m>,
    scales: Part<'m>,
    global: Floats<'m>,
    globals: usize,
    divides: bool,
    rows: usize,
    k: usize,
    rows_per_global: usize,
}

impl Decode for Weight<'_> {
    fn grid(&self) -> Grid {
        Grid { rows: self.rows, cols: self.k, row_align: 1, col_align: BLOCK, load_bits: 6.5, transposed: false }
    }

    fn load(&self, tile: &Tile, buffers: &mut Buffers) -> Result<()> {
        let Buffers { bytes, scales, staging, row, .. } = buffers;
        read(&self.codes, self.k / 2, tile.rows.clone(), tile.cols.start / 2..tile.cols.end / 2, bytes)?;
        let globals = tile.rows.start / self.rows_per_global..tile.rows.end.div_ceil(self.rows_per_global);
        row.clear();
        self.global.extend(self.globals, 0..1, globals.clone(), staging, row)?;
        let blocks = tile.cols.start / BLOCK..tile.cols.end / BLOCK;
        read(&self.scales, self.k / BLOCK, tile.rows.clone(), blocks.clone(), staging)?;
        scales.clear();
        for (r, codes) in tile.rows.clone().zip(staging.chunks_exact(blocks.len().max(1))) {
            let global = row[r / self.rows_per_global - globals.start];
            scales.extend(codes.iter().map(|&code| block_scale(code, global, self.divides)));
        }
        Ok(())
    }

    fn decode(&self, tile: &Tile, rows: Range<usize>, buffers: &Buffers, level: Level, out: Out<'_>) {
        let (width, first) = (tile.cols.len(), rows.start - tile.rows.start);
        let values = first * width..(first + rows.len()) * width;
        let kernel = Blocks {
            pairs: &Pairs::new(&e2m1(self.divides), false),
            bytes: &buffers.bytes[values.start / 2..values.end / 2],
            start: 0,
            block: BLOCK,
            scales: &buffers.scales[values.start / BLOCK..values.end / BLOCK],
        };
        dispatch(level, &kernel, out);
    }
}
