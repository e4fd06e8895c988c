//! What people type who come from other programs: arguments that are taken as they are meant, and
//! those whose error names the command that does it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::values::parse_scheme;

/// Commands of other programs that are no command here.
const VERBS: &[(&str, &str)] = &[
    (
        "extract",
        "`amn convert FILE --include NAME --to safetensors -o OUT` writes some tensors, and `amn show FILE NAME --npy OUT.npy` the values of one",
    ),
    (
        "split",
        "`amn convert FILE --to safetensors --max-shard-size 5GB -o DIRECTORY` writes several files",
    ),
    ("join", JOIN),
    (
        "repair",
        "`amn check FILE` says what is wrong, and `amn convert FILE --to safetensors --skip-unsupported -o OUT` writes what can be read",
    ),
    ("edit", "`amn convert IN.gguf --to gguf --gguf-kv KEY=VALUE -o OUT.gguf` changes metadata"),
];

/// How shards become one file.
const JOIN: &str = "`amn convert SHARD... -o OUT.gguf` or `-o OUT.safetensors` makes one file of all shards of a model";

/// Options of other programs, and what does the same here.
const OPTIONS: &[(&str, &str)] = &[
    (
        "--override-kv",
        "`--gguf-kv KEY=VALUE` sets metadata, and `--gguf-kv KEY:TYPE=VALUE` with a type",
    ),
    (
        "--chat-template-file",
        "`--gguf-kv \"tokenizer.chat_template=$(cat FILE)\"` sets the template",
    ),
    ("--lora", "`amn merge BASE ADAPTER -o OUT` merges adapters"),
    ("--scale", "`amn merge BASE ADAPTER=0.5 -o OUT` multiplies what an adapter adds"),
    (
        "--outtype",
        "`--to gguf:f16`, `--to gguf:bf16` or `--to gguf:q8_0` says container and type, and `--out-dtype` the type of what is decoded",
    ),
    ("--outfile", "`-o OUT` names the output"),
    ("--rtol", "`--tolerance X` is the largest absolute difference; `--json` has relative ones"),
    ("--split-max-size", "`--max-shard-size 5GB` splits the output"),
    ("--split-max-tensors", "`--max-shard-size 5GB` splits the output, by size"),
    ("--merge", JOIN),
    ("--leave-output-tensor", "`--exclude output.weight` leaves it as it is"),
];

/// The arguments of `program`: a file alone is inspected.
pub(in super::super) fn meant(program: &clap::Command, mut args: Vec<OsString>) -> Vec<OsString> {
    let is_file = args.get(1).is_some_and(|first| {
        let is_command = first
            .to_str()
            .is_some_and(|name| name.starts_with('-') || program.find_subcommand(name).is_some());
        !is_command && Path::new(first).exists()
    });
    if is_file {
        args.insert(1, "inspect".into());
    }
    args
}

/// The model whose shards `files` all are, for an output that is one file; `None` if they are several
/// models.
pub(in super::super) fn model_of(files: &[PathBuf], output: Option<&Path>) -> Option<PathBuf> {
    let output = output?.to_str()?;
    if files.len() < 2 || output.ends_with('/') || Path::new(output).is_dir() {
        return None;
    }
    // `NAME-00001-of-00003.EXTENSION`, in any order: what two of them share, and the number.
    let shard = |file: &PathBuf| {
        let (name, end) = file.to_str()?.rsplit_once("-of-")?;
        let (name, number) = name.rsplit_once('-')?;
        Some((name.to_owned(), end.to_owned(), number.parse::<usize>().ok()?))
    };
    let shards = files.iter().map(|file| Some((shard(file)?, file)));
    let mut shards = shards.collect::<Option<Vec<_>>>()?;
    shards.sort();
    let ((name, end, _), first) = shards.first()?.clone();
    let (count, extension) = end.split_once('.')?;
    let is_whole = count.parse() == Ok(shards.len())
        && (1..)
            .zip(&shards)
            .all(|(n, (shard, _))| *shard == (name.clone(), end.clone(), n));
    // The first file of a split GGUF finds the others, and an index is beside safetensors.
    let model = match (extension, first.parent()) {
        ("gguf", _) => first.clone(),
        (_, Some(directory)) if !directory.as_os_str().is_empty() => directory.to_path_buf(),
        _ => PathBuf::from("."),
    };
    is_whole.then_some(model)
}

/// What `args`, which are refused with `error`, are called here; `None` if nobody knows.
pub(in super::super) fn hint(args: &[OsString], error: &clap::Error) -> Option<String> {
    let invalid = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    let find = |table: &[(&str, &'static str)], name: &str| {
        let row = table.iter().find(|(known, _)| *known == name);
        row.map(|(name, what)| format!("amn has no `{name}`: {what}"))
    };
    match error.kind() {
        ErrorKind::InvalidSubcommand => find(VERBS, invalid(ContextKind::InvalidSubcommand)?),
        ErrorKind::UnknownArgument => find(OPTIONS, invalid(ContextKind::InvalidArg)?),
        ErrorKind::MissingRequiredArgument => missing(args),
        _ => None,
    }
}

/// What is meant by a command that lacks an argument.
fn missing(args: &[OsString]) -> Option<String> {
    let mut texts = args.iter().skip(1).filter_map(|arg| arg.to_str());
    match (texts.next()?, texts.collect::<Vec<_>>().as_slice()) {
        // As for llama-quantize.
        ("forget" | "quantize", [input, output, name]) if parse_scheme(&gguf(name)).is_ok() => {
            Some(format!(
                "the scheme is an option: `amn quantize {input} --to {} -o {output}`",
                gguf(name)
            ))
        }
        ("forget" | "quantize", [input, name]) if parse_scheme(&gguf(name)).is_ok() => {
            Some(format!("the scheme is an option: `amn quantize {input} --to {}`", gguf(name)))
        }
        ("merge", rest) if rest.iter().filter(|arg| !arg.starts_with('-')).count() < 3 => {
            Some(format!("`amn merge BASE ADAPTER -o OUT` merges adapters; {JOIN}"))
        }
        _ => None,
    }
}

/// The scheme of a file type of GGUF.
fn gguf(name: &str) -> String {
    format!("gguf:{}", name.to_ascii_lowercase())
}
