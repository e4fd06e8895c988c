//! [`NameChanges`]: tensors that get other names, and tensors that are left out.

mod file;
mod likely;

use std::collections::HashMap;
use std::ops::RangeInclusive;

use crate::config::{RenameRule, Selection, what_was_meant};
use crate::error::InTensor;
use crate::remember::{Resolution, ResolvedItem};
use crate::{AnamnesisError, Result};

pub use self::file::parse_renames;
pub(super) use self::likely::{likely_names, possible_names};

/// Tensors of a model that get other names in the output, and tensors that the output does not
/// have.
///
/// Patterns are those of [`include`](crate::ConvertOptions::include). They are compared with the
/// names of the decoded model; patterns of `include` and `exclude` are compared with the new names.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub struct NameChanges {
    /// Patterns of tensors to leave out. The companions of a quantized weight go with it; a pattern
    /// that takes only a companion from its weight is an error, and so is one that matches nothing.
    pub drop: Vec<String>,
    /// Patterns, each with the name of what it matches, in which `$1` is the text of the first `*`
    /// or of the first group of an expression. An expression replaces what it matches at the
    /// beginning of a name, and the rest of the name stays. The first pattern that matches a name
    /// counts. One that gives no tensor a name is an error.
    pub rename: Vec<(String, String)>,
    /// Layers to leave out, by their numbers. The others are numbered anew, and so is what a config, or
    /// the metadata of GGUF, says of them; patterns are compared with the new names. The output has
    /// the names that the input has: those of Hugging Face in a directory, or those of GGUF.
    pub prune_layers: Vec<RangeInclusive<usize>>,
}

impl NameChanges {
    /// Adds a pattern of tensors to leave out.
    #[must_use]
    pub fn with_drop(mut self, pattern: impl Into<String>) -> Self {
        self.drop.push(pattern.into());
        self
    }

    /// Adds a pattern with the name of what it matches.
    #[must_use]
    pub fn with_rename(mut self, pattern: impl Into<String>, name: impl Into<String>) -> Self {
        self.rename.push((pattern.into(), name.into()));
        self
    }

    /// Adds layers to leave out.
    #[must_use]
    pub fn with_prune_layers(mut self, layers: RangeInclusive<usize>) -> Self {
        self.prune_layers.push(layers);
        self
    }

