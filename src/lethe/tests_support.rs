//! Helpers of the tests of BitsAndBytes and QNAT: encoding in tiles of several sizes, and reading
//! of files.

use std::collections::HashMap;

use super::*;
use crate::TargetDtype;
use crate::lethe::kernels::activations::Activations;
use crate::model::Tensor;
use crate::remember::Tile;
use crate::remember::kernels::widen::Widen;
use crate::simd::Level;

/// A tensor's stored bytes.
pub(super) fn bytes_of(t: &Tensor<'_>) -> Vec<u8> {
    let mut bytes = vec![0; t.info().len as usize];
    t.part().read_at(0, &mut bytes).unwrap();
    bytes
}

/// The values of a tensor that is not quantized.
pub(super) fn values_of(t: &Tensor<'_>) -> Vec<f32> {
    let widen = Widen { dtype: t.dtype(), bytes: &bytes_of(t) };
    widen.to_f32(Level::detect())
}

/// An encoded tensor.
#[derive(Debug, PartialEq)]
pub(super) struct EncodedTensor {
    pub stored: Vec<(StoredTensor, Vec<u8>)>,
    /// Bits of the values that decoding gives, according to the encoder.
    pub back: Vec<u32>,
}

/// Encodes `values` in tiles of the smallest, the largest and another size, at every CPU level,
/// from the last tile to the first. The result must be the same each time.
pub(super) fn encode(encoder: &dyn Encode, values: &[f32], survey: f64) -> EncodedTensor {
    let grid = encoder.grid();
    let heights = [grid.row_align, grid.row_align * 3, grid.rows.next_multiple_of(grid.row_align)];
    let widths = [grid.col_align, grid.col_align * 2, grid.cols.next_multiple_of(grid.col_align)];
    let mut first = None;
    for level in Level::available() {
        for (height, width) in heights.into_iter().zip(widths) {
            let this = encode_cut(encoder, values, survey, level, height, width);
            match &first {
                None => first = Some(this),
                Some(first) => assert!(*first == this, "{level:?} {height} x {width}"),
            }
        }
    }
    first.unwrap()
}

fn encode_cut(
    encoder: &dyn Encode,
    values: &[f32],
    survey: f64,
    level: Level,
    height: usize,
    width: usize,
) -> EncodedTensor {
    let grid = encoder.grid();
    let mut stored: Vec<(StoredTensor, Vec<Option<u8>>)> = encoder
        .stored()
        .into_iter()
        .map(|s| {
            let len = s.dtype.byte_len(&s.shape).unwrap();
            (s, vec![None; len])
        })
        .collect();
    let mut all = vec![0u32; values.len()];
    let mut tiles = Vec::new();
    for row in (0..grid.rows).step_by(height) {
        for col in (0..grid.cols).step_by(width) {
            tiles.push(Tile {
                rows: row..(row + height).min(grid.rows),
                cols: col..(col + width).min(grid.cols),
            });
        }
    }
    for tile in tiles.iter().rev() {
        let places: Vec<usize> = tile
            .rows
            .clone()
            .flat_map(|r| tile.cols.clone().map(move |c| r * grid.cols + c))
            .collect();
        let values: Vec<f32> = places.iter().map(|&at| values[at]).collect();
        let mut back = vec![f32::NAN; values.len()];
        let values = TileValues {
            tile,
            values: &values,
            survey,
            maxima: &[],
            activations: Activations::default(),
            level,
        };
        encoder
            .encode(&values, &mut EncodeBuffers::default(), &mut back, &mut |i, at, bytes| {
                for (place, &byte) in stored[i].1[at as usize..][..bytes.len()]
                    .iter_mut()
                    .zip(bytes)
                {
                    assert!(place.replace(byte).is_none(), "a byte is written twice");
                }
                Ok(())
            })
            .unwrap();
        places
            .iter()
            .zip(back)
            .for_each(|(&at, x)| all[at] = x.to_bits());
    }
    let whole = |bytes: Vec<Option<u8>>| {
        bytes
            .into_iter()
            .map(|b| b.expect("every byte is written"))
            .collect()
    };
    EncodedTensor {
        stored: stored
            .into_iter()
            .map(|(s, bytes)| (s, whole(bytes)))
            .collect(),
        back: all,
    }
}

/// A safetensors file of the tensors `all`.
pub(super) fn file(all: &[(StoredTensor, Vec<u8>)]) -> Vec<u8> {
    let whole = |(s, data): &'_ (StoredTensor, Vec<u8>)| {
        (s.name.clone(), s.shape.clone(), s.dtype, data.clone())
    };
    let all: Vec<_> = all.iter().map(whole).collect();
    let tensors: Vec<_> = all
        .iter()
        .map(|(name, shape, dtype, data)| crate::compat::whole::WholeTensor {
            name,
            shape,
            dtype: *dtype,
            data,
        })
        .collect();
    crate::compat::whole::to_bytes(&tensors).unwrap()
}

/// Bits of the values that this crate decodes from a file with one logical tensor.
pub(super) fn decoded(file: Vec<u8>) -> Vec<u32> {
    let out = crate::parse_bytes(file)
        .unwrap()
        .remember_to_bytes(TargetDtype::F32)
        .unwrap();
    let model = crate::parse_bytes(out).unwrap();
    let values: Vec<f32> = model.tensors().flat_map(|t| values_of(&t)).collect();
    values.iter().map(|x| x.to_bits()).collect()
}

/// Tensors of a file by name.
pub(super) fn by_name(model: &crate::ParsedModel) -> HashMap<String, Tensor<'_>> {
    model.tensors().map(|t| (t.name().to_owned(), t)).collect()
}
