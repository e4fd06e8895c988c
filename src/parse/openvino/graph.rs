//! Layers and edges of a model: its own graph, and those in the bodies of its layers.

use std::collections::HashMap;

use super::wrong;
use crate::limits::{Budget, cap};
use crate::parse::xml::{XmlEvent, XmlReader, XmlTag};
use crate::{AnamnesisError, Result};

/// Most dimensions of a tensor.
const MAX_DIMS: usize = 64;

/// Longest name, in bytes, with those of the layers around it.
const MAX_NAME: u64 = 4096;

/// Versions of the format whose data lies as it is read here.
const VERSIONS: std::ops::RangeInclusive<u32> = 10..=11;

/// A model.
#[derive(Default)]
pub(super) struct Net {
    pub name: String,
    pub version: u32,
    /// The model's graph, then those of bodies as they end.
    pub graphs: Vec<NetGraph>,
}

/// A graph.
#[derive(Default)]
pub(super) struct NetGraph {
    /// What comes before the names of its layers: those of the layers that have it.
    pub before: String,
    pub layers: Vec<NetLayer>,
    pub constants: Vec<Constant>,
    /// Where a layer's input comes from: by number of the layer, and of the port.
    pub inputs: HashMap<(u32, u32), u32>,
    /// The layers and ports that take a layer's output.
    pub outputs: HashMap<u32, Vec<(u32, u32)>>,
    /// Places of the layers by their numbers.
    pub by_id: HashMap<u32, usize>,
}

/// A layer.
pub(super) struct NetLayer {
    pub id: u32,
    pub name: String,
    pub kind: String,
    /// Dimensions of its first output, if it has one and they are known.
    pub dims: Option<Vec<usize>>,
    /// Numbers of its input ports, in order.
    pub ports: Vec<u32>,
    /// Its constant.
    pub constant: Option<usize>,
}

/// What a layer `Const` says of its data.
pub(super) struct Constant {
    /// Place of the layer.
    pub layer: usize,
    pub element_type: String,
    pub shape: Vec<usize>,
    pub offset: u64,
    pub len: u64,
}

/// Reads a [`Net`].
struct NetReader<'a> {
    xml: XmlReader<'a>,
    budget: &'a Budget,
    net: Net,
    /// The graphs that are open, with the element that holds each.
    open: Vec<(NetGraph, &'a str)>,
}

impl Net {
    pub(super) fn read(text: &str, budget: &Budget) -> Result<Self> {
        let xml = XmlReader::new(text);
        let mut reader = NetReader { xml, budget, net: Self::default(), open: Vec::new() };
        reader.root()?;
        Ok(reader.net)
    }
}

impl<'a> NetReader<'a> {
    fn root(&mut self) -> Result<()> {
        let Some(XmlEvent::Start(root)) = self.xml.next()? else {
            return Err(wrong("it has no root"));
        };
        let [name, version] = root.attributes(["name", "version"])?;
        let version = version.and_then(|version| version.parse().ok());
        match version.filter(|_| root.name == "net") {
            Some(version) if VERSIONS.contains(&version) => self.net.version = version,
            Some(version) => {
                let what = format!("version {version} of the format; 10 and 11 are read");
                return Err(AnamnesisError::unsupported("OpenVINO", what));
            }
            None => return Err(wrong("its root is no `net` with a version")),
        }
        self.net.name = name.unwrap_or_default().into_owned();
        self.open.push((NetGraph::default(), "net"));
        let mut elements = Elements::default();
        while let Some(event) = self.xml.next()? {
            match event {
                XmlEvent::Start(tag) => self.start(tag, &mut elements)?,
                XmlEvent::End(name) => self.end(name, &mut elements),
                XmlEvent::Text(text) if elements.is_dim => {
                    let dim = text.trim_ascii().parse::<i64>();
                    let dim = dim.map_err(|_| wrong("a dimension is no number"))?;
                    elements.dims.push(usize::try_from(dim).ok());
                    cap(
                        "MAX_TENSOR_DIMS",
                        elements.dims.len() as u64,
                        MAX_DIMS as u64,
                        "dimensions",
                    )?;
                }
                XmlEvent::Text(_) => {}
            }
        }
        Ok(())
    }

    fn start(&mut self, tag: XmlTag<'a>, elements: &mut Elements) -> Result<()> {
        match tag.name {
            "body" | "then_body" | "else_body" => {
                let (graph, _) = self.graph()?;
                let layer = graph.layers.last().map_or("", |layer| &layer.name);
                let before = format!("{}{layer}.{}.", graph.before, tag.name);
                self.check_name(&before)?;
                self.open
                    .push((NetGraph { before, ..NetGraph::default() }, tag.name));
            }
            "layer" => self.layer(&tag)?,
            "data" => self.data(&tag)?,
            "edges" => elements.is_edges = true,
            // Elsewhere they say what a loop gives back to itself.
            "edge" if elements.is_edges => self.edge(&tag)?,
            "input" => elements.is_input = true,
            "output" => elements.is_output = true,
            "port" => {
                let [id] = tag.attributes(["id"])?;
                let id = number(id, "a port")?;
                elements.dims.clear();
                if elements.is_input {
                    self.budget.tables(0, 1, 0)?;
                    self.last_layer()?.ports.push(id);
                }
            }
            "dim" => elements.is_dim = true,
            _ => {}
        }
        Ok(())
    }

