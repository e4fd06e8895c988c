//! [`Pairing`]: the tensors of two models by name, and those that are stored with the same bytes.

use std::collections::{HashMap, HashSet};

use super::{Schedule, jobs_of_bytes, pieces_of_job};
use crate::convert::asked::Asked;
use crate::convert::progress::ProgressSum;
use crate::model::Tensor;
use crate::remember::ResolvedItem;
use crate::{Conversion, Dtype, ParsedModel, QuantScheme, RememberOptions, Result, TensorRole};

/// How a tensor of a model is stored.
pub(super) struct StoredSide<'m> {
    /// Index among the output tensors of the model's recovery.
    pub output: usize,
    pub name: String,
    pub dtype: Dtype,
    pub scheme: QuantScheme,
    pub shape: Vec<usize>,
    /// The stored tensors of a quantized one; empty if it is stored as it is.
    parts: Vec<(TensorRole, Tensor<'m>)>,
}

/// A tensor of both models.
pub(super) struct StoredPair<'m> {
    pub a: StoredSide<'m>,
    pub b: StoredSide<'m>,
}

/// The tensors of two models by name.
pub(super) struct Pairing<'m> {
    /// In the order of the first model.
    pub pairs: Vec<StoredPair<'m>>,
    pub only_in_a: Vec<StoredSide<'m>>,
    pub only_in_b: Vec<StoredSide<'m>>,
    /// Whether equal stored bytes of a quantized tensor are equal values: nothing else that a
    /// decoder may regard differs.
    decodes_alike: bool,
}

/// The output tensors of `side` that are asked for, in their order, as the model stores them.
fn stored<'m>((plan, items): SideItems<'_, 'm>, asked: &Asked) -> Vec<StoredSide<'m>> {
    let mut items: HashMap<String, ResolvedItem<'m>> = items
        .into_iter()
        .map(|item| (item.name().to_owned(), item))
        .collect();
    let sides = plan
        .outputs()
        .enumerate()
        .filter(|(_, tensor)| asked.has(tensor.name))
        .filter_map(|(output, tensor)| {
            let (dtype, scheme, parts) = match items.remove(tensor.name)? {
                ResolvedItem::Plain(t) => (t.stored.dtype(), QuantScheme::Unquantized, vec![]),
                ResolvedItem::Group(group) => {
                    let dtype = group.parts.first().map_or(tensor.dtype, |(_, t)| t.dtype());
                    (dtype, group.scheme, group.parts)
                }
            };
            Some(StoredSide {
                output,
                name: tensor.name.to_owned(),
                dtype,
                scheme,
                shape: tensor.shape.to_vec(),
                parts,
            })
        });
    sides.collect()
}

