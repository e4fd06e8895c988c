//! ZIP archives, as NPZ and PyTorch files are: reads the central directory and finds each member's
//! bytes. Members are read in place; nothing is extracted.
//!
//! A ZIP file says most things twice: in its directory and in its members, in 32 bits and in 64.
//! Readers differ in what they believe, so that one file can be two models. Here the directory
//! counts, and every contradiction is an error.
//!
//! The `zip` crate parses the entries of the directory. Around it stand the checks that it leaves
//! open: it has no limits, falls back to an earlier end record, follows one of two contradicting
//! records, passes over bytes behind the last entry, and keeps one of two members of the same name.
//! Local headers are read here, because the crate compares three bits of their flags alone, and
//! reads every local header of an archive to look for overlaps. docs/architecture.md lists cases.
//!
//! Format: PKWARE APPNOTE 6.3.10.

mod directory;

#[cfg(feature = "pth")]
pub(super) use self::directory::archive_len;
use self::directory::{check_names, check_overlap, find_end, parse_directory, u16_at, u32_at};
use super::read_at::ReadAt;
use crate::limits::{Budget, cap};
use crate::{AnamnesisError, Container, Result};

/// Most members of an archive.
const MAX_ENTRIES: u64 = 1 << 20;

/// Largest central directory that is read, in bytes.
const MAX_DIRECTORY_BYTES: u64 = 256 << 20;

/// Length of a local header without name and extra fields.
const LOCAL_HEADER_LEN: u64 = 30;

/// Longest end of file that can hold the end record: 22 bytes and a comment of at most 65535. The
/// 64-bit records before it take 76 bytes more, if they are adjacent.
const MAX_TAIL: u64 = 22 + 65_535 + 76;

/// Bytes of the end of an archive that hold the directory of one with a single tensor, and its end
/// record.
#[cfg(feature = "pth")]
const SHORT_TAIL: u64 = 2048;

/// Reads the last `max` bytes of a file, or all if it is shorter.
fn read_tail(file: &mut dyn ReadAt, max: u64) -> Result<Vec<u8>> {
    let mut tail = vec![0; file.len().min(max) as usize];
    file.read_at(file.len() - tail.len() as u64, &mut tail)?;
    Ok(tail)
}

/// A member of an archive, as the central directory describes it.
#[derive(Debug, Clone)]
pub(crate) struct ZipMember {
    pub name: String,
    /// Whether the member is deflated; otherwise it is stored as it is.
    pub deflated: bool,
    /// CRC-32 of the member's decompressed bytes.
    pub crc: u32,
    /// Bytes that the member takes in the archive.
    pub stored_len: u64,
    /// Bytes of the member after decompression.
    pub len: u64,
    /// Offset of the local header.
    header: u64,
    flags: u16,
    method: u16,
}

/// An archive whose central directory has been read and checked.
#[derive(Debug)]
pub(crate) struct ZipArchive {
    /// The members in the order of the directory. Names are unique, and no two members overlap.
    pub members: Vec<ZipMember>,
    /// Offsets of all local headers, in ascending order.
    headers: Vec<u64>,
    /// Offset of the central directory, which no member reaches into.
    directory: u64,
    /// The end of the file, which was read for the directory, and its offset: of a remote archive,
    /// small members that lie there take no request of their own.
    tail: Vec<u8>,
    tail_start: u64,
}

fn broken(what: impl std::fmt::Display) -> AnamnesisError {
    AnamnesisError::parse(format!("ZIP archive: {what}"))
}

impl ZipArchive {
    /// Reads and checks the central directory. It takes one read of the file's end, and another one
    /// if the directory is longer than that.
    ///
    /// # Errors
    /// `Parse` if the archive is malformed, contradicts itself, or does not end with its directory;
    /// `Unsupported` if a member is encrypted or compressed by another method than deflate;
    /// `LimitExceeded`; `Io`.
    pub(crate) fn read(file: &mut dyn ReadAt, budget: &Budget) -> Result<Self> {
        let tail = read_tail(file, MAX_TAIL)?;
        Self::read_behind(file, tail, budget)
    }

