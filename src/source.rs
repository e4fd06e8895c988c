//! [`Source`]: where a model's bytes are: a file, a stream or memory. The only module that maps
//! files.

#[cfg(any(feature = "npz", feature = "pth"))]
mod deflated;
#[cfg(not(any(feature = "npz", feature = "pth")))]
#[path = "source/no_deflated.rs"]
mod deflated;
#[cfg(any(
    feature = "hdf5",
    feature = "onnx",
    feature = "pth",
    feature = "tflite",
    feature = "zarr"
))]
mod derived;
#[cfg(not(any(
    feature = "hdf5",
    feature = "onnx",
    feature = "pth",
    feature = "tflite",
    feature = "zarr"
)))]
#[path = "source/no_derived.rs"]
mod derived;
pub(crate) mod directory;
mod files;
pub(crate) mod inputs;
pub(crate) mod lock;
#[cfg_attr(not(any(feature = "msgpack", feature = "pth", feature = "zarr")), allow(dead_code))]
mod pieced;
pub(crate) mod platform;
mod seeking;
#[cfg(feature = "check")]
mod sha256;
#[cfg(not(feature = "check"))]
#[path = "source/no_sha256.rs"]
mod sha256;
mod state;

use std::borrow::Cow;
use std::fs::File;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use memmap2::Mmap;

pub(crate) use self::deflated::Deflated;
pub(crate) use self::derived::Derived;
#[cfg(feature = "pth")]
pub(crate) use self::derived::Latin1Text;
#[cfg(any(feature = "onnx", feature = "tflite"))]
pub(crate) use self::derived::SparseValues;
#[cfg(feature = "zarr")]
pub(crate) use self::derived::zstd_decoder;
#[cfg(any(feature = "hdf5", feature = "zarr"))]
pub(crate) use self::derived::{ChunkFilter, ChunkPlace, ChunkedTensor, check_runs};
#[cfg(feature = "onnx")]
pub(crate) use self::derived::{FieldPlace, NumberKind, RepeatedField};
#[cfg(feature = "coreml")]
pub(crate) use self::derived::{MaskedFormat, MaskedValues, SourceAt};
use self::files::FileHandle;
pub(crate) use self::files::FilePool;
pub(crate) use self::pieced::Pieced;
#[cfg(feature = "pth")]
pub(crate) use self::pieced::StorageCheck;
#[cfg(any(feature = "pth", feature = "tensorflow"))]
pub(crate) use self::pieced::TensorPiece;
use self::platform::{copy_range, read_exact_at};
pub(crate) use self::seeking::{ReadSeek, Seeking};
pub(crate) use self::sha256::{FileHasher, sha256_of_file};
use self::state::state_of_name;
pub(crate) use self::state::{CompanionFile, FileState};
use crate::limits::zeroed;
use crate::records::info;
use crate::{AnamnesisError, Result};

/// The bytes behind a [`ParsedModel`](crate::ParsedModel).
#[derive(Debug)]
pub(crate) enum Source {
    /// A file, read positionally; mapped when a view is asked for.
    File {
        file: FileHandle,
        /// Path that the file was opened by, if it was.
        path: Option<Arc<Path>>,
        /// State when the file was opened.
        state: FileState,
        map: OnceLock<Mmap>,
    },
    /// The whole container in memory.
    Bytes(Arc<Vec<u8>>),
    /// A stream of the caller's, whose threads take turns.
    Stream { stream: Arc<Mutex<Seeking<Box<dyn ReadSeek>>>>, len: u64 },
    /// A compressed part of another source.
    #[cfg_attr(not(any(feature = "npz", feature = "pth")), allow(dead_code))]
    Deflated(Box<Deflated>),
    /// A tensor in several pieces, in files that are sources of the model, too.
    #[cfg_attr(not(feature = "pth"), allow(dead_code))]
    Pieced(Box<Pieced>),
    /// A tensor that is made of another source's bytes while it is read.
    #[cfg_attr(
        not(any(
            feature = "hdf5",
            feature = "onnx",
            feature = "pth",
            feature = "tflite",
            feature = "zarr"
        )),
        allow(dead_code)
    )]
    Derived(Box<Derived>),
    /// Only the header was read; tensor data is out of reach.
    HeaderOnly,
}

