//! Tar checkpoints, the oldest format: files `storages`, `tensors` and `pickle`, each a stream of
//! pickles and numbers. In `pickle`, a persistent id stands for a whole tensor, whose shape and
//! storage are in `tensors`.
//!
//! Format: torch `torch/serialization.py`, `legacy_load`.

use std::collections::HashMap;

use super::globals::{Global, StorageElement};
use super::input::PickleInput;
use super::pickle::PickleMachine;
use super::storage::{StorageKey, StorageKeys, StoragePlace};
use super::tensors;
use super::value::{Node, NodeId, TensorView};
use super::views::{check_ratio, tensor_of};
use super::{PickleGlobal, not_empty, record_globals};
use crate::ParsedModel;
use crate::error::InTensor;
use crate::limits::{Budget, join_first};
use crate::model::TensorInfo;
use crate::parse::read_at::ReadAt;
use crate::source::Source;
use crate::{AnamnesisError, Container, Dtype, Result};

/// Most names of files that an error lists.
const MAX_LISTED: usize = 5;

/// Most files of the archive. A checkpoint has three.
const MAX_FILES: usize = 64;

fn wrong(what: &str) -> AnamnesisError {
    AnamnesisError::parse(format!("PyTorch checkpoint (tar): {what}"))
}

/// Whether `head` begins with a header whose checksum is right, by which Python tells tar archives:
/// those of the oldest kind have no other mark.
pub(super) fn is_header(head: &[u8]) -> bool {
    let Some(header) = head.first_chunk::<512>() else {
        return false;
    };
    // The checksum counts as spaces.
    let byte = |(at, &b): (usize, &u8)| if (148..156).contains(&at) { b' ' } else { b };
    let bytes = || header.iter().enumerate().map(byte);
    let unsigned: u32 = bytes().map(u32::from).sum();
    let signed: i32 = bytes().map(|b| i32::from(b.cast_signed())).sum();
    let digits = header[148..156]
        .split(|&b| b == 0)
        .next()
        .unwrap_or_default();
    let stored = std::str::from_utf8(digits.trim_ascii()).ok();
    let stored = stored.and_then(|digits| u32::from_str_radix(digits, 8).ok());
    stored.is_some_and(|n| n == unsigned || i64::from(n) == i64::from(signed))
}

/// A storage as the file `storages` describes it.
struct TarStorage {
    dtype: Dtype,
    place: StoragePlace,
}

/// Reads a tar checkpoint from `file`, whose data is in `source`.
///
/// # Errors
/// `Parse` if it is malformed; `Unsupported` if a tensor is of a kind that is not read;
/// `LimitExceeded`; `Io`.
pub(super) fn read(file: &mut dyn ReadAt, source: Source, budget: &Budget) -> Result<ParsedModel> {
    let files = list_files(file)?;
    if ["storages", "tensors", "pickle"]
        .iter()
        .all(|name| !files.contains_key(*name))
    {
        let mut names: Vec<&String> = files.keys().collect();
        names.sort_unstable();
        let names = join_first(&names, MAX_LISTED);
        let advice = format!(
            "it holds {names}; unpack it with `tar -xf`, as `.nemo` and others are, and give the checkpoint in it"
        );
        return Err(AnamnesisError::unsupported("tar archive", advice));
    }
    let mut reader =
        TarReader { lenient: false, keys: StorageKeys::default(), named: &mut Vec::new(), budget };
    let storages = reader.read_storages(file, part(&files, "storages")?)?;
    let tensors = reader.read_tensors(file, part(&files, "tensors")?, &storages)?;
    let (start, len) = part(&files, "pickle")?;
    let mut machine = PickleMachine::new(PickleInput::new(file, start, len, budget), false);
    let root = machine.run()?;
    reader.keys.forget_values();
    let mut contents = ParsedModel::new(Container::Pth, machine.input.at);
    let found = tensors::walk_persistent(root, &machine)?;
    budget.items(found.len() as u64, "tensors")?;
    for (name, TensorView { storage, .. }) in tensors::take_unread(found, &mut contents) {
        let key = key_of(storage, &machine, &mut reader.keys)?;
        let info = tensors.get(&key.number).and_then(Option::as_ref);
        let info =
            info.ok_or_else(|| wrong(&format!("{} is not among its tensors", InTensor(&name))))?;
        contents
            .tensors
            .push(TensorInfo { name: name.into(), ..info.clone() });
    }
    drop(machine);
    check_ratio(&contents.tensors, storages.values().map(|stored| &stored.place))?;
    contents.sources.push(source);
    not_empty(contents)
}

