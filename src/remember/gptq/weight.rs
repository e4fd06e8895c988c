//! The decoder of GPTQ's layers: packed words are transposed in panels, and scales and zero points
//! with them.

use std::ops::Range;

use zerocopy::IntoBytes;

use super::Zeros;
use crate::element::Out;
use crate::error::InTensor;
use crate::model::Part;
use crate::remember::kernels::gptq::{GptqPacking, IndexedRows};
use crate::remember::kernels::packed::CHUNK;
use crate::remember::packed::{BitStreams, for_each_zeros, grouped_rows, load_scales};
use crate::remember::seam::{
    Buffers, CodeFamily, Decode, ExtractCodes, Floats, Grid, GroupCodes, RelaySource, StoredPiece,
    StoredRectangle, StoredRows, Tile, load, read,
};
use crate::simd::{Level, dispatch};
use crate::{AnamnesisError, Result};

/// Rows whose zero points are checked together: a multiple of 32, so that they fill whole words at
/// any width.
const STRIP: usize = 1024;

/// Most columns of a layer with a `g_idx` at which a tile is sure to have all of them, and so each
/// group once.
const INDEXED_COLS: usize = 64 << 10;

/// The decoder of a linear layer.
pub(super) struct GptqWeight<'m> {
    pub qweight: Part<'m>,
    pub scales: Floats<'m>,
    pub zeros: Zeros<'m>,
    /// Whether the config says `sym: true`; stored zero points may differ from the middle all the
    /// same.
    pub symmetric: bool,
    pub g_idx: Option<Part<'m>>,
    pub packing: GptqPacking,
    /// Input and output features: columns and rows of the weight.
    pub k: usize,
    pub n: usize,
    pub groups: usize,
    pub group_size: usize,
}

impl GptqWeight<'_> {
    /// Returns the groups that columns `cols` use, in ascending order. If `g_idx` does not name
    /// runs of `group_size` columns, `index` becomes the place of each column's group among them,
    /// else it is empty.
    ///
    /// # Errors
    /// Reading fails, or an index is not below the number of groups.
    fn load_groups(
        &self,
        cols: &Range<usize>,
        index: &mut Vec<u32>,
        staging: &mut Vec<u8>,
    ) -> Result<Vec<usize>> {
        index.clear();
        let even = cols.start / self.group_size..cols.end.div_ceil(self.group_size);
        let Some(g_idx) = &self.g_idx else {
            return Ok(even.collect());
        };
        read(g_idx, self.k * 4, 0..1, cols.start * 4..cols.end * 4, staging)?;
        index.extend(staging.as_chunks().0.iter().map(|&g| u32::from_le_bytes(g)));
        // As unsigned: a negative index becomes a large one and is refused here.
        if let Some(&group) = index.iter().find(|&&g| g as usize >= self.groups) {
            let (name, groups) = (g_idx.name(), self.groups);
            return Err(AnamnesisError::parse(format!(
                "{}: group {} of {groups}",
                InTensor(&name),
                group as i32
            )));
        }
        if cols
            .clone()
            .zip(index.iter())
            .all(|(k, &g)| k / self.group_size == g as usize)
        {
            // Layers without act-order have an index that is in order. The kernel for runs is
            // faster, so it is used for them.
            index.clear();
            return Ok(even.collect());
        }
        // Only the groups that the tile names are loaded, each once. `index` then counts among
        // those.
        let mut places = vec![None; self.groups];
        index.iter().for_each(|&g| places[g as usize] = Some(0));
        let used = (0..self.groups).filter(|&g| places[g].is_some());
        let used: Vec<usize> = used.collect();
        for (place, &g) in (0..).zip(&used) {
            places[g] = Some(place);
        }
        for g in index {
            *g = places[*g as usize].unwrap_or(0);
        }
        Ok(used)
    }

    /// Brings the zero points of `groups` into `buffers`, a row for each row of the tile.
    fn load_zeros(&self, groups: &[usize], tile: &Tile, buffers: &mut Buffers) -> Result<()> {
        let Buffers { zeros, staging, zero_words, .. } = buffers;
        let (count, middle) = (groups.len(), (1u32 << (self.packing.bits - 1)) as f32);
        zeros.clear();
        // Filled with the middle for symmetric layers; for the others every field is overwritten.
        zeros.resize(count * tile.rows.len(), middle);
        let Zeros::Packed { part, version_1 } = self.zeros else {
            return Ok(());
        };
        for_each_zeros(
            &part,
            self.packing.bytes(&(0..self.n)).end,
            groups,
            self.packing.bytes(&tile.rows),
            staging,
            zero_words,
            |g, words| {
                let chunks = self.packing.zero_points(words, version_1);
                for (rows, chunk) in zeros.chunks_mut(CHUNK * count).zip(chunks) {
                    for (row, zero) in rows.chunks_exact_mut(count).zip(chunk) {
                        row[g] = zero as f32;
                    }
                }
            },
        )
    }

    /// Whether group after group is a run of `group_size` columns.
    fn is_in_order(&self) -> Result<bool> {
        let mut index = Vec::new();
        self.load_groups(&(0..self.k), &mut index, &mut Vec::new())?;
        Ok(index.is_empty())
    }

    /// Whether every zero point is the middle of the range.
    fn is_symmetric(&self) -> Result<bool> {
        // Claimed symmetry has to hold in the data before a target without zero points may take the
        // codes.
        if !self.symmetric || matches!(self.zeros, Zeros::Symmetric) {
            return Ok(self.symmetric);
        }
        let (groups, middle): (Vec<usize>, f32) =
            ((0..self.groups).collect(), (1u32 << (self.packing.bits - 1)) as f32);
        let mut buffers = Buffers::default();
        for first in (0..self.n).step_by(STRIP) {
            let tile = Tile { rows: first..(first + STRIP).min(self.n), cols: 0..self.k };
            self.load_zeros(&groups, &tile, &mut buffers)?;
            if buffers.zeros.iter().any(|&zero| zero != middle) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Codes of a loaded tile as bit streams in rows, and the bits of a code there.
    fn code_rows<'a>(&self, buffers: &'a Buffers) -> (&'a [u8], usize) {
        if self.packing.has_planes {
            (&buffers.bytes, 8)
        } else {
            (buffers.words.as_bytes(), self.packing.bits)
        }
    }
}

