//! The variables of a program that are stored: those of blocks of Protocol Buffers, or parameters
//! in JSON.
//!
//! ```text
//! Program    1: Block …                                         (.pdmodel)
//! Block      3: Variable …, 4: Operator …
//! Variable   1: name, 2: Type, 3: whether it is persistent
//! Type       1: kind, 3: { 1: { 1: dtype, 2: size … } … }
//! Operator   1: { 2: name of a variable … } …, 3: name
//!
//! {"base_code": {"magic": "pir"}, "program": {"regions": [{"blocks": [{"ops": [
//!     {"#": "p", "A": [_, _, _, name], "O": {"%": number, "TT": {"D": [_, sizes]}},
//!      "OA": [is persistent]},
//!     {"#": name, "A": attributes, "I": [{"%": number}, …],
//!      "O": [{"%": number, "TT": …}, …]}]}]}]}}
//!                                                               (.json)
//! ```
//!
//! Format: Paddle `framework.proto`; `paddle/fluid/pir/serialize_deserialize/src/ir_serialize.cc`.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;
use std::ops::Range;

use serde::Deserialize;
use serde::de::{Deserializer, Error, SeqAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use super::wrong;
use crate::Result;
use crate::limits::{Budget, cap};
use crate::parse::message::MessageReader;
use crate::source::Source;

/// Longest program in JSON, in bytes. Those of large models have some MiB.
const MAX_JSON: u64 = 64 << 20;

/// Longest part of an operator in JSON, in bytes: its values take some times as much memory.
const MAX_PART: usize = 1 << 16;

/// Letters of the name of an operator that are kept.
const MAX_OPERATOR: usize = 64;

/// A variable that is stored.
pub(super) struct PaddleVariable {
    pub name: String,
    /// A size that is not known is below zero.
    pub dims: Vec<i64>,
    /// What operators call it.
    key: String,
    /// Whether an operator decodes it.
    pub is_codes: bool,
}

impl PaddleVariable {
    /// Whether a tensor of this shape can be the variable.
    pub(super) fn fits(&self, shape: &[usize]) -> bool {
        let fits = |(&dim, &size): (&i64, &usize)| dim < 0 || u64::try_from(dim) == Ok(size as u64);
        self.dims.len() == shape.len() && self.dims.iter().zip(shape).all(fits)
    }
}

/// What is found in a program.
#[derive(Default)]
pub(super) struct PaddleProgram {
    /// In the order in which they are stored.
    pub variables: Vec<PaddleVariable>,
    /// The first operator that decodes, if there is one.
    pub decoder: Option<String>,
    /// What operators call the variables that they decode.
    decoded: HashSet<String>,
    /// Whether products are decoded: any of their factors may be codes.
    decodes_products: bool,
}

/// Reads a program.
///
/// # Errors
/// `Parse` if it is malformed; `LimitExceeded`; `Io`.
pub(super) fn read(source: &Source, budget: &Budget) -> Result<PaddleProgram> {
    let len = source.len().unwrap_or(0);
    budget.tables(0, 0, len)?;
    let mut program = PaddleProgram::default();
    let mut first = [0; 1];
    source.read_at(0, &mut first)?;
    match first {
        [b'{'] => {
            cap("MAX_PADDLE_JSON_BYTES", len, MAX_JSON, "bytes of a program")?;
            budget.alloc(len, "a program")?;
            let mut text = crate::limits::zeroed(len, "a program")?;
            source.read_at(0, &mut text)?;
            let file: PirFile = serde_json::from_slice(&text)
                .map_err(|e| wrong(format!("its program is malformed: {e}")))?;
            program.add_regions(file.program.regions);
            budget.tables(0, program.variables.len() as u64, 0)?;
        }
        _ => program.add_blocks(&mut MessageReader::new(source), budget)?,
    }
    let (variables, decoded) = (&mut program.variables, &program.decoded);
    for variable in variables.iter_mut() {
        variable.is_codes = program.decodes_products || decoded.contains(&variable.key);
    }
    // Rust orders texts as Python does: by code points. Blocks share variables.
    variables.sort_by(|a, b| a.name.cmp(&b.name));
    variables.dedup_by(|again, first| {
        let is_same = again.name == first.name;
        first.is_codes |= is_same && again.is_codes;
        is_same
    });
    Ok(program)
}

/// Kinds of variables that are never stored: inputs, outputs, readers, and what is no tensor.
const NOT_STORED: [u64; 4] = [9, 10, 15, 17];

impl PaddleProgram {
    fn add_blocks(&mut self, reader: &mut MessageReader<'_>, budget: &Budget) -> Result<()> {
        let mut rest = 0..reader.len;
        while let Some(field) = reader.next(&mut rest)? {
            let (1, Some(mut block)) = (field.number, field.bytes()) else {
                continue;
            };
            while let Some(field) = reader.next(&mut block)? {
                match (field.number, field.bytes()) {
                    (3, Some(variable)) => {
                        if let Some(variable) = read_variable(reader, variable)? {
                            budget.tables(0, 1, 0)?;
                            self.variables.push(variable);
                        }
                    }
                    (4, Some(operator)) => {
                        if let Some((name, inputs)) = read_decoder(reader, operator)? {
                            budget.tables(0, inputs.len() as u64, 0)?;
                            self.add_decoder(&name, inputs);
                        }
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    fn add_regions(&mut self, regions: Vec<PirRegion>) {
        for block in regions.into_iter().flat_map(|region| region.blocks) {
            let PirOps(found) = block.ops;
            self.variables.extend(found.variables);
            self.decoder = self.decoder.take().or(found.decoder);
            self.decoded.extend(found.decoded);
            self.decodes_products |= found.decodes_products;
        }
    }

    /// Adds an operator that decodes `inputs`.
    fn add_decoder(&mut self, name: &str, inputs: Vec<String>) {
        // In JSON the number of a dialect is before it.
        let plain = name.rsplit('.').next().unwrap_or(name);
        let name_start = || plain.chars().take(MAX_OPERATOR).collect();
        self.decoder.get_or_insert_with(name_start);
        // Before 2022 products of integers were decoded, and not their factors.
        self.decodes_products |= name.contains("fake_");
        self.decoded.extend(inputs);
    }
}

/// Whether an operator decodes: `dequantize_linear`, `weight_only_linear`, `llm_int8_linear` and
/// the like. Those that quantize and dequantize take values, and round them.
fn is_decoder(name: &str) -> bool {
    let decodes = name.contains("dequantize") && !name.contains("quantize_dequantize");
    decodes || name.contains("weight_only") || name.contains("int8")
}

/// The name of an operator that decodes, and those of its inputs; `None` for others.
fn read_decoder(
    reader: &mut MessageReader<'_>,
    operator: Range<u64>,
) -> Result<Option<(String, Vec<String>)>> {
    let (mut name, mut names, mut rest) = (String::new(), vec![], operator.clone());
    while let Some(field) = reader.next(&mut rest)? {
        if let (3, Some(text)) = (field.number, field.bytes()) {
            name = reader.text(text)?;
        }
    }
    if !is_decoder(&name) {
        return Ok(None);
    }
    rest = operator;
    while let Some(field) = reader.next(&mut rest)? {
        let (1, Some(mut input)) = (field.number, field.bytes()) else {
            continue;
        };
        while let Some(field) = reader.next(&mut input)? {
            if let (2, Some(text)) = (field.number, field.bytes()) {
                names.push(reader.text(text)?);
            }
        }
    }
    Ok(Some((name, names)))
}

/// A variable, if it is stored.
fn read_variable(
    reader: &mut MessageReader<'_>,
    mut rest: Range<u64>,
) -> Result<Option<PaddleVariable>> {
    let (mut name, mut is_stored, mut kind, mut dims) = (String::new(), false, 0, vec![]);
    while let Some(field) = reader.next(&mut rest)? {
        match (field.number, field.bytes(), field.varint()) {
            (1, Some(text), _) => name = reader.text(text)?,
            (2, Some(mut message), _) => {
                while let Some(field) = reader.next(&mut message)? {
                    match (field.number, field.bytes(), field.varint()) {
                        (1, _, Some(number)) => kind = number,
                        (3, Some(tensor), _) => dims = read_dims(reader, tensor)?,
                        _ => {}
                    }
                }
            }
            (3, _, Some(value)) => is_stored = value != 0,
            _ => {}
        }
    }
    let is_stored = is_stored && !NOT_STORED.contains(&kind);
    Ok(is_stored.then(|| PaddleVariable { key: name.clone(), name, dims, is_codes: false }))
}

/// The sizes in the description of a tensor.
fn read_dims(reader: &mut MessageReader<'_>, mut rest: Range<u64>) -> Result<Vec<i64>> {
    let mut dims = vec![];
    while let Some(field) = reader.next(&mut rest)? {
        let (1, Some(mut tensor)) = (field.number, field.bytes()) else {
            continue;
        };
        while let Some(field) = reader.next(&mut tensor)? {
            if let (2, Some(size)) = (field.number, field.varint()) {
                dims.push(size.cast_signed());
            }
        }
    }
    Ok(dims)
}

#[derive(Deserialize)]
struct PirFile {
    program: PirProgram,
}

#[derive(Deserialize)]
struct PirProgram {
    regions: Vec<PirRegion>,
}

#[derive(Deserialize)]
struct PirRegion {
    blocks: Vec<PirBlock>,
}

#[derive(Deserialize)]
struct PirBlock {
    ops: PirOps,
}

/// What is found in the operators of a block, and of blocks in them.
struct PirOps(PaddleProgram);

impl<'de> Deserialize<'de> for PirOps {
    fn deserialize<D: Deserializer<'de>>(ops: D) -> std::result::Result<Self, D::Error> {
        ops.deserialize_seq(PirOpsVisitor)
    }
}

/// Takes operators one at a time: few of them are parameters.
struct PirOpsVisitor;

impl<'de> Visitor<'de> for PirOpsVisitor {
    type Value = PirOps;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of operators")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut ops: A) -> std::result::Result<PirOps, A::Error> {
        let mut found = PaddleProgram::default();
        while let Some(op) = ops.next_element::<PirOp<'de>>()? {
            if is_decoder(&op.kind) {
                found.add_decoder(&op.kind, op.inputs().map_err(A::Error::custom)?);
            }
            found
                .variables
                .extend(op.variable().map_err(A::Error::custom)?);
            found.add_regions(op.regions);
        }
        Ok(PirOps(found))
    }
}

/// An operator.
#[derive(Deserialize)]
struct PirOp<'a> {
    #[serde(rename = "#", borrow)]
    kind: Cow<'a, str>,
    #[serde(rename = "A", borrow)]
    attributes: Option<&'a RawValue>,
    #[serde(rename = "I", borrow)]
    inputs: Option<&'a RawValue>,
    #[serde(rename = "O", borrow)]
    results: Option<&'a RawValue>,
    #[serde(rename = "OA", borrow)]
    marks: Option<&'a RawValue>,
    #[serde(default)]
    regions: Vec<PirRegion>,
}

/// The value of a part of an operator.
fn value(raw: Option<&RawValue>) -> std::result::Result<Value, String> {
    let text = raw.map_or("null", RawValue::get);
    if text.len() > MAX_PART {
        return Err(format!("a part of an operator has {} bytes", text.len()));
    }
    serde_json::from_str(text).map_err(|e| e.to_string())
}

impl PirOp<'_> {
    /// Numbers of the values that the operator takes, as text.
    fn inputs(&self) -> std::result::Result<Vec<String>, String> {
        let inputs = value(self.inputs)?;
        let inputs = inputs.as_array().into_iter().flatten();
        Ok(inputs.map(|input| input["%"].to_string()).collect())
    }

    /// The variable that the operator stands for, if it is stored: a parameter, or persistent data.
    fn variable(&self) -> std::result::Result<Option<PaddleVariable>, String> {
        let is_parameter = self.kind == "p";
        if !is_parameter && !self.kind.ends_with(".data") {
            return Ok(None);
        }
        let (attributes, marks) = (value(self.attributes)?, value(self.marks)?);
        let (name, is_stored, result) = if is_parameter {
            // Programs that are not to be trained have no marks.
            (attributes.get(3), marks.get(0).is_none_or(|mark| *mark != 0), "")
        } else {
            let mark = named(&marks, "persistable").and_then(|mark| mark.pointer("/D/0/D"));
            let name = named(&attributes, "name").and_then(|name| name.get("D"));
            (name, mark == Some(&Value::Bool(true)), "/0")
        };
        if !is_stored {
            return Ok(None);
        }
        let results = value(self.results)?;
        let result = results.pointer(result).unwrap_or(&Value::Null);
        let dims = result.pointer("/TT/D/1").and_then(Value::as_array);
        let dims = dims.and_then(|dims| dims.iter().map(Value::as_i64).collect());
        match (name.and_then(Value::as_str), dims) {
            (Some(name), Some(dims)) => {
                let (name, key) = (name.to_owned(), result["%"].to_string());
                Ok(Some(PaddleVariable { name, dims, key, is_codes: false }))
            }
            _ => Err(format!("a variable without a name or a shape ({})", self.kind)),
        }
    }
}

/// The value of the attribute `name` of a list of attributes.
fn named<'v>(attributes: &'v Value, name: &str) -> Option<&'v Value> {
    let mut found = attributes.as_array()?.iter();
    found.find(|item| item["N"] == name)?.get("AT")
}
