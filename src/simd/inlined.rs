//! What kernels call in place of functions of the standard library that are generic and not
//! `#[inline]`. Those are compiled once, in another unit than the kernels, and stay calls.

use std::iter::{Map, Skip, StepBy};
use std::ops::{Range, RangeFrom};
use std::ptr;
use std::slice::{self, Chunks, ChunksExact, ChunksExactMut, ChunksMut, Iter};

/// `a` and `b` side by side, up to the end of the shorter one, as [`std::iter::zip`]. Slices are cut to
/// one length first, so that LLVM sees a loop with one end.
#[inline(always)]
pub(crate) fn zip<A: Side, B: Side>(a: A, b: B) -> Zip<A::Steps, B::Steps> {
    let len = a.len().min(b.len());
    Zip { a: a.steps(len), b: b.steps(len) }
}

/// Copies `from` to `to`, which is as long, as `copy_from_slice`.
#[inline(always)]
#[expect(unsafe_code, reason = "a loop over values would be unrolled before it is seen to copy")]
pub(crate) fn copy<T: Copy>(from: &[T], to: &mut [T]) {
    assert!(from.len() == to.len());
    // SAFETY: both have as many values, and an exclusive reference overlaps no other.
    unsafe { ptr::copy_nonoverlapping(from.as_ptr(), to.as_mut_ptr(), from.len()) }
}

/// `f` of each index, as [`std::array::from_fn`].
#[inline(always)]
pub(crate) fn from_fn<T: Copy + Default, const N: usize>(mut f: impl FnMut(usize) -> T) -> [T; N] {
    let mut out = [T::default(); N];
    for (i, out) in out.iter_mut().enumerate() {
        *out = f(i);
    }
    out
}

/// Arrays that follow each other as one slice, as `as_flattened` and `as_flattened_mut`.
pub(crate) trait Flat {
    type Value;

    fn flat(&self) -> &[Self::Value];

    fn flat_mut(&mut self) -> &mut [Self::Value];
}

impl<T, const N: usize> Flat for [[T; N]] {
    type Value = T;

    #[inline(always)]
    #[expect(unsafe_code, reason = "an array passed to a call may be read by whatever follows")]
    fn flat(&self) -> &[T] {
        // SAFETY: the arrays are as many times `N` values, one behind the other.
        unsafe { slice::from_raw_parts(self.as_ptr().cast(), self.len() * N) }
    }

    #[inline(always)]
    #[expect(unsafe_code, reason = "an array passed to a call may be written by whatever follows")]
    fn flat_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and the reference is exclusive.
        unsafe { slice::from_raw_parts_mut(self.as_mut_ptr().cast(), self.len() * N) }
    }
}

/// What [`zip`] takes.
pub(crate) trait Side: IntoIterator {
    type Steps: Iterator<Item = Self::Item> + Side<Steps = Self::Steps>;

    /// Items that it has at most. Of a slice it is their number.
    fn len(&self) -> usize;

    /// The first `len` items of a slice, or all of an iterator.
    fn steps(self, len: usize) -> Self::Steps;
}

/// The iterator of [`zip`].
pub(crate) struct Zip<A, B> {
    a: A,
    b: B,
}

impl<A, B> Zip<A, B> {
    /// With numbers from 0 on. The standard library's `Enumerate` keeps LLVM from seeing the one end.
    #[inline(always)]
    pub(crate) fn enumerate(self) -> Zip<RangeFrom<usize>, Self> {
        Zip { a: 0.., b: self }
    }
}

impl<A: Iterator, B: Iterator> Iterator for Zip<A, B> {
    type Item = (A::Item, B::Item);

    #[inline(always)]
    #[expect(clippy::question_mark, reason = "`?` is a call in builds without optimisation")]
    fn next(&mut self) -> Option<Self::Item> {
        let Some(a) = self.a.next() else { return None };
        let Some(b) = self.b.next() else { return None };
        Some((a, b))
    }

    #[inline(always)]
    fn size_hint(&self) -> (usize, Option<usize>) {
        let ((least_a, most_a), (least_b, most_b)) = (self.a.size_hint(), self.b.size_hint());
        let most = match (most_a, most_b) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        (least_a.min(least_b), most)
    }
}

impl<A: Side<Steps = A> + Iterator, B: Side<Steps = B> + Iterator> Side for Zip<A, B> {
    type Steps = Self;

    #[inline(always)]
    fn len(&self) -> usize {
        self.a.len().min(self.b.len())
    }

    #[inline(always)]
    fn steps(self, len: usize) -> Self {
        Zip { a: self.a.steps(len), b: self.b.steps(len) }
    }
}

/// References to the values of a slice, counted down: as an iterator between two pointers does not.
macro_rules! counted_down {
    ($($steps:ident($slice:ty) of $item:ty, |$it:ident| $taken:expr;)+) => {$(
        pub(crate) struct $steps<'a, T>($slice);

        impl<'a, T> Iterator for $steps<'a, T> {
            type Item = $item;

            #[inline(always)]
            fn next(&mut self) -> Option<$item> {
                let $it = &mut *self;
                match $taken {
                    [first, rest @ ..] => {
                        self.0 = rest;
                        Some(first)
                    }
                    [] => None,
                }
            }

            #[inline(always)]
            fn size_hint(&self) -> (usize, Option<usize>) {
                (self.0.len(), Some(self.0.len()))
            }
        }

        impl<T> AsRef<[T]> for $steps<'_, T> {
            #[inline(always)]
            fn as_ref(&self) -> &[T] {
                self.0
            }
        }
    )+};
}

