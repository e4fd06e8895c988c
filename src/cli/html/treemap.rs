//! Treemaps: rectangles whose areas are sizes, squarified (Bruls, Huizing, van Wijk, 2000), in two
//! levels.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::names::layer;
use super::text::{Text, at, ending, things};
use crate::format_bytes;

/// Size of the picture, in units of which text has 11.
const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 480.0;

/// Height of each of two pictures.
const HALF_HEIGHT: f64 = 320.0;

/// Least area of a rectangle. What is smaller is drawn together.
const LEAST_AREA: f64 = 60.0;

/// Height of the line with a module's name.
const TITLE: f64 = 14.0;

/// Width of a character, about.
const CHARACTER: f64 = 6.7;

/// A tensor in a treemap.
pub(super) struct Leaf<'a> {
    pub name: &'a str,
    pub bytes: u64,
    /// Number of the colour.
    pub color: usize,
    /// What is said of the tensor besides its name and size.
    pub about: String,
}

/// Tensors that are drawn together.
pub(super) struct MappedModule<'a> {
    pub name: &'a str,
    pub leaves: Vec<Leaf<'a>>,
}

#[derive(Debug, Clone, Copy)]
struct Rectangle {
    x: f64,
    y: f64,
    width: f64,
    height: f64,
}

impl Rectangle {
    fn area(&self) -> f64 {
        self.width * self.height
    }

    /// The rectangle without `margin` at each side.
    fn inner(&self, margin: f64) -> Self {
        Self {
            x: self.x + margin,
            y: self.y + margin,
            width: (self.width - 2.0 * margin).max(0.0),
            height: (self.height - 2.0 * margin).max(0.0),
        }
    }

    fn svg(&self) -> String {
        let [x, y, width, height] = [self.x, self.y, self.width, self.height].map(at);
        format!("x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\"")
    }
}

/// Divides `space` into rectangles of these sizes, which are sorted, the largest first.
fn squarify(sizes: &[f64], mut space: Rectangle) -> Vec<Rectangle> {
    let total: f64 = sizes.iter().sum();
    let scale = match total > 0.0 {
        true => space.area() / total,
        false => 0.0,
    };
    let areas: Vec<f64> = sizes.iter().map(|size| size * scale).collect();
    let (mut out, mut rest) = (Vec::with_capacity(sizes.len()), areas.as_slice());
    while let [first, ..] = rest {
        let side = space.width.min(space.height).max(1e-9);
        // The row gets another rectangle as long as its worst shape becomes no worse.
        let worst = |sum: f64, largest: f64, smallest: f64| {
            let square = side * side;
            (square * largest / (sum * sum)).max(sum * sum / (square * smallest.max(1e-12)))
        };
        let (mut n, mut sum) = (1, *first);
        while let Some(next) = rest.get(n) {
            if worst(sum + next, *first, *next) > worst(sum, *first, rest[n - 1]) {
                break;
            }
            (n, sum) = (n + 1, sum + next);
        }
        let depth = sum / side;
        let is_column = space.width >= space.height;
        let mut along = 0.0;
        for area in &rest[..n] {
            let length = area / depth.max(1e-12);
            out.push(match is_column {
                true => Rectangle { x: space.x, y: space.y + along, width: depth, height: length },
                false => Rectangle { x: space.x + along, y: space.y, width: length, height: depth },
            });
            along += length;
        }
        match is_column {
            true => {
                space.x += depth;
                space.width = (space.width - depth).max(0.0);
            }
            false => {
                space.y += depth;
                space.height = (space.height - depth).max(0.0);
            }
        }
        rest = &rest[n..];
    }
    out
}

/// Number of `sizes`, the largest first, that are drawn by themselves in `area`: the others are
/// smaller than [`LEAST_AREA`]. One is not drawn together with nothing.
fn drawn(sizes: &[f64], area: f64) -> usize {
    let total: f64 = sizes.iter().sum();
    let n = sizes.partition_point(|size| size / total.max(1e-9) * area >= LEAST_AREA);
    match sizes.len() - n {
        1 => sizes.len(),
        _ => n,
    }
}

