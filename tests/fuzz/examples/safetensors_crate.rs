//! The same headers through the `safetensors` crate and through this one: `cargo run --release
//! --example safetensors_crate -- 10000000 [SEED]`. Prints how many both read and both refuse, and
//! for each class of difference how many there were, and its shortest input.
//!
//! Differences that there are, with their reasons:
//! - a name, or a key of `__metadata__`, is listed twice: the crate takes the last, other readers the
//!   first;
//! - white space before the brace, where the header's length is the magic of another format (a
//!   pickle, LZMA): no writer begins so;
//! - fields that mean nothing are not looked at here, so that a number out of range, half a
//!   surrogate or bytes that are no UTF-8 are no errors in them.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;

use anamnesis::{Dtype, parse_bytes_with_limits};
use anamnesis_fuzz::bodies::model::limits;
use anamnesis_fuzz::common::Random;
use safetensors::SafeTensors;

/// Pieces of JSON that a value may become.
const VALUES: &[&str] = &[
    "0",
    "1",
    "-0",
    "-1",
    "00",
    "01",
    "1.0",
    "1e0",
    "1E+1",
    "0x1",
    "+1",
    "1.",
    ".5",
    "4294967296",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "1e400",
    "NaN",
    "Infinity",
    "null",
    "true",
    "false",
    "[]",
    "{}",
    "[1]",
    "[[1]]",
    "[0,4]",
    "[4,0]",
    "[0,0]",
    "[0,4,8]",
    "[0]",
    "[1,]",
    "[,1]",
    "\"\"",
    "\"1\"",
    "\"F32\"",
    "\"f32\"",
    "\"F33\"",
    "\"\\u0046\\u00332\"",
    "\"F32 \"",
    "'F32'",
    "\"a\\\n\"",
    "\"\\x41\"",
    "\"\\ud800\"",
    "\"\\ud83d\\ude00\"",
    "\"\\u0000\"",
    "\"\u{1}\"",
    "\"\u{7f}\"",
    "\"\u{e4}\"",
    "[\"F32\",[1],[0,4]]",
    "[\"F32\",[1],[0,4],1]",
    "{\"dtype\":\"F32\"}",
];

const NAMES: &[&str] = &[
    "\"a\"",
    "\"b\"",
    "\"\\u0061\"",
    "\"A\"",
    "\"\"",
    "\" a\"",
    "\"a\\u0000\"",
    "\"__metadata__\"",
    "\"\\u005f_metadata__\"",
    "\"__Metadata__\"",
    "\"a.b\"",
    "\"\\ud800\"",
    "\"\\/\"",
    "\"\u{e4}\"",
    "\"a\u{308}\"",
    "'a'",
    "a",
    "1",
    "null",
    "\"a\\\"b\"",
    "\"\u{feff}a\"",
    "\"dtype\"",
];

const FIELDS: &[&str] = &[
    "\"dtype\"",
    "\"shape\"",
    "\"data_offsets\"",
    "\"Dtype\"",
    "\"\\u0064type\"",
    "\"offsets\"",
    "\"x\"",
    "\"\"",
];

const DTYPES: &[&str] = &[
    "BOOL",
    "F4",
    "F6_E2M3",
    "F6_E3M2",
    "U8",
    "I8",
    "F8_E5M2",
    "F8_E4M3",
    "F8_E8M0",
    "F8_E4M3FNUZ",
    "F8_E5M2FNUZ",
    "I16",
    "U16",
    "F16",
    "BF16",
    "I32",
    "U32",
    "F32",
    "C64",
    "F64",
    "I64",
    "U64",
    "I4",
    "U4",
    "F8",
    "BF8",
    "F128",
    "Q4",
];

const BLANKS: &[&str] = &[
    " ", "\n", "\t", "\r", "\u{b}", "\u{c}", "\0", "\u{feff}", "\u{a0}", "//x\n", "/**/", "#", ",",
    ":", "}", "{", "\"", "\\",
];

struct Maker(Random);

