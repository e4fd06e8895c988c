//! In which order rows and columns are taken, and what is done to each value.

/// Groups of parts that become tiles: the first parts of all groups, then the second ones, ….
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tiles {
    pub groups: usize,
    /// Parts of a group.
    pub parts: usize,
    /// Length of a part.
    pub len: usize,
}

impl Tiles {
    /// Where what is at `at` of the tiles is in the groups.
    pub(super) fn source(self, at: usize) -> usize {
        let (part, within) = (at / self.len, at % self.len);
        let (tile, group) = (part / self.groups, part % self.groups);
        (group * self.parts + tile) * self.len + within
    }

    /// The order that undoes this one.
    pub(crate) fn inverse(self) -> Self {
        Self { groups: self.parts, parts: self.groups, len: self.len }
    }
}

/// Which rows of a decoder are taken, and in which order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RowOrder {
    /// Those from this row on.
    From(usize),
    /// This row again and again.
    Same(usize),
    /// All. Of each run of `of` rows, the first half of the first `len` alternates with the second:
    /// rows 0, len/2, 1, len/2 + 1, ….
    Interleaved { len: usize, of: usize },
    /// Of each run of `of` rows the `len` rows from row `first` on.
    Slice { first: usize, len: usize, of: usize },
    /// All. Those from row `first` on are tiled.
    Tiled { first: usize, tiles: Tiles },
    /// All. Of the first `len` of each run of `of` rows, the even ones come before the odd ones:
    /// the inverse of `Interleaved`.
    Split { len: usize, of: usize },
}

/// What is done to each value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    None,
    /// Adds 1, in F32.
    PlusOne,
    /// Subtracts 1, in F32.
    MinusOne,
    /// Adds the number of these bits, in F32.
    Plus(u32),
    /// `-exp(x)`, rounded once to F32.
    NegExp,
    /// `ln(-x)`, rounded once to F32: the inverse of `NegExp`.
    LnNeg,
    /// `exp(x)`, rounded once to F32.
    Exp,
    /// `ln(x)`, rounded once to F32: the inverse of `Exp`.
    Ln,
    /// Multiplies by one number in F32, and then by the other. Both are bits, so that changes are equal
    /// or not.
    Times([u32; 2]),
}

impl Change {
    /// What undoes it.
    pub(crate) fn inverse(self) -> Self {
        match self {
            Self::None => Self::None,
            Self::PlusOne => Self::MinusOne,
            Self::MinusOne => Self::PlusOne,
            Self::Plus(number) => Self::Plus((-f32::from_bits(number)).to_bits()),
            Self::NegExp => Self::LnNeg,
            Self::LnNeg => Self::NegExp,
            Self::Exp => Self::Ln,
            Self::Ln => Self::Exp,
            Self::Times([first, second]) => {
                let turned = |bits| (1.0 / f32::from_bits(bits)).to_bits();
                Self::Times([turned(second), turned(first)])
            }
        }
    }

    pub(super) fn apply(self, values: &mut [f32]) {
        let each = |change: fn(f32) -> f32, values: &mut [f32]| {
            values.iter_mut().for_each(|x| *x = change(*x));
        };
        match self {
            Self::None => {}
            Self::PlusOne => each(|x| x + 1.0, values),
            Self::MinusOne => each(|x| x - 1.0, values),
            Self::Plus(number) => {
                let number = f32::from_bits(number);
                values.iter_mut().for_each(|x| *x += number);
            }
            // In F64, so that the result does not depend on the platform's F32 functions.
            Self::NegExp => each(|x| -f64::from(x).exp() as f32, values),
            Self::LnNeg => each(|x| (-f64::from(x)).ln() as f32, values),
            Self::Exp => each(|x| f64::from(x).exp() as f32, values),
            Self::Ln => each(|x| f64::from(x).ln() as f32, values),
            Self::Times(factors) => {
                let [first, second] = factors.map(f32::from_bits);
                values.iter_mut().for_each(|x| *x = *x * first * second);
            }
        }
    }
}

impl RowOrder {
    /// `Interleaved` of all rows of heads of `of` rows.
    pub(crate) fn interleaved(of: usize) -> Self {
        Self::Interleaved { len: of, of }
    }

    /// `Split` of all rows of heads of `of` rows.
    pub(crate) fn split(of: usize) -> Self {
        Self::Split { len: of, of }
    }

    /// The decoder's row that is row `row` here.
    pub(super) fn source(self, row: usize) -> usize {
        match self {
            Self::From(first) => first + row,
            Self::Same(same) => same,
            Self::Slice { first, len, of } => row / len * of + first + row % len,
            Self::Tiled { first, .. } if row < first => row,
            Self::Tiled { first, tiles } => first + tiles.source(row - first),
            Self::Interleaved { len, of } | Self::Split { len, of } if row % of >= len => row,
            Self::Interleaved { len, of } => {
                let (run, at) = (row / of * of, row % of);
                run + at % 2 * (len / 2) + at / 2
            }
            Self::Split { len, of } => {
                let (run, at) = (row / of * of, row % of);
                run + at % (len / 2) * 2 + at / (len / 2)
            }
        }
    }

    /// Rows of a tile should begin and end at multiples of this, so that the rows that they come
    /// from are a range as well.
    pub(super) fn align(self) -> usize {
        match self {
            Self::Interleaved { of, .. } | Self::Split { of, .. } => of,
            Self::From(_) | Self::Same(_) | Self::Slice { .. } | Self::Tiled { .. } => 1,
        }
    }
}
