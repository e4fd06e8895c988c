//! Types of ggml for a size: each matrix gets one of a few types, so that the parts of all matrices
//! that are lost are least in sum.
//!
//! What an error of a matrix costs the model is not known without running it. Of six measures of it,
//! the larger of two came nearest: what part of its outputs is lost, and what part of its weights
//! (docs/benchmarks.md).

use std::collections::BTreeMap;
use std::sync::Arc;

use super::input_scales::sampled;
use super::layouts::decide_in_layouts;
use crate::convert::draft::byte_len;
use crate::convert::encode::dtype_of;
use crate::convert::options::ConvertOptions;
use crate::convert::report::Report;
use crate::lethe::{Decision, Forget, Imatrix, WeightInfo};
use crate::model::ParsedModel;
use crate::remember::{Resolution, ResolvedItem};
use crate::threads::map_numbers;
use crate::{AnamnesisError, Dtype, Result};

/// The types that a matrix may get. Rows that are not whole blocks of one get that which
/// `llama-quantize` falls back to.
const TYPES: [Dtype; 8] = [
    Dtype::Q2_K,
    Dtype::Q3_K,
    Dtype::IQ3_S,
    Dtype::IQ4_XS,
    Dtype::Q4_K,
    Dtype::Q5_K,
    Dtype::Q6_K,
    Dtype::Q8_0,
];

/// Halvings of the interval in which the price of a byte lies.
const STEPS: usize = 64;

/// What a matrix takes and loses in a type.
#[derive(Clone, Copy)]
struct Offer {
    dtype: Dtype,
    bytes: u64,
    /// What part of it is lost ([`SampledRows::loss`](crate::lethe::SampledRows::loss)).
    loss: f64,
}

/// What each matrix takes and loses in each type, and the sizes of what no type is chosen for.
struct Market {
    /// Name and offers of each matrix, by its number in the resolution.
    matrices: Vec<(String, Vec<Offer>)>,
    /// Weights of all that is encoded.
    weights: u64,
    /// Bytes of the rest of it.
    fixed: u64,
}

