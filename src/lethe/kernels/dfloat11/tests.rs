//! Codes against dahuffman's and dfloat11's, and against the decoder.

use super::*;
use crate::remember::kernels::dfloat11::ExponentCode;
use crate::test_utils::test_data;

/// The codes and tables of the library, byte for byte: ties, counts that ask for more than 32 bits,
/// all tables that there are.
#[test]
fn codes_of_the_library() {
    let Some(data) = test_data() else {
        return;
    };
    let bytes = std::fs::read(data.join("dfloat11_encode/codes.safetensors")).unwrap();
    let all = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let mut seen = 0;
    while let Ok(counts) = all.tensor(&format!("{seen}.counts")) {
        let tensor = |name: &str| all.tensor(&format!("{seen}.{name}")).unwrap();
        let numbers = |bytes: &[u8]| -> Vec<u64> {
            bytes
                .as_chunks()
                .0
                .iter()
                .map(|&b| u64::from_le_bytes(b))
                .collect()
        };
        let counts: ExponentCounts = numbers(counts.data()).try_into().unwrap();
        let code = HuffmanCode::new(&counts).unwrap();
        assert!(code.tables == tensor("luts").data(), "{seen}");
        let end = [u64::from(code.end.len), u64::from(code.end.bits)];
        assert_eq!(numbers(tensor("eof").data()), end, "{seen}");
        seen += 1;
    }
    assert_eq!(seen, 17);
}

#[test]
fn refused_exponents() {
    let refusal = |exponent: usize| {
        let mut counts = [0; TABLE];
        (counts[3], counts[exponent]) = (9, 1);
        HuffmanCode::new(&counts).err()
    };
    assert_eq!(refusal(239), None);
    assert!(refusal(240).unwrap().contains("2^113"));
    assert!(refusal(255).unwrap().contains("not finite"));
    // Codes of nine bits and more for each of 240: more tables than links have numbers for.
    let mut counts = [0; TABLE];
    for (i, count) in counts[..240].iter_mut().enumerate() {
        *count = if i % 2 == 0 { 1 << 20 } else { 1 + i as u64 };
    }
    let wrong = HuffmanCode::new(&counts).err();
    assert!(wrong.is_none_or(|e| e.contains("tables")));
}

/// Behind the end of a stream each entry is an exponent that has a code, also where a link comes
/// before it in the tables.
#[test]
fn places_of_the_end() {
    for n in 1..40 {
        let (mut counts, mut pair) = ([0; TABLE], (1, 2));
        for count in &mut counts[60..60 + n] {
            *count = pair.0;
            pair = (pair.1, pair.0 + pair.1);
        }
        let code = HuffmanCode::new(&counts).unwrap();
        let (end, tables) = (code.end, &code.tables);
        let byte = |level: u32| (u64::from(end.bits) << 32 >> end.len << (8 * level) >> 24) as u8;
        let (mut table, level) = (0, (end.len - 1) / 8);
        for level in 0..level {
            let link = tables[table * TABLE + usize::from(byte(level))];
            table = TABLE - usize::from(link);
        }
        let first = table * TABLE + usize::from(byte(level));
        let places = 1 << (8 * (level + 1) - end.len);
        for &entry in &tables[first..first + places] {
            assert!(code.codes[usize::from(entry)].len > 0, "{n} {entry}");
        }
    }
}

/// A single exponent, for which the library has no tables, and others: what is encoded is decoded,
/// in pieces of any size.
#[test]
fn round_trip() {
    let exponent = |i: u32, kinds: u32| 120 + (i * 37 % (i % kinds + 1)) as u8;
    for (n, kinds) in [(1, 1), (77, 1), (1000, 3), (50_000, 40), (40_000, 2)] {
        let exponents: Vec<u8> = (0..n).map(|i| exponent(i, kinds)).collect();
        let values: Vec<f32> = exponents
            .iter()
            .map(|&e| f32::from_bits(u32::from(e) << 23))
            .collect();
        let mut counts = [0; TABLE];
        exponents.iter().for_each(|&e| counts[usize::from(e)] += 1);
        let code = HuffmanCode::new(&counts).unwrap();
        let (mut place, mut out) = (StreamPlace::new(0, 0, 0), EncodedRun::default());
        assert!(encode_exponents(&code, &values, &mut place, &mut out));
        end_stream(&code, place, &mut out);
        let decoder = ExponentCode::new(code.tables.clone());
        let (mut at, mut back) = (0, vec![0; exponents.len()]);
        assert_eq!(decoder.decode(&out.bytes, &mut at, &mut back), back.len());
        assert!(back == exponents && at as u64 == place.bit, "{n} {kinds}");
        // Places: from each gap on, the codes of the run are the values that follow.
        let mut value = 0;
        for (run, &gap) in out.gaps.iter().enumerate() {
            let start = run * 64 + usize::from(gap);
            if run % 512 == 0 && start < place.bit as usize {
                assert_eq!(out.positions[run / 512], value as u32);
            }
            let mut at = start;
            while at < ((run + 1) * 64).min(place.bit as usize) {
                let mut one = [0];
                assert_eq!(decoder.decode(&out.bytes, &mut at, &mut one), 1);
                assert_eq!(one[0], exponents[value]);
                value += 1;
            }
        }
        assert_eq!(value, exponents.len());
        assert_eq!(out.positions.last(), Some(&n));
        let chunks = chunks(out.bytes.len() as u64) as usize;
        assert_eq!((out.positions.len(), out.gaps.len()), (chunks + 1, chunks * 512));
        assert!(!encode_exponents(&code, &[f32::MAX], &mut place, &mut out));
    }
}
