//! Recordings as text: the same columns as CSV and as JSON.
//!
//! ```text
//!   # tenslab-trace,2
//!   # history,on
//!   # seen_events,4
//!   # dropped_events,0
//!   # events,4
//!   # live_blocks,0
//!   # live_untracked,0
//!   # live_empty,0
//!   number,thread,event,tag,bytes,align,zeroed,capacity,address,name
//!   0,0,allocate,kv,1000,64,false,4096,139637976727552,
//!   1,0,grow,kv,5000,,,8192,139637976727552,
//!   2,0,release,kv,5000,,,8192,139637976727552,
//!   3,0,mark,,,,,,,decode
//! ```
//!
//! `grow` has the bytes and the capacity that the block has from then on. It came with version
//! 2; version 1 is the same without it, and is read as well.
//!
//! The same recording is the same bytes, always. A file is data: whatever is in it, the
//! reader answers with a [`Recording`] or with the line that is wrong.

use std::io::{self, Write};

use serde::{Deserialize, Serialize};

use super::recording::Builder;
use super::row::{COLUMNS, Line, Row, RowKind, TraceError, TraceProblem as Problem};
use super::{Recording, TraceHeader};
use crate::memory::Tag;

const FORMAT: &str = "tenslab-trace";

/// The one that is written.
const VERSION: u32 = 2;

/// From this one on blocks grow. Before, nothing else was different.
const GROWTH_SINCE: u32 = 2;

/// How a file of a version that can be read begins.
const FIRST_LINES: [(&str, u32); 2] = [("# tenslab-trace,1", 1), ("# tenslab-trace,2", 2)];

impl Recording {
    fn rows(&self) -> impl Iterator<Item = Row> {
        let live = self.live().iter().map(Row::from);
        self.events().iter().map(Row::from).chain(live)
    }

    /// Writes it as CSV, a line for each event and each block that is out.
    ///
    /// # Errors
    /// Whatever writing gives.
    pub fn write_csv(&self, to: &mut impl Write) -> io::Result<()> {
        let header = self.header();
        let history = if header.history { "on" } else { "off" };
        writeln!(to, "# {FORMAT},{VERSION}\n# history,{history}")?;
        for (name, number) in numbers(header) {
            writeln!(to, "# {name},{number}")?;
        }
        writeln!(to, "{}", COLUMNS.join(","))?;
        for row in self.rows() {
            write!(to, "{},{},{},", row.number, row.thread, row.event.name())?;
            cell(to, row.tag)?;
            cell(to, row.bytes)?;
            cell(to, row.align)?;
            cell(to, row.zeroed)?;
            cell(to, row.capacity)?;
            cell(to, row.address)?;
            // A name has no comma and no quote.
            writeln!(to, "{}", row.name.as_deref().unwrap_or(""))?;
        }
        Ok(())
    }

    /// Writes it as one JSON object, in which each event is on a line of its own.
    ///
    /// # Errors
    /// Whatever writing gives.
    pub fn write_json(&self, to: &mut impl Write) -> io::Result<()> {
        let header = Head::from(self.header());
        let mut head = serde_json::to_vec(&header).map_err(io::Error::from)?;
        head.pop(); // the closing brace
        to.write_all(&head)?;
        to.write_all(b",\"lines\":[")?;
        for (place, row) in self.rows().enumerate() {
            to.write_all(if place == 0 { b"\n" } else { b",\n" })?;
            serde_json::to_writer(&mut *to, &row).map_err(io::Error::from)?;
        }
        to.write_all(b"\n]}\n")
    }

