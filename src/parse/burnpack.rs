//! Burnpack, the container of Burn.
//!
//! ```text
//! 4  NRUB, the number 0x4255524E
//! 2  the version, 1
//! 4  length of the description
//!    the description in CBOR: {"tensors": {name: {"dtype", "shape", "data_offsets", "param_id"?}}, "metadata"?, "scalars"?}
//!    padding to a multiple of 256 bytes, from which `data_offsets` count
//!    bytes of the tensors, little-endian
//! ```
//!
//! Format: `burn-pack` 0.23, `base.rs` and `writer.rs`.

mod cbor;

use self::cbor::{CborKind, CborReader};
use crate::dtype::burn::from_burn;
use crate::error::InTensor;
use crate::limits::{Budget, cap};
use crate::model::TensorInfo;
use crate::source::Source;
use crate::{AnamnesisError, Container, Dtype, ParsedModel, Result};

const HEAD: u64 = 10;
const VERSION: u64 = 1;

/// Where the bytes of tensors begin, and each tensor's: at multiples of it.
const ALIGNMENT: u64 = 256;

/// Longest description in bytes, as in `burn-pack`.
const MAX_DESCRIPTION: u64 = 100 << 20;

/// Most dimensions of a tensor.
const MAX_DIMS: u64 = 64;

/// Reads the description; the tensors' bytes are passed over.
///
/// # Errors
/// `Parse` if the file is malformed, or a tensor's bytes do not fit its shape or lie outside of the file; `Unsupported` for another version
/// and for quantized tensors; `LimitExceeded`; `Io`.
pub(super) fn read(source: &Source, budget: &Budget) -> Result<ParsedModel> {
    let file_len = source.len().unwrap_or(0);
    let mut head = [0; HEAD as usize];
    source.read_at(0, &mut head)?;
    let version = u64::from(u16::from_le_bytes([head[4], head[5]]));
    if version != VERSION {
        let what = format!("version {version}; {VERSION} is read");
        return Err(AnamnesisError::unsupported("Burnpack", what));
    }
    let len = u64::from(u32::from_le_bytes([head[6], head[7], head[8], head[9]]));
    cap("MAX_BURNPACK_DESCRIPTION", len, MAX_DESCRIPTION, "bytes of the description")?;
    let data = (HEAD + len).next_multiple_of(ALIGNMENT);
    if data > file_len && HEAD + len != file_len {
        return Err(AnamnesisError::parse("the file ends in its description"));
    }
    let mut contents = ParsedModel::new(Container::Burnpack, data.min(file_len) as usize);
    contents.sources.push(source.share());
    budget.tables(0, 0, len)?;
    let reader = CborReader::new(source, HEAD..HEAD + len);
    let mut description = Description { reader, budget, data, file_len, tensors: Vec::new() };
    description.read()?;
    contents.tensors = description.tensors;
    if contents.tensors.is_empty() {
        return Err(AnamnesisError::parse("the file holds no tensors"));
    }
    require_apart(&contents.tensors)?;
    Ok(contents)
}

/// Fails if two tensors share bytes: no writer makes such a file.
fn require_apart(tensors: &[TensorInfo]) -> Result<()> {
    let mut places: Vec<&TensorInfo> = tensors.iter().filter(|t| t.len > 0).collect();
    places.sort_by_key(|t| t.offset);
    for pair in places.windows(2) {
        if pair[0].offset + pair[0].len > pair[1].offset {
            let what = format!(
                "{}: its bytes are also those of `{}`",
                InTensor(&pair[1].name),
                pair[0].name
            );
            return Err(AnamnesisError::parse(what));
        }
    }
    Ok(())
}

/// Reads the description of the tensors.
struct Description<'a> {
    reader: CborReader<'a>,
    budget: &'a Budget,
    /// Where the bytes of tensors begin.
    data: u64,
    file_len: u64,
    tensors: Vec<TensorInfo>,
}

/// What is said of a tensor, as far as it is read.
#[derive(Default)]
struct Said {
    dtype: Option<Dtype>,
    shape: Option<Vec<usize>>,
    place: Option<[u64; 2]>,
}

