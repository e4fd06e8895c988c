//! Neural networks: weights of their layers.

use std::ops::Range;

use super::collect::CoreMlWeights;
use super::layers::{KINDS, NESTED, WeightShape};
use super::parameters;
use super::spec::Spec;
use super::wrong;
use crate::Result;
use crate::limits::cap;
use crate::protobuf::{FieldKind, varint};

/// Most networks inside of each other.
const MAX_DEPTH: u64 = 32;

/// Numbers of a layer that are kept: sizes, and lists of them.
const MAX_NUMBERS: u64 = 4096;

/// Fields of a layer that tell its name, its results, and its kind.
#[derive(Default)]
struct LayerFields {
    name: String,
    output: String,
    /// The message of its kind.
    kind: Option<(u64, Range<u64>)>,
}

/// Reads a network, which is in `depth` - 1 others, and whose weights have names that begin with `before`.
pub(super) fn read(
    weights: &mut CoreMlWeights<'_>,
    mut rest: Range<u64>,
    before: &str,
    depth: u64,
) -> Result<()> {
    cap("COREML_MAX_NETWORK_DEPTH", depth, MAX_DEPTH, "networks inside of each other")?;
    while let Some(field) = weights.spec.file.next(&mut rest)? {
        if let (1, Some(message)) = (field.number, field.bytes()) {
            layer(weights, message, before, depth)?;
        }
    }
    Ok(())
}

fn layer(
    weights: &mut CoreMlWeights<'_>,
    mut rest: Range<u64>,
    before: &str,
    depth: u64,
) -> Result<()> {
    let spec = &mut weights.spec;
    let mut layer = LayerFields::default();
    while let Some(field) = spec.file.next(&mut rest)? {
        match (field.number, field.bytes()) {
            (1, Some(text)) => layer.name = spec.file.text(text)?,
            (3, Some(text)) if layer.output.is_empty() => layer.output = spec.file.text(text)?,
            (100.., Some(message)) => layer.kind = Some((field.number, message)),
            _ => {}
        }
    }
    let Some((number, message)) = layer.kind else {
        return Ok(());
    };
    let name = match layer.name.is_empty() {
        true => layer.output,
        false => layer.name,
    };
    let name = format!("{before}{name}");
    if let Some((_, networks)) = NESTED.iter().find(|(kind, _)| *kind == number) {
        let mut rest = message;
        while let Some(field) = weights.spec.file.next(&mut rest)? {
            let network = networks.iter().find(|(number, _)| *number == field.number);
            if let (Some((_, of)), Some(network)) = (network, field.bytes()) {
                read(weights, network, &format!("{name}.{of}."), depth + 1)?;
            }
        }
    } else if let Some(kind) = KINDS.iter().find(|kind| kind.number == number) {
        let numbers = Numbers::read(spec, message.clone())?;
        for weight in kind.weights {
            let found = fields_at(&mut weights.spec, &message, weight.path)?;
            for (i, field) in found.iter().enumerate() {
                let name = match found.len() {
                    1 => format!("{name}.{}", weight.name),
                    _ => format!("{name}.{}.{i}", weight.name),
                };
                let shape = numbers.shape(weight.shape)?;
                let axis = usize::from(numbers.is_transposed(weight.shape)?);
                let read = parameters::read(&mut weights.spec, field, shape, axis);
                if let Some(weight) = read.map_err(|error| error.in_tensor(&name))? {
                    weights.add(name, weight)?;
                }
            }
        }
    }
    Ok(())
}

/// The messages that the fields `path` lead to.
fn fields_at(spec: &mut Spec<'_>, message: &Range<u64>, path: &[u64]) -> Result<Vec<Range<u64>>> {
    let mut found = vec![message.clone()];
    for &number in path {
        let mut next = Vec::new();
        for mut rest in found {
            while let Some(field) = spec.file.next(&mut rest)? {
                if field.number == number
                    && let Some(message) = field.bytes()
                {
                    spec.budget.tables(0, 1, 0)?;
                    next.push(message);
                }
            }
        }
        found = next;
    }
    Ok(found)
}

/// The fields of a layer that are numbers.
struct Numbers(Vec<(u64, u64)>);

impl Numbers {
    fn read(spec: &mut Spec<'_>, mut rest: Range<u64>) -> Result<Self> {
        let mut numbers = Vec::new();
        while let Some(field) = spec.file.next(&mut rest)? {
            match field.kind {
                FieldKind::Varint(value) => numbers.push((field.number, value)),
                // Packed, unless it is a message.
                FieldKind::Bytes(..=MAX_NUMBERS) => {
                    let mut bytes = spec.file.bytes(field.content.clone())?;
                    while let Ok((value, len)) = varint(bytes) {
                        numbers.push((field.number, value));
                        bytes = &bytes[len..];
                    }
                }
                _ => {}
            }
            cap(
                "COREML_MAX_LAYER_NUMBERS",
                numbers.len() as u64,
                4 * MAX_NUMBERS,
                "numbers of a layer",
            )?;
        }
        Ok(Self(numbers))
    }

    fn list(&self, number: u64) -> Result<Vec<usize>> {
        let values = self.0.iter().filter(|(other, _)| *other == number);
        let values = values.map(|(_, value)| usize::try_from(*value).ok());
        let values: Option<Vec<usize>> = values.collect();
        let values = values.ok_or_else(|| wrong("its size overflows"))?;
        cap("MAX_TENSOR_DIMS", values.len() as u64, 64, "dimensions of a tensor")?;
        Ok(values)
    }

    /// The number of a field; `default` if there is none, or 0.
    fn one(&self, number: u64, default: usize) -> Result<usize> {
        let last = self.list(number)?.last().copied();
        Ok(last.filter(|&value| value > 0).unwrap_or(default))
    }

    /// The dimensions of a weight; `None` if they are as many numbers as it has.
    fn shape(&self, shape: WeightShape) -> Result<Option<Vec<usize>>> {
        let dims: Vec<usize> = match shape {
            WeightShape::Vector => return Ok(None),
            WeightShape::Numbers(fields) => fields
                .iter()
                .map(|&field| self.one(field, 0))
                .collect::<Result<_>>()?,
            WeightShape::List(field) => self.list(field)?,
            WeightShape::Convolution => {
                let kernel = match &self.list(20)?[..] {
                    [] => vec![3, 3],
                    kernel => kernel.to_vec(),
                };
                self.convolution(60, &kernel)?
            }
            WeightShape::Convolution3d => {
                let kernel = [20, 21, 22].map(|field| self.one(field, 1));
                let [depth, height, width] = kernel;
                self.convolution(86, &[depth?, height?, width?])?
            }
        };
        Ok(Some(dims))
    }

    /// The dimensions of a convolution's weight, whose field `transposed` tells whether it is transposed.
    fn convolution(&self, transposed: u64, kernel: &[usize]) -> Result<Vec<usize>> {
        let (output, input, groups) = (self.one(1, 0)?, self.one(2, 0)?, self.one(10, 1)?);
        let mut dims = match self.one(transposed, 0)? {
            // In three dimensions the second size is that of all groups.
            0 if kernel.len() == 3 => vec![output, input / groups],
            0 => vec![output, input],
            _ => vec![input, output / groups],
        };
        dims.extend(kernel);
        Ok(dims)
    }

    fn is_transposed(&self, shape: WeightShape) -> Result<bool> {
        Ok(matches!(shape, WeightShape::Convolution) && self.one(60, 0)? != 0)
    }
}
