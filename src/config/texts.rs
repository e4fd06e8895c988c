//! [`Texts`]: the small files beside a model that are read when they are asked for: configs,
//! vocabularies, templates.

use std::cell::RefCell;
use std::path::{Component, Path, PathBuf};

use serde_json::Value;

use super::agreement::repeated;
use super::json::{read_json, read_small};
use crate::limits::Budget;
use crate::source::CompanionFile;
use crate::{AnamnesisError, ParseLimits, Result};

/// Most files of one suffix that [`Texts::list`] returns. Models have a handful.
const MAX_LISTED: usize = 256;

/// The small files in a directory. It keeps the state of each file that was asked for, whether the
/// file exists or not, so that a change is noticed before an output that was made of the files gets
/// its name.
#[derive(Debug)]
pub(crate) struct Texts {
    directory: PathBuf,
    /// All reads of one directory count together.
    budget: Budget,
    companions: RefCell<Vec<CompanionFile>>,
}

impl Texts {
    /// The files in `directory`, of which none is read yet.
    pub(crate) fn new(directory: &Path, limits: &ParseLimits) -> Self {
        Self {
            directory: directory.to_path_buf(),
            budget: Budget::new(limits),
            companions: RefCell::default(),
        }
    }

    /// Bytes of the file `name`, a path below the directory; `None` if there is no such file.
    ///
    /// # Errors
    /// `Parse` if `name` leads out of the directory; `Io`; `LimitExceeded` if the file is too
    /// large.
    pub(crate) fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        read_small(&self.remember(name)?, &self.budget)
    }

    /// Length of the file `name`; `None` if there is none.
    pub(crate) fn size(&self, name: &str) -> Option<u64> {
        let metadata = std::fs::metadata(self.path(name).ok()?).ok()?;
        metadata.is_file().then_some(metadata.len())
    }

    /// Whether there is a file `name`, a path below the directory. A path that leads out of it is
    /// no file.
    pub(crate) fn exists(&self, name: &str) -> bool {
        self.remember(name).is_ok_and(|path| path.is_file())
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
        let Some((parsed, _)) = read_json(&self.remember(name)?, &self.budget)? else {
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
        let path = self.path(below)?;
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

    /// Path of the file `name`, whose state is taken if it is the first time.
    fn remember(&self, name: &str) -> Result<PathBuf> {
        let path = self.path(name)?;
        let mut companions = self.companions.borrow_mut();
        // The first state counts: a file that changes between two reads is then noticed, too.
        if companions.iter().all(|known| known.path != path) {
            companions.push(CompanionFile::new(path.clone()));
        }
        Ok(path)
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
        assert_eq!(
            texts.list("", ".jinja").unwrap(),
            ["dos.jinja", "latin.jinja"]
        );
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
