//! One HTML page on models: sizes, bits, errors, values, tensors and findings. It needs no network
//! and no script, and is made from the values that `--json` prints.
//!
//! `text` is the one place where text is escaped; `sizes`, `errors` and `histogram` are sections
//! with pictures, drawn by `treemap` and `bars`; `tables` are those without, written by `table`;
//! `names` tells layers and modules. `style.css` and `script.js` go into the page as they are.

mod bars;
mod errors;
mod histogram;
mod names;
mod sizes;
mod table;
mod tables;
mod text;
mod treemap;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use self::sizes::Colors;
use self::text::{Text, bits, count, things};
use super::outputs::require_outside_cache;
use super::table::brief_count;
use crate::hooks::{Distribution, SideFile, directory_of, list_with_notes};
use crate::{
    AnamnesisError, CheckReport, DiffReport, InspectInfo, ListedTensor, ModelDescription,
    ParsedModel, Report, Result, format_bytes,
};

const STYLE: &str = include_str!("html/style.css");
const SCRIPT: &str = include_str!("html/script.js");

/// SHA-256 of the script in Base64. Browsers run no other: should a text ever not be escaped, it is
/// no program.
const SCRIPT_HASH: &str = "OKEYPvOTheCpfmgHKs7Fr9UBRsX+ryZh53FKew75M7E=";

/// A model of a page.
pub(super) struct ShownModel<'a> {
    /// `A` or `B`; empty of a model alone.
    pub label: &'static str,
    pub path: String,
    pub info: InspectInfo,
    pub description: ModelDescription,
    pub tensors: Vec<ListedTensor<'a>>,
    pub notes: Vec<String>,
}

/// What a check has found in one model.
pub(super) struct CheckedPart<'a> {
    pub path: String,
    pub report: &'a CheckReport,
    /// What the model is called before its path, such as `A: `.
    pub label: &'static str,
    /// Whether every value was read.
    pub reads_data: bool,
}

/// What a page is made of. What is not there has no section.
#[derive(Default)]
pub(super) struct Page<'a> {
    pub title: String,
    pub models: Vec<ShownModel<'a>>,
    pub checked: Vec<CheckedPart<'a>>,
    pub diff: Option<&'a DiffReport>,
    pub encoding: Option<&'a Report>,
    pub values: Option<&'a Distribution>,
}

impl<'a> ShownModel<'a> {
    pub(super) fn new(label: &'static str, path: &Path, model: &'a ParsedModel) -> Self {
        let (tensors, notes) = list_with_notes(model);
        Self {
            label,
            path: path.to_string_lossy().into_owned(),
            info: model.inspect(),
            description: model.describe(),
            tensors,
            notes,
        }
    }

    /// ` of A`; nothing for a model alone.
    fn of_label(&self) -> String {
        match self.label {
            "" => String::new(),
            label => format!(" of {label}"),
        }
    }
}

/// Checks that a page may be written to `path`, before the work.
///
/// # Errors
/// `Usage` if it is no file's name; `Io` if it is one of the files of `inputs`, in a cache, no
/// regular file, or there and is not to be replaced, or has no directory.
pub(super) fn check_place(path: &Path, inputs: &[PathBuf], force: bool) -> Result<()> {
    check_name(path)?;
    SideFile::check_beside(path, inputs, force)?;
    if !directory_of(path).is_dir() {
        let what = "the page's directory does not exist";
        let error = std::io::Error::new(std::io::ErrorKind::NotFound, what);
        return Err(AnamnesisError::io_at(path, &error));
    }
    Ok(())
}

/// Checks that `path` is the name of a file outside of caches.
///
/// # Errors
/// `Usage` or `Io` if it is not.
pub(super) fn check_name(path: &Path) -> Result<()> {
    match path == Path::new("-") {
        true => Err(AnamnesisError::usage("--html: a page goes to a file, not to stdout")),
        false => require_outside_cache(path),
    }
}

/// The name of a model in the title of a page.
pub(super) fn name_of(path: &Path) -> String {
    path.file_name()
        .unwrap_or(path.as_os_str())
        .to_string_lossy()
        .into_owned()
}

