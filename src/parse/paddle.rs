//! Inference models of Paddle: a program, `.pdmodel` or `.json`, and its parameters, `.pdiparams`,
//! which have no names. They are stored in the order of the names of the program's persistent
//! variables.
//!
//! ```text
//! parameter  version: u32 (0), levels: u64, for each: bytes: u64 and offsets (LoD),
//!            version: u32 (0), bytes: i32, TensorDesc, elements
//! TensorDesc 1: dtype, 2: size …                          (Protocol Buffers)
//! ```
//!
//! Format: Paddle `paddle/phi/core/framework/dense_tensor_serialize.cc` (`SerializeToStream`), and
//! for the order `python/paddle/static/io.py` and `pir_io.py` (`save_vars`).

mod program;

use std::path::Path;

use self::program::{PaddleProgram, PaddleVariable};
use super::external::ExternalFiles;
use super::magic;
use super::window::WindowReader;
use crate::limits::{Budget, cap};
use crate::model::{GraphCodes, GraphRole, Skipped, TensorInfo};
use crate::protobuf::{FieldHead, FieldKind};
use crate::source::Source;
use crate::{AnamnesisError, Container, Dtype, ParsedModel, Result};

/// Most dimensions of a tensor, levels of its LoD, and bytes of its description.
const MAX_DIMS: u64 = 64;
const MAX_LEVELS: u64 = 64;
const MAX_DESCRIPTION: u64 = 1 << 10;

/// The dtype of a number of `VarType.Type` (`framework.proto`).
fn from_number(number: u64) -> Option<Dtype> {
    Some(match number {
        0 => Dtype::Bool,
        1 => Dtype::I16,
        2 => Dtype::I32,
        3 => Dtype::I64,
        4 => Dtype::F16,
        5 => Dtype::F32,
        6 => Dtype::F64,
        20 => Dtype::U8,
        21 => Dtype::I8,
        22 => Dtype::BF16,
        23 => Dtype::C64,
        32 => Dtype::F8E4M3,
        33 => Dtype::F8E5M2,
        36 => Dtype::U16,
        37 => Dtype::U32,
        38 => Dtype::U64,
        _ => return None,
    })
}

/// Complex numbers of two F64, which no dtype stands for.
const COMPLEX128: u64 = 24;
const COMPLEX128_BYTES: usize = 16;

/// Reads a model by its program; the parameters are in a file beside it.
///
/// # Errors
/// Those of [`read_params`].
pub(super) fn read_program(
    source: &Source,
    path: Option<&Path>,
    budget: &Budget,
) -> Result<ParsedModel> {
    let path = needs_path(path)?;
    let name =
        other_file(path, &["pdiparams"], &[("__model__", "__params__"), ("model", "params")]);
    let Some(name) = name
        .first()
        .filter(|name| path.with_file_name(name).exists())
    else {
        return Err(missing("its parameters", &name));
    };
    let (mut contents, number) = with_other(source, path, name)?;
    let (program, params) = (program::read(source, budget)?, contents.sources[number].share());
    add_all(&mut contents, &program, (number, &params), budget)?;
    Ok(contents)
}

/// Reads a model by its parameters; their names are in the program beside them.
///
/// # Errors
/// `Parse` if the other file is missing, or the two contradict each other; `Unsupported` if there
/// is no path, or for versions and types that are not known; `LimitExceeded`; `Io`.
pub(super) fn read_params(
    source: &Source,
    path: Option<&Path>,
    budget: &Budget,
) -> Result<ParsedModel> {
    let path = needs_path(path)?;
    let names = [("__params__", "__model__"), ("params", "model")];
    let names = other_file(path, &["json", "pdmodel"], &names);
    for name in &names {
        if !path.with_file_name(name).exists() {
            continue;
        }
        let (mut contents, number) = with_other(source, path, name)?;
        let program = &contents.sources[number];
        if magic::is_paddle_program(&magic::read_head(&mut &*program)?) {
            let program = program::read(program, budget)?;
            add_all(&mut contents, &program, (0, source), budget)?;
            return Ok(contents);
        }
    }
    Err(missing("its program, which has their names", &names))
}

