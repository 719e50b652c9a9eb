//! `tenslab inspect PATH`: what a checkpoint holds, from its headers alone.
//!
//! For people a table in 80 columns, by file in the order of the bytes, with totals by
//! dtype and by layer; for programs one JSON object. `offset` is counted from the start of
//! the file, and `align` is the largest power of two that divides it (up to 4096): what
//! a map of the file could promise.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use serde::ser::{Serialize, SerializeMap, SerializeSeq, SerializeStruct, Serializer};
use tenslab::weights::{Checkpoint, CheckpointFile, WeightEntries, WeightEntry};

use super::Failure;
use super::table::{COLUMNS, Side, Table};
use super::text::{binary_bytes, escaped, shortened, wrapped};

/// The largest alignment that is told apart: a page.
const PAGE_BYTES: u64 = 4096;

/// Opens `path` and prints what is there.
pub(super) fn inspect(path: &Path, json: bool, out: &mut impl Write) -> Result<(), Failure> {
    let checkpoint = Checkpoint::open(path)?;
    if json {
        serde_json::to_writer(&mut *out, &Json(&checkpoint)).map_err(std::io::Error::from)?;
        writeln!(out)?;
        return Ok(());
    }
    for (file, entries) in checkpoint
        .files()
        .iter()
        .zip((0..).map(|at| checkpoint.entries_of(at)))
    {
        print_file(file, &entries, out)?;
    }
    print_totals(&checkpoint, out)?;
    print_metadata(checkpoint.metadata(), out)
}

/// The largest power of two, up to a page, that divides an offset.
fn alignment(offset: u64) -> u64 {
    (offset | PAGE_BYTES) & (offset | PAGE_BYTES).wrapping_neg()
}

/// `49152x576`: shorter than `[49152, 576]`, which leaves more room for the name.
fn shape(entry: WeightEntry<'_>) -> String {
    let shape = entry.shape();
    let dims = shape.dims();
    if dims.is_empty() {
        return "scalar".into();
    }
    let dims: Vec<_> = dims.iter().map(ToString::to_string).collect();
    dims.join("x")
}

fn cells(entry: WeightEntry<'_>) -> [String; 5] {
    [
        escaped(entry.dtype().tag()),
        shape(entry),
        entry.nbytes().to_string(),
        entry.offset().to_string(),
        alignment(entry.offset()).to_string(),
    ]
}

fn print_file(
    file: &CheckpointFile,
    entries: &WeightEntries<'_>,
    out: &mut impl Write,
) -> Result<(), Failure> {
    for line in wrapped(&escaped(&file.path().to_string_lossy()), COLUMNS) {
        writeln!(out, "{line}")?;
    }
    writeln!(
        out,
        "{} tensors in a file of {} bytes ({}), data from byte {}",
        entries.len(),
        file.file_bytes(),
        binary_bytes(file.file_bytes()),
        file.data_start()
    )?;
    writeln!(out)?;
    let mut table = Table::new(
        ["dtype", "shape", "bytes", "offset", "align"],
        [
            Side::Left,
            Side::Left,
            Side::Right,
            Side::Right,
            Side::Right,
        ],
    );
    for entry in entries.clone() {
        table.measure(&escaped(entry.name()), &cells(entry));
    }
    table.heading(out)?;
    for entry in entries.clone() {
        table.row(out, &escaped(entry.name()), &cells(entry))?;
    }
    writeln!(out)?;
    Ok(())
}

/// Tensors and bytes of one dtype, or one layer.
#[derive(Default)]
struct Total {
    tensors: usize,
    nbytes: u64,
}

/// The totals of all tensors that have the same key.
fn totals<'a, K: Ord>(
    checkpoint: &'a Checkpoint,
    key: impl Fn(WeightEntry<'a>) -> K,
) -> BTreeMap<K, Total> {
    let mut totals: BTreeMap<K, Total> = BTreeMap::new();
    for entry in checkpoint.entries() {
        let total = totals.entry(key(entry)).or_default();
        total.tensors += 1;
        total.nbytes += entry.nbytes();
    }
    totals
}

fn by_dtype(checkpoint: &Checkpoint) -> BTreeMap<&str, Total> {
    totals(checkpoint, |entry| entry.dtype().tag())
}

/// A layer's name: up to the first part that is a number, `model.layers.3`. Ordered by what
/// is in front of the number, and by the number; tensors of no layer come last.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Layer<'a> {
    Numbered(&'a str, u32, &'a str),
    None,
}

impl<'a> Layer<'a> {
    fn of(name: &'a str) -> Self {
        let mut start = 0;
        for part in name.split('.') {
            let end = start + part.len();
            // Digits alone: a number may also have a sign.
            if part.bytes().all(|byte| byte.is_ascii_digit())
                && let Ok(number) = part.parse()
            {
                return Self::Numbered(&name[..start], number, &name[..end]);
            }
            start = end + 1;
        }
        Self::None
    }

    fn name(&self) -> Option<&'a str> {
        match *self {
            Self::Numbered(_, _, name) => Some(name),
            Self::None => None,
        }
    }
}

fn by_layer(checkpoint: &Checkpoint) -> BTreeMap<Layer<'_>, Total> {
    totals(checkpoint, |entry| Layer::of(entry.name()))
}

