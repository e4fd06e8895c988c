//! The seam between stored tensors and the pipeline: what every scheme implements and what they
//! share.

pub(crate) mod assumptions;
mod code_bytes;
pub(crate) mod codes;
mod config_check;
mod count;
pub(crate) mod decode;
pub(crate) mod elsewhere;
pub(crate) mod grouped;
pub(crate) mod identity;
mod leftover;
pub(crate) mod load;
mod method;
mod plain;
mod quant_scheme;
mod read_ahead;
mod registry;
mod resolution;
mod resolve;
pub(crate) mod scale_layout;
pub(crate) mod scale_matrix;
mod shape_check;
mod table;
mod values;
pub(crate) mod widening;

use std::any::Any;
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

pub(crate) use self::code_bytes::CodeBytes;
pub(crate) use self::codes::{CodeFamily, ExtractCodes, GroupCodes, RelaySource, TopExponent};
pub use self::count::SchemeCount;
pub(crate) use self::count::count;
pub(crate) use self::decode::Window;
pub(crate) use self::decode::{Buffers, Decode, Grid, StoredRows, Tile, lcm};
pub(crate) use self::identity::{Identity, NamePattern, Sibling};
pub(crate) use self::load::{Floats, read};
pub(crate) use self::method::{Algorithm, Dialect, MethodFacts, StatedCodes};
pub(crate) use self::plain::{PlainFloats, is_plain_float};
pub use self::quant_scheme::{CodeType, Fp8Format, Granularity, QuantScheme};
pub(crate) use self::read_ahead::{BlockPool, ReadAhead, StoredPiece, StoredRectangle};
pub(crate) use self::registry::{Candidate, Registry};
pub(crate) use self::resolution::{Problem, Resolution, ResolvedItem};
pub(crate) use self::table::{TableOwner, TileTable};
pub(crate) use self::values::have_same_values;
#[cfg(feature = "models")]
pub(crate) use self::values::{PIECE, values_of_rows};
#[cfg(feature = "lethe")]
pub(crate) use self::widening::is_kept;
pub(crate) use self::widening::{Widening, aligned, covering};
use crate::config::QuantConfig;
use crate::error::InTensor;
pub use crate::model::TensorRole;
use crate::model::{Shape, Tensor};
use crate::{AnamnesisError, ParsedModel, Result, TargetDtype};

/// One logical tensor: its scheme, the stored tensors that make it up, and its decoder.
pub(crate) struct Group<'m> {
    /// Name in the output.
    pub name: Cow<'m, str>,
    /// Logical shape, outermost dimension first.
    pub shape: Shape,
    pub scheme: QuantScheme,
    /// Stored tensors, by role; the weight's codes come first.
    pub parts: Vec<(TensorRole, Tensor<'m>)>,
    /// What else the same stored tensors hold. Few groups have any.
    pub rest: Option<Box<Rest<'m>>>,
    /// The type of the tensor in every output, whatever the target, if its values are not quantized
    /// (sparse floats).
    pub keeps: Option<TargetDtype>,
    /// Whether an output has the bytes of the first part as they are stored, under the group's
    /// name.
    pub is_copied: bool,
    /// Whether adapters have changed the values: they are made in F32, and no stored tensor has
    /// them.
    pub is_merged: bool,
    /// Whether the values are rotated by what a config says, so that the same stored tensors have
    /// others without it.
    #[cfg_attr(not(feature = "lethe"), allow(dead_code))]
    pub is_rotated: bool,
    /// The weight as a linear module has it, `[…, out, in]`, if the tensor is a parameter `[…, in,
    /// out]` whose groups run along `in`.
    #[cfg_attr(not(feature = "lethe"), allow(dead_code))]
    pub module: Option<Box<Self>>,
    /// What the model's class says of encoding the tensor; `None`: its name decides.
    #[cfg_attr(not(feature = "lethe"), allow(dead_code))]
    pub encoded_as: Option<EncodedAs>,
    pub decoder: Box<dyn Decode + 'm>,
}

/// More logical tensors than one in the same stored tensors.
pub(crate) enum Rest<'m> {
    /// Names of the matrices of a stack: the output has a tensor for each.
    Matrices(Vec<String>),
    /// Tensors of any shapes beside the group's own, each with a decoder of its own.
    Others(Vec<Group<'m>>),
}