/// The path of a model of two files.
fn needs_path(path: Option<&Path>) -> Result<&Path> {
    path.ok_or_else(|| {
        let what = "its parameters are in a `.pdiparams`, and their names in the program beside it (`.json` or `.pdmodel`); give the path of one of them";
        AnamnesisError::unsupported("Paddle", what)
    })
}

/// How the other file beside `path` may be called: by another ending, or as the pair of `path`'s
/// name.
fn other_file(path: &Path, endings: &[&str], pairs: &[(&str, &str)]) -> Vec<String> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    match pairs.iter().find(|(of, _)| *of == name) {
        Some((_, other)) => vec![(*other).to_owned()],
        None => {
            let stem = path.file_stem().unwrap_or_default().to_string_lossy();
            let names = endings.iter().map(|ending| format!("{stem}.{ending}"));
            names.collect()
        }
    }
}

fn missing(what: &str, names: &[String]) -> AnamnesisError {
    wrong(format!("{what}, is missing: `{}` should be beside it", names.join("` or `")))
}

/// A model whose first source is `source`, and the number of that of the file `name` beside it.
fn with_other(source: &Source, path: &Path, name: &str) -> Result<(ParsedModel, usize)> {
    let mut contents = ParsedModel::new(Container::Paddle, 0);
    contents.sources.push(source.share());
    let mut files = ExternalFiles::new("Paddle", Some(path));
    let (number, _) = files.source(name, &mut contents)?;
    Ok((contents, number))
}

/// Adds the parameters, which are in the source of the number, in the order of the variables.
fn add_all(
    contents: &mut ParsedModel,
    program: &PaddleProgram,
    (number, params): (usize, &Source),
    budget: &Budget,
) -> Result<()> {
    let (window, decoder) = (WindowReader::new(params), program.decoder.as_deref());
    let mut reader = ParamsReader { window, at: 0, decoder };
    let (len, count) = (reader.window.len, program.variables.len());
    budget.tables(0, 0, len)?;
    for (i, variable) in program.variables.iter().enumerate() {
        if reader.at == len {
            return Err(wrong(format!("{i} parameters are stored, and the program has {count}")));
        }
        budget.items(1, "parameters")?;
        budget.tables(1, 0, 0)?;
        let added = reader.add(contents, variable, number);
        added.map_err(|error| error.in_tensor(&variable.name))?;
    }
    if reader.at != len {
        let what = format!(
            "{} bytes are stored behind the {count} parameters that the program has",
            len - reader.at
        );
        return Err(wrong(what));
    }
    if count == 0 {
        return Err(AnamnesisError::parse("the file holds no tensors"));
    }
    let stored: u64 = contents.tensors.iter().map(|t| t.len).sum();
    let all = contents.sources.iter().filter_map(Source::len).sum::<u64>();
    contents.header_size = all.saturating_sub(stored) as usize;
    Ok(())
}

/// Reads parameters one after another.
struct ParamsReader<'a> {
    window: WindowReader<'a>,
    at: u64,
    /// The operator that decodes codes, if there is one.
    decoder: Option<&'a str>,
}

