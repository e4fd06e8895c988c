//! `amn report`, and `--html` of `diff`, `check` and `forget`: the numbers are those of `--json`,
//! names from files are text whatever is in them, and the page needs neither scripts nor a network.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use regex_lite::Regex;
use serde_json::Value;

use crate::amn;
use crate::common::{Raw, data, f32s, file, raw};

/// A page that `amn` writes with `arguments`, in which `OUT` is its path.
fn page_with_code(code: i32, arguments: &[&str]) -> String {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("page.html");
    let output = path.to_str().unwrap();
    let arguments: Vec<&str> = arguments
        .iter()
        .map(|word| if *word == "OUT" { output } else { word })
        .collect();
    let end = amn(&arguments);
    let error = String::from_utf8_lossy(&end.stderr);
    assert_eq!(end.status.code(), Some(code), "{arguments:?}: {error}");
    let page = std::fs::read_to_string(&path).unwrap();
    assert_well_formed(&page);
    page
}

fn page_of(arguments: &[&str]) -> String {
    page_with_code(0, arguments)
}

fn json(arguments: &[&str]) -> Value {
    serde_json::from_slice(&amn(arguments).stdout).unwrap()
}

/// Elements of a page, which have no content of their own if `false`.
const ELEMENTS: &[(&str, bool)] = &[
    ("a", true),
    ("b", true),
    ("body", true),
    ("br", false),
    ("code", true),
    ("dd", true),
    ("div", true),
    ("dl", true),
    ("dt", true),
    ("figcaption", true),
    ("figure", true),
    ("footer", true),
    ("g", true),
    ("h1", true),
    ("h2", true),
    ("h3", true),
    ("head", true),
    ("header", true),
    ("html", true),
    ("i", true),
    ("li", true),
    ("line", false),
    ("main", true),
    ("meta", false),
    ("nav", true),
    ("ol", true),
    ("p", true),
    ("rect", true),
    ("script", true),
    ("section", true),
    ("span", true),
    ("style", true),
    ("sub", true),
    ("sup", true),
    ("svg", true),
    ("table", true),
    ("tbody", true),
    ("td", true),
    ("text", true),
    ("th", true),
    ("thead", true),
    ("title", true),
    ("tr", true),
    ("ul", true),
];

/// Fails unless all tags are those of [`ELEMENTS`] and close each other, attributes are quoted and
/// none is an event, nothing comes from elsewhere, and ids are unique.
fn assert_well_formed(page: &str) {
    let tag = Regex::new("^<(/?)([a-z0-9]+)((?: [a-z0-9-]+(?:=\"[^\"<>]*\")?)*)(/?)>").unwrap();
    let attribute = Regex::new(" ([a-z0-9-]+)(?:=\"([^\"]*)\")?").unwrap();
    let page = page.strip_prefix("<!DOCTYPE html>\n").unwrap();
    let (mut open, mut rest, mut scripts, mut ids) = (vec![], page, 0, vec![]);
    while let Some(at) = rest.find('<') {
        assert!(!rest[..at].contains('>'), "{}", &rest[..at]);
        rest = &rest[at..];
        let shown: String = rest.chars().take(120).collect();
        // No attribute has a `>`. Attributes are in lower case, but for one of SVG.
        let end = rest.find('>').unwrap_or_else(|| panic!("no tag: {shown}"));
        let lower = rest[..=end].replace("viewBox", "viewbox");
        let found = tag
            .captures(&lower)
            .unwrap_or_else(|| panic!("no tag: {shown}"));
        let (name, len) = (found[2].to_owned(), found[0].len());
        let element = ELEMENTS.iter().find(|(element, _)| *element == name);
        let (_, has_content) = element.unwrap_or_else(|| panic!("<{name}>: {shown}"));
        for (_, [key, value]) in attribute.captures_iter(&found[3]).map(|found| {
            let value = found.get(2).map_or("", |value| value.as_str());
            ("", [found.get(1).unwrap().as_str(), value])
        }) {
            assert!(!key.starts_with("on") && key != "src" && key != "style", "{shown}");
            assert!(key != "href" || value.starts_with('#'), "{shown}");
            if key == "id" {
                ids.push(value.to_owned());
            }
        }
        rest = &rest[len..];
        match (&found[1], &found[4]) {
            ("/", _) => assert_eq!(open.pop().as_ref(), Some(&name), "{shown}"),
            (_, "/") => {}
            _ if *has_content => open.push(name.clone()),
            _ => {}
        }
        if found[1].is_empty() && (name == "script" || name == "style") {
            scripts += usize::from(name == "script");
            let end = rest.find(&format!("</{name}>")).unwrap();
            assert!(!rest[..end].contains("http"), "{name}");
            rest = &rest[end..];
        }
    }
    assert!(open.is_empty(), "{open:?}");
    assert_eq!(scripts, 1);
    let n = ids.len();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), n, "ids");
    assert!(!page.contains("://") && page.contains("default-src 'none'"));
}

