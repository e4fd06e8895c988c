//! Blocks of columns or rows that are multiplied with a matrix, in F64.

use super::hadamard::butterflies;

/// What the vectors of a block are multiplied with: `x[j]` becomes the sum over i of `x[i] * m[i][j]`, times a factor.
pub(crate) enum BlockMatrix {
    /// The Kronecker power of `[[1,1],[1,-1]]`, of a power of two of rows.
    Sylvester,
    /// Its rows times these numbers, 1 or -1: it is not symmetric.
    SignedRows(Vec<f64>),
    /// Its columns times these numbers.
    SignedColumns(Vec<f64>),
    /// Row-major.
    Dense(Vec<f64>),
}

impl BlockMatrix {
    /// Multiplies each block of `size` columns of all rows, or of rows of `width` values.
    pub(crate) fn multiply(&self, values: &mut [f64], size: usize, width: usize, factor: f64) {
        let mut products = Vec::new();
        for block in values.chunks_exact_mut((size * width).max(1)) {
            match self {
                Self::Sylvester => butterflies(block, width),
                Self::SignedRows(signs) => {
                    scale(block, signs, width);
                    butterflies(block, width);
                }
                Self::SignedColumns(signs) => {
                    butterflies(block, width);
                    scale(block, signs, width);
                }
                Self::Dense(matrix) => {
                    products.clear();
                    products.resize(block.len(), 0.0);
                    add_products(block, matrix, (size, width), &mut products);
                    block.copy_from_slice(&products);
                }
            }
            block.iter_mut().for_each(|x| *x *= factor);
        }
    }
}

/// Multiplies line i of `width` values with number i.
fn scale(block: &mut [f64], numbers: &[f64], width: usize) {
    for (line, number) in block.chunks_exact_mut(width.max(1)).zip(numbers) {
        line.iter_mut().for_each(|x| *x *= number);
    }
}

fn add_products(
    block: &[f64],
    matrix: &[f64],
    (size, width): (usize, usize),
    products: &mut [f64],
) {
    let lines = block.chunks_exact(width.max(1));
    for (line, row) in lines.zip(matrix.chunks_exact(size.max(1))) {
        // The loop over a line of one value would not be vectorised, and this one is.
        if let [x] = line {
            for (sum, factor) in products.iter_mut().zip(row) {
                *sum += factor * x;
            }
            continue;
        }
        for (sums, factor) in products.chunks_exact_mut(width.max(1)).zip(row) {
            for (sum, x) in sums.iter_mut().zip(line) {
                *sum += factor * x;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every matrix multiplies columns and rows as its entries say.
    #[test]
    fn multiplies_as_its_entries_say() {
        const SIZE: usize = 8;
        let hadamard = |i: usize, j: usize| 1.0 - 2.0 * f64::from((i & j).count_ones() % 2);
        let signs: Vec<f64> = [1.0, -1.0, -1.0, 1.0, -1.0, 1.0, 1.0, 1.0].to_vec();
        let dense = |i: usize, j: usize| (i * 11 + j * 5) as f64 - 30.0;
        let all = (0..SIZE).flat_map(|i| (0..SIZE).map(move |j| dense(i, j)));
        type Entry<'a> = Box<dyn Fn(usize, usize) -> f64 + 'a>;
        let cases: [(BlockMatrix, Entry<'_>); 4] = [
            (BlockMatrix::Sylvester, Box::new(hadamard)),
            (
                BlockMatrix::SignedRows(signs.clone()),
                Box::new(|i, j| signs[i] * hadamard(i, j)),
            ),
            (
                BlockMatrix::SignedColumns(signs.clone()),
                Box::new(|i, j| signs[j] * hadamard(i, j)),
            ),
            (BlockMatrix::Dense(all.collect()), Box::new(dense)),
        ];
        for (matrix, entry) in cases {
            for width in [1, 3] {
                let values: Vec<f64> = (0..2 * SIZE * width).map(|n| (n * n % 17) as f64).collect();
                let mut got = values.clone();
                matrix.multiply(&mut got, SIZE, width, 0.5);
                let place = |block: usize, i: usize, x: usize| (block * SIZE + i) * width + x;
                for (block, j, x) in (0..2)
                    .flat_map(|b| (0..SIZE).flat_map(move |j| (0..width).map(move |x| (b, j, x))))
                {
                    let terms = (0..SIZE).map(|i| values[place(block, i, x)] * entry(i, j));
                    let sum: f64 = terms.sum();
                    assert_eq!(got[place(block, j, x)], sum * 0.5);
                }
            }
        }
    }
}