impl ParamsReader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        let bytes = self
            .window
            .bytes(self.at..self.at.saturating_add(N as u64))?;
        let bytes = *bytes
            .first_chunk()
            .ok_or_else(|| wrong("it is truncated"))?;
        self.at += N as u64;
        Ok(bytes)
    }

    fn version(&mut self) -> Result<()> {
        match u32::from_le_bytes(self.take()?) {
            0 => Ok(()),
            n => Err(AnamnesisError::unsupported("Paddle", format!("a tensor of version {n}"))),
        }
    }

    fn skip(&mut self, n: u64) -> Result<()> {
        let end = self.at.checked_add(n).filter(|end| *end <= self.window.len);
        self.at = end.ok_or_else(|| AnamnesisError::parse("the file is truncated"))?;
        Ok(())
    }

    /// Adds the next parameter, which is that of `variable`.
    fn add(
        &mut self,
        contents: &mut ParsedModel,
        variable: &PaddleVariable,
        source: usize,
    ) -> Result<()> {
        self.version()?;
        let levels = u64::from_le_bytes(self.take()?);
        cap("MAX_PADDLE_LEVELS", levels, MAX_LEVELS, "levels of a tensor's LoD")?;
        for _ in 0..levels {
            let bytes = u64::from_le_bytes(self.take()?);
            self.skip(bytes)?;
        }
        self.version()?;
        let (number, shape) = self.description()?;
        cap("MAX_PADDLE_DIMS", variable.dims.len() as u64, MAX_DIMS, "dimensions of a variable")?;
        if !variable.fits(&shape) {
            let what =
                format!("it is stored as {shape:?}, and the program has {:?}", variable.dims);
            return Err(AnamnesisError::parse(what));
        }
        let dtype = from_number(number);
        let len = match dtype {
            Some(dtype) => dtype.byte_len(&shape),
            None if number == COMPLEX128 => shape
                .iter()
                .try_fold(COMPLEX128_BYTES, |n, &size| n.checked_mul(size)),
            None => {
                let what = format!("elements of type {number} of Paddle");
                return Err(AnamnesisError::unsupported("Paddle", what));
            }
        };
        let (offset, name) = (self.at, variable.name.as_str());
        let len = len.ok_or_else(|| AnamnesisError::parse("its size overflows"))? as u64;
        self.skip(len)?;
        match dtype {
            Some(dtype) => {
                // Vectors are scales and zero points. Codes may be stored as floats.
                let is_codes = variable.is_codes && (shape.len() > 1 || dtype.bits() <= 8);
                contents
                    .graph
                    .push(match self.decoder.filter(|_| is_codes) {
                        Some(op) => GraphRole::Codes(Box::new(GraphCodes::new(op))),
                        None => GraphRole::Plain,
                    });
                let info = TensorInfo::plain(name, (dtype, shape), (source, offset, len));
                contents.tensors.push(info);
            }
            None => {
                let what = "array of complex128".to_owned();
                contents
                    .skipped
                    .push(Skipped { name: name.to_owned(), what });
            }
        }
        Ok(())
    }

    /// The number of a dtype, and a shape.
    fn description(&mut self) -> Result<(u64, Vec<usize>)> {
        let len = i32::from_le_bytes(self.take()?);
        let len = u64::try_from(len).map_err(|_| AnamnesisError::parse("a length below zero"))?;
        cap("MAX_PADDLE_DESCRIPTION_BYTES", len, MAX_DESCRIPTION, "bytes of a description")?;
        let start = self.at;
        self.skip(len)?;
        let (mut rest, mut dtype, mut shape) =
            (self.window.bytes(start..start + len)?, None, vec![]);
        while !rest.is_empty() {
            let field = FieldHead::read(rest).map_err(AnamnesisError::parse)?;
            let FieldKind::Varint(value) = field.kind else {
                return Err(AnamnesisError::parse("its description is not as Paddle writes it"));
            };
            match field.number {
                1 => dtype = Some(value),
                _ => {
                    let size = i64::try_from(value)
                        .ok()
                        .and_then(|n| usize::try_from(n).ok());
                    shape.push(size.ok_or_else(|| AnamnesisError::parse("a size that is none"))?);
                }
            }
            rest = &rest[field.len..];
        }
        cap("MAX_PADDLE_DIMS", shape.len() as u64, MAX_DIMS, "dimensions of a tensor")?;
        let dtype = dtype.ok_or_else(|| AnamnesisError::parse("its type is missing"))?;
        Ok((dtype, shape))
    }
}

/// The error for a model that contradicts itself.
fn wrong(what: impl std::fmt::Display) -> AnamnesisError {
    AnamnesisError::parse(format!("Paddle: {what}"))
}
