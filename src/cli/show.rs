//! `amn show`: the values of tensors, decoded from whatever they are stored in.

mod elements;
mod picture;
mod print;
mod slice;

use std::io::{BufWriter, IsTerminal, Write};
use std::path::Path;

use self::elements::{for_each_text, in_numpy, json, numpy_bytes};
use self::picture::Picture;
use self::print::{print_table, print_tensor, write_csv_table};
use self::slice::{Slice, SliceText};
use super::args::ShowArgs;
use super::printed::print_json;
use super::progress::{Meter, Work};
use super::{input, signals};
use crate::hooks::{Selection, SideFile, npy_header};
use crate::{
    AnamnesisError, CancelToken, Conversion, ConvertOptions, ModelScope, OutputTensor, ParsedModel,
    Result, TargetDtype, TensorStatistics,
};

/// A tensor to show.
struct Wanted<'a> {
    tensor: OutputTensor<'a>,
    slice: Option<SliceText>,
}

/// What `amn show --json` prints.
#[derive(serde::Serialize)]
struct ShownTensors {
    tensors: Vec<Shown>,
}

/// What `amn show --json` prints of each tensor.
#[derive(serde::Serialize)]
struct Shown {
    #[serde(flatten)]
    statistics: TensorStatistics,
    slice: Option<ShownSlice>,
}

/// Values of a slice, row-major.
#[derive(serde::Serialize)]
struct ShownSlice {
    shape: Vec<usize>,
    values: Vec<serde_json::Value>,
}

/// Shows one tensor in full, or several as a table.
pub(super) fn show(args: &ShowArgs, out: &mut impl Write) -> Result<()> {
    let model = input::open(&args.input, &args.read.limits)?.model;
    let (cancel, meter) = (CancelToken::new(), Meter::new(&args.read));
    let run = args.read.options(TargetDtype::F32, cancel.clone());
    let run = run.with_progress(meter.summing_listener());
    let mut options = ConvertOptions::from(run)
        .with_scope(ModelScope::Tensors)
        .with_skip_unsupported(true);
    options.single_file = true;
    let decoded = model.plan(options)?;
    // Scales, codes and other tensors that are no part of the recovered model.
    let mut as_stored = None;
    if args.stored {
        as_stored = Some(model.plan(ConvertOptions::copying(Default::default()))?);
    }
    let conversion = as_stored.as_ref().unwrap_or(&decoded);
    if !args.stored {
        require_decoded(&model, &decoded, args)?;
    }
    let wanted = wanted(conversion, args)?;
    let mut buffered = BufWriter::new(out);
    let out = &mut buffered;
    let is_one = wanted.len() == 1;
    if args.npy.is_some() && !is_one {
        return Err(several("--npy"));
    }
    let prints_meanwhile = is_one && args.csv && std::io::stdout().is_terminal();
    if !prints_meanwhile {
        // A file and a bar are to be removed; what is printed may end anywhere.
        signals::cancel_at_termination(&cancel)?;
        start(&meter, &wanted, args);
    }
    let shown = match (wanted.as_slice(), &args.npy) {
        ([one], Some(path)) => {
            write_npy(conversion, one, path, args.force).inspect(|()| meter.add_tensor())
        }
        ([one], None) if args.csv => {
            write_csv(conversion, one, out).inspect(|()| meter.add_tensor())
        }
        ([one], None) if !args.json => {
            let found = conversion.statistics(one.tensor.name, args.bins as usize);
            let found = found.and_then(|found| {
                let picture = picture(one, args);
                let picture = picture.map(|picture| picture.read(conversion, one.tensor.name));
                Ok((found, picture.transpose()?))
            });
            meter.add_tensor();
            meter.finish(found.is_ok());
            let corner = SliceText::corner(one.tensor.shape.len());
            let slice = one.slice.clone().unwrap_or(corner);
            found.and_then(|(found, picture)| {
                print_tensor(conversion, &found, &slice, out)?;
                picture.map_or(Ok(()), |picture| picture.print(out))
            })
        }
        (several, _) => show_several(conversion, several, args, &meter, out),
    };
    meter.finish(shown.is_ok());
    shown?;
    Ok(out.flush()?)
}

/// Fails if the arguments name a tensor that cannot be decoded, and so is not in `conversion`.
///
/// # Errors
/// What is wrong with the first of them.
fn require_decoded(
    model: &ParsedModel,
    conversion: &Conversion<'_>,
    args: &ShowArgs,
) -> Result<()> {
    let names = args
        .tensors
        .iter()
        .map(|text| match conversion.output(text) {
            Some(_) => text.clone(),
            None => SliceText::split(text).0.to_owned(),
        });
    model.require_decodable(&names.collect::<Vec<_>>())
}

