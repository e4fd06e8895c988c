//! Which options apply to what is asked for. An option that would have no effect is refused before
//! the input is opened, and so is an output whose name says another container than the one that is
//! written.

use std::fs::File;
use std::io::{IsTerminal, Read};
use std::path::Path;

use super::args::{
    Command, ConvertArgs, ConvertTo, ForgetArgs, GgufModelArgs, MergeTo, RunArgs, TypeArgs,
};
use crate::hooks::NamedInput;
use crate::{AnamnesisError, ConvertTarget, ForgetScheme, Result};

/// A command that writes a model, as far as its arguments tell.
struct Request<'a> {
    command: WritingCommand<'a>,
    run: &'a RunArgs,
    /// The container of the output.
    target: ConvertTarget,
    /// What tensors are encoded to.
    scheme: Option<&'a ForgetScheme>,
    /// Number of inputs.
    inputs: usize,
}

#[derive(Clone, Copy)]
enum WritingCommand<'a> {
    Remember,
    Forget(&'a ForgetArgs),
    Convert(&'a ConvertArgs),
    Merge,
}

/// When an option applies.
struct Applicability {
    option: &'static str,
    is_set: fn(&Request<'_>) -> bool,
    applies: fn(&Request<'_>) -> bool,
    /// What it needs.
    needs: &'static str,
}

/// Every option that not all requests of its command can use.
const OPTIONS: &[Applicability] = &[
    Applicability {
        option: "--imatrix",
        is_set: |r| r.forget().is_some_and(|args| args.imatrix.is_some()),
        applies: |r| {
            let searches = r.forget().is_some_and(|args| args.search);
            r.scheme.is_some_and(|scheme| scheme.is_gguf() || searches)
        },
        needs: "importance matrices are for GGUF types, such as gguf:q4_k_m, and for --search",
    },
    Applicability {
        option: "--awq-scaling",
        is_set: |r| r.forget().is_some_and(|args| args.awq_scaling),
        applies: |r| r.forget().is_some_and(|args| args.imatrix.is_some()),
        needs: "which inputs are large is in an importance matrix (--imatrix)",
    },
    Applicability {
        option: "--activation-scales",
        is_set: |r| {
            r.forget()
                .is_some_and(|args| args.activation_scales.is_some())
        },
        applies: |r| r.scheme.is_some_and(ForgetScheme::has_activation_scales),
        needs: "fp8, fp8-channel, fp8-tensor and fp8-comfy store scales of activations",
    },
    Applicability {
        option: "--search",
        is_set: |r| r.forget().is_some_and(|args| args.search),
        applies: |r| r.scheme.is_some_and(ForgetScheme::has_search),
        needs: "the scheme has no search of scales; GGUF types always search",
    },
    Applicability {
        option: "--pure",
        is_set: |r| r.forget().is_some_and(|args| args.pure),
        applies: |r| r.scheme.is_some_and(ForgetScheme::is_gguf),
        needs: "only GGUF types, such as gguf:q4_k_m, mix types",
    },
    Applicability {
        option: "--token-embedding-type or --output-tensor-type",
        is_set: |r| r.types().is_some_and(TypeArgs::name_kinds),
        applies: |r| r.scheme.is_some_and(ForgetScheme::is_gguf),
        needs: "it is for GGUF types, such as gguf:q4_k_m",
    },
    Applicability {
        option: "--tensor-type, --plan, --bits or --size",
        is_set: |r| {
            r.types()
                .is_some_and(|types| types.name_types() || types.has_budget())
        },
        applies: |r| {
            r.scheme
                .is_some_and(|scheme| scheme.is_gguf() || scheme.has_mixtures())
        },
        needs: "models of MLX, compressed-tensors, ModelOpt and GGUF have several types, as with --to mlx-4bit, w4a16, nvfp4 or gguf:q4_k_m; of others the scheme says the width",
    },
    Applicability {
        option: "--plan",
        is_set: |r| r.types().is_some_and(|types| types.saved_plan().is_some()),
        applies: |r| r.inputs == 1,
        needs: "it is of one output, and there are several inputs",
    },
    Applicability {
        option: "--allow-requantize",
        is_set: |r| r.types().is_some_and(|types| types.allow_requantize),
        applies: |r| r.scheme.is_some(),
        needs: "nothing is encoded; --to with a type, e.g. q4_k_m, encodes",
    },
    Applicability {
        option: "--manifest",
        is_set: |r| r.run.output.manifest.is_some(),
        applies: |r| r.inputs == 1,
        needs: "a list is of one output, and there are several inputs",
    },
    Applicability {
        option: "--html",
        is_set: |r| r.forget().is_some_and(|args| args.html.is_some()),
        applies: |r| r.inputs == 1,
        needs: "a page is of one output, and there are several inputs",
    },
    Applicability {
        option: "--csv",
        is_set: |r| r.forget().is_some_and(|args| args.csv),
        applies: |r| r.inputs == 1,
        needs: "a table is of one output, and there are several inputs",
    },
    Applicability {
        option: "--csv",
        is_set: |r| r.forget().is_some_and(|args| args.csv),
        applies: |r| r.is_to_file(),
        needs: "stdout is for the output (-o -)",
    },
    Applicability {
        option: "--group-size",
        is_set: |r| r.forget().is_some_and(|args| args.group_size.is_some()),
        applies: |r| r.scheme.is_some_and(ForgetScheme::has_group_sizes),
        needs: "the scheme leaves no choice of the group size",
    },
    Applicability {
        option: "--scale-rule",
        is_set: |r| r.forget().is_some_and(|args| args.scale_rule.is_some()),
        applies: |r| r.scheme.is_some_and(ForgetScheme::has_scale_rules),
        needs: "rules choose the scales of MXFP4 and MXFP8 alone",
    },
    Applicability {
        option: "--gguf-metadata",
        is_set: |r| r.run.output.gguf_metadata.is_some(),
        applies: |r| r.is_to_gguf(),
        needs: "only a GGUF output has GGUF metadata; --to gguf or -o NAME.gguf makes one",
    },
    Applicability {
        option: "--gguf-kv",
        is_set: |r| !r.run.output.gguf_kv.is_empty(),
        applies: |r| r.is_to_gguf(),
        needs: "only a GGUF output has GGUF metadata; --to gguf or -o NAME.gguf makes one",
    },
    Applicability {
        option: "--tokenizer-pre",
        is_set: |r| r.run.output.tokenizer_pre.is_some(),
        applies: |r| r.is_to_gguf() && !r.run.output.tensors_only && !r.run.output.is_tower(),
        needs: "only a whole model as GGUF has a pre-tokenizer",
    },
    Applicability {
        option: "--base",
        is_set: |r| r.convert().is_some_and(|args| args.base.is_some()),
        applies: |r| r.inputs == 1,
        needs: "one adapter, or one draft, becomes a GGUF file, or an adapter a directory of safetensors",
    },
    Applicability {
        option: "--vocab-only",
        is_set: |r| r.convert().is_some_and(|args| args.vocab_only),
        applies: |r| r.is_to_gguf() && r.scheme.is_none(),
        needs: "a file of a tokenizer alone is GGUF without tensors; use --to gguf",
    },
    Applicability {
        option: "--mtp",
        is_set: |r| r.convert().is_some_and(|args| args.mtp),
        applies: |r| r.is_to_gguf() && r.scheme.is_none(),
        needs: "layers that predict further tokens become a GGUF file of their own, whose tensors are not encoded; use --to gguf",
    },
    Applicability {
        option: "--no-mtp",
        is_set: |r| r.model().is_some_and(|args| args.no_mtp),
        applies: |r| r.is_to_gguf(),
        needs: "only a GGUF model is written without them; use --to gguf",
    },
    Applicability {
        option: "--fuse-qkv",
        is_set: |r| r.model().is_some_and(|args| args.fuse_qkv),
        applies: |r| r.is_to_gguf(),
        needs: "only GGUF models have fused tensors; use --to gguf or a type such as gguf:q4_k_m",
    },
    Applicability {
        option: "--fuse-gate-up-exps",
        is_set: |r| r.model().is_some_and(|args| args.fuse_gate_up_exps),
        applies: |r| r.is_to_gguf(),
        needs: "only GGUF models have fused tensors; use --to gguf or a type such as gguf:q4_k_m",
    },
    Applicability {
        option: "--fp8-as-q8",
        is_set: |r| r.convert().is_some_and(|args| args.fp8_as_q8),
        applies: |r| r.is_to_gguf() && r.scheme.is_none(),
        needs: "Q8_0 is a type of GGUF beside floats; use --to gguf",
    },
    Applicability {
        option: "--mmproj",
        is_set: |r| r.run.output.is_tower(),
        applies: |r| r.is_to_gguf(),
        needs: "an image tower becomes a GGUF file; use --to gguf",
    },
    Applicability {
        option: "--mmproj FILE",
        is_set: |r| r.run.output.tower().is_some(),
        applies: |r| !r.is_to_gguf() && r.inputs == 1,
        needs: "a GGUF model and its tower become one Hugging Face directory",
    },
    Applicability {
        option: "--out-dtype",
        is_set: |r| r.convert().is_some_and(|args| args.out_dtype.is_some()),
        applies: |r| r.scheme.is_some() || r.target.default_scheme().is_none(),
        needs: "QNAT holds codes alone, which are made of F32",
    },
    Applicability {
        option: "--cast",
        is_set: |r| r.convert().is_some_and(|args| args.cast.cast),
        applies: |r| r.scheme.is_none() && r.target.default_scheme().is_none(),
        needs: "tensors are encoded, not cast",
    },
    Applicability {
        option: "--cast",
        is_set: |r| r.convert().is_some_and(|args| args.cast.cast),
        applies: |r| r.convert().is_some_and(|args| args.out_dtype.is_some()),
        needs: "--out-dtype says to what",
    },
    Applicability {
        option: "--json",
        is_set: |r| r.run.json,
        applies: |r| r.is_to_file(),
        needs: "stdout is for the output (-o -)",
    },
    Applicability {
        option: "--max-shard-size",
        is_set: |r| r.run.output.max_shard_size.is_some(),
        applies: |r| r.is_to_file(),
        needs: "stdout takes one file (-o -)",
    },
    Applicability {
        option: "--max-shard-size",
        is_set: |r| r.run.output.max_shard_size.is_some(),
        // A directory gets the shards of safetensors; those of GGUF lie beside each other.
        applies: |r| r.target != ConvertTarget::Safetensors || !r.names_container(),
        needs: "shards go to a directory, and -o names a file",
    },
    Applicability {
        option: "--resume",
        is_set: |r| r.run.resume,
        applies: |r| r.is_to_file(),
        needs: "only a directory can be continued, and the output goes to stdout (-o -)",
    },
    Applicability {
        option: "--part",
        is_set: |r| r.run.part().is_some(),
        applies: |r| r.is_to_file(),
        needs: "only a directory is made in parts, and the output goes to stdout (-o -)",
    },
    Applicability {
        option: "--sha256",
        is_set: |r| r.run.output.hashes(),
        applies: |r| r.is_to_file(),
        needs: "sums are of files, and the output goes to stdout (-o -)",
    },
    Applicability {
        option: "-o NAME.npy",
        is_set: |r| r.target == ConvertTarget::Npy && r.names_container(),
        applies: |_| false,
        needs: "NPY outputs are directories with a file for each tensor, so name one; `amn show FILE TENSOR --npy OUT.npy` writes one array",
    },
    Applicability {
        option: "-o -",
        is_set: |r| r.target == ConvertTarget::Npy && !r.is_to_file(),
        applies: |_| false,
        needs: "NPY outputs are directories with a file for each tensor",
    },
    Applicability {
        option: "-o -",
        is_set: |r| !r.is_to_file() && !r.run.dry_run,
        applies: |_| !std::io::stdout().is_terminal(),
        needs: "stdout is a terminal; redirect it, or name a file",
    },
];

impl<'a> Request<'a> {
    /// The request of `command`, or why its output cannot be called what it is to be called; `None`
    /// of other commands.
    fn of(command: &'a Command) -> Option<std::result::Result<Self, String>> {
        let (command, run, target, scheme, inputs) = match command {
            // With --finish nothing is converted.
            Command::Remember(args) if args.finish => return None,
            Command::Remember(args) => {
                let target = match remembered_as(args.run.output.path.as_deref()) {
                    Ok(target) => target,
                    Err(what) => return Some(Err(what)),
                };
                (WritingCommand::Remember, &args.run, target, None, args.input.files.len())
            }
            Command::Forget(args) => {
                let scheme = args.to.as_ref()?;
                let target = scheme.container();
                (
                    WritingCommand::Forget(args),
                    &args.run,
                    target,
                    Some(scheme),
                    args.input.as_ref()?.files.len(),
                )
            }
            Command::Convert(args) => {
                let (target, scheme) = match &args.to {
                    Some(ConvertTo::Container(target)) => (*target, None),
                    Some(ConvertTo::Scheme(scheme)) => (scheme.container(), Some(scheme)),
                    None => match converted_as(args) {
                        Ok(target) => (target, None),
                        Err(what) => return Some(Err(what)),
                    },
                };
                (WritingCommand::Convert(args), &args.run, target, scheme, args.input.files.len())
            }
            Command::Merge(args) => {
                let (target, scheme) = match &args.to {
                    MergeTo::Dtype(_) => match remembered_as(args.run.output.path.as_deref()) {
                        Ok(target) => (target, None),
                        Err(what) => return Some(Err(what)),
                    },
                    MergeTo::Other(ConvertTo::Container(target)) => (*target, None),
                    MergeTo::Other(ConvertTo::Scheme(scheme)) => (scheme.container(), Some(scheme)),
                };
                (WritingCommand::Merge, &args.run, target, scheme, 1)
            }
            _ => return None,
        };
        Some(Ok(Self { command, run, target, scheme, inputs }))
    }

    fn forget(&self) -> Option<&'a ForgetArgs> {
        match self.command {
            WritingCommand::Forget(args) => Some(args),
            _ => None,
        }
    }

    fn convert(&self) -> Option<&'a ConvertArgs> {
        match self.command {
            WritingCommand::Convert(args) => Some(args),
            _ => None,
        }
    }

    fn types(&self) -> Option<&'a TypeArgs> {
        match self.command {
            WritingCommand::Remember | WritingCommand::Merge => None,
            WritingCommand::Forget(args) => Some(&args.types),
            WritingCommand::Convert(args) => Some(&args.types),
        }
    }

    fn model(&self) -> Option<&'a GgufModelArgs> {
        match self.command {
            WritingCommand::Remember | WritingCommand::Merge => None,
            WritingCommand::Forget(args) => Some(&args.model),
            WritingCommand::Convert(args) => Some(&args.model),
        }
    }

    fn is_to_gguf(&self) -> bool {
        self.target == ConvertTarget::Gguf
    }

    /// Whether the output's name has the extension of a container.
    fn names_container(&self) -> bool {
        let output = self.run.output.path.as_deref();
        output.is_some_and(|output| matches!(stated_container(output), Ok(Some(_))))
    }

    fn is_to_file(&self) -> bool {
        !self.run.output.is_stdout()
    }
}

