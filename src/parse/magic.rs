//! The first bytes of containers. A file can have those of several; [`detect`](super::detect) says
//! in which order they count.

use super::read_at::ReadAt;
use crate::Result;
use crate::protobuf::{FieldHead, FieldKind, MAX_HEAD};

/// Bytes that the detection reads: a tar archive has its magic at offset 257.
const HEAD: u64 = 512;

/// The first bytes of `file`, or the whole file if it is shorter.
pub(super) fn read_head(file: &mut dyn ReadAt) -> Result<Vec<u8>> {
    let mut head = vec![0; file.len().min(HEAD) as usize];
    file.read_at(0, &mut head)?;
    Ok(head)
}

/// Whether a file with these first bytes is safetensors: the length of its header, and JSON.
pub(super) fn is_safetensors(head: &[u8]) -> bool {
    matches!(head, [_, _, _, _, 0, 0, 0, 0, b'{', ..])
}

/// Whether a file with these first bytes is GGUF.
pub(super) fn is_gguf(head: &[u8]) -> bool {
    head.starts_with(b"GGUF")
}

/// Whether a file with these first bytes is of ggml from before GGUF: GGML, GGMF or GGJT as a little-endian number.
pub(super) fn is_ggml(head: &[u8]) -> bool {
    head.starts_with(b"lmgg") || head.starts_with(b"fmgg") || head.starts_with(b"tjgg")
}

/// Whether a file with these first bytes is QNAT.
pub(super) fn is_qnat(head: &[u8]) -> bool {
    head.starts_with(b"QNAT")
}

/// Whether a file with these first bytes is a tar archive, but for the oldest kind.
pub(super) fn is_tar(head: &[u8]) -> bool {
    head.get(257..262) == Some(b"ustar")
}

/// Whether a file with these first bytes is ONNX, which has no mark: whether the fields that they have
/// can be those of a model, in any order.
pub(super) fn is_onnx(head: &[u8]) -> bool {
    let (mut rest, mut has_version, mut has_more) = (head, false, false);
    while let Ok(field) = FieldHead::read(rest) {
        let content = &rest[field.len..];
        let part = &content[..content.len().min(field.content_len() as usize)];
        let is_cut = (part.len() as u64) < field.content_len();
        match (field.number, field.kind) {
            (1, FieldKind::Varint(1..=64)) => has_version = true,
            (5, FieldKind::Varint(_)) => {}
            (2, FieldKind::Bytes(1..)) if is_line(part) => has_more = true,
            (2..=4, FieldKind::Bytes(_)) if is_line(part) => {}
            (6 | 20 | 25 | 26, FieldKind::Bytes(_)) => {}
            (7, FieldKind::Bytes(_)) if is_onnx_graph(part) => {
                (has_version, has_more) = (has_version || rest.len() == head.len(), true);
            }
            (8, FieldKind::Bytes(0)) => has_more = true,
            (8, FieldKind::Bytes(..256)) if is_cut || begins_as(part, &[1, 2]) => has_more = true,
            (14, FieldKind::Bytes(_)) if is_cut || begins_as(part, &[1, 2]) => {}
            _ => return false,
        }
        rest = &content[part.len()..];
    }
    // What is left is the beginning of a field that goes on behind the head.
    has_version && has_more && rest.len() < MAX_HEAD
}

/// Whether a file with these first bytes is a model of Core ML, which has no mark: the version of the
/// format, and a description that begins with an input, an output or a function, each of which begins with
/// its name, or with other texts.
pub(super) fn is_coreml(head: &[u8]) -> bool {
    let version = FieldHead::read(head).ok();
    let Some(FieldHead { number: 1, kind: FieldKind::Varint(1..=64), len }) = version else {
        return false;
    };
    let description = FieldHead::read(&head[len..]).ok();
    let Some(FieldHead { number: 2, kind: FieldKind::Bytes(_), len: more }) = description else {
        return false;
    };
    let first = &head[len + more..];
    let Ok(FieldHead { number, kind: FieldKind::Bytes(_), len }) = FieldHead::read(first) else {
        return false;
    };
    match number {
        1 | 10 | 13 | 20 | 50 => first.get(len) == Some(&0x0a),
        21 | 100 => true,
        _ => false,
    }
}

/// What an HDF5 file has at its beginning, or at a power of two from 512 on.
pub(super) const HDF5: &[u8; 8] = b"\x89HDF\r\n\x1a\n";

/// Whether a file with these first bytes is HDF5.
pub(super) fn is_hdf5(head: &[u8]) -> bool {
    head.starts_with(HDF5)
}

