//! Which constants are codes: those that operators of quantized models take.

use std::collections::HashMap;

use super::Result;
use super::reader::{ProgramReader, ValueUse};
use crate::Dtype;
use crate::model::{GraphCodes, GraphRole};
use crate::parse::flatbuffer::FlatTable;

/// The instruction that calls an operator.
const KERNEL_CALL: u8 = 1;

/// The operator of codes with a scale for each index of an axis: codes, scales, zero points, axis.
const PER_CHANNEL: &str = "quantized_decomposed::dequantize_per_channel";

/// Value that is a number.
const INT: u8 = 2;

/// Reads the operators of the method `plan`, whose tensors with data are `values` by their numbers.
/// Of operators that are not PyTorch's own, small integers are codes.
pub(super) fn read(
    reader: &mut ProgramReader<'_>,
    plan: &FlatTable,
    values: &HashMap<u64, ValueUse>,
) -> Result<()> {
    let operators = reader.file.vector(plan, 6, 4)?;
    let mut names = Vec::new();
    for i in 0..operators.len {
        reader.look()?;
        let operator = reader.file.item(operators, i)?;
        let name = reader.file.text(&operator, 0)?;
        reader.budget.tables(0, 1 + name.len() as u64 / 64, 0)?;
        let is_own = ["aten::", "dim_order_ops::", "executorch_prim::"];
        let is_own = is_own.iter().any(|space| name.starts_with(space));
        names.push((!is_own).then_some(name));
    }
    if names.iter().all(Option::is_none) {
        return Ok(());
    }
    let chains = reader.file.vector(plan, 5, 4)?;
    for i in 0..chains.len {
        let chain = reader.file.item(chains, i)?;
        let calls = reader.file.vector(&chain, 2, 4)?;
        for j in 0..calls.len {
            reader.look()?;
            let call = reader.file.item(calls, j)?;
            if reader.file.byte(&call, 0)? != KERNEL_CALL {
                continue;
            }
            let Some(call) = reader.file.child(&call, 1)? else {
                continue;
            };
            let operator = names.get(reader.file.int(&call, 0)? as u32 as usize);
            if let Some(Some(operator)) = operator {
                let args = reader.file.vector(&call, 1, 4)?;
                let args = reader.file.numbers(args)?;
                let args: Vec<u64> = args
                    .into_iter()
                    .map(|n| u32::from_le_bytes(n).into())
                    .collect();
                let axis = axis(reader, plan, operator, &args)?;
                mark(reader, operator, &args, axis, values);
            }
        }
    }
    Ok(())
}

/// The axis of an operator that has one, if it is a constant.
fn axis(
    reader: &mut ProgramReader<'_>,
    plan: &FlatTable,
    operator: &str,
    args: &[u64],
) -> Result<Option<i64>> {
    let (PER_CHANNEL, Some(&axis)) = (operator, args.get(3)) else {
        return Ok(None);
    };
    let values = reader.file.vector(plan, 2, 4)?;
    let value = reader.file.item(values, axis)?;
    if reader.file.byte(&value, 0)? != INT {
        return Ok(None);
    }
    let Some(number) = reader.file.child(&value, 1)? else {
        return Ok(None);
    };
    let number = reader.file.number(&number, 0)?;
    Ok(Some(number.map_or(0, i64::from_le_bytes)))
}

/// Notes what the constants among the arguments of `operator` are.
fn mark(
    reader: &mut ProgramReader<'_>,
    operator: &str,
    args: &[u64],
    axis: Option<i64>,
    values: &HashMap<u64, ValueUse>,
) {
    let value = |i: usize| args.get(i).and_then(|value| values.get(value));
    if let (Some(axis), Some(codes), Some(scale)) = (axis, value(0), value(1)) {
        let zero_point = value(2).map(|zero| zero.name.clone());
        let known = GraphCodes {
            scale: Some(scale.name.clone()),
            zero_point: zero_point.clone(),
            ..GraphCodes::along(axis, 0)
        };
        set_role(reader, &codes.name, GraphRole::Codes(Box::new(known)));
        for name in [Some(scale.name.clone()), zero_point].into_iter().flatten() {
            set_role(reader, &name, GraphRole::Companion { is_shared: true });
        }
        return;
    }
    for value in args.iter().filter_map(|arg| values.get(arg)) {
        if value.is_small_integer {
            let unknown = GraphRole::Codes(Box::new(GraphCodes::new(operator)));
            set_role(reader, &value.name, unknown);
        }
    }
}

/// Sets the role of the tensor called `name`. Codes that operators do not agree about are not
/// decoded.
fn set_role(reader: &mut ProgramReader<'_>, name: &str, role: GraphRole) {
    let contents = &mut reader.contents;
    let Some(&i) = reader.numbers.get(name) else {
        return;
    };
    contents
        .graph
        .resize(contents.tensors.len(), GraphRole::Plain);
    match &mut contents.graph[i] {
        GraphRole::Codes(codes) if role != GraphRole::Codes(codes.clone()) => codes.has_more = true,
        known => *known = role,
    }
}

/// Where operators take codes, other matrices of small integers are codes as well, which none
/// explains.
pub(super) fn mark_rest(reader: &mut ProgramReader<'_>) {
    let contents = &mut reader.contents;
    let is_codes = |i: &&usize| matches!(contents.graph.get(**i), Some(GraphRole::Codes(_)));
    if reader.numbers.values().find(is_codes).is_none() {
        return;
    }
    for &i in reader.numbers.values() {
        let t = &contents.tensors[i];
        let is_small = matches!(t.dtype, Dtype::I8 | Dtype::U8) && t.shape.len() > 1;
        if is_small && contents.graph.get(i) == Some(&GraphRole::Plain) {
            contents.graph[i] = GraphRole::Codes(Box::new(GraphCodes::new("")));
        }
    }
}
