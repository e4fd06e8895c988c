//! Products with matrices against sums of one value at a time.

use half::{bf16, f16};

use super::*;
use crate::element::{Element, Out};
use crate::simd::dispatch;

type Entry<'a> = Box<dyn Fn(usize, usize) -> f64 + 'a>;

/// Value `j` of a block of `size` vectors: the sum in the order of the vectors, or of the steps if
/// the matrix has no numbers.
fn sum(values: &[f64], j: usize, entry: &Entry<'_>) -> f64 {
    let terms = values.iter().enumerate();
    terms.fold(0.0, |sum, (i, x)| sum + x * entry(i, j))
}

/// Every matrix multiplies columns, rows, and both, as its entries say, at every level.
#[test]
fn multiplies_as_its_entries_say() {
    for size in [2, 4, 8, 16, 32, 64] {
        let hadamard = |i: usize, j: usize| 1.0 - 2.0 * f64::from((i & j).count_ones() % 2);
        let sign = |i: usize| if i % 3 == 1 { -1.0 } else { 1.0 };
        let signs: Vec<f64> = (0..size).map(sign).collect();
        let dense = |i: usize, j: usize| (i * 11 + j * 5) as f64 - 30.0;
        let all = |entry: fn(usize, usize) -> f64| {
            let rows = (0..size).flat_map(|i| (0..size).map(move |j| entry(i, j)));
            BlockMatrix::Dense(DenseMatrix::new(rows.collect(), size))
        };
        let cases: [(BlockMatrix, Entry<'_>); 4] = [
            (BlockMatrix::Sylvester, Box::new(hadamard)),
            (BlockMatrix::SignedRows(signs.clone()), Box::new(|i, j| sign(i) * hadamard(i, j))),
            (BlockMatrix::SignedColumns(signs.clone()), Box::new(|i, j| sign(j) * hadamard(i, j))),
            (all(|i, j| (i * 11 + j * 5) as f64 - 30.0), Box::new(dense)),
        ];
        for (matrix, entry) in &cases {
            for width in [size, 3 * size] {
                check(matrix, entry, size, width);
            }
        }
    }
}

/// Integers, whose sums are exact in any order.
fn check(matrix: &BlockMatrix, entry: &Entry<'_>, size: usize, width: usize) {
    let factor = 0.5;
    let product = || BlockProduct { matrix, size, factor };
    let values: Vec<f32> = (0..2 * size * width)
        .map(|n| (n * n % 17) as f32 - 4.0)
        .collect();
    let exact: Vec<f64> = values.iter().copied().map(f64::from).collect();
    let of_columns: Vec<f64> = (0..values.len())
        .map(|n| {
            let first = n / size * size;
            factor * sum(&exact[first..first + size], n - first, entry)
        })
        .collect();
    let of_rows = |values: &[f64]| -> Vec<f64> {
        let value = |n: usize| {
            let (r, c) = (n / width, n % width);
            let first = r / size * size;
            let column = (first..first + size).map(|i| values[i * width + c]);
            factor * sum(&column.collect::<Vec<_>>(), r - first, entry)
        };
        (0..values.len()).map(value).collect()
    };
    check_columns(&values, &product(), &of_columns);
    let both = of_rows(&of_columns);
    for (columns, want) in [(None, of_rows(&exact)), (Some(product()), both)] {
        let want: Vec<u32> = want.iter().map(|&x| (x as f32 + 0.0).to_bits()).collect();
        for level in Level::available() {
            let mut got = values.clone();
            let mut rows = TransformedRows {
                values: &mut got,
                width,
                columns: columns.clone(),
                rows: product(),
                exact: &mut Vec::new(),
            };
            rows.multiply(level);
            let got: Vec<u32> = got.iter().map(|x| x.to_bits()).collect();
            assert_eq!(got, want, "{level:?}, {size} of {width}");
        }
    }
}

/// Columns alone, for each type of output.
fn check_columns(values: &[f32], product: &BlockProduct<'_>, want: &[f64]) {
    let n = values.len();
    let kernel = TransformedColumns { values, product: product.clone() };
    for level in Level::available() {
        let (mut single, mut half, mut brain) =
            (vec![0f32; n], vec![f16::ZERO; n], vec![bf16::ZERO; n]);
        dispatch(level, &kernel, Out::F32(&mut single));
        dispatch(level, &kernel, Out::F16(&mut half));
        dispatch(level, &kernel, Out::Bf16(&mut brain));
        for (i, &want) in want.iter().enumerate() {
            let want = want as f32 + 0.0;
            let place = format!("{level:?}, {i} of blocks of {}", product.size);
            if want.is_nan() {
                let are_nan = single[i].is_nan() && half[i].is_nan() && brain[i].is_nan();
                assert!(are_nan, "{place}");
                continue;
            }
            assert_eq!(single[i].to_bits(), want.to_bits(), "{place}");
            let half = half[i].to_bits();
            assert_eq!(half, <f16 as Element>::from_f32(want).to_bits(), "{place}");
            let brain = brain[i].to_bits();
            assert_eq!(brain, <bf16 as Element>::from_f32(want).to_bits(), "{place}");
        }
    }
}

/// Sums that are rounded have their terms in order, and products of F64 are rounded, at every
/// level.
#[test]
fn rounded_sums() {
    for (size, width) in [(12, 24), (33, 66)] {
        check_rounded_sums(size, width);
    }
}

fn check_rounded_sums(size: usize, width: usize) {
    let number = |n: usize| (n * 7919 % 1013) as f64 / 997.0 - 0.4;
    let values: Vec<f32> = (0..size * width).map(|n| number(n) as f32).collect();
    for is_single in [false, true] {
        let narrow = |x: f64| if is_single { f64::from(x as f32) } else { x };
        let numbers = (5..5 + size * size).map(number).map(narrow).collect();
        let matrix = BlockMatrix::Dense(DenseMatrix::new(numbers, size));
        let product = || BlockProduct { matrix: &matrix, size, factor: 0.3 };
        let BlockMatrix::Dense(dense) = &matrix else {
            continue;
        };
        let entry: Entry<'_> = Box::new(|i, j| dense.numbers[i * size + j]);
        let exact: Vec<f64> = values.iter().copied().map(f64::from).collect();
        let first: Vec<f64> = (0..values.len())
            .map(|n| {
                let at = n / size * size;
                sum(&exact[at..at + size], n - at, &entry) * 0.3
            })
            .collect();
        let want: Vec<f32> = (0..values.len())
            .map(|n| {
                let column = (0..size).map(|i| first[i * width + n % width]);
                let sum = sum(&column.collect::<Vec<_>>(), n / width, &entry);
                (sum * 0.3) as f32
            })
            .collect();
        check_columns(&values, &product(), &first);
        for level in Level::available() {
            let mut got = values.clone();
            let mut rows = TransformedRows {
                values: &mut got,
                width,
                columns: Some(product()),
                rows: product(),
                exact: &mut Vec::new(),
            };
            rows.multiply(level);
            assert_eq!(got, want, "{level:?}");
        }
    }
}

/// Values that are not finite, overflow or are subnormal, in blocks of a dense matrix that fill no
/// panel.
#[test]
fn hostile_values() {
    let size = 33;
    let special = [f32::NAN, f32::INFINITY, 3e38, -3e38, 1e-45, -0.0, 6e-8, 1.5];
    let numbers: Vec<f64> = (0..size * size)
        .map(|n| (n * 37 % 101) as f64 - 50.0)
        .collect();
    let entry: Entry<'_> = Box::new(|i, j| numbers[i * size + j]);
    let matrix = BlockMatrix::Dense(DenseMatrix::new(numbers.clone(), size));
    let product = BlockProduct { matrix: &matrix, size, factor: 0.3 };
    // The first vector is of zeros; each other has one of the special values, among subnormal
    // numbers.
    let values: Vec<f32> = (0..9 * size)
        .map(|n| match (n / size, n % size) {
            (vector, i) if vector > 0 && i % 8 + 1 == vector => special[i % 8],
            (0, _) => 0.0,
            (_, i) => (i as f32 - 16.0) * 1e-39,
        })
        .collect();
    let exact: Vec<f64> = values.iter().copied().map(f64::from).collect();
    let want: Vec<f64> = (0..values.len())
        .map(|n| {
            let first = n / size * size;
            0.3 * sum(&exact[first..first + size], n - first, &entry)
        })
        .collect();
    check_columns(&values, &product, &want);
}
