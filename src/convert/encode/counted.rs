//! Counts exponents of tensors whose encoded size depends on their values. This reads them while
//! planning, for the plan has the size of every output tensor.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::Scratch;
use super::input::{EncodeInput, dtype_of};
use super::tiles;
use crate::Result;
use crate::convert::options::RememberOptions;
use crate::lethe::{Decision, ExponentTile, WeightInfo};
use crate::remember::{Buffers, Decode, PlainFloats, Resolution, ResolvedItem};
use crate::threads::on_threads;

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
        let (shape, plain);
        let decoder: &dyn Decode = match item {
            ResolvedItem::Group(group) => {
                shape = &*group.shape;
                &*group.decoder
            }
            ResolvedItem::Plain(t) => {
                shape = t.stored.shape();
                plain = PlainFloats::of(&t.stored);
                match &plain {
                    Some(plain) => plain,
                    None => continue,
                }
            }
        };
        let weight = WeightInfo { name: item.name(), shape, dtype };
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
                Decision::Encode { method, label, importance: None }
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
    let tiles = input.cut.tiles();
    let (next, counted) = (AtomicUsize::new(0), Mutex::new(Vec::with_capacity(tiles)));
    let work = |_| {
        let (mut buffers, mut scratch) = (Buffers::default(), Scratch::default());
        loop {
            let tile = next.fetch_add(1, Ordering::Relaxed);
            if tile >= tiles {
                return;
            }
            let found = options
                .cancel
                .check()
                .and_then(|()| count_tile(input, tile, &mut buffers, &mut scratch, options));
            // No tile behind a failed one is begun; those before it have been.
            if found.is_err() {
                next.store(tiles, Ordering::Relaxed);
            }
            let mut counted = counted.lock().unwrap_or_else(PoisonError::into_inner);
            counted.push((tile, found));
        }
    };
    on_threads(options.worker_threads().min(tiles), work);
    let mut counted = counted.into_inner().unwrap_or_else(PoisonError::into_inner);
    counted.sort_unstable_by_key(|(tile, _)| *tile);
    counted.into_iter().map(|(_, found)| found).collect()
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
