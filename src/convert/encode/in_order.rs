//! Totals over tiles that are done in any order, on any thread. Floating-point addition depends on
//! the order, so a total waits for the next tile in order.

use std::collections::HashMap;
use std::ops::AddAssign;
use std::sync::{Mutex, PoisonError};

/// A total to which every tile adds one part, in the order of the tiles.
#[derive(Debug)]
pub(super) struct InOrder<T, P>(Mutex<State<T, P>>);

#[derive(Debug)]
struct State<T, P> {
    /// Number of tiles in the total: all below this one.
    done: usize,
    total: T,
    /// Parts of later tiles. Tiles are begun in order, so about as many wait as there are threads.
    waiting: HashMap<usize, P>,
}

impl<P, T: AddAssign<P> + Clone> InOrder<T, P> {
    /// A total that begins with `total`.
    pub(super) fn new(total: T) -> Self {
        Self(Mutex::new(State { done: 0, total, waiting: HashMap::new() }))
    }

    /// Adds the part of tile `tile`, now or once all tiles before it have been added.
    pub(super) fn add(&self, tile: usize, part: P) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A plan can be carried out more than once. A tile that is in the total already would add
        // the same part again.
        if tile >= state.done {
            state.waiting.insert(tile, part);
        }
        while let Some(part) = {
            let next = state.done;
            state.waiting.remove(&next)
        } {
            state.total += part;
            state.done += 1;
        }
    }

    /// The total of `tiles` tiles; `None` until all of them have been added.
    pub(super) fn total_of(&self, tiles: usize) -> Option<T> {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (state.done == tiles).then(|| state.total.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_order_gives_the_same() {
        let parts: Vec<f64> = (0..50).map(|i| 0.1 * f64::from(i)).collect();
        let in_order = parts.iter().fold(0.0, |sum, x| sum + x);
        let total = InOrder::new(0.0);
        for i in (0..50).map(|i| i * 7 % 50) {
            assert_eq!(total.total_of(50), None);
            total.add(i, parts[i]);
        }
        assert_eq!(total.total_of(50), Some(in_order));
    }
}
