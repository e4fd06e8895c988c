//! [`Texts`]: the small files beside a model that are read when they are asked for: configs,
//! vocabularies, templates.

use std::cell::RefCell;
use std::path::{Component, Path, PathBuf};

use serde_json::Value;

use super::agreement::repeated;
use super::confined::{Confined, resolve_links};
use super::json::{read_json, read_small};
use crate::limits::{Budget, join_first};
use crate::source::CompanionFile;
use crate::{AnamnesisError, ParseLimits, Result};

/// Files that only add to what is made of a model, and the directory of such files. One that is a
/// link out of the model's directory is left out; any other is an error, because without it something
/// else would be made.
const ADDITIONS: &[&str] =
    &["README.md", "chat_template.jinja", "chat_template.json", "additional_chat_templates"];

/// Most files of one suffix that [`Texts::list`] returns. Models have a handful.
const MAX_LISTED: usize = 256;

/// Most names in a note.
const MAX_NAMED: usize = 5;

/// The small files in a directory. It keeps the state of each file that was asked for, whether the
/// file exists or not, so that a change is noticed before an output that was made of the files gets
/// its name.
///
/// What is read becomes a part of an output. So a link is followed only to a file of the model, as
/// when files are copied.
#[derive(Debug)]
pub(crate) struct Texts {
    directory: PathBuf,
    /// Which files are the model's; `None`: all links are followed.
    confined: Option<Confined>,
    /// Names of files that are links out of the directory, and were not read.
    left_out: RefCell<Vec<String>>,
    /// All reads of one directory count together.
    budget: Budget,
    companions: RefCell<Vec<CompanionFile>>,
}

impl Texts {
    /// The files in `directory`, of which none is read yet.
    pub(crate) fn new(directory: &Path, limits: &ParseLimits) -> Self {
        Self { confined: Some(Confined::new(directory)), ..Self::following(directory, limits) }
    }

    /// The files in `directory`, also those that are elsewhere and to which links lead. For what is
    /// shown or compared, and gets into no output.
    pub(crate) fn following(directory: &Path, limits: &ParseLimits) -> Self {
        Self {
            directory: directory.to_path_buf(),
            confined: None,
            left_out: RefCell::default(),
            budget: Budget::new(limits),
            companions: RefCell::default(),
        }
    }

