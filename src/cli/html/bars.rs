//! Bars: upright ones for layers, lying ones for classes of modules.

use std::fmt::Write;

use super::text::{Text, at, ending, error, exact};

/// Size of a picture of upright bars, and what is left of it for the texts of the axes.
const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 190.0;
const LEFT: f64 = 58.0;
const BOTTOM: f64 = 20.0;
const TOP: f64 = 10.0;

/// Widest bar.
const WIDEST: f64 = 36.0;

/// Height of a lying bar with its text, and where it begins.
const ROW: f64 = 20.0;
const NAMES: f64 = 330.0;

/// Characters of a class that fit before its bar.
const NAME_LENGTH: usize = 50;

/// A bar.
pub(super) struct Bar {
    pub label: String,
    /// What is said of the bar when it is pointed at.
    pub title: String,
    /// `None` if it is not known.
    pub value: Option<f64>,
    /// Whether the bar stands out.
    pub is_marked: bool,
}

/// How values become lengths.
pub(super) enum Scale {
    /// From 0, in steps of one size.
    Linear { step: f64, last: f64 },
    /// From one power of ten to another.
    Log { from: i32, to: i32 },
}

impl Scale {
    /// A scale from 0 that holds `values`.
    pub(super) fn linear(values: impl Iterator<Item = f64>) -> Self {
        let most = values.fold(0.0, f64::max).max(1e-9);
        let power = 10f64.powf((most / 4.0).log10().floor());
        let steps = [1.0, 2.0, 5.0, 10.0].map(|step| step * power);
        let step = steps.into_iter().find(|step| most / step <= 4.0);
        let step = step.unwrap_or(10.0 * power);
        Self::Linear { step, last: (most / step).ceil() * step }
    }

    /// A logarithmic scale that holds the values that are not 0.
    pub(super) fn log(values: impl Iterator<Item = f64>) -> Self {
        let (mut from, mut to) = (i32::MAX, i32::MIN);
        for value in values.filter(|x| *x > 0.0 && x.is_finite()) {
            let power = value.log10().floor() as i32;
            from = from.min(power);
            to = to.max(power.saturating_add(1));
        }
        match from < to {
            true => Self::Log { from, to },
            false => Self::Log { from: -1, to: 0 },
        }
    }

    /// The length of `value`, as a share of the axis.
    fn share(&self, value: f64) -> f64 {
        let share = match self {
            Self::Linear { last, .. } => value / last,
            Self::Log { .. } if value <= 0.0 => 0.0,
            Self::Log { from, to } => {
                (value.log10() - f64::from(*from)) / f64::from(to - from).max(1.0)
            }
        };
        if share.is_finite() {
            share.clamp(0.0, 1.0)
        } else {
            1.0
        }
    }

    /// The values at which lines are drawn, with their texts.
    fn lines(&self) -> Vec<(f64, String)> {
        match self {
            Self::Linear { step, last } => {
                let n = (last / step).round() as usize;
                let lines = (0..=n).map(|i| i as f64 * step);
                lines.map(|x| (x, exact((x * 1e6).round() / 1e6))).collect()
            }
            Self::Log { from, to } => {
                let step = ((to - from) / 5).max(1) as usize;
                let powers = (*from..=*to).step_by(step);
                powers
                    .map(|power| (10f64.powi(power), format!("1e{power}")))
                    .collect()
            }
        }
    }
}

