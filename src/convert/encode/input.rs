//! The values that are encoded: tiles of a decoder, which are read, widened to F32 and checked part
//! by part.

use std::sync::{Arc, OnceLock};

use super::relay::ExponentRange;
use super::strips::{Strips, are_kept_halves};
use super::{Scratch, TileSurvey};
use crate::convert::cut::Cut;
use crate::error::InTensor;
use crate::lethe::kernels::magnitudes::{
    HalfBlocks, are_finite, are_finite_halves, largest_halves, largest_magnitudes,
    largest_of_blocks,
};
use crate::remember::{Buffers, Decode, RelaySource, ResolvedItem, Tile, Widening, covering};
use crate::simd::Level;
use crate::{AnamnesisError, Result, TargetDtype};

/// Element type of an item's values: the type that a group is decoded to, or the stored type of a
/// plain tensor.
pub(in crate::convert) fn dtype_of(item: &ResolvedItem<'_>, to: TargetDtype) -> TargetDtype {
    match item {
        ResolvedItem::Group(group) => group.keeps.unwrap_or(to),
        ResolvedItem::Plain(t) => TargetDtype::of(t.stored.dtype()).unwrap_or(to),
    }
}

/// A tensor whose values are encoded, or surveyed for another that is.
#[derive(Clone)]
pub(super) struct EncodeInput<'m> {
    pub name: String,
    pub(super) decoder: Arc<dyn Decode + 'm>,
    /// Values are rounded to this dtype before they are encoded, as they would be if the decoded
    /// tensor were stored.
    pub(super) dtype: TargetDtype,
    pub cut: Cut,
    /// How a tile, which is read as a whole, is cut once more; `None` if it is encoded at once.
    pub strips: Option<Strips>,
    /// The largest magnitude of each tile that has been surveyed, if other tensors survey this one
    /// as well: whoever is first reads it.
    pub maxima: Arc<[OnceLock<f32>]>,
    /// The codes, if it depends on the survey whether they are relayed.
    pub relayed: Option<Arc<RelaySource>>,
}