    /// Bytes of the file `name`, a path below the directory; `None` if there is no such file.
    ///
    /// # Errors
    /// `Parse` if `name` leads out of the directory, also by a link; `Io`; `LimitExceeded` if the
    /// file is too large.
    pub(crate) fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        match self.remember(name)? {
            Some(path) => read_small(&path, &self.budget),
            None => Ok(None),
        }
    }

    /// Fails if the file `name` is a link out of the directory, and not one that is left out.
    ///
    /// # Errors
    /// `Parse`.
    pub(crate) fn require_inside(&self, name: &str) -> Result<()> {
        self.confine(name).map(drop)
    }

    /// A note on the files that were not read because they are links out of the directory.
    pub(crate) fn note(&self) -> Option<String> {
        let names = self.left_out.borrow();
        (!names.is_empty()).then(|| {
            let names = join_first(&names, MAX_NAMED);
            format!(
                "links out of the model's directory were not read, and are in no output: {names}"
            )
        })
    }

    /// Length of the file `name`; `None` if there is none.
    pub(crate) fn size(&self, name: &str) -> Option<u64> {
        let metadata = std::fs::metadata(self.confine(name).ok()??).ok()?;
        metadata.is_file().then_some(metadata.len())
    }

    /// Whether there is a file `name`, a path below the directory. A path that leads out of it is
    /// no file.
    pub(crate) fn exists(&self, name: &str) -> bool {
        match self.remember(name) {
            Ok(path) => path.is_some_and(|path| path.is_file()),
            // Whoever reads it then gets the error.
            Err(_) => self.path(name).is_ok_and(|path| path.is_file()),
        }
    }

    /// Text of the file `name`; `None` if there is no such file. Line ends are `\n`, as Python's
    /// text mode gives them.
    ///
    /// # Errors
    /// As [`read`](Self::read); `Parse` if the file is not UTF-8.
    pub(crate) fn text(&self, name: &str) -> Result<Option<String>> {
        let Some(bytes) = self.read(name)? else {
            return Ok(None);
        };
        let text = String::from_utf8(bytes)
            .map_err(|e| AnamnesisError::parse(format!("{name}: no UTF-8: {e}")))?;
        if !text.contains('\r') {
            return Ok(Some(text));
        }
        Ok(Some(text.replace("\r\n", "\n").replace('\r', "\n")))
    }

    /// Value of the JSON file `name`, in which Python's `NaN` and infinities are null; `None` if
    /// there is no such file.
    ///
    /// # Errors
    /// As [`read`](Self::read); `Parse` if the file is no JSON, or repeats a key with another
    /// value.
    pub(crate) fn json(&self, name: &str) -> Result<Option<Value>> {
        let Some(path) = self.remember(name)? else {
            return Ok(None);
        };
        let Some((parsed, _)) = read_json(&path, &self.budget)? else {
            return Ok(None);
        };
        match parsed.repeated.first() {
            Some(path) => Err(repeated(name, path)),
            None => Ok(Some(parsed.value)),
        }
    }

    /// Names of the regular files in `below`, a directory below this one, that end in `suffix`, in
    /// alphabetical order and without `below`. Empty if there is no such directory.
    ///
    /// # Errors
    /// `Parse` if `below` leads out of the directory; `Io`; `LimitExceeded` if there are too many.
    pub(crate) fn list(&self, below: &str, suffix: &str) -> Result<Vec<String>> {
        let Some(path) = self.confine(below)? else {
            return Ok(Vec::new());
        };
        if !path.is_dir() {
            return Ok(Vec::new());
        }
        let error = |e: std::io::Error| AnamnesisError::io_at(&path, &e);
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&path).map_err(error)? {
            let entry = entry.map_err(error)?;
            let name = entry.file_name().to_str().map(str::to_owned);
            let Some(name) = name.filter(|name| name.ends_with(suffix)) else {
                continue;
            };
            if entry.path().is_file() {
                names.push(name);
            }
            let what = format!("files `*{suffix}` in {}", path.display());
            crate::limits::cap("MAX_LISTED", names.len() as u64, MAX_LISTED as u64, what)?;
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Charges the account of these files with `bytes` that are about to be allocated for `what`.
    ///
    /// # Errors
    /// `LimitExceeded`.
    pub(crate) fn charge(&self, bytes: u64, what: &str) -> Result<()> {
        self.budget.grow(bytes, what)
    }

    /// The files that were asked for, in that order, with their states before they were first read.
    pub(crate) fn companions(&self) -> Vec<CompanionFile> {
        self.companions.borrow().clone()
    }

    /// Path of the file `name`, whose state is taken if it is the first time; `None` if it is left
    /// out.
    fn remember(&self, name: &str) -> Result<Option<PathBuf>> {
        let path = self.path(name)?;
        let mut companions = self.companions.borrow_mut();
        // The first state counts: a file that changes between two reads is then noticed, too.
        if companions.iter().all(|known| known.path != path) {
            companions.push(CompanionFile::new(path));
        }
        self.confine(name)
    }

    /// Path of `name`, with all links resolved if they may not be followed; `None` if it is a link
    /// out of the directory that is left out.
    ///
    /// # Errors
    /// `Parse` if `name` or the link leads out of the directory.
    fn confine(&self, name: &str) -> Result<Option<PathBuf>> {
        let path = self.path(name)?;
        let Some(confined) = &self.confined else {
            return Ok(Some(path));
        };
        // What is not there leads nowhere.
        if !path.exists() {
            return Ok(Some(path));
        }
        let path = resolve_links(&path);
        if confined.has(&path) {
            return Ok(Some(path));
        }
        let first = name.split('/').next().unwrap_or(name);
        if !ADDITIONS.contains(&first) {
            return Err(AnamnesisError::parse(format!(
                "`{name}` is a link out of the model's directory, to {}, which is not read: it would get into the output; put the file itself into the directory",
                path.display()
            )));
        }
        let mut left_out = self.left_out.borrow_mut();
        if !left_out.iter().any(|known| known == name) {
            left_out.push(name.to_owned());
        }
        Ok(None)
    }

    /// Path of `name`. Names can come from files (`modules.json` names directories), hence the
    /// check.
    fn path(&self, name: &str) -> Result<PathBuf> {
        let inside = |part| matches!(part, Component::Normal(_) | Component::CurDir);
        if name.contains('\0') || !Path::new(name).components().all(inside) {
            return Err(AnamnesisError::parse(format!(
                "the path `{name}` leads out of the model's directory"
            )));
        }
        Ok(self.directory.join(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn files_that_were_asked_for_are_remembered() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a.json"), "{\"x\": NaN}").unwrap();
        let texts = Texts::new(dir.path(), &ParseLimits::default());
        let value = texts.json("a.json").unwrap().unwrap();
        assert_eq!(value, serde_json::json!({ "x": null }));
        assert_eq!(texts.read("b.json").unwrap(), None);
        let companions = texts.companions();
        assert_eq!(companions.len(), 2);
        assert!(companions[0].exists() && !companions[1].exists());
        companions[0].require_unchanged().unwrap();
        std::fs::write(dir.path().join("a.json"), "{\"x\": 12345}").unwrap();
        std::fs::write(dir.path().join("b.json"), "{}").unwrap();
        // A second read does not renew the state that the first one saw.
        texts.json("a.json").unwrap();
        let companions = texts.companions();
        assert_eq!(companions.len(), 2);
        for companion in companions {
            let error = companion.require_unchanged().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Io);
        }
    }

    #[test]
    fn names_stay_in_the_directory() {
        let dir = tempfile::tempdir().unwrap();
        let texts = Texts::new(&dir.path().join("in"), &ParseLimits::default());
        std::fs::write(dir.path().join("secret"), "x").unwrap();
        for name in ["../secret", "/etc/hostname", "a/../../secret", "a\0b"] {
            let error = texts.read(name).unwrap_err();
            assert!(error.to_string().contains("leads out"), "{error}");
            assert!(texts.list(name, "").is_err());
        }
        assert!(texts.companions().is_empty());
    }

    #[test]
    fn what_is_wrong_names_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &[u8]| std::fs::write(dir.path().join(name), text).unwrap();
        write("twice.json", b"{\"a\": 1, \"a\": 2}");
        write("cut.json", b"{\"a\": 1");
        write("latin.jinja", b"\xe9");
        write("dos.jinja", b"a\r\nb\rc\n");
        let texts = Texts::new(dir.path(), &ParseLimits::default());
        for (name, part) in [("twice.json", "`a` is there twice"), ("cut.json", "EOF")] {
            let error = texts.json(name).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains(part), "{error}");
        }
        let error = texts.text("latin.jinja").unwrap_err().to_string();
        assert!(error.contains("latin.jinja: no UTF-8"), "{error}");
        assert_eq!(texts.text("dos.jinja").unwrap().unwrap(), "a\nb\nc\n");
        assert_eq!(texts.list("", ".jinja").unwrap(), ["dos.jinja", "latin.jinja"]);
        assert!(texts.list("none", ".jinja").unwrap().is_empty());
    }

    #[test]
    fn all_reads_share_one_budget() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a"), [0; 600]).unwrap();
        let limits = ParseLimits::default().with_max_total_bytes(1000);
        let texts = Texts::new(dir.path(), &limits);
        assert_eq!(texts.read("a").unwrap().unwrap().len(), 600);
        let error = texts.read("a").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LimitExceeded);
    }
}
