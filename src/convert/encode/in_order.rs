//! Sums over tiles that are done in any order, from any thread, and come out the same.

use std::collections::BTreeMap;
use std::ops::AddAssign;
use std::sync::{Mutex, PoisonError};

/// A total to which every tile adds a part; additions happen in the order of the tiles.
#[derive(Debug)]
pub(super) struct InOrder<T, P>(Mutex<State<T, P>>);

#[derive(Debug)]
struct State<T, P> {
    /// Tiles that are in the total.
    done: usize,
    total: T,
    /// Of later tiles: as few as there are threads.
    waiting: BTreeMap<usize, P>,
}

impl<P, T: AddAssign<P> + Clone> InOrder<T, P> {
    /// Adds to `total`.
    pub(super) fn new(total: T) -> Self {
        Self(Mutex::new(State {
            done: 0,
            total,
            waiting: BTreeMap::new(),
        }))
    }

    /// Adds what tile `tile` has.
    pub(super) fn add(&self, tile: usize, part: P) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A plan can be carried out again, and comes to the same.
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

    /// The total, once so many tiles are in it.
    pub(super) fn of(&self, tiles: usize) -> Option<T> {
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
            assert_eq!(total.of(50), None);
            total.add(i, parts[i]);
        }
        assert_eq!(total.of(50), Some(in_order));
    }
}