    /// As [`read`](Self::read), of a small archive among thousands: reads less of its end, if it
    /// has no comment there.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    #[cfg(feature = "pth")]
    pub(crate) fn read_small(file: &mut dyn ReadAt, budget: &Budget) -> Result<Self> {
        let mut tail = read_tail(file, SHORT_TAIL)?;
        let record = tail.len().saturating_sub(22);
        if !tail[record..].starts_with(b"PK\x05\x06") {
            tail = read_tail(file, MAX_TAIL)?;
        }
        Self::read_behind(file, tail, budget)
    }

    /// Reads and checks the central directory of a file that ends in `tail`.
    fn read_behind(file: &mut dyn ReadAt, tail: Vec<u8>, budget: &Budget) -> Result<Self> {
        let tail_start = file.len() - tail.len() as u64;
        let end = find_end(file, &tail, tail_start)?;
        cap(
            "ZIP_MAX_ENTRIES",
            end.entries,
            MAX_ENTRIES,
            format_args!("members in a ZIP directory of {} bytes", end.len),
        )?;
        cap("ZIP_MAX_DIRECTORY_BYTES", end.len, MAX_DIRECTORY_BYTES, "bytes of a ZIP directory")?;
        budget.items(end.entries, "members of the archive")?;
        budget.alloc(end.len, "the ZIP directory")?;
        let directory = if end.offset >= tail_start {
            let start = (end.offset - tail_start) as usize;
            tail[start..start + end.len as usize].to_vec()
        } else {
            let mut directory = vec![0; end.len as usize];
            file.read_at(end.offset, &mut directory)?;
            directory
        };
        let members = parse_directory(&directory, &end)?;
        for m in members.iter().filter(|m| m.deflated) {
            budget.decompress(m.stored_len, m.len, format_args!("`{}`", m.name))?;
        }
        check_names(&members)?;
        check_overlap(&members, end.offset)?;
        let mut headers: Vec<u64> = members.iter().map(|m| m.header).collect();
        headers.sort_unstable();
        Ok(Self { members, headers, directory: end.offset, tail, tail_start })
    }

    /// Fills `out` with the bytes of the file from `offset` on.
    fn read_at(&self, file: &mut dyn ReadAt, offset: u64, out: &mut [u8]) -> Result<()> {
        let at = offset
            .checked_sub(self.tail_start)
            .and_then(|at| usize::try_from(at).ok());
        match at.and_then(|at| self.tail.get(at..)?.get(..out.len())) {
            Some(bytes) => out.copy_from_slice(bytes),
            None => file.read_at(offset, out)?,
        }
        Ok(())
    }

    /// Reads the local header of `member` and returns the offset of the data behind it.
    ///
    /// # Errors
    /// `Parse` if the local header has another name, method or flags than the directory, or if the
    /// data would reach into the next member. Sizes and checksum are not compared: streaming
    /// writers leave them out of local headers.
    pub(crate) fn read_data_start(&self, file: &mut dyn ReadAt, member: &ZipMember) -> Result<u64> {
        let name = &member.name;
        let mut header = vec![0; LOCAL_HEADER_LEN as usize + name.len()];
        self.read_at(file, member.header, &mut header)?;
        let same = u32_at(&header, 0) == 0x0403_4b50
            && u16_at(&header, 6) == member.flags
            && u16_at(&header, 8) == member.method
            && usize::from(u16_at(&header, 26)) == name.len()
            && &header[LOCAL_HEADER_LEN as usize..] == name.as_bytes();
        if !same {
            return Err(broken(format!(
                "the local header of `{name}` is not what the directory says"
            )));
        }
        let start = member.header + header.len() as u64 + u64::from(u16_at(&header, 28));
        // The length of the local header's extra fields is known only now, so that overlap is
        // checked once more.
        let next = self
            .headers
            .partition_point(|&header| header <= member.header);
        let next = self.headers.get(next).copied().unwrap_or(self.directory);
        match start
            .checked_add(member.stored_len)
            .filter(|&end| end <= next)
        {
            Some(_) => Ok(start),
            None => Err(broken(format!("`{name}` reaches into what follows it"))),
        }
    }