/// Draws upright bars, of which `label` says what they show.
pub(super) fn upright(label: &str, scale: &Scale, bars: &[Bar], out: &mut String) {
    let (label, height) = (Text(label), HEIGHT - TOP - BOTTOM);
    let _ = write!(
        out,
        "<div class=\"picture\"><svg class=\"bars\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{label}\">"
    );
    for (value, text) in scale.lines() {
        let y = HEIGHT - BOTTOM - scale.share(value) * height;
        let _ = write!(
            out,
            "<line x1=\"{LEFT}\" x2=\"{WIDTH}\" y1=\"{y}\" y2=\"{y}\"/><text class=\"end\" x=\"{}\" y=\"{}\">{text}</text>",
            LEFT - 5.0,
            at(y + 4.0),
            y = at(y),
        );
    }
    let place = (WIDTH - LEFT) / bars.len().max(1) as f64;
    let width = (place * 0.8).min(WIDEST);
    let longest = bars
        .iter()
        .map(|bar| bar.label.chars().count())
        .max()
        .unwrap_or(1);
    let every = ((longest as f64 * 6.5 + 6.0) / place).ceil().max(1.0) as usize;
    for (i, bar) in bars.iter().enumerate() {
        let x = LEFT + place * i as f64 + (place - width) / 2.0;
        if let Some(value) = bar.value {
            // What is not nothing is seen.
            let tall = scale.share(value) * height;
            let tall = if value > 0.0 { tall.max(1.0) } else { tall };
            let mark = if bar.is_marked {
                " class=\"worst\""
            } else {
                ""
            };
            let _ = write!(
                out,
                "<rect{mark} x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" data-v=\"{}\"><title>{}</title></rect>",
                at(x),
                at(HEIGHT - BOTTOM - tall),
                at(width),
                at(tall),
                exact(value),
                Text(&bar.title)
            );
        }
        if i % every == 0 {
            let (x, y) = (at(x + width / 2.0), at(HEIGHT - 6.0));
            let _ =
                write!(out, "<text class=\"mid\" x=\"{x}\" y=\"{y}\">{}</text>", Text(&bar.label));
        }
    }
    out.push_str("</svg></div>\n");
}

/// Draws lying bars of errors, each with its name before it and its value behind it.
pub(super) fn lying(label: &str, scale: &Scale, bars: &[Bar], out: &mut String) {
    let height = ROW * bars.len() as f64 + ROW;
    let length = WIDTH - NAMES - 80.0;
    let _ = write!(
        out,
        "<div class=\"picture\"><svg class=\"bars\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{}\">",
        Text(label)
    );
    for (value, text) in scale.lines() {
        let x = at(NAMES + scale.share(value) * length);
        let _ = write!(
            out,
            "<line x1=\"{x}\" x2=\"{x}\" y1=\"0\" y2=\"{}\"/><text class=\"mid\" x=\"{x}\" y=\"{}\">{text}</text>",
            at(height - ROW),
            at(height - 6.0)
        );
    }
    for (i, bar) in bars.iter().enumerate() {
        let (value, y) = (bar.value.unwrap_or(0.0), ROW * i as f64);
        let long = scale.share(value) * length;
        let mark = if bar.is_marked {
            " class=\"worst\""
        } else {
            ""
        };
        let _ = write!(
            out,
            "<g><title>{}</title><text class=\"end\" x=\"{}\" y=\"{base}\">{}</text>\
             <rect{mark} x=\"{NAMES}\" y=\"{}\" width=\"{}\" height=\"{}\" data-v=\"{}\"/><text x=\"{}\" y=\"{base}\">{}</text></g>",
            Text(&bar.title),
            NAMES - 8.0,
            Text(&ending(&bar.label, NAME_LENGTH)),
            at(y + 3.0),
            at(long.max(1.0)),
            ROW - 6.0,
            exact(value),
            at(NAMES + long + 6.0),
            error(value),
            base = at(y + 14.0),
        );
    }
    out.push_str("</svg></div>\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_hold_their_values() {
        let scale = Scale::linear([4.25, 16.0, 5.5].into_iter());
        let texts: Vec<String> = scale.lines().into_iter().map(|(_, text)| text).collect();
        assert_eq!(texts, ["0", "5", "10", "15", "20"]);
        assert_eq!(scale.share(10.0), 0.5);
        let scale = Scale::log([3e-4, 0.0, 2e-2].into_iter());
        let texts: Vec<String> = scale.lines().into_iter().map(|(_, text)| text).collect();
        assert_eq!(texts, ["1e-4", "1e-3", "1e-2", "1e-1"]);
        assert!((scale.share(1e-3) - 1.0 / 3.0).abs() < 1e-12);
        for scale in [Scale::log([].into_iter()), Scale::linear([].into_iter())] {
            assert!(scale.lines().len() > 1);
            assert!(
                [0.0, 1e300, f64::INFINITY]
                    .map(|x| scale.share(x))
                    .iter()
                    .all(|x| *x <= 1.0)
            );
        }
        // The smallest and the largest number of F64.
        assert!(Scale::log([5e-324, f64::MAX].into_iter()).lines().len() < 9);
    }
}
