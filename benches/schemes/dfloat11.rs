//! A model of DFloat11: the codes of its exponents have as many bits as those of models, two and a
//! half for a value.

use super::{Part, PartsOf, codes, cols, rows};

/// The length of a code and its bits. Three codes have two bits, and one each three to eight.
fn code(symbol: u32) -> (u32, u64) {
    match symbol {
        0..3 => (2, symbol.into()),
        _ => (symbol, (1 << symbol) - 2),
    }
}

/// The exponent of a symbol.
fn exponent(symbol: u32) -> u8 {
    121 - symbol as u8
}

/// The table of the codes, and that of their lengths.
fn tables() -> Vec<u8> {
    let (mut table, mut lengths) = ([exponent(8); 256], [0; 256]);
    for symbol in 0..=8 {
        let (len, bits) = code(symbol);
        let first = (bits << (8 - len)) as usize;
        table[first..first + (1 << (8 - len))].fill(exponent(symbol));
        lengths[usize::from(exponent(symbol))] = len as u8;
    }
    [table, lengths].concat()
}

fn dfloat11() -> Vec<Part> {
    const CHUNK: usize = 4096;
    let n = rows() * cols();
    let (mut stream, mut gaps, mut positions) = (vec![], vec![], vec![]);
    // The lowest `used` bits of `word` are not in the stream yet.
    let (mut word, mut used, mut state) = (0u64, 0, 1u64);
    for value in 0..n {
        let at = stream.len() * 8 + used as usize;
        if gaps.len() * 64 <= at {
            if gaps.len() * 8 % CHUNK == 0 {
                positions.extend((value as u32).to_le_bytes());
            }
            gaps.push(at as u8 % 64);
        }
        state = state
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e_f767_814f);
        let random = (state >> 40) as u32;
        let symbol = match random & 3 {
            3 => 3 + (random >> 2).trailing_ones().min(5),
            short => short,
        };
        let (len, bits) = code(symbol);
        (word, used) = (word << len | bits, used + len);
        while used >= 8 {
            used -= 8;
            stream.push((word >> used) as u8);
        }
    }
    if used > 0 {
        stream.push((word << (8 - used)) as u8);
    }
    positions.extend((n as u32).to_le_bytes());
    // Five bits for each 8 bytes of whole chunks.
    gaps.resize(stream.len().div_ceil(CHUNK) * CHUNK / 8, 0);
    let packed = gaps.chunks_exact(8).flat_map(|gaps| {
        let word = gaps.iter().fold(0, |word, &gap| word << 5 | u64::from(gap));
        word.to_be_bytes().into_iter().skip(3)
    });
    let packed: Vec<u8> = packed.collect();
    let bytes = |name, bytes: Vec<u8>| Part(name, "U8", vec![bytes.len()], bytes);
    vec![
        bytes("w.encoded_exponent", stream),
        Part("w.sign_mantissa", "U8", vec![rows(), cols()], codes(n)),
        Part("w.luts", "U8", vec![2, 256], tables()),
        bytes("w.output_positions", positions),
        bytes("w.gaps", packed),
    ]
}

pub const SCHEMES: &[PartsOf] = &[("dfloat11", dfloat11)];

pub fn config() -> String {
    let config = serde_json::json!({
        "version": "0.5.0", "threads_per_block": [512], "bytes_per_thread": 8, "pattern_dict": {"w": []},
    });
    serde_json::json!({"dfloat11_config": config}).to_string()
}