    /// Reads a whole member of at most `max` bytes, decompresses it, and checks its length and
    /// CRC-32. A compressed member may take at most 16 MiB and twice its stored length: a pickle's
    /// values take a multiple of its length, so that a greater ratio would make a small file
    /// expensive.
    ///
    /// # Errors
    /// `Parse` if the member is malformed; `LimitExceeded` if it is too large; `Io`.
    #[cfg(any(feature = "pth", feature = "hdf5"))]
    pub(crate) fn read_content(
        &self,
        file: &mut dyn ReadAt,
        member: &ZipMember,
        max: u64,
        budget: &Budget,
    ) -> Result<Vec<u8>> {
        let name = &member.name;
        let bound = max.min((16 << 20) + member.stored_len.saturating_mul(2));
        let of_member = || format!("bytes of `{name}`");
        cap("MAX_MEMBER_BYTES", member.len, bound, of_member())?;
        cap("MAX_MEMBER_BYTES", member.stored_len, max, of_member())?;
        budget.alloc(member.stored_len, format_args!("`{name}`"))?;
        if member.deflated {
            budget.alloc(member.len, format_args!("`{name}`"))?;
        }
        let start = self.read_data_start(file, member)?;
        let mut bytes = vec![0; member.stored_len as usize];
        self.read_at(file, start, &mut bytes)?;
        if member.deflated {
            // One byte more than declared, so that a longer member is noticed.
            bytes =
                inflate(&bytes, member.len + 1).map_err(|e| broken(format!("`{name}`: {e}")))?;
        }
        if bytes.len() as u64 != member.len
            || member.crc != 0 && crc32fast::hash(&bytes) != member.crc
        {
            return Err(broken(format!("`{name}` has the wrong length or checksum")));
        }
        Ok(bytes)
    }

    /// NPZ if a member is named like an array, or if there is none; PyTorch if `torch.export` has
    /// written it, or if there is a pickle where checkpoints have it; Keras or LiteRT if their files are
    /// in it. `None` for any other archive.
    pub(crate) fn format(&self) -> Option<Container> {
        if self.exported().is_some() {
            return Some(Container::Pth);
        }
        if self.members.is_empty() || self.members.iter().any(|m| m.name.ends_with(".npy")) {
            return Some(Container::Npz);
        }
        let checkpoint = self.pickle().map(|_| Container::Pth);
        let keras = || self.keras().map(|_| Container::Hdf5);
        let tflite = || self.tflite().next().map(|_| Container::Tflite);
        checkpoint.or_else(keras).or_else(tflite)
    }

    /// The models of LiteRT in a bundle of MediaPipe, where those of language models have no ending.
    pub(crate) fn tflite(&self) -> impl Iterator<Item = &ZipMember> {
        let is_model =
            |m: &&ZipMember| m.name.ends_with(".tflite") || m.name.starts_with("TF_LITE_");
        self.members.iter().filter(is_model)
    }

    /// The weights in an archive of Keras.
    pub(crate) fn keras(&self) -> Option<&ZipMember> {
        self.members.iter().find(|m| m.name == "model.weights.h5")
    }

    /// Checks that the archive is of the format `expected`.
    pub(crate) fn check_format(&self, expected: Container) -> Result<()> {
        match self.format() {
            Some(found) if found == expected => Ok(()),
            Some(found) => Err(found.refused_as(expected)),
            None => Err(self.neither()),
        }
    }

