//! Rope of which only a part of the frequencies of a head turns.

/// What the frequencies of a head of length `head` are divided by, of which a `part` rotates: so
/// much that the others stand still. `None`: `part` is none.
pub(crate) fn proportional(head: usize, part: f64) -> Option<Vec<f32>> {
    let (pairs, rotating) = (head / 2, (head as f64 * part / 2.0) as usize);
    let still = pairs.checked_sub(rotating)?;
    Some([vec![1.0; rotating], vec![1e30; still]].concat())
}
