//! Matrices of rotations: which of those that fp_quant writes it is.

use crate::remember::kernels::hadamard::HadamardColumns;

/// The columns of a matrix of `size` rows, and the absolute value of its entries. `None` if it is
/// no matrix of these kinds.
pub(super) fn columns(values: &[f32], size: usize) -> Option<(HadamardColumns, f32)> {
    let is_one = |at: usize| f32::from(u8::from(at / size == at % size));
    if values.iter().enumerate().all(|(i, &x)| x == is_one(i)) {
        return Some((HadamardColumns::Identity, 1.0));
    }
    let entry = values.first().copied().filter(|x| x.is_finite())?;
    let mut places = Vec::with_capacity(size);
    let mut is_taken = vec![false; size];
    for col in 0..size {
        // Row 2^n of S is negative where the column has bit n.
        let bits = (0..size.trailing_zeros()).filter(|n| values[(1 << n) * size + col] < 0.0);
        let place: usize = bits.map(|n| 1 << n).sum();
        let is_its = |row: usize| {
            let is_negative = (row & place).count_ones() % 2 == 1;
            values[row * size + col] == if is_negative { -entry } else { entry }
        };
        if entry <= 0.0 || is_taken[place] || !(0..size).all(is_its) {
            return None;
        }
        is_taken[place] = true;
        places.push(u8::try_from(place).ok()?);
    }
    let is_in_order = places
        .iter()
        .enumerate()
        .all(|(i, &place)| i == usize::from(place));
    let columns = if is_in_order {
        HadamardColumns::InOrder
    } else {
        HadamardColumns::Permuted(places)
    };
    Some((columns, entry))
}