fn print_totals(checkpoint: &Checkpoint, out: &mut impl Write) -> Result<(), Failure> {
    let dtypes = by_dtype(checkpoint);
    let dtypes = dtypes.iter().map(|(tag, total)| (escaped(tag), total));
    let all = Total {
        tensors: checkpoint.entries().len(),
        nbytes: checkpoint.tensor_bytes(),
    };
    let rows: Vec<_> = dtypes.chain([("total".into(), &all)]).collect();
    print_table("dtype", &rows, out)?;
    let layers = by_layer(checkpoint);
    if layers.keys().all(|layer| layer.name().is_none()) {
        return Ok(());
    }
    let name = |layer: &Layer<'_>| layer.name().map_or_else(|| "(none)".into(), escaped);
    let rows: Vec<_> = (layers.iter().map(|(layer, total)| (name(layer), total))).collect();
    writeln!(out)?;
    print_table("layer", &rows, out)
}

fn print_table(
    head: &'static str,
    totals: &[(String, &Total)],
    out: &mut impl Write,
) -> Result<(), Failure> {
    let cells = |total: &Total| {
        [
            total.tensors.to_string(),
            total.nbytes.to_string(),
            binary_bytes(total.nbytes),
        ]
    };
    let mut table = Table::new(["tensors", "bytes", ""], [Side::Right; 3]).named(head);
    for (name, total) in totals {
        table.measure(name, &cells(total));
    }
    table.heading(out)?;
    for (name, total) in totals {
        table.row(out, name, &cells(total))?;
    }
    Ok(())
}

fn print_metadata(
    metadata: &BTreeMap<String, String>,
    out: &mut impl Write,
) -> Result<(), Failure> {
    if metadata.is_empty() {
        return Ok(());
    }
    writeln!(out)?;
    writeln!(out, "metadata")?;
    for (key, value) in metadata {
        let (key, value) = (escaped(key), escaped(value));
        let text = format!("{key}: {}", shortened(&value, 10 * COLUMNS));
        for line in wrapped(&text, COLUMNS - 2) {
            writeln!(out, "  {line}")?;
        }
    }
    Ok(())
}

/// The whole answer for programs, written as it is made.
struct Json<'a>(&'a Checkpoint);

impl Serialize for Json<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let checkpoint = self.0;
        let mut object = serializer.serialize_struct("Checkpoint", 7)?;
        object.serialize_field("path", &checkpoint.path().to_string_lossy())?;
        object.serialize_field("files", &Files(checkpoint))?;
        object.serialize_field("tensors", &Tensors(checkpoint))?;
        object.serialize_field("totals", &Totals(checkpoint))?;
        object.serialize_field("layers", &Layers(checkpoint))?;
        object.serialize_field("total_bytes", &checkpoint.tensor_bytes())?;
        object.serialize_field("metadata", checkpoint.metadata())?;
        object.end()
    }
}

struct Files<'a>(&'a Checkpoint);

impl Serialize for Files<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(self.0.files().len()))?;
        for file in self.0.files() {
            list.serialize_element(&FileJson(file))?;
        }
        list.end()
    }
}

struct FileJson<'a>(&'a CheckpointFile);

impl Serialize for FileJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct("File", 4)?;
        object.serialize_field("path", &self.0.path().to_string_lossy())?;
        object.serialize_field("bytes", &self.0.file_bytes())?;
        object.serialize_field("data_start", &self.0.data_start())?;
        object.serialize_field("metadata", self.0.metadata())?;
        object.end()
    }
}

struct Tensors<'a>(&'a Checkpoint);

impl Serialize for Tensors<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(self.0.entries().len()))?;
        for entry in self.0.entries() {
            list.serialize_element(&EntryJson(entry))?;
        }
        list.end()
    }
}

struct EntryJson<'a>(WeightEntry<'a>);

impl Serialize for EntryJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let entry = self.0;
        let info = entry.info();
        let mut object = serializer.serialize_struct("Tensor", 8)?;
        object.serialize_field("name", entry.name())?;
        object.serialize_field("dtype", entry.dtype().tag())?;
        object.serialize_field("shape", entry.shape().dims())?;
        object.serialize_field("nbytes", &entry.nbytes())?;
        object.serialize_field("offset", &entry.offset())?;
        object.serialize_field("align", &alignment(entry.offset()))?;
        object.serialize_field("data_offsets", &[info.begin(), info.end()])?;
        object.serialize_field("file", &entry.file())?;
        object.end()
    }
}

struct Totals<'a>(&'a Checkpoint);

impl Serialize for Totals<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let totals = by_dtype(self.0);
        let mut map = serializer.serialize_map(Some(totals.len()))?;
        for (tag, total) in totals {
            map.serialize_entry(tag, &TotalJson { layer: None, total })?;
        }
        map.end()
    }
}

struct Layers<'a>(&'a Checkpoint);

impl Serialize for Layers<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let layers = by_layer(self.0);
        let mut list = serializer.serialize_seq(Some(layers.len()))?;
        for (layer, total) in layers {
            let layer = Some(layer.name());
            list.serialize_element(&TotalJson { layer, total })?;
        }
        list.end()
    }
}

struct TotalJson<'a> {
    /// Of a layer: its name, `null` for tensors of none.
    layer: Option<Option<&'a str>>,
    total: Total,
}

impl Serialize for TotalJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let fields = 2 + usize::from(self.layer.is_some());
        let mut object = serializer.serialize_struct("Total", fields)?;
        if let Some(name) = self.layer {
            object.serialize_field("layer", &name)?;
        }
        object.serialize_field("tensors", &self.total.tensors)?;
        object.serialize_field("nbytes", &self.total.nbytes)?;
        object.end()
    }
}
