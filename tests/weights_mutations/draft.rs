//! [`Draft`]: a header that is fine, to be broken.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use tenslab::weights::{Header, WeightDType};

/// Tags of every width, and some that the format does not define.
pub(crate) const TAGS: [&str; 14] = [
    "F4", "F6_E2M3", "BOOL", "U8", "F8_E8M0", "F16", "BF16", "F32", "C64", "I64", "F128", "f32",
    "", "\u{e9}\n",
];

/// A tensor, as a header lists it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct One {
    pub(crate) name: String,
    pub(crate) tag: &'static str,
    pub(crate) dims: Vec<u64>,
    pub(crate) begin: u64,
    pub(crate) end: u64,
}

impl One {
    /// Bits of an element, where the format says it.
    pub(crate) fn bits(&self) -> Option<u32> {
        WeightDType::from_tag(self.tag).bits()
    }

    pub(crate) fn nbytes(&self) -> u64 {
        self.end - self.begin
    }
}

/// What a file says, and how it is spelled.
#[derive(Debug, Clone)]
pub(crate) struct Draft {
    /// In the order of their bytes and, where those are none, of their names.
    pub(crate) tensors: Vec<One>,
    pub(crate) metadata: Option<Vec<(String, String)>>,
    pub(crate) data_bytes: u64,
    /// What order and spelling are drawn from.
    spelling: u64,
}

/// Numbers out of a seed (splitmix64).
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % end.max(1) as u64).unwrap()
    }

    pub(crate) fn pick<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())].clone()
    }

    fn shuffle<T>(&mut self, all: &mut [T]) {
        for last in (1..all.len()).rev() {
            all.swap(last, self.below(last + 1));
        }
    }
}

/// A text as JSON: plain (`None`), or with some letters escaped.
fn spell(text: &str, dice: Option<&mut Dice>) -> String {
    let plain = serde_json::to_string(text).unwrap();
    let Some(dice) = dice.filter(|_| text.len() < 1000) else {
        return plain;
    };
    let mut spelled = String::from("\"");
    for letter in text.chars() {
        if dice.below(3) == 0 {
            for unit in letter.encode_utf16(&mut [0; 2]) {
                spelled += &format!("\\u{unit:04x}");
            }
        } else {
            let quoted = serde_json::to_string(&letter.to_string()).unwrap();
            spelled += &quoted[1..quoted.len() - 1];
        }
    }
    spelled + "\""
}

/// An object as text, entry by entry.
pub(crate) type Fields = Vec<(String, String)>;

/// A value of the header.
#[derive(Debug, Clone)]
pub(crate) enum Value {
    Object(Fields),
    Raw(String),
}

/// A header in pieces of text: keys with their quotes, and values.
#[derive(Debug, Clone)]
pub(crate) struct Pieces {
    pub(crate) entries: Vec<(String, Value)>,
    data_bytes: u64,
}

fn object(
    entries: impl Iterator<Item = (String, String)>,
    space: &mut dyn FnMut() -> &'static str,
) -> String {
    let mut text = String::from("{");
    for (at, (key, value)) in entries.enumerate() {
        let comma = if at > 0 { "," } else { "" };
        for part in [comma, space(), &key, space(), ":", space(), &value, space()] {
            text += part;
        }
    }
    text + "}"
}

impl Pieces {
    fn text_with(&self, space: &mut dyn FnMut() -> &'static str) -> String {
        let mut entries = Vec::new();
        for (key, value) in &self.entries {
            let value = match value {
                Value::Object(fields) => object(fields.iter().cloned(), space),
                Value::Raw(raw) => raw.clone(),
            };
            entries.push((key.clone(), value));
        }
        object(entries.into_iter(), space)
    }

    pub(crate) fn text(&self) -> String {
        self.text_with(&mut || "")
    }

    /// With spaces wherever they may be.
    pub(crate) fn spaced(&self, dice: &mut Dice) -> String {
        let mut space = || dice.pick(&["", "", " ", "\n", "\t", "\r\n", "    "]);
        let (before, after) = (space(), space());
        format!("{before}{}{after}", self.text_with(&mut space))
    }

    pub(crate) fn file(&self) -> Vec<u8> {
        file(self.text().as_bytes(), self.data_bytes)
    }

    /// The fields of the tensor (or metadata) at `at`.
    pub(crate) fn fields(&mut self, at: usize) -> &mut Fields {
        match &mut self.entries[at].1 {
            Value::Object(fields) => fields,
            Value::Raw(raw) => panic!("{raw} has no fields"),
        }
    }

    /// The value of this field of the tensor at `at`.
    pub(crate) fn field(&mut self, at: usize, name: &str) -> &mut String {
        let quoted = format!("\"{name}\"");
        let mut fields = self.fields(at).iter_mut();
        &mut fields.find(|(key, _)| *key == quoted).unwrap().1
    }
}

/// A file: length field, text, data.
pub(crate) fn file(text: &[u8], data_bytes: u64) -> Vec<u8> {
    let mut file = (text.len() as u64).to_le_bytes().to_vec();
    file.extend(text);
    file.extend(
        (1..=251_u8)
            .cycle()
            .take(usize::try_from(data_bytes).unwrap()),
    );
    file
}