impl Source {
    /// Opens a regular file.
    ///
    /// # Errors
    /// `Io` if `path` is anything else: a directory, a device, a pipe.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let mut source = Self::from_file(&open_regular(path)?)?;
        info!("opened {}", path.display());
        if let Self::File { path: opened, .. } = &mut source {
            *opened = Some(path.into());
        }
        Ok(source)
    }

    /// Opens a regular file as file `number` of `pool`, which closes and reopens files as they are
    /// read.
    pub(crate) fn open_pooled(pool: &Arc<FilePool>, number: usize, path: &Path) -> Result<Self> {
        let file = open_regular(path)?;
        info!("opened {}", path.display());
        let state = FileState::of(&file.metadata()?);
        Ok(Self::File {
            file: FileHandle::pooled(pool, number, path, file, state),
            path: Some(path.into()),
            state,
            map: OnceLock::new(),
        })
    }

    /// Wraps an open file. Its handle is duplicated.
    pub(crate) fn from_file(file: &File) -> Result<Self> {
        let (file, state) = (file.try_clone()?, FileState::of(&file.metadata()?));
        Ok(Self::File {
            file: FileHandle::Open(Arc::new(file)),
            path: None,
            state,
            map: OnceLock::new(),
        })
    }

    /// Wraps a stream, which is read from its own positions on demand.
    pub(crate) fn from_stream(stream: Box<dyn ReadSeek>) -> Result<Self> {
        let stream = Seeking::new(stream)?;
        Ok(Self::Stream { len: stream.len(), stream: Arc::new(Mutex::new(stream)) })
    }

    /// Whether [`view`](Self::view) copies the bytes into memory: of a stream, of several pieces, or
    /// of what is made while it is read.
    pub(crate) fn is_copied_to_be_viewed(&self) -> bool {
        matches!(self, Self::Stream { .. } | Self::Pieced(_) | Self::Derived(_))
    }

    /// Whether this is a tensor that has no place of its own in a file: it is in several pieces of
    /// other sources, or made of their bytes.
    pub(crate) fn is_made_of_others(&self) -> bool {
        matches!(self, Self::Pieced(_) | Self::Derived(_))
    }

    /// Returns another source of the same bytes: with the same file handle, but a mapping of its
    /// own. Of a compressed member and of a tensor that is made of other sources it is
    /// [`HeaderOnly`](Self::HeaderOnly), for neither is nested.
    #[cfg_attr(not(any(feature = "npz", feature = "pth", feature = "onnx")), allow(dead_code))]
    pub(crate) fn share(&self) -> Self {
        match self {
            Self::File { file, path, state, .. } => Self::File {
                file: file.clone(),
                path: path.clone(),
                state: *state,
                map: OnceLock::new(),
            },
            Self::Bytes(bytes) => Self::Bytes(bytes.clone()),
            Self::Stream { stream, len } => Self::Stream { stream: stream.clone(), len: *len },
            Self::Deflated(_) | Self::Pieced(_) | Self::Derived(_) | Self::HeaderOnly => {
                Self::HeaderOnly
            }
        }
    }

    /// Path that the file was opened by; of a compressed member, that of its archive.
    pub(crate) fn path(&self) -> Option<&Path> {
        match self {
            Self::File { path, .. } => path.as_deref(),
            Self::Deflated(member) => member.path(),
            Self::Derived(tensor) => tensor.base().path(),
            _ => None,
        }
    }

    /// Whether `path` leads to this file, under whatever name (a link, another spelling). False if
    /// that cannot be told.
    pub(crate) fn is_file_at(&self, path: &Path) -> bool {
        let Self::File { file, .. } = self else {
            return false;
        };
        file.get()
            .and_then(|file| platform::is_file_at(&file, path))
            .unwrap_or(false)
    }

    /// Lets the system's cache forget the file's contents.
    pub(crate) fn forget_cached(&self) {
        if let Self::File { file, .. } = self
            && let Ok(file) = file.get()
        {
            platform::forget_cached(&file);
        }
    }

    /// Compares the file with its state when it was opened. Does nothing for memory and streams.
    ///
    /// # Errors
    /// `Io` that names the file and what differs.
    pub(crate) fn require_unchanged(&self) -> Result<()> {
        let (file, path, state) = match self {
            Self::File { file, path, state, .. } => (file, path.as_deref(), state),
            Self::Deflated(member) => return member.require_unchanged(),
            Self::Pieced(tensor) => return tensor.require_unchanged(),
            Self::Derived(tensor) => return tensor.base().require_unchanged(),
            _ => return Ok(()),
        };
        // While the name leads to the same inode, in the same state, so does the open handle. A
        // file that was replaced is refused even though the handle still reads the old one: the
        // files of a model belong together, and those that are opened later are new.
        if let Some(path) = path
            && let Some(now) = state_of_name(path).map_err(|e| AnamnesisError::io_at(path, &e))?
        {
            return state.require(&now, path).map_err(Into::into);
        }
        // Without a name nobody can open the file any more. Losing the name has set the change
        // time, so that only length and modification time are left to compare.
        let now = FileState::of(&file.get()?.metadata()?);
        let now = match path {
            Some(_) => FileState { changed: state.changed, ..now },
            None => now,
        };
        let shown = path.unwrap_or(Path::new("the input"));
        state.require(&now, shown).map_err(Into::into)
    }

    /// Length in bytes; `None` if only the header was read. Of a compressed member, its
    /// decompressed length; of a tensor that is made of other sources, that of the tensor.
    pub(crate) fn len(&self) -> Option<u64> {
        match self {
            Self::File { state, .. } => Some(state.len),
            Self::Stream { len, .. } => Some(*len),
            Self::Bytes(bytes) => Some(bytes.len() as u64),
            Self::Deflated(member) => Some(member.len()),
            Self::Pieced(tensor) => Some(tensor.len()),
            Self::Derived(tensor) => Some(tensor.len()),
            Self::HeaderOnly => None,
        }
    }

    /// Fills `out` with the bytes from `offset` on. It reads positionally and never through a
    /// mapping, so that a file that shrinks meanwhile is an I/O error and not a SIGBUS.
    pub(crate) fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        match self {
            Self::File { file, .. } => {
                read_exact_at(file.get()?.as_ref(), offset, out).map_err(Into::into)
            }
            Self::Bytes(bytes) => {
                let start = usize::try_from(offset).ok();
                let range = start.and_then(|s| Some(s..s.checked_add(out.len())?));
                let found = range.and_then(|r| bytes.get(r));
                out.copy_from_slice(
                    found.ok_or_else(|| AnamnesisError::parse("tensor data past the end"))?,
                );
                Ok(())
            }
            Self::Stream { stream, .. } => {
                // A thread that panicked in a read leaves a stream that seeks before the next one.
                let mut stream = stream.lock().unwrap_or_else(PoisonError::into_inner);
                stream.read_at(offset, out).map_err(Into::into)
            }
            Self::Deflated(member) => member.read_at(offset, out),
            Self::Pieced(tensor) => tensor.read_at(offset, out),
            Self::Derived(tensor) => tensor.read_at(offset, out),
            Self::HeaderOnly => Err(header_only()),
        }
    }

    /// Fills each of `pieces` with the bytes from its offset on, as [`read_at`](Self::read_at)
    /// does. The file is looked up once: threads that did so for each of many short pieces would
    /// wait for each other.
    pub(crate) fn read_each<'o>(
        &self,
        mut pieces: impl Iterator<Item = (u64, &'o mut [u8])>,
    ) -> Result<()> {
        let Self::File { file, .. } = self else {
            return pieces.try_for_each(|(offset, out)| self.read_at(offset, out));
        };
        let file = file.get()?;
        pieces.try_for_each(|(offset, out)| Ok(read_exact_at(&file, offset, out)?))
    }

    /// Has the system copy `len` bytes from `offset` on to `to.1` of a file. `false` if this is no
    /// file, or the system cannot.
    pub(crate) fn copy_to(&self, offset: u64, to: (&File, u64), len: u64) -> bool {
        match self {
            Self::File { file, .. } => file
                .get()
                .is_ok_and(|file| copy_range((file.as_ref(), offset), to, len)),
            _ => false,
        }
    }

    /// CRC-32 of `len` bytes from `offset` on, behind others of which `before` gives the number and
    /// the CRC-32.
    pub(crate) fn crc32(&self, offset: u64, len: u64, before: (u64, u32)) -> Result<u32> {
        let mut sum = crc32fast::Hasher::new_with_initial_len(before.1, before.0);
        let mut piece = vec![0; (256 << 10).min(len as usize)];
        let mut at = 0;
        while at < len {
            let n = (len - at).min(piece.len() as u64) as usize;
            self.read_at(offset + at, &mut piece[..n])?;
            sum.update(&piece[..n]);
            at += n as u64;
        }
        Ok(sum.finalize())
    }

    /// `len` bytes from `offset` on, if the source is in memory and has them. A mapped file does
    /// not count: what reads through this must not meet a file that shrinks.
    pub(crate) fn shared(&self, offset: u64, len: u64) -> Option<SharedBytes> {
        let Self::Bytes(all) = self else {
            return None;
        };
        let start = usize::try_from(offset).ok()?;
        let end = start.checked_add(usize::try_from(len).ok()?)?;
        (end <= all.len()).then(|| SharedBytes { all: all.clone(), range: start..end })
    }

    /// Returns the bytes of `range`: borrowed from a mapping or from memory, and copied of a
    /// compressed member or a stream. The file is mapped at the first call.
    pub(crate) fn view(&self, range: Range<u64>) -> Result<Cow<'_, [u8]>> {
        let bytes: &[u8] = match self {
            Self::File { file, map, .. } => match map.get() {
                Some(map) => map,
                None => {
                    // Two threads may both map the file; the second mapping is dropped.
                    // `get_or_init` alone cannot return the error.
                    let new = map_file(file.get()?.as_ref())?;
                    map.get_or_init(|| new)
                }
            },
            Self::Bytes(bytes) => bytes,
            Self::Deflated(_) | Self::Pieced(_) | Self::Derived(_) | Self::Stream { .. } => {
                let mut out = zeroed(range.end.saturating_sub(range.start), "a tensor")?;
                self.read_at(range.start, &mut out)?;
                return Ok(Cow::Owned(out));
            }
            Self::HeaderOnly => return Err(header_only()),
        };
        let range = usize::try_from(range.start)
            .ok()
            .zip(usize::try_from(range.end).ok());
        let found = range.and_then(|(start, end)| bytes.get(start..end));
        found
            .map(Cow::Borrowed)
            .ok_or_else(|| AnamnesisError::parse("tensor data past the end of the file"))
    }
}

