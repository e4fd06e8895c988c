//! What the tables of families are made of.

pub(in crate::families) use super::dims::Dim::{self, *};
pub(in crate::families) use super::table::Default::{self, *};
pub(in crate::families) use super::table::mlx::*;
pub(in crate::families) use super::table::*;
