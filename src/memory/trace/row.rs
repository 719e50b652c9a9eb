//! One line of a trace's file, and everything that can be wrong with it.
//!
//! CSV and JSON have the same columns. A [`Row`] is what either of them says; it becomes
//! an event only if an allocator could have made it.

use serde::{Deserialize, Serialize};

use super::event::{Allocation, Event, EventKind, LiveBlock, Name};
use crate::memory::{AllocError, MAX_ALIGN, Request, Tag};

/// The columns, in their order.
pub(super) const COLUMNS: [&str; 10] = [
    "number", "thread", "event", "tag", "bytes", "align", "zeroed", "capacity", "address", "name",
];

/// A file that is no trace: where, and what is wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line} of the trace: {problem}")]
pub struct TraceError {
    /// The line, counted from 1.
    pub line: usize,
    /// What is wrong with it.
    pub problem: TraceProblem,
}

/// What is wrong with a line of a trace.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TraceProblem {
    /// It is no UTF-8.
    #[error("not UTF-8")]
    NotText,
    /// It is not what a trace has at this place.
    #[error("expected `{expected}`")]
    Expected {
        /// What belongs here.
        expected: &'static str,
    },
    /// It has another number of columns.
    #[error("{found} columns where {} belong", COLUMNS.len())]
    Columns {
        /// Columns found.
        found: usize,
    },
    /// A value is missing, or cannot be read.
    #[error("column `{column}` is missing or has no value that belongs there")]
    Value {
        /// The column.
        column: &'static str,
    },
    /// A value stands where this kind of event has none.
    #[error("column `{column}` has no place in this kind of event")]
    NoPlace {
        /// The column.
        column: &'static str,
    },
    /// No allocator could have been asked that.
    #[error("no request: {0}")]
    Request(AllocError),
    /// A block does not hold what was asked for.
    #[error("{bytes} bytes do not fit a capacity of {capacity}")]
    Capacity {
        /// Bytes asked for.
        bytes: usize,
        /// Bytes taken up.
        capacity: usize,
    },
    /// A block cannot be there.
    #[error("no block of {capacity} bytes, aligned to {align}, is at {address:#x}")]
    Address {
        /// Where it would be.
        address: usize,
        /// Bytes taken up.
        capacity: usize,
        /// Alignment asked for.
        align: usize,
    },
    /// The numbers of the events are not consecutive, or do not match the header.
    #[error("number {found} where {expected} belongs")]
    Number {
        /// What it would have to be.
        expected: u64,
        /// What it is.
        found: u64,
    },
    /// A block is allocated (or listed as live) at an address that is out.
    #[error("the block at {address:#x} is out already")]
    AlreadyOut {
        /// The address.
        address: usize,
    },
    /// A block that grew has fewer bytes than before.
    #[error("a block of {before} bytes grew to {bytes}")]
    Shrank {
        /// Bytes that it had.
        before: usize,
        /// Bytes that it has now.
        bytes: usize,
    },
    /// More events or blocks than the header says, or fewer.
    #[error("{found} events or live blocks where the header says {expected}")]
    Lines {
        /// What the header says.
        expected: u64,
        /// Found.
        found: u64,
    },
    /// It is no JSON of this kind.
    #[error("{0}")]
    Json(String),
}

use TraceProblem as Problem;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum RowKind {
    Allocate,
    Release,
    Grow,
    Refuse,
    Mark,
    Live,
}

impl RowKind {
    pub(super) const ALL: [RowKind; 6] = [
        RowKind::Allocate,
        RowKind::Release,
        RowKind::Grow,
        RowKind::Refuse,
        RowKind::Mark,
        RowKind::Live,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            RowKind::Allocate => "allocate",
            RowKind::Release => "release",
            RowKind::Grow => "grow",
            RowKind::Refuse => "refuse",
            RowKind::Mark => "mark",
            RowKind::Live => "live",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Row {
    pub(super) number: u64,
    pub(super) thread: u16,
    pub(super) event: RowKind,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) tag: Option<Tag>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) bytes: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) align: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) zeroed: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) capacity: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) address: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) name: Option<String>,
}

/// A row that makes sense.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Row")]
pub(super) enum Line {
    Event(Event),
    Live(LiveBlock),
}

fn value<T>(value: Option<T>, column: &'static str) -> Result<T, Problem> {
    value.ok_or(Problem::Value { column })
}

fn none<T>(value: Option<T>, column: &'static str) -> Result<(), Problem> {
    match value {
        Some(_) => Err(Problem::NoPlace { column }),
        None => Ok(()),
    }
}

/// Can a block of `capacity` bytes be at `address`?
fn check_place(address: usize, bytes: usize, capacity: usize, align: usize) -> Result<(), Problem> {
    if bytes > capacity {
        return Err(Problem::Capacity { bytes, capacity });
    }
    if address == 0 || !address.is_multiple_of(align) || address.checked_add(capacity).is_none() {
        return Err(Problem::Address {
            address,
            capacity,
            align,
        });
    }
    Ok(())
}

impl Row {
    fn request(&self) -> Result<Request, Problem> {
        let bytes = value(self.bytes, "bytes")?;
        let align = value(self.align, "align")?;
        if !align.is_power_of_two() || align > MAX_ALIGN {
            return Err(Problem::Value { column: "align" });
        }
        let request = Request::new(bytes, align)
            .map_err(Problem::Request)?
            .tagged(value(self.tag, "tag")?);
        Ok(if value(self.zeroed, "zeroed")? {
            request.zeroed()
        } else {
            request
        })
    }