/// Runs all pickles for the globals that they name, and appends those to `named`. An error in one
/// file does not keep the others from being read; the first error is returned at the end.
pub(super) fn collect_globals(
    file: &mut dyn ReadAt,
    named: &mut Vec<PickleGlobal>,
    budget: &Budget,
) -> Result<()> {
    let files = list_files(file)?;
    let mut reader = TarReader { lenient: true, keys: StorageKeys::default(), named, budget };
    let storages = part(&files, "storages").and_then(|part| reader.read_storages(file, part));
    let none = HashMap::new();
    let tensors = part(&files, "tensors").and_then(|part| {
        reader
            .read_tensors(file, part, storages.as_ref().unwrap_or(&none))
            .map(drop)
    });
    let pickle = part(&files, "pickle").and_then(|(start, len)| {
        let mut machine = PickleMachine::new(PickleInput::new(file, start, len, budget), true);
        let result = machine.run().map(drop);
        record_globals(&machine, reader.named);
        result
    });
    storages.map(drop).and(tensors).and(pickle)
}

/// Offset and length of the file `name` in the archive.
fn part(files: &HashMap<String, (u64, u64)>, name: &str) -> Result<(u64, u64)> {
    files
        .get(name)
        .copied()
        .ok_or_else(|| wrong(&format!("`{name}` is missing")))
}

/// Reads the headers of the archive: offset and length of each regular file, by name.
fn list_files(file: &mut dyn ReadAt) -> Result<HashMap<String, (u64, u64)>> {
    let (mut files, mut at) = (HashMap::new(), 0);
    loop {
        let mut header = [0; 512];
        file.read_at(at, &mut header)?;
        // A header of zeros ends the archive.
        if header.iter().all(|&b| b == 0) {
            return Ok(files);
        }
        if files.len() == MAX_FILES {
            return Err(wrong("it has more files than a checkpoint"));
        }
        if !is_header(&header) {
            return Err(wrong("a header with a wrong checksum"));
        }
        let text = |range: std::ops::Range<usize>| {
            let field = &header[range];
            String::from_utf8_lossy(field.split(|&b| b == 0).next().unwrap_or_default())
                .into_owned()
        };
        let size = u64::from_str_radix(text(124..136).trim(), 8)
            .map_err(|_| wrong("a size that is no number"))?;
        let start = at + 512;
        let next = size
            .checked_next_multiple_of(512)
            .and_then(|size| start.checked_add(size));
        let Some(next) =
            next.filter(|_| start.checked_add(size).is_some_and(|end| end <= file.len()))
        else {
            return Err(wrong("it is truncated"));
        };
        // The mark of POSIX, which has the beginning of long names in a field of its own.
        let directory = match header.get(257..263) {
            Some(b"ustar\0") => text(345..500),
            _ => String::new(),
        };
        let name = match text(0..100) {
            name if directory.is_empty() => name.strip_prefix("./").unwrap_or(&name).to_owned(),
            name => format!("{directory}/{name}"),
        };
        match header[156] {
            b'0' | 0 | b'5' => {}
            b'x' | b'g' => check_extended_header(file, start, size)?,
            // Further types hold content for Python, too: contiguous and sparse files, names of the
            // next file, and unknown types.
            _ => return Err(wrong(&format!("`{name}` is no plain file"))),
        }
        if matches!(header[156], b'0' | 0) && files.insert(name.clone(), (start, size)).is_some() {
            return Err(wrong(&format!("`{name}` is there twice")));
        }
        at = next;
    }
}