impl Draft {
    /// Its pieces, and where in them the tensors are.
    pub(crate) fn pieces(&self) -> (Pieces, Vec<usize>) {
        let mut dice = Dice(self.spelling);
        let mut entries = Vec::new();
        for one in &self.tensors {
            let mut fields = vec![
                ("\"dtype\"".into(), spell(one.tag, None)),
                ("\"shape\"".into(), format!("{:?}", one.dims)),
                (
                    "\"data_offsets\"".into(),
                    format!("[{},{}]", one.begin, one.end),
                ),
            ];
            dice.shuffle(&mut fields);
            let key = spell(&one.name, Some(&mut dice));
            entries.push((key, Value::Object(fields)));
        }
        if let Some(metadata) = &self.metadata {
            let mut fields = Vec::new();
            for (key, value) in metadata {
                let key = spell(key, Some(&mut dice));
                fields.push((key, spell(value, Some(&mut dice))));
            }
            entries.push((
                spell("__metadata__", Some(&mut dice)),
                Value::Object(fields),
            ));
        }
        let mut order: Vec<usize> = (0..entries.len()).collect();
        dice.shuffle(&mut order);
        let place = |of: usize| order.iter().position(|&at| at == of).unwrap();
        let places = (0..entries.len()).map(place).collect();
        let entries = order.iter().map(|&at| entries[at].clone()).collect();
        let data_bytes = self.data_bytes;
        (
            Pieces {
                entries,
                data_bytes,
            },
            places,
        )
    }

    pub(crate) fn file(&self) -> Vec<u8> {
        self.pieces().0.file()
    }

    /// Some tensor that is so.
    pub(crate) fn some(&self, dice: &mut Dice, is_so: impl Fn(&One) -> bool) -> Option<usize> {
        let all = self.tensors.iter().enumerate();
        let fitting: Vec<_> = all
            .filter(|(_, one)| is_so(one))
            .map(|(at, _)| at)
            .collect();
        (!fitting.is_empty()).then(|| dice.pick(&fitting))
    }

    /// Is it what this header says?
    pub(crate) fn check(&self, header: &Header) -> Result<(), String> {
        let mut wanted = self.tensors.clone();
        wanted.sort_by(|a, b| (a.begin, a.end, &a.name).cmp(&(b.begin, b.end, &b.name)));
        let found = header.tensors().map(|tensor| {
            let dims = tensor
                .shape()
                .dims()
                .iter()
                .map(|&dim| dim as u64)
                .collect();
            (
                tensor.name(),
                tensor.dtype().tag(),
                dims,
                tensor.begin(),
                tensor.end(),
            )
        });
        let wanted_of = wanted.iter().map(|one| {
            (
                one.name.as_str(),
                one.tag,
                one.dims.clone(),
                one.begin,
                one.end,
            )
        });
        let metadata = self
            .metadata
            .iter()
            .flatten()
            .map(|(key, value)| (key, value));
        if found.eq(wanted_of) && header.metadata().iter().eq(metadata) {
            return Ok(());
        }
        Err(format!("{header:.1000?} is not what was written"))
    }
}

fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        40 => "[a-z0-9.]{0,12}",
        40 => any::<String>(),
        20 => "[\u{0}-\u{1f}\"\\\\/\u{7f}-\u{9f}\u{10ffff}]{1,4}",
        1 => Just("n".repeat(64 << 10)),
    ]
    .prop_filter("metadata is no tensor", |name| name != "__metadata__")
}

/// Drafts of up to six tensors, none of them among them, and sizes of 0.
pub(crate) fn drafts() -> impl Strategy<Value = Draft> {
    let one = (
        name(),
        select(&TAGS[..]),
        vec(prop_oneof![9 => 1_u64..4, 1 => Just(0)], 0..=8),
        0_u64..9,
    );
    let metadata = prop::option::of(prop::collection::btree_map(name(), any::<String>(), 0..4));
    (vec(one, 0..6), metadata, any::<u64>()).prop_map(|(mut all, metadata, spelling)| {
        all.sort();
        all.dedup_by(|a, b| a.0 == b.0);
        let mut dice = Dice(spelling);
        dice.shuffle(&mut all);
        let mut begin = 0;
        let mut tensors = Vec::new();
        for (name, tag, mut dims, odd_bytes) in all {
            let numel = |dims: &[u64]| dims.iter().product::<u64>();
            // The longest would be 8 * 3^8 bytes.
            while numel(&dims) > 500 {
                dims.pop();
            }
            let mut one = One {
                name,
                tag,
                dims,
                begin,
                end: begin + odd_bytes,
            };
            if let Some(bits) = one.bits() {
                while !(numel(&one.dims) * u64::from(bits)).is_multiple_of(8) {
                    match one.dims.last_mut() {
                        Some(last) => *last *= 2,
                        None => one.dims.push(8),
                    }
                }
                one.end = begin + numel(&one.dims) * u64::from(bits) / 8;
            }
            begin = one.end;
            tensors.push(one);
        }
        tensors.sort_by(|a, b| (a.begin, a.end, &a.name).cmp(&(b.begin, b.end, &b.name)));
        let metadata = metadata.map(|map| map.into_iter().collect());
        Draft {
            tensors,
            metadata,
            data_bytes: begin,
            spelling,
        }
    })
}
