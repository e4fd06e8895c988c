//! Files of which other libraries say something else than this crate, and what it says: archives of
//! `tests/fuzz/differences`, which `tests/data/generate/differential` writes, with a reason for each.

use serde_json::Value;

use crate::corpus::{fuzz, members};
use crate::fuzz::said::said;

/// What is said, without the text of messages.
fn without_text(said: &Value) -> Value {
    let mut said = said.clone();
    if let Some(said) = said.as_object_mut() {
        said.remove("error");
    }
    said
}

fn replay(library: &str) {
    let files = members(
        &fuzz()
            .join("differences")
            .join(library)
            .with_extension("zip"),
    );
    let content = |name: &str| &files.iter().find(|(other, _)| other == name).unwrap().1;
    let index: Vec<Value> = serde_json::from_slice(content("index.json")).unwrap();
    assert!(index.len() > 10 && files.len() == index.len() + 1);
    let mut wrong = String::new();
    for entry in &index {
        let ours = said(content(entry["name"].as_str().unwrap()));
        if without_text(&ours) != without_text(&entry["ours"]) {
            wrong += &format!("{library} {}: {} {ours}\n", entry["name"], entry["class"]);
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

macro_rules! replays {
    ($($library:ident)*) => {$(
        #[test]
        fn $library() {
            replay(stringify!($library));
        }
    )*};
}

replays! { npy npz gguf torch legacy }

/// The `safetensors` crate reads each of these. The last two it refuses, for the value of a field
/// that means nothing.
#[test]
fn safetensors() {
    let tensor = r#"{"dtype":"U8","shape":[3],"data_offsets":[0,3]"#;
    let padded = format!("\n{{}}{}", " ".repeat(637));
    for (header, data, is_read) in [
        (r#"{"t":["U16",[],[0,2]],"t":["U16",[],[0,2]]}"#, 2, false),
        (r#"{"t":["U16",[],[0,2]],"\u0074":["U16",[],[0,2]]}"#, 2, false),
        (r#"{"__metadata__":{"":"x","":"x"}}"#, 0, false),
        // Its length is the magic of a pickle, and it does not begin with a brace.
        (&padded, 0, false),
        (&format!("{{\"t\":{tensor},\"x\":1e400}}}}"), 3, true),
        (&format!("{{\"t\":{tensor},\"x\":\"\\ud800\"}}}}"), 3, true),
    ] {
        let length = (header.len() as u64).to_le_bytes();
        let file = [&length[..], header.as_bytes(), &vec![0; data]].concat();
        assert_eq!(said(&file)["tensors"].is_array(), is_read, "{header}");
        assert_eq!(safetensors::SafeTensors::deserialize(&file).is_ok(), !is_read, "{header}");
    }
}
