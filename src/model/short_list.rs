//! [`ShortList`], a list of numbers that are mostly two at most.

use std::fmt;
use std::ops::{Deref, DerefMut};

/// A list of numbers of a fixed length. Up to two take no memory of their own: a model can have
/// hundreds of thousands of such lists.
#[derive(Clone)]
pub(crate) enum ShortList {
    /// The length, at most 2, and the numbers. Places behind the length are 0.
    Few(u8, [usize; 2]),
    Many(Box<[usize]>),
}

impl Deref for ShortList {
    type Target = [usize];

    fn deref(&self) -> &[usize] {
        match self {
            Self::Few(len, numbers) => &numbers[..usize::from(*len)],
            Self::Many(numbers) => numbers,
        }
    }
}

impl DerefMut for ShortList {
    fn deref_mut(&mut self) -> &mut [usize] {
        match self {
            Self::Few(len, numbers) => &mut numbers[..usize::from(*len)],
            Self::Many(numbers) => numbers,
        }
    }
}

impl From<&[usize]> for ShortList {
    fn from(numbers: &[usize]) -> Self {
        match *numbers {
            [] => Self::Few(0, [0, 0]),
            [first] => Self::Few(1, [first, 0]),
            [first, second] => Self::Few(2, [first, second]),
            _ => Self::Many(numbers.into()),
        }
    }
}

impl<const N: usize> From<[usize; N]> for ShortList {
    fn from(numbers: [usize; N]) -> Self {
        numbers.as_slice().into()
    }
}

impl From<Vec<usize>> for ShortList {
    fn from(numbers: Vec<usize>) -> Self {
        match numbers.len() {
            ..=2 => numbers.as_slice().into(),
            _ => Self::Many(numbers.into()),
        }
    }
}

impl From<ShortList> for Vec<usize> {
    fn from(list: ShortList) -> Self {
        match list {
            ShortList::Few(..) => list.to_vec(),
            ShortList::Many(numbers) => numbers.into(),
        }
    }
}

impl FromIterator<usize> for ShortList {
    fn from_iter<I: IntoIterator<Item = usize>>(numbers: I) -> Self {
        Vec::from_iter(numbers).into()
    }
}

impl PartialEq for ShortList {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for ShortList {}

impl fmt::Debug for ShortList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_every_length_keep_their_numbers() {
        for len in 0..5 {
            let numbers: Vec<usize> = (7..7 + len).collect();
            let mut list = ShortList::from(numbers.clone());
            assert_eq!(*list, *numbers);
            assert_eq!(ShortList::from(numbers.as_slice()), list);
            assert_eq!(format!("{list:?}"), format!("{numbers:?}"));
            assert_eq!(matches!(list, ShortList::Few(..)), len <= 2);
            list.reverse();
            let reversed: Vec<usize> = numbers.into_iter().rev().collect();
            assert_eq!(Vec::from(list), reversed);
        }
    }
}
