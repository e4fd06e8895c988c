//! tokenizer.model of SentencePiece, read from its protobuf.
//!
//! Source: `sentencepiece_model.proto`.

use std::collections::{HashMap, HashSet};

use super::file::{HfTokenizerFile, TOKENIZER_JSON};
use super::keys::{ADDED_SCORE, TokenTable, TokenType};
use super::{MAX_TOKENS, TokenizerFiles};
use crate::protobuf::{ProtoFields, ProtoValue};
use crate::{AnamnesisError, Result};

/// Names of the file; older models have the others.
const FILES: [&str; 3] = ["tokenizer.model", "spiece.model", "sentencepiece.bpe.model"];

/// A piece of a SentencePiece vocabulary.
pub(crate) struct SentencePiece {
    pub text: String,
    pub score: f32,
    pub kind: TokenType,
    /// Whether the model lists the piece as user-defined, which the converter takes for normal.
    is_user_defined: bool,
}

/// A SentencePiece model: `ModelProto`.
pub(crate) struct SentencePieceModel {
    /// Name of the file.
    pub file: &'static str,
    pub pieces: Vec<SentencePiece>,
    /// `trainer_spec.model_type`: 1 Unigram, 2 BPE.
    pub model_type: u64,
    pub add_dummy_prefix: bool,
    pub remove_extra_whitespaces: bool,
    pub precompiled_charsmap: Vec<u8>,
}

impl SentencePieceModel {
    /// Reads the model; `None` if there is none. A tokenizer.model that is a table of tiktoken's
    /// ranks counts as none where there is a tokenizer.json.
    ///
    /// # Errors
    /// `Parse` if it is malformed, or has a piece twice; `LimitExceeded` if it has too many pieces.
    pub(crate) fn read(files: &TokenizerFiles<'_>) -> Result<Option<Self>> {
        for file in FILES {
            let Some(bytes) = files.request.texts.read(file)? else {
                continue;
            };
            // A SentencePiece model begins with a piece: field 1, with a length.
            if files.json.is_some() && bytes.first() != Some(&0x0a) {
                continue;
            }
            // A piece takes two bytes or more in the file, and its text has an allocation of its
            // own.
            let texts = files.request.texts;
            texts.charge((bytes.len() as u64).saturating_mul(16), file)?;
            return Self::parse(file, &bytes).map(Some);
        }
        Ok(None)
    }

    fn parse(file: &'static str, bytes: &[u8]) -> Result<Self> {
        let malformed = |what: &str| AnamnesisError::parse(format!("{file}: {what}"));
        let mut out = Self {
            file,
            pieces: Vec::new(),
            model_type: 1,
            add_dummy_prefix: true,
            remove_extra_whitespaces: true,
            precompiled_charsmap: Vec::new(),
        };
        for field in ProtoFields::new(bytes) {
            match field.map_err(malformed)? {
                (1, ProtoValue::Bytes(message)) => {
                    let i = out.pieces.len();
                    let what = format!("pieces in {file}");
                    crate::limits::cap("MAX_TOKENS", i as u64 + 1, MAX_TOKENS as u64, what)?;
                    let piece =
                        piece(message).map_err(|e| malformed(&format!("piece {i}: {e}")))?;
                    out.pieces.push(piece);
                }
                (2, ProtoValue::Bytes(trainer)) => {
                    for field in ProtoFields::new(trainer) {
                        if let (3, ProtoValue::Varint(kind)) = field.map_err(malformed)? {
                            out.model_type = kind;
                        }
                    }
                }
                (3, ProtoValue::Bytes(normalizer)) => {
                    for field in ProtoFields::new(normalizer) {
                        match field.map_err(malformed)? {
                            (2, ProtoValue::Bytes(map)) => out.precompiled_charsmap = map.to_vec(),
                            (3, ProtoValue::Varint(flag)) => out.add_dummy_prefix = flag != 0,
                            (4, ProtoValue::Varint(flag)) => {
                                out.remove_extra_whitespaces = flag != 0;
                            }
                            _ => {}
                        }
                    }
                }
                _ => {}
            }
        }
        let mut known = HashSet::with_capacity(out.pieces.len());
        if let Some(twice) = out.pieces.iter().find(|piece| !known.insert(&piece.text)) {
            return Err(malformed(&format!("it has the piece `{}` twice", twice.text)));
        }
        if out.pieces.is_empty() {
            return Err(malformed("it has no pieces; is it of SentencePiece?"));
        }
        Ok(out)
    }

