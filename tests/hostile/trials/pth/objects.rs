//! Whole modules and TorchScript: states that are none, classes that run code, and attributes that
//! share or contain each other.

use crate::common::pickle::*;
use crate::common::verdict::{Limit, Parse, Unsupported};
use crate::common::zip::{Member, Zip};
use crate::trials::Trial;

/// An object of the class `X` of the module `class`, with a state.
fn object(class: &str, state: &[u8]) -> Vec<u8> {
    [format!("c{class}\nX\n").as_bytes(), b")\x81", state, b"b"].concat()
}

/// A dict.
fn dictionary(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let entries = entries
        .iter()
        .map(|(key, value)| [&text(key)[..], value, b"s"].concat());
    [b"}".to_vec(), entries.collect::<Vec<_>>().concat()].concat()
}

/// A module with parameters, buffers and modules.
fn module(parameters: &[u8], buffers: &[u8], modules: &[u8]) -> Vec<u8> {
    let state = [("_parameters", parameters), ("_buffers", buffers), ("_modules", modules)];
    object("library", &dictionary(&state))
}

/// A pickle of `value`.
fn whole(value: &[u8]) -> Vec<u8> {
    archive(&[value, b"."].concat())
}

/// TorchScript with the pickles `data` and `constants`, and a storage for each.
fn script(data: &[u8], constants: &[u8]) -> Vec<u8> {
    let pickle = |value: &[u8]| [b"\x80\x02", value, b"."].concat();
    Zip::of(&[
        Member::stored("m/data.pkl", &pickle(data)),
        Member::stored("m/constants.pkl", &pickle(constants)),
        Member::stored("m/data/0", &[0; 24]),
        Member::stored("m/constants/0", &[1; 24]),
    ])
    .file()
}

#[test]
fn modules() {
    let mut trial = Trial::new();
    let one = dictionary(&[("w", &good())]);
    let nested = |n: usize| {
        let inner = |inner: Vec<u8>, _| module(b"}", b"}", &dictionary(&[("m", &inner)]));
        whole(&(0..n).fold(module(&one, b"}", b"}"), inner))
    };
    // Each module has the one before it twice.
    let doubled = |n: usize| {
        let inner = |inner: Vec<u8>, i: usize| {
            let i = i as u8;
            let modules = [b"}U\x01a", &inner[..], &[b'q', i, b's'], b"U\x01bh", &[i], b"s"];
            module(b"}", b"}", &modules.concat())
        };
        whole(&(0..n).fold(module(&one, b"}", b"}"), inner))
    };
    // A module among its own modules.
    let cycle = [
        &b"clibrary\nX\n)\x81q\x07}"[..],
        &text("_parameters"),
        &one,
        b"s",
        &text("_buffers"),
        b"}s",
        &text("_modules"),
        b"}U\x01mh\x07ssb",
    ];
    let lost = dictionary(&[
        ("_parameters", &one),
        ("_buffers", &dictionary(&[("b", &good())])),
        ("_modules", b"}"),
        ("_non_persistent_buffers_set", &[&b"\x8f("[..], &text("b"), b"\x90"].concat()),
    ]);
    trial.fine(vec![
        ("a module", whole(&module(&one, b"}", b"}"))),
        ("modules in each other", nested(20)),
        ("few copies", doubled(6)),
        ("no parameters but a buffer", whole(&module(b"}", &one, b"}"))),
        ("a buffer that is not persistent", whole(&object("library", &lost))),
        (
            "a parameter that is none",
            whole(&module(&dictionary(&[("n", b"N"), ("w", &good())]), b"}", b"}")),
        ),
    ]);
    // Many modules that share one long state, with many names of buffers that are not persistent.
    let shared = |n: usize| {
        let names = [&b"\x8f("[..], &b"h\x01".repeat(n), b"\x90"].concat();
        let state = dictionary(&[
            ("_parameters", &one),
            ("_buffers", b"}"),
            ("_modules", b"}"),
            (
                "_non_persistent_buffers_set",
                &[&text(&"x".repeat(n))[..], b"q\x010", &names].concat(),
            ),
        ]);
        let more = (0..n)
            .map(|i| [int(i as i64), b"Ns".to_vec()].concat())
            .collect::<Vec<_>>();
        let first = [b"clibrary\nX\nq\x02)\x81", &state[..], &more.concat(), b"q\x03b"].concat();
        let items = [&first[..], &b"h\x02)\x81h\x03b".repeat(n)].concat();
        whole(&[b"](", &items[..], b"e"].concat())
    };
    let with = |key: &str, value: &[u8]| {
        let of = |name: &str| match name == key {
            true => value.to_vec(),
            false => b"}".to_vec(),
        };
        whole(&module(&of("_parameters"), &of("_buffers"), &of("_modules")))
    };
    trial.refused(vec![
        (
            "a parameter of another class",
            with("_parameters", &dictionary(&[("w", &object("library", b"}"))])),
            Unsupported,
            &["`w`", "class that is not known"],
        ),
        (
            "a buffer that is a number",
            with("_buffers", &dictionary(&[("w", b"K\x01")])),
            Unsupported,
            &["`w`"],
        ),
        (
            "a module with a state of its own",
            with("_modules", &dictionary(&[("m", &object("library", &good()))])),
            Unsupported,
            &["`m`", "state of its own"],
        ),
        ("a parameter and a buffer of one name", whole(&module(&one, &one, b"}")), Parse, &["`w`"]),
        (
            "a tensor that leads out of its storage",
            whole(&module(&dictionary(&[("w", &view(&floats(), 1, &[6], &[1]))]), b"}", b"}")),
            Parse,
            &["`w`", "storage"],
        ),
        ("nothing at all", whole(&module(b"}", b"}", b"}")), Parse, &["no tensors"]),
        ("modules in each other without end", whole(&cycle.concat()), Limit, &[]),
        ("300 modules in each other", nested(300), Limit, &["256 levels"]),
        ("2^60 copies", doubled(60), Limit, &[]),
        ("modules with one state", shared(60_000), Limit, &[]),
    ]);
    trial.end();
}

