//! QNAT outputs: one file of NF4 tensors, for qlora-rs has no convention for several.

use super::{ContainerWriter, LayoutRequest};
use crate::convert::output::BoxedOutput;
use crate::error::{InTensor, counted};
use crate::write::OutputLayout;
use crate::write::qnat::{QnatOutputTensor, block_for, layout as lay_out};
use crate::{AnamnesisError, Result};

pub(super) const WRITER: ContainerWriter = ContainerWriter {
    holds: |_| false, // nothing but codes of NF4, which are no dtype
    copies_blocks_of: |_| false,
    widens_vectors: false,
    restores_shapes: false,
    layout,
    sharding: None,
};

/// One QNAT file. QNAT holds NF4 tensors and nothing else, so a tensor that is not encoded is an
/// error; the report has the reason why it is not.
fn layout(request: &mut LayoutRequest<'_, '_>) -> Result<Vec<OutputLayout>> {
    let LayoutRequest { model, drafts, options, report, .. } = request;
    let tensor = |d: &BoxedOutput<'_>| match d.body.encoding() {
        Some(encoding) => Ok(encoding.shape.clone()),
        None => {
            let reason = report
                .kept
                .iter()
                .find(|kept| kept.name == d.name)
                .map_or("", |kept| &kept.reason);
            Err(AnamnesisError::unsupported(
                "writing QNAT",
                format!("{}: {reason}", InTensor(&d.name)),
            ))
        }
    };
    let shapes = drafts.iter().map(tensor).collect::<Result<Vec<_>>>()?;
    let tensors = drafts.iter().zip(&shapes).map(|(d, shape)| {
        let n = shape.iter().product();
        let block = block_for(n).unwrap_or(1);
        QnatOutputTensor { name: &d.name, shape, block, blocks: n / block }
    });
    let tensors: Vec<QnatOutputTensor<'_>> = tensors.collect();
    report.notes.push(format!(
        "{} quantized to NF4, which QNAT holds and nothing else",
        counted(tensors.len(), "tensor")
    ));
    let double = options
        .forget
        .as_ref()
        .is_some_and(|forget| forget.scheme.quantizes_scales());
    Ok(vec![lay_out(&tensors, &model.metadata, double)?])
}