/// The output tensors of a model, and the items that they are made of.
pub(super) type SideItems<'s, 'm> = (&'s Conversion<'m>, Vec<ResolvedItem<'m>>);

impl<'m> Pairing<'m> {
    /// Pairs the output tensors of two models that have one `key`.
    pub(super) fn new(
        [model_a, model_b]: [&'m ParsedModel; 2],
        [a, b]: [SideItems<'_, 'm>; 2],
        asked: &Asked,
        key: fn(&str) -> String,
    ) -> Self {
        let mut of_b: Vec<_> = stored(b, asked).into_iter().map(Some).collect();
        let by_name: HashMap<String, usize> = of_b
            .iter()
            .flatten()
            .enumerate()
            .map(|(i, side)| (key(&side.name), i))
            .collect();
        let (mut pairs, mut only_in_a) = (Vec::new(), Vec::new());
        for a in stored(a, asked) {
            let b = by_name.get(&key(&a.name)).and_then(|&i| of_b[i].take());
            match b {
                Some(b) => pairs.push(StoredPair { a, b }),
                None => only_in_a.push(a),
            }
        }
        Self {
            pairs,
            only_in_a,
            only_in_b: of_b.into_iter().flatten().collect(),
            decodes_alike: decode_alike(model_a, model_b),
        }
    }

    fn is_alike(&self, pair: &StoredPair<'m>) -> bool {
        self.decodes_alike && pair.is_stored_alike()
    }

    /// The parts of quantized tensors that are stored alike in both models, each once. Tensors that
    /// are not quantized are read as values alone.
    pub(super) fn stored_alike(&self) -> Vec<(Tensor<'m>, Tensor<'m>)> {
        // Several tensors can be parts of one stored tensor, as experts are of a stack: each is
        // read once.
        let mut seen = HashSet::new();
        let mut stored: Vec<(Tensor<'m>, Tensor<'m>)> = Vec::new();
        for pair in self.pairs.iter().filter(|pair| self.is_alike(pair)) {
            for ((_, a), (_, b)) in pair.a.parts.iter().zip(&pair.b.parts) {
                if seen.insert((a.index, b.index)) {
                    stored.push((*a, *b));
                }
            }
        }
        stored
    }

    /// Whether each pair is made of the same stored bytes in the same way, so that its values are
    /// equal and need no decoding. Reads `stored`, which are the parts that are [stored
    /// alike](Self::stored_alike), and adds them to `done`.
    ///
    /// # Errors
    /// A file cannot be read; `Cancelled`.
    pub(super) fn same_bytes(
        &self,
        stored: &[(Tensor<'m>, Tensor<'m>)],
        options: &RememberOptions,
        done: &ProgressSum,
    ) -> Result<Vec<bool>> {
        let schedule = Schedule::new(stored.iter().map(|(a, _)| jobs_of_bytes(a.part().len())));
        let mut different = HashSet::new();
        schedule.run(
            options,
            |i, job, scratch| {
                let read: u64 = pieces_of_job(stored[i].0.part().len(), job)
                    .map(|piece| piece.end - piece.start)
                    .sum();
                Ok((is_same_piece(&stored[i], job, scratch)?, read))
            },
            |i, (is_same, read)| {
                done.add(read * 2, 0, 0);
                if !is_same {
                    different.insert((stored[i].0.index, stored[i].1.index));
                }
            },
        )?;
        let same = self.pairs.iter().map(|pair| {
            let parts = || pair.a.parts.iter().zip(&pair.b.parts);
            let is_same = |((_, a), (_, b)): (&(_, Tensor<'m>), &(_, Tensor<'m>))| {
                !different.contains(&(a.index, b.index))
            };
            self.is_alike(pair) && parts().all(is_same)
        });
        Ok(same.collect())
    }
}

impl StoredPair<'_> {
    /// Whether both sides are quantized in one scheme and have parts of the same names, roles,
    /// dtypes and shapes.
    fn is_stored_alike(&self) -> bool {
        let (a, b) = (&self.a, &self.b);
        let is_alike =
            |((role_a, a), (role_b, b)): (&(TensorRole, Tensor<'_>), &(TensorRole, Tensor<'_>))| {
                role_a == role_b && is_declared_alike(a, b) && a.part().len() == b.part().len()
            };
        a.scheme == b.scheme
            && !a.parts.is_empty()
            && a.parts.len() == b.parts.len()
            && a.parts.iter().zip(&b.parts).all(is_alike)
    }
}

/// Whether two stored tensors have one name, dtype and shape.
fn is_declared_alike(a: &Tensor<'_>, b: &Tensor<'_>) -> bool {
    (a.name(), a.dtype(), a.shape()) == (b.name(), b.dtype(), b.shape())
}

/// Whether equal parts of a tensor decode to equal values in both models. A decoder may regard the
/// config, the metadata and the names of other tensors, so all of these must be equal. Only then
/// bytes are compared in place of values.
fn decode_alike(a: &ParsedModel, b: &ParsedModel) -> bool {
    a.container() == b.container()
        && a.tensors().len() == b.tensors().len()
        && a.tensors()
            .zip(b.tensors())
            .all(|(a, b)| is_declared_alike(&a, &b))
        && a.metadata == b.metadata
        && a.facts == b.facts
        && a.qnat == b.qnat
        && a.config.says_the_same(&b.config)
}

/// Compares the bytes that job `job` covers of two stored tensors of one length. The first job
/// compares their checksums.
///
/// # Errors
/// A file cannot be read; `Parse` if a checksum differs.
fn is_same_piece(
    (a, b): &(Tensor<'_>, Tensor<'_>),
    job: usize,
    [bytes_a, bytes_b]: &mut [Vec<u8>; 2],
) -> Result<bool> {
    let (a, b) = (a.part(), b.part());
    if job == 0 {
        a.verify()?;
        b.verify()?;
    }
    for piece in pieces_of_job(a.len(), job) {
        let n = (piece.end - piece.start) as usize;
        bytes_a.resize(n, 0);
        bytes_b.resize(n, 0);
        a.read_at(piece.start, bytes_a)?;
        b.read_at(piece.start, bytes_b)?;
        if bytes_a != bytes_b {
            return Ok(false);
        }
    }
    Ok(true)
}

/// What is not compared: arrays that no tensor can hold.
pub(super) fn notes(a: &ParsedModel, b: &ParsedModel) -> Vec<String> {
    let skipped = [("a", a), ("b", b)].into_iter().flat_map(|(side, model)| {
        let skipped = model.skipped_arrays();
        skipped.map(move |(name, what)| {
            format!("array `{name}` of {side} is not compared: no tensor can hold it ({what})")
        })
    });
    skipped.collect()
}
