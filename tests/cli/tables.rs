//! The tables of README and `docs` that list what the program knows, against the program, and the
//! links between the pages.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Cursor;
use std::path::{Path, PathBuf};

use anamnesis::{Container, Dtype, QuantScheme};
use regex_lite::Regex;

use crate::amn;
use crate::common::gguf::Gguf;
use crate::common::{data, file, find_dtype, raw};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn page(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// The files below `directory`, in subdirectories too, whose names end in `ending`.
fn files_below(directory: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files_below(&path, ending));
        } else if path.to_str().is_some_and(|path| path.ends_with(ending)) {
            found.push(path);
        }
    }
    found
}

/// The cells of each row of the tables of `page` whose header begins with these columns.
fn rows(page: &str, columns: &[&str]) -> Vec<Vec<String>> {
    let cells = |line: &str| -> Vec<String> {
        let line = line.trim().trim_start_matches('|');
        let line = line.strip_suffix('|').unwrap_or(line);
        line.split('|').map(|cell| cell.trim().to_owned()).collect()
    };
    let (mut found, mut in_table, mut is_wanted) = (Vec::new(), false, false);
    for line in page.lines() {
        if !line.starts_with('|') {
            in_table = false;
        } else if !in_table {
            in_table = true;
            let header = cells(line);
            is_wanted = columns.iter().zip(&header).all(|(a, b)| a == b);
        } else if is_wanted && !line.starts_with("|---") {
            found.push(cells(line));
        }
    }
    assert!(!found.is_empty(), "no table {columns:?}");
    found
}

