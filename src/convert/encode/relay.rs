//! Relaying: where the stored codes and the wanted ones are of one family, codes are moved undecoded. That loses nothing,
//! where decoding and encoding again would round.

use super::{Encoding, Scratch};
use crate::element::Out;
use crate::forget::{Encode, Put, RelayTarget};
use crate::kernels::lethe::distance::{Sums, compare, first_not_finite};
use crate::scheme::{Buffers, Decode, Grid, RelaySource, Tile};
use crate::simd::Level;
use crate::{AnamnesisError, Result};

/// Whether the codes of a tensor are relayed. It is decided once, when the plan is made: tiles must not differ, and the
/// answer can take many reads.
pub(in crate::convert) enum RelayDecision {
    /// Codes are moved undecoded.
    Relay(RelaySource),
    /// Both sides have codes of the same kind, and yet the values are decoded and encoded, for this reason.
    Hindered(String),
    /// The two sides have no codes in common. Values are decoded and encoded.
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
        // A tile of one side is a tile of the other only if rows are the same: groups are runs of a row.
        let has_same_rows = (from.rows, from.cols) == (to.rows, to.cols);
        // The encoder goes first, since only the decoder may have to read for its answer.
        let Some(RelayTarget { family: to, .. }) = encoder.relay().filter(|_| has_same_rows) else {
            return Ok(Self::Unrelated);
        };
        let Some(source) = decoder.find_relay()? else {
            return Ok(Self::Unrelated);
        };
        Ok(match source.family.fits(to) {
            Some(Ok(())) => Self::Relay(source),
            Some(Err(reason)) => Self::Hindered(reason),
            None => Self::Unrelated,
        })
    }
}

impl Encoding<'_> {
    /// Moves the codes of tile number `no` from `source` to `target`, whose tiles have whole groups.
    ///
    /// # Errors
    /// Reading or storing fails, or a group has another value in the target's family.
    pub(super) fn relay_tile(
        &self,
        (no, tile): (usize, &Tile),
        (source, target): (&RelaySource, &RelayTarget<'_>),
        buffers: &mut Buffers,
        scratch: &mut Scratch,
        level: Level,
        put: &mut Put<'_>,
    ) -> Result<()> {
        let (Scratch { values, codes, .. }, decoder) = (scratch, &*self.input.decoder);
        decoder.load(tile, buffers)?;
        let size = [tile.rows.len(), tile.cols.len()];
        source.codes.extract(size, buffers, codes);
        if let Some((group, what)) = source.family.first_difference(target.family, codes) {
            let per_row = (codes.exponents.len() / tile.rows.len()).max(1);
            let row = tile.rows.start + group / per_row;
            let what = format!("tensor `{}`, row {row}: {what}", self.input.name);
            return Err(AnamnesisError::unsupported(&self.scheme, what));
        }
        // The report sets errors against the norm of all values. Relayed values have no error, but belong to the norm.
        values.resize(tile.values(), 0.0);
        decoder.decode(tile, tile.rows.clone(), buffers, level, Out::F32(values));
        let sums = match first_not_finite(values) {
            // The codes are moved even so: both libraries decode them alike. But one such value would make the norm of
            // the model infinite, so the tile is only counted.
            Some(_) => Sums {
                count: values.len() as u64,
                ..Sums::default()
            },
            None => compare(values, values, level),
        };
        target.codes.store_codes(tile, codes, level, put)?;
        self.distance.add(no, sums);
        Ok(())
    }
}
