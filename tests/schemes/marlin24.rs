//! marlin-24: layers whose tensors do not fit, and places of codes that are impossible.

use crate::common::file;
use crate::common::verdict::{Parse, check, recover, tensors, verdict};

#[test]
fn marlin24() {
    let table = r#"
        {w}; {s} |  | Parse: `X.weight_packed` & X.meta
        {s}; {m} |  | Parse: `X.scale_packed`
        {w}; {s}; X.meta I16 2,64 |  | Parse: `X.weight_packed` & `X.meta` & [1, 128]
        {w}; {s}; X.meta I32 1,128 |  | Parse: `X.meta` & I16
        X.weight_packed I32 1,192; {s}; {m} |  | Parse: `X.weight_packed` & marlin-24
        X.weight_packed U8 1,128; {s}; {m} |  | Parse: `X.weight_packed` & marlin-24
        X.weight_packed I32 0,128; {s}; {m} |  | Parse: `X.weight_packed` & marlin-24
        {w}; X.scale_packed F16 2,64; {m} |  | Parse: `X.weight_packed` & marlin-24
        {w}; X.scale_packed I32 1,64; {m} |  | Parse: `X.scale_packed` & I32
        X.weight_packed I32 1,64; X.scale_packed F16 1,32; X.meta I16 1,64 |  | Parse: `X.weight_packed` & marlin-24
        {w}; {s}; {m} | {"config_groups":{"g":{"targets":["Linear"],"weights":{"num_bits":8,"type":"int"}}}} | Parse: `X.weight_packed` & 8 bits
        {w}; {s}; {m} | {"config_groups":{"g":{"targets":["Linear"],"weights":{"num_bits":4,"type":"int","strategy":"group","group_size":16}}}} | Parse: `X.weight_packed` & 16
        {w}; {s}; {m} | {"config_groups":{"g":{"targets":["Linear"],"weights":{"num_bits":4,"type":"int","actorder":"group"}}}} | Unsupported: `X.weight_packed` & actorder
        {w}; {s}; {m} | {"config_groups":{"g":{"targets":["Linear"],"weights":{"num_bits":4,"type":"int","actorder":"dynamic"}}}} | Unsupported: `X.weight_packed` & actorder
        {w}; {s}; {m} | {"config_groups":{"g":{"targets":["Linear"],"weights":{"num_bits":4,"type":"int","actorder":true}}}} | Unsupported: `X.weight_packed` & actorder
        {w}; {s}; {m} | {"config_groups":{"g":{"targets":["Linear"],"weights":{"num_bits":4,"type":"int","symmetric":false}}}} | Parse: `X.weight_packed` & asymmetric
        X.weight_packed I32 1,256; {s}; {m} | {"config_groups":{"g":{"targets":["Linear"],"weights":{"num_bits":4,"type":"int"}}}} | Parse: `X.weight_packed` & 4 bits
        # Both places of all codes are 0.
        {w}; {s}; {m} |  | Parse: `X.meta` & places
    "#;
    let names = [
        ("{w}", "X.weight_packed I32 1,128"),
        ("{s}", "X.scale_packed F16 1,64"),
        ("{m}", "X.meta I16 1,128"),
    ];
    let table = names
        .iter()
        .fold(table.to_owned(), |table, (short, long)| table.replace(short, long));
    check(&table);
    let layer = names.map(|(_, long)| long).join("; ");
    for (places, is_good) in
        [(0x4444u16, true), (0xe9c8, true), (0x4144, false), (0x4449, true), (0x444b, false)]
    {
        let mut all = tensors(&layer);
        let meta = all.iter_mut().find(|t| t.name == "X.meta").unwrap();
        meta.bytes = [places.to_le_bytes(); 128].concat();
        let result = recover(file(&all, &[]), "");
        if is_good {
            assert!(result.is_ok(), "{places:x}");
        } else {
            assert_eq!(verdict(result, Parse, &["`X.meta`", "places"]), None, "{places:x}");
        }
    }
}
