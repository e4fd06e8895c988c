//! `nvfp4` and `mxfp8` of ComfyUI: blocks along rows, whose scales are [tiled](crate::remember::layout::tiled).
//!
//! - `nvfp4`: U8 `[rows, cols / 2]`, the high nibble first, `X.weight_scale` F8_E4M3 for 16 values, and
//!   `X.weight_scale_2` F32 `[]`.
//! - `mxfp8`: F8_E4M3 `[rows, cols]`, and `X.weight_scale` F8_E8M0 for 32 values.
//!
//! Layout: comfy-kitchen 0.2.40 `TensorCoreNVFP4Layout`, `TensorCoreMXFP8Layout`; ComfyUI
//! `comfy/ops.py`.

use super::{has_marker, marker};
use crate::lethe::kernels::groups::GroupBuffers;
use crate::lethe::kernels::mx::{BLOCK as MX_BLOCK, ComfyMxfp8};
use crate::lethe::kernels::nvfp4::{ComfyNvfp4, comfy_multiplier};
use crate::lethe::mx::pairs;
use crate::lethe::nvfp4::scales_of_mxfp4;
use crate::lethe::seam::rows::{ByteMatrix, linear_weight_objection, packed_shape, stored_tensor};
use crate::lethe::{
    Encode, EncodeBuffers, Method, Put, RelayTarget, StoreCodes, StoredTensor, Survey, TileValues,
    WeightInfo,
};
use crate::remember::kernels::nvfp4::BLOCK;
use crate::remember::layout::tiled::{TILE_COLS, TILE_LEN, TILE_ROWS, in_tiles};
use crate::remember::{CodeFamily, Grid, GroupCodes, QuantScheme, Tile};
use crate::simd::Level;
use crate::{Dtype, Result, TargetDtype};

/// A format of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ComfyBlocks {
    Nvfp4,
    Mxfp8,
}

impl ComfyBlocks {
    /// Values of a block.
    fn block(self) -> usize {
        match self {
            Self::Nvfp4 => BLOCK,
            Self::Mxfp8 => MX_BLOCK,
        }
    }

    /// Codes in a byte.
    fn unit(self) -> usize {
        match self {
            Self::Nvfp4 => 2,
            Self::Mxfp8 => 1,
        }
    }

    fn description(self) -> &'static str {
        match self {
            Self::Nvfp4 => r#"{"format": "nvfp4"}"#,
            Self::Mxfp8 => r#"{"format": "mxfp8"}"#,
        }
    }
}

impl Method for ComfyBlocks {
    fn makes(&self, scheme: QuantScheme) -> bool {
        has_marker(scheme)
    }

    fn objection(&self, weight: &WeightInfo<'_>) -> Option<String> {
        let block = self.block();
        linear_weight_objection(weight, block).or_else(|| {
            // comfy-kitchen pads rows and columns to whole blocks, and the file does not say what is padding.
            let rows = weight.rows();
            (!rows.is_multiple_of(block))
                .then(|| format!("its {rows} rows are no multiple of {block}"))
        })
    }

    fn encoder(&self, weight: &WeightInfo<'_>) -> Result<Box<dyn Encode>> {
        let (rows, cols) = (weight.rows(), weight.cols());
        let (codes, scales) = match self {
            Self::Nvfp4 => (Dtype::U8, Dtype::F8E4M3),
            Self::Mxfp8 => (Dtype::F8E4M3, Dtype::F8E8M0),
        };
        let of_tiles =
            [rows.next_multiple_of(TILE_ROWS), (cols / self.block()).next_multiple_of(TILE_COLS)];
        let name = |end: &str| format!("{}{end}", weight.name);
        let mut stored = vec![
            stored_tensor(name(""), codes, &packed_shape(weight, self.unit())),
            stored_tensor(name("_scale"), scales, &of_tiles),
            marker(weight, self.description()),
        ];
        if *self == Self::Nvfp4 {
            stored.push(stored_tensor(name("_scale_2"), Dtype::F32, &[]));
        }
        Ok(Box::new(ComfyBlockEncoder { stored, format: *self, dtype: weight.dtype, rows, cols }))
    }
}

