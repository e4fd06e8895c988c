//! Constants of a function of a program, of which others may be made.

use std::collections::HashMap;

use super::spec::Spec;
use super::value::StoredValue;
use super::weight::Weight;
use super::wrong;
use crate::Result;

/// The constants of a function.
#[derive(Default)]
pub(super) struct ProgramConstants {
    /// In the order of the file.
    list: Vec<ProgramConstant>,
    /// Places of the constants by their names. Of those in several blocks, the last counts.
    by_name: HashMap<String, usize>,
    /// For what has two results, the second and the first, which is its mask.
    masks: HashMap<String, String>,
}

/// A constant of a program.
struct ProgramConstant {
    name: String,
    weight: Weight,
    /// Whether it is a part of another constant.
    is_part: bool,
}

/// What an input or an attribute is.
pub(super) enum Operand {
    Named(String),
    Stored(StoredValue),
}

/// What constants are made of.
pub(super) struct ConstexprParts<'p, 'a> {
    pub spec: &'p mut Spec<'a>,
    pub constants: &'p mut ProgramConstants,
}

impl ProgramConstants {
    pub(super) fn add(&mut self, name: String, weight: Weight) {
        self.by_name.insert(name.clone(), self.list.len());
        self.list
            .push(ProgramConstant { name, weight, is_part: false });
    }

    /// Adds what has a mask as another result.
    pub(super) fn add_mask(&mut self, values: &str, mask: String) {
        self.masks.insert(values.to_owned(), mask);
    }

    /// The constant called `name`, which becomes a part of another.
    pub(super) fn part(&mut self, name: &str) -> Result<&Weight> {
        let place = self.by_name.get(name);
        let place = place.ok_or_else(|| wrong(format!("`{name}` is no constant before it")))?;
        let constant = &mut self.list[*place];
        constant.is_part = true;
        Ok(&constant.weight)
    }

    /// Whether `mask` and `values` are the results of one operation.
    pub(super) fn is_mask_of(&self, mask: &str, values: &str) -> bool {
        mask != values && self.masks.get(values).is_some_and(|of| of == mask)
    }

    /// Those that are no part of others, with their names.
    pub(super) fn whole(self) -> impl Iterator<Item = (String, Weight)> {
        let whole = self.list.into_iter().filter(|constant| !constant.is_part);
        whole.map(|constant| (constant.name, constant.weight))
    }
}