/// Bytes of a source in memory, which they keep there.
#[derive(Debug, Clone)]
pub(crate) struct SharedBytes {
    all: Arc<Vec<u8>>,
    /// Within `all`.
    range: Range<usize>,
}

impl std::ops::Deref for SharedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.all[self.range.clone()]
    }
}

fn open_regular(path: &Path) -> Result<File> {
    // The type is checked before the file is opened: opening a pipe blocks until it has a writer.
    let meta = std::fs::metadata(path).map_err(|e| AnamnesisError::io_at(path, &e))?;
    if !meta.is_file() {
        let what = if meta.is_dir() {
            "is a directory"
        } else {
            "not a regular file"
        };
        let error = std::io::Error::new(std::io::ErrorKind::InvalidInput, what);
        return Err(AnamnesisError::io_at(path, &error));
    }
    File::open(path).map_err(|e| AnamnesisError::io_at(path, &e))
}

fn header_only() -> AnamnesisError {
    AnamnesisError::unsupported(
        "header-only model",
        "only the header was read; open the file to reach tensor data",
    )
}

#[expect(unsafe_code, reason = "mapping a file")]
fn map_file(file: &File) -> Result<Mmap> {
    // SAFETY: the map is read-only and private to this process. A file that another process
    // shortens while it is mapped raises SIGBUS on access, which `parse` documents; conversions
    // never get here, and callers who do not trust the file's other writers use `parse_bytes`.
    Ok(unsafe { Mmap::map(file)? })
}
