//! Encoding on the way: values come from a stored tensor or from its decoder, in runs of whole blocks.

use super::plan::{Cut, GATHER_BYTES};
use crate::element::Out;
use crate::lethe::qnat::encode;
use crate::model::{Part, Tensor};
use crate::remember::widen::Widen;
use crate::scheme::{Buffers, Decode, Group, Tile};
use crate::simd::{Level, dispatch};
use crate::{AnamnesisError, Dtype, Result};

/// Where the values come from.
enum Values<'m> {
    Stored(Part<'m>, Dtype),
    Decoded(Box<dyn Decode + 'm>),
}

/// A tensor that is encoded to NF4.
pub(super) struct Encoding<'m> {
    values: Values<'m>,
    pub block: usize,
    pub blocks: usize,
}

impl<'m> Encoding<'m> {
    /// Of a tensor that is not quantized.
    pub(super) fn of_tensor(t: &Tensor<'m>) -> Result<(Self, Cut)> {
        if !crate::write::qnat::encodes(t.dtype()) {
            let what = format!("tensor `{}`: only F32, F16 and BF16 are encoded, not {}", t.name(), t.dtype());
            return Err(AnamnesisError::unsupported("writing QNAT", what));
        }
        let (block, blocks) = blocks(t.name(), t.elements())?;
        let cut = Cut { rows: 1, cols: t.elements(), tile_rows: 1, tile_cols: whole(GATHER_BYTES / 8, block) };
        Ok((Self { values: Values::Stored(t.part(), t.dtype()), block, blocks }, cut))
    }

    /// Of a tensor that is decoded first.
    pub(super) fn of_group(group: Group<'m>) -> Result<(Self, Cut)> {
        let grid = group.decoder.grid();
        let (block, blocks) = blocks(&group.name, grid.rows.saturating_mul(grid.cols))?;
        let mut cut = Cut::of_grid(&grid);
        if grid.rows == 1 {
            cut.tile_cols = whole(cut.tile_cols, lcm(block, grid.col_align));
        } else {
            // Tiles of whole rows, which together are whole blocks.
            let rows = block / gcd(grid.cols, block);
            if grid.transposed || cut.tile_cols != grid.cols || rows > cut.tile_rows && rows < grid.rows {
                let what = format!("tensor `{}`: its values do not come in the order of the blocks", group.name);
                return Err(AnamnesisError::unsupported("encoding on the way; recover the model first", what));
            }
            cut.tile_rows = whole(cut.tile_rows, rows);
        }
        Ok((Self { values: Values::Decoded(group.decoder), block, blocks }, cut))
    }

    /// Encodes the values of `tile`, of which `before` come before it: passes codes and scales to `put`.
    pub(super) fn run(
        &self,
        tile: &Tile,
        before: usize,
        buffers: &mut Buffers,
        level: Level,
        mut put: impl FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut values = vec![0f32; tile.values()];
        match &self.values {
            Values::Stored(part, dtype) => {
                let size = dtype.bits() / 8;
                buffers.staging.resize(values.len() * size, 0);
                part.read_at((before * size) as u64, &mut buffers.staging)?;
                let stored = Widen { dtype: *dtype, bytes: &buffers.staging };
                dispatch(level, &stored, Out::F32(&mut values));
            }
            Values::Decoded(decoder) => {
                decoder.load(tile, buffers)?;
                decoder.decode(tile, tile.rows.clone(), buffers, level, Out::F32(&mut values));
            }
        }
        let (mut codes, mut scales) = (Vec::new(), Vec::new());
        encode(&values, self.block, &mut codes, &mut scales);
        let (first, width) = ((before / self.block) as u64, self.block.div_ceil(2) as u64);
        put(first * width, &codes)?;
        put(self.blocks as u64 * width + first * 4, bytemuck::cast_slice(&scales))
    }
}

fn blocks(name: &str, n: usize) -> Result<(usize, usize)> {
    match crate::write::qnat::block_for(n) {
        Some(block) => Ok((block, n / block)),
        None => {
            let what = format!("tensor `{name}`: {n} values are no whole number of blocks");
            Err(AnamnesisError::unsupported("writing QNAT", what))
        }
    }
}

/// `n` rounded down to whole `unit`s, at least one.
fn whole(n: usize, unit: usize) -> usize {
    (n - n % unit.max(1)).max(unit)
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a.max(1) } else { gcd(b, a % b) }
}

fn lcm(a: usize, b: usize) -> usize {
    a / gcd(a, b) * b
}
