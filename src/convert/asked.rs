//! [`Asked`]: which stored tensors the options ask for. What is wrong with any other one does not
//! count.

use super::names::{NameChanges, likely_names, possible_names};
use super::options::ConvertOptions;
use crate::config::{RenameRule, Selection};
use crate::limits::join_first;
use crate::{ParsedModel, Result};

/// Most names in a note.
const MAX_NAMED: usize = 5;

/// The tensors that options ask for, by the names of stored ones.
pub(crate) struct Asked {
    /// Without patterns, all tensors.
    include: Selection,
    /// `None`: no tensor.
    exclude: Option<Selection>,
    /// Patterns of tensors that are left out. `None`: no tensor.
    drop: Option<Selection>,
    rename: Vec<RenameRule>,
    /// Whether tensors that cannot be decoded are left out.
    skips: bool,
}

impl Asked {
    /// # Errors
    /// `Usage` if a pattern does not compile.
    pub(crate) fn new(options: &ConvertOptions) -> Result<Self> {
        Self::of(&options.include, &options.exclude, &options.names, options.skip_unsupported)
    }

    /// The tensors whose names have one of the patterns `include`, if there are any, and none of
    /// `exclude`.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub(crate) fn of_names(include: &[String], exclude: &[String]) -> Result<Self> {
        Self::of(include, exclude, &NameChanges::default(), false)
    }

    fn of(
        include: &[String],
        exclude: &[String],
        names: &NameChanges,
        skips: bool,
    ) -> Result<Self> {
        let about = |option| move |e: crate::AnamnesisError| e.about(option);
        let some_of = |patterns: &[String], option| {
            let compiled = (!patterns.is_empty()).then(|| Selection::of(patterns));
            compiled.transpose().map_err(about(option))
        };
        let rules = names
            .rename
            .iter()
            .map(|(old, new)| RenameRule::new(old, new));
        Ok(Self {
            include: Selection::of(include).map_err(about("--include"))?,
            exclude: some_of(exclude, "--exclude")?,
            drop: some_of(&names.drop, "--drop")?,
            rename: rules.collect::<Result<_>>().map_err(about("--rename"))?,
            skips,
        })
    }

    /// Whether the options ask for a tensor that the stored tensor `name` is, or is a part of, and
    /// that cannot be decoded.
    pub(crate) fn has(&self, name: &str) -> bool {
        if self.skips {
            return false;
        }
        let has_any = |patterns: &Option<Selection>, names: &[String]| {
            let patterns = patterns.as_ref();
            patterns.is_some_and(|patterns| names.iter().any(|name| patterns.has(name)))
        };
        let sure = likely_names(name);
        if has_any(&self.drop, &sure) {
            return false;
        }
        // Patterns are compared with new names.
        let sure: Vec<String> = sure.iter().map(|name| self.renamed(name)).collect();
        if has_any(&self.exclude, &sure) {
            return false;
        }
        // What may be meant counts as asked for: an error too many is better than a tensor that is
        // missing.
        let mut possible = possible_names(name).into_iter();
        possible.any(|name| self.include.has(&self.renamed(&name)))
    }

    /// `name` as it is called in the output.
    fn renamed(&self, name: &str) -> String {
        // A match that is given up is an error where names are changed.
        let found = self
            .rename
            .iter()
            .find_map(|rule| rule.apply(name).ok().flatten());
        found.unwrap_or_else(|| name.to_owned())
    }
}

impl ParsedModel {
    /// Fails if a tensor that one of the patterns `names` selects cannot be decoded. Without patterns,
    /// all tensors count.
    ///
    /// # Errors
    /// `Usage` if a pattern does not compile; else what is wrong with the first of these tensors.
    pub fn require_decodable(&self, names: &[String]) -> Result<()> {
        let asked = Asked::of_names(names, &[])?;
        self.resolve().of_asked(|name| asked.has(name)).map(drop)
    }
}

/// The note on tensors that cannot be decoded and were not asked for.
pub(crate) fn note_on(names: &[String]) -> Option<String> {
    (!names.is_empty()).then(|| {
        let n = names.len();
        let names = join_first(names, MAX_NAMED);
        format!("{n} stored tensors cannot be decoded and are left out: {names}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(include: &[&str], exclude: &[&str], drop: &[&str], name: &str) -> bool {
        let texts = |all: &[&str]| {
            all.iter()
                .map(|text| (*text).to_owned())
                .collect::<Vec<_>>()
        };
        let names = NameChanges { drop: texts(drop), ..NameChanges::default() };
        let asked = Asked::of(&texts(include), &texts(exclude), &names, false).unwrap();
        asked.has(name)
    }

    #[test]
    fn parts_are_asked_for_with_their_weights() {
        let parts = [
            ("a.b.weight", "a.b.weight"),
            ("a.b.qweight", "a.b.weight"),
            ("a.b.weight_scale_inv", "a.b.weight"),
            ("a.b.weight_packed", "a.b.weight"),
            ("a.b.weight.absmax", "a.b.weight"),
            ("a.b.weight.quant_state.bitsandbytes__nf4", "a.b.weight"),
            ("a.experts.gate_up_proj_blocks", "a.experts.gate_up_proj"),
            ("a.experts.down_proj_scales", "a.experts.down_proj"),
        ];
        for (stored, name) in parts {
            assert!(asked(&[name], &[], &[], stored), "{stored}");
            assert!(asked(&["a.*"], &[], &[], stored), "{stored}");
            assert!(!asked(&["c.*"], &[], &[], stored), "{stored}");
            assert!(!asked(&[], &[name], &[], stored), "{stored}");
            assert!(asked(&[], &["c.*"], &[], stored), "{stored}");
            assert!(!asked(&[], &[], &[name], stored), "{stored}");
            assert!(!asked(&[], &[], &[stored], stored), "{stored}");
            assert!(asked(&[], &[], &["c.*"], stored), "{stored}");
        }
        // The weight stays if its scale alone is dropped.
        assert!(asked(&[], &[], &["*scale_inv"], "a.b.weight"));
        assert!(asked(&[], &["*scale_inv"], &[], "a.b.qweight"));
    }
}