    /// Checks that tokenizer.json has the same ids: which of the two counts would otherwise depend
    /// on the reader.
    ///
    /// # Errors
    /// `Parse` with the first piece that differs.
    pub(super) fn require_same(&self, json: &HfTokenizerFile) -> Result<()> {
        let ids: HashMap<&str, u64> = json
            .model
            .vocab
            .tokens
            .iter()
            .map(|(token, id)| (token.as_str(), *id))
            .collect();
        let replaced: HashSet<u64> = json.added_tokens.iter().map(|token| token.id).collect();
        for (i, piece) in self.pieces.iter().enumerate() {
            let id = i as u64;
            // Gemma spells user-defined runs of blanks in one way here, and in another there.
            if piece.kind != TokenType::Normal || piece.is_user_defined || replaced.contains(&id) {
                continue;
            }
            let other = ids.get(piece.text.as_str());
            if other != Some(&id) {
                let other =
                    other.map_or("does not have it".to_owned(), |id| format!("gives it {id}"));
                return Err(AnamnesisError::parse(format!(
                    "{}: the piece `{}` has the id {id}, and {TOKENIZER_JSON} {other}; delete the one that is wrong",
                    self.file, piece.text
                )));
            }
        }
        Ok(())
    }
}

/// `ModelProto.SentencePiece`.
fn piece(message: &[u8]) -> std::result::Result<SentencePiece, String> {
    let (mut text, mut score, mut kind) = (String::new(), 0.0, 1);
    for field in ProtoFields::new(message) {
        match field? {
            (1, ProtoValue::Bytes(bytes)) => {
                let utf8 = std::str::from_utf8(bytes).map_err(|e| format!("no UTF-8: {e}"))?;
                utf8.clone_into(&mut text);
            }
            (2, ProtoValue::Fixed32(bytes)) => score = f32::from_le_bytes(bytes),
            (3, ProtoValue::Varint(value)) => kind = value,
            _ => {}
        }
    }
    if text.is_empty() {
        return Err("it has no text".to_owned());
    }
    if !score.is_finite() {
        return Err(format!("`{text}` has the score {score}"));
    }
    Ok(SentencePiece {
        text,
        score,
        kind: match kind {
            1 | 4 => TokenType::Normal,
            2 => TokenType::Unknown,
            3 => TokenType::Control,
            5 => TokenType::Unused,
            6 => TokenType::Byte,
            _ => return Err(format!("its type is {kind}")),
        },
        is_user_defined: kind == 4,
    })
}

/// The pieces of `model` in a table of `n` tokens.
///
/// # Errors
/// `Parse` if there are more pieces.
pub(super) fn table(model: &SentencePieceModel, n: usize) -> Result<TokenTable> {
    if model.pieces.len() > n {
        return Err(AnamnesisError::parse(format!(
            "{}: it has {} pieces, and `vocab_size` of config.json is {n}",
            model.file,
            model.pieces.len()
        )));
    }
    let mut table = TokenTable::padding(n);
    for (id, piece) in model.pieces.iter().enumerate() {
        table.set(id, piece.text.clone(), piece.kind, piece.score);
    }
    Ok(table)
}

/// Adds the tokens of added_tokens.json. Ids that the model has no room for are left out, as by the
/// converter.
///
/// # Errors
/// `Parse` if the file is no object of ids.
pub(super) fn add_listed(files: &TokenizerFiles<'_>, table: &mut TokenTable) -> Result<()> {
    const FILE: &str = "added_tokens.json";
    let Some(added) = files.request.texts.json(FILE)? else {
        return Ok(());
    };
    let malformed = || AnamnesisError::parse(format!("{FILE}: it is no object of ids by token"));
    for (token, id) in added.as_object().ok_or_else(malformed)? {
        let id = id.as_u64().ok_or_else(malformed)?;
        if let Ok(id) = usize::try_from(id) {
            table.set(id, token.clone(), TokenType::UserDefined, ADDED_SCORE);
        }
    }
    Ok(())
}
