//! The names that somebody may have meant who has typed another.

/// How many names are offered.
const OFFERED: usize = 3;

/// The names among `names` that differ least from `text`, the nearest first.
pub(super) fn nearest<'a>(text: &str, names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    // Dashes are what is forgotten most.
    let plain = |name: &str| name.to_ascii_lowercase().replace(['_', '-', ':'], "");
    let text = plain(text);
    let mut all: Vec<(usize, &str)> = names
        .map(|name| (edits(&text, &plain(name)), name))
        .collect();
    // Of equally near names the first in the table is offered first.
    all.sort_by_key(|(edits, _)| *edits);
    all.into_iter()
        .map(|(_, name)| name)
        .take(OFFERED)
        .collect()
}

/// How many characters have to be inserted, removed or replaced to make one text of the other (Levenshtein's distance).
fn edits(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    // Row i has the distances of the first i characters of `a` to all beginnings of `b`.
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, &y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(row[j + 1] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        let rows = [
            ("", "", 0),
            ("", "abc", 3),
            ("kitten", "sitting", 3),
            ("flaw", "lawn", 2),
            ("q4k", "q40", 1),
            ("same", "same", 0),
        ];
        for (a, b, expected) in rows {
            assert_eq!(edits(a, b), expected, "{a} {b}");
            assert_eq!(edits(b, a), expected, "{b} {a}");
        }
    }

    #[test]
    fn three_names() {
        let names = ["nf4", "Q4_K_M", "Q4_K_S", "int8"];
        assert_eq!(
            nearest("q4k_m", names.into_iter()),
            ["Q4_K_M", "Q4_K_S", "nf4"]
        );
    }
}
