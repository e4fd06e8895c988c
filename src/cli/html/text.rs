//! Text and numbers as pages show them: the one place where text from files is escaped, and the one
//! where numbers get their form.

use std::fmt::{Display, Formatter, Result, Write};

use crate::error::printable;

/// Text from a file. Characters that deceive, such as controls and changes of direction, are shown
/// by their numbers, as the program does on a terminal; those that HTML gives a meaning are escaped,
/// in elements as in attributes.
pub(super) struct Text<'a>(pub &'a str);

impl Display for Text<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        for c in printable(self.0).chars() {
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

/// The last `most` characters of `text`: of names of tensors the end says more.
pub(super) fn ending(text: &str, most: usize) -> String {
    let n = text.chars().count();
    match n > most {
        true => text
            .chars()
            .skip(n - most.max(1) + 1)
            .fold("…".to_owned(), |mut out, c| {
                out.push(c);
                out
            }),
        false => text.to_owned(),
    }
}

/// An integer with commas between thousands.
pub(super) fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `n` things, in the singular or the plural.
pub(super) fn things(n: u64, one: &str) -> String {
    match n {
        1 => format!("1 {one}"),
        n => format!("{} {one}s", count(n)),
    }
}

/// An error, in the form in which `amn diff` prints it.
pub(super) fn error(x: f64) -> String {
    match x == 0.0 {
        true => "0".to_owned(),
        false => format!("{x:.3e}"),
    }
}

/// Bits for each value.
pub(super) fn bits(x: f64) -> String {
    format!("{x:.2}")
}

/// A share of 1 as a percentage.
pub(super) fn percent(share: f64) -> String {
    match share * 100.0 {
        0.0 => "0 %".to_owned(),
        x if x < 0.01 => "below 0.01 %".to_owned(),
        x => format!("{x:.2} %"),
    }
}

/// A number for scripts and tests: the shortest text that reads back as the same value.
pub(super) fn exact(x: f64) -> String {
    match x == 0.0 || (1e-3..1e15).contains(&x.abs()) {
        true => format!("{x}"),
        false => format!("{x:e}"),
    }
}

/// A power of two: `2⁻⁷`.
pub(super) fn power_of_two(power: i32) -> String {
    let raised = |c: char| match c.to_digit(10) {
        Some(digit) => ['⁰', '¹', '²', '³', '⁴', '⁵', '⁶', '⁷', '⁸', '⁹'][digit as usize],
        None => '⁻',
    };
    std::iter::once('2')
        .chain(power.to_string().chars().map(raised))
        .collect()
}

/// A coordinate in a picture.
pub(super) fn at(x: f64) -> String {
    let text = format!("{x:.1}");
    match text.strip_suffix(".0") {
        Some(whole) => whole.to_owned(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped() {
        let text = Text("</script><a href=\"x\" b='y'>&\u{202e}\n").to_string();
        assert_eq!(
            text,
            "&lt;/script&gt;&lt;a href=&quot;x&quot; b=&#39;y&#39;&gt;&amp;\\u{202e}\\u{a}"
        );
    }

    #[test]
    fn numbers() {
        assert_eq!([0, 999, 1000, 1_234_567].map(count), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([0.0, 1.5, 2.5e-7].map(exact), ["0", "1.5", "2.5e-7"]);
        assert_eq!([0, -127, 3].map(power_of_two), ["2⁰", "2⁻¹²⁷", "2³"]);
        assert_eq!(ending("model.layers.12", 9), "…ayers.12");
        assert_eq!([1.0, 2.25].map(at), ["1", "2.2"]);
    }
}