impl Decode for GptqWeight<'_> {
    fn grid(&self) -> Grid {
        // A tile of some of the columns can still name any group, so each of its columns may bring
        // one.
        let scattered = self.g_idx.is_some() && self.k > INDEXED_COLS;
        let groups = if scattered {
            1.0
        } else {
            self.groups as f64 / self.k as f64
        };
        // Codes in planes are unpacked into a byte each, beside their words.
        let code_bits = self.packing.bits + if self.packing.has_planes { 8 } else { 0 };
        let load_bits = code_bits as f64 + 64.0 * groups;
        Grid {
            rows: self.n,
            cols: self.k,
            // 32 codes fill whole words at every width, and their zero points whole words of
            // `qzeros`.
            row_align: CHUNK,
            col_align: CHUNK,
            load_bits,
            transposed: Some(StoredRows::of_one(
                self.packing.word_bits,
                (self.packing.word_bits / self.packing.bits).max(1),
            )),
        }
    }

    fn read(&self, tile: &Tile, buffers: &mut Buffers) -> Result<()> {
        let GptqPacking { bits, word_bits, .. } = self.packing;
        // Tiles begin at multiples of 32 codes, so the first word begins with a code.
        let words = tile.cols.start * bits / word_bits..(tile.cols.end * bits).div_ceil(word_bits);
        let rows = tile.rows.clone();
        let Buffers { staging, words: out, ahead, .. } = &mut *buffers;
        let matrix =
            load::StoredWords { part: &self.qweight, stride: self.n, ahead: ahead.as_deref() };
        macro_rules! read {
            ($size:literal) => {{
                let column = load::transposed_words::<$size>(words.len());
                out.resize(rows.len() * column, 0);
                load::read_transposed::<$size>(matrix, [words, rows], staging, column, out)?
            }};
        }
        match word_bits {
            8 => read!(1),
            16 => read!(2),
            _ => read!(4),
        }
        // Planes cannot be read as a stream, so they are unpacked here once, and not for each slab.
        if self.packing.has_planes {
            let row_words = buffers.words.len() / tile.rows.len().max(1);
            let bytes = buffers.bytes.buffer();
            bytes.clear();
            for words in buffers.words.chunks_exact(row_words.max(1)) {
                let codes = (0..tile.cols.len().div_ceil(CHUNK))
                    .flat_map(|i| self.packing.unpack(words, i));
                let codes = codes.take(tile.cols.len()).map(|code| code as u8);
                bytes.extend(codes);
            }
        }
        let groups = self.load_groups(&tile.cols, &mut buffers.index, &mut buffers.staging)?;
        let Buffers { staging, row, scales, .. } = buffers;
        load_scales(&self.scales, self.n, &groups, tile.rows.clone(), staging, row, scales)?;
        self.load_zeros(&groups, tile, buffers)
    }

    fn decode(
        &self,
        tile: &Tile,
        rows: Range<usize>,
        buffers: &Buffers,
        level: Level,
        out: Out<'_>,
    ) {
        let (bytes, bits) = self.code_rows(buffers);
        let codes = BitStreams {
            bytes,
            row_bytes: bytes.len() / tile.rows.len(),
            bits,
            code_bits: self.packing.bits,
        };
        // `load` leaves the index empty where columns run in groups.
        if !buffers.index.is_empty() {
            let first = rows.start - tile.rows.start;
            let groups = buffers.scales.len() / tile.rows.len();
            let kernel = IndexedRows {
                bytes: &bytes[first * codes.row_bytes..],
                row_bytes: codes.row_bytes,
                bits,
                cols: tile.cols.len(),
                scales: &buffers.scales[first * groups..],
                zeros: &buffers.zeros[first * groups..],
                groups,
                index: &buffers.index,
            };
            return dispatch(level, &kernel, out);
        }
        grouped_rows(&codes, [self.k, self.group_size], tile, rows, buffers).decode(level, out);
    }

    fn stored_codes(&self, rows: &Range<usize>) -> Option<StoredRectangle<'_>> {
        let GptqPacking { bits, word_bits, .. } = self.packing;
        let size = word_bits / 8;
        Some(StoredRectangle {
            rows: 0..(self.k * bits).div_ceil(word_bits),
            codes: StoredPiece {
                part: self.qweight,
                stride: self.n * size,
                bytes: rows.start * size..rows.end * size,
            },
            scales: None,
        })
    }

    fn find_relay(&self) -> Result<Option<RelaySource>> {
        let stores_symmetric = self.symmetric && matches!(self.zeros, Zeros::Packed { .. });
        // An index has to be read to prove that groups are in order, and stored zero points to
        // prove that they are symmetric.
        let needs_data = self.g_idx.is_some() || stores_symmetric;
        // A model of a header alone has no data to decide by, and none to relay either.
        if needs_data && !self.qweight.is_readable() || !self.is_in_order()? {
            return Ok(None);
        }
        let family = CodeFamily::int(
            self.packing.bits,
            self.group_size,
            self.k,
            self.scales.dtype(),
            self.is_symmetric()?,
        );
        let packing = self.packing;
        Ok(family.map(|family| RelaySource::new(family, GptqCodes { packing })))
    }
}

/// How the codes of a layer lie in its decoder's buffers.
struct GptqCodes {
    packing: GptqPacking,
}

impl ExtractCodes for GptqCodes {
    fn extract(&self, [rows, cols]: [usize; 2], buffers: &Buffers, out: &mut GroupCodes) {
        let words_per_row = buffers.words.len() / rows.max(1);
        out.codes.clear();
        for words in buffers.words.chunks_exact(words_per_row.max(1)) {
            let codes = (0..cols.div_ceil(CHUNK)).flat_map(|i| self.packing.unpack(words, i));
            out.codes.extend(codes.take(cols).map(|code| code as u8));
        }
        out.scales.clone_from(&buffers.scales);
        out.zero_points.clear();
        out.zero_points
            .extend(buffers.zeros.iter().map(|&zero| zero as u8));
    }
}
