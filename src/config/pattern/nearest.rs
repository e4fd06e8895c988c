//! The names that somebody may have meant who has typed another.

use crate::sort::sort_by_key;
use std::collections::HashSet;

/// How many names are offered.
const OFFERED: usize = 3;

/// The names among `names` that are words of `text`, and then those that differ least from it, the
/// nearest first.
pub(crate) fn nearest<'a>(text: &str, mut names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut all = by_edits(text, &mut names);
    let words: Vec<&str> = text.split(['-', '_']).collect();
    sort_by_key(&mut all, |(_, name)| !words.iter().any(|word| word.eq_ignore_ascii_case(name)));
    let all = all.into_iter();
    all.map(|(_, name)| name).take(OFFERED).collect()
}

/// The end of a message that none of `names` is like `text`, a name or a pattern: what may have
/// been meant.
pub(crate) fn what_was_meant<'a>(text: &str, names: impl Iterator<Item = &'a str>) -> String {
    let nothing = "`amn ls` lists the names";
    if text.starts_with("re:") || text.contains(['*', '?', '[', '{']) {
        return nothing.to_owned();
    }
    let mut seen = HashSet::new();
    let mut names = names.filter(|name| seen.insert(*name));
    let all = by_edits(text, &mut names);
    // Names of tensors have much in common, so a name that differs in more than a fifth is another
    // one.
    let near = all
        .iter()
        .take_while(|(edits, _)| edits * 5 <= text.len().max(5));
    let near: Vec<&str> = near.map(|(_, name)| *name).take(OFFERED).collect();
    let longer = all.iter().filter(|(_, name)| name.contains(text)).count();
    match (near.as_slice(), longer) {
        ([], 0) => nothing.to_owned(),
        ([], longer) => format!("`*{text}*` matches {longer}"),
        (near, _) => format!("near are {}", near.join(", ")),
    }
}

/// All names with what sets them apart from `text`, the nearest first.
fn by_edits<'a>(text: &str, names: &mut dyn Iterator<Item = &'a str>) -> Vec<(usize, &'a str)> {
    // Dashes are what is forgotten most.
    let plain = |name: &str| name.to_ascii_lowercase().replace(['_', '-', ':'], "");
    let text = plain(text);
    let mut all: Vec<(usize, &str)> = names
        .map(|name| (edits(&text, &plain(name)), name))
        .collect();
    // Of equally near names the first in the table is offered first.
    sort_by_key(&mut all, |(edits, _)| *edits);
    all
}

/// How many characters have to be inserted, removed or replaced to make one text of the other
/// (Levenshtein's distance).
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
    #[cfg(feature = "lethe")]
    fn three_names() {
        let names = ["nf4", "Q4_K_M", "Q4_K_S", "int8"];
        assert_eq!(nearest("q4k_m", names.into_iter()), ["Q4_K_M", "Q4_K_S", "nf4"]);
        let names = ["nf4", "int3", "awq", "int4"];
        assert_eq!(nearest("INT4_AWQ", names.into_iter()), ["int4", "awq", "int3"]);
    }

    #[test]
    fn what_is_offered() {
        let names = ["a.norm.weight", "a.q_proj.weight", "b.q_proj.weight"];
        let rows = [
            ("q_proj", "`*q_proj*` matches 2"),
            ("a.norm.weigh", "near are a.norm.weight"),
            ("a.qproj.weight", "near are a.q_proj.weight, b.q_proj.weight"),
            ("*.k_proj", "`amn ls` lists the names"),
            ("vision.tower", "`amn ls` lists the names"),
        ];
        for (text, expected) in rows {
            assert_eq!(what_was_meant(text, names.into_iter()), expected, "{text}");
        }
    }
}