/// Checks the arguments of a command. An error says which option does not apply, and why.
pub(super) fn check(command: &Command) -> std::result::Result<(), String> {
    let Some(request) = Request::of(command) else {
        return Ok(());
    };
    let request = request?;
    require_same_container(&request)?;
    let refused = |row: &&Applicability| (row.is_set)(&request) && !(row.applies)(&request);
    match OPTIONS.iter().find(refused) {
        Some(row) => {
            let to = request.scheme.map(|scheme| format!(" with --to {scheme}"));
            let to = to.unwrap_or_default();
            Err(format!("{} does not apply{to}: {}", row.option, row.needs))
        }
        None => Ok(()),
    }
}

/// The container that the name of an output states by its extension; `None` if it states none.
///
/// # Errors
/// The extension is that of a container that is read and not written.
fn stated_container(output: &Path) -> std::result::Result<Option<ConvertTarget>, String> {
    let (Some(extension), Some(name)) = (output.extension(), output.file_name()) else {
        return Ok(None);
    };
    let mut all = ConvertTarget::ALL.iter().copied();
    let written = all.find(|target| extension.eq_ignore_ascii_case(target.extension()));
    // Some containers are called so, too: `x.pt`.
    let written = written.or_else(|| extension.to_str()?.parse().ok());
    match written {
        None if NamedInput::is_model_file(&name.to_string_lossy()) => Err(format!(
            "-o {}: files of this kind are read and not written; what is written is {}",
            output.display(),
            ConvertTarget::listed()
        )),
        written => Ok(written),
    }
}