    /// Reads what [`write_csv`](Recording::write_csv) wrote.
    ///
    /// # Errors
    /// [`TraceError`] with the line and what is wrong with it.
    pub fn from_csv(text: &[u8]) -> Result<Recording, TraceError> {
        let mut lines = Lines { text, line: 0 };
        let mut header = TraceHeader::default();
        let version = lines.read(|line| {
            let known = FIRST_LINES.iter().find(|(first, _)| line == Some(*first));
            known.map(|(_, version)| *version).ok_or(Problem::Expected {
                expected: "# tenslab-trace,1` or `2",
            })
        })?;
        header.history = lines.read(|line| match line {
            Some("# history,on") => Ok(true),
            Some("# history,off") => Ok(false),
            _ => Err(Problem::Expected {
                expected: "history,on` or `off",
            }),
        })?;
        for (name, number) in numbers_mut(&mut header) {
            *number = lines.read(|line| {
                line.and_then(|line| line.strip_prefix("# ")?.strip_prefix(name))
                    .and_then(|rest| parsed(rest.strip_prefix(',')?))
                    .ok_or(Problem::Expected { expected: name })
            })?;
        }
        check_header(&header).map_err(|problem| TraceError {
            line: lines.line,
            problem,
        })?;
        lines.read(|line| match line {
            Some(line) if line.split(',').eq(COLUMNS) => Ok(()),
            _ => Err(Problem::Expected {
                expected: "number,thread,event,…",
            }),
        })?;
        let mut builder = Builder::new(header, version >= GROWTH_SINCE);
        while !lines.text.is_empty() {
            lines.read(|line| builder.add(Line::try_from(csv_row(line.unwrap_or(""))?)?))?;
        }
        builder.finish(lines.line)
    }

    /// Reads what [`write_json`](Recording::write_json) wrote.
    ///
    /// # Errors
    /// [`TraceError`] with what is wrong. The line is that of the text where a row alone
    /// is wrong; where rows contradict each other it is the row's own line as
    /// [`write_json`](Recording::write_json) sets them.
    pub fn from_json(text: &[u8]) -> Result<Recording, TraceError> {
        let document: Document = serde_json::from_slice(text).map_err(|error| TraceError {
            line: error.line().max(1),
            problem: Problem::Json(error.to_string()),
        })?;
        let header = document
            .header()
            .map_err(|problem| TraceError { line: 1, problem })?;
        let lines = document.lines;
        let mut builder = Builder::new(header, document.version >= GROWTH_SINCE);
        let last = lines.len() + 1;
        for (line, row) in (2..).zip(lines) {
            builder
                .add(row)
                .map_err(|problem| TraceError { line, problem })?;
        }
        builder.finish(last)
    }
}

