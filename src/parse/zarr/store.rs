//! Values by their keys, which are files of a directory or come from a database.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::NumberedChunk;
use crate::config::Confined;
use crate::limits::{Budget, cap, zeroed};
use crate::parse::listing::{is_inside, list};
use crate::source::{FilePool, Source};
use crate::{AnamnesisError, Result};

/// Most directories inside of each other.
const MAX_DEPTH: usize = 24;

/// Longest description of an array, in bytes.
const MAX_METADATA: u64 = 1 << 20;

/// Where the bytes of a value are.
#[derive(Debug, Clone, Copy)]
pub(super) struct ValuePlace {
    /// Number of the source.
    pub source: usize,
    pub offset: u64,
    pub len: u64,
}

/// A value, as far as it is known.
enum StoredValue {
    At(ValuePlace),
    /// A file that is not open yet, which is called as the key is.
    File,
}

/// The values of a directory or of a database.
pub(super) struct ZarrStore {
    directory: PathBuf,
    confined: Confined,
    pool: Arc<FilePool>,
    /// The file by which all is read comes first.
    sources: Vec<Source>,
    /// Numbers of sources, by the paths of their files.
    opened: HashMap<String, usize>,
    values: BTreeMap<String, StoredValue>,
}

impl ZarrStore {
    /// A store without values in `directory`, of which `source` is a file.
    pub(super) fn new(directory: &Path, source: Source) -> Self {
        Self {
            directory: directory.to_path_buf(),
            confined: Confined::new(directory),
            pool: Arc::default(),
            sources: vec![source],
            opened: HashMap::new(),
            values: BTreeMap::new(),
        }
    }

    /// Adds all files of the directory and of those below it.
    pub(super) fn add_files(&mut self, budget: &Budget) -> Result<()> {
        let directory = self.directory.clone();
        self.add_below(&directory, &mut String::new(), 0, budget)
    }

    fn add_below(
        &mut self,
        directory: &Path,
        prefix: &mut String,
        depth: usize,
        budget: &Budget,
    ) -> Result<()> {
        cap("MAX_ZARR_DEPTH", depth as u64, MAX_DEPTH as u64, "directories inside of each other")?;
        let names = list(directory)?;
        budget.items(names.len() as u64, "files")?;
        for name in names {
            let path = directory.join(&name);
            // Links to directories could lead in circles.
            let there = path.symlink_metadata();
            let there = there.map_err(|e| AnamnesisError::io_at(&path, &e))?;
            let before = prefix.len();
            prefix.push_str(&name);
            if there.is_dir() {
                prefix.push('/');
                self.add_below(&path, prefix, depth + 1, budget)?;
            } else {
                let len = there.len();
                budget.tables(0, 1 + prefix.len() as u64 / 256, len)?;
                self.values.insert(prefix.clone(), StoredValue::File);
            }
            prefix.truncate(before);
        }
        Ok(())
    }

    /// Adds a value of a database. Keys come in order.
    ///
    /// # Errors
    /// `Parse` if they do not.
    pub(super) fn add(&mut self, key: String, place: ValuePlace) -> Result<()> {
        let last = self.values.last_key_value();
        if last.is_some_and(|(last, _)| *last >= key) {
            return Err(AnamnesisError::parse(format!("the key `{key}` is not in its order")));
        }
        self.values.insert(key, StoredValue::At(place));
        Ok(())
    }

    /// Adds bytes that are in memory, as a source.
    pub(super) fn add_bytes(&mut self, bytes: Vec<u8>) -> usize {
        self.sources.push(Source::Bytes(Arc::new(bytes)));
        self.sources.len() - 1
    }

    /// The number of the source of the file `name` below the directory.
    ///
    /// # Errors
    /// `Parse` if it is missing, or not in the directory; `Io`.
    pub(super) fn open(&mut self, name: &str) -> Result<usize> {
        if let Some(&source) = self.opened.get(name) {
            return Ok(source);
        }
        let path = self.directory.join(name);
        if !is_inside(name) || path.exists() && !self.confined.has(&path) {
            let what = format!("the file `{name}` is not in the directory");
            return Err(AnamnesisError::parse(what));
        }
        let number = self.sources.len();
        let source =
            Source::open_pooled(&self.pool, number, &path).map_err(|error| match error {
                AnamnesisError::Io(e) if e.kind() == std::io::ErrorKind::NotFound => {
                    AnamnesisError::parse(format!("the file `{name}` is missing: {e}"))
                }
                error => error.about(format_args!("`{name}`")),
            })?;
        self.sources.push(source);
        self.opened.insert(name.to_owned(), number);
        Ok(number)
    }

