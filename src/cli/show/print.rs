//! Statistics and values of tensors as text.

use std::io::Write;

use super::super::printed::csv_text;
use super::super::table::{Column, Table, bar};
use super::elements::{for_each_text, short};
use super::for_each_run;
use super::slice::SliceText;
use crate::error::printable;
use crate::{AnamnesisError, Conversion, Histogram, Result, TensorStatistics};

/// Characters of the longest bar of a histogram.
const BAR: u64 = 40;

/// Characters of a value, with the gap before it.
const VALUE: usize = 12;

/// Prints a tensor: statistics, the values of `slice`, the histogram.
pub(super) fn print_tensor(
    conversion: &Conversion<'_>,
    found: &TensorStatistics,
    slice: &SliceText,
    out: &mut impl Write,
) -> Result<()> {
    let Some(tensor) = conversion.output(&found.name) else {
        return Err(AnamnesisError::parse("it is gone").in_tensor(&found.name));
    };
    let number = |x: Option<f64>| x.map_or("-".to_owned(), short);
    writeln!(
        out,
        "{}  {} {:?}, {} values",
        printable(&found.name),
        found.dtype,
        found.shape,
        found.values
    )?;
    writeln!(
        out,
        "min {}  max {}  mean {}  std {}",
        number(found.min),
        number(found.max),
        number(found.mean),
        number(found.std)
    )?;
    writeln!(out, "zeros {}  NaN {}  infinite {}", found.zeros, found.nan, found.infinite)?;
    writeln!(out)?;
    let slice = slice.of(&found.name, &found.shape)?;
    let (cols, rows) = match slice.shape.as_slice() {
        [] => (1, 1),
        [outer @ .., cols] => (*cols, outer.iter().product::<usize>()),
    };
    let mut at = 0;
    for_each_run(conversion, &tensor, &slice, |bytes| {
        for_each_text(&found.name, found.dtype, bytes, |text| {
            at += 1;
            let text = match text.parse::<f64>() {
                Ok(x) if !found.dtype.is_integer() || text.len() >= VALUE => short(x),
                _ => text,
            };
            let end = if at % cols == 0 { "\n" } else { "" };
            Ok(write!(out, "{text:>VALUE$}{end}")?)
        })
    })?;
    writeln!(out, "{rows} x {cols} of {:?}", found.shape)?;
    match &found.histogram {
        Some(histogram) => print_histogram(histogram, out),
        None => Ok(()),
    }
}

fn print_histogram(histogram: &Histogram, out: &mut impl Write) -> Result<()> {
    writeln!(out)?;
    let most = histogram.counts.iter().copied().max().unwrap_or(0);
    for (i, &count) in histogram.counts.iter().enumerate() {
        let bar = bar(count, most, BAR);
        let (from, to) = (short(histogram.bound(i)), short(histogram.bound(i + 1)));
        writeln!(out, "{from:>VALUE$} .. {to:<VALUE$} {count:>VALUE$} {bar}")?;
    }
    Ok(())
}

/// Prints a line of statistics for each tensor.
pub(super) fn print_table<'a, I: Iterator<Item = &'a TensorStatistics>>(
    all: impl Fn() -> I,
    out: &mut impl Write,
) -> Result<()> {
    const COLUMNS: [Column; 10] = [
        Column::text("NAME"),
        Column::text("DTYPE"),
        Column::text("SHAPE"),
        Column::number("MIN"),
        Column::number("MAX"),
        Column::number("MEAN"),
        Column::number("STD"),
        Column::number("ZEROS"),
        Column::number("NAN"),
        Column::number("INF"),
    ];
    let number = |x: Option<f64>| x.map_or("-".to_owned(), short);
    let row = |found: &TensorStatistics| {
        [
            printable(&found.name),
            found.dtype.to_string(),
            format!("{:?}", found.shape),
            number(found.min),
            number(found.max),
            number(found.mean),
            number(found.std),
            found.zeros.to_string(),
            found.nan.to_string(),
            found.infinite.to_string(),
        ]
    };
    let table = Table::new(COLUMNS, all().map(row));
    table.write_titles(out)?;
    all().try_for_each(|found| table.write_row("", &row(found), out))
}

/// Writes the statistics of each tensor as a line of CSV, behind a line of titles.
pub(super) fn write_csv_table<'a>(
    all: impl Iterator<Item = &'a TensorStatistics>,
    out: &mut impl Write,
) -> Result<()> {
    writeln!(out, "name,dtype,shape,values,min,max,mean,std,zeros,nan,infinite")?;
    let number = |x: Option<f64>| x.map_or(String::new(), |x| format!("{x:e}"));
    for found in all {
        let name = csv_text(&found.name);
        let shape: Vec<_> = found.shape.iter().map(usize::to_string).collect();
        let moments = [found.min, found.max, found.mean, found.std].map(number);
        writeln!(
            out,
            "{name},{},{},{},{},{},{},{}",
            found.dtype,
            shape.join("x"),
            found.values,
            moments.join(","),
            found.zeros,
            found.nan,
            found.infinite
        )?;
    }
    Ok(())
}
