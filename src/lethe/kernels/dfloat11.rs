//! DFloat11: Huffman codes of the exponents of BF16, and their tables.
//!
//! Algorithm: dahuffman 0.4.2 `HuffmanCodec.from_frequencies`, which merges the two lightest nodes;
//! of equal ones that whose first symbol is lower comes first, and the symbol that ends a stream is
//! lower than all. dfloat11 `dfloat11_utils.py`: `get_32bit_codec` counts the rarest exponents as
//! one each, and more of them each time, until no code is longer than 32 bits; `get_luts` makes the
//! tables, which are described in `remember/dfloat11.rs`. Of exponents that are equally rare the
//! library's choice depends on numpy's partition; here the lower ones come first.

mod stream;
#[cfg(test)]
mod tests;

use crate::simd::zip;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

pub(crate) use self::stream::{
    CHUNK_RUNS, EncodedRun, RUN_BITS, StreamPlace, chunks, encode_exponents, end_stream, pack_gaps,
};
use crate::remember::kernels::dfloat11::{LEAST_LINK, MAX_LEN, MAX_TABLES, TABLE};
use crate::sort::sort_by_key;

/// How often each exponent occurs.
pub(crate) type ExponentCounts = [u64; TABLE];

/// The symbol that ends a stream, in a tree of the exponents.
const END: usize = TABLE;

/// A code of up to 32 bits, the last of them lowest. An exponent without one has the length 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ExponentBits {
    pub len: u32,
    pub bits: u32,
}

/// A Huffman code of exponents, to encode with.
#[derive(Debug)]
pub(crate) struct HuffmanCode {
    pub(crate) codes: [ExponentBits; TABLE],
    /// The code behind the last exponent, which fills the last byte.
    pub(crate) end: ExponentBits,
    /// The tables, and the lengths behind them.
    pub(crate) tables: Vec<u8>,
}

impl HuffmanCode {
    /// The code of exponents that occur as often as `counts` says.
    ///
    /// # Errors
    /// Why the format has no code for them.
    pub(crate) fn new(counts: &ExponentCounts) -> Result<Self, String> {
        if let Some(beyond) = (usize::from(LEAST_LINK)..TABLE).find(|&e| counts[e] > 0) {
            return Err(match beyond {
                255 => "it has a value that is not finite".to_owned(),
                _ => format!("it has values from 2^{} on", beyond - 127),
            });
        }
        let mut symbols: Vec<usize> = (0..TABLE).filter(|&e| counts[e] > 0).collect();
        let mut tree = Tree::new(&symbols, counts);
        if tree.depth() > MAX_LEN {
            sort_by_key(&mut symbols, |&e| counts[e]);
            let mut flattened = *counts;
            for rarest in 2..=symbols.len() {
                for &e in &symbols[..rarest] {
                    flattened[e] = 1;
                }
                tree = Tree::new(&symbols, &flattened);
                if tree.depth() <= MAX_LEN {
                    break;
                }
            }
        }
        let mut codes = [ExponentBits::default(); END + 1];
        tree.assign(tree.root, ExponentBits::default(), &mut codes);
        let tables = tables(&codes)?;
        let [codes @ .., end] = codes;
        Ok(Self { codes, end, tables })
    }

    /// Bits of the codes of exponents that occur as often as `counts` says.
    pub(crate) fn len_of(&self, counts: &[u32; TABLE]) -> u64 {
        let pairs = zip(self.codes.iter(), counts);
        pairs
            .map(|(code, &count)| u64::from(code.len) * u64::from(count))
            .sum()
    }
}

/// A Huffman tree. A node below [`END`] and that itself are leaves; the others have two children.
struct Tree {
    children: Vec<[usize; 2]>,
    root: usize,
}

