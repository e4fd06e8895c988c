//! Layers that come back every so often: those with attention, and those with experts, as of Jamba.
//!
//! Source: `JambaConfig` of transformers 4.57.6; `JambaModel.modify_tensors` in
//! `conversion/jamba.py` of llama.cpp.

use serde_json::{Map, Value};

use super::dims::{EXPERTS, HIDDEN, LAYERS, MOST_LAYERS};
use super::fields::{Fields, LAYER_KINDS, wrong};
use super::settings::wrong_key;
use super::table::Periods;
use crate::Result;

/// Period and first layer that the fields `[period, first]` say.
///
/// # Errors
/// `Parse` if one is missing, or the first layer is not in the first period.
pub(in crate::families) fn period_of(
    fields: &Fields,
    [period, first]: [&str; 2],
) -> Result<(usize, usize)> {
    let (every, at) = (fields.need(&[period])?, fields.need(&[first])?);
    match at < every {
        true => Ok((every as usize, at as usize)),
        false => Err(wrong(first, format_args!("it is {at}, and {period} is {every}"))),
    }
}

/// Adds `layer_types`, and the rank of time steps if the config leaves it open.
///
/// # Errors
/// As [`period_of`].
pub(in crate::families) fn complete(fields: &mut Fields, periods: &Periods) -> Result<()> {
    let (every, first) = period_of(fields, periods.attention)?;
    let [attending, other] = periods.kinds;
    let kind = |layer: usize| {
        if layer % every == first {
            attending
        } else {
            other
        }
    };
    let layers = fields.need(LAYERS)? as usize;
    let kinds: Value = (0..layers.min(MOST_LAYERS as usize)).map(kind).collect();
    if let Some(stated) = fields.0.get(LAYER_KINDS).filter(|stated| **stated != kinds) {
        let what = format!("it is {stated}, and {} says otherwise", periods.attention[0]);
        return Err(wrong(LAYER_KINDS, what));
    }
    fields.0.insert(LAYER_KINDS.to_owned(), kinds);
    if fields.0.get(periods.rank).is_none_or(|rank| rank == "auto") {
        let rank = fields.need(HIDDEN)?.div_ceil(16);
        fields.0.insert(periods.rank.to_owned(), rank.into());
    }
    Ok(())
}

/// Puts the fields of periods in the place of `layer_types`, of a model in whose GGUF file
/// `has_experts` tells which layers have experts.
///
/// # Errors
/// `Parse` if these layers do not come back every so often.
pub(in crate::families) fn restore(
    config: &mut Map<String, Value>,
    periods: &Periods,
    has_experts: impl Fn(usize) -> bool,
) -> Result<()> {
    let kinds = config.get(LAYER_KINDS).and_then(Value::as_array);
    let kinds = kinds.map(Vec::as_slice).unwrap_or_default();
    let attending: Vec<_> = kinds.iter().map(|kind| kind == periods.kinds[0]).collect();
    let sparse: Vec<_> = (0..kinds.len()).map(has_experts).collect();
    let found = [
        (attending, periods.attention, "attention.head_count_kv"),
        (sparse, periods.experts, EXPERTS[1]),
    ];
    for (layers, [period, first], what) in found {
        let irregular = || wrong_key(what, "its layers do not come back every so often");
        let (every, at) = regular(&layers).ok_or_else(irregular)?;
        config.insert(period.to_owned(), every.into());
        config.insert(first.to_owned(), at.into());
    }
    Ok(())
}

/// Period and first of the layers that are marked. Of a single one, the period is the number of
/// layers; of none, the first one would be behind the last layer.
fn regular(layers: &[bool]) -> Option<(usize, usize)> {
    let mut marked = (0..layers.len()).filter(|layer| layers[*layer]);
    let Some(first) = marked.next() else {
        return Some((layers.len() + 1, layers.len()));
    };
    let every = marked.next().map_or(layers.len(), |second| second - first);
    let is_so = |(layer, is_marked): (usize, &bool)| (layer % every == first) == *is_marked;
    (first < every && layers.iter().enumerate().all(is_so)).then_some((every, first))
}

#[cfg(test)]
mod tests {
    use super::regular;

    #[test]
    fn periods() {
        let layers = |text: &str| text.chars().map(|c| c == 'x').collect::<Vec<_>>();
        let rows = [
            ("x--x", Some((3, 0))),
            ("-x-x-x", Some((2, 1))),
            ("--x-", Some((4, 2))),
            ("xxx", Some((1, 0))),
            ("---", Some((4, 3))),
            ("x-xx", None),
            ("---x-x-", None),
            ("xx--", None),
        ];
        for (text, expected) in rows {
            assert_eq!(regular(&layers(text)), expected, "{text}");
        }
    }
}