/// Writes `page` to `path`, where no file of `inputs` is replaced, and another file only with
/// `force`. Returns its length.
///
/// # Errors
/// `Io` if it cannot be written.
pub(super) fn write(page: &Page<'_>, path: &Path, inputs: &[PathBuf], force: bool) -> Result<u64> {
    let text = render(page);
    SideFile::write(path, text.as_bytes(), inputs, force)?;
    Ok(text.len() as u64)
}

/// The page as HTML.
pub(super) fn render(page: &Page<'_>) -> String {
    let mut out = String::new();
    let _ = write!(
        out,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>{}</title>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <meta name=\"generator\" content=\"anamnesis {}\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; script-src \
         'sha256-{SCRIPT_HASH}'\">\n<style>\n{STYLE}</style>\n</head>\n<body>\n",
        Text(&page.title),
        env!("CARGO_PKG_VERSION")
    );
    let _ = writeln!(out, "<header><h1>{}</h1>", Text(&page.title));
    navigation(page, &mut out);
    out.push_str("</header>\n<main>\n");
    if !page.models.is_empty() {
        out.push_str("<section id=\"models\" class=\"cards\">\n");
        for model in &page.models {
            card(model, &mut out);
        }
        out.push_str("</section>\n");
    }
    if !page.checked.is_empty() {
        tables::findings(&page.checked, &mut out);
    }
    if page.models.iter().any(|model| !model.tensors.is_empty()) {
        let colors = Colors::of(&page.models);
        out.push_str("<section id=\"sizes\"><h2>Sizes</h2>\n<p>An area is the size of a tensor as it is stored, a colour what it is stored in. Point at a tensor for its name.</p>\n");
        for model in &page.models {
            if !model.label.is_empty() {
                let _ = writeln!(
                    out,
                    "<h3>{}, {}</h3>",
                    model.label,
                    format_bytes(model.info.current_size)
                );
            }
            sizes::treemap(model, &colors, &mut out);
        }
        out.push_str("</section>\n<section id=\"bits\"><h2>Bits per value</h2>\n<p>Stored bits for each value of a layer, scales included.</p>\n");
        for model in &page.models {
            sizes::bits_by_layer(model, &mut out);
        }
        out.push_str("</section>\n");
    }
    if let Some(report) = page.diff {
        let errors = errors::of_diff(report);
        errors::section(
            "The difference of the decoded values of B from those of A, over the tensors whose values differ. RMSE is the root \
             of the mean squared difference.",
            &errors,
            &mut out,
        );
    }
    let encoded = page
        .encoding
        .map(|report| (report, errors::of_encoding(report)));
    if let Some((report, errors)) = &encoded
        && report.distance.is_some()
    {
        let what = "What encoding changed: the difference between the values before it and the values that are decoded again. \
                    RMSE is the root of the mean squared difference; in parentheses it is divided by the root mean square of \
                    the values.";
        errors::section(what, errors, &mut out);
    }
    if let Some(values) = page.values {
        histogram::section(values, page.models.len() > 1, &mut out);
    }
    if let Some(report) = page.diff {
        tables::differences(report, &mut out);
    }
    if let Some((report, errors)) = &encoded {
        tables::encoding(report, errors, &mut out);
    }
    for (model, id) in page.models.iter().zip(["tensors", "tensors-b"]) {
        tables::tensors(model, id, &mut out);
    }
    let _ = write!(
        out,
        "</main>\n<footer>Made by amn {}. Sizes are in powers of 1024.</footer>\n<script>{SCRIPT}</script>\n</body>\n</html>\n",
        env!("CARGO_PKG_VERSION")
    );
    out
}