/// The text of an element's content.
fn unescaped(text: &str) -> String {
    let text = Regex::new("<[^>]*>").unwrap().replace_all(text, "");
    [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&#39;", "'"), ("&amp;", "&")]
        .iter()
        .fold(text.into_owned(), |text, (escaped, plain)| text.replace(escaped, plain))
}

/// A cell of a table: its text, and the number that it sorts by.
#[derive(Debug, Clone)]
struct Cell {
    text: String,
    value: Option<f64>,
}

/// The rows of the table called `id`, by the titles of its columns.
fn table(page: &str, id: &str) -> Vec<BTreeMap<String, Cell>> {
    let Some((_, rest)) = page.split_once(&format!("id=\"{id}\">")) else {
        return vec![];
    };
    let (text, _) = rest.split_once("</table>").unwrap();
    let title = Regex::new("<th[^>]*>([^<]*)</th>").unwrap();
    let titles: Vec<String> = title
        .captures_iter(text)
        .map(|found| found[1].to_owned())
        .collect();
    let cell = Regex::new("<td([^>]*)>([^<]*)</td>").unwrap();
    let value = Regex::new("data-v=\"([^\"]*)\"").unwrap();
    let (_, body) = text.split_once("<tbody>").unwrap();
    let rows = body.split("<tr>").skip(1).map(|row| {
        let cells = cell.captures_iter(row).map(|found| Cell {
            text: unescaped(&found[2]),
            value: value
                .captures(&found[1])
                .map(|value| value[1].parse().unwrap()),
        });
        titles.iter().cloned().zip(cells).collect()
    });
    rows.collect()
}

/// Compares a number with one of JSON, which the parser of these tests may round in its last digit.
fn assert_near(shown: Option<f64>, expected: &Value, context: &str) {
    let (shown, expected) = (shown.unwrap(), expected.as_f64().unwrap());
    let is_near = (shown - expected).abs() <= expected.abs() * 1e-15;
    assert!(is_near, "{context}: {shown} and {expected}");
}

/// The models of the data, one of each kind.
const MODELS: &[&str] = &[
    "guide/TinyLlama",
    "demo/model-fp8.safetensors",
    "demo/model-q4_k.gguf",
    "demo/checkpoint.pth",
    "demo/arrays.npz",
    "gptq/b4_v1_act_order",
    "nvfp4/modelopt",
    "mlx/tiny_qwen3_moe/model",
];

fn at(name: &str) -> String {
    data().join(name).to_str().unwrap().to_owned()
}

#[test]
fn tensors_are_those_of_ls_and_of_show() {
    for name in MODELS {
        let model = at(name);
        let page = page_of(&["report", &model, "-o", "OUT"]);
        let rows = table(&page, "tensors-table");
        let listing = json(&["ls", &model, "--json"]);
        let tensors = listing["tensors"].as_array().unwrap();
        assert_eq!(rows.len(), tensors.len(), "{name}");
        for (row, tensor) in rows.iter().zip(tensors) {
            assert_eq!(row["Name"].text, tensor["name"].as_str().unwrap());
            assert_eq!(row["Type"].text, tensor["dtype"].as_str().unwrap());
            assert_eq!(row["Values"].value, tensor["parameters"].as_f64());
            assert_eq!(row["Size"].value, tensor["bytes"].as_f64());
            assert_eq!(row["Role"].text, tensor["role"].as_str().unwrap());
        }
        // What is counted apart, and what is in the bars, are all values of the decoded tensors.
        let shown = json(&["show", &model, "--json", "--bins", "0"]);
        let shown = shown["tensors"].as_array().unwrap();
        let sum = |key: &str| shown.iter().map(|t| t[key].as_u64().unwrap()).sum::<u64>();
        let (_, figure) = page.split_once("<b>All values</b>").unwrap();
        let (figure, _) = figure.split_once("</figure>").unwrap();
        let bar = Regex::new("<rect class=\"a\"[^>]* data-v=\"(\\d+)\"").unwrap();
        let counted: u64 = bar
            .captures_iter(figure)
            .map(|found| found[1].parse::<u64>().unwrap())
            .sum();
        assert_eq!(counted + sum("zeros") + sum("nan") + sum("infinite"), sum("values"), "{name}");
        let inspected = json(&["inspect", &model, "--json"]);
        let bytes = inspected["current_size"].as_u64().unwrap();
        let size = format!("<dt>Size</dt><dd>{}", size_text(bytes));
        assert!(page.contains(&size), "{name}: {size}");
    }
}

/// A size as `amn` prints it.
fn size_text(bytes: u64) -> String {
    match bytes {
        0x10_0000.. => format!("{:.0} MB", bytes as f64 / f64::from(1 << 20)),
        1024.. => format!("{:.1} KB", bytes as f64 / 1024.0),
        _ => format!("{bytes} B"),
    }
}

/// Of a page of `report` and of one of `diff`.
#[test]
fn differences_are_those_of_diff() {
    let directory = tempfile::tempdir().unwrap();
    let encoded = directory
        .path()
        .join("q4.gguf")
        .to_str()
        .unwrap()
        .to_owned();
    let (model, decoded) = (at("guide/TinyLlama"), directory.path().join("back"));
    let decoded = decoded.to_str().unwrap();
    assert!(
        amn(&["forget", &model, "--to", "gguf:q4_0", "-o", &encoded])
            .status
            .success()
    );
    assert!(amn(&["remember", &encoded, "-o", decoded]).status.success());
    let found = json(&["diff", &model, decoded, "--json"]);
    let by_report = page_of(&["report", &model, decoded, "-o", "OUT"]);
    let by_diff = page_with_code(1, &["diff", &model, decoded, "--html", "OUT"]);
    assert!(by_report.contains("id=\"values\"") && !by_diff.contains("id=\"values\""));
    for page in [by_report, by_diff] {
        let rows = table(&page, "changed-table");
        let changed = found["changed"].as_array().unwrap();
        assert_eq!(rows.len(), changed.len());
        assert!(changed.len() > 5);
        for tensor in changed {
            let row = rows
                .iter()
                .find(|row| row["Name"].text == tensor["name"])
                .unwrap();
            let values = &tensor["values"];
            assert_near(row["RMSE"].value, &values["rmse"], "RMSE");
            assert_near(row["Mean"].value, &values["mean_abs"], "Mean");
            assert_near(row["Largest"].value, &values["max_abs"], "Largest");
            assert_eq!(row["Values"].value, values["values"].as_f64());
            assert_eq!(row["Differ"].value, values["unequal"].as_f64());
        }
        // The worst is first, and named.
        let worst = rows
            .iter()
            .map(|row| row["RMSE"].value.unwrap())
            .fold(0.0, f64::max);
        assert_eq!(rows[0]["RMSE"].value, Some(worst));
        let (_, named) = page.split_once("<ol class=\"worst\">").unwrap();
        assert!(named.starts_with(&format!("<li><code>{}</code>", rows[0]["Name"].text)));
        let equal = found["equal"].as_u64().unwrap();
        assert!(page.contains(&format!("{equal} tensors equal")));
        // A layer is the mean of the squares of its tensors.
        let squares = |key: &str| {
            let in_layer = rows
                .iter()
                .filter(|row| row["Name"].text.starts_with("model.layers.0."));
            in_layer
                .map(|row| row["Values"].value.unwrap() * row[key].value.unwrap().powi(2))
                .sum::<f64>()
        };
        let in_layer = rows
            .iter()
            .filter(|row| row["Name"].text.starts_with("model.layers.0."));
        let n: f64 = in_layer.map(|row| row["Values"].value.unwrap()).sum();
        let bar = Regex::new("data-v=\"([^\"]*)\"><title>model.layers.0: RMSE").unwrap();
        let shown: f64 = bar.captures(&page).unwrap()[1].parse().unwrap();
        assert!((shown / (squares("RMSE") / n).sqrt() - 1.0).abs() < 1e-12);
    }
    // Two models of the same bytes: their values are read for the histograms all the same.
    let same = page_of(&["report", &model, &model, "-o", "OUT"]);
    assert!(same.contains("The models are <b>equal</b>") && same.contains("No value differs."));
    assert!(same.contains("class=\"b\""));
}

#[test]
fn errors_of_encoding_are_those_of_forget() {
    let directory = tempfile::tempdir().unwrap();
    let output = directory.path().join("out.safetensors");
    let output = output.to_str().unwrap();
    let model = at("guide/TinyLlama");
    let page = page_of(&["forget", &model, "--to", "nf4", "-o", output, "--html", "OUT"]);
    let found = json(&["forget", &model, "--to", "nf4", "-o", output, "--json", "-f"]);
    let rows = table(&page, "encoded-table");
    assert_eq!(rows.len(), found["encoded"].as_array().unwrap().len());
    for tensor in found["distance"]["worst"].as_array().unwrap() {
        let row = rows
            .iter()
            .find(|row| row["Name"].text == tensor["name"])
            .unwrap();
        for (title, key) in [
            ("RMSE", "rmse"),
            ("Relative", "relative"),
            ("Largest", "maximum"),
            ("Values", "values"),
        ] {
            assert_near(row[title].value, &tensor[key], title);
        }
    }
    assert_eq!(table(&page, "kept-table").len(), found["kept"].as_array().unwrap().len());
    assert!(page.contains("id=\"tensors-b-table\""), "the output is shown");
    // The picture of the documents is of such a page.
    let gguf = directory.path().join("tiny.gguf");
    let gguf = gguf.to_str().unwrap();
    let page = page_of(&["forget", &model, "--to", "gguf:q4_k_m", "-o", gguf, "--html", "OUT"]);
    let picture = include_str!("../../docs/images/report.svg");
    let rectangle =
        Regex::new("<rect [^>]*data-v[^>]*>|<title>[^<]*[BK]B?, [^<]*</title>").unwrap();
    let shown: Vec<_> = rectangle.find_iter(picture).collect();
    assert!(shown.len() >= 18, "{}", shown.len());
    for shown in shown {
        assert!(page.contains(shown.as_str()), "{}: run docs/images/report.py", shown.as_str());
    }
    // An option without effect is refused.
    for arguments in [
        &["forget", &model, "--to", "nf4", "--dry-run", "--html", "x.html"][..],
        &["forget", &model, &model, "--to", "nf4", "-o", "x/", "--html", "x.html"],
        &["diff", &model, &model, "--html", "-"],
        &["diff", &model, &model, "--force"],
        &["report"],
        &["report", &model, &model, &model],
        &["report", &model, "--to", "int8"],
    ] {
        assert_eq!(amn(arguments).status.code(), Some(2), "{arguments:?}");
    }
}

#[test]
fn findings_are_those_of_check() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("nan.safetensors");
    let tensors = [
        raw("a.weight", "F32", &[2, 2], f32s(&[1.0, f32::NAN, f32::INFINITY, 0.0])),
        raw("b.weight", "F8_E4M3", &[4, 4], vec![0x38; 16]),
    ];
    std::fs::write(&path, file(&tensors, &[])).unwrap();
    let (model, good) = (path.to_str().unwrap(), at("demo/model-fp8.safetensors"));
    let page_of_check = page_with_code(1, &["check", model, &good, "--data", "--html", "OUT"]);
    let found = json(&["check", model, &good, "--data", "--json"]);
    let findings = found["models"][0]["findings"].as_array().unwrap();
    assert!(findings.len() >= 2, "{found}");
    for finding in findings {
        let message = finding["message"].as_str().unwrap();
        assert!(unescaped(&page_of_check).contains(message), "{message}");
    }
    assert!(
        page_of_check.contains("Nothing is wrong with the headers, the configs and the values.")
    );
    // What a model is alone comes with its values.
    let page = page_of(&["report", model, "-o", "OUT"]);
    assert!(page.contains("NaN 1</span>") && page.contains("infinite 1</span>"), "{page}");
}

