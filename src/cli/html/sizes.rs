//! What takes the space: a treemap of each model, and the bits for each value of each layer.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;

use super::super::listing::stored_in;
use super::super::table::brief_count;
use super::ShownModel;
use super::bars::{Bar, Scale, upright};
use super::names::{Layer, layer, module};
use super::text::{Text, bits, percent, things};
use super::treemap::{Leaf, MappedModule, draw};
use crate::{ListedTensor, format_bytes};

/// Number of colours; what is left has one together.
pub(super) const COLORS: usize = 8;

/// Stacks of layers that are drawn, and layers of each.
const MOST_STACKS: usize = 6;
const MOST_LAYERS: usize = 256;

/// Bytes, values and number of tensors.
#[derive(Default, Clone, Copy)]
struct Sum {
    bytes: u64,
    values: u64,
    tensors: usize,
}

impl Sum {
    fn add(&mut self, t: &ListedTensor<'_>) {
        self.bytes = self.bytes.saturating_add(t.bytes);
        self.values = self.values.saturating_add(t.parameters.unwrap_or(0));
        self.tensors += 1;
    }

    fn bits(&self) -> Option<f64> {
        (self.values > 0).then(|| self.bytes as f64 * 8.0 / self.values as f64)
    }
}

/// What tensors of the models are stored in, the largest first: the number of each is its colour.
pub(super) struct Colors(HashMap<String, usize>);

impl Colors {
    pub(super) fn of(models: &[ShownModel<'_>]) -> Self {
        let mut sums: BTreeMap<String, u64> = BTreeMap::new();
        for t in models.iter().flat_map(|model| &model.tensors) {
            let sum = sums.entry(stored_in(t)).or_default();
            *sum = sum.saturating_add(t.bytes);
        }
        let mut sums: Vec<_> = sums.into_iter().collect();
        sums.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        let numbered = sums
            .into_iter()
            .enumerate()
            .map(|(i, (name, _))| (name, i.min(COLORS)));
        Self(numbered.collect())
    }

    pub(super) fn color(&self, name: &str) -> usize {
        self.0.get(name).copied().unwrap_or(COLORS)
    }
}

/// Writes the treemap of `model`, and what its colours mean.
pub(super) fn treemap(model: &ShownModel<'_>, colors: &Colors, out: &mut String) {
    let mut modules: Vec<MappedModule<'_>> = Vec::new();
    let mut at: HashMap<&str, usize> = HashMap::new();
    let mut sums: BTreeMap<(usize, String), Sum> = BTreeMap::new();
    for t in &model.tensors {
        let stored = stored_in(t);
        let name = module(t.name);
        let i = *at.entry(name).or_insert_with(|| {
            modules.push(MappedModule { name, leaves: Vec::new() });
            modules.len() - 1
        });
        let color = colors.color(&stored);
        modules[i].leaves.push(Leaf {
            name: t.name,
            bytes: t.bytes,
            color,
            about: format!("{} {:?}, {stored}", t.dtype, t.shape),
        });
        // What has no colour of its own is one line.
        let stored = if color < COLORS {
            stored
        } else {
            "others".to_owned()
        };
        sums.entry((color, stored)).or_default().add(t);
    }
    let total = model.info.current_size;
    let label = format!("Sizes of the tensors{}, by module and tensor", model.of_label());
    draw(&label, modules, !model.label.is_empty(), out);
    out.push_str("<ul class=\"legend\">");
    for ((color, stored), sum) in sums {
        let share = percent(sum.bytes as f64 / (total as f64).max(1.0));
        let _ = write!(
            out,
            "<li><svg viewBox=\"0 0 10 10\"><rect class=\"c{color}\" width=\"10\" height=\"10\"/></svg>{} <span>{}, {share}, {}{}</span></li>",
            Text(&stored),
            format_bytes(sum.bytes),
            things(sum.tensors as u64, "tensor"),
            sum.bits()
                .map_or(String::new(), |x| format!(", {} bits per value", bits(x)))
        );
    }
    out.push_str("</ul>\n");
}

/// Writes the bits for each value of the layers of `model`; nothing if it has no layers.
pub(super) fn bits_by_layer(model: &ShownModel<'_>, out: &mut String) {
    let mut stacks: Vec<(&str, BTreeMap<u64, Sum>)> = Vec::new();
    let mut at: HashMap<&str, usize> = HashMap::new();
    let (mut rest, mut rest_at): (Vec<(&str, Sum)>, HashMap<&str, usize>) = Default::default();
    for t in &model.tensors {
        match layer(t.name) {
            Some(Layer { stack, number }) => {
                let i = *at.entry(stack).or_insert_with(|| {
                    stacks.push((stack, BTreeMap::new()));
                    stacks.len() - 1
                });
                stacks[i].1.entry(number).or_default().add(t);
            }
            None => {
                let name = module(t.name);
                let i = *rest_at.entry(name).or_insert_with(|| {
                    rest.push((name, Sum::default()));
                    rest.len() - 1
                });
                rest[i].1.add(t);
            }
        }
    }
    let size = |layers: &BTreeMap<u64, Sum>| layers.values().map(|sum| sum.bytes).sum::<u64>();
    stacks.sort_by_key(|(_, layers)| std::cmp::Reverse(size(layers)));
    for (stack, layers) in stacks.iter().take(MOST_STACKS) {
        let bars: Vec<Bar> = layers
            .iter()
            .take(MOST_LAYERS)
            .map(|(number, sum)| Bar {
                label: number.to_string(),
                title: title(&format!("{stack}.{number}"), sum),
                value: sum.bits(),
                is_marked: false,
            })
            .collect();
        let _ = writeln!(out, "<h3><code>{}</code>{}</h3>", Text(stack), model.of_label());
        let scale = Scale::linear(bars.iter().filter_map(|bar| bar.value));
        upright(&format!("Bits per value of the layers of {stack}"), &scale, &bars, out);
        if layers.len() > MOST_LAYERS {
            let n = layers.len();
            let _ = writeln!(out, "<p class=\"note\">The first {MOST_LAYERS} of {n} layers.</p>");
        }
    }
    if stacks.len() > MOST_STACKS {
        let _ = writeln!(
            out,
            "<p class=\"note\">The {MOST_STACKS} largest of {} stacks of layers.</p>",
            stacks.len()
        );
    }
    rest.retain(|(_, sum)| sum.values > 0);
    rest.sort_by_key(|(_, sum)| std::cmp::Reverse(sum.bytes));
    if !rest.is_empty() && !stacks.is_empty() {
        out.push_str("<p class=\"note\">Outside of layers: ");
        for (i, (name, sum)) in rest.iter().take(MOST_STACKS).enumerate() {
            let comma = if i > 0 { ", " } else { "" };
            let x = sum.bits().map_or("–".to_owned(), bits);
            let _ = write!(out, "{comma}<code>{}</code> {x} bits", Text(name));
        }
        match rest.len().saturating_sub(MOST_STACKS) {
            0 => out.push_str(".</p>\n"),
            more => {
                let _ = writeln!(out, ", and {more} more.</p>");
            }
        }
    }
}

fn title(name: &str, sum: &Sum) -> String {
    let x = sum
        .bits()
        .map_or("no values".to_owned(), |x| format!("{} bits per value", bits(x)));
    let (size, values) = (format_bytes(sum.bytes), brief_count(sum.values));
    format!("{name}: {x}, {size}, {values} values in {}", things(sum.tensors as u64, "tensor"))
}
