//! [`NameIndex`]: positions of tensors by name.

use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;

use hashbrown::HashTable;

/// Position of each name in a list. It is made when the first name is looked for: many models are
/// only converted as a whole.
///
/// It holds the positions alone, for a model can have hundreds of thousands of names.
#[derive(Debug, Default)]
pub(crate) struct NameIndex {
    positions: OnceLock<HashTable<u32>>,
    hasher: RandomState,
}

impl NameIndex {
    /// Position of `name` in a list of `len` names, the first of several. `name_at` must give the
    /// same names in every call.
    pub(crate) fn find<'a>(
        &self,
        name: &str,
        len: usize,
        name_at: impl Fn(usize) -> &'a str,
    ) -> Option<usize> {
        let hash = |name: &str| self.hasher.hash_one(name);
        let positions = self.positions.get_or_init(|| {
            let mut positions = HashTable::with_capacity(len);
            // A tensor takes more than a byte of memory, so that no model has more than 2^32.
            for i in 0..u32::try_from(len).unwrap_or(u32::MAX) {
                let name = name_at(i as usize);
                let is_same = |&other: &u32| name_at(other as usize) == name;
                positions
                    .entry(hash(name), is_same, |&i| hash(name_at(i as usize)))
                    .or_insert(i);
            }
            positions
        });
        let found = positions.find(hash(name), |&i| name_at(i as usize) == name);
        found.map(|&i| i as usize)
    }
}