/// Draws a treemap of `modules`, of which `label` says what it shows; a lower one if it is `one_of_two`.
pub(super) fn draw(
    label: &str,
    mut modules: Vec<MappedModule<'_>>,
    one_of_two: bool,
    out: &mut String,
) {
    let height = if one_of_two { HALF_HEIGHT } else { HEIGHT };
    let bytes = |leaves: &[Leaf<'_>]| leaves.iter().map(|leaf| leaf.bytes as f64).sum::<f64>();
    for module in &mut modules {
        module.leaves.retain(|leaf| leaf.bytes > 0);
        module
            .leaves
            .sort_by_key(|leaf| std::cmp::Reverse(leaf.bytes));
    }
    modules.retain(|module| !module.leaves.is_empty());
    // Layers of one size are in the order of their numbers, which files need not have.
    let number = |module: &MappedModule<'_>| layer(module.name).map(|layer| layer.number);
    modules.sort_by(|a, b| {
        let by_size = bytes(&b.leaves).total_cmp(&bytes(&a.leaves));
        by_size.then_with(|| number(a).cmp(&number(b)))
    });
    let mut sizes: Vec<f64> = modules.iter().map(|module| bytes(&module.leaves)).collect();
    let all = Rectangle { x: 0.0, y: 0.0, width: WIDTH, height };
    let n = drawn(&sizes, all.area());
    let rest: f64 = sizes[n..].iter().sum();
    sizes.truncate(n);
    if n < modules.len() {
        // Where it is largest, the layout is no longer sorted; the shapes are a little worse.
        sizes.push(rest);
    }
    let _ = write!(
        out,
        "<div class=\"picture\"><svg class=\"treemap\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{}\">",
        Text(label)
    );
    let places = squarify(&sizes, all);
    for (module, place) in modules[..n].iter().zip(&places) {
        draw_module(module, place, out);
    }
    if let (true, Some(place)) = (n < modules.len(), places.last()) {
        let more = things((modules.len() - n) as u64, "smaller module");
        draw_rest(place, &more, modules[n..].iter().flat_map(|module| &module.leaves), out);
    }
    out.push_str("</svg></div>\n");
}

fn draw_module(module: &MappedModule<'_>, place: &Rectangle, out: &mut String) {
    let mut space = place.inner(1.5);
    let mut sizes: Vec<f64> = module.leaves.iter().map(|leaf| leaf.bytes as f64).collect();
    let total: f64 = sizes.iter().sum();
    out.push_str("<g>");
    let is_titled = module.leaves.len() > 1 && space.height > 3.0 * TITLE && space.width > 44.0;
    if is_titled {
        let line = Rectangle { height: TITLE, ..space };
        let (text, title) = (fitting(module.name, space.width), module.name);
        let _ = write!(
            out,
            "<text class=\"m\" x=\"{}\" y=\"{}\">{}<title>{}: {}</title></text>",
            at(line.x + 2.0),
            at(line.y + 10.5),
            Text(&text),
            Text(title),
            format_bytes(total as u64)
        );
        space.y += TITLE;
        space.height -= TITLE;
    }
    let n = drawn(&sizes, space.area());
    let rest: f64 = sizes[n..].iter().sum();
    sizes.truncate(n);
    if n < module.leaves.len() {
        sizes.push(rest);
    }
    let places = squarify(&sizes, space);
    for (leaf, place) in module.leaves[..n].iter().zip(&places) {
        let cell = place.inner(0.5);
        let _ = write!(
            out,
            "<rect class=\"c{}\" {}><title>{}\n{}, {}</title></rect>",
            leaf.color,
            cell.svg(),
            Text(leaf.name),
            format_bytes(leaf.bytes),
            Text(&leaf.about)
        );
        if cell.width > 40.0 && cell.height > 15.0 {
            let short = leaf.name.strip_prefix(module.name).filter(|_| is_titled);
            let short = short.map_or(leaf.name, |short| short.trim_start_matches('.'));
            let text = fitting(short.strip_suffix(".weight").unwrap_or(short), cell.width);
            let (x, y) = (at(cell.x + 3.0), at(cell.y + 11.5));
            let _ = write!(out, "<text x=\"{x}\" y=\"{y}\">{}</text>", Text(&text));
        }
    }
    if let (true, Some(place)) = (n < module.leaves.len(), places.last()) {
        let more = things((module.leaves.len() - n) as u64, "smaller tensor");
        let what = format!("{}: {more}", module.name);
        draw_rest(&place.inner(0.5), &what, module.leaves[n..].iter(), out);
    }
    out.push_str("</g>");
}

/// Draws the `leaves` that are too small to be drawn by themselves, in the colour of most of them.
fn draw_rest<'a>(
    place: &Rectangle,
    what: &str,
    leaves: impl Iterator<Item = &'a Leaf<'a>>,
    out: &mut String,
) {
    let mut sums: BTreeMap<usize, u64> = BTreeMap::new();
    for leaf in leaves {
        let sum = sums.entry(leaf.color).or_default();
        *sum = sum.saturating_add(leaf.bytes);
    }
    let color = sums
        .iter()
        .max_by_key(|(_, bytes)| **bytes)
        .map_or(0, |(color, _)| *color);
    let bytes = sums
        .values()
        .fold(0, |sum: u64, bytes| sum.saturating_add(*bytes));
    let size = format_bytes(bytes);
    let _ = write!(
        out,
        "<rect class=\"more c{color}\" {}><title>{}, {size} together</title></rect>",
        place.svg(),
        Text(what)
    );
    if place.width > 60.0 && place.height > 15.0 {
        let text = fitting(what.rsplit(": ").next().unwrap_or(what), place.width);
        let (x, y) = (at(place.x + 3.0), at(place.y + 11.5));
        let _ = write!(out, "<text x=\"{x}\" y=\"{y}\">{}</text>", Text(&text));
    }
}

