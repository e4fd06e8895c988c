//! Files of ggml from before GGUF: those of whisper.cpp, which still writes them, and those that llama.cpp
//! wrote until August 2023.
//!
//! ```text
//! 4  ggml, ggmf or ggjt, read as a little-endian number; the latter two have a version
//!    numbers and tables of the model, whose meaning only the program knows that reads it
//!    tensors, up to the end of the file, each:
//!      number of sizes, length of the name, type; sizes, the innermost first; name
//!      of ggjt: padding to a multiple of 32 bytes
//!      data
//! ```
//!
//! `ggml` does not tell the program. So [`PROGRAMS`] are tried in turn: the tensors of a file must end where it
//! ends, and the embedding must have the sizes that the numbers give it. The file is of the one program with
//! which this is so.
//!
//! Formats: `whisper_model_load` of whisper.cpp's `src/whisper.cpp`, `models/convert-parakeet-to-ggml.py` there,
//! and `llama_file_loader` of llama.cpp's `llama.cpp` of August 2023.

mod programs;

use std::collections::{HashMap, HashSet};

use self::programs::{PROGRAMS, Program, Section};
use super::window::WindowReader;
use crate::error::InTensor;
use crate::limits::{Budget, cap};
use crate::model::TensorInfo;
use crate::source::Source;
use crate::{AnamnesisError, Container, Dtype, ParsedModel, Result};

/// Most sizes of a tensor, as in ggml (`GGML_MAX_DIMS`).
const MAX_DIMS: u64 = 4;

/// Longest name or text, in bytes.
const MAX_TEXT: u64 = 65_535;

/// Most tokens of a vocabulary.
const MAX_TOKENS: u64 = 16 << 20;

/// What `ftype` is divided by, for the version of the blocks (`GGML_QNT_VERSION_FACTOR`).
const VERSIONS: u64 = 1000;

/// The version of today's blocks (`GGML_QNT_VERSION`).
const TODAY: u64 = 2;

/// Which of the three formats a file has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GgmlVersion {
    Ggml,
    Ggmf,
    /// The version of the blocks, as in `ftype` of other files.
    Ggjt(u64),
}

/// Reads the numbers and the descriptions of tensors; their data is passed over.
///
/// # Errors
/// `Parse` if the file is malformed; `Unsupported` for other versions, programs and types of tensors, and for
/// parts of a model; `LimitExceeded`; `Io`.
pub(super) fn read(source: &Source, budget: &Budget) -> Result<ParsedModel> {
    let mut reader = GgmlReader {
        file: WindowReader::new(source),
        at: 0,
        version: GgmlVersion::Ggml,
        is_past_header: false,
    };
    budget.tables(0, 0, reader.file.len)?;
    reader.version = match reader.u32()? {
        0x6767_6d6c => GgmlVersion::Ggml,
        magic => match (magic, reader.u32()?) {
            (0x6767_6d66, 1) => GgmlVersion::Ggmf,
            (0x6767_6a74, version @ 1..=3) => GgmlVersion::Ggjt(version - 1),
            (magic, version) => {
                let name = if magic == 0x6767_6d66 { "GGMF" } else { "GGJT" };
                let what = "GGMF 1 and GGJT 1 to 3 of llama.cpp are read";
                return Err(AnamnesisError::unsupported(format!("{name} version {version}"), what));
            }
        },
    };
    let (begin, is_ggml) = (reader.at, reader.version == GgmlVersion::Ggml);
    let programs = PROGRAMS
        .iter()
        .filter(|program| program.is_llama || is_ggml);
    let (mut found, mut furthest): (_, Option<((bool, u64), _)>) = (None, None);
    for program in programs {
        reader.at = begin;
        reader.is_past_header = false;
        match reader.model(program, budget) {
            Ok(_) if found.is_some() => {
                let what = "its header may be that of several programs";
                return Err(AnamnesisError::unsupported("GGML", what));
            }
            Ok(model) => found = Some(model),
            // The program with which most of the file made sense tells what is wrong with it.
            Err(error) => {
                let reached = (reader.is_past_header, reader.at);
                if furthest.as_ref().is_none_or(|(other, _)| *other < reached) {
                    furthest = Some((reached, error.about(program.name)));
                }
            }
        }
    }
    match (found, furthest) {
        (Some(mut model), _) => {
            model.sources.push(source.share());
            Ok(model)
        }
        (None, Some((_, error))) => Err(error),
        (None, None) => Err(AnamnesisError::parse("GGML of no program")),
    }
}