/// What a model's class says of encoding one of its tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(feature = "models"), allow(dead_code))]
pub(crate) enum EncodedAs {
    /// Not at all: it is no weight of a module that is quantized.
    Nothing,
    /// As the model is.
    Scheme,
    /// As integers of so many bits in groups of so many values, whatever the model is.
    Integers { bits: u8, group: usize },
    /// As integers of so many bits in groups of 64, of which the config states the bits alone.
    Bits(u8),
    /// As MXFP4, which it is already.
    Mxfp4,
    /// As Q8_0 of ggml, also where nothing else is encoded.
    Q8_0,
}

impl<'m> Group<'m> {
    pub(crate) fn new(
        name: impl Into<Cow<'m, str>>,
        shape: impl Into<Shape>,
        scheme: QuantScheme,
        mut parts: Vec<(TensorRole, Tensor<'m>)>,
        decoder: Box<dyn Decode + 'm>,
    ) -> Self {
        parts.shrink_to_fit();
        Self {
            name: name.into(),
            shape: shape.into(),
            scheme,
            parts,
            rest: None,
            keeps: None,
            is_copied: false,
            is_merged: false,
            is_rotated: false,
            module: None,
            encoded_as: None,
            decoder,
        }
    }

    /// The group as a stack whose matrices are tensors of the output, called `names`; without names
    /// it stays one tensor.
    pub(crate) fn with_matrices(self, names: Vec<String>) -> Self {
        let rest = (!names.is_empty()).then(|| Box::new(Rest::Matrices(names)));
        Self { rest, ..self }
    }

    /// The group with `others` beside it.
    pub(crate) fn with_others(self, others: Vec<Self>) -> Self {
        let rest = (!others.is_empty()).then(|| Box::new(Rest::Others(others)));
        Self { rest, ..self }
    }

    /// The tensors beside the group's own that have decoders of their own.
    fn others(&self) -> &[Self] {
        match self.rest.as_deref() {
            Some(Rest::Others(others)) => others,
            _ => &[],
        }
    }

    /// Adds `stored`, the bias of the layer, as a tensor that every output has in its own dtype.
    /// The decoder reads that tensor, and the group's other parts too if `is_of_all`.
    pub(crate) fn push_bias(
        &mut self,
        stored: Tensor<'m>,
        is_of_all: bool,
        decoder: Box<dyn Decode + 'm>,
    ) {
        self.parts.push((TensorRole::Offset, stored));
        let mut parts = self.parts.clone();
        parts.rotate_right(1);
        if !is_of_all {
            parts.truncate(1);
        }
        let (name, shape) = (stored.name(), stored.shape());
        let bias = Self {
            keeps: TargetDtype::of(stored.dtype()),
            ..Self::new(name, shape, self.scheme, parts, decoder)
        };
        match self.rest.as_deref_mut() {
            Some(Rest::Others(others)) => others.push(bias),
            _ => self.rest = Some(Box::new(Rest::Others(vec![bias]))),
        }
    }

    /// The group and those beside it, or a group for each matrix of a stack.
    fn taken_apart(mut self) -> Vec<Self> {
        let names = match self.rest.take().map(|rest| *rest) {
            None => return vec![self],
            Some(Rest::Others(mut all)) => {
                all.insert(0, self);
                return all;
            }
            Some(Rest::Matrices(names)) => names,
        };
        // The matrices share the decoder of the stack: their bytes lie in the same tensors, only
        // their rows differ.
        let decoder: Arc<dyn Decode + 'm> = Arc::from(self.decoder);
        let rows = decoder.grid().rows / names.len();
        let matrix = |(i, name): (usize, String)| {
            let window = Window { inner: decoder.clone(), first: i * rows, rows };
            let (shape, parts) = (&self.shape[1..], self.parts.clone());
            Self {
                keeps: self.keeps,
                is_merged: self.is_merged,
                is_rotated: self.is_rotated,
                ..Self::new(name, shape, self.scheme, parts, Box::new(window))
            }
        };
        names.into_iter().enumerate().map(matrix).collect()
    }
}

/// A value that a scheme computes once for a model and reads in every claim.
pub(crate) type Prepared = Box<dyn Any + Send + Sync>;

/// How groups of stored tensors become logical tensors.
pub(crate) trait Scheme: Sync {
    /// The names that are the scheme's own.
    fn identity(&self) -> &'static Identity;