    fn end(&mut self, name: &str, elements: &mut Elements) {
        match name {
            "input" => elements.is_input = false,
            "output" => elements.is_output = false,
            "dim" => elements.is_dim = false,
            "edges" => elements.is_edges = false,
            "port" if elements.is_output => {
                let dims: Option<Vec<usize>> = elements.dims.drain(..).collect();
                let graph = self.open.last_mut().map(|(graph, _)| graph);
                if let Some(layer) = graph.and_then(|graph| graph.layers.last_mut()) {
                    // Of several outputs, which no constant has, the first counts.
                    layer.dims = layer.dims.take().or(dims);
                }
            }
            _ => {}
        }
        if self
            .open
            .last()
            .is_some_and(|(_, element)| *element == name)
            && let Some((graph, _)) = self.open.pop()
        {
            self.net.graphs.push(graph);
        }
    }

    fn graph(&mut self) -> Result<&mut (NetGraph, &'a str)> {
        self.open
            .last_mut()
            .ok_or_else(|| wrong("a layer outside of the graph"))
    }

    fn last_layer(&mut self) -> Result<&mut NetLayer> {
        let (graph, _) = self.graph()?;
        graph
            .layers
            .last_mut()
            .ok_or_else(|| wrong("data of no layer"))
    }

    fn check_name(&self, name: &str) -> Result<()> {
        let len = name.len() as u64;
        cap("OPENVINO_MAX_NAME_BYTES", len, MAX_NAME, "bytes of a name")
    }

    fn layer(&mut self, tag: &XmlTag<'_>) -> Result<()> {
        let [id, name, kind] = tag.attributes(["id", "name", "type"])?;
        let (id, name) = (number(id, "a layer")?, name.unwrap_or_default().into_owned());
        self.check_name(&name)?;
        // Of long names there are a few copies.
        self.budget.tables(0, 2 + name.len() as u64 / 64, 0)?;
        let kind = kind.unwrap_or_default().into_owned();
        let (graph, _) = self.graph()?;
        let place = graph.layers.len();
        if graph.by_id.insert(id, place).is_some() {
            return Err(wrong(format!("two layers have number {id}")));
        }
        graph.layers.push(NetLayer {
            id,
            name,
            kind,
            dims: None,
            ports: Vec::new(),
            constant: None,
        });
        Ok(())
    }

    /// Reads where the data of a constant is.
    fn data(&mut self, tag: &XmlTag<'_>) -> Result<()> {
        if self.last_layer()?.kind != "Const" {
            return Ok(());
        }
        self.budget.items(1, "tensors")?;
        self.budget.tables(1, 0, 0)?;
        let [kind, shape, offset, size] =
            tag.attributes(["element_type", "shape", "offset", "size"])?;
        let (graph, _) = self.graph()?;
        let layer = graph.layers.len() - 1;
        let name = &graph.layers[layer].name;
        let dims = shape.as_deref().map(dimensions);
        let number = |text: Option<std::borrow::Cow<'_, str>>| text.and_then(|n| n.parse().ok());
        let (Some(kind), Some(Some(shape)), Some(offset), Some(len)) =
            (kind, dims, number(offset), number(size))
        else {
            return Err(wrong("a constant lacks type, shape, offset or size").in_tensor(name));
        };
        if graph.layers[layer].constant.is_some() {
            return Err(wrong("it has two places of its data").in_tensor(name));
        }
        graph.layers[layer].constant = Some(graph.constants.len());
        let element_type = kind.into_owned();
        graph
            .constants
            .push(Constant { layer, element_type, shape, offset, len });
        Ok(())
    }

    fn edge(&mut self, tag: &XmlTag<'_>) -> Result<()> {
        let [from, to, port] = tag.attributes(["from-layer", "to-layer", "to-port"])?;
        let (from, to, port) =
            (number(from, "an edge")?, number(to, "an edge")?, number(port, "an edge")?);
        self.budget.tables(0, 1, 0)?;
        let (graph, _) = self.graph()?;
        if graph.inputs.insert((to, port), from).is_some() {
            return Err(wrong(format!("two edges lead to port {port} of layer {to}")));
        }
        graph.outputs.entry(from).or_default().push((to, port));
        Ok(())
    }
}

/// The elements that the reader is in.
#[derive(Default)]
struct Elements {
    is_input: bool,
    is_output: bool,
    is_dim: bool,
    is_edges: bool,
    /// Dimensions of a port; `None` for those that are not known.
    dims: Vec<Option<usize>>,
}

fn number(text: Option<std::borrow::Cow<'_, str>>, of: &str) -> Result<u32> {
    let number = text.and_then(|text| text.parse().ok());
    number.ok_or_else(|| wrong(format!("{of} has no number")))
}

/// The dimensions in `3, 4`.
fn dimensions(text: &str) -> Option<Vec<usize>> {
    if text.trim_ascii().is_empty() {
        return Some(Vec::new());
    }
    let dims: Option<Vec<usize>> = text
        .split(',')
        .map(|dim| dim.trim_ascii().parse().ok())
        .collect();
    dims.filter(|dims| dims.len() <= MAX_DIMS)
}

impl NetGraph {
    /// The layer that input number `i` of `layer` comes from.
    pub(super) fn input(&self, layer: &NetLayer, i: usize) -> Option<&NetLayer> {
        let from = self.inputs.get(&(layer.id, *layer.ports.get(i)?))?;
        self.layers.get(*self.by_id.get(from)?)
    }

    /// The only layer that takes the output of `layer`, and the number of the input there.
    pub(super) fn only_output(&self, layer: &NetLayer) -> Option<(&NetLayer, usize)> {
        let [(to, port)] = self.outputs.get(&layer.id)?[..] else {
            return None;
        };
        let to = self.layers.get(*self.by_id.get(&to)?)?;
        Some((to, to.ports.iter().position(|&p| p == port)?))
    }
}