/// The output tensors that the arguments name, each once, in the order of the arguments.
///
/// # Errors
/// `Usage` if an argument names none.
fn wanted<'a>(conversion: &'a Conversion<'_>, args: &ShowArgs) -> Result<Vec<Wanted<'a>>> {
    let all_slices = args.slice.as_deref().map(|text| {
        SliceText::parse(text).ok_or_else(|| {
            AnamnesisError::usage(format!("--slice: `{text}` is no slice, e.g. [0, :8]"))
        })
    });
    let all_slices = all_slices.transpose()?;
    let every = ["*".to_owned()];
    let texts = match args.tensors.as_slice() {
        [] => &every,
        texts => texts,
    };
    let mut found: Vec<Wanted<'a>> = Vec::new();
    for text in texts {
        // A name counts before a slice, and a slice before a pattern.
        let (name, slice) = match conversion.output(text) {
            Some(_) => (text.as_str(), None),
            None => SliceText::split(text),
        };
        let slice = slice.or_else(|| all_slices.clone());
        let before = found.len();
        if let Some(tensor) = conversion.output(name) {
            found.push(Wanted { tensor, slice });
            continue;
        }
        let selection = Selection::of(&[name.to_owned()])?;
        let named = conversion.outputs().filter(|t| selection.has(t.name));
        found.extend(named.map(|tensor| Wanted { tensor, slice: slice.clone() }));
        selection.check()?;
        if found.len() == before {
            let meant = selection.what_was_meant(conversion.outputs().map(|t| t.name));
            let what = format!(
                "no tensor of the recovered model is called `{name}`; {meant} (--stored shows those of the file)"
            );
            return Err(AnamnesisError::usage(what));
        }
    }
    let mut seen = std::collections::HashSet::new();
    found.retain(|wanted| wanted.slice.is_some() || seen.insert(wanted.tensor.name));
    Ok(found)
}

/// The picture of a tensor that is shown whole; `None` if there is none.
fn picture(one: &Wanted<'_>, args: &ShowArgs) -> Option<Picture> {
    let is_drawn = args.bins > 0 && one.slice.is_none();
    is_drawn.then(|| Picture::of(one.tensor.shape)).flatten()
}

/// Begins to show the progress of reading the tensors `wanted`, some of them several times.
fn start(meter: &Meter, wanted: &[Wanted<'_>], args: &ShowArgs) {
    let has_histogram = args.bins > 0 && (args.json || wanted.len() == 1);
    let reads = |one: &Wanted<'_>| match args.npy.is_some() || args.csv {
        true => 1,
        false if args.json => 1 + u64::from(has_histogram) + u64::from(one.slice.is_some()),
        false if wanted.len() == 1 => {
            1 + u64::from(has_histogram) + u64::from(picture(one, args).is_some())
        }
        false => 1,
    };
    let bytes = |one: &Wanted<'_>| {
        let values = one.tensor.shape.iter().product::<usize>() as u64;
        values.saturating_mul(one.tensor.dtype.bits() as u64) / 8
    };
    meter.start(Work {
        verb: "Reading",
        files: vec![args.input.file.to_string_lossy().into_owned()],
        total_bytes: wanted
            .iter()
            .map(|one| bytes(one).saturating_mul(reads(one)))
            .sum(),
        total_tensors: wanted.len(),
    });
}

fn several(option: &str) -> AnamnesisError {
    let what = "it takes the values of one tensor; several are named";
    AnamnesisError::usage(format!("{option}: {what}"))
}