impl Tree {
    /// The tree of `symbols` and the end.
    fn new(symbols: &[usize], counts: &ExponentCounts) -> Self {
        // By count, and by the first symbol below a node, before which the end comes.
        let leaf = |&e: &usize| Reverse((counts[e], e + 1, e));
        let mut heap: BinaryHeap<_> = symbols.iter().map(leaf).collect();
        heap.push(Reverse((1, 0, END)));
        let (mut children, mut root) = (Vec::new(), END);
        while let Some(Reverse((count, first, node))) = heap.pop() {
            let Some(Reverse((other_count, _, other))) = heap.pop() else {
                root = node;
                break;
            };
            children.push([node, other]);
            heap.push(Reverse((count + other_count, first, END + children.len())));
        }
        Self { children, root }
    }

    fn children_of(&self, node: usize) -> Option<[usize; 2]> {
        self.children.get(node.checked_sub(END + 1)?).copied()
    }

    /// Length of the longest code.
    fn depth(&self) -> usize {
        // Children are made before their parents.
        let mut depths = vec![0; END + 1];
        for &[a, b] in &self.children {
            depths.push(1 + depths[a].max(depths[b]));
        }
        depths[self.root]
    }

    /// Enters the codes of the symbols below `node`, which begin with `path`. They have up to 32
    /// bits.
    fn assign(&self, node: usize, path: ExponentBits, codes: &mut [ExponentBits; END + 1]) {
        let Some([zero, one]) = self.children_of(node) else {
            codes[node] = path;
            return;
        };
        let child = |bit| ExponentBits { len: path.len + 1, bits: path.bits << 1 | bit };
        self.assign(zero, child(0), codes);
        self.assign(one, child(1), codes);
    }
}

/// The tables of `codes`, and the lengths behind them.
///
/// # Errors
/// They are more than links have numbers for.
fn tables(codes: &[ExponentBits; END + 1]) -> Result<Vec<u8>, String> {
    let exponents = || {
        codes[..END]
            .iter()
            .enumerate()
            .filter(|(_, code)| code.len > 0)
    };
    // A table for each beginning of whole bytes that longer codes have: those of one length in the
    // order of their bits.
    let beginnings = |(_, code): (usize, &ExponentBits)| {
        let code = *code;
        (0..code.len.div_ceil(8)).map(move |level| {
            let bits = u64::from(code.bits) >> (code.len - 8 * level);
            (level, bits)
        })
    };
    let mut prefixes: Vec<(u32, u64)> = exponents().flat_map(beginnings).collect();
    prefixes.sort_unstable();
    prefixes.dedup();
    if prefixes.len() > MAX_TABLES {
        let n = prefixes.len();
        return Err(format!("codes of its exponents take {n} tables, and there are {MAX_TABLES}"));
    }
    let mut tables = vec![0; (prefixes.len() + 1) * TABLE];
    let (maps, lengths) = tables.split_at_mut(prefixes.len() * TABLE);
    for (exponent, code) in exponents() {
        lengths[exponent] = code.len as u8;
    }
    // The library leaves places that no code has with what it entered last. Here that is the last
    // exponent, never a link, nor an exponent without a code: threads of its kernel read behind the
    // end of a stream, and would not move on from a code of no bits, which links have in the table
    // of lengths.
    let mut filling = exponents().next().map_or(0, |(exponent, _)| exponent as u8);
    for (table, &(level, prefix)) in zip(maps.chunks_exact_mut(TABLE), &prefixes) {
        let mut known = [None; TABLE];
        for (exponent, code) in exponents() {
            let rest = match code.len.checked_sub(8 * level) {
                Some(rest) if rest > 0 && u64::from(code.bits) >> rest == prefix => rest,
                _ => continue,
            };
            if rest <= 8 {
                known[(code.bits << (8 - rest)) as usize & 255] = Some(exponent as u8);
            } else {
                let byte = code.bits >> (rest - 8);
                let link = (level + 1, u64::from(byte));
                let number = prefixes.binary_search(&link).unwrap_or_default();
                known[byte as usize & 255] = Some((TABLE - number) as u8);
            }
        }
        for (entry, known) in zip(&mut table[..], known) {
            filling = known.filter(|&e| e < LEAST_LINK).unwrap_or(filling);
            *entry = known.unwrap_or(filling);
        }
    }
    Ok(tables)
}
