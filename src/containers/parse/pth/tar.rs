//! The oldest checkpoints: a tar file with `storages`, `tensors` and `pickle`, each a stream of pickles and numbers.
//!
//! Format: torch `torch/serialization.py`, `legacy_load`.

use std::collections::HashMap;

use super::globals::{Element, Global};
use super::input::Input;
use super::pickle::Machine;
use super::storage::{Key, Keys, Place};
use super::tensors::{self, Found};
use super::value::{Id, Node, View};
use super::{PickleGlobal, not_empty, record};
use crate::ParsedModel;
use crate::containers::model::TensorInfo;
use crate::containers::parse::read_at::ReadAt;
use crate::limits::Budget;
use crate::source::Source;
use crate::{AnamnesisError, Dtype, Result};

/// Files that are looked at.
const MAX_FILES: usize = 64;

fn wrong(what: &str) -> AnamnesisError {
    AnamnesisError::parse(format!("PyTorch checkpoint (tar): {what}"))
}

/// Whether a file begins like a tar file.
pub(crate) fn is_tar(head: &[u8]) -> bool {
    head.get(257..262) == Some(b"ustar")
}

/// A storage: its element type and place.
struct Stored {
    dtype: Dtype,
    place: Place,
}

pub(super) fn read(source: Source, budget: &Budget) -> Result<ParsedModel> {
    let mut file = &source;
    let files = list(&mut file)?;
    let mut run = Run {
        lenient: false,
        keys: Keys::default(),
        named: &mut Vec::new(),
        budget,
    };
    let storages = run.storages(&mut file, part(&files, "storages")?)?;
    let tensors = run.tensors(&mut file, part(&files, "tensors")?, &storages)?;
    let (start, len) = part(&files, "pickle")?;
    let mut machine = Machine::new(Input::new(&mut file, start, len, budget), false);
    let root = machine.run()?;
    run.keys.forget_values();
    let mut contents = ParsedModel::new(machine.input.at);
    let found = tensors::walk_persistent(root, &machine)?;
    budget.items(found.len() as u64, "tensors")?;
    for Found { name, tensor } in found {
        let Ok(View { storage, .. }) = tensor else {
            continue;
        };
        let key = key_of(storage, &machine, &mut run.keys)?;
        let info = tensors.get(&key.number).and_then(Option::as_ref);
        let info =
            info.ok_or_else(|| wrong(&format!("tensor `{name}` is not among its tensors")))?;
        contents.tensors.push(TensorInfo {
            name,
            ..info.clone()
        });
    }
    drop(machine);
    tensors::check_ratio(&contents, storages.values().map(|stored| &stored.place))?;
    contents.sources.push(source);
    not_empty(contents)
}

/// Runs all pickles for the globals that they name. What is wrong with one file does not keep the others from it.
pub(super) fn name_all(
    source: &Source,
    named: &mut Vec<PickleGlobal>,
    budget: &Budget,
) -> Result<()> {
    let mut file = source;
    let files = list(&mut file)?;
    let mut run = Run {
        lenient: true,
        keys: Keys::default(),
        named,
        budget,
    };
    let storages = part(&files, "storages").and_then(|part| run.storages(&mut file, part));
    let none = HashMap::new();
    let tensors = part(&files, "tensors").and_then(|part| {
        run.tensors(&mut file, part, storages.as_ref().unwrap_or(&none))
            .map(drop)
    });
    let pickle = part(&files, "pickle").and_then(|(start, len)| {
        let mut machine = Machine::new(Input::new(&mut file, start, len, budget), true);
        let result = machine.run().map(drop);
        record(&machine, run.named);
        result
    });
    storages.map(drop).and(tensors).and(pickle)
}

fn part(files: &HashMap<String, (u64, u64)>, name: &str) -> Result<(u64, u64)> {
    files
        .get(name)
        .copied()
        .ok_or_else(|| wrong(&format!("`{name}` is missing")))
}

/// The files of the archive, with their places.
fn list(file: &mut impl ReadAt) -> Result<HashMap<String, (u64, u64)>> {
    let (mut files, mut at) = (HashMap::new(), 0);
    loop {
        let mut header = [0; 512];
        file.read_at(at, &mut header)?;
        // An empty header ends the archive.
        if header.iter().all(|&b| b == 0) {
            return Ok(files);
        }
        if files.len() == MAX_FILES {
            return Err(wrong("it has more files than a checkpoint"));
        }
        if !is_tar(&header) {
            return Err(wrong("a header without its mark"));
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
        let name = text(0..100);
        let name = name.strip_prefix("./").unwrap_or(&name).to_owned();
        if matches!(header[156], b'0' | 0) && files.insert(name.clone(), (start, size)).is_some() {
            return Err(wrong(&format!("`{name}` is there twice")));
        }
        at = next;
    }
}

/// What running the pickles of a file takes.
struct Run<'a> {
    lenient: bool,
    keys: Keys,
    named: &'a mut Vec<PickleGlobal>,
    budget: &'a Budget,
}