/// Checks that an extended header gives the next file no other name, size or place. Python writes
/// one for times with fractions.
fn check_extended_header(file: &mut dyn ReadAt, start: u64, size: u64) -> Result<()> {
    let mut text = vec![0; size.min(64 << 10) as usize];
    file.read_at(start, &mut text)?;
    let has = |word: &&[u8]| text.windows(<[u8]>::len(word)).any(|at| at == *word);
    let words: [&[u8]; 4] = [b" path=", b" size=", b" linkpath=", b"GNU.sparse"];
    match size > text.len() as u64 || words.iter().any(has) {
        true => Err(wrong("an extended header that renames or moves a file")),
        false => Ok(()),
    }
}

/// Reads the files `storages` and `tensors`.
struct TarReader<'a> {
    /// Whether the machines go on past errors, for a list of globals.
    lenient: bool,
    /// Keys of storages and tensors, shared by the machines of all files.
    keys: StorageKeys,
    /// Every global that was named so far.
    named: &'a mut Vec<PickleGlobal>,
    budget: &'a Budget,
}

impl TarReader<'_> {
    /// Reads one file of the archive: a count, that many items with `read_item`, and what follows
    /// with `finish`. Returns the items by the number of their key.
    fn read_items<T>(
        &mut self,
        file: &mut dyn ReadAt,
        (start, len): (u64, u64),
        mut read_item: impl FnMut(&mut PickleMachine<'_>, &mut StorageKeys) -> Result<(StorageKey, T)>,
        finish: impl FnOnce(
            &mut PickleMachine<'_>,
            &mut StorageKeys,
            &mut HashMap<usize, T>,
        ) -> Result<()>,
    ) -> Result<HashMap<usize, T>> {
        let mut machine =
            PickleMachine::new(PickleInput::new(file, start, len, self.budget), self.lenient);
        let mut all = HashMap::new();
        self.keys.forget_values();
        let go = || {
            let n = machine.run()?;
            let n = machine
                .values
                .size(n)
                .ok_or_else(|| wrong("a number of things that is none"))?;
            for _ in 0..n {
                let (key, item) = read_item(&mut machine, &mut self.keys)?;
                if all.insert(key.number, item).is_some() && !machine.lenient {
                    return Err(wrong("a key is there twice"));
                }
            }
            finish(&mut machine, &mut self.keys, &mut all)
        };
        let result = go();
        record_globals(&machine, self.named);
        result.map(|()| all)
    }

    /// Reads the file `storages`: `(key, location, class)`, a length in elements and the data of
    /// each; then the views.
    fn read_storages(
        &mut self,
        file: &mut dyn ReadAt,
        part: (u64, u64),
    ) -> Result<HashMap<usize, TarStorage>> {
        let end = part.0 + part.1;
        let read = |machine: &mut PickleMachine<'_>, keys: &mut StorageKeys| {
            let id = machine.run()?;
            let &[key, _, class] = machine
                .values
                .tuple(id)
                .ok_or_else(|| wrong("a storage that is none"))?
            else {
                return Err(wrong("a storage that is none"));
            };
            let &Node::Global(Global::Storage(Some(StorageElement { dtype: Some(dtype), .. }))) =
                machine.values.node(class)
            else {
                return Err(wrong("a storage of a type that is not read"));
            };
            let key = key_of(key, machine, keys)?;
            let elements = read_u64(machine)?;
            let offset = machine.input.position();
            let len = elements.checked_mul(dtype.bits() as u64 / 8);
            let len = len.filter(|len| offset.checked_add(*len).is_some_and(|stop| stop <= end));
            let what =
                || wrong(&format!("storage `{}` of {elements} elements is truncated", key.text));
            let len = len.ok_or_else(what)?;
            machine.input.skip(len);
            Ok((
                key,
                TarStorage { dtype, place: StoragePlace { source: 0, offset, len, crc: None } },
            ))
        };
        self.read_items(file, part, read, read_views)
    }

    /// Reads the file `tensors`: `(key, storage, class)`, rank, shape, strides and offset of each.
    fn read_tensors(
        &mut self,
        file: &mut dyn ReadAt,
        part: (u64, u64),
        storages: &HashMap<usize, TarStorage>,
    ) -> Result<HashMap<usize, Option<TensorInfo>>> {
        let read = |machine: &mut PickleMachine<'_>, keys: &mut StorageKeys| {
            let id = machine.run()?;
            let &[key, storage, _] = machine
                .values
                .tuple(id)
                .ok_or_else(|| wrong("a tensor that is none"))?
            else {
                return Err(wrong("a tensor that is none"));
            };
            let (key, storage) = (key_of(key, machine, keys)?, key_of(storage, machine, keys)?);
            // The rank was written in eight bytes, of which torch reads four.
            let rank = read_u64(machine)? & 0xffff_ffff;
            if rank > 64 {
                return Err(wrong("a tensor of more than 64 dimensions"));
            }
            let mut sizes = || {
                (0..rank)
                    .map(|_| read_u64(machine).map(|n| n as usize))
                    .collect::<Result<Vec<_>>>()
            };
            let (shape, strides) = (sizes()?, sizes()?);
            let offset = read_u64(machine)? as usize;
            if machine.lenient {
                return Ok((key, None));
            }
            let stored = storages
                .get(&storage.number)
                .ok_or_else(|| wrong("a tensor whose storage is missing"))?;
            let (storage, dtype, big_endian) = (0, None, false);
            let view = TensorView { storage, dtype, offset, shape, strides, big_endian };
            let tensor = tensor_of(&key.text, stored.dtype, &view, 0, stored.place, false)?;
            Ok((key, Some(tensor)))
        };
        self.read_items(file, part, read, |_, _, _| Ok(()))
    }
}

