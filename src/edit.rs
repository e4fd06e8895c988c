//! Edits of metadata: keys of a GGUF or safetensors file or of a `config.json` are set, removed and
//! renamed. Tensor data keeps every byte, also of types that this crate does not know.
//!
//! - `gguf`, `safetensors`, `config`: what the beginning of a file becomes, in memory; `json`: the edits
//!   of the texts in the latter two.
//! - `place`: writes it, in place or to another file.

mod config;
#[cfg(feature = "gguf")]
mod gguf;
#[cfg(not(feature = "gguf"))]
#[path = "edit/no_gguf.rs"]
mod gguf;
mod json;
mod place;
mod safetensors;

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::limits::Budget;
use crate::parse::format_of;
use crate::source::Source;
use crate::{AnamnesisError, CancelToken, Container, ParseLimits, Result};

/// Which keys [`edit()`] changes, and where the result goes. Keys are removed first, then renamed, then
/// set.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct EditOptions {
    /// `KEY=VALUE`. Of GGUF a value is what [`parse_gguf_edit`](crate::parse::gguf::parse_gguf_edit)
    /// takes, of safetensors a text, of a config JSON or a text; keys of a config have dots between
    /// those of nested objects.
    pub set: Vec<String>,
    /// Keys that are removed.
    pub unset: Vec<String>,
    /// Keys that get another name, `(old, new)`.
    pub rename: Vec<(String, String)>,
    /// The chat template of a GGUF file.
    pub chat_template: Option<String>,
    /// llama.cpp's name of the pre-tokenizer of a GGUF file.
    pub tokenizer_pre: Option<String>,
    /// The file that is written; `None`: the edited file itself.
    pub output: Option<PathBuf>,
    /// Whether an existing `output` or `backup` is replaced, and changes are written with which
    /// llama.cpp would not load the model.
    pub force: bool,
    /// Gets the bytes that the beginning of the file has before: all up to its tensor data.
    pub backup: Option<PathBuf>,
    /// Whether nothing is written.
    pub dry_run: bool,
    /// Token that stops the edit from another thread.
    pub cancel: CancelToken,
    /// What the header may claim.
    pub limits: ParseLimits,
}

impl EditOptions {
    /// No changes yet, to be made in the file itself.
    #[must_use]
    pub fn in_place() -> Self {
        Self {
            set: Vec::new(),
            unset: Vec::new(),
            rename: Vec::new(),
            chat_template: None,
            tokenizer_pre: None,
            output: None,
            force: false,
            backup: None,
            dry_run: false,
            cancel: CancelToken::new(),
            limits: ParseLimits::default(),
        }
    }

    /// No changes yet, for a copy of the file at `output`.
    #[must_use]
    pub fn to(output: impl Into<PathBuf>) -> Self {
        Self { output: Some(output.into()), ..Self::in_place() }
    }

    /// Sets a key, as `KEY=VALUE`.
    #[must_use]
    pub fn with_set(mut self, key_and_value: impl Into<String>) -> Self {
        self.set.push(key_and_value.into());
        self
    }

    /// Removes a key.
    #[must_use]
    pub fn with_unset(mut self, key: impl Into<String>) -> Self {
        self.unset.push(key.into());
        self
    }

    /// Gives the key `old` the name `new`.
    #[must_use]
    pub fn with_rename(mut self, old: impl Into<String>, new: impl Into<String>) -> Self {
        self.rename.push((old.into(), new.into()));
        self
    }

    /// The parts of each `KEY=VALUE`.
    fn pairs(&self) -> impl Iterator<Item = Result<(&str, &str)>> {
        self.set.iter().map(|text| match text.split_once('=') {
            Some((key, value)) if !key.is_empty() => Ok((key, value)),
            _ => Err(AnamnesisError::usage(format!("--set {text}: it takes KEY=VALUE"))),
        })
    }

    /// # Errors
    /// `Usage` if there is a change that only GGUF files can have; `way_out` says what helps.
    fn require_no_gguf(&self, title: &str, way_out: &str) -> Result<()> {
        let option = match (&self.chat_template, &self.tokenizer_pre) {
            (Some(_), _) => "--chat-template",
            (None, Some(_)) => "--tokenizer-pre",
            (None, None) => return Ok(()),
        };
        let what = format!("{option} is for GGUF files, and this is {title}; {way_out}");
        Err(AnamnesisError::usage(what))
    }
}

/// What [`edit()`] has changed, or with `dry_run` would change.
#[derive(Debug, Clone, serde::Serialize)]
#[non_exhaustive]
pub struct EditReport {
    /// The file that is edited.
    pub input: PathBuf,
    /// The file that has the changes.
    pub output: PathBuf,
    /// Length of that file in bytes.
    pub output_bytes: u64,
    /// The keys whose name or value is another now. Empty if all were as wanted.
    pub changes: Vec<KeyChange>,
    /// How the output is written.
    pub written: EditWritten,
    /// What a user should know.
    pub notes: Vec<String>,
}

/// How an edit is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum EditWritten {
    /// Nothing changes.
    Nothing,
    /// Some bytes of the header in the file itself, at once.
    Header,
    /// A new file, which gets its name when it is complete.
    File,
}

