//! SDNQ's packed codes of nine to fifteen bits: sixteen of them in as many words of sixteen bits as
//! a code has bits. The low bits of words are whole codes, and the bits above them make up the
//! others.

use super::WIDE_UNIT;
use crate::simd::{copy, from_fn, zip};

type Codes = [u16; WIDE_UNIT];

/// Unpacks codes of `bits` bits, nine to sixteen, from whole units into two bytes each.
pub(super) fn unpack_units(bits: usize, bytes: &[u8], out: &mut [u8]) {
    match bits {
        9 => units(bytes, out, nine),
        10 => units(bytes, out, |words: [u16; 10]| halves(words, ten)),
        11 => units(bytes, out, eleven),
        12 => units(bytes, out, twelve),
        13 => units(bytes, out, thirteen),
        14 => units(bytes, out, |words: [u16; 14]| halves(words, fourteen)),
        15 => units(bytes, out, fifteen),
        _ => copy(&bytes[..out.len()], out),
    }
}

fn units<const BITS: usize>(bytes: &[u8], out: &mut [u8], unit: impl Fn([u16; BITS]) -> Codes) {
    let stored = bytes.as_chunks::<2>().0.as_chunks::<BITS>().0;
    let unpacked = out.as_chunks_mut::<2>().0.as_chunks_mut::<WIDE_UNIT>().0;
    for (out, words) in zip(&mut unpacked[..], stored) {
        let codes = unit(from_fn(|i| u16::from_le_bytes(words[i])));
        *out = from_fn(|i| codes[i].to_le_bytes());
    }
}

/// Two times eight codes, which are packed alike.
fn halves<const WORDS: usize, const HALF: usize>(
    words: [u16; WORDS],
    half: impl Fn([u16; HALF]) -> [u16; 8],
) -> Codes {
    let mut codes = [0; WIDE_UNIT];
    for (codes, &words) in zip(codes.as_chunks_mut().0, words.as_chunks().0) {
        *codes = half(words);
    }
    codes
}

/// Codes 0 to 7 are bits 0 to 8 of words 0 to 7. Codes 8 to 15 have bits 9 to 15 of these words,
/// and above them two bits each of word 8, from its lowest on.
fn nine(words: [u16; 9]) -> Codes {
    let mut codes = [0; WIDE_UNIT];
    for i in 0..8 {
        codes[i] = words[i] & 0x1ff;
        codes[8 + i] = words[i] >> 9 | (words[8] >> (2 * i) & 3) << 7;
    }
    codes
}

/// Codes 0 to 4 are bits 0 to 9 of each word. Codes 5 to 7 have bits 10 to 15 of words 0 to 2;
/// above them bits 10 to 13 of words 3 and 4, and bits 14 and 15 of word 4 and of word 3.
fn ten(words: [u16; 5]) -> [u16; 8] {
    let [a, b, c, d, e] = words;
    let low: [u16; 5] = from_fn(|i| words[i] & 0x3ff);
    let last = c >> 10 | e >> 14 << 6 | d >> 14 << 8;
    let [fifth, sixth] = [a >> 10 | d >> 4 & 0x3c0, b >> 10 | e >> 4 & 0x3c0];
    [low[0], low[1], low[2], low[3], low[4], fifth, sixth, last]
}

/// Codes 0 to 7 are bits 0 to 10 of words 0 to 7. Codes 8 to 15 have bits 11 to 15 of these words.
/// Above them are bits 0 to 5 of words 8 to 10, bits 6 to 11 of these, and bits 12 to 15 of words 8
/// and 9 with two of word 10 each.
fn eleven(words: [u16; 11]) -> Codes {
    let [.., a, b, c] = words;
    let above = [
        a << 5,
        b << 5,
        c << 5,
        a >> 1,
        b >> 1,
        c >> 1,
        a >> 7 & 0x1e0 | c >> 3 & 0x600,
        b >> 7 & 0x1e0 | c >> 5 & 0x600,
    ];
    let mut codes = [0; WIDE_UNIT];
    for i in 0..8 {
        codes[i] = words[i] & 0x7ff;
        codes[8 + i] = words[i] >> 11 | above[i] & 0x7e0;
    }
    codes
}

/// Four times three words with four codes: three are bits 0 to 11 of each word. The fourth has bits
/// 12 to 15 of the third word, of the second and of the first, the lowest first.
fn twelve(words: [u16; 12]) -> Codes {
    from_fn(|i| {
        let first = i / 4 * 3;
        match i % 4 {
            3 => words[first + 2] >> 12 | words[first + 1] >> 8 & 0xf0 | words[first] >> 4 & 0xf00,
            at => words[first + at] & 0xfff,
        }
    })
}

