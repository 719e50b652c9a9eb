//! Reading a trace of requests.
//!
//! Two kinds of public serving traces, told apart by their first line:
//!
//! - **Mooncake** (`.jsonl`): a line for each request, with the prompt as ids of its
//!   512-token blocks. The same id is the same block after the same prefix, so prompts
//!   can share blocks. Read are `input_length` and `hash_ids`.
//! - **Azure** (`.csv`): when each request came, and how many tokens it had. There are no
//!   ids, so nothing can be shared; it shows how sequences come and go.
//!
//! A line that is not what it should be is an error with its number: a trace is replayed
//! whole or not at all.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::cli::text::wrapped;

/// Tokens of the prompt that one id of a Mooncake trace stands for.
const TOKENS_PER_ID: u64 = 512;

/// A longer line is no request.
const MAX_LINE_BYTES: u64 = 64 << 20;

/// The first line of an Azure trace.
const AZURE_HEADER: &str = "TIMESTAMP,ContextTokens,GeneratedTokens";

/// [`Arrival::at`] counts these: as fine as the traces write their times.
pub(super) const TICKS_PER_SECOND: u64 = 10_000_000;

/// How a trace is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Format {
    /// JSON lines with hash_ids of 512-token blocks
    Mooncake,
    /// CSV: TIMESTAMP,ContextTokens,GeneratedTokens
    Azure,
}

/// The requests of a trace, in file order. At least one.
#[derive(Debug)]
pub(super) enum Trace {
    Prompts(Prompts),
    Arrivals(Vec<Arrival>),
}

/// The blocks of many prompts, in one list.
#[derive(Debug, Default)]
pub(super) struct Prompts {
    ids: Vec<u64>,
    /// Where each prompt's ids end.
    ends: Vec<usize>,
}

impl Prompts {
    fn push(&mut self, ids: &[u64]) {
        self.ids.extend_from_slice(ids);
        self.ends.push(self.ids.len());
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Each prompt as the ids of its full blocks.
    pub(super) fn iter(&self) -> impl Iterator<Item = &[u64]> {
        let mut begin = 0;
        self.ends.iter().map(move |&end| {
            let prompt = &self.ids[begin..end];
            begin = end;
            prompt
        })
    }

    /// The largest id of all.
    pub(super) fn largest_id(&self) -> u64 {
        self.ids.iter().copied().max().unwrap_or(0)
    }
}

/// A request that comes at a time and has so many tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Arrival {
    /// Ticks since 1970; not before the request in front of it.
    pub(super) at: u64,
    pub(super) prompt_tokens: u32,
    pub(super) generated_tokens: u32,
}

/// Why a trace cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub(in crate::cli) enum TraceError {
    #[error("{}: cannot open: {error}", .path.display())]
    Open { path: PathBuf, error: io::Error },
    #[error("{}: cannot read line {line}: {error}", .path.display())]
    Read {
        path: PathBuf,
        line: u64,
        error: io::Error,
    },
    #[error("{}: line {line}: expected {}", .path.display(), .wrong.0)]
    Line {
        path: PathBuf,
        line: u64,
        wrong: Wrong,
    },
}

/// What was expected of a line, and what is there.
#[derive(Debug)]
pub(in crate::cli) struct Wrong(String);

impl Wrong {
    fn found(expected: impl std::fmt::Display, found: &[u8]) -> Self {
        // The beginning says enough; a binary file is one long line.
        let text = String::from_utf8_lossy(&found[..found.len().min(200)]);
        match wrapped(&text, 60)[0] {
            "" => Self(format!("{expected}, found an empty line")),
            start if start.len() < text.len() => Self(format!("{expected}, found {start}…")),
            start => Self(format!("{expected}, found {start}")),
        }
    }
}

/// Reads the trace at `path`, as `format` or as what its first line says it is.
pub(super) fn read(path: &Path, format: Option<Format>) -> Result<Trace, TraceError> {
    let file = File::open(path).map_err(|error| TraceError::Open {
        path: path.into(),
        error,
    })?;
    let mut lines = Lines::new(BufReader::new(file));
    parse(&mut lines, format).map_err(|stop| {
        let (path, line) = (path.into(), lines.number);
        match stop {
            Stop::Read(error) => TraceError::Read { path, line, error },
            Stop::Wrong(wrong) => TraceError::Line { path, line, wrong },
        }
    })
}

/// Why reading stops at a line.
enum Stop {
    Read(io::Error),
    Wrong(Wrong),
}

