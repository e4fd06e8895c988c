//! What the standard library has for one operating system alone, or for none: positional reads and
//! writes, the identity of a file, free space. Targets without files (`wasm32-unknown-unknown`)
//! have functions that fail.

#[cfg(not(any(unix, windows)))]
pub(crate) use self::no_files::*;
#[cfg(not(target_os = "linux"))]
pub(crate) use self::not_linux::*;
#[cfg(not(unix))]
pub(crate) use self::portable::*;
#[cfg(unix)]
pub(crate) use self::unix::*;
#[cfg(windows)]
pub(crate) use self::windows::*;

#[cfg(unix)]
mod unix {
    use std::fs::{File, Metadata};
    use std::io::{self, Read, Result, Seek};
    use std::os::unix::fs::{FileExt, MetadataExt};
    use std::path::Path;

    use rustix::fs::{Mode, OFlags, SeekFrom};
    use rustix::io::Errno;

    /// Time in nanoseconds since 1970 at which content, names or permissions of a file last
    /// changed.
    pub(crate) fn change_time(meta: &Metadata) -> u128 {
        let seconds = u128::try_from(meta.ctime()).unwrap_or(0);
        seconds * 1_000_000_000 + u128::try_from(meta.ctime_nsec()).unwrap_or(0)
    }

    /// Opens a file to read whose last component is no link, and which is a regular file.
    pub(crate) fn open_unlinked(path: &Path) -> Result<File> {
        // Without waiting, in case that a pipe has just been put there.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
        match file.metadata()?.is_file() {
            true => Ok(file),
            false => Err(io::Error::other("not a regular file")),
        }
    }

    /// Whether the owner of a file may run it.
    pub(crate) fn is_executable(meta: &Metadata) -> bool {
        meta.mode() & 0o100 != 0
    }

    /// Gives `file` the owner and the permissions in `meta`. Only root gives files away, so a file of
    /// somebody else may stay the user's.
    pub(crate) fn take_owner(meta: &Metadata, file: &File) -> Result<()> {
        let _ = std::os::unix::fs::fchown(file, Some(meta.uid()), Some(meta.gid()));
        file.set_permissions(meta.permissions())
    }

    /// Bytes that a file takes on the disk, if it is written with the same holes.
    pub(crate) fn allocated(meta: &Metadata) -> u64 {
        meta.len().min(meta.blocks().saturating_mul(512))
    }

