//! Histograms of magnitudes: the share of values between neighbouring powers of two, before and
//! after.

use std::fmt::Write;

use super::text::{Text, at, count, ending, percent, power_of_two, things};
use crate::hooks::{Distribution, Magnitudes};

/// Classes of modules that have a histogram of their own: those with the most values.
const MOST_SHOWN: usize = 12;

/// Size of a histogram.
const WIDTH: f64 = 380.0;
const HEIGHT: f64 = 150.0;
const BOTTOM: f64 = 18.0;

/// Widest range that is always drawn whole. Of a wider one the octaves at its lower end that hold
/// less than this share of the values are drawn together.
const MOST_OCTAVES: i32 = 24;
const HARDLY_ANY: f64 = 1e-5;

/// Characters of a title.
const TITLE_LENGTH: usize = 40;

/// Writes the section of histograms, of one model or of `two`.
pub(super) fn section(found: &Distribution, two: bool, out: &mut String) {
    let (mut a, mut b) = (Magnitudes::default(), Magnitudes::default());
    for class in &found.classes {
        a.merge(&class.a);
        b.merge(&class.b);
    }
    let tensors: usize = found.classes.iter().map(|class| class.tensors).sum();
    out.push_str("<section id=\"values\"><h2>Sizes of values</h2>\n");
    unread(found, out);
    if found.classes.is_empty() {
        out.push_str("</section>\n");
        return;
    }
    out.push_str("<p>");
    let of_both = if two {
        " that both models have in one shape"
    } else {
        ""
    };
    let _ = write!(
        out,
        "All {} of the {}{of_both}, as they are decoded; none is sampled. A bar is the share of values <i>x</i> with \
         2<sup>k</sup> ≤ |<i>x</i>| &lt; 2<sup>k+1</sup>; zeros, NaN and infinities are counted apart.",
        things(a.values, "value"),
        things(tensors as u64, "tensor")
    );
    if two {
        out.push_str(" Filled: A. Outlined: B.");
    }
    out.push_str("</p>\n");
    let b = two.then_some(b);
    out.push_str("<div class=\"grid\">\n");
    figure("All values", tensors, &a, b.as_ref(), out);
    let mut classes: Vec<_> = found.classes.iter().collect();
    classes.sort_by_key(|class| std::cmp::Reverse(class.a.values));
    // One class alone is the whole.
    let shown = if classes.len() == 1 { 0 } else { MOST_SHOWN };
    for class in classes.iter().take(shown) {
        let b = two.then_some(&class.b);
        figure(&class.class, class.tensors, &class.a, b, out);
    }
    out.push_str("</div>\n");
    let more = classes.len().saturating_sub(MOST_SHOWN);
    if more > 0 {
        let _ = writeln!(
            out,
            "<p class=\"note\">Not shown: {more} more with fewer values. <code>amn show FILE TENSOR</code> has the histogram \
             of any tensor.</p>"
        );
    }
    out.push_str("</section>\n");
}

/// Names the tensors whose values could not be read.
fn unread(found: &Distribution, out: &mut String) {
    match found.unread.as_slice() {
        [] => {}
        [(name, reason)] if name.is_empty() => {
            let _ = writeln!(out, "<p class=\"error\">They cannot be read: {}</p>", Text(reason));
        }
        all => {
            let n = all.len();
            let what = things(n as u64, "tensor");
            let _ = write!(out, "<p class=\"error\">{what} could not be read:");
            for (name, reason) in all.iter().take(MOST_SHOWN) {
                let _ = write!(out, "<br><code>{}</code>: {}", Text(name), Text(reason));
            }
            if n > MOST_SHOWN {
                let _ = write!(out, "<br>and {} more", n - MOST_SHOWN);
            }
            out.push_str("</p>\n");
        }
    }
}

/// A histogram with its title and what is counted apart.
fn figure(title: &str, tensors: usize, a: &Magnitudes, b: Option<&Magnitudes>, out: &mut String) {
    let _ = write!(
        out,
        "<figure><figcaption title=\"{}\"><b>{}</b><span>{}, {}</span></figcaption>",
        Text(title),
        Text(&ending(title, TITLE_LENGTH)),
        things(tensors as u64, "tensor"),
        things(a.values, "value")
    );
    draw(title, a, b, out);
    let apart = |m: &Magnitudes| {
        let share = m.zeros as f64 / (m.values as f64).max(1.0);
        let mut text = format!("zeros {}", percent(share));
        for (n, what) in [(m.nan, "NaN"), (m.infinite, "infinite")] {
            if n > 0 {
                let _ = write!(text, ", <span class=\"error\">{what} {}</span>", count(n));
            }
        }
        text
    };
    let _ = match b {
        Some(b) => writeln!(out, "<p>A: {}. B: {}.</p></figure>", apart(a), apart(b)),
        None => writeln!(out, "<p>{}</p></figure>", apart(a)),
    };
}

