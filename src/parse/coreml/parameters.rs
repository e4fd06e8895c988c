//! Parameters of layers: floats, or codes with scales or with a table.

use std::ops::Range;

use super::spec::Spec;
use super::value::{ElementKind, FLOAT16, FLOAT32, StoredData, StoredValue};
use super::weight::{Palette, ScalingKind, Weight, WeightScaling};
use super::wrong;
use crate::source::NumberKind;
use crate::{AnamnesisError, Result};

/// What a `WeightParams` says.
#[derive(Default)]
struct WeightFields {
    floats: Option<Range<u64>>,
    halves: Option<Range<u64>>,
    raw: Option<Range<u64>>,
    int8: Option<Range<u64>>,
    bits: u64,
    scale: Option<StoredValue>,
    bias: Option<StoredValue>,
    table: Option<StoredValue>,
}

/// The weight of the message `field`, whose dimensions are `shape`, or as many numbers as there are. Of codes,
/// each index of `axis` may have a scale. `None` if it is empty.
pub(super) fn read(
    spec: &mut Spec<'_>,
    field: &Range<u64>,
    shape: Option<Vec<usize>>,
    axis: usize,
) -> Result<Option<Weight>> {
    let fields = WeightFields::read(spec, field.clone())?;
    let mut values = match (&fields.floats, &fields.halves) {
        (Some(_), _) => float_list(spec, field, 1)?,
        (None, Some(range)) => {
            let shape = vec![((range.end - range.start) / 2) as usize];
            StoredValue { kind: FLOAT16, shape, data: StoredData::Bytes(range.clone()) }
        }
        (None, None) if fields.int8.is_some() => {
            let what = "weights for quantization while it runs (int8RawValue)";
            return Err(AnamnesisError::unsupported("Core ML", what));
        }
        (None, None) => return fields.codes(shape, axis),
    };
    values.shape = shape.unwrap_or(values.shape);
    Ok(Some(Weight::plain(values)))
}

/// A list of floats, with as many as it has.
fn float_list(spec: &mut Spec<'_>, message: &Range<u64>, number: u64) -> Result<StoredValue> {
    let mut bytes = 0;
    let mut rest = message.clone();
    while let Some(field) = spec.file.next(&mut rest)? {
        if field.number == number {
            bytes += field.content.end - field.content.start;
        }
    }
    let data = StoredData::Numbers { message: message.clone(), number, kind: NumberKind::Fixed };
    Ok(StoredValue { kind: FLOAT32, shape: vec![(bytes / 4) as usize], data })
}

impl WeightFields {
    fn read(spec: &mut Spec<'_>, mut rest: Range<u64>) -> Result<Self> {
        let mut fields = Self::default();
        while let Some(field) = spec.file.next(&mut rest)? {
            let content = field.content.clone();
            match field.number {
                1 => fields.floats = Some(content),
                2 => fields.halves = field.bytes(),
                30 => fields.raw = field.bytes(),
                31 => fields.int8 = field.bytes(),
                40 => fields.quantization(spec, content)?,
                _ => {}
            }
        }
        Ok(fields)
    }

    fn quantization(&mut self, spec: &mut Spec<'_>, mut rest: Range<u64>) -> Result<()> {
        while let Some(field) = spec.file.next(&mut rest)? {
            match (field.number, field.bytes(), field.varint()) {
                (1, _, Some(bits)) => self.bits = bits,
                (101, Some(message), _) => {
                    let scale = float_list(spec, &message, 1)?;
                    let bias = float_list(spec, &message, 2)?;
                    self.scale = (scale.shape != [0]).then_some(scale);
                    self.bias = (bias.shape != [0]).then_some(bias);
                }
                (102, Some(message), _) => self.table = Some(float_list(spec, &message, 1)?),
                _ => {}
            }
        }
        Ok(())
    }

    /// The weight whose codes are `raw`; `None` if there are none.
    fn codes(self, shape: Option<Vec<usize>>, axis: usize) -> Result<Option<Weight>> {
        let Some(raw) = self.raw.filter(|raw| !raw.is_empty()) else {
            return Ok(None);
        };
        let bits = usize::try_from(self.bits).unwrap_or(0);
        if !(1..=8).contains(&bits) {
            return Err(wrong(format!("codes of {} bits", self.bits)));
        }
        // A vector has no size of its own. Of codes that end within a byte, its length is not known.
        let len = (raw.end - raw.start) as usize;
        let shape = match shape {
            Some(shape) => shape,
            None if 8 % bits == 0 && bits == 8 => vec![len],
            None => {
                let what = format!("a vector of codes of {bits} bits");
                return Err(AnamnesisError::unsupported("Core ML", what));
            }
        };
        let data = StoredData::Bytes(raw);
        let values = StoredValue { kind: ElementKind::packed(bits), shape: shape.clone(), data };
        let mut weight = Weight { is_msb_first: true, ..Weight::plain(values) };
        let along = |mut tensor: StoredValue| match tensor.shape[..] {
            [1] => Ok(tensor),
            [n] if shape.get(axis) == Some(&n) => {
                tensor.shape = vec![1; shape.len()];
                tensor.shape[axis] = n;
                Ok(tensor)
            }
            _ => Err(wrong(format!("scales {:?} do not fit {shape:?}", tensor.shape))),
        };
        match (self.table, self.scale) {
            (Some(table), None) if table.shape == [1 << bits] => {
                let axis = shape.len().saturating_sub(1);
                weight.palette = Some(Palette { table, axis, lanes: 1 });
            }
            (None, Some(scale)) => {
                let offset = self.bias.map(along).transpose()?;
                let kind = ScalingKind::ScaleShift;
                weight.scaling = Some(WeightScaling { kind, scale: along(scale)?, offset });
            }
            _ => return Err(wrong("its codes have neither scales nor a table that fits them")),
        }
        Ok(Some(weight))
    }
}