    /// The scheme that listings show for `t` if claiming it failed.
    fn kind(&self, _t: &Tensor<'_>, _all: &Index<'_>) -> QuantScheme {
        QuantScheme::Other(self.identity().name)
    }

    /// Claims `t` with its companions, or leaves it.
    ///
    /// # Errors
    /// `t` is the scheme's, and cannot be decoded: the error names the tensor and what is missing
    /// or contradicts.
    fn claim<'m>(&self, t: &Tensor<'m>, all: &Index<'m>) -> Result<Option<Group<'m>>>;

    /// Collects what claims need of the whole model, before the first claim. `all` has every
    /// tensor, and nothing that is prepared. Claims read the value by its type, with
    /// [`Index::prepared`].
    fn prepare(&self, _all: &Index<'_>) -> Option<Prepared> {
        None
    }

    /// Whether the scheme is asked of what no group has taken, after all claims of the others: its
    /// weights have no companion to be recognised by.
    fn is_asked_last(&self) -> bool {
        false
    }

    /// Whether other libraries may call the parts of `group` the same and mean something else by
    /// them. Then a config with a method that no scheme knows outweighs the claim.
    fn has_common_names(&self, group: &Group<'_>) -> bool {
        group.scheme.has_common_names()
    }

    /// What the claim takes for granted of `group`, because nothing in the model tells it from
    /// another layout of the same names and shapes.
    fn assumption(&self, _group: &Group<'_>, _all: &Index<'_>) -> Option<&'static str> {
        None
    }

    /// Whether the unclaimed tensor `t`, which has the name and the dtype of an ordinary weight,
    /// may hold codes of this scheme.
    fn may_be_codes(&self, _t: &Tensor<'_>, _all: &Index<'_>) -> bool {
        false
    }

    /// Whether the unclaimed tensor `t`, which has the name of a companion, is a parameter of a model
    /// that has such names.
    fn is_parameter(&self, _t: &Tensor<'_>, _all: &Index<'_>) -> bool {
        false
    }

    /// Names of configs, listed by the scheme of the library that writes them.
    fn dialect(&self) -> &'static Dialect {
        &Dialect { words: &[], algorithms: &[] }
    }

    /// What the methods of the scheme say of every weight. A method has a row in one scheme.
    fn methods(&self) -> &'static [MethodFacts] {
        &[]
    }

    /// Keys of a file's metadata that describe the quantization of its tensors. No output has them.
    fn descriptions(&self, _metadata: &HashMap<String, String>) -> Vec<String> {
        Vec::new()
    }

    /// Whether the file proves what its weights are, so that they are not compared with configs and
    /// biases: names may be those of a module that has the weight transposed.
    fn is_proved_by_file(&self) -> bool {
        false
    }

    /// Whether `t` of the scheme's own container, which it did not claim, is about activations. It
    /// is then dropped.
    fn is_activation(&self, _t: &Tensor<'_>, _all: &Index<'_>) -> bool {
        false
    }
}

/// A model's tensors by name, with its config and what schemes prepared.
pub(crate) struct Index<'m> {
    pub model: &'m ParsedModel,
    pub config: &'m QuantConfig,
    /// What the config's method says of every weight.
    pub method: Option<&'static MethodFacts>,
    /// One value for each scheme that prepares something. They are few, so that a search by type
    /// costs less than a map.
    prepared: Vec<Prepared>,
    /// What lies in other shards, found at the first [`elsewhere`](Self::elsewhere).
    elsewhere: OnceLock<elsewhere::Elsewhere>,
}

impl<'m> Index<'m> {
    /// The index of `model`, with what the schemes of `candidates` among those of `registry`
    /// prepare.
    fn new(model: &'m ParsedModel, candidates: &[&Candidate], registry: &Registry) -> Self {
        let config = &model.config;
        let mut index = Self {
            model,
            config,
            method: config
                .quant_method()
                .and_then(|method| registry.facts(method)),
            prepared: Vec::new(),
            elsewhere: OnceLock::new(),
        };
        let prepare = |candidate: &&Candidate| candidate.scheme.prepare(&index);
        index.prepared = candidates.iter().filter_map(prepare).collect();
        index
    }

    /// The value of type `T` that a scheme prepared; `None` if it prepared nothing.
    pub(crate) fn prepared<T: Any>(&self) -> Option<&T> {
        self.prepared
            .iter()
            .find_map(|prepared| prepared.downcast_ref())
    }

