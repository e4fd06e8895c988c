//! Tensors that inference fuses into one weight.

use std::collections::BTreeMap;

use super::Encoding;
use crate::lethe::fused;

/// Links tensors that inference fuses into one weight, such as the query, key and value
/// projections. An encoder with one scale for the whole tensor must survey all of them, because the
/// fused weight has only one scale.
pub(in crate::convert) fn link_siblings<'a, 'm: 'a>(
    encodings: impl Iterator<Item = &'a mut Encoding<'m>>,
) {
    let mut encodings: Vec<_> = encodings.collect();
    let mut families: BTreeMap<(String, usize), Vec<usize>> = BTreeMap::new();
    for (i, encoding) in encodings.iter().enumerate() {
        if encoding.encoder.shares_survey()
            && let Some((parent, number)) = fused(&encoding.input.name)
        {
            families
                .entry((parent.to_owned(), number))
                .or_default()
                .push(i);
        }
    }
    for members in families.values() {
        let inputs: Vec<_> = members
            .iter()
            .map(|&i| encodings[i].input.clone())
            .collect();
        for (at, &i) in members.iter().enumerate() {
            let others = inputs.iter().enumerate().filter(|(other, _)| *other != at);
            encodings[i].siblings = others.map(|(_, input)| input.clone()).collect();
        }
    }
}