impl From<Wrong> for Stop {
    fn from(wrong: Wrong) -> Self {
        Self::Wrong(wrong)
    }
}

/// Lines and their numbers, through one buffer.
struct Lines<R> {
    from: R,
    line: Vec<u8>,
    /// Of the line that was read last, or that the file should have had.
    number: u64,
}

impl<R: BufRead> Lines<R> {
    fn new(from: R) -> Self {
        Self {
            from,
            line: Vec::new(),
            number: 0,
        }
    }

    /// The next line without its end, or `None` behind the last one.
    fn next(&mut self) -> Result<Option<&[u8]>, Stop> {
        self.number += 1;
        self.line.clear();
        let read = (&mut self.from)
            .take(MAX_LINE_BYTES)
            .read_until(b'\n', &mut self.line)
            .map_err(Stop::Read)?;
        if read as u64 == MAX_LINE_BYTES {
            let expected = format!("a line below {MAX_LINE_BYTES} bytes");
            return Err(Wrong::found(expected, &self.line).into());
        }
        let line = self.line.strip_suffix(b"\n").unwrap_or(&self.line);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        Ok((read > 0).then_some(line))
    }
}

fn parse(lines: &mut Lines<impl BufRead>, format: Option<Format>) -> Result<Trace, Stop> {
    let Some(first) = lines.next()? else {
        return Err(Wrong("a request, but the file is empty".into()).into());
    };
    let trimmed = first.trim_ascii();
    let format = match format {
        Some(format) => format,
        None if trimmed.starts_with(b"{") => Format::Mooncake,
        None if trimmed == AZURE_HEADER.as_bytes() => Format::Azure,
        None => {
            let expected = format!("a JSON object or the header {AZURE_HEADER}");
            return Err(Wrong::found(expected, first).into());
        }
    };
    match format {
        Format::Mooncake => parse_prompts(lines).map(Trace::Prompts),
        Format::Azure if trimmed != AZURE_HEADER.as_bytes() => {
            Err(Wrong::found(format!("the header {AZURE_HEADER}"), first).into())
        }
        Format::Azure => parse_arrivals(lines).map(Trace::Arrivals),
    }
}

/// What is read of a line of a Mooncake trace.
#[derive(Deserialize)]
struct MooncakeLine {
    input_length: u64,
    hash_ids: Vec<u64>,
}

/// All lines, beginning with the one that `lines` has read.
fn parse_prompts(lines: &mut Lines<impl BufRead>) -> Result<Prompts, Stop> {
    let mut prompts = Prompts::default();
    let mut line = lines.line.trim_ascii();
    loop {
        let request: MooncakeLine = serde_json::from_slice(line).map_err(|error| {
            // Its own position counts lines from this one.
            let text = error.to_string();
            let what = text.split(" at line ").next().unwrap_or(&text);
            let column = error.column();
            Wrong(format!(
                "a JSON object with input_length and hash_ids: {what} (column {column})"
            ))
        })?;
        let blocks = request.input_length / TOKENS_PER_ID;
        let expected = request.input_length.div_ceil(TOKENS_PER_ID);
        let found = request.hash_ids.len();
        if expected != found as u64 {
            let tokens = request.input_length;
            return Err(Wrong(format!(
                "{expected} hash_ids, one for each {TOKENS_PER_ID} of {tokens} tokens, found {found}"
            ))
            .into());
        }
        // At most as many as there are: the partial block at the end is nobody's to share.
        let blocks = usize::try_from(blocks).unwrap_or(found);
        prompts.push(&request.hash_ids[..blocks]);
        line = match lines.next()? {
            Some(next) => next,
            None => return Ok(prompts),
        };
    }
}

/// All lines behind the header.
fn parse_arrivals(lines: &mut Lines<impl BufRead>) -> Result<Vec<Arrival>, Stop> {
    let mut arrivals: Vec<Arrival> = Vec::new();
    while let Some(line) = lines.next()? {
        let arrival = parse_arrival(line)?;
        if arrivals.last().is_some_and(|last| arrival.at < last.at) {
            let expected = "a time that is not before that of the line above";
            return Err(Wrong::found(expected, line).into());
        }
        arrivals.push(arrival);
    }
    if arrivals.is_empty() {
        return Err(Wrong("a request, but there is only the header".into()).into());
    }
    Ok(arrivals)
}

