//! What the program `amn` uses of the library that is no part of its interface: any of it may change in
//! any release.

use std::fs::File;
use std::path::{Path, PathBuf};

use serde_json::Value;

pub use crate::config::Selection;
use crate::config::Texts;
use crate::convert::{Settled, finish, is_input_of, partial_path, settle, sums_of_directory};
use crate::limits::Budget;
use crate::parse::directory::{self, is_model_file};
use crate::parse::hub;
#[cfg(feature = "cli")]
pub use crate::report::distribution::{Distribution, Magnitudes};
use crate::report::inspect;
use crate::source::inputs::Inputs;
pub use crate::write::atomic::directory_of;
use crate::write::atomic::{OutputFile, OutputPlace};
#[cfg(feature = "npz")]
pub use crate::write::npz::npy_header;
use crate::write::temporary;
use crate::{
    AnamnesisError, CancelToken, Conversion, Dtype, FileSum, ListedTensor, ParseLimits,
    ParsedModel, Result,
};

/// Makes a panic of any thread end the process, after the usual message. Temporary outputs are
/// removed before, for a program without unwinding drops nothing.
pub fn end_process_at_panic() {
    temporary::end_process_at_panic();
}

/// A model as a user names it: a path; `ORG/MODEL[@REVISION]` in the cache of Hugging Face; or
/// `ollama:MODEL[:TAG]` in Ollama's store.
#[derive(Debug)]
pub struct NamedInput {
    /// Where the model is.
    pub path: PathBuf,
    /// What outputs are named after: the path, or a file name in the current directory for a model in
    /// Ollama's store, whose blobs are named by their hash.
    pub named: PathBuf,
    /// What is left out of a model in Ollama's store.
    notes: Vec<String>,
}

impl NamedInput {
    /// Finds the model that `given` names.
    ///
    /// # Errors
    /// Those of [`in_hub`](Self::in_hub) and [`resolve_ollama_model`](crate::resolve_ollama_model).
    pub fn find(given: &Path) -> Result<Self> {
        #[cfg(feature = "ollama")]
        if given.to_string_lossy().starts_with("ollama:") {
            let spec = given.to_string_lossy();
            let (path, notes) = crate::parse::ollama::resolve_with_notes(&spec)?;
            let named = PathBuf::from(format!("{}.gguf", crate::parse::ollama::file_stem(&spec)));
            return Ok(Self { path, named, notes });
        }
        let path = Self::in_hub(given)?.unwrap_or_else(|| given.to_path_buf());
        Ok(Self { named: path.clone(), path, notes: Vec::new() })
    }

    /// Whether a file of this name is a model by itself.
    #[must_use]
    pub fn is_model_file(name: &str) -> bool {
        is_model_file(name)
    }

    /// The snapshot of a model that `given` names in the cache of Hugging Face; `None` if it is a path.
    /// A file or a directory of that name comes first.
    ///
    /// # Errors
    /// Those of [`resolve_hub_model`](crate::resolve_hub_model), unless the text is a path to something
    /// that is missing.
    pub fn in_hub(given: &Path) -> Result<Option<PathBuf>> {
        let spec = given.to_str().filter(|text| hub::is_name(text));
        let Some(spec) = spec.filter(|_| given.symlink_metadata().is_err()) else {
            return Ok(None);
        };
        // In a directory that is there, a name is that of a missing file.
        let is_in_directory = given.parent().is_some_and(Path::is_dir);
        match hub::resolve_hub_model(spec) {
            Ok(snapshot) => Ok(Some(snapshot)),
            Err(AnamnesisError::Io(_)) if is_in_directory => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Parses the model, which gets the notes of what is left out of it.
    ///
    /// # Errors
    /// Those of [`parse_with_limits`](crate::parse_with_limits).
    pub fn parse(&self, limits: &ParseLimits) -> Result<ParsedModel> {
        let mut model = crate::parse_with_limits(&self.path, limits)?;
        model.notes.extend(self.notes.iter().cloned());
        Ok(model)
    }

    /// The configs of the model, if it is a directory without weights; `None`: it has weights, or is no
    /// directory.
    ///
    /// # Errors
    /// Those of [`parse_with_limits`](crate::parse_with_limits).
    pub fn parse_without_weights(&self, limits: &ParseLimits) -> Result<Option<ParsedModel>> {
        match self.path.is_dir() {
            true => directory::read_without_weights(&self.path, &Budget::new(limits)),
            false => Ok(None),
        }
    }
}

/// Content of `config.json` beside `model`, in which Python's `NaN` and infinities are null; `None` if
/// there is no such file.
///
/// # Errors
/// `Io`, `Parse` or `LimitExceeded` if the file cannot be read.
pub fn config_json(model: &ParsedModel) -> Result<Option<Value>> {
    match model.model_directory() {
        Some(directory) => Texts::following(&directory, &model.limits).json("config.json"),
        None => Ok(None),
    }
}

/// [`ParsedModel::list`], and notes on what is taken for granted of the tensors.
#[must_use]
pub fn list_with_notes(model: &ParsedModel) -> (Vec<ListedTensor<'_>>, Vec<String>) {
    let resolution = model.resolve();
    let notes = resolution.assumptions.iter().map(ToString::to_string);
    let mut notes: Vec<String> = notes.collect();
    notes.extend(model.note_on_skipped("not listed"));
    (model.list_resolved(&resolution), notes)
}

/// Passes each element of `bytes`, little-endian, to `take`. 64-bit integers are rounded to F64.
///
/// # Errors
/// `Unsupported` that names the tensor, if its elements are complex, blocks, or of less than a byte.
pub fn for_each_value(name: &str, dtype: Dtype, bytes: &[u8], take: impl FnMut(f64)) -> Result<()> {
    inspect::for_each_value(name, dtype, bytes, take)
}

/// An output directory that is made in parts, before or after it gets its name.
#[derive(Debug)]
pub struct DirectoryInParts<'a>(pub &'a Path);

impl DirectoryInParts<'_> {
    /// Finishes or undoes the last steps of an earlier run, if that was interrupted in them.
    ///
    /// # Errors
    /// `Io` if another process is at these steps, or a directory cannot be renamed.
    pub fn settle(&self) -> Result<Option<Settled>> {
        settle(self.0)
    }