/// Codes 0 to 12 are bits 0 to 12 of each word. Code 13 + i has bits 13 to 15 of words i, 3 + i,
/// 6 + i and 9 + i, the lowest first, and bit 13 + i of word 12.
fn thirteen(words: [u16; 13]) -> Codes {
    from_fn(|at| match at {
        0..13 => words[at] & 0x1fff,
        _ => {
            let i = at - 13;
            let threes = (0..4).map(|n| words[3 * n + i] >> 13 << (3 * n));
            threes.sum::<u16>() | (words[12] >> at & 1) << 12
        }
    })
}

/// Codes 0 to 6 are bits 0 to 13 of each word. Code 7 has bits 14 and 15 of all, those of the last
/// word lowest.
fn fourteen(words: [u16; 7]) -> [u16; 8] {
    from_fn(|i| match i {
        0..7 => words[i] & 0x3fff,
        _ => words.iter().fold(0, |code, word| code << 2 | word >> 14),
    })
}

/// Codes 0 to 14 are bits 0 to 14 of each word. Code 15 has bits 15 of all, that of the last word
/// lowest.
fn fifteen(words: [u16; 15]) -> Codes {
    from_fn(|i| match i {
        0..15 => words[i] & 0x7fff,
        _ => words.iter().fold(0, |code, word| code << 1 | word >> 15),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_utils::miri_or;

    /// For each width, how many codes are packed together, and the bits that make up those that are
    /// not the low bits of a word: `word.bit` or `word.first-last`, from the lowest. As sdnq itself
    /// unpacks words that have a single bit.
    const PLACES: [(usize, usize, &[&str]); 7] = [
        (
            9,
            16,
            &[
                "0.9-15 8.0-1",
                "1.9-15 8.2-3",
                "2.9-15 8.4-5",
                "3.9-15 8.6-7",
                "4.9-15 8.8-9",
                "5.9-15 8.10-11",
                "6.9-15 8.12-13",
                "7.9-15 8.14-15",
            ],
        ),
        (10, 8, &["0.10-15 3.10-13", "1.10-15 4.10-13", "2.10-15 4.14-15 3.14-15"]),
        (
            11,
            16,
            &[
                "0.11-15 8.0-5",
                "1.11-15 9.0-5",
                "2.11-15 10.0-5",
                "3.11-15 8.6-11",
                "4.11-15 9.6-11",
                "5.11-15 10.6-11",
                "6.11-15 8.12-15 10.12-13",
                "7.11-15 9.12-15 10.14-15",
            ],
        ),
        (12, 4, &["2.12-15 1.12-15 0.12-15"]),
        (
            13,
            16,
            &[
                "0.13-15 3.13-15 6.13-15 9.13-15 12.13",
                "1.13-15 4.13-15 7.13-15 10.13-15 12.14",
                "2.13-15 5.13-15 8.13-15 11.13-15 12.15",
            ],
        ),
        (14, 8, &["6.14-15 5.14-15 4.14-15 3.14-15 2.14-15 1.14-15 0.14-15"]),
        (
            15,
            16,
            &["14.15 13.15 12.15 11.15 10.15 9.15 8.15 7.15 6.15 5.15 4.15 3.15 2.15 1.15 0.15"],
        ),
    ];

    /// The value of the bits `places` of `words`, from the lowest.
    fn gathered(words: &[u16], places: &str) -> u16 {
        let mut code = 0;
        let mut at = 0;
        for run in places.split(' ') {
            let (word, bits) = run.split_once('.').unwrap();
            let (first, last) = bits.split_once('-').unwrap_or((bits, bits));
            let first: u32 = first.parse().unwrap();
            for bit in first..=last.parse().unwrap() {
                code |= (words[word.parse::<usize>().unwrap()] >> bit & 1) << at;
                at += 1;
            }
        }
        code
    }

    #[test]
    fn units_equal_reading_bit_by_bit() {
        let mut state = 1u32;
        for (bits, together, places) in PLACES {
            let words = together * bits / 16;
            for _ in 0..miri_or(3, 300) {
                let stored: Vec<u16> = (0..bits)
                    .map(|_| {
                        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                        (state >> 16) as u16
                    })
                    .collect();
                let bytes: Vec<u8> = stored.iter().flat_map(|w| w.to_le_bytes()).collect();
                let mut codes = [0; 2 * WIDE_UNIT];
                unpack_units(bits, &bytes, &mut codes);
                let codes = codes.as_chunks().0.iter();
                let codes: Vec<u16> = codes.map(|&code| u16::from_le_bytes(code)).collect();
                let whole = (1 << bits) - 1;
                let want: Vec<u16> = stored
                    .chunks_exact(words)
                    .flat_map(|words| {
                        let low = words[..together - places.len()].iter();
                        let high = places.iter().map(|places| gathered(words, places));
                        low.map(|word| word & whole).chain(high).collect::<Vec<_>>()
                    })
                    .collect();
                assert_eq!(codes, want, "{bits} bits");
            }
        }
    }
}
