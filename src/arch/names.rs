//! Names of tensors as patterns: `{i}` stands for the number of a layer, and `{e}` for that of an expert.

/// The numbers in a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(super) struct Place {
    pub layer: Option<usize>,
    pub expert: Option<usize>,
}

/// The numbers in `name`, if it is one of `pattern`.
pub(super) fn find(pattern: &str, name: &str) -> Option<Place> {
    let mut place = Place::default();
    let (mut pattern, mut name) = (pattern.split('.'), name.split('.'));
    loop {
        match (pattern.next(), name.next()) {
            (None, None) => return Some(place),
            (Some("{i}"), Some(text)) => place.layer = Some(number(text)?),
            (Some("{e}"), Some(text)) => place.expert = Some(number(text)?),
            (Some(part), Some(text)) if part == text => {}
            _ => return None,
        }
    }
}

/// The name of `pattern` with the numbers of `place`.
pub(super) fn fill(pattern: &str, place: Place) -> String {
    let mut name = String::with_capacity(pattern.len() + 8);
    for (at, part) in pattern.split('.').enumerate() {
        if at > 0 {
            name.push('.');
        }
        match (part, place) {
            ("{i}", Place { layer: Some(n), .. })
            | (
                "{e}",
                Place {
                    expert: Some(n), ..
                },
            ) => {
                name.push_str(&n.to_string());
            }
            _ => name.push_str(part),
        }
    }
    name
}

/// A number as it is written in names: digits without a zero in front.
fn number(text: &str) -> Option<usize> {
    let is_plain = text == "0" || !text.starts_with('0');
    let is_digits = text.bytes().all(|b| b.is_ascii_digit());
    text.parse().ok().filter(|_| is_plain && is_digits)
}

/// `name` without its last part, if that is `weight` or `bias`, and the part with its dot.
pub(super) fn split_suffix(name: &str) -> (&str, &'static str) {
    let suffixes = [".weight", ".bias"].into_iter();
    let mut found = suffixes.filter_map(|suffix| Some((name.strip_suffix(suffix)?, suffix)));
    found.next_back().unwrap_or((name, ""))
}
