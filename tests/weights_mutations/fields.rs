//! Kinds of mutations: names, fields and values of the JSON.

use tenslab::weights::FormatFault;

use crate::draft::{Dice, Draft, Value};
use crate::{Expected, Kind, Mutation};

pub(crate) const KINDS: [(&str, Kind); 18] = [
    ("a name twice", name_twice),
    ("a field missing", field_missing),
    ("a field twice", field_twice),
    ("a field of another name", field_renamed),
    ("a field that nobody knows", field_unknown),
    ("nesting", nesting),
    ("a bad value where nobody looks", bad_value_of_unknown_field),
    ("a tensor of another type", tensor_of_other_type),
    ("a dtype of another type", dtype_of_other_type),
    ("a shape of another form", shape_of_other_form),
    ("offsets of another form", offsets_of_other_form),
    ("numbers that JSON does not have", numbers_of_no_json),
    ("a string that JSON does not have", string_of_no_json),
    ("metadata twice", metadata_twice),
    ("a metadata key twice", metadata_key_twice),
    (
        "a metadata value of another type",
        metadata_value_of_other_type,
    ),
    ("metadata of another type", metadata_of_other_type),
    ("a tensor called metadata", tensor_called_metadata),
];

const FIELDS: [&str; 3] = ["dtype", "shape", "data_offsets"];

fn bad_json(fault: &FormatFault) -> bool {
    matches!(fault, FormatFault::BadJson { .. })
}

/// This field of a tensor is refused, with the name of the tensor.
fn bad_field(name: &str) -> Expected {
    let name = name.to_owned();
    Expected::like(
        "a bad field of this tensor",
        move |fault| matches!(fault, FormatFault::BadField { name: found, .. } if *found == name),
    )
}

fn name_twice(draft: &Draft, dice: &mut Dice) -> Option<Mutation> {
    let first = draft.some(dice, |_| true)?;
    let name = draft.tensors[first].name.clone();
    let second = draft.some(dice, |one| one.name != name)?;
    let mut draft = draft.clone();
    draft.tensors[second].name.clone_from(&name);
    Some((
        draft.file(),
        Expected::Fault(FormatFault::DuplicateTensor { name }),
    ))
}

fn field_missing(draft: &Draft, dice: &mut Dice) -> Option<Mutation> {
    let at = draft.some(dice, |_| true)?;
    let (mut pieces, places) = draft.pieces();
    let field = dice.pick(&FIELDS);
    pieces
        .fields(places[at])
        .retain(|(key, _)| key.trim_matches('"') != field);
    let name = draft.tensors[at].name.clone();
    Some((
        pieces.file(),
        Expected::Fault(FormatFault::MissingField { name, field }),
    ))
}

fn field_renamed(draft: &Draft, dice: &mut Dice) -> Option<Mutation> {
    let at = draft.some(dice, |_| true)?;
    let (mut pieces, places) = draft.pieces();
    let field = dice.pick(&FIELDS);
    let other = dice.pick(&["", "Dtype", "DTYPE", "offsets", "dtype ", "\\u0000shape"]);
    let mut fields = pieces.fields(places[at]).iter_mut();
    let (key, _) = fields.find(|(key, _)| key.trim_matches('"') == field)?;
    *key = format!("\"{other}\"");
    let name = draft.tensors[at].name.clone();
    Some((
        pieces.file(),
        Expected::Fault(FormatFault::MissingField { name, field }),
    ))
}

fn field_twice(draft: &Draft, dice: &mut Dice) -> Option<Mutation> {
    let at = draft.some(dice, |_| true)?;
    let (mut pieces, places) = draft.pieces();
    let field = dice.pick(&FIELDS);
    let value = pieces.field(places[at], field).clone();
    // However it is spelled.
    let letter = u32::from(field.as_bytes()[0]);
    let key = dice.pick(&[
        format!("\"{field}\""),
        format!("\"\\u{letter:04x}{}\"", &field[1..]),
    ]);
    let place = dice.below(4);
    pieces.fields(places[at]).insert(place, (key, value));
    let name = draft.tensors[at].name.clone();
    Some((
        pieces.file(),
        Expected::Fault(FormatFault::DuplicateField { name, field }),
    ))
}

/// Adds a field that nobody knows, with this value, to some tensor.
fn with_field(draft: &Draft, dice: &mut Dice, value: &str) -> Option<Vec<u8>> {
    let at = draft.some(dice, |_| true)?;
    let (mut pieces, places) = draft.pieces();
    let place = dice.below(4);
    pieces
        .fields(places[at])
        .insert(place, ("\"more\"".into(), value.into()));
    Some(pieces.file())
}