/// Whether a file with these first bytes is the manifest of a database of OCDBT.
pub(super) fn is_ocdbt(head: &[u8]) -> bool {
    head.starts_with(&[0x0c, 0xdb, 0x3a, 0x2a])
}

/// Whether a file with these first bytes is a Burnpack: the number of `burn-pack`, little-endian.
pub(super) fn is_burnpack(head: &[u8]) -> bool {
    head.starts_with(b"NRUB")
}

/// Whether a file with these first bytes is a checkpoint of MindSpore, which has no mark: a value, its name,
/// and a tensor with the name of a type that MindSpore has.
pub(super) fn is_mindspore(head: &[u8]) -> bool {
    let Some(mut tensor) = first_tensor(head) else {
        return false;
    };
    loop {
        match FieldHead::read(tensor) {
            Ok(FieldHead { number: 1, kind: FieldKind::Varint(_), len }) => tensor = &tensor[len..],
            Ok(FieldHead { number: 2, kind: FieldKind::Bytes(n @ 3..=8), len }) => {
                let names = ["Bool", "Int", "UInt", "Float", "BFloat", "str"];
                let kind = tensor.get(len..len + n as usize).unwrap_or_default();
                let letters = kind.iter().take_while(|b| b.is_ascii_alphabetic()).count();
                let digits = kind[letters..].iter().all(u8::is_ascii_digit);
                return digits && names.iter().any(|name| name.as_bytes() == &kind[..letters]);
            }
            _ => return false,
        }
    }
}

/// The tensor of the first value of such a checkpoint, from its first field on.
fn first_tensor(head: &[u8]) -> Option<&[u8]> {
    let field = |head, number| match FieldHead::read(head) {
        Ok(field) if field.number == number && matches!(field.kind, FieldKind::Bytes(_)) => {
            Some(field)
        }
        _ => None,
    };
    let value = head.get(field(head, 1)?.len..)?;
    let name = field(value, 1)?;
    let behind = value
        .get(name.len..)?
        .get(usize::try_from(name.content_len()).ok()?..)?;
    behind.get(field(behind, 2)?.len..)
}

/// Whether a file with these first bytes is a program of Paddle: a message that begins with the
/// block that is in no other, or JSON with the name of the format.
pub(super) fn is_paddle_program(head: &[u8]) -> bool {
    const FIRST_BLOCK: &[u8] = b"\x08\0\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01";
    let has = |part: &[u8]| head.windows(part.len()).any(|at| at == part);
    match FieldHead::read(head) {
        Ok(FieldHead { number: 1, kind: FieldKind::Bytes(_), len }) => {
            head[len..].starts_with(FIRST_BLOCK)
        }
        _ => head.starts_with(b"{") && has(b"\"base_code\"") && has(b"\"pir\""),
    }
}

/// Whether a file with these first bytes is parameters of Paddle: the version of a tensor, levels
/// of its LoD, the version again, and a description, which begins with a type.
pub(super) fn is_paddle_params(head: &[u8]) -> bool {
    let Some([0, 0, 0, 0, levels @ 0..=8, 0, 0, 0, 0, 0, 0, 0]) = head.first_chunk() else {
        return false;
    };
    let mut rest = &head[12..];
    for _ in 0..*levels {
        let Some((len, level)) = rest.split_first_chunk() else {
            return false;
        };
        let len = usize::try_from(u64::from_le_bytes(*len)).ok();
        let Some(behind) = len.and_then(|len| level.get(len..)) else {
            return false;
        };
        rest = behind;
    }
    matches!(rest, [0, 0, 0, 0, len, 0, 0, 0, 8, ..] if *len > 1)
}

/// Whether a file with these first bytes is a model of LiteRT: a FlatBuffer of that kind.
pub(super) fn is_tflite(head: &[u8]) -> bool {
    head.get(4..8) == Some(b"TFL3")
}

/// Whether a file with these first bytes is a bundle of LiteRT-LM.
pub(super) fn is_litertlm(head: &[u8]) -> bool {
    head.starts_with(b"LITERTLM")
}

/// Whether a file with these first bytes is a program of ExecuTorch.
pub(super) fn is_executorch(head: &[u8]) -> bool {
    head.get(4..8) == Some(b"ET12")
}

/// Whether a file with these first bytes has data of tensors for ExecuTorch.
pub(super) fn is_flat_tensors(head: &[u8]) -> bool {
    head.get(4..8) == Some(b"FT01")
}