/// The counts of one model in a histogram.
struct Side {
    /// Class of its bars.
    class: &'static str,
    /// What is said behind a bar.
    label: &'static str,
    values: u64,
    octaves: Vec<(i32, u64)>,
}

impl Side {
    fn new(class: &'static str, label: &'static str, found: &Magnitudes) -> Self {
        Self { class, label, values: found.values, octaves: found.octaves().collect() }
    }

    fn share(&self, n: u64) -> f64 {
        n as f64 / (self.values as f64).max(1.0)
    }

    /// The power below which hardly any values lie.
    fn lowest(&self) -> Option<i32> {
        let mut sum = 0;
        let found = self.octaves.iter().find(|(_, n)| {
            sum += n;
            self.share(sum) > HARDLY_ANY
        });
        found.or(self.octaves.first()).map(|(power, _)| *power)
    }

    /// Adds the counts below `lowest` to those there. Returns whether there are any.
    fn fold(&mut self, lowest: i32) -> bool {
        let n = self.octaves.partition_point(|(power, _)| *power < lowest);
        let sum: u64 = self.octaves.drain(..n).map(|(_, n)| n).sum();
        match self.octaves.first_mut() {
            Some((power, n)) if *power == lowest => *n += sum,
            _ if sum > 0 => self.octaves.insert(0, (lowest, sum)),
            _ => {}
        }
        n > 0
    }
}

fn draw(title: &str, a: &Magnitudes, b: Option<&Magnitudes>, out: &mut String) {
    let label = if b.is_some() { ", A" } else { "" };
    let mut sides = vec![Side::new("a", label, a)];
    sides.extend(b.map(|b| Side::new("b", ", B", b)));
    let powers = || {
        sides
            .iter()
            .flat_map(|side| &side.octaves)
            .map(|(power, _)| *power)
    };
    let (Some(least), Some(to)) = (powers().min(), powers().max()) else {
        out.push_str("<p>no finite value but 0</p>");
        return;
    };
    let lowest = sides.iter().filter_map(Side::lowest).min().unwrap_or(least);
    let from = if to - least < MOST_OCTAVES {
        least
    } else {
        lowest
    };
    let mut is_folded = false;
    for side in &mut sides {
        is_folded |= side.fold(from);
    }
    let shares = sides
        .iter()
        .flat_map(|side| side.octaves.iter().map(|(_, n)| side.share(*n)));
    let most = shares.fold(1e-12, f64::max);
    let place = WIDTH / f64::from(to - from + 1);
    let x = |power: i32| f64::from(power - from) * place;
    let _ = write!(
        out,
        "<svg class=\"bars\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"Histogram of {}\">",
        Text(title)
    );
    for side in &sides {
        for &(power, n) in &side.octaves {
            let height = (side.share(n) / most * (HEIGHT - BOTTOM - 4.0)).max(0.5);
            let range = match is_folded && power == from {
                true => format!("below {}", power_of_two(power + 1)),
                false => format!("{} to {}", power_of_two(power), power_of_two(power + 1)),
            };
            let _ = write!(
                out,
                "<rect class=\"{}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" data-v=\"{n}\"><title>{range}: {} ({}){}</title></rect>",
                side.class,
                at(x(power) + 0.5),
                at(HEIGHT - BOTTOM - height),
                at((place - 1.0).max(0.5)),
                at(height),
                things(n, "value"),
                percent(side.share(n)),
                side.label
            );
        }
    }
    let every = (to - from) / 6 + 1;
    for power in (from..=to).step_by(every as usize) {
        let (x, y) = (at(x(power) + 1.0), at(HEIGHT - 5.0));
        let less = if is_folded && power == from {
            "… "
        } else {
            ""
        };
        let _ = write!(out, "<text x=\"{x}\" y=\"{y}\">{less}{}</text>", power_of_two(power));
    }
    let base = at(HEIGHT - BOTTOM);
    let _ = write!(
        out,
        "<line class=\"base\" x1=\"0\" x2=\"{WIDTH}\" y1=\"{base}\" y2=\"{base}\"/></svg>"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A few tiny values do not make all others narrow, and stay counted.
    #[test]
    fn tiny_values_are_drawn_together() {
        let mut side = Side {
            class: "a",
            label: "",
            values: 1_000_002,
            octaves: vec![(-90, 1), (-80, 1), (-8, 400_000), (-7, 600_000)],
        };
        assert_eq!(side.lowest(), Some(-8));
        assert!(side.fold(-8));
        assert_eq!(side.octaves, [(-8, 400_002), (-7, 600_000)]);
        assert!(!side.fold(-8));
        assert!(side.fold(-2));
        assert_eq!(side.octaves, [(-2, 1_000_002)]);
    }
}
