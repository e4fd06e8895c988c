//! Pickles that name one thing many times, in a byte or two each.

use anamnesis::{ErrorKind, parse};

use crate::common::zip::{Member, Zip};

/// A dict of these names and values, which are pickled already.
fn dict(fields: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let mut pickle = b"}(".to_vec();
    for (name, value) in fields {
        pickle.extend(text(name));
        pickle.extend(value);
    }
    pickle.push(b'u');
    pickle
}

fn text(text: &str) -> Vec<u8> {
    let len = (text.len() as u32).to_le_bytes();
    [b"X", &len[..], text.as_bytes()].concat()
}

/// A list of `n` times what the opcodes `item` push.
fn list(item: &[u8], n: usize) -> Vec<u8> {
    [b"](", &*item.repeat(n), b"e"].concat()
}

/// The kind of the error of a checkpoint of one process with these shapes of parameters and these
/// parts of groups.
fn error(shapes: Vec<u8>, parts: Vec<u8>) -> Option<ErrorKind> {
    let model = dict(&[
        ("module", b"}".to_vec()),
        ("buffer_names", b"]".to_vec()),
        ("param_shapes", shapes),
    ]);
    let optimizer = dict(&[
        ("zero_stage", b"K\x02".to_vec()),
        ("partition_count", b"K\x01".to_vec()),
        ("single_partition_of_fp32_groups", parts),
    ]);
    let optimizer = dict(&[("optimizer_state_dict", optimizer)]);
    let directory = crate::common::tempdir().unwrap();
    for (name, pickle) in [
        ("mp_rank_00_model_states.pt", model),
        ("zero_pp_rank_0_mp_rank_00_optim_states.pt", optimizer),
    ] {
        let pickle = [b"\x80\x02", &*pickle, b"."].concat();
        let zip = Zip::of(&[Member::stored("archive/data.pkl", &pickle)]);
        std::fs::write(directory.path().join(name), zip.file()).unwrap();
    }
    parse(directory.path()).err().map(|error| error.kind())
}

#[test]
fn what_is_named_many_times_is_counted_each_time() {
    let none = || b"]".to_vec();
    assert_eq!(error(none(), none()), Some(ErrorKind::Parse));
    // A group of a thousand parameters, a thousand times.
    let names: Vec<String> = (0..1000).map(|n| format!("p{n}")).collect();
    let names: Vec<_> = names.iter().map(|name| (&**name, b")".to_vec())).collect();
    let first = [&*dict(&names), b"q\x000"].concat();
    let groups = [&*first, &list(b"h\x00", 1000)].concat();
    assert_eq!(error(groups, none()), Some(ErrorKind::LimitExceeded));
    // A name of a hundred kilobytes, a thousand times.
    let name = [&*text(&"a".repeat(100_000)), b"q\x000"].concat();
    let group = [b"](}(", &*b"h\x00)".repeat(1000), b"ue"].concat();
    let group = [&*name, &group].concat();
    assert_eq!(error(group, none()), Some(ErrorKind::LimitExceeded));
    // The parts of groups, which are not even tensors.
    let parts = list(b"N", 1_000_000);
    assert_eq!(error(none(), parts), Some(ErrorKind::LimitExceeded));
}
