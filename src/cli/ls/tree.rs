//! Tensors grouped by the parts of their names, with totals.

use std::collections::HashMap;
use std::io::Write;

use super::super::listing::shape_text;
use super::super::table::{Column, Table};
use crate::error::printable;
use crate::{ListedTensor, ParsedModel, Result, format_bytes};

/// Most levels of a tree. What follows in a name is one part: names come from files, and levels are
/// recursion.
const MOST_LEVELS: usize = 64;

/// A part of names, and what is below it.
struct Branch<'a> {
    part: &'a str,
    /// Branches below, in the order in which they appear.
    below: Vec<usize>,
    /// The tensor that has this name, and no longer one.
    tensor: Option<&'a ListedTensor<'a>>,
    tensors: usize,
    parameters: u64,
    bytes: u64,
}

/// All branches; the first is the root.
struct Tree<'a>(Vec<Branch<'a>>);

impl<'a> Tree<'a> {
    fn new(tensors: &'a [ListedTensor<'a>]) -> Self {
        let mut tree = Self(vec![Branch::new("")]);
        let mut found: HashMap<(usize, &str), usize> = HashMap::new();
        for tensor in tensors {
            let mut at = 0;
            tree.0[0].add(tensor);
            for part in tensor.name.splitn(MOST_LEVELS, '.') {
                let parent = at;
                at = *found.entry((parent, part)).or_insert_with(|| {
                    tree.0.push(Branch::new(part));
                    let new = tree.0.len() - 1;
                    tree.0[parent].below.push(new);
                    new
                });
                tree.0[at].add(tensor);
            }
            tree.0[at].tensor = Some(tensor);
        }
        tree
    }

    /// Passes label, level and branch of every line to `take`, from the top. Branches without a
    /// fork are one line.
    fn walk(
        &self,
        at: usize,
        level: usize,
        depth: usize,
        take: &mut impl FnMut(String, usize, &Branch<'a>) -> Result<()>,
    ) -> Result<()> {
        for &child in &self.0[at].below {
            let mut branch = &self.0[child];
            let (mut label, mut last) = (branch.part.to_owned(), child);
            while let ([only], None) = (branch.below.as_slice(), branch.tensor) {
                (branch, last) = (&self.0[*only], *only);
                label = format!("{label}.{}", branch.part);
            }
            take(label, level, branch)?;
            if level + 1 < depth {
                self.walk(last, level + 1, depth, take)?;
            }
        }
        Ok(())
    }
}

impl<'a> Branch<'a> {
    fn new(part: &'a str) -> Self {
        Self { part, below: Vec::new(), tensor: None, tensors: 0, parameters: 0, bytes: 0 }
    }

    fn add(&mut self, tensor: &ListedTensor<'_>) {
        self.tensors += 1;
        self.parameters = self
            .parameters
            .saturating_add(tensor.parameters.unwrap_or(0));
        self.bytes = self.bytes.saturating_add(tensor.bytes);
    }
}

/// Prints the tensors as a tree of at most `depth` levels.
pub(super) fn print(
    model: &ParsedModel,
    tensors: &[ListedTensor<'_>],
    depth: Option<u32>,
    out: &mut impl Write,
) -> Result<()> {
    const COLUMNS: [Column; 5] = [
        Column::text("NAME"),
        Column::number("TENSORS"),
        Column::number("PARAMETERS"),
        Column::number("SIZE"),
        Column::text("TENSOR"),
    ];
    let (tree, depth) = (Tree::new(tensors), depth.map_or(MOST_LEVELS, |n| n as usize));
    let row = |label: &str, level: usize, branch: &Branch<'_>| {
        let tensor = branch.tensor.map(|t| {
            let shape = shape_text(model.container(), t.shape);
            let scheme = t.scheme.map(|scheme| format!(", {}", scheme.column()));
            format!("{} {shape}{}", t.dtype, scheme.unwrap_or_default())
        });
        [
            format!("{}{}", "  ".repeat(level), printable(label)),
            branch.tensors.to_string(),
            branch.parameters.to_string(),
            format_bytes(branch.bytes),
            tensor.unwrap_or_default(),
        ]
    };
    let mut rows = Vec::new();
    tree.walk(0, 0, depth, &mut |label, level, branch| {
        rows.push(row(&label, level, branch));
        Ok(())
    })?;
    let table = Table::new(COLUMNS, rows.iter().cloned());
    table.write_titles(out)?;
    rows.iter()
        .try_for_each(|row| table.write_row("", row, out))
}
