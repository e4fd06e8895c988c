//! DFloat11: BF16 weights without loss, a stream of Huffman-coded exponents for each weight.
//!
//! `X.encoded_exponent` U8, `X.sign_mantissa` U8 `[out, in]`, `X.luts` U8 `[tables + 1, 256]`,
//! `X.output_positions` U8, `X.gaps` U8, `X.split_positions` I64 `[0]`. The library has a flat
//! `sign_mantissa`, and asks only for its length; its shape is the weight's here, which nothing
//! else in the file tells.
//!
//! How long a stream is depends on the values, and has to be known while planning. So the exponents
//! of each tile are counted then, which also tells the bit at which each tile begins. Tiles are
//! encoded in any order; a byte that has bits of several tiles is kept until all of its bits are
//! there ([`PartialBytes`]).
//!
//! Layout: dfloat11 0.5.0 `dfloat11.py` (`compress_model`), `dfloat11_utils.py` (`encode_weights`).

mod config;
mod partial_bytes;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use serde_json::Value;
use zerocopy::IntoBytes;

use self::partial_bytes::PartialBytes;
use super::seam::rows::{MAX_ROW_LEN, linear_weight_objection, stored_tensor};
use super::{
    Encode, EncodeBuffers, ExponentTile, Method, Put, StoredTensor, TileValues, WeightInfo,
};
use crate::error::InTensor;
use crate::lethe::kernels::dfloat11::{
    CHUNK_RUNS, EncodedRun, ExponentCounts, HuffmanCode, RUN_BITS, StreamPlace, chunks,
    encode_exponents, end_stream, pack_gaps,
};
use crate::remember::Grid;
use crate::remember::kernels::dfloat11::TABLE;
use crate::{AnamnesisError, Dtype, Result, TargetDtype};

/// Most values of a chunk. The library's kernel has them in its 48 KiB of shared memory, behind 513
/// counters.
const MAX_CHUNK_VALUES: u64 = (48 * 1024 - 513 * 4) / 2;

/// Bits of a gap.
const GAP_BITS: u64 = 5;

/// The method. That of a tensor has the stream's code and places.
#[derive(Default)]
pub(crate) struct DFloat11 {
    stream: Option<Arc<CountedStream>>,
}

/// What counting the exponents of a tensor has told of its stream.
struct CountedStream {
    code: HuffmanCode,
    /// Where each tile begins, and the end of the last.
    places: Vec<StreamPlace>,
}

impl CountedStream {
    fn new(tiles: &[ExponentTile]) -> std::result::Result<Self, String> {
        let mut counts: ExponentCounts = [0; TABLE];
        for tile in tiles {
            for (sum, &n) in counts.iter_mut().zip(&tile.counts[..]) {
                *sum += u64::from(n);
            }
        }
        let code = HuffmanCode::new(&counts)?;
        let (mut value, mut bit, mut before) = (0, 0, 0);
        let mut places = vec![StreamPlace::new(value, bit, before)];
        for tile in tiles {
            let values: u64 = tile.counts.iter().map(|&n| u64::from(n)).sum();
            let bits = code.len_of(&tile.counts);
            // Where chunks begin is not known yet, so that this is their number of values on
            // average.
            let in_chunk = values.min(values * CHUNK_RUNS * RUN_BITS / bits.max(1));
            if in_chunk > MAX_CHUNK_VALUES {
                return Err(format!(
                    "{in_chunk} of its codes lie in a chunk, and the library decodes {MAX_CHUNK_VALUES} at most"
                ));
            }
            value += values;
            bit += bits;
            before = code.codes[usize::from(tile.last)].len;
            places.push(StreamPlace::new(value, bit, before));
        }
        Ok(Self { code, places })
    }

    /// Bytes of codes.
    fn bytes(&self) -> u64 {
        self.places.last().map_or(0, |end| end.bit.div_ceil(8))
    }
}

fn grid(weight: &WeightInfo<'_>) -> Grid {
    let cols = weight.cols();
    Grid {
        rows: weight.rows(),
        cols,
        row_align: 1,
        // Whole rows: the values of a tile follow each other in the stream.
        col_align: cols,
        load_bits: 16.0,
        transposed: None,
    }
}

impl Method for DFloat11 {
    fn objection(&self, weight: &WeightInfo<'_>) -> Option<String> {
        if let Some(objection) = linear_weight_objection(weight, 1) {
            return Some(objection);
        }
        let [rows, cols] = [weight.rows(), weight.cols()];
        match () {
            () if weight.dtype != TargetDtype::BF16 => {
                Some(format!("it is {}, and DFloat11 holds BF16 alone", weight.dtype))
            }
            () if rows
                .checked_mul(cols)
                .is_none_or(|n| u32::try_from(n).is_err()) =>
            {
                Some("places of so many values take more than 32 bits".to_owned())
            }
            () if cols > MAX_ROW_LEN => {
                Some(format!("its rows are longer than {MAX_ROW_LEN} values"))
            }
            () => None,
        }
    }

