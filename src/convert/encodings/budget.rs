//! Types or schemes for a size: each matrix gets one of a few, so that the parts of all matrices that
//! are lost are least in sum.
//!
//! What an error of a matrix costs the model is not known without running it. Of six measures of it,
//! the larger of two came nearest: what part of its outputs is lost, and what part of its weights. A
//! larger matrix counts more, by a power of the number of its weights (docs/benchmarks.md).

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use super::input_scales::{encoder_of_rows, sampled};
use super::layouts::decide_in_layouts;
use crate::convert::draft::byte_len;
use crate::convert::encode::dtype_of;
use crate::convert::options::ConvertOptions;
use crate::convert::report::Report;
use crate::lethe::{Decision, Forget, Imatrix, WeightInfo, choices, of_one_scheme};
use crate::model::ParsedModel;
use crate::remember::{Resolution, ResolvedItem};
use crate::threads::map_numbers;
use crate::{AnamnesisError, ConvertTarget, Dtype, Result};

/// The types that a matrix of a GGUF file may get. Rows that are not whole blocks of one get that
/// which `llama-quantize` falls back to.
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

/// The power of the number of weights that a matrix counts by, with types of ggml and with others. Of
/// those that were measured, no model lost more than with one type for all.
const POWER_OF_GGML: f64 = 0.25;
const POWER: f64 = 0.5;

/// Halvings of the interval in which the price of a byte lies.
const STEPS: usize = 64;

/// What matrices take and lose in one type.
#[derive(Clone, Copy, Debug, Default)]
struct Offer {
    /// The place of the type among those that may be chosen.
    kind: usize,
    bytes: u64,
    /// What part of them is lost ([`SampledRows::loss`](crate::lethe::SampledRows::loss)), by their
    /// sizes.
    loss: f64,
}

/// Matrices that get the same type, and what they take and lose in each.
#[derive(Default)]
struct Lot {
    names: Vec<String>,
    offers: Vec<Offer>,
}

/// What there is to choose, and the sizes of what no type is chosen for.
#[derive(Default)]
struct Market {
    lots: Vec<Lot>,
    /// Weights of all that is encoded.
    weights: u64,
    /// Bytes of what is encoded and has no choice.
    fixed: u64,
    /// Bytes of what stays as it is.
    kept: u64,
}

impl Market {
    /// Bytes that what has a choice may take.
    fn asked(&self, forget: &Forget) -> f64 {
        match (forget.bits, forget.size) {
            // A whole number, so that the bits of a model of one type give that model.
            (Some(bits), _) => (bits * self.weights as f64 / 8.0).round() - self.fixed as f64,
            (None, size) => size.unwrap_or(0) as f64 - (self.fixed + self.kept) as f64,
        }
    }

    /// `bytes` and all that is encoded and has no choice, in what the caller asks for.
    fn taken(&self, bytes: u64, forget: &Forget) -> String {
        match forget.bits {
            Some(_) => {
                let bits = (bytes + self.fixed) as f64 * 8.0 / self.weights.max(1) as f64;
                format!("what is encoded takes {bits:.2} bits a weight")
            }
            None => {
                let all = bytes + self.fixed + self.kept;
                format!("all tensors take {all} bytes")
            }
        }
    }
}