    /// Copies the contents of `from`, without its holes, to the empty file `to`.
    pub(crate) fn copy_contents(mut from: &File, mut to: &File) -> Result<()> {
        let len = from.metadata()?.len();
        to.set_len(len)?;
        let mut at = 0;
        while at < len {
            let (start, end) = match rustix::fs::seek(from, SeekFrom::Data(at)) {
                // Every file ends in a hole, so the second call fails only if the file has just
                // been cut.
                Ok(start) => (start, rustix::fs::seek(from, SeekFrom::Hole(start))?),
                Err(Errno::NXIO) => break, // no data behind `at`
                Err(Errno::INVAL | Errno::NOTSUP) => (at, len), // this file system tells no holes
                Err(e) => return Err(e.into()),
            };
            let end = end.min(len);
            from.seek(io::SeekFrom::Start(start))?;
            to.seek(io::SeekFrom::Start(start))?;
            let wanted = end.saturating_sub(start);
            if io::copy(&mut from.take(wanted), &mut to)? < wanted {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            at = end;
        }
        Ok(())
    }

    /// Device and inode: which file it is, under whatever name.
    pub(crate) fn place(meta: &Metadata) -> (u64, u64) {
        (meta.dev(), meta.ino())
    }

    pub(crate) fn read_exact_at(file: &File, offset: u64, out: &mut [u8]) -> Result<()> {
        // Of short pieces the C library's function, at which a thread may be cancelled, takes a
        // part of the time that can be measured.
        match rustix::io::pread(file, &mut *out, offset) {
            Ok(read) if read == out.len() => Ok(()),
            _ => file.read_exact_at(out, offset),
        }
    }

    /// Writes all of `bytes` at `offset`, without moving the file's position: threads share the
    /// file.
    pub(crate) fn write_all_at(file: &File, offset: u64, bytes: &[u8]) -> Result<()> {
        file.write_all_at(bytes, offset)
    }

    /// Has the system copy `len` bytes at `from.1` of a file to `to.1` of another. File systems
    /// that can let both share them. `false` if they are not all copied.
    #[cfg(target_os = "linux")]
    pub(crate) fn copy_range(mut from: (&File, u64), mut to: (&File, u64), mut len: u64) -> bool {
        // Whole blocks alone are shared, from the first that both files have at a block's begin.
        const BLOCK: u64 = 4096;
        let to_block = match from.1 % BLOCK == to.1 % BLOCK {
            true => from.1.next_multiple_of(BLOCK) - from.1,
            false => 0,
        };
        let mut now = if (1..len).contains(&to_block) {
            to_block
        } else {
            len
        };
        while len > 0 {
            let wanted = usize::try_from(now).unwrap_or(usize::MAX);
            let (from_at, to_at) = (Some(&mut from.1), Some(&mut to.1));
            match rustix::fs::copy_file_range(from.0, from_at, to.0, to_at, wanted) {
                Ok(0) | Err(_) => return false,
                Ok(copied) => len -= copied as u64,
            }
            now = len;
        }
        true
    }

    /// Lets the system's cache forget what of a file's contents is on the disk.
    #[cfg(target_os = "linux")]
    pub(crate) fn forget_cached(file: &File) {
        let _ = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed);
    }

    /// Whether `path` leads to `file`, under whatever name.
    pub(crate) fn is_file_at(file: &File, path: &Path) -> Result<bool> {
        Ok(place(&file.metadata()?) == place(&std::fs::metadata(path)?))
    }

