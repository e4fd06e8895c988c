//! Encoding of a whole tensor in tiles of a given size, and decoding of the result, for the tests
//! of float schemes.

use std::collections::BTreeMap;

use safetensors::SafeTensors;

use crate::element::{f32_from_bf16, f32_from_f16};
use crate::lethe::kernels::activations::Activations;
use crate::lethe::{Encode, EncodeBuffers, Method, StoredTensor, Survey, TileValues};
use crate::remember::Tile;
use crate::simd::Level;
use crate::{Dtype, TargetDtype};

/// The values of a stored tensor of floats, and its type.
pub(super) fn widened(view: &safetensors::tensor::TensorView<'_>) -> (TargetDtype, Vec<f32>) {
    let halves = || {
        view.data()
            .as_chunks()
            .0
            .iter()
            .map(|&b| u16::from_le_bytes(b))
    };
    match view.dtype() {
        safetensors::Dtype::BF16 => (TargetDtype::BF16, halves().map(f32_from_bf16).collect()),
        safetensors::Dtype::F16 => (TargetDtype::F16, halves().map(f32_from_f16).collect()),
        _ => (
            TargetDtype::F32,
            view.data()
                .as_chunks()
                .0
                .iter()
                .map(|&b| f32::from_le_bytes(b))
                .collect(),
        ),
    }
}

/// An encoded tensor.
pub(super) struct EncodedFloats {
    pub stored: Vec<(StoredTensor, Vec<u8>)>,
    /// The values that decoding gives, according to the encoder.
    pub back: Vec<f32>,
}

/// Encodes all of `values` in tiles of `rows` × `cols` alignments. Every stored byte must be
/// written once.
pub(super) fn encode(
    encoder: &dyn Encode,
    values: &[f32],
    level: Level,
    [rows, cols]: [usize; 2],
) -> EncodedFloats {
    let grid = encoder.grid();
    assert_eq!(grid.rows * grid.cols, values.len());
    let survey = match encoder.survey() {
        Some(Survey::MaxAbs) => values
            .iter()
            .fold(0.0, |max: f64, &x| max.max(f64::from(x).abs())),
        Some(other) => panic!("{other:?}"),
        None => 0.0,
    };
    let empty = |stored: StoredTensor| {
        let bytes = stored.shape.iter().product::<usize>() * stored.dtype.bits() / 8;
        (stored, vec![0xa5; bytes])
    };
    let mut encoded = EncodedFloats {
        stored: encoder.stored().into_iter().map(empty).collect(),
        back: vec![0.0; values.len()],
    };
    let step = |n: usize, align: usize, all: usize| n.saturating_mul(align).clamp(1, all);
    let (height, width) =
        (step(rows, grid.row_align, grid.rows), step(cols, grid.col_align, grid.cols));
    let (mut put_bytes, mut buffers) = (0, EncodeBuffers::default());
    for top in (0..grid.rows).step_by(height) {
        for left in (0..grid.cols).step_by(width) {
            let tile = Tile {
                rows: top..(top + height).min(grid.rows),
                cols: left..(left + width).min(grid.cols),
            };
            let row = |r: usize| r * grid.cols + tile.cols.start..r * grid.cols + tile.cols.end;
            let part: Vec<f32> = tile
                .rows
                .clone()
                .flat_map(|r| &values[row(r)])
                .copied()
                .collect();
            let mut back = vec![f32::NAN; part.len()];
            let stored = &mut encoded.stored;
            let mut put = |part: usize, at: u64, bytes: &[u8]| {
                put_bytes += bytes.len();
                stored[part].1[at as usize..][..bytes.len()].copy_from_slice(bytes);
                Ok(())
            };
            encoder
                .encode(
                    &TileValues {
                        tile: &tile,
                        values: &part,
                        survey,
                        maxima: &[],
                        activations: Activations::default(),
                        level,
                    },
                    &mut buffers,
                    &mut back,
                    &mut put,
                )
                .unwrap();
            for (r, back) in tile.rows.clone().zip(back.chunks(tile.cols.len())) {
                encoded.back[row(r)].copy_from_slice(back);
            }
        }
    }
    assert_eq!(
        put_bytes,
        encoded
            .stored
            .iter()
            .map(|(_, bytes)| bytes.len())
            .sum::<usize>(),
        "each byte once"
    );
    encoded
}

/// The values that this crate decodes from the stored tensors, with the config of `method`.
pub(super) fn decoded(encoded: &EncodedFloats, method: &dyn Method) -> Vec<f32> {
    let dir = tempfile::tempdir().unwrap();
    let view = |(stored, bytes): &(StoredTensor, Vec<u8>)| {
        let dtype = [
            safetensors::Dtype::U8,
            safetensors::Dtype::I8,
            safetensors::Dtype::F8_E4M3,
            safetensors::Dtype::F8_E5M2,
            safetensors::Dtype::F8_E8M0,
            safetensors::Dtype::BF16,
            safetensors::Dtype::F16,
            safetensors::Dtype::F32,
        ];
        let dtype = dtype
            .into_iter()
            .find(|&d| Dtype::try_from(d).unwrap() == stored.dtype)
            .unwrap();
        let view =
            safetensors::tensor::TensorView::new(dtype, stored.shape.clone(), bytes).unwrap();
        (stored.name.clone(), owned(&view))
    };
    let tensors: BTreeMap<String, Owned> = encoded.stored.iter().map(view).collect();
    let model = dir.path().join("model.safetensors");
    std::fs::write(&model, safetensors::serialize(tensors, None).unwrap()).unwrap();
    if let Some(config) = method.config(&[]) {
        let config = serde_json::json!({ "quantization_config": config });
        std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    }
    let bytes = crate::parse(&model)
        .unwrap()
        .remember_to_bytes(TargetDtype::F32)
        .unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(tensors.len(), 1, "{:?}", tensors.names());
    widened(&tensors.iter().next().unwrap().1).1
}

/// A tensor that owns its bytes.
struct Owned {
    dtype: safetensors::Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

fn owned(view: &safetensors::tensor::TensorView<'_>) -> Owned {
    Owned { dtype: view.dtype(), shape: view.shape().to_vec(), bytes: view.data().to_vec() }
}

impl safetensors::View for Owned {
    fn dtype(&self) -> safetensors::Dtype {
        self.dtype
    }
    fn shape(&self) -> &[usize] {
        &self.shape
    }
    fn data(&self) -> std::borrow::Cow<'_, [u8]> {
        self.bytes.as_slice().into()
    }
    fn data_len(&self) -> usize {
        self.bytes.len()
    }
}