/// `forget` with the types of the matrices for which `bits` are asked, on average of all weights that
/// are encoded. Matrices without an entry in `imatrix`, and those that the caller names, have the type
/// that they have without.
///
/// # Errors
/// `Usage` if there are no such types; those of reading and of encoding.
pub(super) fn with_types_for(
    bits: f64,
    model: &ParsedModel,
    (resolution, transposed): (&mut Resolution<'_>, &[Option<[usize; 2]>]),
    (forget, imatrix): (&Forget, &Arc<Imatrix>),
    (options, report): (&ConvertOptions, &mut Report),
) -> Result<Forget> {
    let market = offers(model, (resolution, transposed), (forget, imatrix), options)?;
    let asked = bits * market.weights as f64 / 8.0 - market.fixed as f64;
    let Some(chosen) = cheapest(&market.matrices, asked) else {
        let least =
            |(_, offers): &(String, Vec<Offer>)| offers.iter().map(|offer| offer.bytes).min();
        let least: u64 = market.matrices.iter().filter_map(least).sum();
        let least = (least + market.fixed) as f64 * 8.0 / market.weights.max(1) as f64;
        let what = format!(
            "--bits {bits}: what is encoded takes at least {least:.2} bits a weight, with the smallest types of all matrices that have a choice"
        );
        return Err(AnamnesisError::usage(what));
    };
    let mut counts = BTreeMap::new();
    let mut types = forget.types.tensors.clone();
    let mut bytes = market.fixed;
    for ((name, _), offer) in market.matrices.into_iter().zip(chosen) {
        *counts.entry(offer.dtype.name()).or_insert(0) += 1;
        bytes += offer.bytes;
        types.push((name, offer.dtype));
    }
    let counts = counts.iter().map(|(dtype, n)| format!("{n} {dtype}"));
    let counts = counts.collect::<Vec<_>>().join(", ");
    let taken = bytes as f64 * 8.0 / market.weights.max(1) as f64;
    report.notes.push(format!(
        "types for {bits} bits a weight: {counts}; what is encoded takes {taken:.2}"
    ));
    let mut forget = forget.clone();
    (forget.types.tensors, forget.types.bits) = (types, None);
    Ok(forget)
}

/// What each matrix takes and loses in each type.
fn offers(
    model: &ParsedModel,
    (resolution, transposed): (&mut Resolution<'_>, &[Option<[usize; 2]>]),
    (forget, imatrix): (&Forget, &Arc<Imatrix>),
    options: &ConvertOptions,
) -> Result<Market> {
    let to = options.run.to;
    let mut decide = |forget: &Forget| {
        let parts = (to, &mut Report::new(to));
        decide_in_layouts(model, resolution, transposed, (forget, Some(imatrix)), parts)
    };
    let usual = decide(forget)?.0;
    let mut by_type = Vec::with_capacity(TYPES.len());
    for dtype in TYPES {
        let mut of_type = forget.clone();
        of_type.types.tensors.push(("*".to_owned(), dtype));
        by_type.push(decide(&of_type)?.0);
    }
    let items = &resolution.items;
    let of_item = |at: usize, (): &mut ()| {
        options.run.cancel.check()?;
        let mut offers = vec![];
        for (&dtype, choices) in TYPES.iter().zip(&by_type) {
            let Some(rows) = sampled(&items[at], &choices[at], imatrix)? else {
                return Ok(vec![]);
            };
            let loss = rows.loss(options.run.level)?;
            offers.push(Offer { dtype, bytes: size(&items[at], &choices[at], options)?, loss });
        }
        Ok(offers)
    };
    let found = map_numbers(items.len(), options.run.worker_threads(), of_item)?;
    let mut market = Market { matrices: vec![], weights: 0, fixed: 0 };
    for ((item, choice), offers) in items.iter().zip(&usual).zip(found) {
        if !matches!(choice, Decision::Encode { .. }) {
            continue;
        }
        // The caller names the type.
        let has_choice = offers.iter().any(|offer| offer.bytes != offers[0].bytes);
        market.weights += item.shape().iter().product::<usize>() as u64;
        match has_choice {
            true => market.matrices.push((item.name().to_owned(), offers)),
            false => market.fixed += size(item, choice, options)?,
        }
    }
    Ok(market)
}

/// Bytes of what `item` is encoded to.
fn size(item: &ResolvedItem<'_>, choice: &Decision, options: &ConvertOptions) -> Result<u64> {
    let Decision::Encode { method, .. } = choice else {
        return Ok(0);
    };
    let dtype = dtype_of(item, options.run.to);
    let weight = WeightInfo { name: item.name(), shape: item.shape(), dtype };
    let stored = method.encoder(&weight)?.stored();
    let sizes = stored.iter().map(|t| byte_len(&t.name, t.dtype, &t.shape));
    sizes.sum()
}

/// The offers, one of each matrix, that lose least in sum and take at most `bytes`; `None`: all take
/// more.
///
/// With a price for a byte each matrix takes the offer that costs least, and the lowest price at which
/// all fit is searched.
fn cheapest(matrices: &[(String, Vec<Offer>)], bytes: f64) -> Option<Vec<Offer>> {
    let at = |price: f64| {
        let cost = |offer: &Offer| offer.loss + price * offer.bytes as f64;
        let best = |(_, offers): &(String, Vec<Offer>)| {
            offers
                .iter()
                .copied()
                .min_by(|a, b| cost(a).total_cmp(&cost(b)))
        };
        let chosen: Vec<Offer> = matrices.iter().filter_map(best).collect();
        let taken: u64 = chosen.iter().map(|offer| offer.bytes).sum();
        (taken as f64 <= bytes).then_some(chosen)
    };
    let (mut low, mut high) = (1e-30f64, 1e30f64);
    let mut best = at(high)?;
    for _ in 0..STEPS {
        let price = (low * high).sqrt();
        match at(price) {
            Some(found) => (best, high) = (found, price),
            None => low = price,
        }
    }
    Some(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_other_choice_of_that_size_loses_less() {
        let offer = |bytes, loss| Offer { dtype: Dtype::Q4_K, bytes, loss };
        let matrices: Vec<_> = (1..=6)
            .map(|i| {
                let scale = f64::from(i * i);
                (
                    String::new(),
                    vec![offer(2, 9.0 * scale), offer(4, 2.0 * scale), offer(8, 0.1 * scale)],
                )
            })
            .collect();
        let total = |chosen: &[Offer]| {
            let bytes: u64 = chosen.iter().map(|offer| offer.bytes).sum();
            (bytes, chosen.iter().map(|offer| offer.loss).sum::<f64>())
        };
        assert!(cheapest(&matrices, 11.9).is_none());
        for bytes in 12..=48u32 {
            let chosen = cheapest(&matrices, f64::from(bytes)).unwrap();
            let (taken, loss) = total(&chosen);
            assert!(taken <= u64::from(bytes));
            // All choices of three offers, of the size that was taken or a smaller one.
            for all in 0..3usize.pow(6) {
                let pick = |i: usize| matrices[i].1[all / 3usize.pow(i as u32) % 3];
                let other: Vec<Offer> = (0..6).map(pick).collect();
                let (size, other) = total(&other);
                assert!(size > taken || other >= loss, "{bytes}: {taken} {loss} {size} {other}");
            }
        }
    }
}
