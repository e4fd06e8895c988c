//! Choices that an input makes.

/// The rest of an input, from which choices are taken. At its end every choice is the first.
pub struct Bytes<'a>(pub &'a [u8]);

impl<'a> Bytes<'a> {
    pub fn u8(&mut self) -> u8 {
        self.0.split_off_first().copied().unwrap_or(0)
    }

    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes([self.u8(), self.u8()])
    }

    /// An index below `n`, which must not be zero.
    pub fn below(&mut self, n: usize) -> usize {
        if n > 256 {
            usize::from(self.u16()) % n
        } else {
            usize::from(self.u8()) % n
        }
    }

    pub fn of<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())]
    }

    /// The next `n` bytes, or what is left.
    pub fn take(&mut self, n: usize) -> &'a [u8] {
        let n = n.min(self.0.len());
        self.0.split_off(..n).unwrap_or_default()
    }
}

/// A number for a name, which does not depend on what other names there are.
pub fn id(name: &str) -> u16 {
    crc32fast::hash(name.as_bytes()) as u16
}

/// The item whose id is `id`, or else the one with the next id. So an input keeps its meaning when
/// items are added.
pub fn by_id<T>(items: &[(u16, T)], id: u16) -> &T {
    let next = items.iter().filter(|(other, _)| *other >= id);
    let found = next.min_by_key(|(other, _)| *other);
    &found
        .or(items.iter().min_by_key(|(other, _)| *other))
        .unwrap()
        .1
}