/// Encodes one tensor.
struct ComfyBlockEncoder {
    stored: Vec<StoredTensor>,
    format: ComfyBlocks,
    /// The dtype of the model's values.
    dtype: TargetDtype,
    rows: usize,
    cols: usize,
}

impl Encode for ComfyBlockEncoder {
    fn stored(&self) -> Vec<StoredTensor> {
        self.stored.clone()
    }

    fn grid(&self) -> Grid {
        Grid {
            rows: self.rows,
            cols: self.cols,
            // Whole tiles of scales, which are written at once.
            row_align: TILE_ROWS,
            col_align: TILE_COLS * self.format.block(),
            load_bits: 8.0,
            transposed: None,
        }
    }

    fn survey(&self) -> Option<Survey> {
        (self.format == ComfyBlocks::Nvfp4).then_some(Survey::MaxAbs)
    }

    fn encode(
        &self,
        values: &TileValues<'_>,
        buffers: &mut EncodeBuffers,
        back: &mut [f32],
        put: &mut Put<'_>,
    ) -> Result<()> {
        let TileValues { tile, values, survey, activations, level, .. } = *values;
        let units = [self.format.unit(), self.format.block()];
        let (codes, scale_bytes) = buffers.codes_and_scales(values.len(), units);
        let job = GroupBuffers { values, activations, codes, scale_bytes, back, level };
        // Every tile computes the global scale from the same survey; the first one writes it.
        let global = comfy_multiplier(self.dtype, survey as f32);
        match self.format {
            ComfyBlocks::Nvfp4 => job.encode_with(&ComfyNvfp4(global)),
            ComfyBlocks::Mxfp8 => job.encode_with(&ComfyMxfp8),
        }
        self.store(tile, (codes, scale_bytes), global, put)
    }

    fn relay(&self) -> Option<RelayTarget<'_>> {
        let target = RelayTarget { family: CodeFamily::Nvfp4, codes: self };
        (self.format == ComfyBlocks::Nvfp4).then_some(target)
    }
}

impl ComfyBlockEncoder {
    /// Passes the codes, of which pairs have the first in the low nibble, and the scales of a tile to
    /// `put`.
    fn store(
        &self,
        tile: &Tile,
        (codes, scales): (&mut [u8], &[u8]),
        global: f32,
        put: &mut Put<'_>,
    ) -> Result<()> {
        let (unit, block) = (self.format.unit(), self.format.block());
        if unit == 2 {
            codes
                .iter_mut()
                .for_each(|pair| *pair = pair.rotate_left(4));
        }
        let bytes = tile.cols.start / unit..tile.cols.end / unit;
        ByteMatrix { part: 0, stride: self.cols / unit }.put(
            tile.rows.clone(),
            bytes,
            codes,
            put,
        )?;
        let across = (self.cols / block).div_ceil(TILE_COLS);
        let (first, width) = (tile.cols.start / block / TILE_COLS, tile.cols.len() / block);
        let bands = scales.chunks((TILE_ROWS * width).max(1));
        for (down, scales) in (tile.rows.start / TILE_ROWS..).zip(bands) {
            put(1, ((down * across + first) * TILE_LEN) as u64, &in_tiles(scales, width))?;
        }
        if !tile.is_first() {
            return Ok(());
        }
        put(2, 0, self.format.description().as_bytes())?;
        match self.format {
            ComfyBlocks::Nvfp4 => put(3, 0, &global.to_le_bytes()),
            ComfyBlocks::Mxfp8 => Ok(()),
        }
    }
}

impl StoreCodes for ComfyBlockEncoder {
    fn store_codes(
        &self,
        tile: &Tile,
        codes: &mut GroupCodes,
        _level: Level,
        put: &mut Put<'_>,
    ) -> Result<()> {
        let (scales, power) = scales_of_mxfp4(codes);
        self.store(tile, (&mut pairs(&codes.codes), &scales), 2f64.powi(power) as f32, put)
    }
}
