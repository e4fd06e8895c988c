//! Pickles in content of any kind, and arrays of objects.

use super::super::PickleGlobal;
use super::super::input::PickleInput;
use super::super::pickle::{NamedGlobal, PickleMachine};
use super::super::risk::PickleRisk;
use super::Scanner;
use super::content::Item;
use crate::parse::read_at::ReadAt;
use crate::{AnamnesisError, Result};

const CROSSES_FRAMES: &str = "an opcode or the pickle does not end in its frame, where Python's readers go on in different ways";

/// What became of a run.
struct Ran {
    /// Whether the bytes are pickles to the end.
    is_whole: bool,
    /// Whether objects stand for arrays, which joblib's unpickler reads from between the opcodes.
    has_arrays: bool,
}

impl Scanner<'_> {
    /// Runs the pickles from offset `start` on. With `is_claimed` the content says that it is a
    /// pickle, and one that is malformed is a remark. Returns whether all of it is pickles.
    pub(super) fn pickles(
        &mut self,
        file: &mut dyn ReadAt,
        start: u64,
        is_claimed: bool,
        item: &Item<'_>,
    ) -> Result<bool> {
        let as_python = self.run(file, start, (is_claimed, false), item)?;
        // joblib's unpickler and Python's own see other opcodes behind an array.
        let as_joblib = match as_python.has_arrays {
            true => self.run(file, start, (is_claimed, true), item)?,
            false => as_python,
        };
        Ok(as_joblib.is_whole)
    }

    fn run(
        &mut self,
        file: &mut dyn ReadAt,
        start: u64,
        (is_claimed, reads_arrays): (bool, bool),
        item: &Item<'_>,
    ) -> Result<Ran> {
        let Some(len) = file.len().checked_sub(start) else {
            let (is_whole, has_arrays) = (false, false);
            return Ok(Ran { is_whole, has_arrays });
        };
        let input = PickleInput::new(file, start, len, self.budget);
        let mut machine = PickleMachine::new(input, true);
        machine.trace.stops_at_errors = !is_claimed;
        machine.trace.reads_arrays = reads_arrays;
        let mut result = machine.run().map(drop);
        let mut is_first = true;
        // A loop of `pickle.load` reads what follows.
        let mut kept = 0;
        while result.is_ok() && !machine.input.is_at_end() {
            (is_first, kept) = (false, machine.named.len());
            machine.trace.stops_at_errors = true;
            machine.trace.calls = false;
            result = machine.run().map(drop);
        }
        let ran = Ran { is_whole: result.is_ok(), has_arrays: machine.trace.has_arrays };
        let is_cut_off = machine.input.is_truncated && item.is_cut;
        let is_told = result.is_ok()
            || is_first && is_claimed
            || machine.trace.calls
            || machine.trace.is_unclear
            || machine.trace.crosses_frames
            || is_cut_off
            || machine.named[kept..].iter().any(is_dangerous);
        let named = match is_told {
            true => machine.named.len(),
            false => kept,
        };
        let named: Vec<_> = machine.named[..named].iter().map(to_public).collect();
        let passed_over = machine.trace.error.take();
        let is_unclear = machine.trace.is_unclear;
        let crosses_frames = machine.trace.crosses_frames;
        drop(machine);
        self.add_all(named);
        if crosses_frames {
            self.remark(CROSSES_FRAMES, item);
        }
        // Opcodes among the elements of an array make no sense to Python's own unpickler.
        let is_malformed = is_claimed && is_first && (reads_arrays || !ran.has_arrays);
        match result {
            _ if is_cut_off => {
                self.remark("compressed, and too long to be looked into", item);
            }
            Err(AnamnesisError::Parse { .. } | AnamnesisError::Unsupported { .. })
                if !is_malformed && !is_unclear => {}
            Err(error) => {
                let what = "what follows in its pickle is unknown";
                self.tolerate(Err::<(), _>(error), what, item)?;
            }
            Ok(()) => {}
        }
        if let Some(error) = passed_over.filter(|_| reads_arrays || !ran.has_arrays) {
            self.remark(format!("Python ends in an error: {error}"), item);
        }
        Ok(ran)
    }

    /// Whether a pickle goes on behind `beginning`, the first bytes of content.
    pub(super) fn goes_on(&self, beginning: &[u8]) -> bool {
        let mut file = beginning;
        let len = beginning.len() as u64;
        let input = PickleInput::new(&mut file, 0, len, self.budget);
        let mut machine = PickleMachine::new(input, true);
        machine.trace.stops_at_errors = true;
        machine.run().is_ok() || machine.input.is_truncated
    }

    /// Looks into an array of NumPy: `numpy.load` with `allow_pickle` unpickles elements that are
    /// objects.
    pub(super) fn array(
        &mut self,
        file: &mut dyn ReadAt,
        head: &[u8],
        item: &Item<'_>,
    ) -> Result<()> {
        let (len, prefix) = match head {
            [_, _, _, _, _, _, 1, _, a, b, ..] => (u32::from(u16::from_le_bytes([*a, *b])), 10),
            [_, _, _, _, _, _, _, _, a, b, c, d, ..] => (u32::from_le_bytes([*a, *b, *c, *d]), 12),
            _ => return Ok(()),
        };
        let header = head.get(prefix..).unwrap_or_default();
        let header = &header[..header.len().min(len as usize)];
        let code = std::str::from_utf8(header).ok().and_then(plain_code);
        let is_number = |code: &str| {
            let digits = code.trim_start_matches(['<', '>', '|', '=']);
            let mut bytes = digits.bytes();
            let kind = bytes.next();
            matches!(
                kind,
                Some(b'?' | b'b' | b'i' | b'u' | b'f' | b'c' | b'S' | b'U' | b'M' | b'm' | b'V')
            ) && digits[1..]
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'[' | b']'))
        };
        if code.is_some_and(is_number) {
            return Ok(());
        }
        let is_object = code.is_some_and(|code| code.trim_start_matches('|').starts_with('O'));
        let start = prefix as u64 + u64::from(len);
        self.pickles(file, start, is_object, item).map(drop)
    }
}

/// The code of the element type in the header of an array, if the header is written as NumPy writes
/// it. Python reads many other ways to write the same.
fn plain_code(header: &str) -> Option<&str> {
    let rest = header.strip_prefix("{'descr': '")?;
    let (code, rest) = rest.split_once('\'')?;
    let rest = rest.strip_prefix(", 'fortran_order': ")?;
    let rest = rest
        .strip_prefix("True")
        .or_else(|| rest.strip_prefix("False"))?;
    let (shape, end) = rest.strip_prefix(", 'shape': (")?.split_once(')')?;
    let is_shape = shape
        .bytes()
        .all(|b| b.is_ascii_digit() || matches!(b, b',' | b' ' | b'L'));
    let is_end = matches!(end.trim_end(), ", }" | "}");
    (is_shape && is_end && !code.contains(['\\', ','])).then_some(code)
}

fn to_public(named: &NamedGlobal) -> PickleGlobal {
    PickleGlobal { module: named.module.clone(), name: named.name.clone(), allowed: named.allowed }
}

fn is_dangerous(named: &NamedGlobal) -> bool {
    to_public(named).risk() == PickleRisk::Dangerous
}
