//! Relaying: where the stored codes and the wanted ones are of one family, codes are moved
//! undecoded. That loses nothing, where decoding and encoding again would round.

use std::sync::Arc;

use super::{Encoding, Scratch};
use crate::element::Out;
use crate::error::InTensor;
use crate::lethe::kernels::distance::{DistanceSums, compare};
use crate::lethe::{Encode, Put, RelayTarget};
use crate::remember::kernels::fp8::f32_from_e8m0;
use crate::remember::kernels::nvfp4::e2m1;
use crate::remember::{Buffers, CodeFamily, Decode, Grid, GroupCodes, RelaySource, Tile};
use crate::simd::Level;
use crate::{AnamnesisError, Result};

/// Whether the codes of a tensor are relayed. It is decided once, when the plan is made: tiles must
/// not differ, and the answer can take many reads.
pub(in crate::convert) enum RelayDecision {
    /// Codes are moved undecoded.
    Relay(Arc<RelaySource>),
    /// Codes of MXFP4 are moved to NVFP4 if the survey finds that its scales hold all exponents.
    AfterSurvey(Arc<RelaySource>),
    /// Both sides have codes of the same kind, and yet the values are decoded and encoded, for this
    /// reason.
    Hindered(String),
    /// The two sides have no codes in common: values are decoded and encoded.
    Unrelated,
}

impl RelayDecision {
    /// Decides for a tensor that `decoder` and `encoder` cut as `from` and `to`.
    ///
    /// # Errors
    /// The decoder cannot read what it decides by. The error names the tensor.
    pub(super) fn new(
        decoder: &dyn Decode,
        encoder: &dyn Encode,
        (from, to): (&Grid, &Grid),
    ) -> Result<Self> {
        // A tile of one side is a tile of the other only if rows are the same: groups are runs of a
        // row.
        let has_same_rows = (from.rows, from.cols) == (to.rows, to.cols);
        // The encoder goes first, since only the decoder may have to read for its answer.
        let Some(RelayTarget { family: to, .. }) = encoder.relay().filter(|_| has_same_rows) else {
            return Ok(Self::Unrelated);
        };
        let Some(source) = decoder.find_relay()? else {
            return Ok(Self::Unrelated);
        };
        let fits = source.family.fits(to);
        let source = Arc::new(source);
        Ok(match fits {
            Some(Ok(())) if to == CodeFamily::Nvfp4 => Self::AfterSurvey(source),
            Some(Ok(())) => Self::Relay(source),
            Some(Err(reason)) => Self::Hindered(reason),
            None => Self::Unrelated,
        })
    }
}

/// The exponents of the blocks of MXFP4 in a tensor, or in a part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ExponentRange {
    /// The largest, of blocks of zeros, too; 0 stands for a block of zeros alone.
    top: u8,
    /// The smallest of a block that has a value beside zero.
    least: u8,
}

impl Default for ExponentRange {
    fn default() -> Self {
        Self { top: 0, least: u8::MAX }
    }
}

impl ExponentRange {
    /// That of a tensor whose codes cannot move.
    pub(super) const NONE_FIT: Self = Self { top: u8::MAX, least: 0 };

    /// The exponents in `codes`, and the largest magnitude of the values. `None` if one is not
    /// finite.
    pub(super) fn of(codes: &GroupCodes) -> Option<(Self, f32)> {
        let (mut range, mut max_abs) = (Self::default(), 0f32);
        let size = codes.codes.len() / codes.exponents.len().max(1);
        for (&exponent, block) in codes.exponents.iter().zip(codes.codes.chunks(size.max(1))) {
            if exponent == u8::MAX {
                return None;
            }
            let largest = block.iter().map(|code| code & 7).max().unwrap_or(0);
            range.top = range.top.max(exponent);
            if largest > 0 {
                range.least = range.least.min(exponent);
            }
            // Exact: a code has two significant bits.
            max_abs = max_abs.max(E2M1[usize::from(largest)] * f32_from_e8m0(exponent));
        }
        Some((range, max_abs))
    }

    pub(super) fn add(&mut self, other: Self) {
        self.top = self.top.max(other.top);
        self.least = self.least.min(other.least);
    }

