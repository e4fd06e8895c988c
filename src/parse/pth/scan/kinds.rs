//! What content is by its first bytes, and what names say of it.

use std::collections::BTreeMap;

use serde::de::IgnoredAny;

use super::super::tar::is_header;
use crate::Result;
use crate::parse::read_at::ReadAt;
use crate::parse::{magic, other_files};

/// What content is, as far as scanning is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ContentKind {
    Pickle,
    Zip,
    Tar,
    Gzip,
    Zlib,
    Npy,
    /// Weights, an image or the like: nothing that programs run.
    Weights,
    Text,
    /// A known kind that may hold what was not looked into; the text says what.
    Hides(&'static str),
    Unknown,
}

/// The kind of content with the first bytes `head`.
pub(super) fn kind_of(head: &[u8]) -> ContentKind {
    // The length that safetensors begins with can be the mark of another kind.
    if magic::is_weights(head) {
        return ContentKind::Weights;
    }
    match head {
        [b'P', b'K', 3, 4, ..] | [b'P', b'K', 5, 6, ..] => return ContentKind::Zip,
        [0x80, 0..=5, ..] => return ContentKind::Pickle,
        [0x1f, 0x8b, ..] => return ContentKind::Gzip,
        [0x93, b'N', b'U', b'M', b'P', b'Y', ..] => return ContentKind::Npy,
        _ if magic::is_tflite(head)
            || magic::is_litertlm(head)
            || magic::is_executorch(head)
            || magic::is_flat_tensors(head)
            || magic::is_openvino(head) =>
        {
            return ContentKind::Weights;
        }
        _ if magic::is_onnx(head)
            || magic::is_flax(head)
            || magic::is_coreml(head)
            || magic::is_mindspore(head)
            || magic::is_paddle_params(head) =>
        {
            return ContentKind::Weights;
        }
        _ if magic::is_paddle_program(head) => {
            return ContentKind::Hides(
                "a program of Paddle, which was not looked into: its operations can read and write files",
            );
        }
        _ if magic::is_hdf5(head) => {
            return ContentKind::Hides(
                "HDF5, which was not looked into: a Keras model in it may hold code (`Lambda`)",
            );
        }
        _ if is_header(head) => return ContentKind::Tar,
        _ if is_executable(head) => {
            return ContentKind::Hides("a program, which runs when it is started or loaded");
        }
        _ => {}
    }
    match other_files::known(head) {
        Some(file) => match file.hides {
            Some(what) => ContentKind::Hides(what),
            None if other_files::is_text(head) => ContentKind::Text,
            None => ContentKind::Weights,
        },
        // The method and the size of the window, with their check.
        None if matches!(head, [0x78, flags, ..] if (0x7800 + u16::from(*flags)).is_multiple_of(31)) => {
            ContentKind::Zlib
        }
        // A few letters, which `known` does not name.
        None if !head.is_empty() && other_files::is_text(head) => ContentKind::Text,
        None => ContentKind::Unknown,
    }
}

/// Whether content begins as a program of Windows, Linux or macOS, or as WebAssembly.
fn is_executable(head: &[u8]) -> bool {
    matches!(
        head,
        [b'M', b'Z', ..]
            | [0x7f, b'E', b'L', b'F', ..]
            | [0xfe, 0xed, 0xfa, 0xce | 0xcf, ..]
            | [0xce | 0xcf, 0xfa, 0xed, 0xfe, ..]
            | [0xca, 0xfe, 0xba, 0xbe, ..]
            | [0, b'a', b's', b'm', ..]
    )
}

/// Whether an array's elements may be objects: its type is none of numbers.
pub(super) fn may_be_pickled_array(head: &[u8]) -> bool {
    kind_of(head) == ContentKind::Npy && head.iter().take(1024).any(|&b| b == b'O' || b == b'[')
}

/// Endings of names of files that programs unpickle without a look at the content.
const ALWAYS_UNPICKLED: &[&str] = &["pkl", "pickle", "joblib", "dill", "pt", "pth", "ckpt"];

/// Further ones, which other files have as well.
const ALSO_UNPICKLED: &[&str] = &["bin", "dat", "data", "model", "p"];

fn has_ending(name: &str, endings: &[&str]) -> bool {
    let ending = name.rsplit_once('.').map(|(_, ending)| ending);
    ending.is_some_and(|ending| {
        endings
            .iter()
            .any(|known| ending.eq_ignore_ascii_case(known))
    })
}

/// Whether a file of this name is a pickle or nothing.
pub(super) fn is_always_unpickled(name: &str) -> bool {
    has_ending(name, ALWAYS_UNPICKLED)
}

/// Whether a file of this name may be unpickled.
pub(super) fn is_unpickled(name: &str) -> bool {
    is_always_unpickled(name) || has_ending(name, ALSO_UNPICKLED)
}

/// Endings of names of programs, and what runs them.
const PROGRAMS: &[(&[&str], &str)] = &[
    (&["py", "pyw", "pyx", "pyi", "pyc", "pyo"], "Python code, which runs when it is imported"),
    (&["ipynb"], "a notebook, whose code runs when it is executed"),
    (
        &[
            "sh", "bash", "zsh", "fish", "bat", "cmd", "ps1", "psm1", "vbs", "js", "mjs", "cjs",
            "ts", "rb", "pl", "php", "lua", "r", "jl", "command",
        ],
        "a script, which runs when it is started",
    ),
    (
        &[
            "exe", "dll", "so", "dylib", "pyd", "com", "scr", "msi", "jar", "class", "wasm", "app",
            "deb", "rpm", "apk", "whl", "egg",
        ],
        "a program, which runs when it is started, loaded or installed",
    ),
];

/// What a file is if it is a program by its name or by its first line.
pub(super) fn program(name: &str, head: &[u8]) -> Option<&'static str> {
    if head.starts_with(b"#!") {
        return Some("a script, which runs when it is started");
    }
    let row = PROGRAMS
        .iter()
        .find(|(endings, _)| has_ending(name, endings));
    row.map(|&(_, what)| what)
}

/// Longest JSON text that is parsed for its keys.
const MAX_JSON: u64 = 4 << 20;

/// What a config is that has programs run code: `auto_map` of transformers, and layers of Keras.
pub(super) fn names_code(
    name: &str,
    file: &mut dyn ReadAt,
    head: &[u8],
) -> Result<Option<&'static str>> {
    if !has_ending(name, &["json"]) && !head.trim_ascii_start().starts_with(b"{") {
        return Ok(None);
    }
    let mut whole = Vec::new();
    let text = match file.len() {
        len if len <= head.len() as u64 => head,
        len if len <= MAX_JSON => {
            whole.resize(len as usize, 0);
            file.read_at(0, &mut whole)?;
            &whole
        }
        _ => head,
    };
    let has = |word: &str| text.windows(word.len()).any(|at| at == word.as_bytes());
    // Keys may be written with escapes.
    let keys: BTreeMap<String, IgnoredAny> = serde_json::from_slice(text).unwrap_or_default();
    let is_key = |key: &str| keys.contains_key(key);
    Ok(match () {
        () if is_key("auto_map") || is_key("custom_pipelines") || has("\"auto_map\"") => {
            Some("a config that names Python code (`auto_map`), which `trust_remote_code` runs")
        }
        () if is_key("trust_remote_code") => Some("a config with `trust_remote_code`"),
        () if is_key("nbformat") => Some("a notebook, whose code runs when it is executed"),
        () if has("\"Lambda\"") || has("\"__lambda__\"") => {
            Some("a model of Keras with code in it (`Lambda`), which `safe_mode=False` runs")
        }
        () => None,
    })
}