impl Maker {
    fn below(&mut self, n: usize) -> usize {
        (self.0.next() >> 20) as usize % n
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    fn of<'a>(&mut self, items: &[&'a str]) -> &'a str {
        items[self.below(items.len())]
    }

    /// A tensor that begins at `start` and is almost always sound: its record, and where it ends.
    fn tensor(&mut self, start: usize) -> (String, usize) {
        let dtype = self.of(DTYPES);
        let bits = anamnesis_fuzz::common::find_dtype(dtype).map_or(32, |(_, bits)| bits);
        let rank = self.below(4);
        let mut dims: Vec<usize> = (0..rank)
            .map(|_| [0, 1, 2, 3, 4, 8][self.below(6)])
            .collect();
        if self.one_in(3) && bits < 8 {
            dims = vec![4, 2];
        }
        let end = start + dims.iter().product::<usize>() * bits / 8;
        let mut shape = format!("{dims:?}");
        let mut offsets = format!("[{},{}]", start, end);
        if self.one_in(30) {
            let wrong = (self.0.next() >> self.below(64)) as usize;
            offsets = [
                format!("[{end},{start}]"),
                format!("[{start},{wrong}]"),
                format!("[{wrong},{end}]"),
                format!("[{start},{end}.0]"),
            ][self.below(4)]
            .clone();
        }
        if self.one_in(30) {
            let at = self.below(dims.len() + 1);
            let n = [1 << 32, 1 << 63, usize::MAX, (1 << 62) + 1, 0, 1, 65_536][self.below(7)];
            dims.insert(at, n);
            shape = format!("{dims:?}");
        }
        let mut fields = vec![
            ("\"dtype\"".to_owned(), format!("\"{dtype}\"")),
            ("\"shape\"".to_owned(), shape),
            ("\"data_offsets\"".to_owned(), offsets),
        ];
        if self.one_in(12) {
            let i = self.below(3);
            match self.below(7) {
                0 => fields[i].1 = self.of(VALUES).to_owned(),
                1 => fields[i].0 = self.of(FIELDS).to_owned(),
                2 => drop(fields.remove(i)),
                3 => fields.push(fields[i].clone()),
                4 => fields.push((self.of(FIELDS).to_owned(), self.of(VALUES).to_owned())),
                5 => fields.swap(i, (i + 1) % 3),
                _ => {
                    let items: Vec<_> = fields.iter().map(|(_, value)| value.as_str()).collect();
                    return (format!("[{}]", items.join(",")), end);
                }
            }
        }
        let fields: Vec<_> = fields
            .iter()
            .map(|(key, value)| format!("{key}:{value}"))
            .collect();
        (format!("{{{}}}", fields.join(",")), end)
    }

    fn metadata(&mut self) -> String {
        if self.one_in(4) {
            return self.of(VALUES).to_owned();
        }
        let n = self.below(4);
        let entries: Vec<_> = (0..n)
            .map(|_| {
                format!(
                    "{}:{}",
                    self.of(NAMES),
                    if self.one_in(6) {
                        self.of(VALUES)
                    } else {
                        "\"x\""
                    }
                )
            })
            .collect();
        format!("{{{}}}", entries.join(","))
    }

    fn header(&mut self) -> (String, usize) {
        let (mut entries, mut end) = (Vec::new(), 0);
        for i in 0..self.below(4) {
            let name = if self.one_in(6) {
                self.of(NAMES).to_owned()
            } else {
                format!("\"t{i}\"")
            };
            let (record, next) = self.tensor(end);
            // Now and then a tensor over another one.
            if !self.one_in(40) {
                end = next;
            }
            entries.push((name, record));
        }
        for _ in 0..[0, 0, 1, 1, 2][self.below(5)] {
            let at = self.below(entries.len() + 1);
            let metadata = self.metadata();
            entries.insert(
                at,
                (
                    ["\"__metadata__\"", "\"__metadata__\"", "\"\\u005f_metadata__\""]
                        [self.below(3)]
                    .to_owned(),
                    metadata,
                ),
            );
        }
        if self.one_in(3) && entries.len() > 1 {
            let (i, j) = (self.below(entries.len()), self.below(entries.len()));
            entries.swap(i, j);
        }
        if self.one_in(20) && !entries.is_empty() {
            let i = self.below(entries.len());
            entries.push(entries[i].clone());
        }
        let entries: Vec<_> = entries
            .iter()
            .map(|(name, record)| format!("{name}:{record}"))
            .collect();
        let mut text = format!("{{{}}}", entries.join(","));
        if self.one_in(8) {
            let places: Vec<usize> = (0..=text.len())
                .filter(|&at| text.is_char_boundary(at))
                .collect();
            let at = places[self.below(places.len())];
            text.insert_str(at, self.of(BLANKS));
        }
        match self.below(40) {
            0 => text.insert_str(0, self.of(BLANKS)),
            1 => text.push_str(self.of(BLANKS)),
            2 => text = format!("[{text}]"),
            // Lengths whose bytes are the magic of a pickle.
            3 => text.extend(std::iter::repeat_n(' ', 640usize.saturating_sub(text.len()))),
            4..10 => {
                text.extend(std::iter::repeat_n(' ', text.len().next_multiple_of(8) - text.len()))
            }
            _ => {}
        }
        (text, end)
    }

    fn file(&mut self) -> Vec<u8> {
        let (text, end) = self.header();
        let mut json = text.into_bytes();
        if self.one_in(15) && !json.is_empty() {
            for _ in 0..=self.below(2) {
                let at = self.below(json.len());
                match self.below(3) {
                    0 => json[at] = self.0.next() as u8,
                    1 => drop(json.remove(at)),
                    _ => json.insert(at, self.0.next() as u8),
                }
            }
        }
        let mut n = json.len() as u64;
        if self.one_in(40) {
            n = [n + 1, n.saturating_sub(1), 0, u64::MAX, n | 1 << 40, n + 8, 100_000_001]
                [self.below(7)];
        }
        let mut file = n.to_le_bytes().to_vec();
        file.extend(json);
        let mut data = end;
        if self.one_in(30) {
            data = [end + 1, end.saturating_sub(1), end + 64, 0][self.below(4)];
        }
        file.extend((0..data).map(|i| (i * 37) as u8));
        file
    }
}

