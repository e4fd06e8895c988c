//! llamafile: GGUF in an archive behind an executable, read in place, and archives that are not
//! what they say.

use anamnesis::{AnamnesisError, Container, TargetDtype, detect_format, parse, parse_bytes};

use crate::common::data;
use crate::common::zip::{Header, Member, Zip};

const EXECUTABLE: &[u8] = b"MZqFpD='\n\n";

fn gguf() -> Vec<u8> {
    std::fs::read(data().join("gguf/q8_0/model.gguf")).unwrap()
}

#[test]
fn the_model_is_read_in_place() {
    let path = data().join("llamafile/q8_0.llamafile");
    assert_eq!(detect_format(&path).unwrap(), Container::Gguf);
    let alone = parse_bytes(gguf()).unwrap();
    let (inside, bytes) = (parse(&path).unwrap(), std::fs::read(&path).unwrap());
    let streamed = anamnesis::parse_from_reader(std::io::Cursor::new(bytes.clone())).unwrap();
    for model in [inside, parse_bytes(bytes).unwrap(), streamed] {
        assert_eq!(model.container(), Container::Gguf);
        assert_eq!(model.metadata(), alone.metadata());
        let values = |model: &anamnesis::ParsedModel| {
            let tensors = model.tensors();
            let stored: Vec<_> = tensors
                .map(|t| (t.name().to_owned(), t.bytes().unwrap().into_owned()))
                .collect();
            (stored, model.remember_to_bytes(TargetDtype::BF16).unwrap())
        };
        assert!(values(&model) == values(&alone));
    }
}

/// The archive of `members` behind an executable. The offsets of an archive count from the
/// beginning of the file.
fn behind(members: &[Member]) -> Vec<u8> {
    let (zip, shift) = (Zip::of(members).file(), EXECUTABLE.len() as u32);
    let mut file = [EXECUTABLE, &zip].concat();
    let mut add = |at: usize| {
        let old = u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
        file[at..at + 4].copy_from_slice(&(old + shift).to_le_bytes());
        old as usize
    };
    let end = EXECUTABLE.len() + zip.len() - 22;
    let mut at = EXECUTABLE.len() + add(end + 16);
    for member in members {
        add(at + 42);
        let name = member.central.name.len();
        at += 46 + name + member.central.extra.len();
    }
    file
}

fn stored(name: &str) -> Member {
    Member::stored(name, &gguf())
}

#[test]
fn projectors_are_left_out() {
    let file = behind(&[stored("llava-mmproj-f16.gguf"), stored("llava.gguf")]);
    let model = parse_bytes(file).unwrap();
    assert_eq!(model.tensors().len(), parse_bytes(gguf()).unwrap().tensors().len());
    let notes = model.inspect().notes;
    assert!(notes.iter().any(|note| note.contains("mmproj")), "{notes:?}");
}

#[test]
fn archives_without_one_stored_model() {
    let model = || stored("a.gguf");
    let cut = Member::stored("a.gguf", &gguf()[..gguf().len() - 40]);
    let longer = |by: u32| {
        move |header: &mut Header| {
            header.stored_len += by;
            header.len += by;
        }
    };
    for (members, unsupported, expected) in [
        (vec![Member::stored("a", b"b")], true, "there is no model"),
        (vec![stored("mmproj.gguf")], true, "there is no model"),
        (vec![model(), stored("b.gguf")], true, "which of 2 models? a.gguf, b.gguf"),
        (vec![Member::deflated("a.gguf", &gguf())], true, "`a.gguf` in it is compressed"),
        (vec![cut], false, "`a.gguf`: "),
        (vec![Member::stored("a.gguf", b"no model")], false, "`a.gguf`: "),
        (vec![Member::stored("a.gguf", b"")], false, "`a.gguf`: "),
        // The member would reach into what follows it: another member, or the directory.
        (
            vec![model().central(longer(1)), Member::stored("b", b"c")],
            false,
            "overlaps what follows",
        ),
        (vec![model().central(longer(1))], false, "overlaps what follows"),
        (vec![model().central(longer(u32::MAX / 2))], false, "overlaps what follows"),
        (vec![model().local(|header| header.name = b"b.gguf".to_vec())], false, "local header"),
        (vec![model().local(|header| header.method = 8)], false, "local header"),
        (vec![model(), model()], false, "twice"),
    ] {
        let error = parse_bytes(behind(&members)).unwrap_err();
        assert!(error.to_string().contains(expected), "{expected}: {error}");
        let is_unsupported = matches!(error, AnamnesisError::Unsupported { .. });
        assert_eq!(is_unsupported, unsupported, "{error}");
    }
}

#[test]
fn executables_and_cut_archives() {
    for file in [&b"MZ"[..], b"\x7fELF\x02\x01\x01", EXECUTABLE] {
        let error = parse_bytes(file.to_vec()).unwrap_err().to_string();
        assert!(error.contains("if it is a llamafile"), "{error}");
    }
    let whole = behind(&[stored("a.gguf")]);
    assert!(parse_bytes(whole.clone()).is_ok());
    for len in (0..whole.len())
        .step_by(97)
        .chain(whole.len() - 60..whole.len())
    {
        assert!(parse_bytes(whole[..len].to_vec()).is_err(), "{len}");
    }
    // The archive is moved, and its offsets are not.
    let moved = [b"MZ", whole.as_slice()].concat();
    assert!(parse_bytes(moved).is_err());
}
