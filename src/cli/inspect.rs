//! `tenslab inspect PATH`: what a checkpoint holds, from its headers alone.
//!
//! For people a table in 80 columns, by file in the order of the bytes, with totals by
//! dtype; for programs one JSON object. `offset` is counted from the start of
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

/// Tensors and bytes of one dtype.
#[derive(Default)]
struct Total {
    tensors: usize,
    nbytes: u64,
}

fn totals(checkpoint: &Checkpoint) -> BTreeMap<&str, Total> {
    let mut totals: BTreeMap<&str, Total> = BTreeMap::new();
    for entry in checkpoint.entries() {
        let total = totals.entry(entry.dtype().tag()).or_default();
        total.tensors += 1;
        total.nbytes += entry.nbytes();
    }
    totals
}

fn print_totals(checkpoint: &Checkpoint, out: &mut impl Write) -> Result<(), Failure> {
    let mut rows: Vec<(String, [String; 3])> = Vec::new();
    let row = |name: String, tensors: usize, nbytes: u64| {
        let cells = [
            tensors.to_string(),
            nbytes.to_string(),
            binary_bytes(nbytes),
        ];
        (name, cells)
    };
    for (tag, total) in totals(checkpoint) {
        rows.push(row(escaped(tag), total.tensors, total.nbytes));
    }
    rows.push(row(
        "total".into(),
        checkpoint.entries().len(),
        checkpoint.tensor_bytes(),
    ));
    let mut table = Table::new(["tensors", "bytes", ""], [Side::Right; 3]).named("dtype");
    for (name, cells) in &rows {
        table.measure(name, cells);
    }
    table.heading(out)?;
    for (name, cells) in &rows {
        table.row(out, name, cells)?;
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
        let mut object = serializer.serialize_struct("Checkpoint", 6)?;
        object.serialize_field("path", &checkpoint.path().to_string_lossy())?;
        object.serialize_field("files", &Files(checkpoint))?;
        object.serialize_field("tensors", &Tensors(checkpoint))?;
        object.serialize_field("totals", &Totals(checkpoint))?;
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
        let totals = totals(self.0);
        let mut map = serializer.serialize_map(Some(totals.len()))?;
        for (tag, total) in totals {
            map.serialize_entry(tag, &TotalJson(total))?;
        }
        map.end()
    }
}

struct TotalJson(Total);

impl Serialize for TotalJson {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct("Total", 2)?;
        object.serialize_field("tensors", &self.0.tensors)?;
        object.serialize_field("nbytes", &self.0.nbytes)?;
        object.end()
    }
}