/// Statistics of several tensors, as a table, CSV or JSON.
fn show_several(
    conversion: &Conversion<'_>,
    wanted: &[Wanted<'_>],
    args: &ShowArgs,
    meter: &Meter,
    out: &mut impl Write,
) -> Result<()> {
    let bins = match args.json {
        true => args.bins as usize,
        false => 0,
    };
    if !args.json && wanted.iter().any(|one| one.slice.is_some()) {
        return Err(several("a slice"));
    }
    let mut all = Vec::with_capacity(wanted.len());
    for one in wanted {
        let statistics = conversion.statistics(one.tensor.name, bins)?;
        let slice = match &one.slice {
            Some(slice) if args.json => Some(values(conversion, &one.tensor, slice)?),
            _ => None,
        };
        all.push(Shown { statistics, slice });
        meter.add_tensor();
    }
    meter.finish(true);
    let statistics = || all.iter().map(|shown| &shown.statistics);
    match () {
        () if args.json => print_json(&ShownTensors { tensors: all }, out),
        () if args.csv => write_csv_table(statistics(), out),
        () => print_table(statistics, out),
    }
}

/// Passes the bytes of `slice` to `take`, run after run, each in one piece or several.
fn for_each_run(
    conversion: &Conversion<'_>,
    tensor: &OutputTensor<'_>,
    slice: &Slice,
    mut take: impl FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let bits = tensor.dtype.bits() as u64;
    if !bits.is_multiple_of(8) || tensor.dtype.block_size() != 1 {
        let kind = format!("values of {}", tensor.dtype);
        let error = AnamnesisError::unsupported(kind, "its elements are no whole bytes");
        return Err(error.in_tensor(tensor.name));
    }
    let size = bits / 8;
    let mut runs = slice.runs().map(|at| at as u64 * size);
    let mut pending = runs.next();
    let len = slice.run as u64 * size;
    conversion.for_each_panel(tensor.name, |panel| {
        let end = panel.at + panel.bytes.len() as u64;
        while let Some(run) = pending.filter(|run| *run < end) {
            let (from, to) = (run.max(panel.at), (run + len).min(end));
            take(&panel.bytes[(from - panel.at) as usize..(to - panel.at) as usize])?;
            // The rest of the run is in the next panel.
            if run + len > end {
                break;
            }
            pending = runs.next();
        }
        Ok(())
    })
}

/// The values of a slice for JSON.
fn values(
    conversion: &Conversion<'_>,
    tensor: &OutputTensor<'_>,
    slice: &SliceText,
) -> Result<ShownSlice> {
    let slice = slice.of(tensor.name, tensor.shape)?;
    let mut values = Vec::new();
    for_each_run(conversion, tensor, &slice, |bytes| {
        for_each_text(tensor.name, tensor.dtype, bytes, |text| {
            values.push(json(tensor.dtype, &text));
            Ok(())
        })
    })?;
    Ok(ShownSlice { shape: slice.shape, values })
}

/// Writes a tensor or its slice as CSV: a line for each row of the last dimension.
fn write_csv(conversion: &Conversion<'_>, wanted: &Wanted<'_>, out: &mut impl Write) -> Result<()> {
    let tensor = &wanted.tensor;
    let slice = wanted.slice.clone().unwrap_or_default();
    let slice = slice.of(tensor.name, tensor.shape)?;
    let cols = slice.shape.last().copied().unwrap_or(1);
    let mut col = 0;
    for_each_run(conversion, tensor, &slice, |bytes| {
        for_each_text(tensor.name, tensor.dtype, bytes, |text| {
            col += 1;
            let end = if col == cols { "\n" } else { "," };
            col %= cols;
            Ok(write!(out, "{text}{end}")?)
        })
    })
}

/// Writes a tensor or its slice as a NumPy array, which appears under its name when it is complete.
fn write_npy(
    conversion: &Conversion<'_>,
    wanted: &Wanted<'_>,
    path: &Path,
    force: bool,
) -> Result<()> {
    let tensor = &wanted.tensor;
    let slice = wanted.slice.clone().unwrap_or_default();
    let slice = slice.of(tensor.name, tensor.shape)?;
    let Some(header) = npy_header(in_numpy(tensor.dtype), &slice.shape) else {
        let what = format!("NumPy has no type {}", tensor.dtype);
        return Err(AnamnesisError::unsupported("writing NPY", what).in_tensor(tensor.name));
    };
    let values = slice.shape.iter().product::<usize>() as u64;
    let data = values.checked_mul(in_numpy(tensor.dtype).bits() as u64 / 8);
    let len = data.and_then(|data| data.checked_add(header.len() as u64));
    let len = len.ok_or_else(|| AnamnesisError::parse("the array is too large"))?;
    let file = SideFile::create(path, len, Some(conversion), force)?;
    let mut writer = BufWriter::new(file.file());
    let failed = |e: &std::io::Error| AnamnesisError::io_at(path, e);
    writer.write_all(&header).map_err(|e| failed(&e))?;
    for_each_run(conversion, tensor, &slice, |bytes| {
        let bytes = numpy_bytes(tensor.name, tensor.dtype, bytes)?;
        writer.write_all(&bytes).map_err(|e| failed(&e))
    })?;
    writer.flush().map_err(|e| failed(&e))?;
    drop(writer);
    file.commit()
}
