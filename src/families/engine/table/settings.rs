//! Settings of tables: keys of the metadata, and what their values are made of.

/// A setting of the architecture: a key of the metadata, and the field of `config.json`.
#[derive(Debug, Clone, Copy)]
pub(in crate::families) struct Setting {
    /// Key without the architecture's name.
    pub key: &'static str,
    /// Fields that it may have, the usual one first.
    pub fields: &'static [&'static str],
    pub kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::families) enum Kind {
    /// UINT32 that a config must state.
    Required,
    /// UINT32.
    Count,
    /// UINT32 that is not there if the field is null.
    Nullable,
    /// FLOAT32.
    Number,
    /// UINT32: the size of a head, which `head_dim` states or which follows from other fields.
    HeadSize,
    /// UINT32: how many dimensions of a head rotate.
    Rotating,
    /// UINT32: the sum of the fields, of which those that are missing count 0. Coming back, the
    /// first field is the one that no other key states.
    Sum,
    /// UINT32: the product of the fields. Coming back, the first field is the one that no other key
    /// states.
    Product,
    /// UINT32 that is the same in all models of the class.
    Fixed(u32),
    /// BOOL.
    Flag,
    /// BOOL that is there only if it is true.
    FlagIfTrue,
    /// FLOAT32: a tenth of `mscale_all_dim` of YaRN.
    YarnLog,
    /// FLOAT32: the field of the scaling of rope, which must be there.
    Scaling,
    /// Not written.
    Omitted,
    /// UINT32 that is 0 if the field is null.
    OrZero,
    /// FLOAT32 that is 0 if the field is null.
    NumberOrZero,
    /// INT32\[4\]: how many pairs of a head rotate by each axis of an image. Without the field, the
    /// numbers are these.
    Sections([i32; 4]),
    /// As `Sections`, of a config that must have them. Coming back they are not said: in a text all
    /// axes have the same positions.
    TextSections,
    /// UINT32: how many entries the list has that the second field names in the object of the
    /// first; 0 without it.
    Length,
    /// STRING that is the same in all models of the class.
    Text(&'static str),
    /// STRING: `none`, unless rope is scaled linearly.
    LinearOrNone,
    /// BOOL\[\]: which layers `layer_types` calls so. It is there only if the config has all the
    /// fields.
    Layers(&'static str),
    /// BOOL\[\] that is true for every layer. The field, if there is one, must be a list of this
    /// text.
    InEachLayer(&'static str),
    /// UINT32: the width of a feed-forward layer, or INT32\[\] of all layers where some have twice
    /// the width.
    Inner,
    /// UINT32: the heads of keys and values, or INT32\[\] of all layers where the config has
    /// another field for some.
    KvHeads,
    /// INT32\[\]: the heads of keys and values of each layer, 0 for those that `layer_types` calls
    /// by the first name; the second is that of the others.
    KvHeadsBut(&'static str, &'static str),
    /// As `Product`, of a key that another setting writes.
    ProductToo,
    /// BOOL that is the same in all models of the class.
    FixedFlag(bool),
    /// UINT32: hidden size / heads, which nothing reads.
    PlainHead,
    /// INT32\[\]: the width of the feed-forward layer of those layers that `layer_types` calls so,
    /// 0 for others.
    InnerOf(&'static str),
    /// STRING\[\]: the names of `id2label` in the order of their numbers, unless they are those
    /// that transformers makes up; and whether there must be names.
    Labels(bool),
    /// UINT32: the field without the positions up to that of the padding token.
    Positions,
    /// UINT32: the first field divided by the second. It must be the width of the experts that
    /// every token sees, or llama.cpp does not find their tensors. It is not there if the third
    /// field says that there are none.
    SharedWidth,
    /// Not written: the field is -1 or the last layer.
    LastLayer,
    /// UINT32: the number of the name that the field has. Of a classifier llama.cpp takes the first
    /// where there is none.
    Choice(&'static [(&'static str, u32)]),
    /// UINT32: the second of the pair of lengths whose first the field is.
    Trained(&'static [(u32, u32)]),
    /// BOOL that is true. The field must be this text.
    TrueOf(&'static str),
    /// INT32\[\]: the width of the feed-forward layer, once for each layer.
    InnerOfEach,
    /// UINT32: how many layers there are behind so many, which the field must say.
    LayersBehind(u32),
    /// FLOAT32\[\]: how far the activations of each layer are cut: as 0.95 of them in the first
    /// layers, so many, and none in the others. The field, if there is one, must say so.
    SparseLayers(usize),
    /// UINT32: so many times the hidden size. The fields must say the same, if there are any.
    TimesHidden(u32),
}

/// A setting of another kind.
pub(in crate::families) const fn setting(
    kind: Kind,
    key: &'static str,
    fields: &'static [&'static str],
) -> Setting {
    Setting { key, fields, kind }
}

/// A setting that only some models have.
pub(in crate::families) const fn count(
    key: &'static str,
    fields: &'static [&'static str],
) -> Setting {
    Setting { key, fields, kind: Kind::Count }
}

/// A number of type FLOAT32 that only some models have.
pub(in crate::families) const fn number(
    key: &'static str,
    fields: &'static [&'static str],
) -> Setting {
    Setting { key, fields, kind: Kind::Number }
}
