//! `ORG/MODEL[@REVISION]`: finds a model in the local cache of the Hugging Face hub.
//!
//! The cache has a folder `models--ORG--MODEL` for each model. In it `refs/REVISION` has the hash
//! of a commit, and `snapshots/HASH` links to files in `blobs`. A file that is being fetched is a
//! blob that ends in `.incomplete`.
//!
//! Source: huggingface_hub 0.36 `constants.py` (places), `file_download.py` (layout).

use std::ffi::OsString;
use std::io::{Error, ErrorKind};
use std::path::{Path, PathBuf};

use crate::config::read_small;
use crate::limits::{Budget, cap, join_first};
use crate::{AnamnesisError, Result};

/// Most directory entries that are looked at for one model.
const MAX_ENTRIES: usize = 100_000;

/// Most snapshots that a message names.
const MAX_NAMED: usize = 10;

/// Finds the snapshot of a model that tools of Hugging Face have fetched: `ORG/MODEL`, of the
/// branch `main`, or `ORG/MODEL@REVISION` of a branch, a tag or a commit. The cache is the
/// directory `HF_HUB_CACHE`, else `HUGGINGFACE_HUB_CACHE`, else `hub` in `HF_HOME`, else
/// `huggingface/hub` in `XDG_CACHE_HOME` or `~/.cache`. Nothing is downloaded.
///
/// ```no_run
/// # fn main() -> anamnesis::Result<()> {
/// let snapshot = anamnesis::resolve_hub_model("Qwen/Qwen3-0.6B")?;
/// println!("{}", anamnesis::parse(snapshot)?.inspect());
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `Parse` if this is no name of a model, if the snapshot is incomplete, and if there are several
/// and no branch says which; `Io` if the cache does not have the model or the revision.
pub fn resolve_hub_model(spec: &str) -> Result<PathBuf> {
    let name = HubName::parse(spec)
        .ok_or_else(|| AnamnesisError::parse(format!("`{spec}` is no ORG/MODEL[@REVISION]")))?;
    let cache = find_cache(&|name| std::env::var_os(name), std::env::home_dir())?;
    name.find_in(&cache)
}

/// Whether a text can be the name of a model on the hub.
pub(crate) fn is_name(text: &str) -> bool {
    HubName::parse(text).is_some()
}

/// A model's name on the hub.
#[derive(Debug, PartialEq)]
pub(crate) struct HubName<'a> {
    organization: &'a str,
    model: &'a str,
    revision: Option<&'a str>,
}

impl<'a> HubName<'a> {
    /// `None` if the text is none.
    pub(crate) fn parse(text: &'a str) -> Option<Self> {
        let (name, revision) = match text.split_once('@') {
            Some((name, revision)) => (name, Some(revision)),
            None => (text, None),
        };
        let (organization, model) = name.split_once('/')?;
        let is_plain = |part: &str| {
            let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
            !part.is_empty() && part.chars().all(is_allowed) && !part.starts_with('.')
        };
        // Names of branches have slashes: `refs/pr/1`.
        let has_plain_revision = revision.is_none_or(|revision| revision.split('/').all(is_plain));
        let is_name = is_plain(organization) && is_plain(model) && has_plain_revision;
        // The cache writes `--` for the slash, and the hub allows it in no name.
        let is_clear = !organization.contains("--") && !model.contains("--");
        (is_name && is_clear).then_some(Self { organization, model, revision })
    }

    fn find_in(&self, cache: &Path) -> Result<PathBuf> {
        let folder = cache.join(format!("models--{}--{}", self.organization, self.model));
        if !folder.is_dir() {
            let what = format!(
                "the cache of Hugging Face does not have the model; `hf download {}/{}` fetches it",
                self.organization, self.model
            );
            let error = Error::new(ErrorKind::NotFound, what);
            return Err(AnamnesisError::io_at(&folder, &error));
        }
        let snapshot = self.snapshot(&folder)?;
        self.require_complete(&folder, &snapshot)?;
        Ok(snapshot)
    }

    /// The snapshot of the revision.
    fn snapshot(&self, folder: &Path) -> Result<PathBuf> {
        let snapshots = folder.join("snapshots");
        let reference = folder.join("refs").join(self.revision.unwrap_or("main"));
        let hash = match reference.is_file() {
            true => read_small(&reference, &Budget::unbounded())?,
            false => None,
        };
        let hash = hash.and_then(|text| String::from_utf8(text).ok());
        if let Some(hash) = hash.as_deref().map(str::trim) {
            let is_hash = !hash.is_empty() && hash.bytes().all(|b| b.is_ascii_alphanumeric());
            let snapshot = snapshots.join(hash);
            if !is_hash || !snapshot.is_dir() {
                let (spec, path) = (self.spec(), reference.display());
                let what = format!("{spec}: `{path}` names a snapshot that is not there");
                return Err(self.incomplete(&what));
            }
            return Ok(snapshot);
        }
        let mut names: Vec<String> = entries(&snapshots)?
            .into_iter()
            .filter_map(|name| name.into_string().ok())
            .collect();
        names.sort_unstable();
        let is_asked = |name: &&String| match self.revision {
            Some(revision) => name.starts_with(revision),
            None => true,
        };
        let found: Vec<&String> = names.iter().filter(is_asked).collect();
        match (found.as_slice(), self.revision) {
            ([only], _) => Ok(snapshots.join(only)),
            ([], Some(revision)) => {
                let what = format!(
                    "the cache of Hugging Face does not have the revision {revision}; it has {}",
                    join_first(&names, MAX_NAMED)
                );
                let error = Error::new(ErrorKind::NotFound, what);
                Err(AnamnesisError::io_at(folder, &error))
            }
            ([], None) => Err(self.incomplete(&format!("{}: it has no snapshot", self.spec()))),
            (several, _) => Err(AnamnesisError::parse(format!(
                "{}: which snapshot? Give one as {}/{}@REVISION: {}",
                self.spec(),
                self.organization,
                self.model,
                join_first(several, MAX_NAMED)
            ))),
        }
    }

