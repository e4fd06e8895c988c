//! Slices of tensors: `[0, :8]`, as NumPy writes them, without steps.

use std::ops::Range;

use crate::{AnamnesisError, Result};

/// One index or range of a slice, as it was typed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SliceIndex {
    At(i64),
    Range(Option<i64>, Option<i64>),
}

/// A slice as it was typed. Dimensions behind the last index are whole.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct SliceText(Vec<SliceIndex>);

/// A rectangle of a tensor, as runs of neighbouring elements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Slice {
    /// Of each dimension.
    ranges: Vec<Range<usize>>,
    /// Shape of the result: without the dimensions that have a single index.
    pub shape: Vec<usize>,
    /// Elements between neighbours of each dimension.
    strides: Vec<usize>,
    /// Elements of a run.
    pub run: usize,
    /// Dimensions that runs are counted in.
    outer: usize,
}

impl SliceText {
    /// Parses `[0, :8]`; the brackets may be left out. `None` if the text is no slice.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let inner = text
            .strip_prefix('[')
            .map_or(Some(text), |rest| rest.strip_suffix(']'))?;
        let number = |text: &str| match text.trim() {
            "" => Some(None),
            digits => digits.parse().ok().map(Some),
        };
        let index = |part: &str| match part.split_once(':') {
            Some((from, to)) => Some(SliceIndex::Range(number(from)?, number(to)?)),
            None => Some(SliceIndex::At(part.trim().parse().ok()?)),
        };
        inner.split(',').map(index).collect::<Option<_>>().map(Self)
    }

    /// Splits `NAME[0, :8]` into the name and the slice.
    pub(super) fn split(text: &str) -> (&str, Option<Self>) {
        let at = text.rfind('[').filter(|_| text.ends_with(']'));
        let split = at.and_then(|at| Some((&text[..at], Self::parse(&text[at..])?)));
        match split {
            Some((name, slice)) if !name.is_empty() => (name, Some(slice)),
            _ => (text, None),
        }
    }

    /// The first values of a tensor with `dims` dimensions: 8 of a vector, else 6 rows of 8.
    pub(super) fn corner(dims: usize) -> Self {
        let outer = std::iter::repeat_n(SliceIndex::At(0), dims.saturating_sub(2));
        let rows = (dims >= 2).then_some(SliceIndex::Range(None, Some(6)));
        let cols = (dims >= 1).then_some(SliceIndex::Range(None, Some(8)));
        Self(outer.chain(rows).chain(cols).collect())
    }

    /// The slice of a tensor of `shape`. Ends beyond a dimension are cut, as in NumPy; an index
    /// beyond it is an error.
    pub(super) fn of(&self, name: &str, shape: &[usize]) -> Result<Slice> {
        let refuse = |what: String| {
            let what = format!("the slice does not fit tensor `{name}`: {what}");
            Err(AnamnesisError::usage(what))
        };
        if self.0.len() > shape.len() {
            let (n, dims) = (self.0.len(), shape.len());
            return refuse(format!("{n} indices for {dims} dimensions"));
        }
        let (mut ranges, mut result) = (Vec::new(), Vec::new());
        for (i, &dim) in shape.iter().enumerate() {
            // Negative numbers count from the end.
            let at = |n: i64| match n {
                0.. => Some(n as usize),
                _ => dim.checked_sub(n.unsigned_abs() as usize),
            };
            match self.0.get(i).unwrap_or(&SliceIndex::Range(None, None)) {
                SliceIndex::At(n) => match at(*n).filter(|n| *n < dim) {
                    Some(n) => ranges.push(n..n + 1),
                    None => return refuse(format!("index {n} of a dimension of {dim}")),
                },
                SliceIndex::Range(from, to) => {
                    let bound = |n: Option<i64>, default| {
                        n.map_or(default, |n| at(n).unwrap_or(0)).min(dim)
                    };
                    let (from, to) = (bound(*from, 0), bound(*to, dim));
                    ranges.push(from..to.max(from));
                    result.push(to.saturating_sub(from));
                }
            }
        }
        let mut strides = vec![1usize; shape.len()];
        for i in (1..shape.len()).rev() {
            // The elements of a parsed tensor can be counted.
            strides[i - 1] = strides[i].saturating_mul(shape[i]);
        }
        // The last dimensions that are whole belong to a run, and the one before them.
        let whole = ranges.iter().zip(shape).rev();
        let whole = whole
            .take_while(|(range, dim)| range.len() == **dim)
            .count();
        let outer = shape.len().saturating_sub(whole + 1);
        let run = ranges[outer..].iter().map(Range::len).product();
        Ok(Slice { ranges, shape: result, strides, run, outer })
    }
}

impl Slice {
    /// Number of elements.
    pub(super) fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// First elements of the runs, in ascending order.
    pub(super) fn runs(&self) -> impl Iterator<Item = usize> {
        let (counts, strides) = (self.ranges[..self.outer].iter().map(Range::len), &self.strides);
        let count: usize = match self.len() {
            0 => 0,
            _ => counts.product(),
        };
        let first = self.ranges.iter().zip(strides);
        let first: usize = first.map(|(range, stride)| range.start * stride).sum();
        (0..count).map(move |mut i| {
            let mut at = first;
            for (range, stride) in self.ranges[..self.outer].iter().zip(strides).rev() {
                at += i % range.len() * stride;
                i /= range.len();
            }
            at
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn elements(text: &str, shape: &[usize]) -> (Vec<usize>, Vec<usize>) {
        let slice = SliceText::parse(text).unwrap().of("x", shape).unwrap();
        let all = slice.runs().flat_map(|at| at..at + slice.run).collect();
        (slice.shape, all)
    }

    /// `np.arange(24).reshape(2, 3, 4)[…]`
    #[test]
    fn slices_are_numpys() {
        let shape = [2, 3, 4];
        assert_eq!(elements("[1]", &shape), (vec![3, 4], (12..24).collect()));
        assert_eq!(elements("[1, :2]", &shape), (vec![2, 4], (12..20).collect()));
        assert_eq!(elements("[:, 0, 1:3]", &shape), (vec![2, 2], vec![1, 2, 13, 14]));
        assert_eq!(elements("-1, -1, -1", &shape), (vec![], vec![23]));
        assert_eq!(elements("[:, :, -2:]", &shape).1, [2, 3, 6, 7, 10, 11, 14, 15, 18, 19, 22, 23]);
        assert_eq!(elements("[0, 2:9, :1]", &shape), (vec![1, 1], vec![8]));
        assert_eq!(elements("[:, 2:1]", &shape), (vec![2, 0, 4], vec![]));
        assert_eq!(elements("[-9:1]", &shape).1, (0..12).collect::<Vec<_>>());
        assert!(SliceText::parse("[2]").unwrap().of("x", &shape).is_err());
        assert!(
            SliceText::parse("[0,0,0,0]")
                .unwrap()
                .of("x", &shape)
                .is_err()
        );
        assert!(SliceText::parse("[a]").is_none() && SliceText::parse("[0").is_none());
        assert_eq!(SliceText::default().of("x", &[]).unwrap().len(), 1);
    }

    #[test]
    fn names_may_have_brackets() {
        let (name, slice) = SliceText::split("a.b[0, :8]");
        assert_eq!((name, slice.is_some()), ("a.b", true));
        assert_eq!(SliceText::split("re:[ab]"), ("re:[ab]", None));
        assert_eq!(SliceText::split("[0]"), ("[0]", None));
    }
}