/// Reads the views of storages, `[(key, root, offset, length)]`, and adds them to `storages`:
/// tensors refer to them as to storages. A view must lie within its root.
fn read_views(
    machine: &mut PickleMachine<'_>,
    keys: &mut StorageKeys,
    storages: &mut HashMap<usize, TarStorage>,
) -> Result<()> {
    let id = machine.run()?;
    let (Node::List(views) | Node::Tuple(views)) = machine.values.node(id) else {
        return Err(wrong("views that are no list"));
    };
    for &view in views {
        let view = machine
            .values
            .tuple(view)
            .ok_or_else(|| wrong("a view that is none"))?;
        let &[key, root, offset, len] = view else {
            return Err(wrong("a view that is none"));
        };
        let (key, root) = (key_of(key, machine, keys)?, key_of(root, machine, keys)?);
        let sizes = machine.values.size(offset).zip(machine.values.size(len));
        let (Some((offset, len)), Some(&TarStorage { dtype, place })) =
            (sizes, storages.get(&root.number))
        else {
            return Err(wrong(&format!("view `{}` of a storage that is missing", key.text)));
        };
        let size = dtype.bits() / 8;
        let bytes = offset
            .checked_mul(size)
            .zip(len.checked_mul(size))
            .map(|(o, l)| (o as u64, l as u64));
        let inside = |&(o, l): &(u64, u64)| o.checked_add(l).is_some_and(|end| end <= place.len);
        let what = || wrong(&format!("view `{}` leads out of its storage", key.text));
        let (start, len) = bytes.filter(inside).ok_or_else(what)?;
        let place = StoragePlace { offset: place.offset + start, len, ..place };
        if storages
            .insert(key.number, TarStorage { dtype, place })
            .is_some()
        {
            return Err(wrong("a key is there twice"));
        }
    }
    Ok(())
}

/// Consumes a little-endian integer of eight bytes, which lies between pickles.
fn read_u64(machine: &mut PickleMachine<'_>) -> Result<u64> {
    let range = machine.input.take(8)?;
    Ok(machine
        .input
        .bytes(&range)
        .iter()
        .rev()
        .fold(0, |n, &b| n << 8 | u64::from(b)))
}

/// Interns the key in the value `id`.
///
/// # Errors
/// `Parse` if it is neither a number nor text.
fn key_of(id: NodeId, machine: &PickleMachine<'_>, keys: &mut StorageKeys) -> Result<StorageKey> {
    keys.intern(id, machine)?
        .ok_or_else(|| wrong("a key that is none"))
}