    /// Whether there are parts of the directory.
    ///
    /// # Errors
    /// `Io` if its path has no last component.
    pub fn is_begun(&self) -> Result<bool> {
        Ok(partial_path(self.0)?.symlink_metadata().is_ok())
    }

    /// Whether its parts are made of `input`, a directory or a file.
    #[must_use]
    pub fn is_made_of(&self, input: &Path) -> bool {
        partial_path(self.0).is_ok_and(|partial| is_input_of(input, &partial))
    }

    /// Gives the directory its name, once all its parts are done. Returns a note if what was replaced
    /// could not be removed.
    ///
    /// # Errors
    /// Those of [`finish_parts`](crate::finish_parts).
    pub fn finish(&self, force: bool) -> Result<Option<String>> {
        finish(self.0, force, true)
    }

    /// The SHA-256 of each file in the finished directory.
    ///
    /// # Errors
    /// `Io` if a file cannot be read; `Cancelled`.
    pub fn sums(&self, cancel: &CancelToken) -> Result<Vec<FileSum>> {
        sums_of_directory(self.0, vec![], cancel)
    }
}

/// A file that the program writes beside a model. It appears under its name when it is complete, and
/// replaces nothing that a conversion reads.
#[derive(Debug)]
pub struct SideFile(OutputFile);

impl SideFile {
    /// Checks whether the file may be written at `path`, whose directory need not be there yet. What
    /// `conversion` reads is not replaced, and another file only with `force`.
    ///
    /// # Errors
    /// `Io` if it may not.
    pub fn check_name(path: &Path, conversion: Option<&Conversion<'_>>, force: bool) -> Result<()> {
        let inputs = &inputs(conversion);
        OutputPlace { force, inputs, space: 0, is_uncached: false }.check_name(path)
    }

    /// Creates the file of `len` bytes under a temporary name beside `path`.
    ///
    /// # Errors
    /// Those of [`check_name`](Self::check_name); `Io` if the directory is missing or not writable, or
    /// the file does not fit.
    pub fn create(
        path: &Path,
        len: u64,
        conversion: Option<&Conversion<'_>>,
        force: bool,
    ) -> Result<Self> {
        let inputs = &inputs(conversion);
        let place = OutputPlace { force, inputs, space: len, is_uncached: false };
        OutputFile::create(path, len, &place).map(Self)
    }

    /// What is read of `model`: its files or its directory, and the files beside it.
    #[must_use]
    pub fn inputs_of(model: &ParsedModel) -> Vec<PathBuf> {
        let sources = model.sources.iter().filter_map(|source| source.path());
        let directory = model
            .directory
            .iter()
            .map(|directory| directory.path.as_path());
        let beside = model.beside.iter().map(|file| file.path.as_path());
        let companions = model.companions().map(|companion| companion.path.as_path());
        let all = sources.chain(directory).chain(beside).chain(companions);
        all.map(Path::to_path_buf).collect()
    }

    /// [`check_name`](Self::check_name), where `inputs` are the files and directories that are read.
    ///
    /// # Errors
    /// `Io` if the file may not be written.
    pub fn check_beside(path: &Path, inputs: &[PathBuf], force: bool) -> Result<()> {
        let inputs = &Inputs { sources: &[], paths: inputs.to_vec() };
        OutputPlace { force, inputs, space: 0, is_uncached: false }.check_name(path)
    }

    /// Writes `bytes` to `path`, where no file of `inputs` is replaced, nor of a directory among
    /// them, and another file only with `force`.
    ///
    /// # Errors
    /// Those of [`create`](Self::create); `Io` if the file cannot be written.
    pub fn write(path: &Path, bytes: &[u8], inputs: &[PathBuf], force: bool) -> Result<()> {
        let inputs = &Inputs { sources: &[], paths: inputs.to_vec() };
        let space = bytes.len() as u64;
        let place = OutputPlace { force, inputs, space, is_uncached: false };
        let file = OutputFile::create(path, space, &place)?;
        file.write_at(0, bytes)?;
        file.commit()
    }

    /// The file, to be written.
    #[must_use]
    pub fn file(&self) -> &File {
        self.0.file()
    }

    /// Gives the file its name, once it is on the disk.
    ///
    /// # Errors
    /// `Io` if the file cannot be synced or renamed.
    pub fn commit(self) -> Result<()> {
        self.0.commit()
    }
}

fn inputs<'m>(conversion: Option<&'m Conversion<'_>>) -> Inputs<'m> {
    conversion.map_or_else(Inputs::default, Conversion::inputs)
}
