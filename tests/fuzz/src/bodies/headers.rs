//! Headers from streams: how the bytes arrive changes nothing, and what a stream's header says is what a file's says.

use std::io::{self, Cursor, Read, Seek, SeekFrom};

use anamnesis::{
    detect_format_from_reader, inspect_npz_from_reader_with_limits, parse_bytes_with_limits,
    parse_gguf_front_matter_from_reader_with_limits,
    parse_pth_front_matter_from_reader_with_limits,
    parse_safetensors_header_from_reader_with_limits, parse_safetensors_header_with_limits,
};

use super::model::limits;

/// A stream that gives at most this many bytes at a time.
struct ShortReads<'a>(Cursor<&'a [u8]>, usize);

impl<'a> ShortReads<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self(Cursor::new(bytes), 1 + bytes.len() % 61)
    }
}

impl Read for ShortReads<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let n = out.len().min(self.1);
        self.0.read(&mut out[..n])
    }
}

impl Seek for ShortReads<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.0.seek(to)
    }
}

/// Fails unless both are errors of the same text, or values that look the same.
fn assert_same<T: std::fmt::Debug>(a: &anamnesis::Result<T>, b: &anamnesis::Result<T>) {
    let text = |result: &anamnesis::Result<T>| match result {
        Ok(value) => format!("{value:?}"),
        Err(error) => error.to_string(),
    };
    assert_eq!(text(a), text(b));
}

pub fn safetensors(bytes: &[u8]) {
    let file = &super::containers::with_length(bytes)[..];
    let header = parse_safetensors_header_from_reader_with_limits(file, &limits());
    let slow = parse_safetensors_header_from_reader_with_limits(ShortReads::new(file), &limits());
    // The tables of a header are hash maps, which print in any order.
    let facts = |h: &anamnesis::SafetensorsHeader| {
        let tensors = h.tensors.iter();
        let tensors: Vec<_> = tensors.map(|t| (t.name.clone(), t.dtype, t.shape.clone())).collect();
        (h.header_size, h.scheme, tensors)
    };
    assert_same(
        &header.as_ref().map(facts).map_err(again),
        &slow.as_ref().map(facts).map_err(again),
    );
    // Of a whole file more is known: its length.
    if parse_safetensors_header_with_limits(file, &limits()).is_ok() {
        header.as_ref().unwrap();
    }
    if let Ok(header) = &header {
        let _ = anamnesis::InspectInfo::from(header).to_string();
    }
}

/// An error with the same text.
fn again(error: &anamnesis::AnamnesisError) -> anamnesis::AnamnesisError {
    std::io::Error::other(error.to_string()).into()
}

pub fn gguf(bytes: &[u8]) {
    let read = |bytes| parse_gguf_front_matter_from_reader_with_limits(bytes, &limits());
    let header = read(Cursor::new(bytes));
    let slow = parse_gguf_front_matter_from_reader_with_limits(ShortReads::new(bytes), &limits());
    match (&header, &slow) {
        (Ok(a), Ok(b)) => {
            assert_eq!(a.tensor_infos, b.tensor_infos);
            assert_eq!(a.metadata.len(), b.metadata.len());
        }
        (Err(a), Err(b)) => assert_eq!(a.to_string(), b.to_string()),
        _ => panic!("{header:?} {slow:?}"),
    }
    if let Ok(model) = parse_bytes_with_limits(bytes.to_vec(), &limits()) {
        let gguf = model.gguf().unwrap();
        let _ = model.inspect().to_string();
        // Values are made here, and each counts against the limit, which headers in memory need not reach.
        if let Ok(header) = header {
            assert_eq!((gguf.version(), gguf.alignment()), (header.version, header.alignment));
            let names = header.tensor_infos.iter().map(|t| t.name.as_str());
            assert!(model.tensors().map(|t| t.name()).eq(names));
        }
    }
}

/// Directories of archives, and what lies in their members' headers.
pub fn zip(bytes: &[u8]) {
    let _ = detect_format_from_reader(Cursor::new(bytes));
    let npz = inspect_npz_from_reader_with_limits(Cursor::new(bytes), &limits());
    let slow = inspect_npz_from_reader_with_limits(ShortReads::new(bytes), &limits());
    assert_same(&npz, &slow);
    if let Ok(npz) = npz {
        // A well-kept reader finds the same members.
        let archive = zip::ZipArchive::new(Cursor::new(bytes)).unwrap();
        let names: Vec<_> = archive.file_names().map(Result::unwrap).collect();
        for array in &npz.tensors {
            let name = &array.name;
            assert!(
                names.iter().any(|n| *n == *name || n.strip_suffix(".npy") == Some(name)),
                "{name}: {names:?}"
            );
        }
        let _ = npz.to_string();
    }
    let pth = parse_pth_front_matter_from_reader_with_limits(Cursor::new(bytes), &limits());
    let slow = parse_pth_front_matter_from_reader_with_limits(ShortReads::new(bytes), &limits());
    assert_same(&pth, &slow);
}
