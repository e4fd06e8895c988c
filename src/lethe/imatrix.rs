//! Importance matrices of llama.cpp: for each column of a weight the mean square of the activations
//! that it is multiplied with. Encoders weigh the error of a column by it.
//!
//! Files store sums and counts, not means. The mean is taken as `load_imatrix` does, in F32. Each
//! expert has a count of its own: the tokens that were routed to it.
//!
//! Source: llama.cpp 0.6.0 `common/imatrix-loader.cpp` (`common_imatrix_load`, both formats),
//! `tools/quantize/quantize.cpp` (`load_imatrix`, the means) and `src/llama-quant.cpp`
//! (`llama_model_quantize_impl`, what is refused).

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use crate::error::InTensor;
use crate::lethe::llama_names::{LlamaName, is_token_embedding, llama_name};
use crate::model::gguf::GgufMetadata;
use crate::source::Source;
use crate::{AnamnesisError, Dtype, ParsedModel, Result, Tensor};

/// Largest number of bytes that are read at once.
const STEP: usize = 1 << 20;

/// An importance matrix: a finite number for each column of each weight.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Imatrix {
    /// Importance of columns by llama.cpp's tensor names. Experts follow each other.
    pub(super) entries: HashMap<String, Vec<f32>>,
    /// Means of the activations of as many columns. The older format has none.
    pub(super) means: HashMap<String, Vec<f32>>,
    /// Names of the texts that it was computed from.
    pub datasets: Vec<String>,
    /// Number of chunks of text that were evaluated.
    pub chunks: i64,
}

impl Imatrix {
    /// Reads a file of either format.
    ///
    /// # Errors
    /// `Io` if it cannot be read or is changed meanwhile, `Parse` if it is malformed or has a
    /// number that is not finite.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let source = Source::open(path)?;
        let mut magic = [0; 4];
        // A legacy file begins with a count of entries, which is never as large as these four
        // letters read as a number.
        let is_gguf = source.len().is_some_and(|len| len >= 4) && {
            source.read_at(0, &mut magic)?;
            &magic == b"GGUF"
        };
        let read = if is_gguf {
            crate::parse(path).and_then(|model| read_gguf(&model))
        } else {
            LegacyReader::read(&source)
        };
        let about = format_args!("importance matrix {}", path.display());
        let read = read.map_err(|error| error.about(about))?;
        // It is read now and never again: what changes later does not matter.
        source.require_unchanged().map(|()| read)
    }

    /// Importance of the columns of the tensor `name` in llama.cpp's naming, expert after expert.
    pub(crate) fn get(&self, name: &str) -> Option<&[f32]> {
        self.entries.get(name).map(Vec::as_slice)
    }

    /// Importance of the columns of the tensor `name`, in llama.cpp's or Hugging Face's naming,
    /// with dimensions `dims`, outermost first. A single expert gets the part of the entry that
    /// belongs to it.
    ///
    /// # Errors
    /// `Parse` if the entry has another size. That of a token embedding is ignored then, as
    /// llama.cpp does.
    pub(crate) fn of_tensor(&self, name: &str, dims: &[usize]) -> Result<Option<&[f32]>> {
        part_of(&self.entries, name, dims)
    }

    /// Means of the activations of these columns, if they are known.
    ///
    /// # Errors
    /// As for [`of_tensor`](Self::of_tensor).
    pub(crate) fn means_of_tensor(&self, name: &str, dims: &[usize]) -> Result<Option<&[f32]>> {
        part_of(&self.means, name, dims)
    }

    /// Adds an entry. A later one of the same name replaces an earlier one.
    fn add(&mut self, name: &str, values: Vec<f32>) -> Result<()> {
        require_finite(name, &values)?;
        self.entries.insert(name.to_owned(), values);
        Ok(())
    }
}

/// llama.cpp refuses such a matrix as well (`llama_model_quantize_impl`): one infinite weight would
/// decide every search.
fn require_finite(name: &str, values: &[f32]) -> Result<()> {
    match values.iter().find(|value| !value.is_finite()) {
        Some(value) => {
            let what = format!("entry `{name}`: the value {value} is not finite");
            Err(AnamnesisError::parse(what))
        }
        None => Ok(()),
    }
}

