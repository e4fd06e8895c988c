//! Some of the mutants that were found.

use std::collections::BTreeMap;

use crate::find::Mutant;

/// `count` of them, by a seed: as many of each kind as there are, so that rare kinds are not lost among operators. Two mutants
/// never begin on the same line of a file: the compiler's errors tell them by lines.
pub(crate) fn of(found: Vec<Mutant>, count: usize, seed: u64) -> Vec<Mutant> {
    let mut kinds: BTreeMap<&'static str, Vec<Mutant>> = BTreeMap::new();
    for mutant in found {
        kinds.entry(mutant.what).or_default().push(mutant);
    }
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut chosen: Vec<Mutant> = Vec::new();
    while chosen.len() < count && !kinds.is_empty() {
        for mutants in kinds.values_mut() {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let Some(last) = mutants.len().checked_sub(1) else {
                continue;
            };
            let mutant =
                mutants.swap_remove(usize::try_from(state >> 33).unwrap_or(0) % (last + 1));
            let taken = |other: &Mutant| other.file == mutant.file && other.line == mutant.line;
            if chosen.len() < count && !chosen.iter().any(taken) {
                chosen.push(mutant);
            }
        }
        kinds.retain(|_, mutants| !mutants.is_empty());
    }
    chosen
}
