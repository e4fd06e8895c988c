//! What people type who come from other programs: arguments that are taken as they are meant, and
//! those whose error names the command that does it.

mod names;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::error::{ContextKind, ContextValue, ErrorKind};

use self::names::{JOIN, OPTIONS, VERBS, find};
use super::values::parse_scheme;

/// The arguments of `program`: a model alone is inspected, also one of Ollama's, and one that has a
/// path and is not there, whose error says so.
pub(in super::super) fn meant(program: &clap::Command, mut args: Vec<OsString>) -> Vec<OsString> {
    let is_model = args.get(1).is_some_and(|first| {
        let text = first.to_str();
        let is_command = text
            .is_some_and(|name| name.starts_with('-') || program.find_subcommand(name).is_some());
        let is_name = text.is_some_and(|name| name.starts_with("ollama:") || name.contains('/'));
        !is_command && (is_name || Path::new(first).exists())
    });
    if is_model {
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
    match error.kind() {
        ErrorKind::InvalidSubcommand => find(VERBS, invalid(ContextKind::InvalidSubcommand)?),
        ErrorKind::UnknownArgument => {
            find(OPTIONS, invalid(ContextKind::InvalidArg)?).or_else(|| pair(args))
        }
        ErrorKind::MissingRequiredArgument => missing(args),
        ErrorKind::ArgumentConflict => output_of_parts(args),
        _ => None,
    }
}

/// What is meant by a key and a value as arguments, as gguf_set_metadata.py takes them.
fn pair(args: &[OsString]) -> Option<String> {
    let mut texts = args.iter().skip(1).filter_map(|arg| arg.to_str());
    match (texts.next()?, texts.collect::<Vec<_>>().as_slice()) {
        ("edit", [file, key, value]) if !value.starts_with('-') => {
            Some(format!("a change is an option: `amn edit {file} --set {key}={value} --in-place`"))
        }
        _ => None,
    }
}

/// What is meant by `--finish` with an output, which is the command's argument.
fn output_of_parts(args: &[OsString]) -> Option<String> {
    let texts: Vec<&str> = args.iter().filter_map(|arg| arg.to_str()).collect();
    let at = texts
        .iter()
        .position(|arg| ["-o", "--output"].contains(arg))?;
    let output = texts.get(at + 1).filter(|_| texts.contains(&"--finish"))?;
    Some(format!(
        "the argument is the output whose parts are there: `amn remember {output} --finish`"
    ))
}

/// What is meant by a command that lacks an argument.
fn missing(args: &[OsString]) -> Option<String> {
    let mut texts = args.iter().skip(1).filter_map(|arg| arg.to_str());
    match (texts.next()?, texts.collect::<Vec<_>>().as_slice()) {
        // As for llama-quantize, whose options come first.
        ("forget" | "quantize", [.., input, output, name]) if is_file_type(name) && !input.starts_with('-') => {
            let name = gguf(name);
            Some(format!("the scheme is an option: `amn quantize {input} --to {name} -o {output}`"))
        }
        ("forget" | "quantize", [.., input, name]) if is_file_type(name) => {
            Some(format!("the scheme is an option: `amn quantize {input} --to {}`", gguf(name)))
        }
        ("forget" | "quantize", [.., number]) if number.parse::<u32>().is_ok() => {
            Some("the scheme is an option, and has a name: `amn quantize IN.gguf --to gguf:q4_k_m -o OUT.gguf`".to_owned())
        }
        ("ls" | "list", []) => {
            Some("`amn ls FILE` lists the tensors of a model, and `amn ls ollama:MODEL` of one of those that `ollama list` names".to_owned())
        }
        ("merge", rest) if rest.iter().filter(|arg| !arg.starts_with('-')).count() < 3 => {
            Some(format!("`amn merge BASE ADAPTER -o OUT` merges adapters; {JOIN}"))
        }
        _ => None,
    }
}

fn is_file_type(name: &str) -> bool {
    parse_scheme(&gguf(name)).is_ok()
}

/// The scheme of a file type of GGUF.
fn gguf(name: &str) -> String {
    format!("gguf:{}", name.to_ascii_lowercase())
}