    fn counting_grid(&self, weight: &WeightInfo<'_>) -> Option<Grid> {
        Some(grid(weight))
    }

    fn with_exponents(
        &self,
        tiles: &[ExponentTile],
    ) -> Option<std::result::Result<Arc<dyn Method>, String>> {
        let method = |stream| {
            let method: Arc<dyn Method> = Arc::new(Self { stream: Some(Arc::new(stream)) });
            method
        };
        Some(CountedStream::new(tiles).map(method))
    }

    fn encoder(&self, weight: &WeightInfo<'_>) -> Result<Box<dyn Encode>> {
        let stream = self.stream.clone().ok_or_else(|| {
            AnamnesisError::unsupported("DFloat11", "its exponents have not been counted")
        })?;
        Ok(Box::new(DFloat11Encoder {
            base: weight.base().to_owned(),
            shape: [weight.rows(), weight.cols()],
            grid: grid(weight),
            stream,
            partial: PartialBytes::default(),
        }))
    }

    fn config_of_encoded(&self, modules: &[&str]) -> Option<Value> {
        Some(config::config(modules))
    }
}

/// Indices of the stored tensors.
#[derive(Clone, Copy)]
enum Stored {
    Codes,
    Rest,
    Tables,
    Positions,
    Gaps,
}

struct DFloat11Encoder {
    base: String,
    shape: [usize; 2],
    grid: Grid,
    stream: Arc<CountedStream>,
    partial: PartialBytes,
}

impl DFloat11Encoder {
    fn changed(&self) -> AnamnesisError {
        AnamnesisError::parse(format!(
            "{}: its values are others than when the conversion was planned",
            InTensor(format_args!("{}.weight", self.base))
        ))
    }

    /// Encodes the exponents of a tile, the first of which is number `value`, to `out`. Returns
    /// where they begin.
    fn encode_tile(&self, value: u64, values: &[f32], out: &mut EncodedRun) -> Result<StreamPlace> {
        let places = &self.stream.places;
        let tile = places.partition_point(|place| place.value < value);
        let pair = places.get(tile..).and_then(<[_]>::first_chunk);
        let &[start, end] = pair.ok_or_else(|| self.changed())?;
        let mut place = start;
        let is_known =
            start.value == value && encode_exponents(&self.stream.code, values, &mut place, out);
        if !is_known || place != end {
            return Err(self.changed());
        }
        if tile + 2 == places.len() {
            end_stream(&self.stream.code, end, out);
        }
        Ok(start)
    }
}

impl Encode for DFloat11Encoder {
    fn stored(&self) -> Vec<StoredTensor> {
        let bytes = self.stream.bytes();
        let chunks = chunks(bytes);
        let u8s = |name: &str, shape: &[usize]| {
            stored_tensor(format!("{}.{name}", self.base), Dtype::U8, shape)
        };
        let gaps = chunks * CHUNK_RUNS * GAP_BITS / 8;
        vec![
            u8s("encoded_exponent", &[bytes as usize]),
            u8s("sign_mantissa", &self.shape),
            u8s("luts", &[self.stream.code.tables.len() / TABLE, TABLE]),
            u8s("output_positions", &[(chunks as usize + 1) * 4]),
            u8s("gaps", &[gaps as usize]),
            stored_tensor(format!("{}.split_positions", self.base), Dtype::I64, &[0]),
        ]
    }

    fn grid(&self) -> Grid {
        self.grid
    }

    fn takes_any_rows(&self) -> bool {
        false
    }

    fn encode(
        &self,
        values: &TileValues<'_>,
        buffers: &mut EncodeBuffers,
        back: &mut [f32],
        put: &mut Put<'_>,
    ) -> Result<()> {
        let [_, cols] = self.shape;
        let first = (values.tile.rows.start * cols) as u64;
        let EncodeBuffers { codes: rest, stream: out, .. } = buffers;
        let start = self.encode_tile(first, values.values, out)?;
        let codes = (Stored::Codes as usize, start.bit);
        self.partial.put(codes, &out.bytes, out.end, put)?;
        let gaps = start.run * GAP_BITS;
        let packed = pack_gaps(&out.gaps, (gaps % 8) as u32);
        let end = gaps + out.gaps.len() as u64 * GAP_BITS;
        self.partial
            .put((Stored::Gaps as usize, gaps), &packed, end, put)?;
        if !out.positions.is_empty() {
            let at = start.run.div_ceil(CHUNK_RUNS) * 4;
            let positions: Vec<_> = out.positions.iter().map(|p| p.to_le_bytes()).collect();
            put(Stored::Positions as usize, at, positions.as_bytes())?;
        }
        if values.tile.is_first() {
            put(Stored::Tables as usize, 0, &self.stream.code.tables)?;
        }
        rest.clear();
        rest.extend(values.values.iter().map(|x| {
            let bits = x.to_bits();
            (bits >> 24 & 0x80) as u8 | (bits >> 16 & 0x7f) as u8
        }));
        put(Stored::Rest as usize, first, rest)?;
        back.copy_from_slice(values.values);
        Ok(())
    }
}