/// What stands in backticks in `text`.
fn codes(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

/// The anchor of a heading, as hosts of repositories make it.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().to_lowercase();
    let kept = kept
        .chars()
        .filter(|c| c.is_alphanumeric() || "-_ ".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// The anchors of a page's headings outside of code.
fn anchors(text: &str) -> Vec<String> {
    let mut is_code = false;
    let mut found = Vec::new();
    for line in text.lines() {
        is_code ^= line.starts_with("```");
        if let Some(heading) = line.strip_prefix('#').filter(|_| !is_code) {
            found.push(anchor(heading.trim_start_matches('#')));
        }
    }
    found
}

#[test]
fn links_lead_somewhere() {
    let mut pages = files_below(&root().join("docs"), ".md");
    pages.push(root().join("README.md"));
    let link = Regex::new(r"\]\(([^)\s]+)\)").unwrap();
    let mut links = 0;
    for path in pages {
        let text = fs::read_to_string(&path).unwrap();
        for (_, [target]) in link.captures_iter(&text).map(|found| found.extract()) {
            if target.contains("://") {
                continue;
            }
            let (place, heading) = target.split_once('#').unwrap_or((target, ""));
            let place = match place {
                "" => path.clone(),
                place => path.parent().unwrap().join(place),
            };
            assert!(place.exists(), "{}: {target}", path.display());
            if !heading.is_empty() {
                let there = anchors(&fs::read_to_string(&place).unwrap());
                assert!(there.contains(&heading.to_owned()), "{}: {target}", path.display());
            }
            links += 1;
        }
    }
    assert!(links > 100, "{links}");
}

/// The schemes and rules of `docs/encoding.md` are those of `amn forget`.
#[test]
fn schemes_that_are_encoded() {
    let list = String::from_utf8(amn(&["forget", "--list"]).stdout).unwrap();
    let known: BTreeSet<&str> = list.lines().filter_map(|l| l.split(' ').next()).collect();
    let page = page("docs/encoding.md");
    let rows = rows(&page, &["SCHEME"]);
    let documented: BTreeSet<&str> = rows.iter().flat_map(|row| codes(&row[0])).collect();
    assert_eq!(documented, known);
    let searched = self::rows(&page, &["SCHEME", "searched"]);
    let documented: BTreeSet<&str> = searched.iter().flat_map(|row| codes(&row[0])).collect();
    let has_search = |name: &&str| {
        name.parse()
            .is_ok_and(|scheme: anamnesis::ForgetScheme| scheme.has_search())
    };
    assert_eq!(documented, known.iter().copied().filter(has_search).collect());
    let help = String::from_utf8(amn(&["forget", "--help"]).stdout).unwrap();
    let (_, help) = help.split_once("--scale-rule").unwrap();
    let (rules, _) = help.split_once("--").unwrap();
    let words = |text: &str| -> BTreeSet<String> {
        let words = text.split([',', ' ', '\n']).map(str::to_owned);
        words.filter(|word| !word.is_empty()).collect()
    };
    let known = words(&rules.split_once(':').unwrap().1.replace(" or ", " "));
    let rows = self::rows(&page, &["rule", "exponent"]);
    let documented = rows.iter().flat_map(|row| codes(&row[0]));
    assert_eq!(documented.map(str::to_owned).collect::<BTreeSet<_>>(), known);
}

/// Every scheme that models of the test data have is shown in the table of `docs/schemes.md` under
/// the name of its row, and no row has another name.
#[test]
fn schemes_that_are_decoded() {
    let page = page("docs/schemes.md");
    let rows = rows(&page, &["scheme", "shown as"]);
    let documented: BTreeSet<&str> = rows.iter().map(|row| &*row[1]).collect();
    let mut shown: BTreeMap<String, PathBuf> = BTreeMap::new();
    let files = [
        "model.onnx",
        "model.tflite",
        "model.xml",
        "model.mlmodel",
        "model.pte",
        "model.keras",
        "config.json",
    ];
    let endings = [".safetensors", ".gguf", ".pt", ".qnat"]
        .into_iter()
        .chain(files);
    for ending in endings {
        for path in files_below(&data(), ending) {
            // Decoded values, and whole models, which are not quantized.
            let text = path.to_str().unwrap();
            if ["/expected", "/library", "/whole", "/towers"]
                .iter()
                .any(|part| text.contains(part))
            {
                continue;
            }
            let path = match ending {
                "config.json" => path.parent().unwrap().to_owned(),
                _ => path,
            };
            let Ok(model) = anamnesis::parse(&path) else {
                continue;
            };
            for found in model.inspect().schemes {
                match found.scheme {
                    QuantScheme::Unquantized | QuantScheme::Other(_) => {}
                    scheme => drop(shown.insert(scheme.family().to_owned(), path.clone())),
                }
            }
        }
    }
    for (family, path) in &shown {
        assert!(documented.contains(&**family), "{family}: {}", path.display());
    }
    let missing = documented.iter().find(|name| !shown.contains_key(**name));
    assert_eq!(missing, None, "no model of tests/data is shown so");
}

/// Tensors of the names and types in a row of the table "Recognised and refused" are refused.
#[test]
fn schemes_that_are_refused() {
    let directory = crate::common::tempdir().unwrap();
    let path = directory.path().join("m.safetensors");
    for row in rows(&page("docs/schemes.md"), &["scheme", "recognised by"]) {
        let names = codes(&row[1]);
        let dtype = row[1].split('`').nth(2).unwrap().split(' ').nth(1);
        let dtype = dtype.and_then(find_dtype).unwrap_or(("U8", 8));
        let tensors: Vec<_> = names
            .iter()
            .enumerate()
            .map(|(i, name)| {
                let (dtype, bits) = if i == 0 { dtype } else { ("F32", 32) };
                let module = if name.contains(':') {
                    "model:layer"
                } else {
                    "model.layer"
                };
                let name = name
                    .replace("P.", "model.layer.")
                    .replace("P:", &format!("{module}:"));
                raw(&name, dtype, &[16, 16], vec![1; 16 * 16 * bits / 8])
            })
            .collect();
        fs::write(&path, file(&tensors, &[])).unwrap();
        let output = amn(&["remember", path.to_str().unwrap(), "--dry-run"]);
        let said = String::from_utf8_lossy(&output.stderr);
        let is_refused = matches!(output.status.code(), Some(3 | 6)) && said.contains("layer");
        assert!(is_refused, "{row:?}: {said}");
    }
}

/// The types of `docs/ggml.md` are those that a GGUF file can name, with their sizes.
#[test]
fn types_of_ggml() {
    let page = page("docs/ggml.md");
    // By number: the name, and the bytes of a row's header, values and bytes of a block.
    type Row = (String, Option<(u64, u64, u64)>);
    let mut documented: BTreeMap<u32, Row> = BTreeMap::new();
    let number = |cell: &String| cell.parse::<u64>().unwrap_or_else(|_| panic!("{cell}"));
    for row in rows(&page, &["type", "number", "values", "bytes"]) {
        let sizes = (0, number(&row[2]), number(&row[3]));
        documented.insert(number(&row[1]) as u32, (row[0].clone(), Some(sizes)));
    }
    for row in rows(&page, &["type", "number", "header"]) {
        let header = number(&row[2].split(',').next().unwrap().to_owned());
        let sizes = (header, number(&row[3]), number(&row[4]));
        documented.insert(number(&row[1]) as u32, (row[0].clone(), Some(sizes)));
    }
    for row in rows(&page, &["type", "number", "type"]) {
        for pair in row.chunks(2).filter(|pair| !pair[0].is_empty()) {
            documented.insert(number(&pair[1]) as u32, (pair[0].clone(), None));
        }
    }
    for id in 0..500 {
        // 16 rows of 256 values, which are whole blocks of every type.
        let tensor =
            |bytes: u64| Gguf::default().tensor("t", id, &[256, 16], &vec![0; bytes as usize]);
        let header = Cursor::new(tensor(0).header());
        let found = anamnesis::parse_gguf_front_matter_from_reader(header).unwrap();
        let dtype = found.tensor_infos[0].dtype;
        let is_of_blocks = match dtype {
            Dtype::UnknownGgml(_) => false,
            dtype => dtype.is_ggml_block() || id >= 133,
        };
        match documented.get(&id) {
            Some((name, sizes)) => {
                assert_eq!(dtype.name(), name, "{id}");
                let Some((header, values, bytes)) = sizes else {
                    continue;
                };
                let bytes = 16 * (header + 256 / values * bytes);
                let parses = |bytes| anamnesis::parse_bytes(tensor(bytes).file()).is_ok();
                assert!(parses(bytes) && !parses(bytes - 1), "{name}: no {bytes} bytes");
            }
            None => assert!(!is_of_blocks, "{id}: {} is missing", dtype.name()),
        }
    }
}

/// Classes of `docs/models.md` are known to the source, and all classes of the tables of families
/// and of the test data are on the page. So are the names of their architectures.
#[test]
fn families() {
    let page = page("docs/models.md");
    // The list of classes that are not taken says nothing of those that are.
    let (before, rest) = page
        .split_once("<!-- check_coverage.py: begin -->")
        .unwrap();
    let (_, after) = rest.split_once("<!-- check_coverage.py: end -->").unwrap();
    let page = [before, after].concat();
    let mut families = String::new();
    let mut sources = String::new();
    for path in files_below(&root().join("src"), ".rs") {
        let text = fs::read_to_string(&path).unwrap();
        if path.components().any(|part| part.as_os_str() == "families") {
            families += &text;
        }
        sources += &text;
    }
    // What stands between two quotes.
    let texts: std::collections::HashSet<&str> = sources.split('"').collect();
    let known = |name: &str| texts.contains(name);
    for row in rows(&page, &["class of transformers"]) {
        let classes = codes(&row[0]);
        for name in classes.iter().filter(|name| !name.ends_with('…')) {
            assert!(known(name), "{name} is no class of the source");
        }
        for name in codes(&row[1]) {
            assert!(known(name), "{name} is no architecture of the source");
        }
    }
    let class =
        Regex::new("\"([A-Z][A-Za-z0-9_]*(?:For[A-Z][A-Za-z]+|LMHeadModel|ChatModel))\"").unwrap();
    let mut all = families;
    for path in files_below(&data().join("whole"), "config.json") {
        all += &fs::read_to_string(path).unwrap();
    }
    let schemes = self::page("docs/schemes.md");
    for row in rows(&schemes, &["`model_type`"]) {
        for name in codes(&row[0])
            .iter()
            .filter(|name| !name.contains('.') && **name != "Q")
        {
            assert!(known(name), "{name} is no model_type of the source");
        }
    }
    let mut classes = 0;
    for (_, [name]) in class.captures_iter(&all).map(|found| found.extract()) {
        assert!(page.contains(&format!("`{name}`")), "{name} is missing");
        classes += 1;
    }
    assert!(classes > 100, "{classes}");
}

/// Every limit that an error of the source names has a row in `docs/safety.md`, and the other way
/// round.
#[test]
fn limits() {
    let page = page("docs/safety.md");
    let limits = rows(&page, &["limit", "bounds"]);
    let of_pickles = rows(&page, &["part of a pickle"]);
    let cells = limits.iter().map(|row| &row[0]);
    let cells = cells.chain(of_pickles.iter().map(|row| &row[2]));
    let mut documented: BTreeSet<&str> = cells.flat_map(|cell| codes(cell)).collect();
    documented.retain(|name| !name.ends_with('…'));
    let mut sources = String::new();
    for path in files_below(&root().join("src"), ".rs") {
        sources += &fs::read_to_string(path).unwrap();
    }
    let limit = Regex::new("\"((?:[A-Z]+_)*MAX_[A-Z_]+)\"").unwrap();
    for (_, [name]) in limit.captures_iter(&sources).map(|found| found.extract()) {
        assert!(documented.contains(name), "{name} is missing");
    }
    for name in documented {
        assert!(sources.contains(&format!("\"{name}\"")), "{name} is no limit");
    }
}

/// Each test that `docs/safety.md` names for a promise is there: `suite::module::test`.
#[test]
fn promises_have_tests() {
    let page = page("docs/safety.md");
    let rows =
        [rows(&page, &["item", "check", "tests"]), rows(&page, &["promise", "tests"])].concat();
    for row in rows {
        let named = codes(row.last().unwrap());
        assert!(!named.is_empty(), "{}: no test is named", row[0]);
        for name in named {
            let (module, test) = name.rsplit_once("::").unwrap();
            let file = root().join("tests").join(module.replace("::", "/"));
            let files = [file.with_extension("rs"), file.join("main.rs")];
            let source = files.iter().find_map(|file| fs::read_to_string(file).ok());
            let source = source.unwrap_or_else(|| panic!("{name}: no file of this module"));
            let is_there = source.contains(&format!("fn {test}()"))
                || source
                    .lines()
                    .any(|line| line.starts_with("replays! {") && line.contains(test));
            assert!(is_there, "{name} is no test");
        }
    }
}

/// The globals of `docs/safety.md` are those that `amn inspect --globals` calls allowed.
#[cfg(feature = "pth")]
#[test]
fn globals_of_pickles() {
    let (mut modules, mut names) = (String::new(), Vec::new());
    for row in rows(&page("docs/safety.md"), &["module", "names"]) {
        if !row[0].is_empty() {
            modules = row[0].clone();
        }
        // "`Storage` after `Half` `Float`", "`int1` to `int7`"
        let found: Vec<String> = match row[1].split_once(" after ") {
            Some((ending, begins)) => {
                let ending = codes(ending).last().map(|&ending| ending.to_owned());
                let ending = ending.unwrap_or_else(|| "Storage".to_owned());
                codes(begins)
                    .iter()
                    .map(|b| format!("{b}{ending}"))
                    .collect()
            }
            None => codes(&row[1]).iter().map(|&name| name.to_owned()).collect(),
        };
        for module in codes(&modules) {
            names.extend(found.iter().map(|name| format!("{module}.{name}")));
        }
    }
    assert!(names.len() > 140, "{}", names.len());
    names.push("os.system".to_owned());
    let pickle: String = names
        .iter()
        .map(|name| name.rsplit_once('.').unwrap())
        .map(|(module, name)| format!("c{module}\n{name}\n0"))
        .collect();
    let directory = crate::common::tempdir().unwrap();
    let path = directory.path().join("m.pt");
    let pickle = [pickle.as_bytes(), b"}."].concat();
    fs::write(&path, crate::common::pickle::archive(&pickle)).unwrap();
    let output = amn(&["inspect", path.to_str().unwrap(), "--globals"]);
    let list = String::from_utf8(output.stdout).unwrap();
    let refused: Vec<&str> = list.lines().filter(|l| l.starts_with("refused")).collect();
    assert_eq!(refused, ["refused  os.system"]);
    let allowed = list.lines().filter(|l| l.starts_with("allowed")).count();
    assert_eq!(allowed, names.len() - 1);
}

/// Every option that a page names is one of the program, or of the program beside it.
#[test]
fn options() {
    const OF_OTHERS: [&str; 7] = [
        "--locked",
        "--outtype",
        "--bigendian",
        "--pooling",
        "--reranking",
        "--features",
        "--bench",
    ];
    let option = Regex::new("--[a-z][a-z0-9-]+").unwrap();
    let commands = amn(&["--help"]).stdout;
    let commands = String::from_utf8(commands).unwrap();
    let (_, commands) = commands.split_once("Commands:").unwrap();
    let mut known: BTreeSet<String> = OF_OTHERS.map(str::to_owned).into();
    for line in commands
        .lines()
        .take_while(|line| !line.starts_with("Options:"))
    {
        let name = line
            .strip_prefix("  ")
            .and_then(|line| line.split(' ').next());
        let Some(name) = name.filter(|name| !name.is_empty()) else {
            continue;
        };
        let help = String::from_utf8(amn(&["help", name]).stdout).unwrap();
        known.extend(
            option
                .find_iter(&help)
                .map(|found| found.as_str().to_owned()),
        );
    }
    let mut named = 0;
    for name in ["cli", "convert", "encoding", "formats", "json", "models", "safety", "schemes"] {
        for line in page(&format!("docs/{name}.md")).lines() {
            for code in codes(line)
                .into_iter()
                .filter(|code| !code.contains("llama-"))
            {
                for found in option.find_iter(code) {
                    assert!(known.contains(found.as_str()), "{name}: `{code}`");
                    named += 1;
                }
            }
        }
    }
    assert!(named > 100, "{named}");
}

/// The first bytes of `docs/formats.md` are those by which the library tells containers.
#[test]
fn containers() {
    let page = page("docs/formats.md");
    let mut found = BTreeSet::new();
    for row in rows(&page, &["first bytes", "container"]) {
        let mut head = vec![0; 600];
        let beginning: &[u8] = match &*row[0] {
            "four zero bytes at offset 4 and `{` at offset 8" => b"\x02\0\0\0\0\0\0\0{}",
            "`GGUF`" => b"GGUF",
            "`QNAT`" => b"QNAT",
            "`\\x93NUMPY`" => b"\x93NUMPY",
            "`0x80` and a protocol from 2 to 5" => b"\x80\x02",
            "`ustar` at offset 257" => {
                head[257..262].copy_from_slice(b"ustar");
                b""
            }
            // Their content decides.
            _ => continue,
        };
        head[..beginning.len()].copy_from_slice(beginning);
        let format = anamnesis::detect_format_from_reader(Cursor::new(head)).unwrap();
        let name = match format {
            Container::Safetensors => "safetensors",
            Container::Gguf => "GGUF",
            Container::Qnat => "QNAT",
            Container::Npy => "NumPy array",
            Container::Pth => "PyTorch checkpoint",
            other => panic!("{other:?}: {row:?}"),
        };
        assert!(row[1].contains(name), "{name}: {row:?}");
        found.insert(name);
    }
    assert_eq!(found.len(), 5, "{found:?}");
}

/// The dtypes of `docs/formats.md` are those of safetensors.
#[test]
fn dtypes() {
    let page = page("docs/formats.md");
    let rows = rows(&page, &["bits", "dtypes"]);
    let documented: BTreeSet<&str> = rows.iter().flat_map(|row| codes(&row[1])).collect();
    let known: BTreeSet<&str> = crate::common::DTYPES
        .iter()
        .map(|(name, _)| *name)
        .collect();
    assert_eq!(documented, known);
}

/// The roles of `docs/cli.md` are those that `docs/json.md` allows, which the tests of `--json` hold
/// against the program.
#[test]
fn roles() {
    let (cli, json) = (page("docs/cli.md"), page("docs/json.md"));
    let row = rows(&json, &["field", "type"])
        .into_iter()
        .find(|row| row[0] == "`role`");
    let words = row.unwrap()[1].replace('"', "");
    let cli = rows(&cli, &["role", "tensors"]);
    let roles: BTreeSet<&str> = cli.iter().flat_map(|row| codes(&row[0])).collect();
    assert_eq!(roles, codes(&words).into_iter().collect());
}

/// Each piece of a published model is in the table of tested models.
#[test]
fn tested_models() {
    let rows = rows(&page("docs/schemes.md"), &["model", "scheme", "file"]);
    let listed: Vec<&str> = rows.iter().map(|row| row[2].trim_matches('`')).collect();
    let slices = data().join("slices");
    let mut used = BTreeSet::new();
    for ending in [".bin", ".npz", ".pth"] {
        for path in files_below(&slices, ending) {
            let path = path.strip_prefix(&slices).unwrap();
            let name = path.to_str().unwrap().replace('\\', "/");
            if name.contains("synthetic_") || name.contains("_reference") {
                continue;
            }
            let is_row = |pattern: &&&str| match pattern.split_once('*') {
                Some((start, end)) => name.starts_with(start) && name.ends_with(end),
                None => **pattern == name,
            };
            let row = listed.iter().find(is_row);
            used.insert(row.unwrap_or_else(|| panic!("{name} is not listed")));
        }
    }
    assert_eq!(used.len(), listed.len(), "{used:?}");
}
