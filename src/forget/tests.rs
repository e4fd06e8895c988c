//! What the encoders here store, piece by piece as the pipeline would have it, against their libraries' own files.

use std::collections::HashMap;
use std::path::PathBuf;

use super::*;
use crate::TargetDtype;
use crate::containers::model::Tensor;
use crate::element::Out;
use crate::kernels::remember::widen::Widen;
use crate::scheme::Tile;
use crate::simd::Level;
use crate::simd::dispatch;

pub(super) fn data(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(path)
}

/// A tensor's stored bytes.
pub(super) fn bytes_of(t: &Tensor<'_>) -> Vec<u8> {
    let mut bytes = vec![0; t.info().len as usize];
    t.part().read_at(0, &mut bytes).unwrap();
    bytes
}

/// The values of a tensor that is not quantized.
pub(super) fn values_of(t: &Tensor<'_>) -> Vec<f32> {
    let mut values = vec![0.0; t.elements()];
    dispatch(
        Level::detect(),
        &Widen {
            dtype: t.dtype(),
            bytes: &bytes_of(t),
        },
        Out::F32(&mut values),
    );
    values
}

/// An encoded tensor: what is stored, and what it decodes to.
#[derive(Debug, PartialEq)]
pub(super) struct Encoded {
    pub stored: Vec<(Stored, Vec<u8>)>,
    pub back: Vec<u32>,
}

/// Encodes `values` in the smallest tiles, in the largest, and in some between, at every level, from the last tile to
/// the first; all have to give the same.
pub(super) fn encode(encoder: &dyn Encode, values: &[f32], survey: f64) -> Encoded {
    let grid = encoder.grid();
    let heights = [
        grid.row_align,
        grid.row_align * 3,
        grid.rows.next_multiple_of(grid.row_align),
    ];
    let widths = [
        grid.col_align,
        grid.col_align * 2,
        grid.cols.next_multiple_of(grid.col_align),
    ];
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
) -> Encoded {
    let grid = encoder.grid();
    let mut stored: Vec<(Stored, Vec<Option<u8>>)> = encoder
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
        let values = Values {
            tile,
            values: &values,
            survey,
            level,
        };
        encoder
            .encode(&values, &mut back, &mut |i, at, bytes| {
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
    Encoded {
        stored: stored
            .into_iter()
            .map(|(s, bytes)| (s, whole(bytes)))
            .collect(),
        back: all,
    }
}

/// The file of these tensors.
pub(super) fn file(all: &[(Stored, Vec<u8>)]) -> Vec<u8> {
    let whole =
        |(s, data): &'_ (Stored, Vec<u8>)| (s.name.clone(), s.shape.clone(), s.dtype, data.clone());
    let all: Vec<_> = all.iter().map(whole).collect();
    let tensors: Vec<_> = all
        .iter()
        .map(
            |(name, shape, dtype, data)| crate::compat::whole::WholeTensor {
                name,
                shape,
                dtype: *dtype,
                data,
            },
        )
        .collect();
    crate::compat::whole::to_bytes(&tensors).unwrap()
}

/// What our own decoder makes of a file that holds one logical tensor.
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