    /// Whether `path` is a name of `file` itself.
    pub(crate) fn has_name(file: &File, path: &Path) -> Result<bool> {
        match path.symlink_metadata() {
            Ok(there) => Ok(place(&file.metadata()?) == place(&there)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Bytes that an unprivileged user may still write to the file system of `directory`.
    pub(crate) fn available_space(directory: &Path) -> Result<u64> {
        let stat = rustix::fs::statvfs(directory)?;
        Ok(stat.f_frsize.saturating_mul(stat.f_bavail))
    }
}

/// What Linux alone has.
#[cfg(not(target_os = "linux"))]
mod not_linux {
    use std::fs::File;

    /// Always `false`.
    pub(crate) fn copy_range(_from: (&File, u64), _to: (&File, u64), _len: u64) -> bool {
        false
    }

    /// Does nothing.
    pub(crate) fn forget_cached(_file: &File) {}
}

/// What the standard library has for every system.
#[cfg(not(unix))]
mod portable {
    use std::fs::{File, Metadata};
    use std::io::{ErrorKind, Result};
    use std::path::Path;

    /// Always 0: the standard library knows no such time here.
    pub(crate) fn change_time(_meta: &Metadata) -> u128 {
        0
    }

    /// Opens a file to read which is a regular file and no link.
    pub(crate) fn open_unlinked(path: &Path) -> Result<File> {
        match path.symlink_metadata()?.is_file() {
            true => File::open(path),
            false => Err(std::io::Error::other("not a regular file")),
        }
    }

    /// Whether the owner of a file may run it: no file says so here.
    pub(crate) fn is_executable(_meta: &Metadata) -> bool {
        false
    }

    /// Does nothing: a new file has the rights of its directory.
    pub(crate) fn take_owner(_meta: &Metadata, _file: &File) -> Result<()> {
        Ok(())
    }

    /// Bytes that a file takes on the disk.
    pub(crate) fn allocated(meta: &Metadata) -> u64 {
        meta.len()
    }

    /// Copies the contents of `from` to the empty file `to`.
    pub(crate) fn copy_contents(mut from: &File, mut to: &File) -> Result<()> {
        std::io::copy(&mut from, &mut to).map(drop)
    }

    /// Whether `path` is a name of `file` itself. Always true where the system cannot tell.
    pub(crate) fn has_name(file: &File, path: &Path) -> Result<bool> {
        match super::is_file_at(file, path) {
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
            Err(e) if e.kind() == ErrorKind::Unsupported => Ok(true),
            told => told,
        }
    }

    /// Always zeros: the standard library cannot tell which file it is.
    pub(crate) fn place(_meta: &Metadata) -> (u64, u64) {
        (0, 0)
    }
}

#[cfg(windows)]
mod windows {
    use std::fs::File;
    use std::io::{ErrorKind, Result};
    use std::os::windows::fs::FileExt;
    use std::path::Path;

    pub(crate) fn read_exact_at(file: &File, mut offset: u64, mut out: &mut [u8]) -> Result<()> {
        while !out.is_empty() {
            match file.seek_read(out, offset) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(n) => {
                    out = &mut out[n..];
                    offset += n as u64;
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Writes all of `bytes` at `offset`. It moves the file's position, which nothing here uses.
    pub(crate) fn write_all_at(file: &File, mut offset: u64, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            match file.seek_write(bytes, offset) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(n) => {
                    bytes = &bytes[n..];
                    offset += n as u64;
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Whether `path` leads to `file`, under whatever name. The standard library cannot tell.
    pub(crate) fn is_file_at(file: &File, path: &Path) -> Result<bool> {
        let ours = same_file::Handle::from_file(file.try_clone()?)?;
        Ok(ours == same_file::Handle::from_path(path)?)
    }

    /// Bytes that the user may still write to the volume of `directory`.
    pub(crate) fn available_space(directory: &Path) -> Result<u64> {
        fs4::available_space(directory)
    }
}

#[cfg(not(any(unix, windows)))]
mod no_files {
    use std::fs::File;
    use std::io::{ErrorKind, Result};
    use std::path::Path;

    pub(crate) fn read_exact_at(_file: &File, _offset: u64, _out: &mut [u8]) -> Result<()> {
        Err(ErrorKind::Unsupported.into())
    }

    pub(crate) fn write_all_at(_file: &File, _offset: u64, _bytes: &[u8]) -> Result<()> {
        Err(ErrorKind::Unsupported.into())
    }

    pub(crate) fn is_file_at(_file: &File, _path: &Path) -> Result<bool> {
        Err(ErrorKind::Unsupported.into())
    }

    pub(crate) fn available_space(_directory: &Path) -> Result<u64> {
        Err(ErrorKind::Unsupported.into())
    }
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use super::*;

    #[test]
    fn the_system_copies_ranges() {
        let bytes: Vec<u8> = (0..40_000u32).map(|i| (i * 7 + i / 251) as u8).collect();
        let from = tempfile::tempfile().unwrap();
        write_all_at(&from, 0, &bytes).unwrap();
        // From block to block, at one distance to a block or at several, within a block, and
        // nothing.
        for (at, to_at, len) in
            [(0, 4096, 30_000), (100, 4196, 30_000), (100, 77, 30_000), (4000, 4000, 90), (5, 0, 0)]
        {
            let to = tempfile::tempfile().unwrap();
            assert!(copy_range((&from, at), (&to, to_at), len), "{at}, {to_at}");
            let mut copied = vec![0; len as usize];
            read_exact_at(&to, to_at, &mut copied).unwrap();
            assert_eq!(copied, bytes[at as usize..][..len as usize]);
        }
        // What the file does not have is not copied.
        let to = tempfile::tempfile().unwrap();
        assert!(!copy_range((&from, 39_000), (&to, 0), 1001));
    }
}