fn field_unknown(draft: &Draft, dice: &mut Dice) -> Option<Mutation> {
    let values = [
        "null",
        "1e300",
        "-0",
        "\"\\ud83d\\ude00\"",
        "[1,{\"a\":[]}]",
        "{\"dtype\":1,\"dtype\":2}",
    ];
    let value = dice.pick(&values);
    Some((
        with_field(draft, dice, value)?,
        Expected::Read(draft.clone()),
    ))
}

fn nesting(draft: &Draft, dice: &mut Dice) -> Option<Mutation> {
    let (depth, is_fine) = dice.pick(&[(1, true), (100, true), (200, false), (100_000, false)]);
    let (open, close) = dice.pick(&[("[", "]"), ("{\"a\":", "}")]);
    let value = format!("{}0{}", open.repeat(depth), close.repeat(depth));
    let expected = if is_fine {
        Expected::Read(draft.clone())
    } else {
        Expected::like(
            "too deep",
            |fault| matches!(fault, FormatFault::BadJson { reason } if reason.contains("recursion limit")),
        )
    };
    Some((with_field(draft, dice, &value)?, expected))
}

fn bad_value_of_unknown_field(draft: &Draft, dice: &mut Dice) -> Option<Mutation> {
    let values = [
        "1e999",
        "\"\\ud800\"",
        "[1,]",
        "{,}",
        "01",
        "tru",
        "\"\n\"",
        "'a'",
        "",
        "{1:2}",
    ];
    let value = dice.pick(&values);
    Some((
        with_field(draft, dice, value)?,
        Expected::like("bad JSON", bad_json),
    ))
}

fn tensor_of_other_type(draft: &Draft, dice: &mut Dice) -> Option<Mutation> {
    let at = draft.some(dice, |_| true)?;
    let one = &draft.tensors[at];
    let (mut pieces, places) = draft.pieces();
    // The reference takes the last one.
    let by_position = format!("[{:?},{:?},[{},{}]]", "U8", one.dims, one.begin, one.end);
    let values = ["null", "1", "-1.5", "true", "\"x\"", "[]", &by_position];
    pieces.entries[places[at]].1 = Value::Raw(dice.pick(&values).into());
    Some((pieces.file(), bad_field(&one.name)))
}

fn dtype_of_other_type(draft: &Draft, dice: &mut Dice) -> Option<Mutation> {
    let values = [
        "null",
        "1",
        "[\"F32\"]",
        "{\"F32\":null}",
        "{}",
        "true",
        "-1e5",
    ];
    other_field(draft, dice, "dtype", &values)
}

fn shape_of_other_form(draft: &Draft, dice: &mut Dice) -> Option<Mutation> {
    let values = [
        "null",
        "1",
        "\"1\"",
        "{}",
        "[[1]]",
        "[null]",
        "[\"1\"]",
        "[1.0]",
        "[1e0]",
        "[-1]",
        "[-0]",
        "[18446744073709551616]",
        "[true]",
        "[1,1,1,1,1,1,1,1,1,{}]",
    ];
    other_field(draft, dice, "shape", &values)
}

fn other_field(draft: &Draft, dice: &mut Dice, field: &str, values: &[&str]) -> Option<Mutation> {
    let at = draft.some(dice, |_| true)?;
    let (mut pieces, places) = draft.pieces();
    *pieces.field(places[at], field) = dice.pick(values).into();
    Some((pieces.file(), bad_field(&draft.tensors[at].name)))
}

fn offsets_of_other_form(draft: &Draft, dice: &mut Dice) -> Option<Mutation> {
    let at = draft.some(dice, |_| true)?;
    let one = &draft.tensors[at];
    let (begin, end) = (one.begin, one.end);
    let value = dice.pick(&[
        format!("[{begin}.0,{end}]"),
        format!("[{begin},{end}e0]"),
        format!("[{begin},{end},{end}]"),
        format!("[-{begin},{end}]"),
        format!("[\"{begin}\",{end}]"),
        format!("\"[{begin},{end}]\""),
        format!("{{\"begin\":{begin},\"end\":{end}}}"),
        format!("[{begin}]"),
        format!("[{begin},18446744073709551616]"),
        format!("[null,{end}]"),
        "[]".into(),
        "null".into(),
    ]);
    let (mut pieces, places) = draft.pieces();
    *pieces.field(places[at], "data_offsets") = value;
    Some((pieces.file(), bad_field(&one.name)))
}