/// As much of the end of `name` as `width` holds. A part of which less than three characters are left
/// is left out.
fn fitting(name: &str, width: f64) -> String {
    let text = ending(name, ((width - 5.0) / CHARACTER).max(2.0) as usize);
    let rest = text.strip_prefix('…').and_then(|cut| cut.split_once('.'));
    match rest {
        Some((part, rest)) if part.chars().count() < 3 && !rest.is_empty() => rest.to_owned(),
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_end_with_whole_parts() {
        let width = |n: f64| n * CHARACTER + 5.5;
        assert_eq!(fitting("attention.self.key", width(7.0)), "key");
        assert_eq!(fitting("attention.self.key", width(9.0)), "…self.key");
        assert_eq!(fitting("mlp.up_proj", width(20.0)), "mlp.up_proj");
        assert_eq!(fitting("a.", width(0.0)), "a.");
    }

    /// The areas are the sizes, and nothing lies outside or over another.
    #[test]
    fn areas_are_sizes() {
        let space = Rectangle { x: 10.0, y: 20.0, width: 600.0, height: 400.0 };
        let sizes = [6.0, 6.0, 4.0, 3.0, 2.0, 2.0, 1.0];
        let found = squarify(&sizes, space);
        for (i, (place, size)) in found.iter().zip(sizes).enumerate() {
            assert!((place.area() - size * 10_000.0).abs() < 1e-6, "{place:?}");
            assert!(place.x >= 10.0 - 1e-9 && place.x + place.width <= 610.0 + 1e-9);
            assert!(place.y >= 20.0 - 1e-9 && place.y + place.height <= 420.0 + 1e-9);
            for other in &found[..i] {
                let apart = place.x + 1e-9 >= other.x + other.width
                    || other.x + 1e-9 >= place.x + place.width
                    || place.y + 1e-9 >= other.y + other.height
                    || other.y + 1e-9 >= place.y + place.height;
                assert!(apart, "{place:?} {other:?}");
            }
        }
        // The example of the paper: 3 by 2, 3 by 2, …
        assert_eq!([found[0].width, found[0].height], [300.0, 200.0]);
    }

    #[test]
    fn sizes_of_any_kind_give_finite_places() {
        let space = Rectangle { x: 0.0, y: 0.0, width: 100.0, height: 100.0 };
        for sizes in [&[][..], &[0.0, 0.0], &[1e300, 1.0], &[1.0], &[1.8e19, 1.8e19, 1.0]] {
            for place in squarify(sizes, space) {
                let all = [place.x, place.y, place.width, place.height];
                assert!(all.iter().all(|x| x.is_finite()), "{sizes:?}: {place:?}");
            }
        }
    }
}