impl EncodeInput<'_> {
    /// Reads the rectangle that `tiles`, which lie side by side, are in, and returns it. `None` if
    /// each is read by itself.
    ///
    /// # Errors
    /// Reading fails.
    pub(super) fn load_band(
        &self,
        mut tiles: impl ExactSizeIterator<Item = usize>,
        buffers: &mut Buffers,
    ) -> Result<Option<Tile>> {
        let (Some(_), 2.., Some(first)) = (&self.strips, tiles.len(), tiles.next()) else {
            return Ok(None);
        };
        let mut band = self.cut.tile(first);
        band.cols.end = tiles
            .last()
            .map_or(band.cols.end, |last| self.cut.tile(last).cols.end);
        self.decoder.load(&band, buffers)?;
        Ok(Some(band))
    }

    /// Reads `tile`, unless it lies in a `band` that is loaded, decodes its values into
    /// `scratch.values` part by part, and passes each part to `each`, with whether its strip ends
    /// with it. Without strips the tile is the only part. The largest magnitudes of surveyed blocks
    /// are in `scratch.maxima`.
    ///
    /// # Errors
    /// Reading fails, or a value is not finite: no scheme has a code for it. `scheme` is named in
    /// the message. The errors of `each`.
    pub(super) fn for_each_part(
        &self,
        (tile, band): (&Tile, Option<&Tile>),
        scheme: &str,
        buffers: &mut Buffers,
        scratch: &mut Scratch,
        level: Level,
        mut each: impl FnMut(&Tile, bool, &mut Scratch) -> Result<()>,
    ) -> Result<()> {
        scratch.maxima.clear();
        if let Some(strips) = &self.strips {
            if band.is_none() {
                self.decoder.load(tile, buffers)?;
            }
            let loaded = band.unwrap_or(tile);
            if let Some(stored) = self.stored(loaded, buffers) {
                for (part, ends_strip) in strips.parts(tile) {
                    if let Some((strip, cols)) = strips.surveyed_strip(tile, &part) {
                        survey_blocks(stored, (loaded, &strip), cols, scratch, level);
                        if !scratch.maxima.iter().all(|max| max.is_finite()) {
                            self.widen_part(stored, (loaded, &strip), scratch, level);
                            self.refuse_unless(false, &strip, scheme, &scratch.values)?;
                        }
                    }
                    let is_finite = self.widen_part(stored, (loaded, &part), scratch, level);
                    self.refuse_unless(is_finite, &part, scheme, &scratch.values)?;
                    each(&part, ends_strip, scratch)?;
                }
                return Ok(());
            }
        }
        self.decode_values(tile, buffers, scratch, level)?;
        let is_finite = are_finite(&scratch.values, level);
        self.refuse_unless(is_finite, tile, scheme, &scratch.values)?;
        each(tile, true, scratch)
    }

    /// Reads the codes of `tile`, and returns their exponents and the largest magnitude of their
    /// values. `None` if a value is not finite.
    ///
    /// # Errors
    /// Reading fails.
    pub(super) fn survey_codes(
        &self,
        tile: &Tile,
        source: &RelaySource,
        buffers: &mut Buffers,
        scratch: &mut Scratch,
    ) -> Result<Option<TileSurvey>> {
        self.decoder.load(tile, buffers)?;
        let codes = &mut scratch.codes;
        source
            .codes
            .extract([tile.rows.len(), tile.cols.len()], buffers, codes);
        Ok(ExponentRange::of(codes).map(|(range, max_abs)| TileSurvey {
            maxima: vec![max_abs],
            exponents: Some(range),
            errors: None,
        }))
    }

    /// Reads `tile`, and returns the largest magnitude of each `run` of its values, or of runs of
    /// any length if that is `None`.
    ///
    /// # Errors
    /// Reading fails, or a value is not finite. `scheme` is named in the message.
    pub(super) fn largest_of_runs(
        &self,
        tile: &Tile,
        run: Option<usize>,
        scheme: &str,
        buffers: &mut Buffers,
        scratch: &mut Scratch,
        level: Level,
    ) -> Result<Vec<f32>> {
        if self.strips.is_some() {
            self.decoder.load(tile, buffers)?;
            // Magnitudes of values of two bytes are found without widening them.
            if let Some((dtype, bytes)) = self.stored(tile, buffers)
                && are_kept_halves(dtype, self.dtype)
            {
                let largest = largest_halves(dtype, bytes, run.unwrap_or(tile.values()), level);
                if largest.iter().all(|x| x.is_finite()) {
                    return Ok(largest);
                }
                // The value that is not finite is found below.
            }
        }
        let mut largest = Vec::new();
        let loaded = self.strips.is_some().then_some(tile);
        self.for_each_part((tile, loaded), scheme, buffers, scratch, level, |_, _, scratch| {
            let run = run.unwrap_or(scratch.values.len());
            largest.extend(largest_magnitudes(&scratch.values, run, level));
            Ok(())
        })?;
        Ok(largest)
    }

    /// The stored values of a loaded tile, if they are stored as they are.
    fn stored<'b>(&self, tile: &Tile, buffers: &'b Buffers) -> Option<(TargetDtype, &'b [u8])> {
        let dtype = self.decoder.stored_dtype()?;
        Some((dtype, self.decoder.stored_bytes(tile, buffers)?))
    }

    /// Widens a part of a loaded rectangle, whose stored values are given, into `scratch.values`.
    /// Returns whether all are finite.
    fn widen_part(
        &self,
        (dtype, bytes): (TargetDtype, &[u8]),
        (loaded, part): (&Tile, &Tile),
        scratch: &mut Scratch,
        level: Level,
    ) -> bool {
        let (pitch, width, size) = (loaded.cols.len(), part.cols.len(), dtype.byte_size());
        let first = first_value(loaded, part);
        // Whole rows follow each other.
        let run = if width == pitch { part.values() } else { width };
        scratch.values.resize(part.values(), 0.0);
        let mut is_finite = true;
        for (row, values) in scratch.values.chunks_mut(run.max(1)).enumerate() {
            let bytes = &bytes[(first + row * pitch) * size..][..run * size];
            let rounded = &mut scratch.rounded;
            self.widening(level).widen(dtype, bytes, rounded, values);
            is_finite &= match are_kept_halves(dtype, self.dtype) {
                // Their blocks have been surveyed.
                _ if !scratch.maxima.is_empty() => true,
                true => are_finite_halves(dtype, bytes, level),
                false => are_finite(values, level),
            };
        }
        is_finite
    }

    /// Names the first of `values`, which are those of `tile`, that is not finite, unless
    /// `is_finite`.
    fn refuse_unless(
        &self,
        is_finite: bool,
        tile: &Tile,
        scheme: &str,
        values: &[f32],
    ) -> Result<()> {
        if is_finite {
            return Ok(());
        }
        match values.iter().position(|x| !x.is_finite()) {
            Some(i) => {
                let what = format!("{} cannot be encoded to {scheme}", values[i]);
                Err(self.refused(tile, i, scheme, &what))
            }
            None => Ok(()),
        }
    }

    fn widening(&self, level: Level) -> Widening {
        Widening { dtype: self.dtype, level }
    }

    /// Decodes the values of `tile` into `scratch.values`, row by row.
    ///
    /// # Errors
    /// Reading fails.
    pub(super) fn decode_values(
        &self,
        tile: &Tile,
        buffers: &mut Buffers,
        scratch: &mut Scratch,
        level: Level,
    ) -> Result<()> {
        let Scratch { values, rounded, surrounding, .. } = scratch;
        values.resize(tile.values(), 0.0);
        let grid = self.decoder.grid();
        if grid.cols == self.cut.cols && tile.rows.end <= grid.rows {
            self.decode(tile, buffers, rounded, level, values)?;
        } else {
            // The rows of the two grids have different lengths, for example because one side is a
            // flat run of blocks. Both number the elements of the tensor alike.
            let end = grid.rows * grid.cols;
            let mut filled = 0;
            for (first, run) in tile.runs(self.cut.cols) {
                // Behind the last element there may be a rest of the encoder's grid.
                let len = run.len().min(end.saturating_sub(first));
                if len == 0 {
                    break;
                }
                let (covering, before) = covering(&grid, &(first..first + len));
                surrounding.resize(covering.values(), 0.0);
                self.decode(&covering, buffers, rounded, level, surrounding)?;
                filled = run.start + len;
                values[run.start..filled].copy_from_slice(&surrounding[before..before + len]);
            }
            values.truncate(filled);
        }
        Ok(())
    }

    /// Decodes a tile of the decoder's grid to F32, rounded to `self.dtype`. `rounded` is scratch.
    fn decode(
        &self,
        tile: &Tile,
        buffers: &mut Buffers,
        rounded: &mut Vec<u32>,
        level: Level,
        out: &mut [f32],
    ) -> Result<()> {
        self.decoder.load(tile, buffers)?;
        let rows = tile.rows.clone();
        self.widening(level)
            .decode(&*self.decoder, (tile, rows), buffers, rounded, out);
        Ok(())
    }

    /// The error that value `i` of `tile` cannot be encoded to `scheme`.
    pub(super) fn refused(
        &self,
        tile: &Tile,
        i: usize,
        scheme: &str,
        what: &str,
    ) -> AnamnesisError {
        let (row, col) =
            (tile.rows.start + i / tile.cols.len(), tile.cols.start + i % tile.cols.len());
        // The decoder's rows are those of the tensor, where the encoder's are not.
        let (element, grid) = (row * self.cut.cols + col, self.decoder.grid());
        let (row, col) = match grid.rows {
            0 | 1 => (row, col),
            _ => (element / grid.cols, element % grid.cols),
        };
        AnamnesisError::unsupported(
            scheme,
            format!("{}, row {row}, column {col}: {what}", InTensor(&self.name)),
        )
    }
}

/// Number of the first value of `part` among those of the rectangle `loaded`.
fn first_value(loaded: &Tile, part: &Tile) -> usize {
    (part.rows.start - loaded.rows.start) * loaded.cols.len() + part.cols.start - loaded.cols.start
}

/// Finds the largest magnitudes of the blocks of `cols` columns of `strip`, a part of a loaded
/// rectangle whose values of two bytes are given.
fn survey_blocks(
    (dtype, bytes): (TargetDtype, &[u8]),
    (loaded, strip): (&Tile, &Tile),
    cols: usize,
    scratch: &mut Scratch,
    level: Level,
) {
    let (pitch, width) = (loaded.cols.len(), strip.cols.len());
    let first = first_value(loaded, strip);
    let end = first + (strip.rows.len() - 1) * pitch + width;
    let blocks = HalfBlocks { dtype, bytes: &bytes[first * 2..end * 2], pitch, width, cols };
    largest_of_blocks(blocks, level, &mut scratch.maxima);
}
