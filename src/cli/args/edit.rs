//! The arguments of `amn edit`.

use std::path::PathBuf;

use super::run::{OUTPUT, RUN};
use super::values::parse_rename;
use super::{LimitArgs, MessageArgs};

/// Heading of the changes in `--help`.
const CHANGES: &str = "Changes";

#[derive(Debug, clap::Args)]
pub(in super::super) struct EditArgs {
    /// GGUF or safetensors file, a JSON file such as config.json, a directory with one,
    /// ORG/MODEL in the cache of Hugging Face, or ollama:MODEL[:TAG]
    pub model: PathBuf,
    /// Set a key, e.g. general.name=Tiny; may be repeated. GGUF: the value gets the type of its key,
    /// and KEY:TYPE=VALUE another, e.g. my.list:[f32]=[1, 2]. Safetensors: a text. JSON: JSON or a
    /// text, and keys of nested objects have dots between them
    #[arg(long, alias = "gguf-kv", value_name = "KEY=VALUE", help_heading = CHANGES)]
    pub set: Vec<String>,
    /// Remove a key; may be repeated. Keys are removed first, then renamed, then set
    #[arg(long, visible_alias = "remove", value_name = "KEY", help_heading = CHANGES)]
    pub unset: Vec<String>,
    /// Give a key another name; may be repeated
    #[arg(long, value_name = "OLD=NEW", help_heading = CHANGES, value_parser = parse_rename)]
    pub rename: Vec<(String, String)>,
    /// Set the chat template of a GGUF file to the text of this one
    #[arg(long, alias = "chat-template-file", value_name = "FILE", help_heading = CHANGES)]
    pub chat_template: Option<PathBuf>,
    /// llama.cpp's name of the pre-tokenizer of a GGUF file, e.g. llama-bpe
    #[arg(long, alias = "pre-tokenizer", value_name = "NAME", help_heading = CHANGES)]
    pub tokenizer_pre: Option<String>,
    /// Output file: a copy with the changes
    #[arg(short, long, value_name = "OUT", help_heading = OUTPUT)]
    pub output: Option<PathBuf>,
    /// Change the file itself; it has all changes or none, whatever happens
    #[arg(short, long, conflicts_with = "output", help_heading = OUTPUT)]
    pub in_place: bool,
    /// Write what the file has before its tensor data, or the whole config, to FILE first
    #[arg(long, value_name = "FILE", help_heading = OUTPUT)]
    pub backup: Option<PathBuf>,
    /// Replace an existing output; also write changes with which llama.cpp would not load the model
    #[arg(short, long, help_heading = OUTPUT)]
    pub force: bool,
    /// Say what would be done, and do nothing
    #[arg(long, help_heading = RUN)]
    pub dry_run: bool,
    /// Print JSON; see docs/json.md
    #[arg(long, help_heading = RUN)]
    pub json: bool,
    #[command(flatten)]
    pub messages: MessageArgs,
    #[command(flatten)]
    pub limits: LimitArgs,
}
