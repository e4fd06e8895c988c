//! The structure of the sources: imports between rooms go one way, a type's name means one thing, and
//! kernels have what they call within themselves.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Left out: the root re-exports everything, and a stand-in repeats the names of what it stands in
/// for.
const LEFT_OUT: [&str; 7] = [
    "lib.rs",
    "no_encodings.rs",
    "no_extended.rs",
    "no_deflated.rs",
    "no_derived.rs",
    "no_sha256.rs",
    "no_whole.rs",
];

/// A source file without its comments and tests.
struct Source {
    /// Path below `src`, e.g. `remember/gptq.rs`.
    path: String,
    text: String,
}

impl Source {
    /// The parts of the path of the file's module.
    fn module(&self) -> Vec<&str> {
        self.path.trim_end_matches(".rs").split('/').collect()
    }
}

/// Every file below `src` that is not a test.
fn sources() -> Vec<Source> {
    fn walk(dir: &Path, root: &Path, out: &mut Vec<Source>) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            if name.contains("tests") {
                continue;
            }
            if path.is_dir() {
                walk(&path, root, out);
            } else if name.ends_with(".rs") && !LEFT_OUT.contains(&name.as_str()) {
                let text = fs::read_to_string(&path).unwrap();
                let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
                let code = |line: &str| line.split("//").next().unwrap().to_owned();
                out.push(Source {
                    path: path
                        .strip_prefix(root)
                        .unwrap()
                        .to_str()
                        .unwrap()
                        .to_owned(),
                    text: text.lines().map(code).collect::<Vec<_>>().join("\n"),
                });
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut all = Vec::new();
    walk(&root, &root, &mut all);
    all
}

/// The room of a module path: its first part. Kernels are rooms of their own, and so are the
/// reports.
fn room(parts: &[&str]) -> String {
    match parts {
        [half @ ("remember" | "lethe"), "kernels", ..] => format!("{half}::kernels"),
        ["report", report, ..] => format!("report::{report}"),
        [room, ..] => (*room).to_owned(),
        [] => String::new(),
    }
}

fn room_of_file(path: &str) -> String {
    room(&path.trim_end_matches(".rs").split('/').collect::<Vec<_>>())
}

/// The identifier that `text` begins with.
fn identifier(text: &str) -> &str {
    let end = text.find(|c: char| !(c.is_alphanumeric() || c == '_'));
    &text[..end.unwrap_or(text.len())]
}

/// What `text`, which follows `crate::`, imports: paths of at most three parts.
fn imports(text: &str) -> Vec<Vec<&str>> {
    let first = identifier(text);
    if !first.is_empty() {
        let rest = text[first.len()..].strip_prefix("::");
        let below = rest.map(imports).unwrap_or_default();
        if below.is_empty() {
            return vec![vec![first]];
        }
        return below
            .into_iter()
            .map(|path| [vec![first], path].concat())
            .collect();
    }
    let Some(list) = text.strip_prefix('{') else {
        return vec![];
    };
    let (mut depth, mut start, mut out) = (0, 0, Vec::new());
    for (i, c) in list.char_indices() {
        match c {
            '{' => depth += 1,
            ',' | '}' if depth == 0 => {
                out.extend(imports(list[start..i].trim_start()));
                start = i + 1;
                if c == '}' {
                    return out;
                }
            }
            '}' => depth -= 1,
            _ => {}
        }
    }
    out
}

/// Items by name, each with the rooms that define it: the root re-exports some.
fn definitions(sources: &[Source]) -> BTreeMap<&str, BTreeSet<String>> {
    const KINDS: [&str; 6] = ["struct ", "enum ", "trait ", "type ", "fn ", "const "];
    let mut all: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for source in sources {
        for line in source.text.lines() {
            let Some(item) = line.strip_prefix("pub ") else {
                continue;
            };
            let item = item.strip_prefix("const fn ").map_or(item, |name| name);
            if let Some(name) = KINDS.iter().find_map(|kind| item.strip_prefix(kind)) {
                let rooms = all.entry(identifier(name)).or_default();
                rooms.insert(room_of_file(&source.path));
            }
        }
    }
    all
}

/// The rooms that each room imports from, each with a file that does.
fn graph(sources: &[Source]) -> BTreeMap<String, BTreeMap<String, String>> {
    let definitions = definitions(sources);
    let rooms: BTreeSet<String> = sources.iter().map(|s| room_of_file(&s.path)).collect();
    let mut graph: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
    for source in sources {
        let from = room_of_file(&source.path);
        for (at, _) in source.text.match_indices("crate::") {
            // What a public module exports from above it, it does not use.
            let line = source.text[..at].rsplit('\n').next();
            if line.is_some_and(|line| line.trim_start() == "pub use ") {
                continue;
            }
            for path in imports(&source.text[at + "crate::".len()..]) {
                let there = room(&path);
                let to = match definitions.get(path[0]) {
                    _ if rooms.contains(&there) => there,
                    Some(rooms) if rooms.len() == 1 => rooms.first().unwrap().clone(),
                    _ => continue,
                };
                if to != from {
                    let edges = graph.entry(from.clone()).or_default();
                    edges.insert(to, source.path.clone());
                }
            }
        }
    }
    graph
}

#[test]
fn imports_go_one_way() {
    let sources = sources();
    let graph = graph(&sources);
    assert!(graph["remember"].contains_key("remember::kernels"), "imports are found: {graph:?}");
    // Rooms without imports are taken away until none is left, or a circle is.
    let mut left = graph;
    loop {
        let rooms: BTreeSet<String> = left.keys().cloned().collect();
        let before = left.len();
        left.retain(|_, imports| {
            imports.retain(|to, _| rooms.contains(to));
            !imports.is_empty()
        });
        if left.len() == before {
            break;
        }
    }
    assert!(left.is_empty(), "rooms import each other: {left:#?}");
}

/// The modules that `source` imports from, itself a module at `path`.
fn imported_modules<'s>(
    source: &'s Source,
    path: &[&'s str],
    modules: &BTreeSet<Vec<&'s str>>,
) -> Vec<Vec<&'s str>> {
    let mut found = Vec::new();
    for (at, _) in source.text.match_indices("::") {
        let before = &source.text[..at];
        let word = before
            .rfind(|c: char| !(c.is_alphanumeric() || c == '_'))
            .map_or(0, |i| i + 1);
        let is_first = !before[..word].ends_with("::");
        let exported = before[..word].rsplit('\n').next().unwrap_or("").trim() == "pub use";
        let mut base = match &before[word..] {
            "crate" if is_first && !exported => vec![],
            "self" if is_first => path.to_vec(),
            "super" if is_first => path[..path.len() - 1].to_vec(),
            _ => continue,
        };
        let mut rest = &source.text[at + 2..];
        while let Some(above) = rest.strip_prefix("super::") {
            base.pop();
            rest = above;
        }
        for import in imports(rest) {
            let mut module = [base.clone(), import].concat();
            while !module.is_empty() && !modules.contains(&module) {
                module.pop();
            }
            found.push(module);
        }
    }
    found
}