    fn allocation(&self) -> Result<Allocation, Problem> {
        none(self.name.as_ref(), "name")?;
        let request = self.request()?;
        let capacity = value(self.capacity, "capacity")?;
        let address = value(self.address, "address")?;
        check_place(address, request.bytes(), capacity, request.align())?;
        Ok(Allocation {
            request,
            capacity,
            address,
        })
    }

    /// Tag, bytes, capacity and address of a block that was allocated before.
    fn known_block(&self) -> Result<(Tag, usize, usize, usize), Problem> {
        none(self.align, "align")?;
        none(self.zeroed, "zeroed")?;
        none(self.name.as_ref(), "name")?;
        let bytes = value(self.bytes, "bytes")?;
        let capacity = value(self.capacity, "capacity")?;
        let address = value(self.address, "address")?;
        check_place(address, bytes, capacity, 1)?;
        Ok((value(self.tag, "tag")?, bytes, capacity, address))
    }

    fn release(&self) -> Result<EventKind, Problem> {
        let (tag, bytes, capacity, address) = self.known_block()?;
        Ok(EventKind::Release {
            tag,
            bytes,
            capacity,
            address,
        })
    }

    fn grow(&self) -> Result<EventKind, Problem> {
        let (tag, bytes, capacity, address) = self.known_block()?;
        if bytes == 0 {
            return Err(Problem::Value { column: "bytes" });
        }
        // Else no request could ever ask for it.
        Request::new(bytes, 1).map_err(Problem::Request)?;
        Ok(EventKind::Grow {
            tag,
            bytes,
            capacity,
            address,
        })
    }

    fn refuse(&self) -> Result<EventKind, Problem> {
        none(self.capacity, "capacity")?;
        none(self.address, "address")?;
        none(self.name.as_ref(), "name")?;
        Ok(EventKind::Refuse(self.request()?))
    }

    fn mark(&self) -> Result<EventKind, Problem> {
        none(self.tag, "tag")?;
        none(self.bytes, "bytes")?;
        none(self.align, "align")?;
        none(self.zeroed, "zeroed")?;
        none(self.capacity, "capacity")?;
        none(self.address, "address")?;
        let name = value(self.name.as_ref(), "name")?;
        Ok(EventKind::Mark(value(Name::exactly(name), "name")?))
    }
}

impl TryFrom<Row> for Line {
    type Error = Problem;

    fn try_from(row: Row) -> Result<Self, Problem> {
        let (number, thread) = (row.number, row.thread);
        let kind = match row.event {
            RowKind::Live => {
                let allocation = row.allocation()?;
                if allocation.request.bytes() == 0 {
                    return Err(Problem::Value { column: "bytes" });
                }
                return Ok(Line::Live(LiveBlock {
                    number,
                    thread,
                    allocation,
                }));
            }
            RowKind::Allocate => EventKind::Allocate(row.allocation()?),
            RowKind::Release => row.release()?,
            RowKind::Grow => row.grow()?,
            RowKind::Refuse => row.refuse()?,
            RowKind::Mark => row.mark()?,
        };
        Ok(Line::Event(Event {
            number,
            thread,
            kind,
        }))
    }
}

fn row(number: u64, thread: u16, event: RowKind) -> Row {
    Row {
        number,
        thread,
        event,
        tag: None,
        bytes: None,
        align: None,
        zeroed: None,
        capacity: None,
        address: None,
        name: None,
    }
}

fn with_request(mut row: Row, request: &Request) -> Row {
    row.tag = Some(request.tag());
    row.bytes = Some(request.bytes());
    row.align = Some(request.align());
    row.zeroed = Some(request.is_zeroed());
    row
}

fn with_known_block(row: Row, (tag, bytes, capacity, address): (Tag, usize, usize, usize)) -> Row {
    Row {
        tag: Some(tag),
        bytes: Some(bytes),
        capacity: Some(capacity),
        address: Some(address),
        ..row
    }
}

fn with_allocation(row: Row, allocation: &Allocation) -> Row {
    let mut row = with_request(row, &allocation.request);
    row.capacity = Some(allocation.capacity);
    row.address = Some(allocation.address);
    row
}

impl From<&Event> for Row {
    fn from(event: &Event) -> Self {
        let row = |kind| row(event.number, event.thread, kind);
        match &event.kind {
            EventKind::Allocate(allocation) => with_allocation(row(RowKind::Allocate), allocation),
            EventKind::Refuse(request) => with_request(row(RowKind::Refuse), request),
            EventKind::Mark(name) => Row {
                name: Some(name.as_str().to_owned()),
                ..row(RowKind::Mark)
            },
            &EventKind::Release {
                tag,
                bytes,
                capacity,
                address,
            } => with_known_block(row(RowKind::Release), (tag, bytes, capacity, address)),
            &EventKind::Grow {
                tag,
                bytes,
                capacity,
                address,
            } => with_known_block(row(RowKind::Grow), (tag, bytes, capacity, address)),
        }
    }
}

impl From<&LiveBlock> for Row {
    fn from(block: &LiveBlock) -> Self {
        let row = row(block.number, block.thread, RowKind::Live);
        with_allocation(row, &block.allocation)
    }
}
