//! GGUF read: every file of tests/data/gguf-files against what gguf's own Python reader says of it (the
//! `.json` beside it), headers read from streams, and files made here.
#![cfg(feature = "gguf")]
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::collections::HashMap;
use std::io::{BufReader, Error, Read, Seek, SeekFrom};
use std::path::PathBuf;

use anamnesis::{
    AnamnesisError, GgufInspectInfo, GgufMetadataArray as A, GgufMetadataValue as V, ParsedModel, Result, TargetDtype,
    inspect_gguf_from_reader, parse_gguf_front_matter_from_reader as front_matter,
};
use common::gguf::{Gguf, string};
use common::verdict::{Parse, Unsupported, recover, verdict};
use common::{Random, TARGETS, assert_same, data, f32s};
use half::{bf16, f16};
use safetensors::SafeTensors;
use serde_json::{Value, json};

/// A file of tests/data/gguf-files.
struct Case {
    name: String,
    path: PathBuf,
    bytes: Vec<u8>,
    said: Value,
}

fn case(name: &str) -> Case {
    let path = data().join("gguf-files").join(format!("{name}.gguf"));
    let said = std::fs::read_to_string(path.with_extension("json")).unwrap();
    Case { name: name.to_owned(), bytes: std::fs::read(&path).unwrap(), said: serde_json::from_str(&said).unwrap(), path }
}

fn cases() -> Vec<Case> {
    let entries = std::fs::read_dir(data().join("gguf-files")).unwrap().map(|e| e.unwrap().path());
    let files = entries.filter(|path| path.extension().is_some_and(|e| e == "gguf"));
    let cases: Vec<Case> = files.map(|path| case(path.file_stem().unwrap().to_str().unwrap())).collect();
    assert!(cases.len() >= 15, "{}", cases.len());
    cases
}

impl Case {
    fn is_split(&self) -> bool {
        self.name.contains("-of-")
    }

    fn list(&self, key: &str) -> &[Value] {
        self.said[key].as_array().unwrap()
    }

    /// Name, type, shape, offset, length and digest of each tensor.
    fn tensors(&self) -> Vec<(&str, &str, Vec<usize>, u64, u64, &str)> {
        let text = |t: &'static str| move |v: &Value| v.as_str().map(str::to_owned).ok_or(t);
        let _ = text;
        let one = |t: &'_ Value| {
            let shape = t[2].as_array().unwrap().iter().map(|d| d.as_u64().unwrap() as usize).collect();
            (shape, t[3].as_u64().unwrap(), t[4].as_u64().unwrap())
        };
        let all = self.list("tensors").iter();
        all.map(|t| {
            let (shape, offset, len) = one(t);
            (t[0].as_str().unwrap(), t[1].as_str().unwrap(), shape, offset, len, t[5].as_str().unwrap())
        })
        .collect()
    }
}