/// A model of which tensors cannot be decoded has a page that says so. Of two, it is an error.
#[test]
fn models_that_cannot_be_decoded() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("orphan.safetensors");
    let tensors = [
        raw("a.weight", "F32", &[1], f32s(&[1.0])),
        raw("q.qweight", "I32", &[8, 8], vec![0; 256]),
        raw("q.scales", "F16", &[1, 8], vec![0; 16]),
    ];
    std::fs::write(&path, file(&tensors, &[])).unwrap();
    let model = path.to_str().unwrap();
    let page = page_of(&["report", model, "-o", "OUT"]);
    assert!(page.contains("cannot be decoded; see the findings"), "{page}");
    let found = json(&["check", model, "--json"]);
    let finding = found["models"][0]["findings"][0]["message"]
        .as_str()
        .unwrap();
    assert!(unescaped(&page).contains(finding), "{finding}");
    // Nothing of it can be read, and yet it can be looked at.
    let twice = page_of(&["report", &at("pth/error_keys_collide_int.pt"), "-o", "OUT"]);
    assert!(twice.contains("They cannot be read: "), "{twice}");
    // What is wrong with the place of the page shows before anything is read.
    for arguments in [
        &["report", "missing", "-o", "missing/x.html"][..],
        &["check", "missing", "--html", "missing/x.html"],
        &["report", "missing", "-o", model],
    ] {
        let end = amn(arguments);
        let error = String::from_utf8_lossy(&end.stderr);
        assert!(error.contains("the page's directory") || error.contains("exists"), "{error}");
        assert_eq!(end.status.code(), Some(7), "{error}");
    }
    let end = amn(&["report", &at("demo/model-fp8.safetensors"), model, "-o", "x.html"]);
    let error = String::from_utf8_lossy(&end.stderr);
    assert!(error.starts_with(&format!("error: {model}: ")), "{error}");
    assert_eq!(end.status.code(), Some(3));
}

