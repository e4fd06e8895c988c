//! OpenVINO's intermediate representation: a graph in an XML file, and the data of its constants in a
//! file beside it, which is called like it but for its ending `bin`. That is not read here, but for
//! tables of values.
//!
//! - `graph`: layers and edges. `quantized`: constants that are codes, and how the graph decodes them.
//! - `tensor`: types, shapes and places of constants.
//!
//! Format: `docs/articles_en/documentation/openvino-ir-format.rst` of OpenVINO, versions 10 and 11.

mod graph;
mod quantized;
mod tensor;

use std::path::Path;

use self::graph::Net;
use crate::config::Confined;
use crate::limits::{Budget, cap};
use crate::source::Source;
use crate::{AnamnesisError, Container, ParsedModel, Result};

/// Longest XML file, in bytes. Those of large language models have a few MiB.
const MAX_XML: u64 = 256 << 20;

/// Reads a model. The XML is in memory meanwhile.
///
/// # Errors
/// `Parse` if it is malformed, or data is not where it says; `Unsupported` for old versions, and if
/// there is data and the model was not given by a path; `LimitExceeded`; `Io`.
pub(super) fn read(source: &Source, path: Option<&Path>, budget: &Budget) -> Result<ParsedModel> {
    let len = source.len().unwrap_or(0);
    cap("OPENVINO_MAX_XML_BYTES", len, MAX_XML, "bytes of XML")?;
    budget.alloc(len, "the XML of a model")?;
    budget.tables(0, 0, len)?;
    let mut bytes = crate::limits::zeroed(len, "the XML of a model")?;
    source.read_at(0, &mut bytes)?;
    let text = std::str::from_utf8(&bytes);
    let text = text.map_err(|_| wrong("it is not UTF-8"))?;
    let net = Net::read(text, budget)?;
    let mut contents = ParsedModel::new(Container::OpenVino, len as usize);
    contents.sources.push(source.share());
    let graphs = net.graphs.iter();
    if graphs
        .flat_map(|graph| &graph.constants)
        .any(|constant| constant.len > 0)
    {
        contents.sources.push(open_data(path)?);
    }
    let version = ("openvino.version".to_owned(), net.version.to_string());
    let named = (!net.name.is_empty()).then(|| ("openvino.name".to_owned(), net.name.clone()));
    contents.metadata.extend([version].into_iter().chain(named));
    let names = tensor::add_all(&mut contents, &net)?;
    quantized::mark(&mut contents, &net, &names)?;
    Ok(contents)
}

/// Opens the file of the data beside the XML file `path`.
fn open_data(path: Option<&Path>) -> Result<Source> {
    let Some(path) = path else {
        let what = "its data is in another file; give the path of the model";
        return Err(AnamnesisError::unsupported("OpenVINO", what));
    };
    let data = path.with_extension("bin");
    let directory = path.parent().unwrap_or(Path::new(""));
    let name = data.file_name().unwrap_or_default().to_string_lossy();
    if data.exists() && !Confined::new(directory).has(&data) {
        return Err(wrong(format!("`{name}`, its data, leads out of the model's directory")));
    }
    Source::open(&data).map_err(|error| match error {
        AnamnesisError::Io(e) if e.kind() == std::io::ErrorKind::NotFound => {
            wrong(format!("the file of its data, `{name}`, is missing: {e}"))
        }
        error => error,
    })
}

/// The error for a model that contradicts itself.
fn wrong(what: impl std::fmt::Display) -> AnamnesisError {
    AnamnesisError::parse(format!("OpenVINO: {what}"))
}
