//! Edits of the metadata in a GGUF header. What is not edited keeps its bytes: version, byte order, other
//! keys, descriptions of tensors.

mod checks;
mod keys;

use std::path::Path;

use self::keys::EditedKeys;
use super::{EditOptions, EditedHeader};
use crate::limits::{Budget, zeroed};
use crate::model::gguf_keys::{CHAT_TEMPLATE, PRE_TOKENIZER};
use crate::parse::gguf::header::{self, GgufHeader};
use crate::parse::gguf::{GgufEdit, parse_gguf_edit, read_header, split};
use crate::source::Source;
use crate::{AnamnesisError, Result};

/// Bytes of magic and version, which the counts follow.
const COUNTS: usize = 8;

pub(super) fn edit(
    source: &Source,
    path: &Path,
    options: &EditOptions,
    budget: &Budget,
) -> Result<EditedHeader> {
    require_alone(source)?;
    let header = read_header(source, budget)?;
    let parts = split::numbers(&header.metadata)?;
    split::require_first(parts, path)?;
    // Without tensors, the padding behind the header may be missing.
    let old_len = header.data_start.min(source.len().unwrap_or(0));
    budget.alloc(old_len, "the header")?;
    let mut old = zeroed(old_len, "the header")?;
    source.read_at(0, &mut old)?;
    let mut keys = EditedKeys::new(&header.metadata);
    options.unset.iter().try_for_each(|key| keys.remove(key))?;
    options
        .rename
        .iter()
        .try_for_each(|(from, to)| keys.rename(from, to))?;
    keys.set(&edits(options)?)?;
    let changes = keys.changes();
    let mut notes = checks::check(&header, &keys, &changes, (options, parts.1))?;
    if parts.1 > 1 {
        let others = parts.1 - 1;
        notes.push(format!(
            "the model has {others} more files, which stay as they are: its metadata is in the first"
        ));
    }
    let new = match changes.is_empty() {
        true => old.clone(),
        false => assemble(&header, &keys, &old)?,
    };
    // A second look at what will be written. It has the limits of the first behind it.
    let read = header::read(&*new, None, &Budget::unbounded())?;
    if read.data_start != new.len() as u64 && !changes.is_empty()
        || read.tensors.len() != header.tensors.len()
    {
        return Err(AnamnesisError::parse("the edit would change tensors"));
    }
    Ok(EditedHeader { old, new, changes, notes })
}

/// # Errors
/// `Unsupported` if the file is another with a GGUF file inside.
fn require_alone(source: &Source) -> Result<()> {
    let mut magic = [0; 4];
    source.read_at(0, &mut magic)?;
    if magic == *b"GGUF" {
        return Ok(());
    }
    let what = "the GGUF file inside is not edited; `amn convert FILE -o OUT.gguf` writes it alone";
    Err(AnamnesisError::unsupported("editing: llamafile", what))
}

/// The values that are set, in the order in which they count.
fn edits(options: &EditOptions) -> Result<Vec<GgufEdit>> {
    let set = options
        .set
        .iter()
        .map(|text| parse_gguf_edit(text).map_err(|e| e.about("--set")));
    let mut all = set.collect::<Result<Vec<_>>>()?;
    if let Some(text) = &options.chat_template {
        all.push(GgufEdit::text(CHAT_TEMPLATE, text));
    }
    if let Some(name) = &options.tokenizer_pre {
        checks::require_pre_tokenizer(name)?;
        all.push(GgufEdit::text(PRE_TOKENIZER, name));
    }
    Ok(all)
}

/// The header with other keys: offsets of tensors count from the end of it, so that their descriptions
/// stay as they are.
fn assemble(header: &GgufHeader, keys: &EditedKeys<'_>, old: &[u8]) -> Result<Vec<u8>> {
    let encoding = header.metadata.encoding();
    let mut new = old.get(..COUNTS).unwrap_or_default().to_vec();
    encoding.write_len(header.tensors.len(), &mut new);
    encoding.write_len(keys.len(), &mut new);
    keys.write(&mut new);
    let tensors = header.metadata.size() as usize..header.end as usize;
    new.extend_from_slice(old.get(tensors).unwrap_or_default());
    new.resize(new.len().next_multiple_of(header.alignment as usize), 0);
    Ok(new)
}
