//! Lists the tensors of a safetensors file that is not here: only its header is read, never its
//! data.
//!
//! The reader below stands for an HTTP client with range requests; it counts what it is asked for.
//!
//! cargo run --example remote_header -- [FILE]

use std::cell::Cell;
use std::fs::File;
use std::io::{self, Read};

/// A file far away.
struct Remote<'a> {
    file: File,
    requests: &'a Cell<usize>,
    bytes: &'a Cell<usize>,
}

impl Read for Remote<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let n = self.file.read(out)?;
        self.requests.set(self.requests.get() + 1);
        self.bytes.set(self.bytes.get() + n);
        Ok(n)
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "tests/data/demo/model-fp8.safetensors".to_owned());
    let (requests, bytes) = (Cell::new(0), Cell::new(0));
    let remote = Remote { file: File::open(&path)?, requests: &requests, bytes: &bytes };
    let header = anamnesis::parse_safetensors_header_from_reader(remote)?;
    println!("{}", header.scheme);
    for tensor in &header.tensors {
        println!("{} {} {:?} {:?}", tensor.name, tensor.dtype, tensor.shape, tensor.role);
    }
    println!("{} bytes read in {} requests", bytes.get(), requests.get());
    Ok(())
}