    /// Fails if a file of the snapshot is missing or being fetched.
    fn require_complete(&self, folder: &Path, snapshot: &Path) -> Result<()> {
        // A pipeline has its models in folders.
        let mut folders = vec![snapshot.to_owned()];
        for name in entries(snapshot)? {
            let path = snapshot.join(name);
            if path.is_dir() {
                folders.push(path);
            }
        }
        for folder in folders {
            for name in entries(&folder)? {
                let path = folder.join(name);
                if path.is_symlink() && !path.exists() {
                    let (spec, path) = (self.spec(), path.display());
                    return Err(self.incomplete(&format!("{spec}: `{path}` links to no file")));
                }
            }
        }
        let blobs = folder.join("blobs");
        let blobs = match blobs.is_dir() {
            true => entries(&blobs)?,
            false => vec![],
        };
        let is_unfinished = |name: &&OsString| name.as_encoded_bytes().ends_with(b".incomplete");
        match blobs.iter().find(is_unfinished) {
            None => Ok(()),
            Some(blob) => {
                let (spec, blob) = (self.spec(), blob.to_string_lossy());
                let what = format!("{spec}: a file is not fetched to its end (`blobs/{blob}`)");
                Err(self.incomplete(&what))
            }
        }
    }

    fn spec(&self) -> String {
        match self.revision {
            Some(revision) => format!("{}/{}@{revision}", self.organization, self.model),
            None => format!("{}/{}", self.organization, self.model),
        }
    }

    fn incomplete(&self, what: &str) -> AnamnesisError {
        let advice = format!("`hf download {}/{}` completes it", self.organization, self.model);
        AnamnesisError::parse(format!("{what}: the snapshot is incomplete; {advice}"))
    }
}

fn entries(directory: &Path) -> Result<Vec<OsString>> {
    let failed = |e: Error| AnamnesisError::io_at(directory, &e);
    let entries = std::fs::read_dir(directory).map_err(failed)?;
    let names = entries
        .take(MAX_ENTRIES + 1)
        .map(|entry| Ok(entry?.file_name()));
    let names: Vec<_> = names.collect::<std::io::Result<_>>().map_err(failed)?;
    let what = format_args!("entries of `{}`", directory.display());
    cap("HUB_MAX_ENTRIES", names.len() as u64, MAX_ENTRIES as u64, what)?;
    Ok(names)
}

/// Path of the cache. `variable` gives the values of environment variables.
fn find_cache(
    variable: &dyn Fn(&str) -> Option<OsString>,
    home: Option<PathBuf>,
) -> Result<PathBuf> {
    let home = home.filter(|home| !home.as_os_str().is_empty());
    let directory = |name: &str| {
        let value = variable(name).filter(|value| !value.is_empty())?;
        let path = PathBuf::from(value);
        // As `os.path.expanduser` does.
        Some(match (path.strip_prefix("~"), &home) {
            (Ok(below), Some(home)) => home.join(below),
            _ => path,
        })
    };
    let of_home = || directory("HF_HOME").map(|path| path.join("hub"));
    let of_cache = || {
        let cache = directory("XDG_CACHE_HOME");
        let cache = cache.or_else(|| home.as_ref().map(|home| home.join(".cache")));
        cache.map(|path| path.join("huggingface").join("hub"))
    };
    let found = directory("HF_HUB_CACHE").or_else(|| directory("HUGGINGFACE_HUB_CACHE"));
    let found = found.or_else(of_home).or_else(of_cache);
    found.ok_or_else(|| {
        Error::new(ErrorKind::NotFound, "no home directory; set HF_HUB_CACHE").into()
    })
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::path::{Path, PathBuf};

    use super::{HubName, find_cache};

    #[test]
    fn names() {
        for name in ["a/b", "Qwen/Qwen3-0.6B", "a/b@main", "a/b@refs/pr/1"] {
            assert!(HubName::parse(name).is_some(), "{name}");
        }
        for name in [
            "a",
            "a/",
            "/b",
            "a/b/c",
            "../b",
            "a/..",
            "./b",
            "a/b@",
            "a/b@../../x",
            "a--b/c",
            "a/b c",
        ] {
            assert!(HubName::parse(name).is_none(), "{name}");
        }
    }

    /// The order of `huggingface_hub.constants`.
    #[test]
    fn the_cache_is_where_hugging_face_has_it() {
        let rows: [(&[(&str, &str)], &str); 7] = [
            (&[], "/home/me/.cache/huggingface/hub"),
            (&[("XDG_CACHE_HOME", "/x")], "/x/huggingface/hub"),
            (&[("HF_HOME", "/h"), ("XDG_CACHE_HOME", "/x")], "/h/hub"),
            (&[("HUGGINGFACE_HUB_CACHE", "/old"), ("HF_HOME", "/h")], "/old"),
            (&[("HF_HUB_CACHE", "/new"), ("HUGGINGFACE_HUB_CACHE", "/old")], "/new"),
            (&[("HF_HUB_CACHE", "~/c")], "/home/me/c"),
            (&[("HF_HUB_CACHE", "")], "/home/me/.cache/huggingface/hub"),
        ];
        for (variables, expected) in rows {
            let variable = |name: &str| {
                let found = variables.iter().find(|(variable, _)| *variable == name);
                found.map(|(_, value)| OsString::from(value))
            };
            let found = find_cache(&variable, Some(PathBuf::from("/home/me"))).unwrap();
            assert_eq!(found, Path::new(expected), "{variables:?}");
        }
    }
}
