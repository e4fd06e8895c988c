//! Finds the files of the processes of FSDP.

use std::collections::BTreeSet;

use super::shards::{FoundShards, ShardKind};
use crate::parse::listing::{rank_file, rank_file_name};
use crate::{AnamnesisError, Result};

/// Finds the file of the first process among `names`.
///
/// # Errors
/// `Parse` if that of another process is missing: a part of a tensor would pass for all of it; or if
/// there are files of two checkpoints.
pub(super) fn find_rank_files(names: &[String]) -> Result<Option<FoundShards>> {
    let found: BTreeSet<(usize, usize)> = names.iter().filter_map(|name| rank_file(name)).collect();
    let Some(&(world, _)) = found.first() else {
        return Ok(None);
    };
    if let Some(&(other, rank)) = found.last().filter(|(other, _)| *other != world) {
        return Err(AnamnesisError::parse(format!(
            "which of two checkpoints? {} and {} are of different numbers of processes",
            rank_file_name(world, 0),
            rank_file_name(other, rank)
        )));
    }
    // Checked by the files that are there, for the number in a name can be any.
    let missing = found.iter().enumerate().find(|(n, (_, rank))| n != rank);
    let missing = missing
        .map(|(n, _)| n)
        .or((found.len() < world).then_some(found.len()));
    match missing {
        Some(rank) => {
            let name = rank_file_name(world, rank);
            let what = format!("`{name}` is missing, with a part of each tensor");
            Err(AnamnesisError::parse(what))
        }
        None => Ok(Some(FoundShards {
            kind: ShardKind::Ranks,
            ..vec![rank_file_name(world, 0)].into()
        })),
    }
}