/// The header's numbers, in the order of the file.
fn numbers(header: &TraceHeader) -> [(&'static str, u64); 6] {
    let mut copy = *header;
    numbers_mut(&mut copy).map(|(name, number)| (name, *number))
}

fn numbers_mut(header: &mut TraceHeader) -> [(&'static str, &mut u64); 6] {
    [
        ("seen_events", &mut header.seen_events),
        ("dropped_events", &mut header.dropped_events),
        ("events", &mut header.events),
        ("live_blocks", &mut header.live_blocks),
        ("live_untracked", &mut header.live_untracked),
        ("live_empty", &mut header.live_empty),
    ]
}

fn check_header(header: &TraceHeader) -> Result<(), Problem> {
    let seen = header.seen_events;
    let kept = seen.checked_sub(header.dropped_events);
    let expected = kept.ok_or(Problem::Number {
        expected: seen,
        found: header.dropped_events,
    })?;
    let found = header.events;
    // A snapshot without events has not lost them.
    if (found != expected && found != 0) || (!header.history && expected != 0) {
        return Err(Problem::Lines { expected, found });
    }
    Ok(())
}

fn cell(to: &mut impl Write, value: Option<impl std::fmt::Display>) -> io::Result<()> {
    match value {
        Some(value) => write!(to, "{value},"),
        None => to.write_all(b","),
    }
}

/// A number as we write it: digits alone, without a sign or a zero in front.
fn parsed<T: std::str::FromStr + ToString>(text: &str) -> Option<T> {
    let value: T = text.parse().ok()?;
    (value.to_string() == text).then_some(value)
}

/// What is left of a file, and which line was read last.
struct Lines<'a> {
    text: &'a [u8],
    line: usize,
}

impl<'a> Lines<'a> {
    /// Reads the next line; `None` where there is none.
    fn read<T>(
        &mut self,
        parse: impl FnOnce(Option<&'a str>) -> Result<T, Problem>,
    ) -> Result<T, TraceError> {
        self.line += 1;
        let text = self.text;
        let line = if text.is_empty() {
            Ok(None)
        } else {
            let end = text.iter().position(|&byte| byte == b'\n');
            self.text = &text[end.map_or(text.len(), |end| end + 1)..];
            str::from_utf8(&text[..end.unwrap_or(text.len())]).map(Some)
        };
        line.map_err(|_| Problem::NotText)
            .and_then(parse)
            .map_err(|problem| TraceError {
                line: self.line,
                problem,
            })
    }
}

fn csv_row(line: &str) -> Result<Row, Problem> {
    let mut cells = [""; COLUMNS.len()];
    let found = line.split(',').count();
    if found != cells.len() {
        return Err(Problem::Columns { found });
    }
    for (cell, text) in cells.iter_mut().zip(line.split(',')) {
        *cell = text;
    }
    let [
        number,
        thread,
        event,
        tag,
        bytes,
        align,
        zeroed,
        capacity,
        address,
        name,
    ] = cells;
    Ok(Row {
        number: parsed(number).ok_or(Problem::Value { column: "number" })?,
        thread: parsed(thread).ok_or(Problem::Value { column: "thread" })?,
        event: (RowKind::ALL.into_iter().find(|kind| kind.name() == event))
            .ok_or(Problem::Value { column: "event" })?,
        tag: optional(tag, "tag", |text| {
            Tag::ALL.into_iter().find(|tag| tag.name() == text)
        })?,
        bytes: optional(bytes, "bytes", parsed)?,
        align: optional(align, "align", parsed)?,
        zeroed: optional(zeroed, "zeroed", parsed)?,
        capacity: optional(capacity, "capacity", parsed)?,
        address: optional(address, "address", parsed)?,
        name: match event == RowKind::Mark.name() {
            // A mark may have the empty name.
            true => Some(name.to_owned()),
            false => optional(name, "name", |name| Some(name.to_owned()))?,
        },
    })
}

fn optional<T>(
    text: &str,
    column: &'static str,
    parse: impl FnOnce(&str) -> Option<T>,
) -> Result<Option<T>, Problem> {
    if text.is_empty() {
        return Ok(None);
    }
    parse(text).map(Some).ok_or(Problem::Value { column })
}

/// The header as JSON.
#[derive(Debug, Serialize)]
struct Head {
    format: &'static str,
    version: u32,
    history: bool,
    seen_events: u64,
    dropped_events: u64,
    events: u64,
    live_blocks: u64,
    live_untracked: u64,
    live_empty: u64,
}

/// All of it. The header's fields once more, because serde keeps no line numbers of what
/// it flattens.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    format: String,
    version: u32,
    history: bool,
    seen_events: u64,
    dropped_events: u64,
    events: u64,
    live_blocks: u64,
    live_untracked: u64,
    live_empty: u64,
    lines: Vec<Line>,
}

impl From<&TraceHeader> for Head {
    fn from(header: &TraceHeader) -> Self {
        Self {
            format: FORMAT,
            version: VERSION,
            history: header.history,
            seen_events: header.seen_events,
            dropped_events: header.dropped_events,
            events: header.events,
            live_blocks: header.live_blocks,
            live_untracked: header.live_untracked,
            live_empty: header.live_empty,
        }
    }
}

impl Document {
    fn header(&self) -> Result<TraceHeader, Problem> {
        let is_known = FIRST_LINES.iter().any(|(_, known)| *known == self.version);
        if self.format != FORMAT || !is_known {
            return Err(Problem::Expected {
                expected: "\"format\":\"tenslab-trace\",\"version\":1` or `2",
            });
        }
        let header = TraceHeader {
            history: self.history,
            seen_events: self.seen_events,
            dropped_events: self.dropped_events,
            events: self.events,
            live_blocks: self.live_blocks,
            live_untracked: self.live_untracked,
            live_empty: self.live_empty,
        };
        check_header(&header)?;
        Ok(header)
    }
}
