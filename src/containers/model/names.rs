//! [`NameIndex`]: positions of tensors by name.

use std::collections::HashMap;
use std::sync::OnceLock;

/// Position of each name in a list. It is made when the first name is looked for: many models are only converted as a whole.
#[derive(Debug, Default)]
pub(crate) struct NameIndex(OnceLock<HashMap<Box<str>, usize>>);

impl NameIndex {
    /// Position of `name` in `names`, the first of several. `names` must be the same list in every call.
    pub(crate) fn find<'a, I>(&self, name: &str, names: impl FnOnce() -> I) -> Option<usize>
    where
        I: Iterator<Item = &'a str>,
    {
        let index = self.0.get_or_init(|| {
            let names = names();
            let mut index = HashMap::with_capacity(names.size_hint().0);
            for (i, name) in names.enumerate() {
                index.entry(Box::from(name)).or_insert(i);
            }
            index
        });
        index.get(name).copied()
    }
}
