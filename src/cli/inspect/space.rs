//! What takes the space of a model: a bar for each scheme, and for each element type of what is not
//! quantized.

use std::io::Write;

use super::super::listing::{most_first, stored_in};
use super::super::table::{bar, cut};
use crate::error::printable;
use crate::{ParsedModel, Result, format_bytes};

/// Bars; what is left has one together.
const MOST: usize = 8;

/// Characters of the longest bar, and of a name. With the rest a line has at most 80.
const BAR: u64 = 16;
const NAME: usize = 31;

/// Bytes of all tensors by what they are stored in, most first.
pub(super) fn by_storage(model: &ParsedModel) -> Vec<(String, u64)> {
    let listed = model.list();
    let mut sums = most_first(listed.iter().map(|t| (stored_in(t), t.bytes)));
    sums.retain(|(_, bytes)| *bytes > 0);
    sums
}

/// Prints the picture. There is none if all tensors are stored in the same.
pub(super) fn print(model: &ParsedModel, out: &mut impl Write) -> Result<()> {
    let mut sums = by_storage(model);
    if sums.len() < 2 {
        return Ok(());
    }
    let whole = sums.iter().fold(0u64, |all, (_, n)| all.saturating_add(*n));
    if sums.len() > MOST {
        let rest = sums.split_off(MOST - 1);
        let bytes = rest.iter().fold(0u64, |all, (_, n)| all.saturating_add(*n));
        sums.push((format!("{} others", rest.len()), bytes));
    }
    let longest = sums.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0);
    for (i, (name, bytes)) in sums.into_iter().enumerate() {
        let label = if i == 0 { "Space:" } else { "" };
        let share = match bytes as f64 / whole as f64 * 100.0 {
            x if x < 1.0 => "<1 %".to_owned(),
            x if x >= 99.5 => ">99 %".to_owned(),
            x => format!("{x:.0} %"),
        };
        let (bar, size) = (bar(bytes, longest, BAR), format_bytes(bytes));
        let name = cut(&printable(&name), NAME);
        let width = BAR as usize;
        writeln!(out, "{label:<12} {bar:<width$} {share:>5}  {size:>9}  {name}")?;
    }
    Ok(())
}
