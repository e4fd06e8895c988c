//! The differences of values: sums over pieces, computed in F64.

mod piece;
mod sums;
mod widen;

use self::piece::ComparePiece;
pub(super) use self::sums::Sums;
use self::widen::{Width, number_size, width};
use super::report::ElementValue;
use crate::dtype::Dtype;
use crate::simd::{Level, perform};

/// What counts as a difference, and how it is computed.
pub(super) struct CompareRule {
    pub tolerance: f64,
    pub level: Level,
}

/// How the values of a pair are compared.
#[derive(Debug, Clone, Copy)]
pub(super) enum Comparable {
    /// As numbers of these types.
    Numbers(Dtype, Dtype),
    /// As bytes: values of one type that has no widening, such as codes of six bits.
    Bytes(Dtype),
}

impl Comparable {
    /// How values of two types are compared; `None` if they cannot be.
    pub(super) fn of((a, b): (Dtype, Dtype)) -> Option<Self> {
        let is_complex = |dtype| dtype == Dtype::C64;
        match (width(a), width(b)) {
            (Some(_), Some(_)) if is_complex(a) == is_complex(b) => Some(Self::Numbers(a, b)),
            _ if a == b => Some(Self::Bytes(a)),
            _ => None,
        }
    }

    fn is_number(self) -> bool {
        matches!(self, Self::Numbers(..))
    }

    /// Index of the element that number or byte `index` lies in. A complex element has two numbers;
    /// an element that is compared as bytes may have several bytes, or be a part of one.
    fn element(self, index: u64) -> u64 {
        match self {
            Self::Numbers(Dtype::C64, _) => index / 2,
            Self::Numbers(..) => index,
            Self::Bytes(dtype) => index * 8 / (dtype.bits() as u64).max(1),
        }
    }

    /// Adds the differences of consecutive values to `sums`. `first` is the index of the first one,
    /// as [`TensorPair::run`](crate::convert::pair::TensorPair::run) counts.
    pub(super) fn compare(
        self,
        first: u64,
        (a, b): (&[u8], &[u8]),
        rule: &CompareRule,
        sums: &mut Sums,
    ) {
        let (da, db) = match self {
            Self::Numbers(a, b) => (a, b),
            Self::Bytes(_) => return compare_bytes(first, a, b, sums),
        };
        let tolerance = rule.tolerance;
        // The two numbers of a complex value are compared each by itself.
        let first = match da {
            Dtype::C64 => first * 2,
            _ => first,
        };
        let mut routine = ComparePiece {
            a: (da, a),
            b: (db, b),
            count: a.len() / number_size(da),
            first,
            tolerance,
            sums,
        };
        if width(da) == Some(Width::Int64) || width(db) == Some(Width::Int64) {
            routine.run_int64();
        } else {
            perform(rule.level, &mut routine);
        }
    }
}

/// Compares values that have no numbers.
fn compare_bytes(first: u64, a: &[u8], b: &[u8], sums: &mut Sums) {
    sums.values += a.len() as u64;
    if a == b {
        return;
    }
    for (i, (&a, &b)) in a.iter().zip(b).enumerate().filter(|(_, (a, b))| a != b) {
        let pair = [a, b].map(|code| ElementValue::Int(code.into()));
        sums.count(first + i as u64, f64::INFINITY, pair, 0.0);
    }
}

#[cfg(test)]
mod tests;