    /// The largest exponent, if scales of NVFP4 hold all: with 2^(top − 8) as the scale of the tensor,
    /// those of blocks are 2^8 to 2^-9, which are all powers of two in E4M3. Smaller tensor scales
    /// have no reciprocal in F32.
    ///
    /// Source: ModelOpt 0.47.0 `modelopt/torch/quantization/utils/numeric_utils.py`
    /// (`mxfp4_to_nvfp4_global_amax`).
    pub(super) fn top_of_nvfp4(self) -> Option<u8> {
        let fits = (8..u8::MAX).contains(&self.top) && self.top - self.least.min(self.top) <= 17;
        fits.then_some(self.top)
    }
}

const E2M1: [f32; 16] = e2m1(false);

impl Encoding<'_> {
    /// Moves the codes of tile number `no` from `source` to `target`, whose tiles have whole
    /// groups. `top` is the largest exponent of the tensor, if the target stores it.
    ///
    /// # Errors
    /// Reading or storing fails, or a group has another value in the target's family.
    pub(super) fn relay_tile(
        &self,
        (no, tile): (usize, &Tile),
        (source, target, top): (&RelaySource, &RelayTarget<'_>, u8),
        buffers: &mut Buffers,
        scratch: &mut Scratch,
        level: Level,
        put: &mut Put<'_>,
    ) -> Result<()> {
        let (Scratch { values, codes, .. }, decoder) = (scratch, &*self.input.decoder);
        decoder.load(tile, buffers)?;
        let size = [tile.rows.len(), tile.cols.len()];
        source.codes.extract(size, buffers, codes);
        codes.cut_groups(source.family.groups_of(target.family));
        codes.top_exponent = top;
        if let Some((group, what)) = source.family.first_difference(target.family, codes) {
            let per_row = (codes.exponents.len() / tile.rows.len()).max(1);
            let row = tile.rows.start + group / per_row;
            let what = format!("{}, row {row}: {what}", InTensor(&self.input.name));
            return Err(AnamnesisError::unsupported(&self.scheme, what));
        }
        // The report sets errors against the norm of all values. Relayed values have no error, but
        // belong to the norm.
        values.resize(tile.values(), 0.0);
        decoder.decode(tile, tile.rows.clone(), buffers, level, Out::F32(values));
        let mut sums = compare(values, values, level);
        // The codes of infinity and NaN are moved as well: both libraries decode them alike. But
        // one such value would make the norm of the model infinite, so the tile is only counted.
        if !sums.is_finite() {
            sums = DistanceSums { count: values.len() as u64, ..DistanceSums::default() };
        }
        target.codes.store_codes(tile, codes, level, put)?;
        self.distance.add(no, sums);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::lethe::{EncodeBuffers, StoreCodes, StoredTensor, TileValues};
    use crate::remember::TopExponent;
    use crate::remember::seam::ExtractCodes;
    use crate::{Dtype, TargetDtype};

    const SIZE: usize = 1024;
    const FAMILY: CodeFamily = CodeFamily::Mxfp4 { top: TopExponent::Infinity };
    const GRID: Grid = Grid {
        rows: SIZE,
        cols: SIZE,
        row_align: 1,
        col_align: 32,
        load_bits: 8.0,
        transposed: None,
    };

    /// A decoder of ones that counts how often it is asked for a relay, and how many tiles are
    /// extracted.
    struct Source {
        asked: Arc<AtomicUsize>,
        extracted: Arc<AtomicUsize>,
        is_readable: bool,
    }

    struct Codes(Arc<AtomicUsize>);

    impl ExtractCodes for Codes {
        fn extract(&self, [rows, cols]: [usize; 2], _: &Buffers, out: &mut GroupCodes) {
            self.0.fetch_add(1, Ordering::Relaxed);
            out.codes = vec![2; rows * cols];
            out.exponents = vec![127; rows * cols / 32];
        }
    }

    impl Decode for Source {
        fn grid(&self) -> Grid {
            GRID
        }

        fn read(&self, _: &Tile, _: &mut Buffers) -> Result<()> {
            Ok(())
        }

        fn decode(&self, _: &Tile, _: Range<usize>, _: &Buffers, _: Level, out: Out<'_>) {
            if let Out::F32(values) = out {
                values.fill(1.0);
            }
        }

        fn find_relay(&self) -> Result<Option<RelaySource>> {
            self.asked.fetch_add(1, Ordering::Relaxed);
            if !self.is_readable {
                return Err(AnamnesisError::parse("tensor `g_idx`: cannot be read"));
            }
            Ok(Some(RelaySource::new(FAMILY, Codes(self.extracted.clone()))))
        }
    }

    /// An encoder that stores relayed codes, and can do nothing else.
    struct Target {
        family: Option<CodeFamily>,
    }

    impl Encode for Target {
        fn stored(&self) -> Vec<StoredTensor> {
            let (name, shape) = ("codes".to_owned(), vec![SIZE, SIZE]);
            let dtype = Dtype::U8;
            vec![StoredTensor { name, dtype, shape }]
        }

        fn grid(&self) -> Grid {
            GRID
        }

        fn encode(
            &self,
            _: &TileValues<'_>,
            _: &mut EncodeBuffers,
            _: &mut [f32],
            _: &mut Put<'_>,
        ) -> Result<()> {
            Err(AnamnesisError::parse("values are encoded"))
        }

        fn relay(&self) -> Option<RelayTarget<'_>> {
            let codes = self;
            self.family.map(|family| RelayTarget { family, codes })
        }
    }

    impl StoreCodes for Target {
        fn store_codes(
            &self,
            tile: &Tile,
            codes: &mut GroupCodes,
            _: Level,
            put: &mut Put<'_>,
        ) -> Result<()> {
            put(0, (tile.rows.start * SIZE) as u64, &codes.codes)
        }
    }

    fn encoding(
        family: Option<CodeFamily>,
        is_readable: bool,
    ) -> (Result<Encoding<'static>>, [Arc<AtomicUsize>; 2]) {
        let counts = [Arc::default(), Arc::default()];
        let [asked, extracted] = counts.clone();
        let decoder = Box::new(Source { asked, extracted, is_readable });
        let encoder: Box<dyn Encode> = Box::new(Target { family });
        let (name, shape, scheme) = ("a".to_owned(), vec![SIZE, SIZE], "x".to_owned());
        let dtype = TargetDtype::F32;
        let encoding = Encoding::new(name, shape, scheme, (encoder, None), decoder, dtype);
        (encoding, counts)
    }

    #[test]
    fn a_decoder_is_asked_once_and_every_tile_is_relayed() {
        let (encoding, [asked, extracted]) = encoding(Some(FAMILY), true);
        let encoding = encoding.unwrap();
        let (mut buffers, mut scratch) = (Buffers::default(), Scratch::default());
        let tiles = encoding.input.cut.tiles();
        let mut written = 0;
        for no in 0..tiles {
            let mut put = |_, _, bytes: &[u8]| {
                written += bytes.iter().filter(|&&code| code == 2).count();
                Ok(())
            };
            let level = Level::detect();
            encoding
                .encode_tile(
                    (no, None),
                    Default::default(),
                    &mut buffers,
                    &mut scratch,
                    level,
                    &mut put,
                )
                .unwrap();
        }
        assert!(tiles > 1);
        assert_eq!(written, SIZE * SIZE);
        assert_eq!(asked.load(Ordering::Relaxed), 1);
        assert_eq!(extracted.load(Ordering::Relaxed), tiles);
    }

    #[test]
    fn an_error_while_deciding_is_an_error_of_the_plan() {
        let error = encoding(Some(FAMILY), false).0.err().unwrap().to_string();
        assert!(error.contains("`g_idx`"), "{error}");
    }

    #[test]
    fn a_decoder_is_not_asked_if_nothing_could_be_relayed() {
        let (encoding, [asked, _]) = encoding(None, false);
        assert!(matches!(encoding.unwrap().relay, RelayDecision::Unrelated));
        assert_eq!(asked.load(Ordering::Relaxed), 0);
    }
}
