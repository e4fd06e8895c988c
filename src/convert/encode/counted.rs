//! Counts exponents of tensors whose encoded size depends on their values. This reads them while
//! planning, for the plan has the size of every output tensor.

use std::sync::Arc;

use super::Scratch;
use super::input::{EncodeInput, dtype_of};
use super::tiles;
use crate::Result;
use crate::convert::options::RememberOptions;
use crate::lethe::{Decision, ExponentTile, WeightInfo};
use crate::remember::{Buffers, Resolution};
use crate::threads::map_numbers;

/// Counts the exponents of all items whose method asks for it, and gives each the method that
/// follows.
///
/// # Errors
/// Reading fails, or the options' token is set.
pub(in crate::convert) fn count_exponents(
    choices: &mut [Decision],
    resolution: &Resolution<'_>,
    options: &RememberOptions,
) -> Result<()> {
    for (choice, item) in choices.iter_mut().zip(&resolution.items) {
        let Decision::Encode { method, label, .. } = choice else {
            continue;
        };
        let dtype = dtype_of(item, options.to);
        let plain = item.plain_floats();
        let Some(decoder) = item.decoder(plain.as_ref()) else {
            continue;
        };
        let weight = WeightInfo { name: item.name(), shape: item.shape(), dtype };
        let Some(grid) = method.counting_grid(&weight) else {
            continue;
        };
        let cut = tiles::cut(&grid, 1, &decoder.grid(), tiles::TILE_VALUES);
        let input = EncodeInput {
            maxima: Arc::default(),
            name: item.name().to_owned(),
            strips: None,
            cut,
            decoder: Arc::new(decoder),
            dtype,
            relayed: None,
        };
        *choice = match method.with_exponents(&count(&input, options)?) {
            Some(Ok(method)) => {
                let label = std::mem::take(label);
                Decision::Encode { method, label, importance: None, columns: None }
            }
            Some(Err(reason)) => Decision::Keep(reason),
            None => continue,
        };
    }
    Ok(())
}

/// The exponents of all tiles of `input`, in their order.
///
/// # Errors
/// The first that a single thread would have met.
fn count(input: &EncodeInput<'_>, options: &RememberOptions) -> Result<Vec<ExponentTile>> {
    let work = |tile, (buffers, scratch): &mut (Buffers, Scratch)| {
        options.cancel.check()?;
        count_tile(input, tile, buffers, scratch, options)
    };
    map_numbers(input.cut.tiles(), options.worker_threads(), work)
}

fn count_tile(
    input: &EncodeInput<'_>,
    tile: usize,
    buffers: &mut Buffers,
    scratch: &mut Scratch,
    options: &RememberOptions,
) -> Result<ExponentTile> {
    input.decode_values(&input.cut.tile(tile), buffers, scratch, options.level)?;
    Ok(ExponentTile::of(&scratch.values))
}