impl Run<'_> {
    /// Runs the pickles of one file, with `read` for each of the declared number of things.
    fn all<T>(
        &mut self,
        file: &mut dyn ReadAt,
        (start, len): (u64, u64),
        mut read: impl FnMut(&mut Machine<'_>, &mut Keys) -> Result<(Key, T)>,
        finish: impl FnOnce(&mut Machine<'_>, &mut Keys, &mut HashMap<usize, T>) -> Result<()>,
    ) -> Result<HashMap<usize, T>> {
        let mut machine = Machine::new(Input::new(file, start, len, self.budget), self.lenient);
        let mut all = HashMap::new();
        self.keys.forget_values();
        let go = || {
            let n = machine.run()?;
            let n = machine
                .values
                .size(n)
                .ok_or_else(|| wrong("a number of things that is none"))?;
            for _ in 0..n {
                let (key, thing) = read(&mut machine, &mut self.keys)?;
                if all.insert(key.number, thing).is_some() && !machine.lenient {
                    return Err(wrong("a key is there twice"));
                }
            }
            finish(&mut machine, &mut self.keys, &mut all)
        };
        let result = go();
        record(&machine, self.named);
        result.map(|()| all)
    }

    fn storages(
        &mut self,
        file: &mut dyn ReadAt,
        part: (u64, u64),
    ) -> Result<HashMap<usize, Stored>> {
        let end = part.0 + part.1;
        let read = |machine: &mut Machine<'_>, keys: &mut Keys| {
            let id = machine.run()?;
            let &[key, _, class] = machine
                .values
                .tuple(id)
                .ok_or_else(|| wrong("a storage that is none"))?
            else {
                return Err(wrong("a storage that is none"));
            };
            let &Node::Global(Global::Storage(Some(Element {
                dtype: Some(dtype), ..
            }))) = machine.values.node(class)
            else {
                return Err(wrong("a storage of a type that is not read"));
            };
            let key = key_of(key, machine, keys)?;
            let elements = number(machine)?;
            let offset = machine.input.position();
            let len = elements.checked_mul(dtype.bits() as u64 / 8);
            let len = len.filter(|len| offset.checked_add(*len).is_some_and(|stop| stop <= end));
            let what = || {
                wrong(&format!(
                    "storage `{}` of {elements} elements is truncated",
                    key.text
                ))
            };
            let len = len.ok_or_else(what)?;
            machine.input.skip(len);
            Ok((
                key,
                Stored {
                    dtype,
                    place: Place {
                        source: 0,
                        offset,
                        len,
                        crc: None,
                    },
                },
            ))
        };
        self.all(file, part, read, read_views)
    }

    fn tensors(
        &mut self,
        file: &mut dyn ReadAt,
        part: (u64, u64),
        storages: &HashMap<usize, Stored>,
    ) -> Result<HashMap<usize, Option<TensorInfo>>> {
        let read = |machine: &mut Machine<'_>, keys: &mut Keys| {
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
            let rank = number(machine)? & 0xffff_ffff;
            if rank > 64 {
                return Err(wrong("a tensor of more than 64 dimensions"));
            }
            let mut sizes = || {
                (0..rank)
                    .map(|_| number(machine).map(|n| n as usize))
                    .collect::<Result<Vec<_>>>()
            };
            let (shape, strides) = (sizes()?, sizes()?);
            let offset = number(machine)? as usize;
            if machine.lenient {
                return Ok((key, None));
            }
            let stored = storages
                .get(&storage.number)
                .ok_or_else(|| wrong("a tensor whose storage is missing"))?;
            let view = View {
                storage: 0,
                dtype: None,
                offset,
                shape,
                strides,
            };
            let tensor =
                tensors::tensor_of(&key.text, stored.dtype, &view, 0, stored.place, false)?;
            Ok((key, Some(tensor)))
        };
        self.all(file, part, read, |_, _, _| Ok(()))
    }
}

/// Views of storages, which tensors refer to as if they were storages: `[(key, root, offset, length)]`.
fn read_views(
    machine: &mut Machine<'_>,
    keys: &mut Keys,
    storages: &mut HashMap<usize, Stored>,
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
        let (Some((offset, len)), Some(&Stored { dtype, place })) =
            (sizes, storages.get(&root.number))
        else {
            return Err(wrong(&format!(
                "view `{}` of a storage that is missing",
                key.text
            )));
        };
        let size = dtype.bits() / 8;
        let bytes = offset
            .checked_mul(size)
            .zip(len.checked_mul(size))
            .map(|(o, l)| (o as u64, l as u64));
        let inside = |&(o, l): &(u64, u64)| o.checked_add(l).is_some_and(|end| end <= place.len);
        let what = || wrong(&format!("view `{}` leads out of its storage", key.text));
        let (o, l) = bytes.filter(inside).ok_or_else(what)?;
        let place = Place {
            offset: place.offset + o,
            len: l,
            ..place
        };
        if storages
            .insert(key.number, Stored { dtype, place })
            .is_some()
        {
            return Err(wrong("a key is there twice"));
        }
    }
    Ok(())
}

fn number(machine: &mut Machine<'_>) -> Result<u64> {
    let range = machine.input.take(8)?;
    Ok(machine
        .input
        .bytes(&range)
        .iter()
        .rev()
        .fold(0, |n, &b| n << 8 | u64::from(b)))
}

/// A key, which is a number or text.
fn key_of(id: Id, machine: &Machine<'_>, keys: &mut Keys) -> Result<Key> {
    keys.read(id, machine)?
        .ok_or_else(|| wrong("a key that is none"))
}
