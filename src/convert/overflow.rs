//! Decoded values that F16 cannot hold. Libraries make infinities of them without a word; here the
//! report says so.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

use half::f16;

use super::options::FloatCast;
use super::output::{BoxedOutput, Worker};
use crate::TargetDtype;
use crate::element::{Element, Out};
use crate::error::InTensor;
use crate::remember::kernels::overflow::{has_infinite, limit_overflow};
use crate::remember::{Decode, Tile};
use crate::simd::Level;

/// Tensors that the report names.
const NAMED: usize = 5;

/// What was found in a tensor that is decoded to F16.
#[derive(Default)]
pub(super) struct Overflow {
    /// Whether values beyond the range become the largest finite one.
    saturates: bool,
    /// Bits of the largest magnitude that F16 cannot hold, an F32; 0 if there is none. Magnitudes
    /// have the order of their bits.
    largest: AtomicU32,
}

impl Overflow {
    pub(super) fn new(cast: FloatCast) -> Self {
        Self { saturates: cast == FloatCast::Saturating, largest: AtomicU32::new(0) }
    }

    /// Checks rows `rows` of `tile`, which `decoder` has decoded to F16 into `worker`. A slab with
    /// an infinity is decoded once more to F32, because the infinity may be stored as one.
    pub(super) fn check(
        &self,
        decoder: &dyn Decode,
        tile: &Tile,
        rows: Range<usize>,
        worker: &mut Worker,
        level: Level,
    ) {
        let count = rows.len() * tile.cols.len();
        let Out::F16(halves) = Out::new(TargetDtype::F16, &mut worker.output).first(count) else {
            return;
        };
        if !has_infinite(halves, level) {
            return;
        }
        worker.values.resize(count, 0.0);
        let out = Out::F32(&mut worker.values);
        decoder.decode(tile, rows, &worker.input, level, out);
        let largest = limit_overflow(&worker.values, halves, self.saturates);
        self.largest.fetch_max(largest.to_bits(), Ordering::Relaxed);
    }

    /// The note on the tensor called `name`; `None` if F16 holds its values.
    pub(super) fn note(&self, name: &str) -> Option<String> {
        let largest = f32::from_bits(self.largest.load(Ordering::Relaxed));
        let end = f16::LARGEST;
        let became = match self.saturates {
            true => format!("became {end}"),
            false => format!("became infinite; saturating would make them {end}"),
        };
        (largest > 0.0).then(|| {
            format!(
                "{}: values up to {largest:?} are beyond the range of F16 and {became}. BF16 and F32 hold them", InTensor(&name)
            )
        })
    }
}

/// Notes on the tensors of `outputs` whose values F16 does not hold, once they are made.
pub(super) fn notes(outputs: &[BoxedOutput<'_>]) -> Vec<String> {
    let note = |output: &BoxedOutput<'_>| output.body.overflow_note(&output.name);
    let mut notes: Vec<String> = outputs.iter().filter_map(note).collect();
    let more = notes.len().saturating_sub(NAMED);
    if more > 0 {
        notes.truncate(NAMED);
        notes.push(format!("{more} more tensors have values beyond the range of F16"));
    }
    notes
}
