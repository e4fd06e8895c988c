//! Stable sorting whose code is shared by all types. The standard library compiles its sort, which
//! takes six kilobytes, for every type and every key. Here numbers of items are sorted, and then the
//! items are moved. Lists that are sorted in a loop keep the standard library's sort, which allocates
//! less.

use std::cmp::Ordering;

/// Sorts `items` by `compare`. Equal items stay in their order.
pub(crate) fn sort_by<T>(items: &mut [T], compare: impl Fn(&T, &T) -> Ordering) {
    let mut order = sorted_numbers(items.len(), &|a, b| compare(&items[a], &items[b]));
    // Along each cycle, every item goes to its place, and the place is marked as done by its own
    // number.
    for first in 0..order.len() {
        let mut at = first;
        while order[at] != first {
            let from = order[at];
            items.swap(at, from);
            order[at] = at;
            at = from;
        }
        order[at] = at;
    }
}

/// Sorts `items` by `key`. Equal items stay in their order.
pub(crate) fn sort_by_key<T, K: Ord>(items: &mut [T], key: impl Fn(&T) -> K) {
    sort_by(items, |a, b| key(a).cmp(&key(b)));
}

/// The numbers from 0 to `len` in the order of `compare`.
fn sorted_numbers(len: usize, compare: &dyn Fn(usize, usize) -> Ordering) -> Vec<usize> {
    let mut order: Vec<usize> = (0..len).collect();
    order.sort_by(|&a, &b| compare(a, b));
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sorts_as_the_standard_library() {
        let mut state = 1u32;
        for len in 0..200 {
            let mut items: Vec<(u32, usize)> = (0..len)
                .map(|i| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (state >> 16 & 15, i)
                })
                .collect();
            let mut expected = items.clone();
            expected.sort_by_key(|(key, _)| *key);
            sort_by_key(&mut items, |(key, _)| *key);
            assert_eq!(items, expected);
        }
    }
}