    /// The directory, with its slash, of what `torch.export` or AOTInductor has written, which is
    /// empty before torch 2.8; `None` for any other archive.
    pub(crate) fn exported(&self) -> Option<&str> {
        let has = |root: &str, name: &str| {
            self.members
                .iter()
                .any(|m| m.name.strip_prefix(root) == Some(name))
        };
        let root = |m: &'_ ZipMember| {
            let root = m.name.len().checked_sub("archive_format".len())?;
            let is_root = m.name.ends_with("/archive_format") && m.name.matches('/').count() == 1;
            is_root.then_some(root)
        };
        let root = self.members.iter().find_map(|m| m.name.get(..root(m)?));
        let older =
            || has("", "serialized_exported_program.json") && has("", "serialized_state_dict.pt");
        match root {
            Some(root) => has(root, "archive_version").then_some(root),
            None => older().then_some(""),
        }
    }

    /// The member `data.pkl`, at the top or in a directory: torch wraps everything in one directory
    /// of any name.
    pub(crate) fn pickle(&self) -> Option<&ZipMember> {
        // The shallowest, for it is the root where the other is one of TorchScript's extra files.
        self.members
            .iter()
            .filter(|m| is_pickle(m))
            .min_by_key(|m| m.name.matches('/').count())
    }

    /// Checks that `pickle` is the only root of a checkpoint, and that no other member has its name
    /// or that of one of its storages but for case: torch finds members in any case. A `data.pkl`
    /// below its directory, among the extra files of TorchScript, is none.
    ///
    /// # Errors
    /// `Parse` if another member could be taken for the checkpoint's pickle or for a storage: which
    /// one counts would depend on the reader.
    #[cfg(feature = "pth")]
    pub(crate) fn check_only_root(&self, pickle: &ZipMember) -> Result<()> {
        let directory = pickle.name.trim_end_matches("data.pkl");
        let is_other = |m: &&ZipMember| {
            let inside = !directory.is_empty() && m.name.starts_with(directory);
            is_pickle_in_any_case(m) && m.name != pickle.name && !inside
        };
        if let Some(other) = self.members.iter().find(is_other) {
            let (name, other) = (&pickle.name, &other.name);
            return Err(broken(format!("it has two roots, `{name}` and `{other}`")));
        }
        self.check_case(directory)
    }

    /// Checks that no two members have one name but for case, other than the code of TorchScript
    /// below `directory`.
    ///
    /// # Errors
    /// `Parse` that names one: torch finds members in any case.
    #[cfg(feature = "pth")]
    pub(crate) fn check_case(&self, directory: &str) -> Result<()> {
        let is_data = |m: &&ZipMember| {
            let below = m.name.get(directory.len()..).unwrap_or_default();
            let code = below.get(..5).unwrap_or_default();
            !code.eq_ignore_ascii_case("code/")
        };
        let mut seen = std::collections::HashSet::new();
        let is_twice = |m: &&ZipMember| !seen.insert(m.name.to_ascii_lowercase());
        match self.members.iter().filter(is_data).find(is_twice) {
            Some(twice) => {
                Err(broken(format!("`{}` is in it twice, in upper and lower case", twice.name)))
            }
            None => Ok(()),
        }
    }

    /// The member with the name `name`.
    #[cfg(feature = "pth")]
    pub(crate) fn member(&self, name: &str) -> Option<&ZipMember> {
        self.members.iter().find(|m| m.name == name)
    }
}

#[cfg(feature = "pth")]
fn is_pickle_in_any_case(member: &ZipMember) -> bool {
    let last = member.name.rsplit('/').next().unwrap_or_default();
    last.eq_ignore_ascii_case("data.pkl")
}

fn is_pickle(member: &ZipMember) -> bool {
    member.name == "data.pkl" || member.name.ends_with("/data.pkl")
}

/// Decompresses `bytes` and returns at most the first `max` bytes of the result.
#[cfg(any(feature = "pth", feature = "hdf5"))]
fn inflate(bytes: &[u8], max: u64) -> std::io::Result<Vec<u8>> {
    use std::io::Read;
    // Allocated at once: a growing vector holds its content twice while it moves.
    let mut out = Vec::with_capacity(max as usize + 1);
    flate2::bufread::DeflateDecoder::new(bytes)
        .take(max)
        .read_to_end(&mut out)?;
    Ok(out)
}

/// Endings of files that are a model, or a part of one, in an archive of these.
const MODEL_FILES: &[&str] = &[".safetensors", ".gguf", ".pth", ".pt", ".ckpt", ".bin", ".npz"];

impl ZipArchive {
    /// The error for an archive that is neither NPZ nor a checkpoint, with what it is as far as its
    /// members tell.
    pub(super) fn neither(&self) -> AnamnesisError {
        let has = |name: &str| self.members.iter().any(|m| m.name.ends_with(name));
        let is_in = |directory: &str| self.members.iter().any(|m| m.name.contains(directory));
        let (what, advice) = match () {
            () if MODEL_FILES.iter().any(|ending| has(ending)) => {
                ("ZIP archive of a model", "unpack it first, and give the directory or the file")
            }
            () if is_in("com.apple.CoreML") => {
                ("ZIP archive of a package of Core ML", "unpack it first, and give the directory")
            }
            () if has("saved_model.pb") => ("TensorFlow SavedModel", "its models are not read"),
            () => ("ZIP archive", "neither NPZ nor a PyTorch checkpoint"),
        };
        AnamnesisError::unsupported(what, advice)
    }
}