/// Links to the sections.
fn navigation(page: &Page<'_>, out: &mut String) {
    let has_models = page.models.iter().any(|model| !model.tensors.is_empty());
    let has_distance = page
        .encoding
        .is_some_and(|report| report.distance.is_some());
    out.push_str("<nav>");
    for (id, title, is_there) in [
        ("findings", "Findings", !page.checked.is_empty()),
        ("sizes", "Sizes", has_models),
        ("bits", "Bits per value", has_models),
        ("errors", "Errors", page.diff.is_some() || has_distance),
        ("values", "Sizes of values", page.values.is_some()),
        ("differences", "Differences", page.diff.is_some()),
        ("encoded", "Encoded tensors", page.encoding.is_some()),
        ("tensors", "Tensors", !page.models.is_empty()),
    ] {
        if is_there {
            let _ = write!(out, "<a href=\"#{id}\">{title}</a> ");
        }
    }
    out.push_str("</nav>\n");
}

/// Writes what a model is.
fn card(model: &ShownModel<'_>, out: &mut String) {
    let (info, description) = (&model.info, &model.description);
    out.push_str("<div class=\"card\">");
    if !model.label.is_empty() {
        let _ = write!(out, "<h2>{}</h2>", model.label);
    }
    out.push_str("<dl>");
    let mut row = |what: &str, value: &str| {
        let _ = write!(out, "<dt>{what}</dt><dd>{}</dd>", Text(value));
    };
    row("File", &model.path);
    row("Container", &info.container.to_string());
    if let Some(architecture) = &description.architecture {
        row("Architecture", architecture);
    }
    let schemes: Vec<String> = info
        .schemes
        .iter()
        .map(|s| format!("{} ({})", s.scheme.column(), things(s.tensors as u64, "tensor")))
        .collect();
    if !schemes.is_empty() {
        row("Quantized", &schemes.join("; "));
    }
    let values = description.parameters;
    let active = description
        .active_parameters
        .filter(|active| *active != values);
    let active = active.map_or(String::new(), |n| format!(", {} active", brief_count(n)));
    row("Values", &format!("{} ({}){active}", count(values), brief_count(values)));
    row("Tensors", &count(info.tensor_count as u64));
    row(
        "Size",
        &format!("{} ({} bytes)", format_bytes(info.current_size), count(info.current_size)),
    );
    if let Some(x) = description.bits_per_weight {
        row("Bits per value", &bits(x));
    }
    if info.dequantized_size != info.current_size {
        let dtypes: Vec<String> = info
            .output_dtypes
            .iter()
            .map(|found| found.dtype.to_string())
            .collect();
        let size = format_bytes(info.dequantized_size);
        row("Decoded", &format!("{size} ({})", dtypes.join(", ")));
    }
    if let Some(n) = description.context_length {
        row("Context", &format!("{} tokens", count(n)));
    }
    if let Some(n) = description.experts {
        let used = description.experts_used.map(|used| format!("{used} of "));
        row("Experts", &format!("{}{n}", used.unwrap_or_default()));
    }
    if let Some(tokenizer) = &description.tokenizer {
        row("Tokenizer", tokenizer);
    }
    let notes = model
        .notes
        .iter()
        .chain(&info.notes)
        .chain(&description.notes);
    let notes: BTreeSet<&String> = notes.collect();
    for note in notes.into_iter().take(tables::MOST_NOTES) {
        row("Note", note);
    }
    out.push_str("</dl></div>\n");
}

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

    use super::*;

    /// The hash that the page allows is that of its script.
    #[test]
    fn the_script_may_run() {
        const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        // Browsers read all ends of lines as this one.
        let hash = Sha256::digest(SCRIPT.replace("\r\n", "\n"));
        let mut text = String::new();
        for three in hash.chunks(3) {
            let word = three.iter().chain(&[0; 2]).take(3);
            let word = word.fold(0u32, |word, byte| word << 8 | u32::from(*byte));
            for i in 0..4 {
                text.push(match i <= three.len() {
                    true => char::from(DIGITS[(word >> (18 - 6 * i) & 63) as usize]),
                    false => '=',
                });
            }
        }
        assert_eq!(SCRIPT_HASH, text);
        assert!(SCRIPT.lines().count() < 100 && !SCRIPT.contains("</"));
        assert!(!SCRIPT.contains("innerHTML") && !STYLE.contains("url("));
    }
}
