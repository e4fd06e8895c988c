//! Requests that the header of a remote file takes: how many reads, how long they are, and that
//! none reaches tensor data.
#![cfg_attr(not(all(feature = "gguf", feature = "npz", feature = "pth")), allow(dead_code))]

use std::cell::RefCell;
use std::io::{Cursor, Read, Seek, SeekFrom};
use std::ops::Range;
use std::rc::Rc;

use anamnesis::AnamnesisError;

/// Offset and length of every read of a stream.
pub type Requests = Rc<RefCell<Vec<(u64, usize)>>>;

/// A stream that records what it is asked for.
pub struct Recorded<R>(R, Requests);

impl<R: Read + Seek> Read for Recorded<R> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let at = self.0.stream_position()?;
        self.1.borrow_mut().push((at, out.len()));
        self.0.read(out)
    }
}

impl<R: Seek> Seek for Recorded<R> {
    fn seek(&mut self, to: SeekFrom) -> std::io::Result<u64> {
        self.0.seek(to)
    }
}

pub fn recorded(bytes: &[u8]) -> (Recorded<Cursor<&[u8]>>, Requests) {
    let requests = Requests::default();
    (Recorded(Cursor::new(bytes), requests.clone()), requests)
}

/// A safetensors file whose header has `len` bytes, with a tensor of 1 MiB.
fn safetensors(len: usize) -> Vec<u8> {
    let json = r#"{"X":{"dtype":"U8","shape":[1048576],"data_offsets":[0,1048576]}}"#;
    let mut file = (len as u64).to_le_bytes().to_vec();
    file.extend(json.bytes());
    file.resize(8 + len, b' ');
    file.resize(file.len() + (1 << 20), 7);
    file
}

#[test]
fn safetensors_headers_take_two_reads() {
    for len in [2 << 10, 1 << 20, 8 << 20] {
        let file = safetensors(len);
        let (stream, requests) = recorded(&file);
        anamnesis::parse_safetensors_header_from_reader(stream).unwrap();
        assert_eq!(*requests.borrow(), [(0, 8), (8, len)]);
    }
}

/// Bytes that the client below fetches at least.
const WINDOW: usize = 64 << 10;

/// A client of a remote file: what it is asked for is recorded, and served from the last 64 KiB
/// that it fetched, if it is there. Otherwise it sends a request for that many bytes or more.
struct Client {
    file: Cursor<Vec<u8>>,
    /// What the last request fetched.
    fetched: Range<usize>,
    requests: usize,
    reads: Vec<Range<usize>>,
}

impl Client {
    fn new(file: Vec<u8>) -> Self {
        Self { file: Cursor::new(file), fetched: 0..0, requests: 0, reads: Vec::new() }
    }

    /// Checks that none of `data` was read.
    fn check_untouched(&self, data: Range<usize>) {
        let touches = |read: &&Range<usize>| read.start < data.end && data.start < read.end;
        assert_eq!(self.reads.iter().find(touches), None, "of {data:?}");
    }
}

impl Read for Client {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let start = self.file.position() as usize;
        if !self.fetched.contains(&start) && !out.is_empty() {
            self.fetched = start..start + out.len().max(WINDOW);
            self.requests += 1;
        }
        let end = self.fetched.end.min(start + out.len());
        let n = self.file.read(&mut out[..end - start])?;
        self.reads.push(start..start + n);
        Ok(n)
    }
}

impl Seek for Client {
    fn seek(&mut self, to: SeekFrom) -> std::io::Result<u64> {
        self.file.seek(to)
    }
}

#[test]
fn large_safetensors_headers_take_three_requests() {
    let end = 8 + (10 << 20);
    let mut client = Client::new(safetensors(10 << 20));
    anamnesis::parse_safetensors_header_from_reader(&mut client).unwrap();
    assert!(client.requests <= 3, "{} requests", client.requests);
    client.check_untouched(end..usize::MAX);
}

/// GGUF does not say how long its header is. Each read is of what certainly belongs to it: of the
/// strings that are left of an array, their lengths. So the reads get shorter in proportion to what
/// is left of the array.
#[cfg(feature = "gguf")]
#[test]
fn large_gguf_headers_take_few_requests() {
    use crate::common::gguf::{Gguf, string};
    let array = |kind: u32, n: u64, bytes: Vec<u8>| {
        [&kind.to_le_bytes()[..], &n.to_le_bytes(), &bytes].concat()
    };
    let texts = |n: u64, text: &dyn Fn(u64) -> String| {
        let bytes = (0..n).flat_map(|i| string(&text(i))).collect();
        array(8, n, bytes)
    };
    let (tokens, merges) = (200_000, 400_000);
    let header = Gguf::default()
        .text("general.architecture", "llama")
        .key("tokenizer.ggml.tokens", 9, &texts(tokens, &|i| format!("{:x}", i * i)))
        .key("tokenizer.ggml.scores", 9, &array(6, tokens, vec![0; 4 * tokens as usize]))
        .key("tokenizer.ggml.merges", 9, &texts(merges, &|i| format!("{:x} {i:x}", i / 7)))
        .tensor("token_embd.weight", 0, &[1 << 18], &vec![7; 1 << 20]);
    let end = header.header().len();
    assert!(end > 10 << 20, "{end}");
    let mut client = Client::new(header.file());
    let front = anamnesis::parse_gguf_front_matter_from_reader(&mut client).unwrap();
    assert_eq!(front.tensor_infos[0].data_offset, end as u64);
    assert!(client.requests <= 20, "{} requests", client.requests);
    client.check_untouched(end..usize::MAX);
}

