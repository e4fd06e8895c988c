//! llamafile: an executable with a ZIP archive behind it, in which a GGUF file is stored as it is.
//! The file is read in place, as the executable does that maps it.
//!
//! Source: llamafile's `zipalign` and README ("Creating llamafiles").

use super::gguf;
use super::zip::{ZipArchive, ZipMember};
use crate::limits::{Budget, join_first};
use crate::source::Source;
use crate::{AnamnesisError, ParsedModel, Result};

const WHAT: &str = "an executable, which is read if it is a llamafile";

/// Part of the names of projectors of images, which lie beside the language model.
const PROJECTOR: &str = "mmproj";

/// Most members that a message names.
const MAX_NAMED: usize = 5;

/// Reads the model in an executable.
///
/// # Errors
/// `Unsupported` if there is no GGUF file in it, or several, or if it is compressed; `Parse` if the
/// archive or the GGUF file is malformed; `LimitExceeded`; `Io`.
pub(super) fn read(source: Source, budget: &Budget) -> Result<ParsedModel> {
    let archive = ZipArchive::read(&mut &source, budget).map_err(|e| e.about(WHAT))?;
    let (member, left_out) = find_model(&archive)?;
    if member.deflated {
        let what = format!("`{}` in it is compressed: unpack it first", member.name);
        return Err(AnamnesisError::unsupported("a llamafile", what));
    }
    let start = archive.read_data_start(&mut &source, member)?;
    // The archive's checks bound the sum by the length of the file.
    let place = start..start + member.stored_len;
    let about = |e: AnamnesisError| e.about(format_args!("`{}`", member.name));
    let mut model = gguf::read_within(source, place, budget).map_err(about)?;
    let note = |name: &str| format!("not part of the model and left out: {name}");
    model.notes.extend(left_out.into_iter().map(note));
    Ok(model)
}

/// The member with the language model, and the names of the other models.
///
/// # Errors
/// `Unsupported` if there is none, or more than one.
fn find_model(archive: &ZipArchive) -> Result<(&ZipMember, Vec<&str>)> {
    let models = || archive.members.iter().filter(|m| m.name.ends_with(".gguf"));
    let (projectors, models): (Vec<_>, Vec<_>) = models().partition(|m| m.name.contains(PROJECTOR));
    match models.as_slice() {
        [model] => Ok((model, projectors.iter().map(|m| m.name.as_str()).collect())),
        [] => Err(AnamnesisError::unsupported(WHAT, "there is no model in its archive")),
        several => {
            let names: Vec<_> = several.iter().map(|m| m.name.as_str()).collect();
            let shown = join_first(&names, MAX_NAMED);
            let what = format!("which of {} models? {shown}: unpack one", names.len());
            Err(AnamnesisError::unsupported("a llamafile", what))
        }
    }
}