/// The container that `convert` writes without `--to`: the one that the output's extension states.
///
/// # Errors
/// It states none.
pub(super) fn converted_as(args: &ConvertArgs) -> std::result::Result<ConvertTarget, String> {
    let output = args.run.output.path.as_deref();
    let stated = output.map(stated_container).transpose()?.flatten();
    stated.ok_or_else(|| {
        let listed = ConvertTarget::listed();
        format!(
            "--to FORMAT is missing, and no output's name says it: {listed}, or a scheme, e.g. gguf:q4_k_m; `amn remember FILE` decodes to safetensors"
        )
    })
}

/// The container that `remember` writes to `output`: the one that its extension states, or
/// safetensors.
///
/// # Errors
/// The container holds codes alone.
pub(super) fn remembered_as(output: Option<&Path>) -> std::result::Result<ConvertTarget, String> {
    let stated = output.map(stated_container).transpose()?.flatten();
    match (stated, output) {
        (Some(target), Some(output)) if target.default_scheme().is_some() => {
            let title = target.title();
            Err(format!(
                "-o {}: {title} holds codes alone, and remember decodes them; use forget or convert",
                output.display()
            ))
        }
        (stated, _) => Ok(stated.unwrap_or_default()),
    }
}

/// Fails if the output's name states another container than the one that is written.
fn require_same_container(request: &Request<'_>) -> std::result::Result<(), String> {
    let Some(output) = &request.run.output.path else {
        return Ok(());
    };
    if request.target == ConvertTarget::Pth && is_torch_name(output) {
        return Ok(());
    }
    match stated_container(output)? {
        Some(stated) if stated != request.target => {
            let (title, other) = (request.target.title(), stated.title());
            Err(format!("-o {} is the name of {other}, and --to says {title}", output.display()))
        }
        _ => Ok(()),
    }
}