counted_down! {
    Shared(&'a [T]) of &'a T, |it| it.0;
    Exclusive(&'a mut [T]) of &'a mut T, |it| std::mem::take(&mut it.0);
}

/// Sides that are slices, or become one.
macro_rules! slices {
    ($([$($parameter:tt)*] $side:ty => $steps:ident, |$it:ident, $to:ident| $slice:expr;)+) => {$(
        impl<$($parameter)*> Side for $side {
            type Steps = $steps<'a, T>;

            #[inline(always)]
            fn len(&self) -> usize {
                AsRef::<[T]>::as_ref(self).len()
            }

            #[inline(always)]
            fn steps(self, $to: usize) -> Self::Steps {
                let $it = self;
                $steps($slice)
            }
        }
    )+};
}

slices! {
    ['a, T] &'a [T] => Shared, |it, len| &it[..len];
    ['a, T, const N: usize] &'a [T; N] => Shared, |it, len| &it[..len];
    ['a, T] &'a Vec<T> => Shared, |it, len| &it[..len];
    ['a, T] Iter<'a, T> => Shared, |it, len| &it.as_slice()[..len];
    ['a, T] Shared<'a, T> => Shared, |it, len| &it.0[..len];
    ['a, T] &'a mut [T] => Exclusive, |it, len| &mut it[..len];
    ['a, T, const N: usize] &'a mut [T; N] => Exclusive, |it, len| &mut it[..len];
    ['a, T] Exclusive<'a, T> => Exclusive, |it, len| &mut it.0[..len];
}

/// Iterators that stay as they are.
macro_rules! iterators {
    ($([$($parameter:tt)*] $side:ty;)+) => {$(
        impl<$($parameter)*> Side for $side {
            type Steps = Self;

            #[inline(always)]
            fn len(&self) -> usize {
                self.size_hint().1.unwrap_or(usize::MAX)
            }

            #[inline(always)]
            fn steps(self, _: usize) -> Self {
                self
            }
        }
    )+};
}

iterators! {
    ['a, T] Chunks<'a, T>;
    ['a, T] ChunksMut<'a, T>;
    ['a, T] ChunksExact<'a, T>;
    ['a, T] ChunksExactMut<'a, T>;
    [I: Iterator, T, F: FnMut(I::Item) -> T] Map<I, F>;
    [I: Iterator] Skip<I>;
    [I: Iterator] StepBy<I>;
}

macro_rules! ranges {
    ($($number:ty)+) => {$(
        iterators! {
            [] Range<$number>;
            [] RangeFrom<$number>;
        }
    )+};
}

ranges!(u8 u32 i32 usize);

/// The values of an array.
pub(crate) struct Values<T, const N: usize> {
    array: [T; N],
    at: usize,
}

impl<T: Copy, const N: usize> Iterator for Values<T, N> {
    type Item = T;

    #[inline(always)]
    fn next(&mut self) -> Option<T> {
        if self.at == N {
            return None;
        }
        let value = self.array[self.at];
        self.at += 1;
        Some(value)
    }

    #[inline(always)]
    fn size_hint(&self) -> (usize, Option<usize>) {
        (N - self.at, Some(N - self.at))
    }
}

impl<T: Copy, const N: usize> Side for Values<T, N> {
    type Steps = Self;

    #[inline(always)]
    fn len(&self) -> usize {
        N - self.at
    }

    #[inline(always)]
    fn steps(self, _: usize) -> Self {
        self
    }
}

impl<T: Copy, const N: usize> Side for [T; N] {
    type Steps = Values<T, N>;

    #[inline(always)]
    fn len(&self) -> usize {
        N
    }

    #[inline(always)]
    fn steps(self, _: usize) -> Self::Steps {
        Values { array: self, at: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pairs are those of the standard library, of whatever is shorter.
    #[test]
    fn pairs_are_those_of_zip() {
        let numbers: Vec<u32> = (0..20).collect();
        for (a, b) in [(0, 0), (0, 3), (3, 0), (7, 7), (7, 8), (20, 7)] {
            let (a, b) = (&numbers[..a], &numbers[20 - b..]);
            let want: Vec<_> = a.iter().zip(b).collect();
            assert!(zip(a, b).eq(want.iter().copied()));
            assert!(zip(a.iter(), b).eq(want.iter().copied()));
            let chunks: Vec<_> = a.chunks(3).zip(b.chunks_exact(2)).collect();
            assert!(zip(a.chunks(3), b.chunks_exact(2)).eq(chunks));
            // An iterator whose length is not known does not cut off the other side.
            let odd = || a.iter().filter(|&&x| x % 2 == 1);
            let want: Vec<_> = odd().map(|x| x + 1).zip(b).collect();
            assert!(zip(odd().map(|x| x + 1), b).eq(want));
            let want: Vec<_> = a.iter().zip(b).zip(5..).enumerate().collect();
            assert!(zip(zip(a, b), 5u32..).enumerate().eq(want));
            let mut sums = vec![1; a.len()];
            for (sum, n) in zip(&mut sums[..], [10, 20, 30]) {
                *sum += n;
            }
            let want = (0..a.len()).map(|i| if i < 3 { 10 * (i + 1) + 1 } else { 1 });
            assert!(sums.into_iter().eq(want));
        }
    }

    #[test]
    fn arrays_become_slices_and_are_copied() {
        let mut arrays: [[u8; 3]; 2] = from_fn(|i| [i as u8; 3]);
        assert_eq!(arrays.flat(), [0, 0, 0, 1, 1, 1]);
        copy(&[7, 8], &mut arrays.flat_mut()[2..4]);
        assert_eq!(arrays, [[0, 0, 7], [8, 1, 1]]);
        assert!(std::panic::catch_unwind(|| copy(&[1], &mut [0, 0])).is_err());
    }
}