    /// The parts of weights that an index has in other shards.
    ///
    /// # Errors
    /// The index cannot be read.
    pub(crate) fn elsewhere(&self) -> Result<&elsewhere::Elsewhere> {
        if let Some(found) = self.elsewhere.get() {
            return Ok(found);
        }
        let found = elsewhere::Elsewhere::new(self.model, self.config)?;
        Ok(self.elsewhere.get_or_init(|| found))
    }

    /// The tensor called `name`.
    pub(crate) fn get(&self, name: &str) -> Option<Tensor<'m>> {
        let other = || self.model.tensor(&self.config.other_name(name)?);
        self.model.tensor(name).or_else(other)
    }

    /// The tensor called `base` + `suffix`.
    pub(crate) fn at(&self, base: &str, suffix: &str) -> Option<Tensor<'m>> {
        // By far the most frequent question: `format!` would take twice as long.
        let mut name = String::with_capacity(base.len() + suffix.len());
        name.push_str(base);
        name.push_str(suffix);
        self.get(&name)
    }

    /// [`at`](Self::at), or an error that says what `t` lacks.
    pub(crate) fn need(&self, t: &Tensor<'_>, base: &str, suffix: &str) -> Result<Tensor<'m>> {
        self.at(base, suffix)
            .ok_or_else(|| wrong(t, format!("its `{base}{suffix}` is missing")))
    }

    /// The one tensor of `names` that is there. Each is a beginning and an end, as of
    /// [`at`](Self::at).
    ///
    /// # Errors
    /// None of them is there, or two are.
    pub(crate) fn one_of(&self, t: &Tensor<'_>, names: &[(&str, &str)]) -> Result<Tensor<'m>> {
        let mut found = names.iter().filter_map(|(base, end)| self.at(base, end));
        match (found.next(), found.next()) {
            (Some(one), None) => Ok(one),
            (None, _) => {
                let name = |(base, end): &(&str, &str)| format!("`{base}{end}`");
                let names: Vec<String> = names.iter().map(name).collect();
                Err(wrong(t, format!("its {} is missing", names.join(" or "))))
            }
            (Some(one), Some(other)) => {
                let (one, other) = (one.name(), other.name());
                let what = format!("`{one}` and `{other}` are one thing, and both are there");
                Err(wrong(t, what))
            }
        }
    }
}

/// A `Parse` error about `t`, with its dtype and shape.
pub(crate) fn wrong(t: &Tensor<'_>, what: impl std::fmt::Display) -> AnamnesisError {
    AnamnesisError::parse(format!(
        "{} ({} {:?}): {what}",
        InTensor(&t.name()),
        t.dtype(),
        t.shape()
    ))
}

/// Checks the shape of `part`, a companion of `t`.
///
/// # Errors
/// `Parse` if it is not `shape`.
pub(crate) fn require_shape(t: &Tensor<'_>, part: &Tensor<'_>, shape: &[usize]) -> Result<()> {
    if part.shape() == shape {
        return Ok(());
    }
    let what = format!("its `{}` {:?} is not {shape:?}", part.name(), part.shape());
    Err(wrong(t, what))
}

/// An `Unsupported` error about `t`.
pub(crate) fn refused(
    t: &Tensor<'_>,
    scheme: &str,
    what: impl std::fmt::Display,
) -> AnamnesisError {
    AnamnesisError::unsupported(
        scheme,
        format!("{} ({} {:?}): {what}", InTensor(&t.name()), t.dtype(), t.shape()),
    )
}

/// `name` without its last part, if that is `part`. The result is empty or ends with a dot.
pub(crate) fn base_of<'a>(name: &'a str, part: &str) -> Option<&'a str> {
    // Without the dot, a tensor `my_qweight` would be a layer called `my_`.
    name.strip_suffix(part)
        .filter(|base| base.is_empty() || base.ends_with('.'))
}

/// The last part of a name, behind the module.
pub(crate) fn last_part(name: &str) -> &str {
    name.rsplit_once('.').map_or(name, |(_, last)| last)
}

/// The module that a weight belongs to: its name without the last part.
pub(crate) fn module_of(name: &str) -> &str {
    name.rsplit_once('.').map_or(name, |(module, _)| module)
}
