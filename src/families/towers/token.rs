//! The row of the embedding that some towers have, too.

use serde_json::Value;

use super::{TEXT_HIDDEN, TOKEN_ROW};
use crate::config::Texts;
use crate::families::engine::fields::Fields;
use crate::families::engine::source::SourceTensor;
use crate::remember::Group;
use crate::{AnamnesisError, Result, TargetDtype};

/// The row of the embedding of the language model that is that of `token`.
///
/// # Errors
/// `Parse` if no file has the token, or there is no embedding with such a row.
pub(super) fn token_row<'m>(
    token: &str,
    sources: &[SourceTensor<'m>],
    (texts, fields): (&Texts, &Fields),
) -> Result<Group<'m>> {
    let missing = |what: String| AnamnesisError::parse(format!("the row of {token}: {what}"));
    let id = token_id(token, texts)?;
    let id = id
        .filter(|id| *id > 0)
        .ok_or_else(|| missing("no file of the tokenizer has the token".to_owned()))?;
    let embedding = sources
        .iter()
        .find(|source| source.name.ends_with("embed_tokens.weight"))
        .ok_or_else(|| missing("there is no `embed_tokens.weight`".to_owned()))?;
    let [rows, cols] = embedding.shape[..] else {
        return Err(missing(format!("`{}` is no matrix", embedding.name)));
    };
    let wanted = fields.need(&[TEXT_HIDDEN])? as usize;
    if cols != wanted {
        let what = format!("`{}` has {cols} columns, and hidden_size is {wanted}", embedding.name);
        return Err(missing(what));
    }
    if id >= rows {
        let what = format!("it is row {id} of `{}`, which has {rows}", embedding.name);
        return Err(missing(what));
    }
    let name = TOKEN_ROW.to_owned();
    let row = embedding.rows_of(name.clone(), id, (1, false));
    Ok(row.reshaped(name, vec![cols], TargetDtype::F32))
}

/// The number of `token`.
fn token_id(token: &str, texts: &Texts) -> Result<Option<usize>> {
    let has_text = |entry: &Value| entry.get("content").and_then(Value::as_str) == Some(token);
    if let Some(config) = texts.json("tokenizer_config.json")?
        && let Some(tokens) = config
            .get("added_tokens_decoder")
            .and_then(Value::as_object)
        && let Some((id, _)) = tokens.iter().find(|(_, entry)| has_text(entry))
    {
        return Ok(id.parse().ok());
    }
    let Some(tokenizer) = texts.json("tokenizer.json")? else {
        return Ok(None);
    };
    let tokens = tokenizer.get("added_tokens").and_then(Value::as_array);
    let found = tokens.and_then(|tokens| tokens.iter().find(|entry| has_text(entry)));
    let id = found.and_then(|entry| entry.get("id")?.as_u64());
    Ok(id.and_then(|id| usize::try_from(id).ok()))
}