/// An array of bytes as NumPy stores it, with a header of 128 bytes.
fn npy(len: usize) -> Vec<u8> {
    let text = format!("{{'descr': '|u1', 'fortran_order': False, 'shape': ({len},), }}");
    let header = format!("{text:<117}\n");
    [b"\x93NUMPY\x01\0\x76\0", header.as_bytes(), &vec![7; len]].concat()
}

/// A directory of 10 MiB takes two requests. The headers of small arrays that lie together take one
/// more, and the header of a large array takes one.
#[cfg(feature = "npz")]
#[test]
fn large_npz_directories_take_two_requests() {
    use crate::common::zip::{Header, Member, Zip};
    let long = |entry: &mut Header| entry.extra = [&[1, 2, 0, 0xf0][..], &[0; 0xf000]].concat();
    let member = |i: usize| Member::stored(&format!("{i:03}.npy"), &npy(16)).central(long);
    let mut members: Vec<_> = (0..171).map(member).collect();
    members.push(Member::stored("large.npy", &npy(1 << 20)));
    let lens = members
        .iter()
        .map(|m| 30 + m.local.name.len() + m.data.len());
    let end: usize = lens.sum();
    let file = Zip::of(&members).file();
    assert!(file.len() - end > 10 << 20);
    let mut client = Client::new(file);
    let info = anamnesis::inspect_npz_from_reader(&mut client).unwrap();
    assert_eq!(info.tensors.len(), 172);
    assert!(client.requests <= 4, "{} requests", client.requests);
    client.check_untouched(end - (1 << 20)..end);
}

/// An archive says how long its pickle is. The other requests are for the file's beginning, its
/// last 64 KiB (where its directory is), and the member `version`.
#[cfg(feature = "pth")]
#[test]
fn large_pickles_take_few_requests() {
    use crate::common::pickle::{storage, text, view};
    use crate::common::zip::{Member, Zip};
    let mut pickle = b"\x80\x02}".to_vec();
    pickle.extend(
        [text("weight"), view(&storage("FloatStorage", &text("0"), 1 << 18), 0, &[1 << 18], &[1])]
            .concat(),
    );
    pickle.extend([b"s", &text("notes")[..], &text(&"x".repeat(10 << 20)), b"s."].concat());
    let file = Zip::of(&[
        Member::stored("m/data.pkl", &pickle),
        Member::stored("m/byteorder", b"little"),
        Member::stored("m/data/0", &vec![7; 1 << 20]),
        Member::stored("m/version", b"3\n"),
    ])
    .file();
    let tail = file.len() - (66 << 10);
    let mut client = Client::new(file);
    let front = anamnesis::parse_pth_front_matter_from_reader(&mut client).unwrap();
    assert_eq!(front.tensors.len(), 1);
    assert!(client.requests <= 5, "{} requests", client.requests);
    client.check_untouched((10 << 20) + 4096..tail);
}

/// A length that the file does not have costs one read of 8 MiB.
#[test]
fn a_false_length_is_not_allocated() {
    let (stream, requests) = recorded(&[0, 0, 0, 5, 0, 0, 0, 0, b'{']);
    let error = anamnesis::parse_safetensors_header_from_reader(stream).unwrap_err();
    assert!(
        matches!(&error, AnamnesisError::Io(_))
            && error.to_string().contains("after 1 of 83886080"),
        "{error}"
    );
    assert!(requests.borrow().iter().all(|&(_, n)| n <= 8 << 20));
}

/// The heads of large archives: of a checkpoint neither storages nor their local headers are read,
/// and what lies at the end of the file is read once.
#[cfg(feature = "pth")]
#[test]
fn archive_headers_take_few_requests() {
    use crate::common::data;
    use crate::common::zip::{Member, Zip};
    let demo = anamnesis::parse_pth(data().join("demo/checkpoint.pth")).unwrap();
    let file = std::fs::read(data().join("demo/checkpoint.pth")).unwrap();
    let mut demo_archive = zip::ZipArchive::new(Cursor::new(&file)).unwrap();
    let mut padded = Vec::new();
    for i in 0..demo_archive.len() {
        let (mut member, mut content) = (demo_archive.by_index(i).unwrap(), Vec::new());
        member.read_to_end(&mut content).unwrap();
        padded.push(Member::stored(&member.name().unwrap(), &content));
    }
    let storage = vec![1; 200 << 10];
    padded.insert(1, Member::stored("checkpoint/data/unused", &storage));
    let file = Zip::of(&padded).file();
    let (stream, requests) = recorded(&file);
    let front = anamnesis::parse_pth_front_matter_from_reader(stream).unwrap();
    assert_eq!(front.tensors, demo.tensor_info());
    assert!(requests.borrow().len() <= 6, "{:?}", requests.borrow());
    let read: usize = requests.borrow().iter().map(|&(_, n)| n).sum();
    assert!(read < file.len() / 2, "{read} of {}", file.len());
}