/// `forget` with the types of the matrices for which a size is asked. What the caller names, and what
/// an importance matrix says nothing of, has the type that it has without.
///
/// # Errors
/// `Usage` if there are no such types; those of reading and of encoding.
pub(super) fn with_types_for(
    model: &ParsedModel,
    (resolution, transposed): (&mut Resolution<'_>, &[Option<[usize; 2]>]),
    (forget, imatrix): (&Forget, Option<&Arc<Imatrix>>),
    (options, report): (&ConvertOptions, &mut Report),
) -> Result<Forget> {
    let kinds: Vec<&str> = match forget.scheme.is_gguf() {
        true => TYPES.map(Dtype::name).to_vec(),
        false => choices(&forget.scheme)?.to_vec(),
    };
    let ways = (forget, imatrix, &*kinds);
    let market = offers(model, (resolution, transposed), ways, options)?;
    let asked = match (forget.bits, forget.size) {
        (Some(bits), _) => format!("--bits {bits}"),
        (None, size) => format!("--size {}", size.unwrap_or(0)),
    };
    let Some(chosen) = cheapest(&market.lots, market.asked(forget)) else {
        let least = |lot: &Lot| lot.offers.iter().map(|offer| offer.bytes).min();
        let least = market.taken(market.lots.iter().filter_map(least).sum(), forget);
        let what = format!("{asked}: {least} with the smallest types of all that has a choice");
        return Err(AnamnesisError::usage(what));
    };
    let mut counts = BTreeMap::new();
    let mut with_types = forget.clone();
    (with_types.bits, with_types.size) = (None, None);
    for (lot, offer) in market.lots.iter().zip(&chosen) {
        let kind = kinds[offer.kind];
        *counts.entry(kind).or_insert(0) += lot.names.len();
        for name in &lot.names {
            with_types.give(name, kind)?;
        }
    }
    let counts = counts.iter().map(|(kind, n)| format!("{n} {kind}"));
    let counts = counts.collect::<Vec<_>>().join(", ");
    let taken = market.taken(chosen.iter().map(|offer| offer.bytes).sum(), forget);
    report
        .notes
        .push(format!("{asked}: types for it: {counts}; {taken}"));
    Ok(with_types)
}

/// What all matrices take and lose in each of `kinds`.
fn offers(
    model: &ParsedModel,
    (resolution, transposed): (&mut Resolution<'_>, &[Option<[usize; 2]>]),
    (forget, imatrix, kinds): (&Forget, Option<&Arc<Imatrix>>, &[&str]),
    options: &ConvertOptions,
) -> Result<Market> {
    let to = options.run.to;
    let mut decide = |forget: &Forget| {
        let parts = (to, &mut Report::new(to));
        decide_in_layouts(model, resolution, transposed, (forget, imatrix), parts)
    };
    let usual = decide(forget)?.0;
    let mut by_kind = Vec::with_capacity(kinds.len());
    for kind in kinds {
        let mut of_kind = forget.clone();
        of_kind.give("*", kind)?;
        by_kind.push(decide(&of_kind)?.0);
    }
    let items = &resolution.items;
    let searches = forget.weighs_search();
    let power = match forget.scheme.is_gguf() {
        true => POWER_OF_GGML,
        false => POWER,
    };
    let weight = |item: &ResolvedItem<'_>| {
        let values = item.shape().iter().product::<usize>() as f64;
        values.powf(power)
    };
    let of_item = |at: usize, (): &mut ()| {
        options.run.cancel.check()?;
        let (item, none) = (&items[at], vec![]);
        if !matches!(usual[at], Decision::Encode { .. }) {
            return Ok(none);
        }
        let Some(rows) = sampled(item, imatrix.map(|imatrix| &**imatrix))? else {
            return Ok(none);
        };
        let mut offers = vec![];
        for (kind, choices) in by_kind.iter().enumerate() {
            let Some(encoder) = encoder_of_rows(item, &choices[at], &rows)? else {
                return Ok(none);
            };
            let loss = weight(item) * rows.loss((&*encoder, searches), options.run.level)?;
            offers.push(Offer { kind, bytes: size(item, &choices[at], options)?, loss });
        }
        Ok(offers)
    };
    let found = map_numbers(items.len(), options.run.worker_threads(), of_item)?;
    let mut market = Market::default();
    let is_fused = !forget.scheme.is_gguf() && !options.makes_mlx();
    let mut lots: BTreeMap<_, Vec<(&str, Vec<Offer>)>> = BTreeMap::new();
    for ((item, choice), offers) in items.iter().zip(&usual).zip(found) {
        let weights = item.shape().iter().product::<usize>() as u64;
        if !matches!(choice, Decision::Encode { .. }) {
            market.kept += kept_bytes(item, weights, options);
            continue;
        }
        market.weights += weights;
        // The caller names the type, or the class does.
        let has_choice = offers.iter().any(|offer| offer.bytes != offers[0].bytes);
        if !has_choice {
            market.fixed += size(item, choice, options)?;
            continue;
        }
        let lot = of_one_scheme(item.name()).filter(|_| is_fused);
        let lot = lot.unwrap_or((item.name(), None));
        lots.entry(lot).or_default().push((item.name(), offers));
    }
    market.lots = lots.into_values().map(|members| lot(&members)).collect();
    Ok(market)
}

/// The offers of all `members` together. Of experts, only some are computed for a token: all together
/// count as one.
fn lot(members: &[(&str, Vec<Offer>)]) -> Lot {
    let last = |name: &str| {
        name.trim_end_matches(".weight")
            .rsplit('.')
            .next()
            .map(str::to_owned)
    };
    let matrices: HashSet<_> = members.iter().map(|(name, _)| last(name)).collect();
    let part = matrices.len() as f64 / members.len().max(1) as f64;
    let mut lot = Lot::default();
    for (name, offers) in members {
        lot.names.push((*name).to_owned());
        lot.offers.resize(offers.len(), Offer::default());
        for (sum, offer) in lot.offers.iter_mut().zip(offers) {
            let (bytes, loss) = (sum.bytes + offer.bytes, sum.loss + offer.loss * part);
            *sum = Offer { kind: offer.kind, bytes, loss };
        }
    }
    lot
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

/// Bytes of `item` if it stays: those of its values, or its own. Vectors of GGUF are F32.
fn kept_bytes(item: &ResolvedItem<'_>, values: u64, options: &ConvertOptions) -> u64 {
    let is_widened = options.target == ConvertTarget::Gguf && item.shape().len() < 2;
    match item {
        _ if is_widened => values * 4,
        ResolvedItem::Plain(t) => t.stored.info().len,
        ResolvedItem::Group(_) => values * dtype_of(item, options.run.to).dtype().bits() as u64 / 8,
    }
}

/// The offers, one of each lot, that lose little in sum and take at most `bytes`; `None`: all take
/// more.
///
/// With a price for a byte each lot takes the offer that costs least, and the lowest price at which
/// all fit is searched. What that leaves is spent where it lowers the loss most. Nothing loses more than
/// one type for all that fits.
fn cheapest(lots: &[Lot], bytes: f64) -> Option<Vec<Offer>> {
    let taken = |chosen: &[Offer]| chosen.iter().map(|offer| offer.bytes).sum::<u64>() as f64;
    let fits = |chosen: &Vec<Offer>| taken(chosen) <= bytes;
    let at = |price: f64| {
        let cost = |offer: &Offer| offer.loss + price * offer.bytes as f64;
        let best = |lot: &Lot| {
            let offers = lot.offers.iter().copied();
            offers.min_by(|a, b| cost(a).total_cmp(&cost(b)))
        };
        let chosen: Vec<Offer> = lots.iter().filter_map(best).collect();
        fits(&chosen).then_some(chosen)
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
    let kinds = lots.first().map_or(0, |lot| lot.offers.len());
    let of_kind = |kind: usize| lots.iter().map(move |lot| lot.offers.get(kind).copied());
    let uniform = (0..kinds).filter_map(|kind| of_kind(kind).collect::<Option<Vec<_>>>());
    let all = std::iter::once(best).chain(uniform.filter(fits));
    let all = all.map(|mut chosen| {
        let left = bytes - taken(&chosen);
        spend(lots, &mut chosen, left);
        chosen
    });
    let loss = |chosen: &[Offer]| chosen.iter().map(|offer| offer.loss).sum::<f64>();
    all.min_by(|a, b| loss(a).total_cmp(&loss(b)))
}

/// Takes better offers for `left` bytes, those first that lower the loss most for a byte.
fn spend(lots: &[Lot], chosen: &mut [Offer], mut left: f64) {
    let mut better = vec![];
    for (at, (lot, now)) in lots.iter().zip(&*chosen).enumerate() {
        for offer in &lot.offers {
            let (more, gain) = (offer.bytes as f64 - now.bytes as f64, now.loss - offer.loss);
            if more > 0.0 && gain > 0.0 {
                better.push((gain / more, at, *offer));
            }
        }
    }
    better.sort_by(|a, b| b.0.total_cmp(&a.0));
    for (_, at, offer) in better {
        let more = offer.bytes as f64 - chosen[at].bytes as f64;
        if more <= left && offer.loss < chosen[at].loss {
            left -= more;
            chosen[at] = offer;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_other_choice_of_that_size_loses_less() {
        let offer = |bytes, loss| Offer { kind: 0, bytes, loss };
        let lots: Vec<Lot> = (1..=6)
            .map(|i| {
                let scale = f64::from(i * i);
                let offers = [offer(2, 9.0 * scale), offer(4, 2.0 * scale), offer(8, 0.1 * scale)];
                Lot { names: vec![], offers: offers.to_vec() }
            })
            .collect();
        let total = |chosen: &[Offer]| {
            let bytes: u64 = chosen.iter().map(|offer| offer.bytes).sum();
            (bytes, chosen.iter().map(|offer| offer.loss).sum::<f64>())
        };
        assert!(cheapest(&lots, 11.9).is_none());
        for bytes in 12..=48u32 {
            let chosen = cheapest(&lots, f64::from(bytes)).unwrap();
            let (taken, loss) = total(&chosen);
            assert!(taken <= u64::from(bytes));
            // All choices of three offers, of the size that was taken or a smaller one.
            for all in 0..3usize.pow(6) {
                let pick = |i: usize| lots[i].offers[all / 3usize.pow(i as u32) % 3];
                let other: Vec<Offer> = (0..6).map(pick).collect();
                let (size, other) = total(&other);
                assert!(size > taken || other >= loss, "{bytes}: {taken} {loss} {size} {other}");
            }
        }
    }
}
