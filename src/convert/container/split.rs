//! What containers of several files share: which tensors go into which file, and numbered names.

use std::ops::Range;

use crate::convert::output::{BoxedOutput, Output};

/// Splits the drafts wherever two neighbours come from different input files.
pub(super) fn split_as_source(drafts: &[BoxedOutput<'_>], file_of: &[usize]) -> Vec<Range<usize>> {
    let file = |d: &Output<'_>| {
        let source = d.sources.first().copied().unwrap_or(0);
        file_of.get(source).copied().unwrap_or(0)
    };
    let (mut shards, mut start) = (Vec::new(), 0);
    for i in 1..drafts.len() {
        if file(&drafts[i]) != file(&drafts[i - 1]) {
            shards.push(start..i);
            start = i;
        }
    }
    shards.push(start..drafts.len());
    shards
}

/// Splits the drafts into files of at most `max` bytes of data; one file if there is no limit. A
/// larger tensor gets a file of its own.
///
/// Tensors that the jobs of one encoding write, such as codes and their scales, stay in one file:
/// the sink of a directory is the shard that is being made, and bytes of another shard would have
/// nowhere to go.
pub(super) fn split_by_size(drafts: &[BoxedOutput<'_>], max: Option<u64>) -> Vec<Range<usize>> {
    let (mut shards, mut start, mut size) = (Vec::new(), 0, 0u64);
    let mut first = 0;
    while first < drafts.len() {
        let parts = 1 + drafts[first + 1..]
            .iter()
            .take_while(|d| d.body.is_written_with_another())
            .count();
        let len = drafts[first..first + parts]
            .iter()
            .fold(0u64, |len, d| len.saturating_add(d.len));
        if first > start && max.is_some_and(|max| size.saturating_add(len) > max) {
            shards.push(start..first);
            (start, size) = (first, 0);
        }
        size = size.saturating_add(len);
        first += parts;
    }
    shards.push(start..drafts.len());
    shards
}

/// Names of `count` files, numbered as Hugging Face libraries and llama.cpp number shards. A single
/// file has no number.
pub(super) fn numbered_names(stem: &str, extension: &str, count: usize) -> Vec<String> {
    match count {
        1 => vec![format!("{stem}.{extension}")],
        _ => (1..=count)
            .map(|no| format!("{stem}-{no:05}-of-{count:05}.{extension}"))
            .collect(),
    }
}
