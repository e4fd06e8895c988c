//! [`NameRules`]: what a config of SDNQ says of parameters by their names.
//!
//! Source: sdnq `utils.py` (`check_param_name_in`).

use std::collections::{BTreeSet, HashMap};

use crate::config::pattern::{Pattern, PatternList};

/// Values for parameters, in the order of a config. Of several that fit a parameter, the first that
/// is taken holds.
///
/// A key is the name of a parameter or one of its parts; after a dot, the beginning of a name; or a
/// text with `*`, which is an expression that the beginning of a name matches.
#[derive(Debug, Clone, Default)]
pub(super) struct NameRules<T> {
    values: Vec<T>,
    /// Places in `values`, by whole names and parts. Those of a key ascend.
    names: HashMap<String, Vec<usize>>,
    /// Places in `values`, by beginnings of names.
    beginnings: HashMap<String, Vec<usize>>,
    /// The lengths that beginnings have, in bytes. Together they are no longer than the config, so
    /// that looking up one of each length is cheap even for a long name.
    lengths: BTreeSet<usize>,
    patterns: PatternList<usize>,
}

impl<T> NameRules<T> {
    pub(super) fn new() -> Self {
        Self {
            values: Vec::new(),
            names: HashMap::new(),
            beginnings: HashMap::new(),
            lengths: BTreeSet::new(),
            patterns: PatternList::default(),
        }
    }

    /// Appends a value for the parameters of all `keys`.
    ///
    /// # Errors
    /// A key is an expression that does not compile.
    pub(super) fn push<'k>(
        &mut self,
        keys: impl Iterator<Item = &'k str>,
        value: T,
    ) -> Result<(), String> {
        let at = self.values.len();
        self.values.push(value);
        for key in keys {
            if let Some(beginning) = key.strip_prefix('.') {
                self.lengths.insert(beginning.len());
                append(&mut self.beginnings, beginning, at);
                continue;
            }
            append(&mut self.names, key, at);
            if key.contains('*') {
                // As the library makes an expression of it, in which a dot elsewhere is any
                // character.
                let expression = key.replace(".*", r"\.*").replace('*', ".*");
                let pattern = Pattern::from_start(&expression)
                    .map_err(|e| format!("its pattern `{key}`: {e}"))?;
                if !self.patterns.push(pattern, at) {
                    return Err(format!("its pattern `{key}`: there are too many"));
                }
            }
        }
        Ok(())
    }

    /// The first value of the parameter `name` that `is_taken`.
    ///
    /// # Errors
    /// Matching a pattern takes too many steps.
    pub(super) fn first(
        &self,
        name: &str,
        is_taken: impl Fn(&T) -> bool,
    ) -> Result<Option<&T>, String> {
        let is_taken = |at: &&usize| is_taken(&self.values[**at]);
        let by_name = std::iter::once(name).chain(name.split('.'));
        let by_name = by_name.filter_map(|part| self.names.get(part));
        let starts = self.lengths.range(..=name.len());
        let starts = starts.filter_map(|&length| name.get(..length));
        let by_beginning = starts.filter_map(|start| self.beginnings.get(start));
        let by_text = by_name.chain(by_beginning);
        let by_text = by_text.filter_map(|places| places.iter().find(is_taken));
        let by_pattern = self.patterns.all(name)?.into_iter().filter(is_taken);
        let first = by_text.chain(by_pattern).min();
        Ok(first.map(|&at| &self.values[at]))
    }

    /// The first value of the parameter `name`.
    ///
    /// # Errors
    /// Matching a pattern takes too many steps.
    pub(super) fn of(&self, name: &str) -> Result<Option<&T>, String> {
        self.first(name, |_| true)
    }
}

/// Appends `at` to the places of `key`.
fn append(places: &mut HashMap<String, Vec<usize>>, key: &str, at: usize) {
    let places = places.entry(key.to_owned()).or_default();
    if places.last() != Some(&at) {
        places.push(at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against what `check_param_name_in` returns.
    #[test]
    fn names() {
        let mut rules = NameRules::new();
        let lists: [&[&str]; 5] = [
            &[".proj_out", "blocks.0.norm*"],
            &["norm1"],
            &["proj_out"],
            &["*.attn.*", "a.b.weight"],
            &["weight"],
        ];
        for (i, keys) in lists.iter().enumerate() {
            rules.push(keys.iter().copied(), i).unwrap();
        }
        for (name, want) in [
            ("proj_out.weight", 0),
            ("blocks.3.proj_out.weight", 2),
            ("blocks.0.norm1.weight", 0),
            ("blocks.1.norm1.weight", 1),
            ("blocks_0xnorm", 0),
            ("x.attn.to_q.weight", 3),
            ("a.b.weight", 3),
            ("c.weight", 4),
        ] {
            assert_eq!(rules.of(name), Ok(Some(&want)), "{name}");
        }
        assert_eq!(rules.of("x.attn"), Ok(None));
        assert_eq!(rules.of("c.bias"), Ok(None));
        for (name, want) in [
            ("proj_out.weight", Some(&2)),
            ("blocks.0.norm1.weight", Some(&1)),
            ("a.b.weight", Some(&3)),
        ] {
            assert_eq!(rules.first(name, |&i| i > 0), Ok(want), "{name}");
        }
        rules
            .push(["norm1", ".proj", "norm1"].into_iter(), 5)
            .unwrap();
        assert_eq!(rules.first("norm1", |&i| i > 1), Ok(Some(&5)));
        assert_eq!(rules.first("proj", |&i| i > 1), Ok(Some(&5)));
        assert_eq!(rules.first("pröj", |&i| i > 1), Ok(None));
        assert!(rules.push(["*("].into_iter(), 9).is_err());
    }
}
