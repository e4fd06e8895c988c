//! Errors of values, by layer and by class of modules: of a comparison, or of encoding.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;

use super::bars::{Bar, Scale, lying, upright};
use super::names::{Layer, layer};
use super::text::{Text, error, percent, things};
use crate::hooks::Distribution;
use crate::{DiffReport, Report};

/// Classes that have a bar: those with the largest errors.
const MOST_CLASSES: usize = 30;

/// Stacks of layers that are drawn, and layers of each.
const MOST_STACKS: usize = 6;
const MOST_LAYERS: usize = 256;

/// Tensors that are named as the worst.
const WORST: usize = 5;

/// The error of the values of a tensor.
pub(super) struct TensorError<'a> {
    pub name: &'a str,
    /// Number of values.
    pub values: u64,
    /// Root of the mean squared difference.
    pub rmse: f64,
    /// Largest absolute difference.
    pub max: f64,
    /// `rmse` divided by the root mean square of the original values, where that is known.
    pub relative: Option<f64>,
}

/// The errors of the tensors whose values differ.
pub(super) fn of_diff(report: &DiffReport) -> Vec<TensorError<'_>> {
    let errors = report.changed.iter().filter_map(|tensor| {
        let values = tensor.values.as_ref().filter(|values| values.unequal > 0)?;
        Some(TensorError {
            name: &tensor.name,
            values: values.values - values.not_finite,
            rmse: values.rmse?,
            max: values.max_abs?,
            relative: None,
        })
    });
    errors.collect()
}

/// The errors of the tensors that were encoded.
pub(super) fn of_encoding(report: &Report) -> Vec<TensorError<'_>> {
    let tensors = report
        .distance
        .iter()
        .flat_map(|distance| &distance.tensors);
    let errors = tensors.map(|tensor| TensorError {
        name: &tensor.name,
        values: tensor.errors.values,
        rmse: tensor.errors.rmse,
        max: tensor.errors.maximum,
        relative: Some(tensor.errors.relative),
    });
    errors.collect()
}

/// Squared differences of several tensors.
#[derive(Default)]
struct Sum<'a> {
    values: u64,
    squares: f64,
    tensors: usize,
    worst: Option<&'a TensorError<'a>>,
}

impl<'a> Sum<'a> {
    fn add(&mut self, tensor: &'a TensorError<'a>) {
        self.values += tensor.values;
        self.squares += tensor.rmse * tensor.rmse * tensor.values as f64;
        self.tensors += 1;
        if self.worst.is_none_or(|worst| tensor.rmse > worst.rmse) {
            self.worst = Some(tensor);
        }
    }

    fn rmse(&self) -> f64 {
        (self.squares / (self.values as f64).max(1.0)).sqrt()
    }

    fn bar(&self, label: String, name: &str, is_marked: bool) -> Bar {
        let (rmse, n) = (error(self.rmse()), things(self.tensors as u64, "tensor"));
        let worst = self
            .worst
            .map(|t| format!(", largest {} in {}", error(t.rmse), t.name));
        Bar {
            label,
            title: format!("{name}: RMSE {rmse} over {n}{}", worst.unwrap_or_default()),
            value: Some(self.rmse()),
            is_marked,
        }
    }
}

/// Writes the section of `errors`; `what` says whose they are.
pub(super) fn section(what: &str, errors: &[TensorError<'_>], out: &mut String) {
    let _ = writeln!(out, "<section id=\"errors\"><h2>Errors</h2>\n<p>{what}</p>");
    if errors.is_empty() {
        out.push_str("<p>No value differs.</p></section>\n");
        return;
    }
    worst(errors, out);
    by_layer(errors, out);
    by_class(errors, out);
    out.push_str("</section>\n");
}

/// Names the tensors with the largest errors.
fn worst(errors: &[TensorError<'_>], out: &mut String) {
    let mut sorted: Vec<_> = errors.iter().collect();
    let size = |t: &TensorError<'_>| t.relative.unwrap_or(t.rmse);
    sorted.sort_by(|a, b| size(b).total_cmp(&size(a)));
    out.push_str("<p>Largest:</p><ol class=\"worst\">");
    for t in sorted.iter().take(WORST) {
        let relative = t
            .relative
            .map_or(String::new(), |x| format!(" ({})", percent(x)));
        let _ = write!(
            out,
            "<li><code>{}</code> RMSE {}{relative}, largest difference {}</li>",
            Text(t.name),
            error(t.rmse),
            error(t.max)
        );
    }
    out.push_str("</ol>\n");
}

fn by_layer(errors: &[TensorError<'_>], out: &mut String) {
    let mut stacks: Vec<(&str, BTreeMap<u64, Sum<'_>>)> = Vec::new();
    let mut at: HashMap<&str, usize> = HashMap::new();
    for t in errors {
        if let Some(Layer { stack, number }) = layer(t.name) {
            let i = *at.entry(stack).or_insert_with(|| {
                stacks.push((stack, BTreeMap::new()));
                stacks.len() - 1
            });
            stacks[i].1.entry(number).or_default().add(t);
        }
    }
    let n = stacks.len();
    for (stack, layers) in stacks.iter().take(MOST_STACKS) {
        let largest = layers.values().map(Sum::rmse).fold(0.0, f64::max);
        let bars: Vec<Bar> = layers
            .iter()
            .take(MOST_LAYERS)
            .map(|(number, sum)| {
                let is_worst = layers.len() > 1 && sum.rmse() >= largest;
                sum.bar(number.to_string(), &format!("{stack}.{number}"), is_worst)
            })
            .collect();
        let _ = writeln!(
            out,
            "<h3>RMSE of the layers of <code>{}</code>, on a logarithmic scale</h3>",
            Text(stack)
        );
        let scale = Scale::log(bars.iter().filter_map(|bar| bar.value));
        upright(&format!("RMSE of the layers of {stack}"), &scale, &bars, out);
        if layers.len() > MOST_LAYERS {
            let n = layers.len();
            let _ = writeln!(out, "<p class=\"note\">The first {MOST_LAYERS} of {n} layers.</p>");
        }
    }
    if n > MOST_STACKS {
        let _ = writeln!(out, "<p class=\"note\">{MOST_STACKS} of {n} stacks of layers.</p>");
    }
}

fn by_class(errors: &[TensorError<'_>], out: &mut String) {
    let mut classes: HashMap<String, Sum<'_>> = HashMap::new();
    for t in errors {
        classes
            .entry(Distribution::class_of(t.name))
            .or_default()
            .add(t);
    }
    let mut classes: Vec<_> = classes.into_iter().collect();
    let order = |(name, sum): &(String, Sum<'_>)| (sum.rmse(), name.clone());
    classes.sort_by(|a, b| {
        let ((x, name_x), (y, name_y)) = (order(a), order(b));
        y.total_cmp(&x).then(name_x.cmp(&name_y))
    });
    let bars: Vec<Bar> = classes
        .iter()
        .take(MOST_CLASSES)
        .enumerate()
        .map(|(i, (name, sum))| sum.bar(name.clone(), name, i == 0 && classes.len() > 1))
        .collect();
    out.push_str("<h3>RMSE of the classes of modules, on a logarithmic scale</h3>\n");
    let scale = Scale::log(bars.iter().filter_map(|bar| bar.value));
    lying("RMSE of the classes of modules", &scale, &bars, out);
    if classes.len() > MOST_CLASSES {
        let n = classes.len();
        let _ = writeln!(out, "<p class=\"note\">The {MOST_CLASSES} largest of {n} classes.</p>");
    }
}
