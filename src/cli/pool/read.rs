//! Reading a recorded trace.

use std::fs;
use std::path::Path;

use tenslab::memory::{Recording, TraceError, TraceProblem};

use super::Failure;
use crate::cli::text::wrapped;

/// The trace at `path`. It has events.
pub(super) fn read(path: &Path) -> Result<Recording, Failure> {
    let said = |what: String| Failure::Said(format!("{}: {what}", path.display()));
    let text = fs::read(path).map_err(|error| said(format!("cannot read: {error}")))?;
    let first = text.iter().find(|byte| !byte.is_ascii_whitespace());
    let recording = match first {
        None => return Err(said(format!("line 1: the file is empty{WANTED}"))),
        Some(b'{') => Recording::from_json(&text),
        Some(_) => Recording::from_csv(&text),
    };
    let recording = recording.map_err(|error| said(wrong(&error)))?;
    let header = recording.header();
    match (header.events, header.history) {
        (0, false) => Err(said(
            "no history was kept (line 2: history,off), so there is nothing to replay; record \
             with TraceLimits whose events are not 0"
                .into(),
        )),
        (0, true) if header.seen_events > 0 => Err(said(format!(
            "it has none of the {} events that were seen: a live_snapshot, or all were \
             overwritten; take Trace::snapshot",
            header.seen_events
        ))),
        (0, true) => Err(said(
            "nothing happened while it was recorded (line 3: seen_events,0); allocate through \
             the Trace before its snapshot"
                .into(),
        )),
        _ => Ok(recording),
    }
}

/// Behind what cannot be a trace at all.
const WANTED: &str = "; a trace is what Recording::write_csv or write_json writes (traces of \
                      requests are for tenslab replay)";

/// Where, what, and what to do.
fn wrong(error: &TraceError) -> String {
    let TraceError { line, problem } = error;
    let (problem, next) = match problem {
        // Its position is the line that stands in front, and a file can quote itself in it.
        TraceProblem::Json(text) => {
            let what = text.split(" at line ").next().unwrap_or(text);
            (wrapped(what, 200)[0].into(), WANTED)
        }
        TraceProblem::Expected { .. } | TraceProblem::NotText if *line == 1 => {
            (problem.to_string(), WANTED)
        }
        TraceProblem::Lines { .. } => (
            problem.to_string(),
            "; the file was cut or put together: write the recording again",
        ),
        _ => (
            problem.to_string(),
            "; correct the line, or write the recording again",
        ),
    };
    format!("line {line}: {problem}{next}")
}
