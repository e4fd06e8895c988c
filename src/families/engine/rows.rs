//! What the tables of families are made of.

pub(crate) use super::dims::Dim::{self, *};
pub(crate) use super::dims::Need;
pub(crate) use super::table::Default::{self, *};
pub(crate) use super::table::mlx::*;
pub(crate) use super::table::*;
pub(crate) use crate::tokenizer::{
    AddedStyle, KeyList, KeyRule, SentencePieceModel, SpecialVocab, TokenTable, TokenType,
    TokenizerFiles, TokenizerRules,
};