/// Whether a file with these first bytes is a graph of OpenVINO: XML whose root is `net`.
pub(super) fn is_openvino(head: &[u8]) -> bool {
    let head = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head);
    let mut tags = head.split(|&b| b == b'<').skip(1);
    let is_markup = |tag: &&[u8]| tag.starts_with(b"?") || tag.starts_with(b"!--");
    let is_xml = head.trim_ascii_start().starts_with(b"<");
    is_xml
        && tags
            .find(|tag| !is_markup(tag))
            .is_some_and(|tag| tag.starts_with(b"net "))
}

/// What a table of LevelDB ends in (`kTableMagicNumber`), and so the index of a checkpoint of TensorFlow.
pub(super) const TABLE_END: &[u8; 8] = b"\x57\xfb\x80\x8b\x24\x75\x47\xdb";

/// Whether a file ends as such a table does.
pub(super) fn ends_as_table(file: &mut dyn ReadAt) -> Result<bool> {
    let mut end = [0; TABLE_END.len()];
    let Some(at) = file.len().checked_sub(end.len() as u64) else {
        return Ok(false);
    };
    file.read_at(at, &mut end)?;
    Ok(end == *TABLE_END)
}

/// Whether a file with these first bytes is a checkpoint of Flax: MessagePack of a map whose first key
/// is a word, and not a record of Burn.
pub(super) fn is_flax(head: &[u8]) -> bool {
    let behind = match head {
        [0x81..=0x8f, rest @ ..] | [0xde, _, _, rest @ ..] | [0xdf, _, _, _, _, rest @ ..] => rest,
        _ => return false,
    };
    let (len, key) = match behind {
        [len @ 0xa1..=0xbf, key @ ..] => (usize::from(len & 0x1f), key),
        [0xd9, len, key @ ..] => (usize::from(*len), key),
        [0xda, high, low, key @ ..] => (usize::from(u16::from_be_bytes([*high, *low])), key),
        _ => return false,
    };
    let key = &key[..key.len().min(len)];
    let is_word = !key.is_empty()
        && std::str::from_utf8(key).map_or_else(|e| e.error_len().is_none(), |_| true);
    is_word && is_line(key) && !head.starts_with(b"\x83\xa8metadata")
}

/// Whether `part` may be the beginning of a graph of ONNX: it begins with a node, a name, a tensor or
/// the description of one, and so does what that begins with.
fn is_onnx_graph(part: &[u8]) -> bool {
    let Ok(FieldHead { number, kind: FieldKind::Bytes(_), len }) = FieldHead::read(part) else {
        return false;
    };
    let inner = &part[len..];
    match number {
        1 => begins_as(inner, &[1, 2, 3, 4, 5, 6, 7, 8, 9]),
        2 => inner.first().is_some_and(|b| *b >= b' '),
        5 => begins_as(inner, &[1, 2, 4, 5, 7, 8, 9, 10, 11, 12, 13, 14]),
        11..=13 => begins_as(inner, &[1, 2, 3]),
        15 => begins_as(inner, &[1, 2, 3]),
        _ => false,
    }
}

/// Whether `part` begins with a field that has one of the `numbers`.
fn begins_as(part: &[u8], numbers: &[u64]) -> bool {
    FieldHead::read(part).is_ok_and(|field| numbers.contains(&field.number))
}

/// Whether `text` is one line without control characters.
fn is_line(text: &[u8]) -> bool {
    text.iter().all(|b| *b >= b' ')
}

/// Beginnings of the media types of manifests and layers, of which each manifest of Ollama has one
/// near its beginning.
const MANIFEST_KINDS: [&[u8]; 3] =
    [b"application/vnd.docker.", b"application/vnd.oci.", b"application/vnd.ollama."];

/// Whether a file with these first bytes is a manifest of Ollama.
pub(super) fn is_ollama_manifest(head: &[u8]) -> bool {
    let has = |kind: &&[u8]| head.windows(<[u8]>::len(kind)).any(|at| at == *kind);
    head.starts_with(b"{") && MANIFEST_KINDS.iter().any(has)
}

/// Whether a file with these first bytes is a list of tensors as MLC writes it: metadata come first, of which
/// the number of tensors is the first, or the files of data.
pub(super) fn is_mlc(head: &[u8]) -> bool {
    let has = |key: &[u8]| head.windows(key.len()).any(|at| at == key);
    head.starts_with(b"{") && (has(b"\"ParamSize\"") || has(b"\"dataPath\""))
}

/// Whether a file with these first bytes is of a container that holds tensors and text alone.
#[cfg(feature = "pth")]
pub(super) fn is_weights(head: &[u8]) -> bool {
    let is_manifest = || is_ollama_manifest(head) && !is_tar(head);
    is_safetensors(head) || is_gguf(head) || is_ggml(head) || is_qnat(head) || is_manifest()
}
