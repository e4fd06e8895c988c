//! Says of each file on standard input what this crate says of it, as a line of JSON. Files come in
//! batches: a length of four bytes and so many bytes, which are files, each behind its length of four
//! bytes. A panic is said like an error.
#![allow(clippy::unwrap_used)]

use std::io::{self, Read, Write};
use std::panic::catch_unwind;

use anamnesis_fuzz::bodies::said::said;
use serde_json::json;

fn main() {
    std::panic::set_hook(Box::new(|_| {}));
    let (mut input, mut output) = (io::stdin().lock(), io::BufWriter::new(io::stdout().lock()));
    let mut len = [0; 4];
    while input.read_exact(&mut len).is_ok() {
        let mut batch = vec![0; u32::from_le_bytes(len) as usize];
        input.read_exact(&mut batch).unwrap();
        let mut rest = &batch[..];
        while let Some((len, files)) = rest.split_first_chunk() {
            let (file, more) = files.split_at(u32::from_le_bytes(*len) as usize);
            let line = catch_unwind(|| said(file));
            let line = line.unwrap_or_else(|_| json!({"kind": "panic", "error": "panic"}));
            writeln!(output, "{line}").unwrap();
            rest = more;
        }
        output.flush().unwrap();
    }
}