/// Names with dtype, shape and bytes, and the metadata.
type Contents = (BTreeMap<String, (String, Vec<usize>, Vec<u8>)>, BTreeMap<String, String>);

fn theirs(file: &[u8]) -> Result<Contents, String> {
    let (_, header) = SafeTensors::read_metadata(file).map_err(|error| error.to_string())?;
    let read = SafeTensors::deserialize(file).map_err(|error| error.to_string())?;
    let tensors = read.tensors().into_iter().map(|(name, t)| {
        let dtype = Dtype::try_from(t.dtype())
            .map_or_else(|_| t.dtype().to_string(), |dtype| dtype.to_string());
        (name, (dtype, t.shape().to_vec(), t.data().to_vec()))
    });
    Ok((
        tensors.collect(),
        header
            .metadata()
            .clone()
            .unwrap_or_default()
            .into_iter()
            .collect(),
    ))
}

fn ours(file: &[u8]) -> Result<Contents, String> {
    let model =
        parse_bytes_with_limits(file.to_vec(), &limits()).map_err(|error| error.to_string())?;
    let mut tensors = BTreeMap::new();
    for t in model.tensors() {
        let bytes = t.bytes().map_err(|error| error.to_string())?.into_owned();
        let twice =
            tensors.insert(t.name().to_owned(), (t.dtype().to_string(), t.shape().to_vec(), bytes));
        assert!(twice.is_none());
    }
    Ok((tensors, model.metadata().clone().into_iter().collect()))
}

/// A message without numbers and names.
fn plain(text: &str) -> String {
    let (mut out, mut inside) = (String::new(), false);
    for c in text.chars() {
        match c {
            '`' | '"' => inside = !inside,
            _ if inside => {}
            '0'..='9' if out.ends_with('N') => {}
            '0'..='9' => out.push('N'),
            c => out.push(c),
        }
    }
    out.chars().take(120).collect()
}

fn main() {
    let mut arguments = std::env::args().skip(1).map(|n| n.parse::<u64>().unwrap());
    let (count, seed) = (arguments.next().unwrap_or(100_000), arguments.next().unwrap_or(1));
    let mut maker = Maker(Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1));
    let (mut read, mut refused) = (0u64, 0u64);
    let mut classes: BTreeMap<String, (u64, Vec<u8>)> = BTreeMap::new();
    for _ in 0..count {
        let file = maker.file();
        let class = match (theirs(&file), ours(&file)) {
            (Ok(a), Ok(b)) if a == b => {
                read += 1;
                continue;
            }
            (Err(_), Err(_)) => {
                refused += 1;
                continue;
            }
            (Ok(_), Ok(_)) => "read | read otherwise".to_owned(),
            (Ok(_), Err(error)) => format!("read | {}", plain(&error)),
            (Err(error), Ok(_)) => format!("{} | read", plain(&error)),
        };
        let kept = classes.entry(class).or_insert_with(|| (0, file.clone()));
        kept.0 += 1;
        if file.len() < kept.1.len() {
            kept.1 = file;
        }
    }
    let differing: u64 = classes.values().map(|(n, _)| n).sum();
    println!(
        "safetensors: {count} inputs, {read} read by both, {refused} refused by both, {differing} differ"
    );
    for (class, (n, file)) in classes {
        println!("{n:9} {class}\n          {}", file.escape_ascii());
    }
}