fn parse_arrival(line: &[u8]) -> Result<Arrival, Wrong> {
    let text = std::str::from_utf8(line).unwrap_or("");
    let fields: Vec<&str> = text.split(',').collect();
    let &[at, prompt, generated] = &fields[..] else {
        return Err(Wrong::found(format!("three fields, {AZURE_HEADER}"), line));
    };
    let tokens = |name: &str, field: &str| {
        let wrong = || Wrong::found(format!("{name} as a number up to {}", u32::MAX), line);
        field.trim().parse::<u32>().map_err(|_| wrong())
    };
    Ok(Arrival {
        at: parse_time(at.trim()).ok_or_else(|| {
            Wrong::found("a time like 2023-11-16 18:17:03.9799600 from 1970 on", line)
        })?,
        prompt_tokens: tokens("ContextTokens", prompt)?,
        generated_tokens: tokens("GeneratedTokens", generated)?,
    })
}

/// `2023-11-16 18:17:03.9799600` in ticks since 1970. As written: no time zones.
fn parse_time(text: &str) -> Option<u64> {
    let (date, time) = text.split_once(' ')?;
    let (time, fraction) = time.split_once('.').unwrap_or((time, ""));
    let [year, month, day] = numbers(date, '-', [4, 2, 2])?;
    let [hour, minute, second] = numbers(time, ':', [2, 2, 2])?;
    let month_days = match month {
        2 => 28 + u64::from(is_leap(year)),
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return None,
    };
    let valid = year >= 1970
        && (1..=month_days).contains(&day)
        && hour < 24
        && minute < 60
        && second < 60
        && fraction.len() <= 7
        && fraction.bytes().all(|digit| digit.is_ascii_digit());
    if !valid {
        return None;
    }
    let seconds = ((days_before(year, month) + day - 1) * 24 + hour) * 3600 + minute * 60 + second;
    // Padded to seven digits, the fraction counts ticks.
    let ticks = format!("{fraction:0<7}").parse::<u64>().ok()?;
    Some(seconds * TICKS_PER_SECOND + ticks)
}

/// Three numbers of so many digits each.
fn numbers(text: &str, between: char, digits: [usize; 3]) -> Option<[u64; 3]> {
    let mut numbers = [0; 3];
    let mut fields = text.split(between);
    for (number, digits) in numbers.iter_mut().zip(digits) {
        let field = fields.next()?;
        if field.len() != digits || !field.bytes().all(|digit| digit.is_ascii_digit()) {
            return None;
        }
        *number = field.parse().ok()?;
    }
    fields.next().is_none().then_some(numbers)
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

/// Days from 1970 to the first of the month.
fn days_before(year: u64, month: u64) -> u64 {
    /// Days from March of the year 0 to 1970.
    const TO_1970: u64 = 719_468;
    // Counted in years that begin with March, so that the leap day is the last of its year
    // and the lengths of the months are a straight line: 153 days in five of them.
    let (year, month) = match month {
        1 | 2 => (year - 1, month + 9),
        _ => (year, month - 3),
    };
    let leap_days = year / 4 - year / 100 + year / 400;
    year * 365 + leap_days + (153 * month + 2) / 5 - TO_1970
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_count_ticks_since_1970() {
        assert_eq!(parse_time("1970-01-01 00:00:00"), Some(0));
        assert_eq!(parse_time("1970-01-01 00:00:00.0000001"), Some(1));
        let seconds = |text| parse_time(text).map(|ticks| ticks / TICKS_PER_SECOND);
        // From `date -u -d … +%s`.
        assert_eq!(seconds("2000-02-29 23:59:59"), Some(951_868_799));
        assert_eq!(seconds("2000-03-01 00:00:00.9999999"), Some(951_868_800));
        assert_eq!(seconds("2023-11-16 18:17:03.5"), Some(1_700_158_623));
        assert_eq!(seconds("2100-03-01 00:00:00"), Some(4_107_542_400));
        for wrong in [
            "",
            "1969-12-31 23:59:59",
            "2023-02-29 00:00:00",
            "2100-02-29 00:00:00",
            "2023-13-01 00:00:00",
            "2023-04-31 00:00:00",
            "2023-1-01 00:00:00",
            "2023-01-01 24:00:00",
            "2023-01-01 00:60:00",
            "2023-01-01 00:00:00.12345678",
            "2023-01-01 00:00:00.+5",
            "2023-01-01T00:00:00",
            "2023-01-01 00:00:00:00",
        ] {
            assert_eq!(parse_time(wrong), None, "{wrong}");
        }
    }
}