    /// Whether nothing changes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.drop.is_empty() && self.rename.is_empty() && self.prune_layers.is_empty()
    }

    /// Changes the items of `resolution`, which is without the tensors `undecoded`. Returns the names
    /// of those that are left out.
    ///
    /// # Errors
    /// `Usage` if a pattern does not compile, matches no tensor, or only a part of a weight that
    /// stays, and if two tensors get one name; `LimitExceeded` if it takes too many steps.
    pub(super) fn apply(
        &self,
        resolution: &mut Resolution<'_>,
        undecoded: &[String],
    ) -> Result<Vec<String>> {
        let about = |option| move |e: AnamnesisError| e.about(option);
        let dropped = self
            .drop_items(resolution, undecoded)
            .map_err(about("--drop"))?;
        let renamed = self.rename_items(&mut resolution.items);
        renamed.map_err(about("--rename"))?;
        Ok(dropped)
    }

    fn drop_items(
        &self,
        resolution: &mut Resolution<'_>,
        undecoded: &[String],
    ) -> Result<Vec<String>> {
        let items = &resolution.items;
        let mut is_dropped = vec![false; items.len()];
        let mut hits = Vec::with_capacity(self.drop.len());
        for text in &self.drop {
            let pattern = Selection::of(std::slice::from_ref(text))?;
            // What no output has can be asked for; it is gone already.
            let gone = resolution.dropped.iter().map(|t| t.name());
            let mut gone = gone.chain(undecoded.iter().map(String::as_str));
            let mut has_hit =
                gone.any(|name| likely_names(name).iter().any(|name| pattern.has(name)));
            for (item, is_dropped) in items.iter().zip(&mut is_dropped) {
                let by_codes = || codes_name(item).is_some_and(|name| pattern.has(name));
                if pattern.has(item.name()) || by_codes() {
                    (has_hit, *is_dropped) = (true, true);
                }
            }
            pattern.check()?;
            hits.push((text, pattern, has_hit));
        }
        for (text, pattern, has_hit) in &hits {
            let kept = items
                .iter()
                .zip(&is_dropped)
                .filter(|(_, is_dropped)| !**is_dropped);
            for (item, _) in kept {
                if let Some(part) = companions(item).find(|name| pattern.has(name)) {
                    let whole = item.name();
                    return Err(AnamnesisError::usage(format!(
                        "{}: it is a part of `{whole}`, whose values are wrong without it; `{text}` takes it alone, and --drop {whole} both",
                        InTensor(&part)
                    )));
                }
            }
            pattern.check()?;
            if !has_hit {
                return Err(matches_nothing(text, items));
            }
        }
        let mut flags = is_dropped.iter();
        let names: Vec<String> = items
            .iter()
            .zip(&is_dropped)
            .filter(|(_, is_dropped)| **is_dropped)
            .map(|(item, _)| item.name().to_owned())
            .collect();
        resolution.items.retain(|_| flags.next() == Some(&false));
        if resolution.items.is_empty() && !names.is_empty() {
            return Err(AnamnesisError::usage("no tensor is left: all are dropped"));
        }
        Ok(names)
    }

    fn rename_items(&self, items: &mut [ResolvedItem<'_>]) -> Result<()> {
        if self.rename.is_empty() {
            return Ok(());
        }
        let rules = self
            .rename
            .iter()
            .map(|(old, new)| RenameRule::new(old, new));
        let mut rules: Vec<(RenameRule, bool)> = rules
            .map(|rule| Ok((rule?, false)))
            .collect::<Result<_>>()?;
        let mut names = Vec::with_capacity(items.len());
        for item in items.iter() {
            names.push(new_name(&mut rules, item.name())?);
        }
        if let Some((rule, _)) = rules.iter().find(|(_, is_used)| !is_used) {
            return Err(matches_nothing(&rule.text, items));
        }
        require_different(items, &names)?;
        for (item, name) in items.iter_mut().zip(names) {
            if let Some(name) = name {
                item.rename(name);
            }
        }
        Ok(())
    }
}

/// The name that the first rule that matches gives; `None`: it stays.
fn new_name(rules: &mut [(RenameRule, bool)], name: &str) -> Result<Option<String>> {
    for (rule, is_used) in rules {
        let Some(new) = rule.apply(name)? else {
            continue;
        };
        *is_used = true;
        if new.is_empty() {
            let what = format!("{}: `{}` leaves it no name", InTensor(&name), rule.text);
            return Err(AnamnesisError::usage(what));
        }
        return Ok(Some(new));
    }
    Ok(None)
}

/// Fails if two items get one name.
fn require_different(items: &[ResolvedItem<'_>], names: &[Option<String>]) -> Result<()> {
    let mut seen: HashMap<&str, &str> = HashMap::with_capacity(items.len());
    for (item, name) in items.iter().zip(names) {
        let new = name.as_deref().unwrap_or(item.name());
        if let Some(other) = seen.insert(new, item.name()) {
            let name = item.name();
            let what =
                format!("{}: it would be called `{new}`, and so would `{other}`", InTensor(&name));
            return Err(AnamnesisError::usage(what));
        }
    }
    Ok(())
}

/// Name of the codes of a quantized weight.
fn codes_name<'a>(item: &'a ResolvedItem<'_>) -> Option<&'a str> {
    match item {
        ResolvedItem::Group(group) => Some(group.parts.first()?.1.name()),
        ResolvedItem::Plain(_) => None,
    }
}

/// Names of the parts of a quantized weight besides its codes.
fn companions<'a>(item: &'a ResolvedItem<'_>) -> impl Iterator<Item = &'a str> {
    let parts = match item {
        ResolvedItem::Group(group) => group.parts.as_slice(),
        ResolvedItem::Plain(_) => &[],
    };
    let codes = parts.first().map(|(_, t)| t.name());
    let names = parts.iter().map(|(_, t)| t.name());
    names.filter(move |name| Some(*name) != codes)
}

fn matches_nothing(text: &str, items: &[ResolvedItem<'_>]) -> AnamnesisError {
    let meant = what_was_meant(text, items.iter().map(ResolvedItem::name));
    AnamnesisError::usage(format!(
        "no tensor has a name like `{text}`, so nothing would change; {meant}"
    ))
}
