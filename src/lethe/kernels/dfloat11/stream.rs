//! A run of a stream's codes: their bits, and where the first codes of each run of 8 bytes and of
//! each chunk begin.

use super::HuffmanCode;

/// Bits whose first code's place is stored.
pub(crate) const RUN_BITS: u64 = 64;

/// Such runs in a chunk, of whose first code the number of its value is stored.
pub(crate) const CHUNK_RUNS: u64 = 512;

/// Where codes begin in a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StreamPlace {
    /// Number of the first value.
    pub value: u64,
    /// Bit at which its code begins.
    pub bit: u64,
    /// Number of the first run of 8 bytes in which no code before it begins.
    pub run: u64,
}

impl StreamPlace {
    /// The place of value `value`, whose code begins at `bit`, behind a code of `before` bits; 0 at
    /// the beginning.
    pub(crate) fn new(value: u64, bit: u64, before: u32) -> Self {
        let run = match before {
            0 => 0,
            before => (bit - u64::from(before)) / RUN_BITS + 1,
        };
        Self { value, bit, run }
    }

    /// Notes a code that begins here, if it is the first of its run.
    #[inline(always)]
    fn note(&mut self, out: &mut EncodedRun) {
        if self.bit / RUN_BITS < self.run {
            return;
        }
        out.gaps.push((self.bit % RUN_BITS) as u8);
        if self.run.is_multiple_of(CHUNK_RUNS) {
            out.positions.push(self.value as u32);
        }
        self.run += 1;
    }
}

/// The bytes of consecutive codes.
#[derive(Debug, Default)]
pub(crate) struct EncodedRun {
    /// The codes. In the first byte and the last one the bits of other codes are 0.
    pub bytes: Vec<u8>,
    /// Bit of the stream behind the last of them.
    pub end: u64,
    /// Of each run of 8 bytes whose first code is among them, the bit at which that begins.
    pub gaps: Vec<u8>,
    /// Of each chunk whose first code is among them, the number of its value.
    pub positions: Vec<u32>,
}

/// Encodes the exponents of `values`, the first of which is at `place`, and moves that behind them.
/// `false` if one has no code.
pub(crate) fn encode_exponents(
    code: &HuffmanCode,
    values: &[f32],
    place: &mut StreamPlace,
    out: &mut EncodedRun,
) -> bool {
    out.bytes.clear();
    out.gaps.clear();
    out.positions.clear();
    // `used` bits of `word`, the lowest, are not in `bytes` yet.
    let (mut word, mut used) = (0u64, (place.bit % 8) as u32);
    for x in values {
        let found = code.codes[(x.to_bits() >> 23 & 255) as usize];
        if found.len == 0 {
            return false;
        }
        place.note(out);
        word = word << found.len | u64::from(found.bits);
        used += found.len;
        place.bit += u64::from(found.len);
        place.value += 1;
        if used >= 32 {
            used -= 32;
            let whole = (word >> used) as u32;
            out.bytes.extend_from_slice(&whole.to_be_bytes());
        }
    }
    // Fewer than 32 bits are left.
    let last = (word << (32 - used)) as u32;
    let rest = used.div_ceil(8) as usize;
    out.bytes.extend_from_slice(&last.to_be_bytes()[..rest]);
    out.end = place.bit;
    true
}

/// Ends the stream at `place`, behind the last codes, which are in `out`: fills the last byte with
/// the first bits of the code of the end, and enters the gaps of all runs up to the last chunk's
/// end and the positions of chunks without values.
pub(crate) fn end_stream(code: &HuffmanCode, mut place: StreamPlace, out: &mut EncodedRun) {
    let free = (8 - place.bit % 8) as u32 % 8;
    if free > 0 {
        place.note(out);
        // 32 bits of the code and zeros.
        let end = u64::from(code.end.bits) << (32 - code.end.len);
        if let Some(last) = out.bytes.last_mut() {
            *last |= (end >> (32 - free)) as u8;
        }
        out.end = place.bit.next_multiple_of(8);
    }
    let chunks = chunks(place.bit.div_ceil(8));
    while place.run < chunks * CHUNK_RUNS {
        out.gaps.push(0);
        if place.run.is_multiple_of(CHUNK_RUNS) {
            out.positions.push(place.value as u32);
        }
        place.run += 1;
    }
    out.positions.push(place.value as u32);
}

/// Chunks of a stream of `bytes`.
pub(crate) fn chunks(bytes: u64) -> u64 {
    bytes.div_ceil(CHUNK_RUNS * RUN_BITS / 8)
}

/// `gaps`, five bits each, the highest first, behind `before` bits.
pub(crate) fn pack_gaps(gaps: &[u8], before: u32) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(gaps.len() * 5 / 8 + 2);
    let (mut word, mut used) = (0u32, before);
    for gap in gaps {
        word = word << 5 | u32::from(*gap);
        used += 5;
        if used >= 8 {
            used -= 8;
            bytes.push((word >> used) as u8);
        }
    }
    if used > 0 {
        bytes.push((word << (8 - used)) as u8);
    }
    bytes
}
