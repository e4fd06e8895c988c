//! Lays out PyTorch checkpoints: a ZIP archive with the pickle of a dict of tensors, and a member for the data of each, as
//! `torch.save` makes it. `torch.load(weights_only=True)` reads them, also mapped.
//!
//! Format: PyTorch `torch/serialization.py`, `torch/_tensor.py` (`_reduce_ex_internal`); CPython `Lib/pickle.py`, protocol 2.

use super::zip::{ArchiveLayout, StoredMember};
use super::{OutputEntry, OutputLayout, no_such_type};
use crate::model::strided::row_major_strides;
use crate::{AnamnesisError, Dtype, Result};

/// Folder of all members. torch calls it as the file is called; any name will do.
const ROOT: &str = "archive";

/// Alignment in bytes of each tensor's data, as torch has it.
const ALIGN: u64 = 64;

/// Most tensors that one opcode adds to the dict, as in Python's pickle.
const BATCH: usize = 1000;

/// How torch stores the elements of a dtype.
enum TorchType {
    /// Class of its storage.
    Typed(&'static str),
    /// The storage has no type; torch's name of the dtype stands beside it.
    Untyped(&'static str),
}

/// The type of torch for a dtype; `None` if it has none.
fn torch_type(dtype: Dtype) -> Option<TorchType> {
    use TorchType::{Typed, Untyped};
    Some(match dtype {
        Dtype::Bool => Typed("BoolStorage"),
        Dtype::U8 => Typed("ByteStorage"),
        Dtype::I8 => Typed("CharStorage"),
        Dtype::I16 => Typed("ShortStorage"),
        Dtype::I32 => Typed("IntStorage"),
        Dtype::I64 => Typed("LongStorage"),
        Dtype::F16 => Typed("HalfStorage"),
        Dtype::BF16 => Typed("BFloat16Storage"),
        Dtype::F32 => Typed("FloatStorage"),
        Dtype::F64 => Typed("DoubleStorage"),
        Dtype::C64 => Typed("ComplexFloatStorage"),
        Dtype::U16 => Untyped("uint16"),
        Dtype::U32 => Untyped("uint32"),
        Dtype::U64 => Untyped("uint64"),
        Dtype::F8E4M3 => Untyped("float8_e4m3fn"),
        Dtype::F8E5M2 => Untyped("float8_e5m2"),
        Dtype::F8E8M0 => Untyped("float8_e8m0fnu"),
        Dtype::F8E4M3Fnuz => Untyped("float8_e4m3fnuz"),
        Dtype::F8E5M2Fnuz => Untyped("float8_e5m2fnuz"),
        _ => return None,
    })
}

/// Whether torch has a type for the elements of `dtype`.
pub(crate) fn holds(dtype: Dtype) -> bool {
    torch_type(dtype).is_some()
}

/// Lays out `entries` in their order.
///
/// # Errors
/// `Unsupported` if torch has no such dtype, or a name is too long for a pickle; `Parse` if the size of the file overflows.
pub(crate) fn layout(entries: &[OutputEntry<'_>]) -> Result<OutputLayout> {
    let mut archive = ArchiveLayout::default();
    let member = |name: &str, head: Vec<u8>| {
        let name = format!("{ROOT}/{name}");
        StoredMember { name, head, data: None }
    };
    archive.add(member("data.pkl", pickle(entries)?), ALIGN)?;
    archive.add(member(".format_version", b"1".to_vec()), ALIGN)?;
    archive.add(member(".storage_alignment", ALIGN.to_string().into_bytes()), ALIGN)?;
    archive.add(member("byteorder", b"little".to_vec()), ALIGN)?;
    for (key, e) in entries.iter().enumerate() {
        let member = member(&format!("data/{key}"), vec![]);
        archive.add(StoredMember { data: Some(e.len), ..member }, ALIGN)?;
    }
    archive.add(member("version", b"3\n".to_vec()), ALIGN)?;
    archive.finish()
}

/// The pickle of the dict of tensors. Storages are called by their numbers.
fn pickle(entries: &[OutputEntry<'_>]) -> Result<Vec<u8>> {
    let mut pickle = Pickle { bytes: b"\x80\x02}".to_vec(), globals: vec![] };
    for (batch, entries) in entries.chunks(BATCH).enumerate() {
        pickle.bytes.push(b'(');
        for (i, e) in entries.iter().enumerate() {
            pickle.text(e.name).ok_or_else(|| too_long(e.name))?;
            pickle.tensor(e, batch * BATCH + i)?;
        }
        pickle.bytes.push(b'u');
    }
    pickle.bytes.push(b'.');
    Ok(pickle.bytes)
}

fn too_long(name: &str) -> AnamnesisError {
    super::unusable_name("PyTorch", name, "it is longer than a pickle's text can be")
}

/// A pickle that is being written.
struct Pickle {
    bytes: Vec<u8>,
    /// Globals that stand in the pickle, in the order of their numbers in its memo.
    globals: Vec<(&'static str, &'static str)>,
}

impl Pickle {
    /// A call of the function that makes a tensor of its storage, which is called `key`.
    fn tensor(&mut self, e: &OutputEntry<'_>, key: usize) -> Result<()> {
        let Some(kind) = torch_type(e.dtype) else {
            return Err(no_such_type("PyTorch", "torch", e));
        };
        let elements: usize = e.shape.iter().product();
        let (rebuild, storage, len) = match kind {
            TorchType::Typed(class) => ("_rebuild_tensor_v2", ("torch", class), elements as u64),
            TorchType::Untyped(_) => {
                ("_rebuild_tensor_v3", ("torch.storage", "UntypedStorage"), e.len)
            }
        };
        self.global("torch._utils", rebuild);
        self.bytes.extend(b"((");
        self.short_text("storage");
        self.global(storage.0, storage.1);
        self.short_text(&key.to_string());
        self.short_text("cpu");
        self.number(len);
        self.bytes.extend(b"tQ");
        self.number(0);
        self.tuple(e.shape.iter().map(|&d| d as u64));
        self.tuple(row_major_strides(e.shape).into_iter().map(|n| n as u64));
        // That it needs no gradient, and has no hooks.
        self.bytes.push(b'\x89');
        self.global("collections", "OrderedDict");
        self.bytes.extend(b")R");
        if let TorchType::Untyped(dtype) = kind {
            self.global("torch", dtype);
        }
        self.bytes.extend(b"tR");
        Ok(())
    }

    fn short_text(&mut self, text: &str) {
        let written = self.text(text);
        debug_assert!(written.is_some());
    }

    /// `None` if the text is too long.
    fn text(&mut self, text: &str) -> Option<()> {
        let len = u32::try_from(text.len()).ok()?;
        self.bytes.push(b'X');
        self.bytes.extend(len.to_le_bytes());
        self.bytes.extend(text.as_bytes());
        Some(())
    }

    /// A global: by name the first time, then by its number in the memo. There are fewer than 256.
    fn global(&mut self, module: &'static str, name: &'static str) {
        let number = self
            .globals
            .iter()
            .position(|known| *known == (module, name));
        match number {
            Some(number) => self.bytes.extend([b'h', number as u8]),
            None => {
                let number = self.globals.len() as u8;
                self.globals.push((module, name));
                for part in ["c", module, "\n", name, "\nq"] {
                    self.bytes.extend(part.as_bytes());
                }
                self.bytes.push(number);
            }
        }
    }

    fn number(&mut self, number: u64) {
        match number {
            0..=0xff => self.bytes.extend([b'K', number as u8]),
            0x100..=0x7fff_ffff => {
                self.bytes.push(b'J');
                self.bytes.extend((number as u32).to_le_bytes());
            }
            // In two's complement: the ninth byte keeps the highest bit from being a sign.
            _ => {
                self.bytes.extend([0x8a, 9]);
                self.bytes.extend(number.to_le_bytes());
                self.bytes.push(0);
            }
        }
    }

    fn tuple(&mut self, numbers: impl Iterator<Item = u64>) {
        self.bytes.push(b'(');
        numbers.for_each(|number| self.number(number));
        self.bytes.push(b't');
    }
}
