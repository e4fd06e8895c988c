//! Where the elements of a tensor are: in the file as they are, as numbers of a field, or in another file.

use std::ops::Range;

use super::external;
use super::fields::TensorFields;
use crate::parse::external::ExternalFiles;
use crate::source::{Derived, FieldPlace, NumberKind, RepeatedField, Source};
use crate::{AnamnesisError, Dtype, ParsedModel, Result};

/// Where the elements of a tensor are.
pub(super) enum ElementPlace {
    /// As they are, from an offset of a source on.
    Stored { source: usize, offset: u64 },
    /// Made while they are read.
    Derived(Derived),
}

/// What finds data in other files: these, and the model, to which they are added as sources.
pub(super) struct ExternalPlaces<'a> {
    pub external: &'a mut ExternalFiles,
    pub contents: &'a mut ParsedModel,
}

impl TensorFields {
    /// Where the elements are, which take `bytes` bytes.
    ///
    /// # Errors
    /// `Parse` if there are more or fewer; those of another file.
    pub(super) fn place(
        &self,
        dtype: Dtype,
        bytes: u64,
        source: &Source,
        files: &mut ExternalPlaces<'_>,
    ) -> Result<ElementPlace> {
        if self.has_segment {
            return Err(AnamnesisError::unsupported("ONNX", "a tensor in segments"));
        }
        if self.is_external {
            let (source, offset) =
                external::find(files.external, source, &self.external, bytes, files.contents)?;
            return Ok(ElementPlace::Stored { source, offset });
        }
        if let Some(raw) = &self.raw {
            let have = raw.end - raw.start;
            return match have == bytes {
                true => Ok(ElementPlace::Stored { source: 0, offset: raw.start }),
                false => Err(wrong_len(have, bytes)),
            };
        }
        let (number, kind, width) = self.typed_field(dtype);
        let floats = &self.floats;
        if kind == NumberKind::Fixed && self.float_fields == 1 && floats.end - floats.start == bytes
        {
            return Ok(ElementPlace::Stored { source: 0, offset: floats.start });
        }
        let Range { start, end } = self.message;
        let place = FieldPlace { start, end, number, kind, width };
        let field = RepeatedField::new(source.share(), place)?;
        let have = field.count() * width as u64;
        match have == bytes {
            true => Ok(ElementPlace::Derived(Derived::Repeated(field))),
            false => Err(wrong_len(have, bytes)),
        }
    }

    /// Sets the length of a list that is an attribute, which no field says.
    pub(super) fn count_list(&mut self, dtype: Dtype, source: &Source) -> Result<()> {
        if self.attribute.is_some_and(|(_, is_list)| is_list) {
            let (number, kind, width) = self.typed_field(dtype);
            let Range { start, end } = self.message;
            let place = FieldPlace { start, end, number, kind, width };
            self.dims = vec![RepeatedField::new(source.share(), place)?.count()];
        }
        Ok(())
    }
}

fn wrong_len(have: u64, need: u64) -> AnamnesisError {
    AnamnesisError::parse(format!("{have} bytes of data, and its type and shape need {need}"))
}
