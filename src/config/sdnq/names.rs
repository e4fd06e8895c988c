//! [`NameRules`]: what a config of SDNQ says of parameters by their names.
//!
//! Source: sdnq `utils.py` (`check_param_name_in`).

use std::collections::HashMap;

use crate::config::pattern::{Pattern, PatternList};

/// Values for parameters, in the order of a config. Of several that fit a parameter, the first holds.
///
/// A key is the name of a parameter or one of its parts; after a dot, the beginning of a name; or a text with `*`, which
/// is an expression that the beginning of a name matches.
#[derive(Debug, Clone, Default)]
pub(super) struct NameRules<T> {
    values: Vec<T>,
    /// Places in `values`, by whole names and parts.
    names: HashMap<String, usize>,
    /// The same, by beginnings.
    beginnings: HashMap<String, usize>,
    /// Length of the longest beginning, in bytes.
    longest: usize,
    patterns: PatternList<usize>,
}

impl<T> NameRules<T> {
    pub(super) fn new() -> Self {
        Self {
            values: Vec::new(),
            names: HashMap::new(),
            beginnings: HashMap::new(),
            longest: 0,
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
                self.longest = self.longest.max(beginning.len());
                self.beginnings.entry(beginning.to_owned()).or_insert(at);
                continue;
            }
            self.names.entry(key.to_owned()).or_insert(at);
            if key.contains('*') {
                // As the library makes an expression of it, in which a dot elsewhere is any character.
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

    /// The value of the parameter `name`.
    ///
    /// # Errors
    /// Matching a pattern takes too many steps.
    pub(super) fn of(&self, name: &str) -> Result<Option<&T>, String> {
        let by_name = std::iter::once(name).chain(name.split('.'));
        let by_name = by_name.filter_map(|part| self.names.get(part));
        let ends = (0..=name.len().min(self.longest)).filter_map(|end| name.get(..end));
        let by_beginning = ends.filter_map(|start| self.beginnings.get(start));
        let by_pattern = self.patterns.all(name)?;
        let first = by_name.chain(by_beginning).chain(by_pattern).min();
        Ok(first.map(|&at| &self.values[at]))
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
        assert!(rules.push(["*("].into_iter(), 9).is_err());
    }
}