impl Description<'_> {
    fn read(&mut self) -> Result<()> {
        let mut has_tensors = false;
        for _ in 0..self.reader.map()? {
            match &*self.reader.text()? {
                "tensors" if has_tensors => return Err(self.reader.wrong("tensors twice")),
                "tensors" => {
                    has_tensors = true;
                    self.all()?;
                }
                // What users note, and numbers that are no tensors.
                "metadata" | "scalars" => self.reader.pass()?,
                other => {
                    let what = format!("`{other}`, which is not known");
                    return Err(self.reader.wrong(&what));
                }
            }
        }
        self.reader.end()
    }

    fn all(&mut self) -> Result<()> {
        let count = self.reader.map()?;
        self.budget.items(count, "tensors")?;
        self.budget.tables(count, 0, 0)?;
        let mut names = std::collections::HashSet::new();
        for _ in 0..count {
            let name = self.reader.text()?;
            if !names.insert(name.clone()) {
                return Err(AnamnesisError::parse(format!("two tensors are called `{name}`")));
            }
            let said = self.said().map_err(|e| e.in_tensor(&name))?;
            let tensor = self.tensor(&name, said).map_err(|e| e.in_tensor(&name))?;
            self.tensors.push(tensor);
        }
        Ok(())
    }

    fn said(&mut self) -> Result<Said> {
        let mut said = Said::default();
        for _ in 0..self.reader.map()? {
            let key = self.reader.text()?;
            let is_new = match &*key {
                "dtype" => said.dtype.replace(self.dtype()?).is_none(),
                "shape" => said.shape.replace(self.shape()?).is_none(),
                "data_offsets" => {
                    self.reader.list(2)?;
                    let place = [self.reader.number()?, self.reader.number()?];
                    said.place.replace(place).is_none()
                }
                // The parameter's number, by which its state of training is found.
                "param_id" => {
                    self.reader.pass()?;
                    true
                }
                other => {
                    let what = format!("`{other}` of a tensor, which is not known");
                    return Err(self.reader.wrong(&what));
                }
            };
            if !is_new {
                return Err(self.reader.wrong(&format!("`{key}` twice")));
            }
        }
        Ok(said)
    }

    fn tensor(&self, name: &str, said: Said) -> Result<TensorInfo> {
        let Said { dtype: Some(dtype), shape: Some(shape), place: Some([start, end]) } = said
        else {
            let what = "its dtype, shape or data_offsets are missing";
            return Err(AnamnesisError::parse(what));
        };
        let len = end.checked_sub(start);
        let bytes = dtype.byte_len(&shape).map(|bytes| bytes as u64);
        let Some(len) = len.filter(|&len| Some(len) == bytes) else {
            let what = format!("its bytes {start} to {end} are not {dtype} {shape:?}");
            return Err(AnamnesisError::parse(what));
        };
        let offset = self.data.checked_add(start);
        let offset =
            offset.filter(|at| at.checked_add(len).is_some_and(|end| end <= self.file_len));
        let Some(offset) = offset else {
            let what = format!("its bytes {start} to {end} lie behind the end of the file");
            return Err(AnamnesisError::parse(what));
        };
        Ok(TensorInfo::plain(name, (dtype, shape), (0, offset, len)))
    }

    /// `DType` of `burn-std`: a name, or a map of one with what belongs to it.
    fn dtype(&mut self) -> Result<Dtype> {
        let unknown = |name: &str| AnamnesisError::unsupported("type of Burn", name.to_owned());
        let name = match self.reader.next()? {
            CborKind::Text(len) => self.reader.text_of(len)?,
            CborKind::Map(1) => {
                let name = self.reader.text()?;
                if name != "Bool" {
                    let what = "it is quantized, which is not decoded; `dequantize` it in Burn before it is saved";
                    return Err(AnamnesisError::unsupported(name, what));
                }
                // Booleans of four bytes are integers to everybody else.
                let store = self.reader.text()?;
                return match &*store {
                    "Native" | "U8" => Ok(Dtype::Bool),
                    _ => Err(unknown(&format!("booleans as {store}"))),
                };
            }
            _ => return Err(self.reader.wrong("a dtype that is none")),
        };
        from_burn(&name).ok_or_else(|| unknown(&name))
    }

    fn shape(&mut self) -> Result<Vec<usize>> {
        let CborKind::List(dims) = self.reader.next()? else {
            return Err(self.reader.wrong("a shape that is none"));
        };
        cap("MAX_BURNPACK_DIMS", dims, MAX_DIMS, "dimensions of a tensor")?;
        let size =
            |n: u64| usize::try_from(n).map_err(|_| AnamnesisError::parse("a size that is none"));
        (0..dims).map(|_| size(self.reader.number()?)).collect()
    }
}