/// The modules that come to themselves along `edges`, from a module to one that it imports.
fn in_circles<'s>(edges: &BTreeSet<(&'s str, &'s str)>) -> BTreeSet<&'s str> {
    let comes_back = |start: &str| {
        let (mut seen, mut open) = (BTreeSet::new(), vec![start]);
        while let Some(at) = open.pop() {
            for (_, to) in edges.iter().filter(|(from, _)| *from == at) {
                if *to == start {
                    return true;
                }
                if seen.insert(*to) {
                    open.push(to);
                }
            }
        }
        false
    };
    let importing: BTreeSet<&str> = edges.iter().map(|(from, _)| *from).collect();
    importing
        .into_iter()
        .filter(|module| comes_back(module))
        .collect()
}

/// Modules of one parent import each other in one direction.
#[test]
fn siblings_import_one_way() {
    let sources = sources();
    let paths: Vec<Vec<&str>> = sources.iter().map(Source::module).collect();
    let modules: BTreeSet<Vec<&str>> = paths.iter().cloned().collect();
    let mut graphs: BTreeMap<Vec<&str>, BTreeSet<(&str, &str)>> = BTreeMap::new();
    for (source, path) in sources.iter().zip(&paths) {
        for module in imported_modules(source, path, &modules) {
            let shared = path.iter().zip(&module).take_while(|(a, b)| a == b).count();
            if shared < path.len() && shared < module.len() {
                let edges = graphs.entry(path[..shared].to_vec()).or_default();
                edges.insert((path[shared], module[shared]));
            }
        }
    }
    let mut found = BTreeMap::new();
    for (parent, edges) in graphs {
        let left = in_circles(&edges);
        if !left.is_empty() {
            found.insert(parent.join("/"), left);
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}

/// What schemes share names none of them: what a method of configs says is a row of its scheme.
#[test]
fn what_schemes_share_names_no_method() {
    let mut found = Vec::new();
    for source in sources() {
        let room = source.path.trim_start_matches("remember/");
        let is_shared = room.starts_with("seam") || room.starts_with("layout");
        if is_shared && source.path.starts_with("remember/") {
            let lines = source
                .text
                .lines()
                .filter(|line| line.contains("QuantMethod::"));
            found.extend(lines.map(|line| format!("{}: {}", source.path, line.trim())));
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn a_type_has_one_name() {
    const KINDS: [&str; 4] = ["struct ", "enum ", "trait ", "union "];
    // A decoder and its encoder share a name; nothing else does.
    const MIRRORS: [(&str, &str); 2] =
        [("remember", "lethe"), ("remember::kernels", "lethe::kernels")];
    let sources = sources();
    let mut all: BTreeMap<(bool, &str), Vec<&str>> = BTreeMap::new();
    for source in &sources {
        for line in source.text.lines().map(str::trim_start) {
            let Some(item) = line
                .strip_prefix("pub")
                .map(|item| match item.split_once(") ") {
                    Some((scope, item)) if scope.starts_with('(') => item,
                    _ => item.trim_start(),
                })
            else {
                continue;
            };
            if let Some(kind) = KINDS.iter().find(|kind| item.starts_with(**kind)) {
                let name = identifier(&item[kind.len()..]);
                let files = all.entry((*kind == "trait ", name)).or_default();
                files.push(&source.path);
            }
        }
    }
    let is_mirrored = |files: &[&str]| {
        files.len() == 2
            && MIRRORS.iter().any(|(one, other)| {
                let rooms: BTreeSet<String> = files.iter().map(|f| room_of_file(f)).collect();
                rooms.contains(*one) && rooms.contains(*other)
            })
    };
    let repeated: Vec<_> = all
        .iter()
        .filter(|((is_trait, _), files)| files.len() > 1 && (*is_trait || !is_mirrored(files)))
        .map(|((_, name), files)| format!("{name}: {}", files.join(", ")))
        .collect();
    assert!(repeated.is_empty(), "{}", repeated.join("\n"));
}

/// What stays a call in a kernel, and what `crate::simd` has in its place. Functions that are generic
/// and not `#[inline]` are compiled once, in another unit than the kernels.
#[test]
fn kernels_call_nothing_in_their_loops() {
    const CALLS: [(&str, &str); 5] = [
        ("S.map(|", "from_fn(|i| ...)"),
        (".zip(", "zip(a, b)"),
        ("iter::zip", "zip(a, b)"),
        (".copy_from_slice(", "copy(from, to)"),
        (".as_flattened", "flat() or flat_mut()"),
    ];
    let mut found = Vec::new();
    for source in sources() {
        let room = room_of_file(&source.path);
        if !room.ends_with("::kernels") && !["simd", "element"].contains(&&*room) {
            continue;
        }
        for (line, (call, instead)) in source
            .text
            .lines()
            .flat_map(|line| CALLS.map(|call| (line, call)))
        {
            if line.contains(call) {
                found.push(format!("{}: `{}` instead of `{}`", source.path, instead, line.trim()));
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// No test runs on another CPU: what x86-64 alone has is imported for it alone.
#[test]
fn what_one_cpu_has_is_imported_for_it() {
    const CFG: &str = "#[cfg(target_arch = \"x86_64\")]";
    let mut found = Vec::new();
    for source in sources() {
        let mut before = "";
        for line in source.text.lines() {
            let is_of_x86 = ["Avx2", "Avx512", "NibbleTable"]
                .iter()
                .any(|name| line.contains(name));
            if line.starts_with("use crate::simd::") && is_of_x86 && before != CFG {
                found.push(format!("{}: {line}", source.path));
            }
            before = line;
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// A message about a tensor begins with its name in one form, which `AnamnesisError::tensor` reads back.
#[test]
fn one_place_names_the_tensor_of_a_message() {
    let mut found = Vec::new();
    for source in sources() {
        let (room, lines) = (room_of_file(&source.path), source.text.lines());
        // The program and the records of `log` name tensors in text that is no error.
        if !["cli", "error"].contains(&&*room) {
            let named =
                lines.filter(|line| line.contains("\"tensor `") && !line.contains("debug!("));
            found.extend(named.map(|line| format!("{}: {}", source.path, line.trim())));
        }
    }
    assert!(found.is_empty(), "instead of `InTensor(name)`:\n{}", found.join("\n"));
}

/// What the program uses of the library beyond its interface, which `cli` of this test shows it to name
/// from `hooks` alone.
#[test]
fn hooks_are_few() {
    let mut hooks: Vec<String> = Vec::new();
    for source in sources() {
        if source.path == "hooks.rs" {
            for line in source.text.lines() {
                let Some(item) = line.strip_prefix("pub ") else {
                    continue;
                };
                let (kind, rest) = item.split_once(' ').unwrap();
                match kind {
                    "use" => {
                        let paths = rest.trim_start_matches("crate::");
                        let names = imports(paths).into_iter().map(|path| path[path.len() - 1]);
                        hooks.extend(names.map(str::to_owned));
                    }
                    _ => hooks.push(identifier(rest).to_owned()),
                }
            }
            continue;
        }
        // A hidden method is one as well.
        let hidden = source.text.split("    #[doc(hidden)]\n").skip(1);
        hooks.extend(hidden.map(|item| item.lines().next().unwrap_or_default().trim().to_owned()));
    }
    assert!((1..=12).contains(&hooks.len()), "{}: {hooks:#?}", hooks.len());
}

/// Names that the front page of the documentation lists: what the root exports and does not hide.
#[test]
fn the_front_page_is_short() {
    let lib = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/lib.rs");
    let text = fs::read_to_string(lib).unwrap();
    let (mut shown, mut is_hidden) = (Vec::new(), false);
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.starts_with("#[") {
            is_hidden |= line == "#[doc(hidden)]";
            continue;
        }
        if let Some(item) = line.strip_prefix("pub use ") {
            let mut item = item.to_owned();
            while !item.ends_with(';') {
                item += lines.next().unwrap().trim();
            }
            // A glob has no name that is counted, so it is none of the front page.
            assert!(is_hidden || !item.contains('*'), "{item}");
            let paths = imports(&item);
            let names = paths.iter().map(|path| path.join("::"));
            shown.extend(names.filter(|_| !is_hidden));
        }
        is_hidden = false;
    }
    assert!((20..=40).contains(&shown.len()), "{}: {shown:#?}", shown.len());
}