/// A key of metadata that an edit changes.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
#[non_exhaustive]
pub struct KeyChange {
    /// The key; of a config with dots between those of nested objects.
    pub key: String,
    /// The name that it had before, if that was another.
    pub renamed_from: Option<String>,
    /// `None`: the key is new.
    pub before: Option<KeyValue>,
    /// `None`: the key is removed.
    pub after: Option<KeyValue>,
}

/// A value of metadata with the name of its type: `u32`, `string`, `[f32]` of GGUF, or what JSON calls it.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
#[non_exhaustive]
pub struct KeyValue {
    /// Name of the type.
    #[serde(rename = "type")]
    pub kind: String,
    /// The value; null for NaN and infinities.
    pub value: Value,
}

impl KeyValue {
    /// A value of JSON, or a text.
    fn of_json(value: Value) -> Self {
        let kind = match &value {
            Value::Null => "null",
            Value::Bool(_) => "bool",
            Value::Number(_) => "number",
            Value::String(_) => "string",
            Value::Array(_) => "array",
            Value::Object(_) => "object",
        };
        Self { kind: kind.to_owned(), value }
    }
}

/// What the beginning of a file becomes. The bytes behind `old` stay as they are.
struct EditedHeader {
    old: Vec<u8>,
    new: Vec<u8>,
    changes: Vec<KeyChange>,
    notes: Vec<String>,
}

/// The error for a key that cannot be changed as the caller wants it.
fn wrong_key(key: &str, what: impl std::fmt::Display) -> AnamnesisError {
    AnamnesisError::usage(format!("metadata `{key}`: {what}"))
}

/// Edits the metadata of the model at `path`: a GGUF or safetensors file, a JSON file such as
/// `config.json`, or a directory, whose `config.json` it is then.
///
/// In place only the header is written if the change lies in one sector of the disk, which is there old
/// or new as a whole. Any other change makes a new file, which takes the place of the old one when it
/// is complete; file systems that can let both share the tensors' data.
///
/// ```
/// # fn main() -> anamnesis::Result<()> {
/// use anamnesis::EditOptions;
/// let mut options = EditOptions::in_place().with_set("general.name=Tiny");
/// options.dry_run = true;
/// let report = anamnesis::edit("tests/data/demo/model-q4_k.gguf", &options)?;
/// assert_eq!(report.changes[0].key, "general.name");
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `Usage` if a change does not fit the file; `Parse`, `Unsupported` or `LimitExceeded` if the file
/// cannot be read; `Io` if it cannot be written; `Cancelled`.
pub fn edit(path: impl AsRef<Path>, options: &EditOptions) -> Result<EditReport> {
    let path = edited_file(path.as_ref(), options)?;
    let budget = Budget::new(&options.limits);
    let source = Source::open(&path)?;
    let is_json = path
        .extension()
        .is_some_and(|ending| ending.eq_ignore_ascii_case("json"));
    let container = match is_json {
        true => None,
        false => Some(format_of(&mut &source)?),
    };
    require_same_ending(options, container)?;
    let edited = match container {
        None => config::edit(&path, options, &budget)?,
        Some(Container::Gguf) => gguf::edit(&source, &path, options, &budget)?,
        Some(Container::Safetensors) => safetensors::edit(&source, options, &budget)?,
        Some(other) => {
            let what = "only GGUF, safetensors and config.json are edited; `amn convert FILE -o OUT.safetensors` makes such a file";
            return Err(AnamnesisError::unsupported(format!("editing: {other}"), what));
        }
    };
    place::write(source, &path, edited, options)
}

/// The file that is edited of the model at `path`.
fn edited_file(path: &Path, options: &EditOptions) -> Result<PathBuf> {
    let config = path.join("config.json");
    match (path.is_dir(), &options.output) {
        (false, _) => Ok(path.to_path_buf()),
        (true, None) if config.exists() => Ok(config),
        (true, None) => Err(AnamnesisError::usage(format!(
            "{} is a directory without a config.json; give the file that has the metadata",
            path.display()
        ))),
        (true, Some(_)) => Err(AnamnesisError::usage(format!(
            "{} is a directory, and -o names a file; --in-place edits its config.json, and {} as MODEL writes a copy of that alone",
            path.display(),
            config.display()
        ))),
    }
}

/// Checks that the name of the output is not that of another container than the edited file has, a
/// JSON file if it is none.
fn require_same_ending(options: &EditOptions, container: Option<Container>) -> Result<()> {
    const ENDINGS: [(&str, Option<Container>); 6] = [
        ("gguf", Some(Container::Gguf)),
        ("json", None),
        ("npz", Some(Container::Npz)),
        ("pth", Some(Container::Pth)),
        ("qnat", Some(Container::Qnat)),
        ("safetensors", Some(Container::Safetensors)),
    ];
    let Some(output) = &options.output else {
        return Ok(());
    };
    let ending = output.extension().unwrap_or_default();
    let row = ENDINGS
        .iter()
        .find(|(known, _)| ending.eq_ignore_ascii_case(known));
    match row.is_none_or(|(_, other)| *other == container) {
        true => Ok(()),
        false => Err(AnamnesisError::usage(format!(
            "-o {}: the name is that of another kind of file, and an edit keeps the kind; `amn convert FILE -o OUT` changes it",
            output.display()
        ))),
    }
}
