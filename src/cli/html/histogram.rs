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

/// Characters of a title.
const TITLE_LENGTH: usize = 46;

/// Writes the section of histograms, of one model or of `two`.
pub(super) fn section(found: &Distribution, two: bool, out: &mut String) {
    let (mut a, mut b) = (Magnitudes::default(), Magnitudes::default());
    for class in &found.classes {
        a.merge(&class.a);
        b.merge(&class.b);
    }
    let tensors: usize = found.classes.iter().map(|class| class.tensors).sum();
    out.push_str("<section id=\"values\"><h2>Sizes of values</h2>\n<p>");
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
    if !found.unread.is_empty() {
        let n = found.unread.len();
        let _ = write!(out, "<p class=\"error\">{} could not be read:", things(n as u64, "tensor"));
        for (name, reason) in found.unread.iter().take(MOST_SHOWN) {
            let _ = write!(out, "<br><code>{}</code>: {}", Text(name), Text(reason));
        }
        if n > MOST_SHOWN {
            let _ = write!(out, "<br>and {} more", n - MOST_SHOWN);
        }
        out.push_str("</p>\n");
    }
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

/// A histogram with its title and what is counted apart.
fn figure(title: &str, tensors: usize, a: &Magnitudes, b: Option<&Magnitudes>, out: &mut String) {
    let _ = write!(
        out,
        "<figure><figcaption title=\"{}\"><b>{}</b> <span>{}, {}</span></figcaption>",
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

fn draw(title: &str, a: &Magnitudes, b: Option<&Magnitudes>, out: &mut String) {
    let sides = [Some(a), b];
    let powers = || sides.iter().flatten().flat_map(|side| side.octaves());
    let (Some(from), Some(to)) = (powers().map(|(k, _)| k).min(), powers().map(|(k, _)| k).max())
    else {
        out.push_str("<p>no finite value but 0</p>");
        return;
    };
    let share = |side: &Magnitudes, n: u64| n as f64 / (side.values as f64).max(1.0);
    let most = sides
        .iter()
        .flatten()
        .flat_map(|side| side.octaves().map(|(_, n)| share(side, n)))
        .fold(1e-12, f64::max);
    let place = WIDTH / f64::from(to - from + 1);
    let x = |power: i32| f64::from(power - from) * place;
    let tall = |share: f64| share / most * (HEIGHT - BOTTOM - 4.0);
    let _ = write!(
        out,
        "<svg class=\"bars\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"Histogram of {}\">",
        Text(title)
    );
    for (side, class) in sides.iter().zip(["a", "b"]) {
        let Some(side) = side else {
            continue;
        };
        for (power, n) in side.octaves() {
            let height = tall(share(side, n)).max(0.5);
            let _ = write!(
                out,
                "<rect class=\"{class}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" data-v=\"{n}\"><title>{} to {}: {} ({}){}</title></rect>",
                at(x(power) + 0.5),
                at(HEIGHT - BOTTOM - height),
                at((place - 1.0).max(0.5)),
                at(height),
                power_of_two(power),
                power_of_two(power + 1),
                things(n, "value"),
                percent(share(side, n)),
                match (b.is_some(), class) {
                    (true, "a") => ", A",
                    (true, _) => ", B",
                    _ => "",
                }
            );
        }
    }
    let every = (to - from) / 6 + 1;
    for power in (from..=to).step_by(every as usize) {
        let (x, y) = (at(x(power) + 1.0), at(HEIGHT - 5.0));
        let _ = write!(out, "<text x=\"{x}\" y=\"{y}\">{}</text>", power_of_two(power));
    }
    let base = at(HEIGHT - BOTTOM);
    let _ = write!(
        out,
        "<line class=\"base\" x1=\"0\" x2=\"{WIDTH}\" y1=\"{base}\" y2=\"{base}\"/></svg>"
    );
}
