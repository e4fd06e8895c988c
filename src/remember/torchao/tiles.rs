//! torchao's Int4TilePackedTo4dTensor: `qdata` I32 `[out / 8, in / 128, 32, 4]`, `scale_and_zero`
//! BF16 `[in / group, out, 2]`. Both dimensions are padded; the metadata have the shape without
//! padding.
//!
//! A tile has 8 rows and 128 columns: 32 lanes of 4 words. Word p of lane l holds eight codes of
//! row `l / 4`. Nibble i of 0 to 3 is column `32 * p + 2 * (l % 4) + 8 * i`; nibble i + 4 is the
//! column after it.
//!
//! Formula: torchao `_dequantize_affine_tinygemm`: `T(T((q - 8) * scale) + zero)`. Layout: torch
//! `_convert_weight_to_int4pack`.

use crate::model::{Part, Tensor};
use crate::remember::kernels::grouped::Int;
use crate::remember::seam::grouped::{CodeFormat, Codes, Grouped, Unpack, row_groups};
use crate::remember::seam::grouped::{GroupFormula, GroupOffsets};
use crate::remember::seam::scale_matrix::{PairMember, ScaleMatrix, Transposed};
use crate::remember::seam::{CodeType, Floats, Granularity, Tile, read, wrong};
use crate::remember::torchao::TorchaoDecoder;
use crate::{Dtype, Result, TargetDtype};

/// Rows, columns and bytes of a tile.
const ROWS: usize = 8;
const COLS: usize = 128;
const BYTES: usize = ROWS * COLS / 2;

/// Decoder of `t` with `scales`, in groups of `group` columns. `shape` is that without padding.
///
/// # Errors
/// The dtypes or the shapes of the three do not fit.
pub(super) fn decoder<'m>(
    t: &Tensor<'m>,
    scales: &Tensor<'m>,
    shape: &[usize],
    group: usize,
) -> Result<TorchaoDecoder<'m>> {
    let (&[down, across, 32, 4], &[rows, cols], Dtype::I32) = (t.shape(), shape, t.dtype()) else {
        return Err(wrong(
            t,
            "tiles are I32 [out / 8, in / 128, 32, 4], and the shape of the whole has two dimensions",
        ));
    };
    let padded = down.checked_mul(ROWS).zip(across.checked_mul(COLS));
    // Rows and columns of the weight lie in the upper left corner of the padded matrix.
    let Some((out, _)) = padded.filter(|&(out, inputs)| rows <= out && cols <= inputs) else {
        return Err(wrong(t, format!("it does not hold {shape:?}")));
    };
    // Scales are padded like the codes, so their numbers follow from the padded sizes.
    let stored = match scales.shape() {
        &[groups, n, 2]
            if n == out && groups.checked_mul(group) == padded.map(|(_, inputs)| inputs) =>
        {
            Some(groups)
        }
        _ => None,
    };
    let Some(groups) = stored else {
        let what = format!(
            "its scales `{}` {:?} do not fit groups of {group}",
            scales.name(),
            scales.shape()
        );
        return Err(wrong(t, what));
    };
    let pairs = Floats::ieee(scales)?;
    let matrix_of_pairs = |is_second| {
        let inner = Box::new(PairMember { pairs, cols: out, is_second });
        Box::new(Transposed { inner, rows: out, cols: groups }) as Box<dyn ScaleMatrix + 'm>
    };
    let codes = Codes::Unpacked(Box::new(TinygemmTiles { part: t.part(), across }));
    // tinygemm subtracts 8 before it scales: `(q - 8) * s + z`.
    let code_format = CodeFormat::Int(Int::offset_binary(4));
    let mut decoder = Grouped::scaled(
        codes,
        4,
        code_format,
        [rows, cols],
        row_groups(cols, group),
        matrix_of_pairs(false),
    );
    let offsets =
        GroupOffsets::new(matrix_of_pairs(true)).computed_in(TargetDtype::of(scales.dtype()));
    decoder.formula = GroupFormula::ScaleShift(offsets);
    Ok(TorchaoDecoder {
        codes: CodeType::Int(4),
        scales: Granularity::Group(group),
        shape: shape.to_vec(),
        decoder,
    })
}

/// Codes in the tiles of torch's tinygemm kernel.
struct TinygemmTiles<'m> {
    part: Part<'m>,
    /// Tiles in a row of tiles.
    across: usize,
}

impl Unpack for TinygemmTiles<'_> {
    fn unpack(&self, tile: &Tile, staging: &mut Vec<u8>, out: &mut Vec<u8>) -> Result<()> {
        let down = tile.rows.start / ROWS..tile.rows.end.div_ceil(ROWS);
        let across = tile.cols.start / COLS..tile.cols.end.div_ceil(COLS);
        read(
            &self.part,
            self.across * BYTES,
            down.clone(),
            across.start * BYTES..across.end * BYTES,
            staging,
        )?;
        out.clear();
        for row in tile.rows.clone() {
            let band = &staging[(row / ROWS - down.start) * across.len() * BYTES..]
                [..across.len() * BYTES];
            out.extend(tile.cols.clone().map(|col| {
                let tile_bytes = &band[(col / COLS - across.start) * BYTES..][..BYTES];
                let (word, nibble) = word_and_nibble(row % ROWS, col % COLS);
                tile_bytes[word * 4 + nibble / 2] >> (nibble % 2 * 4) & 15
            }));
        }
        Ok(())
    }

    fn align(&self) -> (usize, usize) {
        (ROWS, COLS)
    }
}

/// Word of a tile, and nibble of the word, with the code at `row` and `col` of the tile.
fn word_and_nibble(row: usize, col: usize) -> (usize, usize) {
    // A word spans 32 columns; within them the pair of columns gives the lane and every eighth
    // column a nibble.
    let (word, col) = (col / 32, col % 32);
    let lane = row * 4 + col % 8 / 2;
    (lane * 4 + word, col % 2 * 4 + col / 8)
}
