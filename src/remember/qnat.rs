//! QNAT: a tensor has its 4-bit codes, block by block, then the scales of the blocks and, in some
//! files, their zero points. [`QnatTensor`] has their offsets.

use std::ops::Range;

use crate::Result;
use crate::element::Out;
use crate::model::{Part, QnatTensor, Tensor};
use crate::remember::kernels::qnat::QnatRows;
use crate::remember::seam::{
    Buffers, Decode, Grid, Group, Identity, Index, QuantScheme, Scheme, TensorRole, Tile,
};
use crate::simd::{Level, dispatch};

pub(super) struct Qnat;

static IDENTITY: Identity = Identity {
    name: "QNAT",
    over: &[],
    methods: &[],
    codes: &[],
    companions: &[],
    optional: &[],
    activations: &[],
    markers: &[],
    sidecars: &[],
    container: Some(|model| !model.qnat.is_empty()),
};

impl Scheme for Qnat {
    fn identity(&self) -> &'static Identity {
        &IDENTITY
    }

    fn kind(&self, _t: &Tensor<'_>, _all: &Index<'_>) -> QuantScheme {
        QuantScheme::Qnat
    }

    fn claim<'m>(&self, t: &Tensor<'m>, _all: &Index<'m>) -> Result<Option<Group<'m>>> {
        let Some(layout) = t.model.qnat.get(t.index) else {
            return Ok(None);
        };
        let decoder = Box::new(QnatWeight { part: t.part(), layout });
        let parts = vec![(TensorRole::Quantized, *t)];
        let (name, shape) = (t.name(), layout.shape.clone());
        Ok(Some(Group::new(name, shape, QuantScheme::Qnat, parts, decoder)))
    }
}

/// Decoder of a tensor. The rows of its grid are the blocks.
struct QnatWeight<'m> {
    part: Part<'m>,
    layout: &'m QnatTensor,
}

impl QnatWeight<'_> {
    /// Appends the F32 of blocks `rows` of the vector that begins at byte `at` of the tensor.
    fn floats(
        &self,
        at: u64,
        rows: &Range<usize>,
        staging: &mut Vec<u8>,
        out: &mut Vec<f32>,
    ) -> Result<()> {
        staging.resize(rows.len() * 4, 0);
        self.part.read_at(at + 4 * rows.start as u64, staging)?;
        out.extend(staging.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)));
        Ok(())
    }
}

impl Decode for QnatWeight<'_> {
    fn grid(&self) -> Grid {
        let &QnatTensor { block, blocks, .. } = self.layout;
        // An F32 scale and an F32 zero point for each block.
        let load_bits = 4.0 + 64.0 / block.max(1) as f64;
        Grid {
            rows: blocks,
            cols: block,
            row_align: 1,
            // A byte has two codes, and each block begins with a byte of its own.
            col_align: 2,
            load_bits,
            transposed: None,
        }
    }

    fn read(&self, tile: &Tile, buffers: &mut Buffers) -> Result<()> {
        let (layout, rows) = (self.layout, &tile.rows);
        let Buffers { bytes, scales, zeros, staging, .. } = buffers;
        let cols = tile.cols.start / 2..tile.cols.end.div_ceil(2);
        bytes.load(&self.part, layout.block.div_ceil(2), rows.clone(), cols)?;
        scales.clear();
        zeros.clear();
        // Double-quantized: a byte for each scale, and behind them their common step.
        if layout.has_scale_codes {
            let mut step = [0; 4];
            self.part
                .read_at(layout.scales_offset + layout.blocks as u64, &mut step)?;
            let step = f32::from_le_bytes(step);
            staging.resize(rows.len(), 0);
            self.part
                .read_at(layout.scales_offset + rows.start as u64, staging)?;
            scales.extend(staging.iter().map(|&code| (f32::from(code) - 128.0) * step));
        } else {
            self.floats(layout.scales_offset, rows, staging, scales)?;
        }
        match layout.zero_points_offset {
            Some(at) => self.floats(at, rows, staging, zeros),
            None => {
                // Zeros instead of a second kernel: a level plus 0 is the level, since none of them
                // is -0.
                zeros.resize(rows.len(), 0.0);
                Ok(())
            }
        }
    }

    fn decode(
        &self,
        tile: &Tile,
        rows: Range<usize>,
        buffers: &Buffers,
        level: Level,
        out: Out<'_>,
    ) {
        let (cols, first) = (tile.cols.len(), rows.start - tile.rows.start);
        let (rows, width) = (first..first + rows.len(), cols.div_ceil(2));
        let kernel = QnatRows {
            codes: &buffers.bytes[rows.start * width..rows.end * width],
            cols,
            scales: &buffers.scales[rows.clone()],
            zeros: &buffers.zeros[rows],
        };
        dispatch(level, &kernel, out);
    }
}