/// Names that are markup, script, or deceive. Whatever a page has of them is text.
#[test]
fn names_are_text() {
    const NAMES: &[&str] = &[
        "</script><script>alert(1)</script>",
        "</title></style><img src=x onerror=alert(2)>.weight",
        "a\" onload=\"alert(3)\" b='.0.x",
        "&lt;b&gt;.1.y",
        "layers.2.<svg/onload=alert(4)>",
        "\u{202e}gnp.exe\u{0}\n\t\u{1b}[31m.3.z",
        "]]><!--.4.--><!DOCTYPE",
        "javascript:alert(5)",
        "{{7*7}}${8*8}`",
        "",
    ];
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, shift: f32, more: &str| {
        let mut tensors: Vec<Raw> = Vec::new();
        for (i, name) in NAMES.iter().enumerate() {
            let values: Vec<f32> = (0..64).map(|x| x as f32 * 0.1 + i as f32 + shift).collect();
            tensors.push(raw(name, "F32", &[8, 8], f32s(&values)));
        }
        tensors.push(raw(&format!("<i>only in {more}</i>"), "F32", &[1], f32s(&[1.0])));
        let metadata = [("<u>key</u>", more), ("</dd>", "<hr>")];
        let path: PathBuf = directory.path().join(name);
        std::fs::write(&path, file(&tensors, &metadata)).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let a = write("<em>a</em>.safetensors".replace('/', "").as_str(), 0.0, "<s>a");
    let b = write("b'\"&.safetensors", 0.25, "<s>b");
    let output = directory.path().join("out.safetensors");
    let output = output.to_str().unwrap();
    for (code, arguments) in [
        (0, &["report", &a, "-o", "OUT"][..]),
        (0, &["report", &a, &b, "-o", "OUT"]),
        (1, &["diff", &a, &b, "--html", "OUT"]),
        (0, &["check", &a, &b, "--data", "--html", "OUT"]),
        (0, &["forget", &a, "--to", "nf4", "-o", output, "--html", "OUT"]),
    ] {
        let page = page_with_code(code, arguments);
        assert!(!page.contains("<img") && !page.contains("<em") && !page.contains('\u{202e}'));
        let rows = table(
            &page,
            if code == 1 {
                "changed-table"
            } else {
                "tensors-table"
            },
        );
        if arguments[0] != "check" {
            for name in NAMES
                .iter()
                .filter(|name| name.starts_with(['<', 'a', '&', 'j', '{', ']']))
            {
                assert!(rows.iter().any(|row| row["Name"].text == *name), "{name}");
            }
            let deceptive = "\\u{202e}gnp.exe\\u{0}\\u{a}\\u{9}\\u{1b}[31m.3.z";
            assert!(rows.iter().any(|row| row["Name"].text == deceptive), "{rows:?}");
        }
    }
}

/// The page has what it needs for each way of looking at it.
#[test]
fn light_dark_print_and_without_scripts() {
    let model = at("guide/TinyLlama");
    let page = page_of(&["report", &model, "-o", "OUT"]);
    for rule in ["(prefers-color-scheme: dark)", "@media print", "@media (max-width"] {
        assert!(page.contains(rule), "{rule}");
    }
    // Nothing waits for a script: what it adds are fields to sort and filter by.
    let (before, script) = page.split_once("<script>").unwrap();
    assert!(!before.contains("<button") && !before.contains(" hidden"));
    assert!(script.split("</script>").next().unwrap().lines().count() < 100);
    let rows = table(before, "tensors-table");
    assert_eq!(rows.len(), 12);
    for row in &rows {
        let name = &row["Name"].text;
        assert!(before.contains(&format!("<title>{name}\n")), "{name} in the treemap");
    }
    let end = amn(&["report", &model, "--no-values", "-o", "-"]);
    let headers = String::from_utf8(end.stdout).unwrap();
    assert_well_formed(&headers);
    assert!(!headers.contains("id=\"values\""));
    // Two runs write the same page.
    let again = amn(&["report", &model, "--no-values", "-o", "-"]);
    assert_eq!(headers, String::from_utf8(again.stdout).unwrap());
}

/// A model of `n` tensors in layers, most of them experts.
fn many(directory: &Path, n: usize) -> String {
    let mut tensors = Vec::with_capacity(n);
    for i in 0..n {
        let (layer, expert) = (i / 1000, i % 1000);
        let name = format!("model.layers.{layer}.mlp.experts.{expert}.up_proj.weight");
        tensors.push(raw(&name, "BF16", &[4, 2], vec![0x3f; 16]));
    }
    let path = directory.join(format!("{n}.safetensors"));
    std::fs::write(&path, file(&tensors, &[])).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Pages stay small, however many tensors a model has, and say what they leave out.
#[test]
fn many_tensors() {
    let directory = tempfile::tempdir().unwrap();
    let model = many(directory.path(), 5000);
    let page_of_5000 = page_of(&["report", &model, "--no-values", "-o", "OUT"]);
    assert_eq!(table(&page_of_5000, "tensors-table").len(), 5000);
    assert!(page_of_5000.len() < 4 << 20, "{}", page_of_5000.len());
    let model = many(directory.path(), 12_000);
    let page = page_of(&["report", &model, "--no-values", "-o", "OUT"]);
    assert!(page.len() < 8 << 20, "{}", page.len());
    assert_eq!(table(&page, "tensors-table").len(), 10_000);
    let said = "The 10,000 largest tensors of 12,000; <code>amn ls FILE --json</code> prints all.";
    assert!(page.contains(said));
    assert!(page.contains("1,000 smaller tensors"), "small ones are drawn together");
}

/// Chromium runs the script, and no other, and lays a page of 5000 tensors out in a second. Without
/// Chromium (`CHROMIUM=/path/to/chromium`, else `chromium` of the path) nothing is tested.
#[test]
fn chromium_opens_a_page() {
    let chromium = std::env::var_os("CHROMIUM").unwrap_or_else(|| "chromium".into());
    if Command::new(&chromium).arg("--version").output().is_err() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let model = many(directory.path(), 5000);
    let page = directory.path().join("page.html");
    let output = page.to_str().unwrap();
    assert!(amn(&["report", &model, "-o", output]).status.success());
    // After the page's own script, which is allowed, one that is not.
    let text = std::fs::read_to_string(&page).unwrap();
    let foreign = "<script>document.title = 'foreign'</script></body>";
    let timed = text.replace("</body>", foreign);
    std::fs::write(&page, timed).unwrap();
    let end = Command::new(&chromium)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"])
        .arg(format!("--user-data-dir={}", directory.path().join("profile").display()))
        .arg(format!("file://{output}"))
        .output()
        .unwrap();
    let dom = String::from_utf8_lossy(&end.stdout);
    let sortable = dom.matches("<button type=\"button\">").count();
    assert_eq!(sortable, 8, "{}", String::from_utf8_lossy(&end.stderr));
    assert!(dom.contains("<title>5000.safetensors</title>"), "another script has run");
    assert_eq!(dom.matches("<tr>").count(), 5001);
}

/// `report` takes the options of the commands that read.
#[test]
fn chosen_tensors_and_roots() {
    let model = at("mlx/tiny_qwen3_moe/model");
    let options = ["--include", "*.self_attn.*", "--exclude", "*norm*"];
    let page = page_of(&[&["report", &model, "-o", "OUT"], &options[..]].concat());
    let listing = json(&[&["ls", &model, "--json"], &options[..]].concat());
    let names: Vec<&str> = listing["tensors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|t| t["name"].as_str().unwrap())
        .collect();
    let rows = table(&page, "tensors-table");
    assert!(names.len() > 3 && names.len() < 35, "{names:?}");
    assert_eq!(
        rows.iter()
            .map(|row| row["Name"].text.as_str())
            .collect::<Vec<_>>(),
        names
    );
    let (_, figure) = page.split_once("<b>All values</b>").unwrap();
    assert!(!figure.contains("lm_head"), "the values are those of the chosen tensors");
    let checkpoint = at("pth/checkpoint.ckpt");
    let page = page_of(&["report", &checkpoint, "-o", "OUT", "--root", "state_dict"]);
    assert_eq!(table(&page, "tensors-table")[0]["Name"].text, "embed.weight");
    let wrong = ["report", &model, "-o", "/nowhere", "--include", "nothing"];
    assert_ne!(amn(&wrong).status.code(), Some(0));
}