fn numbers_of_no_json(draft: &Draft, dice: &mut Dice) -> Option<Mutation> {
    let at = draft.some(dice, |_| true)?;
    let (mut pieces, places) = draft.pieces();
    let number = dice.pick(&[
        "01", "+1", "1.", ".5", "NaN", "0x1", "1e999", "--1", "1e", "Infinity",
    ]);
    let (field, value) = dice.pick(&[
        ("shape", format!("[{number}]")),
        ("shape", format!("[1,{number},1]")),
        ("data_offsets", format!("[{number},1]")),
        ("data_offsets", format!("[0,{number}]")),
    ]);
    *pieces.field(places[at], field) = value;
    Some((pieces.file(), Expected::like("bad JSON", bad_json)))
}

/// In the name of a tensor, in a tag, or in metadata.
fn string_of_no_json(draft: &Draft, dice: &mut Dice) -> Option<Mutation> {
    let at = draft.some(dice, |_| true)?;
    let (mut pieces, places) = draft.pieces();
    let bad = dice.pick(&[
        "\0",
        "\n",
        "\u{1f}",
        "\\ud800",
        "\\udc00x",
        "\\u12x",
        "\\x",
        "\\ud800\\u0061",
    ]);
    let place = places[at];
    let text = if dice.below(2) == 0 {
        &mut pieces.entries[place].0
    } else {
        pieces.field(place, "dtype")
    };
    text.insert_str(1, bad);
    Some((pieces.file(), Expected::like("bad JSON", bad_json)))
}

fn metadata_twice(draft: &Draft, dice: &mut Dice) -> Option<Mutation> {
    draft.metadata.as_ref()?;
    let (mut pieces, _) = draft.pieces();
    let place = dice.below(pieces.entries.len() + 1);
    let value = Value::Raw(dice.pick(&["null", "{}", "{\"a\":\"b\"}"]).into());
    let key = dice.pick(&["\"__metadata__\"", "\"\\u005f_metadata__\""]);
    pieces.entries.insert(place, (key.into(), value));
    Some((
        pieces.file(),
        Expected::Fault(FormatFault::DuplicateMetadata),
    ))
}

fn metadata_key_twice(draft: &Draft, dice: &mut Dice) -> Option<Mutation> {
    let metadata = draft
        .metadata
        .as_ref()
        .filter(|metadata| !metadata.is_empty())?;
    let (key, _) = dice.pick(metadata);
    let (mut pieces, places) = draft.pieces();
    let place = dice.below(metadata.len() + 1);
    let again = (serde_json::to_string(&key).unwrap(), "\"\"".into());
    pieces.fields(*places.last()?).insert(place, again);
    Some((
        pieces.file(),
        Expected::Fault(FormatFault::DuplicateMetadataKey { key }),
    ))
}

fn metadata_value_of_other_type(draft: &Draft, dice: &mut Dice) -> Option<Mutation> {
    let metadata = draft
        .metadata
        .as_ref()
        .filter(|metadata| !metadata.is_empty())?;
    let at = dice.below(metadata.len());
    let (mut pieces, places) = draft.pieces();
    let value = dice.pick(&["1", "null", "{}", "[\"x\"]", "true", "-1.5"]);
    pieces.fields(*places.last()?)[at].1 = value.into();
    let key = metadata[at].0.clone();
    Some((pieces.file(), bad_metadata(&[&key])))
}

fn metadata_of_other_type(draft: &Draft, dice: &mut Dice) -> Option<Mutation> {
    let mut draft = draft.clone();
    draft.metadata = None;
    let (mut pieces, _) = draft.pieces();
    let place = dice.below(pieces.entries.len() + 1);
    let (value, is_fine) = dice.pick(&[
        ("null", true),
        ("1", false),
        ("\"x\"", false),
        ("[]", false),
        ("false", false),
    ]);
    pieces
        .entries
        .insert(place, ("\"__metadata__\"".into(), Value::Raw(value.into())));
    let expected = if is_fine {
        Expected::Read(draft)
    } else {
        bad_metadata(&[""])
    };
    Some((pieces.file(), expected))
}

/// Its dtype is a string, as metadata has to be; its other fields are not.
fn tensor_called_metadata(draft: &Draft, dice: &mut Dice) -> Option<Mutation> {
    let at = draft.some(dice, |_| true)?;
    let mut draft = draft.clone();
    draft.metadata = None;
    draft.tensors[at].name = "__metadata__".into();
    Some((draft.file(), bad_metadata(&["shape", "data_offsets"])))
}

fn bad_metadata(keys: &[&str]) -> Expected {
    let keys: Vec<String> = keys.iter().map(|&key| key.to_owned()).collect();
    Expected::like(
        "a metadata value that is no string",
        move |fault| matches!(fault, FormatFault::BadMetadataValue { key, .. } if keys.contains(key)),
    )
}