/// Whether a file is called as PyTorch's are that other files are called, too.
fn is_torch_name(output: &Path) -> bool {
    let extension = output.extension();
    extension.is_some_and(|extension| extension == "bin" || extension == "ckpt")
}

/// Checks that the files that options name are there, so that nothing is parsed in vain.
///
/// # Errors
/// `Io` with the first path that cannot be read; `Usage` if it is a pipe or a device.
pub(super) fn require_files(args: &ForgetArgs) -> Result<()> {
    let scales = ("--activation-scales", &args.activation_scales);
    for (option, path) in [("--imatrix", &args.imatrix), ("--like", &args.like), scales] {
        let Some(path) = path else {
            continue;
        };
        let there = std::fs::metadata(path).map_err(|e| AnamnesisError::io_at(path, &e))?;
        if !(there.is_file() || option != "--imatrix" && there.is_dir()) {
            return Err(not_regular(option, path));
        }
    }
    Ok(())
}

/// Fails if the file `path` that `option` names is a pipe, a device or a directory.
///
/// # Errors
/// `Io` if it is not there; `Usage`.
pub(super) fn require_regular(option: &str, path: &Path) -> Result<()> {
    let there = std::fs::metadata(path).map_err(|e| AnamnesisError::io_at(path, &e))?;
    match there.is_file() {
        true => Ok(()),
        false => Err(not_regular(option, path)),
    }
}