/// Reads a file from its beginning on.
struct GgmlReader<'a> {
    file: WindowReader<'a>,
    at: u64,
    version: GgmlVersion,
    /// Whether what is before the tensors was read.
    is_past_header: bool,
}

/// The numbers of a model by their names.
type Numbers = HashMap<&'static str, u64>;

impl GgmlReader<'_> {
    fn u32(&mut self) -> Result<u64> {
        let end = self.at + 4;
        let bytes = self.file.bytes(self.at..end)?;
        let number = bytes.first_chunk().copied().map(u32::from_le_bytes);
        self.at = end;
        Ok(number.unwrap_or_default().into())
    }

    fn text(&mut self, len: u64) -> Result<String> {
        cap("MAX_GGML_TEXT", len, MAX_TEXT, "bytes of a name")?;
        let end = self.at + len;
        let text = std::str::from_utf8(self.file.bytes(self.at..end)?);
        let text = text.map_err(|_| AnamnesisError::parse("a name that is not UTF-8"))?;
        self.at = end;
        Ok(text.to_owned())
    }

    fn pass(&mut self, len: u64) -> Result<()> {
        let end = self.at.checked_add(len).filter(|&end| end <= self.file.len);
        self.at = end.ok_or_else(|| AnamnesisError::parse("the file is truncated"))?;
        Ok(())
    }

    /// The model, if the file is one of `program`.
    fn model(&mut self, program: &Program, budget: &Budget) -> Result<ParsedModel> {
        let mut contents = ParsedModel::new(Container::Ggml, 0);
        let numbers = self.numbers(program, &mut contents)?;
        let header = self.at;
        self.is_past_header = true;
        let blocks = self.block_version(&numbers)?;
        self.tensors((program, blocks), budget, &mut contents)?;
        let (name, sizes) = program.embedding;
        let embedding = contents.tensors.iter().find(|t| &*t.name == name);
        let found = embedding.map(|t| t.shape.iter().map(|&n| n as u64).collect::<Vec<_>>());
        let wanted: Vec<u64> = sizes.iter().map(|size| size.of(&numbers)).collect();
        match found {
            None => {
                let what = if contents.tensors.is_empty() {
                    "it has no tensors"
                } else {
                    "it is not there"
                };
                return Err(AnamnesisError::parse(format!("{}: {what}", InTensor(&name))));
            }
            Some(found) if found != wanted => {
                let is_part = program.is_llama
                    && found
                        .iter()
                        .zip(&wanted)
                        .all(|(a, b)| b.is_multiple_of(*a.max(&1)));
                let what =
                    format!("{}: {found:?}, where its header has {wanted:?}", InTensor(&name));
                return Err(match is_part {
                    true => AnamnesisError::unsupported(
                        "part of a model in several files of GGML",
                        what,
                    ),
                    false => AnamnesisError::parse(what),
                });
            }
            Some(_) => {}
        }
        contents.header_size = header as usize;
        Ok(contents)
    }

    /// Reads what is before the tensors. The numbers become metadata.
    fn numbers(&mut self, program: &Program, contents: &mut ParsedModel) -> Result<Numbers> {
        let mut numbers = Numbers::new();
        let mut keep =
            |name: &str, text: String| contents.metadata.insert(format!("ggml.{name}"), text);
        keep("program", program.name.to_owned());
        for section in program.sections {
            match section {
                Section::Numbers(names) => {
                    for name in *names {
                        let number = self.u32()?;
                        keep(name, number.to_string());
                        numbers.insert(name, number);
                    }
                }
                Section::Text(name) => {
                    let len = self.u32()?;
                    keep(name, self.text(len)?);
                }
                Section::Words(sizes) => {
                    let words = sizes
                        .iter()
                        .try_fold(4u64, |n, size| n.checked_mul(size.of(&numbers)));
                    self.pass(words.unwrap_or(u64::MAX))?;
                }
                Section::Tokens(count) => self.tokens(count.of(&numbers))?,
            }
        }
        Ok(numbers)
    }

    /// Passes over a vocabulary of `count` tokens.
    fn tokens(&mut self, count: u64) -> Result<()> {
        cap("MAX_GGML_TOKENS", count.min(self.file.len), MAX_TOKENS, "tokens")?;
        let score = if self.version == GgmlVersion::Ggml {
            0
        } else {
            4
        };
        for _ in 0..count {
            let len = self.u32()?;
            self.pass(len + score)?;
        }
        Ok(())
    }

    /// The version of the blocks of quantized tensors.
    fn block_version(&self, numbers: &Numbers) -> Result<u64> {
        let ftype = numbers.get("ftype").copied().unwrap_or(TODAY * VERSIONS);
        match self.version {
            GgmlVersion::Ggjt(version) => Ok(version),
            _ if ftype / VERSIONS <= TODAY => Ok(ftype / VERSIONS),
            _ => Err(AnamnesisError::unsupported("GGML", format!("ftype {ftype}"))),
        }
    }

    /// Reads the tensors of `program`, up to the end of the file.
    fn tensors(
        &mut self,
        (program, blocks): (&Program, u64),
        budget: &Budget,
        contents: &mut ParsedModel,
    ) -> Result<()> {
        // In its first days llama.cpp had all scales of a row before the codes, under the same mark.
        let is_known = !program.is_llama || self.version != GgmlVersion::Ggml;
        let mut names = HashSet::new();
        while self.at < self.file.len {
            let (dims, len, id) = (self.u32()?, self.u32()?, self.u32()?);
            cap("MAX_GGML_DIMS", dims, MAX_DIMS, "sizes of a tensor")
                .map_err(|_| AnamnesisError::parse(format!("a tensor of {dims} sizes")))?;
            let mut shape = (0..dims)
                .map(|_| Ok(self.u32()? as usize))
                .collect::<Result<Vec<_>>>()?;
            shape.reverse();
            let name: Box<str> = self.text(len)?.into();
            let of_name = |error: AnamnesisError| error.in_tensor(&name);
            let (dtype, len) = stored(id as u32, blocks, &shape, is_known).map_err(of_name)?;
            if matches!(self.version, GgmlVersion::Ggjt(_)) {
                self.at = self.at.next_multiple_of(32);
            }
            let offset = self.at;
            self.pass(len).map_err(of_name)?;
            budget.items(1, "tensors")?;
            budget.tables(1, 0, 0)?;
            if !names.insert(name.clone()) {
                return Err(AnamnesisError::parse(format!("two tensors are called `{name}`")));
            }
            let tensor = TensorInfo::plain(name, (dtype, shape), (0, offset, len));
            contents.tensors.push(tensor);
        }
        Ok(())
    }
}