/// Names that the entry of the tensor `name`, which is `ours` for llama.cpp, may have. The user's name
/// is first: an importance matrix of a model in Hugging Face's naming has entries by it. A stack of experts of which each holds two
/// projections has entries in llama.cpp's naming of both, whose inputs are the same.
pub(crate) fn names_of_entries(name: &str, ours: &str) -> Vec<String> {
    let projections = match ours.split_once("ffn_gate_up_exps").filter(|_| ours != name) {
        Some((layer, end)) => ["up", "gate"]
            .map(|of| format!("{layer}ffn_{of}_exps{end}"))
            .to_vec(),
        None => vec![],
    };
    [name.to_owned(), ours.to_owned()]
        .into_iter()
        .chain(projections)
        .collect()
}

/// The part of an entry that belongs to the tensor `name` ([`Imatrix::of_tensor`]).
fn part_of<'m>(
    entries: &'m HashMap<String, Vec<f32>>,
    name: &str,
    dims: &[usize],
) -> Result<Option<&'m [f32]>> {
    let LlamaName { name: ours, expert, .. } = llama_name(name);
    let Some(values) = names_of_entries(name, &ours)
        .iter()
        .find_map(|name| entries.get(name))
    else {
        return Ok(None);
    };
    let cols = dims.last().copied().unwrap_or(1);
    let wrong = |wanted: String| {
        let what = format!(
            "{}: the importance matrix has {} values, not {wanted}",
            InTensor(&name),
            values.len()
        );
        if is_token_embedding(&ours) {
            Ok(None)
        } else {
            Err(AnamnesisError::parse(what))
        }
    };
    // llama.cpp has one entry for all experts of a layer, in the order of their numbers.
    if let Some(expert) = expert {
        let part = values
            .chunks_exact(cols.max(1))
            .nth(expert)
            .filter(|_| values.len().is_multiple_of(cols.max(1)));
        return part
            .map_or_else(|| wrong(format!("{cols} for this expert")), |part| Ok(Some(part)));
    }
    // llama.cpp expects `ne[0] * ne[2]` values, and `ne[2]` is the third dimension from the
    // last.
    let matrices = dims
        .len()
        .checked_sub(3)
        .and_then(|at| dims.get(at))
        .copied()
        .unwrap_or(1);
    if cols.checked_mul(matrices) != Some(values.len()) {
        return wrong(format!("{cols} × {matrices}"));
    }
    Ok(Some(values))
}

/// The tensors of one entry in a GGUF file.
#[derive(Default)]
struct ImatrixEntry<'m> {
    /// Sums of activations.
    sums: Option<Tensor<'m>>,
    /// Sums of squares of activations, a row for each expert.
    squares: Option<Tensor<'m>>,
    /// Number of tokens for each expert.
    counts: Option<Tensor<'m>>,
}

/// Reads an importance matrix from a GGUF file.
fn read_gguf(model: &ParsedModel) -> Result<Imatrix> {
    let metadata = model
        .gguf()
        .ok_or_else(|| AnamnesisError::parse("no GGUF file"))?
        .metadata();
    let mut matrix =
        Imatrix { datasets: datasets(metadata)?, chunks: chunks(metadata)?, ..Imatrix::default() };
    let mut entries: BTreeMap<&str, ImatrixEntry<'_>> = BTreeMap::new();
    for tensor in model.tensors() {
        let Some((name, what)) = tensor.name().rsplit_once('.') else {
            continue;
        };
        match what {
            "in_sum" => entries.entry(name).or_default().sums = Some(tensor),
            "in_sum2" => entries.entry(name).or_default().squares = Some(tensor),
            "counts" => entries.entry(name).or_default().counts = Some(tensor),
            _ => {}
        }
    }
    if model.tensors().len() == 0 {
        return Err(AnamnesisError::parse("an importance matrix without entries"));
    }
    for (name, entry) in entries {
        let read = read_means(&entry).map_err(|error| error.about(format_args!("entry `{name}`")));
        if let Some([squares, means]) = read? {
            matrix.add(name, squares)?;
            require_finite(name, &means)?;
            matrix.means.insert(name.to_owned(), means);
        }
    }
    Ok(matrix)
}

