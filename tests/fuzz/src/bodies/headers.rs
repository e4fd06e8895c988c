//! Headers from streams: how the bytes arrive changes nothing, and what a stream's header says is
//! what a file's says.

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

    fn whole(bytes: &'a [u8]) -> Self {
        Self(Cursor::new(bytes), usize::MAX)
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
    let read = |reader: ShortReads<'_>| {
        parse_safetensors_header_from_reader_with_limits(reader, &limits())
    };
    let header = read(ShortReads::whole(file));
    if let Ok(header) = &header {
        let _ = anamnesis::InspectInfo::from(header).to_string();
    }
    // Most runs only read the header, so that there are many of them.
    if !crc32fast::hash(bytes).is_multiple_of(4) {
        return;
    }
    let slow = read(ShortReads::new(file));
    assert_same(
        &header.as_ref().map(facts).map_err(again),
        &slow.as_ref().map(facts).map_err(again),
    );
    // Of a whole file more is known: its length.
    if parse_safetensors_header_with_limits(file, &limits()).is_ok() {
        header.unwrap();
    }
}

/// What a header says, without its tables, which print in any order.
fn facts(header: &anamnesis::SafetensorsHeader) -> impl std::fmt::Debug + use<> {
    let tensors = header.tensors.iter();
    let tensors: Vec<_> = tensors
        .map(|t| (t.name.clone(), t.dtype, t.shape.clone()))
        .collect();
    (header.header_size, header.scheme, tensors)
}

/// An error with the same text.
fn again(error: &anamnesis::AnamnesisError) -> anamnesis::AnamnesisError {
    std::io::Error::other(error.to_string()).into()
}

pub fn gguf(bytes: &[u8]) {
    let read =
        |reader: ShortReads<'_>| parse_gguf_front_matter_from_reader_with_limits(reader, &limits());
    let header = read(ShortReads::whole(bytes));
    if !crc32fast::hash(bytes).is_multiple_of(4) {
        return;
    }
    match (&header, &read(ShortReads::new(bytes))) {
        (Ok(a), Ok(b)) => {
            assert_eq!(a.tensor_infos, b.tensor_infos);
            assert_eq!(a.metadata.len(), b.metadata.len());
        }
        (Err(a), Err(b)) => assert_eq!(a.to_string(), b.to_string()),
        (a, b) => panic!("{a:?} {b:?}"),
    }
    let Ok(model) = parse_bytes_with_limits(bytes.to_vec(), &limits()) else {
        return;
    };
    // A stream's values are made at once and count against the limit, which a file's need not
    // reach.
    if let (Ok(header), Some(gguf)) = (header, model.gguf()) {
        assert_eq!((gguf.version(), gguf.alignment()), (header.version, header.alignment));
        // A header has its own order, and a model that of the data.
        let mut infos: Vec<_> = header.tensor_infos.iter().collect();
        infos.sort_by_key(|t| t.data_offset);
        let names = infos.into_iter().map(|t| t.name.as_str());
        assert!(model.tensors().map(|t| t.name()).eq(names));
    }
}

/// Directories of archives, and what lies in their members' headers.
pub fn zip(bytes: &[u8]) {
    let npz = inspect_npz_from_reader_with_limits(Cursor::new(bytes), &limits());
    let pth = parse_pth_front_matter_from_reader_with_limits(Cursor::new(bytes), &limits());
    if let Ok(npz) = &npz {
        check_names(bytes, npz);
    }
    if crc32fast::hash(bytes).is_multiple_of(4) {
        let _ = detect_format_from_reader(Cursor::new(bytes));
        let slow = inspect_npz_from_reader_with_limits(ShortReads::new(bytes), &limits());
        assert_same(&npz, &slow);
        let slow =
            parse_pth_front_matter_from_reader_with_limits(ShortReads::new(bytes), &limits());
        assert_same(&pth, &slow);
    }
}

/// A well-kept reader must find the same members.
fn check_names(bytes: &[u8], npz: &anamnesis::NpzInspectInfo) {
    let archive = zip::ZipArchive::new(Cursor::new(bytes)).unwrap();
    let names: Vec<_> = archive.file_names().map(Result::unwrap).collect();
    for array in &npz.tensors {
        let name = &array.name;
        let is_name = |n: &str| n == name || n.strip_suffix(".npy") == Some(name);
        assert!(names.iter().any(|n| is_name(n)), "{name}: {names:?}");
    }
    let _ = npz.to_string();
}