/// The dtype of type `id` in version `blocks`, and the bytes of a tensor of it. `is_known` says whether
/// the order of its bytes is that of this version.
fn stored(id: u32, blocks: u64, shape: &[usize], is_known: bool) -> Result<(Dtype, u64)> {
    // Q8_0 changed in version 2 alone.
    let version = if id == 8 && blocks < TODAY {
        0
    } else {
        blocks as u32
    };
    if let Some(dtype) = Dtype::from_old_ggml(id, version) {
        let len = dtype.byte_len(shape);
        let misfit = || AnamnesisError::parse(format!("{dtype} with sizes {shape:?}"));
        let dtype = if is_known {
            dtype
        } else {
            Dtype::UnknownGgml(id)
        };
        return Ok((dtype, len.ok_or_else(misfit)? as u64));
    }
    let dtype = match id {
        0..=3 | 6..=8 | 10..=14 => Dtype::from_ggml(id),
        _ => {
            return Err(AnamnesisError::unsupported(
                "GGML",
                format!("type {id}, which no program writes"),
            ));
        }
    };
    let len = dtype.byte_len(shape);
    let len = len.ok_or_else(|| AnamnesisError::parse(format!("{dtype} with sizes {shape:?}")))?;
    Ok((dtype, len as u64))
}