fn datasets(metadata: &GgufMetadata) -> Result<Vec<String>> {
    let value = metadata
        .get("imatrix.datasets")
        .ok_or_else(|| missing("imatrix.datasets"))?;
    Ok(value
        .as_array()
        .and_then(|array| array.as_string_slice())
        .map(<[_]>::to_vec)
        .unwrap_or_default())
}

fn chunks(metadata: &GgufMetadata) -> Result<i64> {
    // Both keys are required, as `common_imatrix_load` requires them; the size itself is not used.
    let number = |key: &str| {
        let value = metadata.get(key).and_then(|value| value.as_unsigned());
        value
            .and_then(|n| i64::try_from(n).ok())
            .ok_or_else(|| missing(key))
    };
    number("imatrix.chunk_size")?;
    number("imatrix.chunk_count")
}

fn missing(key: &str) -> AnamnesisError {
    AnamnesisError::parse(format!("no importance matrix: its metadata has no `{key}`"))
}

/// Reads an entry and divides its sums, of squares and of activations, by its counts. None if the
/// entry is empty.
fn read_means(entry: &ImatrixEntry<'_>) -> Result<Option<[Vec<f32>; 2]>> {
    let (Some(squares), Some(counts)) = (entry.squares, entry.counts) else {
        return Err(AnamnesisError::parse("it has not both `in_sum2` and `counts`"));
    };
    if entry
        .sums
        .is_some_and(|sums| sums.elements() != squares.elements())
    {
        return Err(AnamnesisError::parse("`in_sum` and `in_sum2` have not as many values"));
    }
    if squares.dtype() != Dtype::F32 || counts.dtype() != Dtype::F32 {
        return Err(AnamnesisError::parse("`in_sum2` and `counts` have to be F32"));
    }
    let (mut squares, counts) = (read_f32(&squares)?, read_f32(&counts)?);
    if squares.is_empty() || counts.is_empty() {
        return Ok(None);
    }
    // What does not say the means of activations says nothing of them.
    let mut means = match entry.sums.filter(|sums| sums.dtype() == Dtype::F32) {
        Some(sums) => read_f32(&sums)?,
        None => vec![0.0; squares.len()],
    };
    // A row for each expert, all of the same length.
    if !squares.len().is_multiple_of(counts.len()) {
        let what = format!("{} values of {} counts", squares.len(), counts.len());
        return Err(AnamnesisError::parse(what));
    }
    let columns = squares.len() / counts.len();
    let experts = squares
        .chunks_exact_mut(columns)
        .zip(means.chunks_exact_mut(columns));
    for ((squares, means), count) in experts.zip(&counts) {
        // Counts are stored as floats. Halves are rounded away from zero, as `lround` does.
        let count = count.round();
        if !count.is_finite() {
            return Err(AnamnesisError::parse(format!("the count {count} is not finite")));
        }
        // An expert that no token was routed to has sums of 0. All its columns count the same then.
        let mean = |sum: f32, without: f32| if count > 0.0 { sum / count } else { without };
        squares.iter_mut().for_each(|sum| *sum = mean(*sum, 1.0));
        means.iter_mut().for_each(|sum| *sum = mean(*sum, 0.0));
    }
    Ok(Some([squares, means]))
}

/// Reads the values of an F32 tensor.
fn read_f32(tensor: &Tensor<'_>) -> Result<Vec<f32>> {
    let part = tensor.part();
    read_f32_by(tensor.elements(), |at, bytes| part.read_at(at, bytes))
}

