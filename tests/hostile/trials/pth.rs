//! PyTorch checkpoints that are malformed or hostile, as archives, streams and tar files. Nothing
//! in them may run.

mod archives;
mod objects;
mod streams;

use crate::common::pickle::*;
use crate::common::verdict::{Limit, Parse};
use crate::trials::{Trial, try_everything};

#[test]
fn views() {
    let mut trial = Trial::new();
    const MAX: i64 = i64::MAX;
    let typed = |class: &str, key: &str, len: i64| {
        one(&view(&storage(class, &text(key), len), 0, &[1], &[1]))
    };
    let untyped = |dtype: &str, shape: &[i64]| {
        let id = [
            b"(",
            &text("storage")[..],
            b"ctorch.storage\nUntypedStorage\n",
            &text("0"),
            b"N",
            &int(24),
            b"tQ",
        ];
        let dtype = format!("NNctorch\n{dtype}\n");
        one(&call(
            "_rebuild_tensor_v3",
            &id.concat(),
            0,
            shape,
            &vec![1; shape.len()],
            dtype.as_bytes(),
        ))
    };
    // A storage that is declared to be a view of another one.
    let nested = |before: i64, offset: i64| {
        let id =
            [&floats()[..floats().len() - 2], b"(U\x01k", &int(before), &int(1), b"ttQ"].concat();
        one(&view(&id, offset, &[1], &[1]))
    };
    let x =
        |offset: i64, shape: &[i64], strides: &[i64]| one(&view(&floats(), offset, shape, strides));
    trial.fine(vec![
        ("all of it", x(0, &[2, 2], &[3, 2])),
        ("64 dimensions", x(5, &[1; 64], &[MAX; 64])),
        ("nothing", x(0, &[0, 1 << 58], &[MAX, MAX])),
        ("nothing, anywhere", x(MAX, &[0], &[1])),
        ("8 MiB of one", x(0, &[1 << 21], &[0])),
        ("nothing, of four-bit floats", untyped("float4_e2m1fn_x2", &[0, 1 << 57])),
    ]);
    let out: &[&str] = &["`x`", "storage"];
    trial.refused(vec![
        ("an element more", x(0, &[2, 2], &[4, 2]), Parse, out),
        ("an element further", x(1, &[2, 3], &[3, 1]), Parse, out),
        ("an offset of any size", x(MAX, &[1], &[1]), Parse, out),
        ("strides of any size", x(0, &[2, 2, 2], &[MAX, MAX, MAX]), Parse, out),
        ("sizes that overflow", x(0, &[1 << 32, 1 << 32, 0], &[0, 0, 0]), Parse, &["`x`"]),
        (
            "nothing, of sizes that overflow",
            x(0, &[0, 1 << 40, 1 << 40], &[0, 0, 0]),
            Parse,
            &["`x`", "overflows"],
        ),
        (
            "nothing, of four-bit floats, of sizes that overflow",
            untyped("float4_e2m1fn_x2", &[0, MAX]),
            Parse,
            &["`x`", "overflows"],
        ),
        ("2^40 elements of one", x(0, &[1 << 40], &[0]), Limit, &["4398046511104"]),
        ("2^25 elements of one", x(0, &[1 << 25], &[0]), Limit, &["134217728"]),
        ("65 dimensions", x(0, &[1; 65], &[1; 65]), Parse, &["do not go together"]),
        (
            "a storage that is elsewhere",
            typed("FloatStorage", "../data.pkl", 6),
            Parse,
            &["`x`", "not in"],
        ),
        ("a view in a view, an element further", nested(3, 3), Parse, out),
        ("a view in a view, anywhere", nested(MAX, MAX), Parse, out),
        ("a storage of negative length", typed("FloatStorage", "0", -6), Parse, &["persistent id"]),
        ("a negative offset", x(-1, &[1], &[1]), Parse, &["offset, shape or strides"]),
        ("a negative size", x(0, &[-1], &[1]), Parse, &["offset, shape or strides"]),
        ("a negative stride", x(5, &[2], &[-1]), Parse, &["offset, shape or strides"]),
        (
            "the smallest number there is",
            x(i64::MIN, &[i64::MIN], &[i64::MIN]),
            Parse,
            &["offset, shape or strides"],
        ),
        ("fewer strides than sizes", x(0, &[1, 1], &[1]), Parse, &["do not go together"]),
        ("a dtype that is none", untyped("device", &[1]), Parse, &["dtype"]),
    ]);
    trial.refused_numbers(&[
        (
            "floats",
            &|n| typed("FloatStorage", "0", n as i64),
            &[0, 5, 7, 1 << 62],
            Parse,
            "storage",
        ),
        ("doubles", &|n| typed("DoubleStorage", "0", n as i64), &[6, 1 << 61], Parse, "storage"),
        ("bytes of no type", &|n| untyped("float64", &[n as i64]), &[4, 1 << 61], Parse, "`x`"),
    ]);
    let function = [b"ctorch._utils\n_rebuild_tensor\n(", &floats()[..]].concat();
    let call = |arguments: &[u8]| one(&[&function, arguments, b"K\x01\x85tR"].concat());
    let shapes =
        b"N\x88\x85|NK\x01\x85|K\0\x88\x85|K\0U\x01a|K\0N|K\0}|K\0G\0\0\0\0\0\0\0\0\x85|K\0I18446744073709551616\n\x85";
    trial.refused_pickles("sizes", shapes, &call);
    trial.refused_pickles("few arguments", b"|K\0", &call);
    let slow = x(0, &[1 << 22, 2], &[0, 1]);
    trial.measure("32 MiB of two", slow.len(), || try_everything(slow.clone()).unwrap());
    trial.end();
}

#[test]
fn truncations_and_mutations() {
    let mut trial = Trial::new();
    let [archive, stream, tar] = files(["layout_old.bin", "legacy_tied.pt", "tar.pth"]);
    // An empty header ends a tar archive; bytes after it do not belong to it.
    let end = tar
        .iter()
        .rposition(|&b| b != 0)
        .unwrap()
        .next_multiple_of(512)
        + 512;
    trial.truncations("archive", &archive);
    trial.truncations("stream", &stream);
    trial.truncations("tar", &tar[..end]);
    let names = [
        "layout_old.bin",
        "deflated.pt",
        "protocol_4.pt",
        "views.pt",
        "legacy_views.pt",
        "tar.pth",
    ];
    trial.mutations(&files(names), 33);
    trial.end();
}