/// Fails if the model `path` that `option` names is a pipe or a device. One that is not there may be in a
/// cache.
///
/// # Errors
/// `Usage`.
pub(super) fn require_model(option: &str, path: &Path) -> Result<()> {
    match std::fs::metadata(path) {
        Ok(there) if !there.is_file() && !there.is_dir() => Err(not_regular(option, path)),
        _ => Ok(()),
    }
}

fn not_regular(option: &str, path: &Path) -> AnamnesisError {
    AnamnesisError::usage(format!("{option}: {} is not a regular file", path.display()))
}

/// Text of the file `path` that `option` names.
///
/// # Errors
/// `Io` if it cannot be read; `Usage` if it is no regular file, too large, or no text.
pub(super) fn read_text(option: &str, path: &Path) -> Result<String> {
    require_regular(option, path)?;
    let mut text = Vec::new();
    let read = File::open(path).and_then(|file| file.take(MAX_TEXT + 1).read_to_end(&mut text));
    let len = read.map_err(|e| AnamnesisError::io_at(path, &e))? as u64;
    let refuse = |what: String| {
        let path = path.display();
        AnamnesisError::usage(format!("{option}: {path} is {what}"))
    };
    if len > MAX_TEXT {
        return Err(refuse(format!("larger than {MAX_TEXT} bytes")));
    }
    String::from_utf8(text).map_err(|_| refuse("no text in UTF-8".to_owned()))
}

/// Largest file of an option, in bytes.
const MAX_TEXT: u64 = 64 << 20;