/// Reads `n` values of F32 in pieces of [`STEP`] bytes. `read` takes an offset in bytes and a
/// buffer to fill.
fn read_f32_by(n: usize, read: impl Fn(u64, &mut [u8]) -> Result<()>) -> Result<Vec<f32>> {
    // `n` has been checked against the length of the file, by the parser or by `skip`.
    let mut values = Vec::with_capacity(n);
    let mut bytes = vec![0; STEP.min(n.saturating_mul(4))];
    while values.len() < n {
        let step = bytes.len().min((n - values.len()).saturating_mul(4));
        let now = bytes.get_mut(..step).unwrap_or_default();
        read(values.len() as u64 * 4, now)?;
        values.extend(
            now.as_chunks()
                .0
                .iter()
                .map(|four| f32::from_le_bytes(*four)),
        );
    }
    Ok(values)
}

/// Reads a file of the older format: a count of entries, and for each a name, a number of
/// evaluations and F32 means times that number; behind them the number of chunks and the name of
/// the text.
struct LegacyReader<'a> {
    source: &'a Source,
    at: u64,
    len: u64,
}

impl<'a> LegacyReader<'a> {
    fn read(source: &'a Source) -> Result<Imatrix> {
        let mut file = Self { source, at: 0, len: source.len().unwrap_or(0) };
        let entries = file.read_i32()?;
        if entries < 1 {
            return Err(AnamnesisError::parse(format!(
                "an importance matrix of {entries} entries"
            )));
        }
        let mut matrix = Imatrix::default();
        for i in 1..=entries {
            let (name, values) = file
                .read_entry()
                .map_err(|error| error.about(format_args!("entry {i} of {entries}")))?;
            matrix.add(&name, values)?;
        }
        // Older files end here, and llama.cpp accepts files that are cut off behind the entries.
        if let Ok(chunks) = file.read_i32() {
            matrix.chunks = chunks.into();
            matrix
                .datasets
                .extend(file.read_text().ok().filter(|dataset| !dataset.is_empty()));
        }
        Ok(matrix)
    }

    fn read_entry(&mut self) -> Result<(String, Vec<f32>)> {
        let name = self.read_text()?;
        let calls = self.read_i32()?;
        let n = self.read_i32()?;
        let n = usize::try_from(n).ok().filter(|&n| n > 0);
        let n = n.ok_or_else(|| AnamnesisError::parse(format!("`{name}` has no values")))?;
        let start = self.at;
        // Before the buffer is allocated: a made-up length must not take more memory than the file
        // has bytes.
        self.skip(n as u64 * 4)
            .map_err(|error| error.about(format_args!("`{name}`")))?;
        let mut values = read_f32_by(n, |at, bytes| self.source.read_at(start + at, bytes))?;
        if calls > 0 {
            values.iter_mut().for_each(|value| *value /= calls as f32);
        }
        Ok((name, values))
    }

    /// Moves `n` bytes on.
    ///
    /// # Errors
    /// `Parse` if the file has fewer bytes.
    fn skip(&mut self, n: u64) -> Result<()> {
        let end = self.at.checked_add(n).filter(|&end| end <= self.len);
        let wrong = || {
            AnamnesisError::parse(format!(
                "the file is truncated: {n} bytes at {} of {}",
                self.at, self.len
            ))
        };
        self.at = end.ok_or_else(wrong)?;
        Ok(())
    }

    fn read_i32(&mut self) -> Result<i32> {
        let (at, mut bytes) = (self.at, [0; 4]);
        self.skip(4)?;
        self.source.read_at(at, &mut bytes)?;
        Ok(i32::from_le_bytes(bytes))
    }

    /// Reads a length and as many bytes of text. The text ends at the first zero byte, if there is
    /// one.
    fn read_text(&mut self) -> Result<String> {
        let n = self.read_i32()?;
        let n = usize::try_from(n)
            .map_err(|_| AnamnesisError::parse(format!("a name of {n} bytes")))?;
        let at = self.at;
        // The same for names: their bytes have to be there before they are allocated.
        self.skip(n as u64)?;
        let mut bytes = vec![0; n];
        self.source.read_at(at, &mut bytes)?;
        let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(n);
        bytes.truncate(end);
        String::from_utf8(bytes).map_err(|_| AnamnesisError::parse("a name that is not UTF-8"))
    }
}

#[cfg(test)]
mod tests;
