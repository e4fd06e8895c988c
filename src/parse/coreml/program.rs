//! Programs: constants, and what operations make of them before anything is computed.

use std::ops::Range;

use super::collect::CoreMlWeights;
use super::compressed::{self, ConstexprInputs};
use super::constants::{ConstexprParts, Operand, ProgramConstants};
use super::spec::Spec;
use super::value::{StoredValue, only_field};
use super::weight::Weight;
use crate::Result;
use crate::limits::cap;

/// Most blocks inside of each other.
const MAX_DEPTH: u64 = 32;

/// A function that is read.
struct FunctionWalk<'w, 'a> {
    spec: &'w mut Spec<'a>,
    constants: ProgramConstants,
}

/// The fields of an operation.
#[derive(Default)]
struct OperationFields {
    kind: String,
    inputs: Vec<Range<u64>>,
    /// Names of its results.
    outputs: Vec<String>,
    blocks: Vec<Range<u64>>,
    attributes: Vec<Range<u64>>,
}

/// Reads a `Program`, whose constants have names that begin with `before`.
pub(super) fn read(
    weights: &mut CoreMlWeights<'_>,
    message: Range<u64>,
    before: &str,
) -> Result<()> {
    let spec = &mut weights.spec;
    let mut functions = Vec::new();
    let mut rest = message;
    while let Some(field) = spec.file.next(&mut rest)? {
        if let (2, Some(entry)) = (field.number, field.bytes()) {
            spec.budget.tables(0, 1, 0)?;
            functions.push(entry_of(spec, entry)?);
        }
    }
    let has_several = functions.len() > 1;
    for (name, message) in functions {
        let before = match has_several {
            true => format!("{before}{name}."),
            false => before.to_owned(),
        };
        let constants = ProgramConstants::default();
        let mut walk = FunctionWalk { spec: &mut weights.spec, constants };
        walk.function(message)?;
        for (name, weight) in walk.constants.whole() {
            weights.add(format!("{before}{name}"), weight)?;
        }
    }
    Ok(())
}

/// Key and message of an entry of a map.
fn entry_of(spec: &mut Spec<'_>, mut rest: Range<u64>) -> Result<(String, Range<u64>)> {
    let (mut key, mut value) = (String::new(), rest.end..rest.end);
    while let Some(field) = spec.file.next(&mut rest)? {
        match (field.number, field.bytes()) {
            (1, Some(text)) => key = spec.file.text(text)?,
            (2, Some(message)) => value = message,
            _ => {}
        }
    }
    Ok((key, value))
}

impl FunctionWalk<'_, '_> {
    /// Reads the block of a `Function` for its operation set.
    fn function(&mut self, message: Range<u64>) -> Result<()> {
        let (mut opset, mut blocks) = (String::new(), Vec::new());
        let mut rest = message;
        while let Some(field) = self.spec.file.next(&mut rest)? {
            match (field.number, field.bytes()) {
                (2, Some(text)) => opset = self.spec.file.text(text)?,
                (3, Some(entry)) => {
                    self.spec.budget.tables(0, 1, 0)?;
                    blocks.push(entry_of(self.spec, entry)?);
                }
                _ => {}
            }
        }
        let of_opset = blocks
            .iter()
            .position(|(name, _)| *name == opset)
            .unwrap_or(0);
        match blocks.into_iter().nth(of_opset) {
            Some((_, block)) => self.block(block, 1),
            None => Ok(()),
        }
    }

    /// Reads a `Block`, which is in `depth` - 1 others.
    fn block(&mut self, mut rest: Range<u64>, depth: u64) -> Result<()> {
        cap("COREML_MAX_BLOCK_DEPTH", depth, MAX_DEPTH, "blocks inside of each other")?;
        while let Some(field) = self.spec.file.next(&mut rest)? {
            if let (3, Some(operation)) = (field.number, field.bytes()) {
                self.operation(operation, depth)?;
            }
        }
        Ok(())
    }

    fn operation(&mut self, message: Range<u64>, depth: u64) -> Result<()> {
        let operation = self.fields(message)?;
        let name = operation.outputs.first().cloned().unwrap_or_default();
        match operation.kind.as_str() {
            "const" => {
                for (key, operand) in self.operands(&operation.attributes, false)? {
                    if let ("val", Operand::Stored(value)) = (key.as_str(), operand) {
                        self.add(name.clone(), Weight::plain(value))?;
                    }
                }
            }
            kind if kind.starts_with("constexpr_") => {
                let mut inputs = self.operands(&operation.attributes, false)?;
                inputs.extend(self.operands(&operation.inputs, true)?);
                let mut parts = ConstexprParts { spec: self.spec, constants: &mut self.constants };
                let made = compressed::constant(&mut parts, kind, &ConstexprInputs(inputs));
                let weight = made.map_err(|error| error.in_tensor(&name))?;
                // Of elements with a mask, the mask is the first result.
                let last = operation.outputs.into_iter().nth(1).unwrap_or(name.clone());
                self.constants.add_mask(&last, name);
                self.add(last, weight)?;
            }
            _ => {
                for (key, operand) in self.operands(&operation.inputs, true)? {
                    if let Operand::Stored(value) = operand {
                        self.add(format!("{name}.{key}"), Weight::plain(value))?;
                    }
                }
            }
        }
        for block in operation.blocks {
            self.block(block, depth + 1)?;
        }
        Ok(())
    }

    fn add(&mut self, name: String, weight: Weight) -> Result<()> {
        self.spec.budget.tables(1, 1, 0)?;
        self.constants.add(name, weight);
        Ok(())
    }

    fn fields(&mut self, mut rest: Range<u64>) -> Result<OperationFields> {
        let mut operation = OperationFields::default();
        while let Some(field) = self.spec.file.next(&mut rest)? {
            let Some(message) = field.bytes() else {
                continue;
            };
            match field.number {
                1 => operation.kind = self.spec.file.text(message)?,
                2 => operation.inputs.push(message),
                3 => {
                    let name = only_field(&mut self.spec.file, message, 1)?;
                    let name = name.map(|name| self.spec.file.text(name)).transpose()?;
                    operation.outputs.push(name.unwrap_or_default());
                }
                4 => operation.blocks.push(message),
                5 => operation.attributes.push(message),
                _ => {}
            }
        }
        let parts = operation.inputs.len() + operation.outputs.len() + operation.attributes.len();
        self.spec.budget.tables(0, parts as u64 / 8, 0)?;
        Ok(operation)
    }

    /// Reads the values of attributes, or of inputs, each of which has a list of them. Text is left out.
    fn operands(
        &mut self,
        entries: &[Range<u64>],
        is_list: bool,
    ) -> Result<Vec<(String, Operand)>> {
        let mut operands = Vec::new();
        for entry in entries {
            let (key, value) = entry_of(self.spec, entry.clone())?;
            let file = &mut self.spec.file;
            if !is_list {
                let value = StoredValue::read(file, value)?;
                operands.extend(value.map(|value| (key, Operand::Stored(value))));
                continue;
            }
            let mut rest = value;
            while let Some(field) = file.next(&mut rest)? {
                let (1, Some(mut binding)) = (field.number, field.bytes()) else {
                    continue;
                };
                while let Some(field) = file.next(&mut binding)? {
                    let operand = match (field.number, field.bytes()) {
                        (1, Some(name)) => Some(Operand::Named(file.text(name)?)),
                        (2, Some(value)) => StoredValue::read(file, value)?.map(Operand::Stored),
                        _ => None,
                    };
                    operands.extend(operand.map(|operand| (key.clone(), operand)));
                }
            }
        }
        Ok(operands)
    }
}