    pub(super) fn source(&self, number: usize) -> &Source {
        &self.sources[number]
    }

    /// The range of `len` bytes from `offset` on of source `number`, which has it.
    ///
    /// # Errors
    /// `Parse` if it has not.
    pub(super) fn place(&self, number: usize, offset: u64, len: u64) -> Result<ValuePlace> {
        let there = self.sources[number].len().unwrap_or(0);
        match offset.checked_add(len).is_some_and(|end| end <= there) {
            true => Ok(ValuePlace { source: number, offset, len }),
            false => {
                let what = format!("{len} bytes at {offset} of a file of {there}");
                Err(AnamnesisError::parse(what))
            }
        }
    }

    pub(super) fn keys(&self) -> Vec<String> {
        let metadata = |key: &&String| super::metadata_of(key).is_some();
        self.values.keys().filter(metadata).cloned().collect()
    }

    /// The keys that begin with `prefix`, without it.
    pub(super) fn keys_below(&self, prefix: &str) -> Vec<String> {
        let all = self.values.range(prefix.to_owned()..);
        let below = all.map_while(|(key, _)| key.strip_prefix(prefix));
        below.map(str::to_owned).collect()
    }

    /// Where the value of `key` is.
    ///
    /// # Errors
    /// `Parse` if there is none; those of opening its file.
    pub(super) fn find(&mut self, key: &str) -> Result<ValuePlace> {
        match self.values.get(key) {
            Some(StoredValue::At(place)) => Ok(*place),
            Some(StoredValue::File) => {
                let source = self.open(key)?;
                let len = self.sources[source].len().unwrap_or(0);
                Ok(ValuePlace { source, offset: 0, len })
            }
            None => Err(AnamnesisError::parse(format!("there is no `{key}`"))),
        }
    }

    /// The value of `key`, a description.
    pub(super) fn read(&mut self, key: &str, budget: &Budget) -> Result<Vec<u8>> {
        let place = self.find(key)?;
        cap("MAX_ZARR_METADATA", place.len, MAX_METADATA, "bytes of a description")?;
        self.bytes(place, budget)
    }

    /// The bytes of `place`.
    pub(super) fn bytes(&self, place: ValuePlace, budget: &Budget) -> Result<Vec<u8>> {
        budget.alloc(place.len, "a part of a checkpoint")?;
        let mut bytes = zeroed(place.len, "a part of a checkpoint")?;
        self.sources[place.source].read_at(place.offset, &mut bytes)?;
        Ok(bytes)
    }

    pub(super) fn into_sources(self) -> Vec<Source> {
        self.sources
    }
}

/// Sorts the chunks of each array by their numbers, and fails if a chunk is there twice, or if two share bytes: small files would
/// become large ones.
pub(super) fn require_apart(arrays: &mut [Vec<NumberedChunk>]) -> Result<()> {
    for chunks in &mut *arrays {
        chunks.sort_unstable_by_key(|(number, _)| *number);
        if chunks.windows(2).any(|two| two[0].0 == two[1].0) {
            return Err(AnamnesisError::parse("a chunk is there twice"));
        }
    }
    let mut places: Vec<ValuePlace> = arrays
        .iter()
        .flatten()
        .map(|(_, place)| *place)
        .filter(|place| place.len > 0)
        .collect();
    places.sort_unstable_by_key(|place| (place.source, place.offset));
    let shares = |two: &[ValuePlace]| {
        two[0].source == two[1].source && two[0].offset + two[0].len > two[1].offset
    };
    match places.windows(2).any(shares) {
        true => Err(AnamnesisError::parse("two chunks share bytes")),
        false => Ok(()),
    }
}