/// Without a module, or with a class that runs code, the error is that of the class.
#[test]
fn classes_that_are_refused() {
    let one = dictionary(&[("w", &good())]);
    let good_module = module(&one, b"}", b"}");
    let entry = |value: &[u8]| dictionary(&[("m", &good_module), ("x", value)]);
    let call = |global: &str| [format!("c{global}\n").as_bytes(), &text("true"), b"\x85R"].concat();
    let state = |parameters: &[u8]| {
        object("library", &dictionary(&[("_parameters", parameters), ("_modules", b"}")]))
    };
    for (what, value, named) in [
        ("no module", object("library", &one), "library.X"),
        ("two states", [&good_module[..], b"}b"].concat(), "library.X"),
        ("a module without buffers", state(&one), "library.X"),
        ("parameters that are no dict", module(b"]", b"}", b"}"), "library.X"),
        ("a dangerous call beside a module", entry(&call("posix\nsystem")), "posix.system"),
        ("a dangerous class of a module", object("os", &one), "os.X"),
        ("a dangerous name", entry(b"cbuiltins\neval\n"), "builtins.eval"),
    ] {
        let error = anamnesis::parse_bytes(whole(&value)).unwrap_err();
        assert_eq!(error.kind(), anamnesis::ErrorKind::DisallowedGlobal, "{what}: {error}");
        assert!(error.to_string().contains(&format!("`{named}`")), "{what}: {error}");
    }
    let scan = |bytes: Vec<u8>| {
        let place = crate::common::tempdir().unwrap();
        let path = place.path().join("model.pt");
        std::fs::write(&path, bytes).unwrap();
        anamnesis::scan_pickles(&path, &Default::default())
            .unwrap()
            .risk
    };
    assert_eq!(scan(whole(&good_module)), anamnesis::PickleRisk::Suspicious);
    assert_eq!(scan(whole(&entry(&call("posix\nsystem")))), anamnesis::PickleRisk::Dangerous);
}

#[test]
fn scripts() {
    let mut trial = Trial::new();
    let net = |state: &[u8]| object("__torch__.library", state);
    let one = dictionary(&[("w", &good())]);
    let list = |function: &str, value: &[u8]| {
        [format!("ctorch.jit._pickle\n{function}\n").as_bytes(), value, b"\x85R"].concat()
    };
    let constants = |value: &[u8]| script(&net(&one), value);
    trial.fine(vec![
        ("a module", script(&net(&one), b")")),
        ("a constant", constants(&[&good()[..], b"\x85"].concat())),
        ("a state that is a tuple", script(&net(&[&good()[..], b"\x85"].concat()), b")")),
        (
            "a list",
            script(
                &net(&dictionary(&[(
                    "l",
                    &list("build_tensorlist", &[b"](", &good()[..], b"e"].concat()),
                )])),
                b")",
            ),
        ),
    ]);
    let copies =
        [&b"ctorch.jit._pickle\nbuild_intlist\n("[..], b"](", &b"K\0".repeat(200_000), b"et"]
            .concat();
    trial.refused(vec![
        ("constants that are no tuple", constants(b"}"), Parse, &["no tuple"]),
        (
            "a constant that leads out of its storage",
            constants(&[&view(&floats(), 1, &[6], &[1])[..], b"\x85"].concat()),
            Parse,
            &["CONSTANTS.c0", "storage"],
        ),
        (
            "a list of a number",
            script(&net(&dictionary(&[("l", &list("build_intlist", b"K\x01"))])), b")"),
            Parse,
            &["a list or a dict"],
        ),
        (
            "a name twice",
            script(
                &net(&dictionary(&[("a.b", &good()), ("a", &dictionary(&[("b", &good())]))])),
                b")",
            ),
            Parse,
            &["`a.b`"],
        ),
        (
            "many copies of a list",
            script(
                &[&copies[..], b"q\x010q\x02", &b"h\x02h\x01R0".repeat(2000), b"N"].concat(),
                b")",
            ),
            Limit,
            &[],
        ),
    ]);
    for (what, file, named) in [
        ("another class", script(&object("library", &one), b")"), "library.X"),
        ("a class of a longer name", script(&object("__torch__x", &one), b")"), "__torch__x.X"),
        (
            "a function of another name",
            script(&list("restore", b"]"), b")"),
            "torch.jit._pickle.restore",
        ),
        ("a constant that runs", constants(b"cposix\nsystem\nU\x01a\x85R\x85"), "posix.system"),
    ] {
        let error = anamnesis::parse_bytes(file).unwrap_err();
        assert!(error.to_string().contains(&format!("`{named}`")), "{what}: {error}");
    }
    trial.end();
}
