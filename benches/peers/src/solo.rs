//! Measurements of the whole process, so each contender has one of its own: resident
//! memory, and what one thread sees while another gives a gibibyte back.
//!
//! ```text
//!   plan      Task × Who         ──▶ a process for each name
//!     the process: make the contender, do the task ──▶ Line { cell, contender, figures }
//!   plan      all lines of a task ──▶ one table
//! ```

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::contender::{Contender, Shape, check};
use crate::roster::Entrants;

/// Numbers by name. Each name ends in its unit: `_bytes`, `_ns`, `_ratio`, or nothing for
/// counts.
pub type Figures = BTreeMap<String, f64>;

/// What is measured of one contender in a process of its own.
pub trait Task {
    /// `held/random`.
    fn name(&self) -> String;

    /// What a contender has to be ready for.
    fn shape(&self) -> Shape;

    /// Makes the contender and measures it.
    fn measure<C: Contender>(&self, make: impl FnOnce() -> C) -> Figures;
}

/// What came out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// What was done: a task's name.
    pub cell: String,
    /// Who did it.
    pub contender: String,
    /// The numbers.
    #[serde(flatten)]
    pub figures: Figures,
}

/// Collects who signs up.
#[derive(Default)]
pub struct Names(pub Vec<&'static str>);

impl Entrants for Names {
    fn add<C>(&mut self, name: &'static str, _align: usize, _make: impl FnOnce(Shape) -> C)
    where
        C: Contender + Send + 'static,
    {
        self.0.push(name);
    }
}

/// Measures the one that has a name.
pub struct Only<'t, T> {
    /// What is measured.
    pub task: &'t T,
    /// Of whom.
    pub name: &'t str,
    /// What came out, once that one has signed up.
    pub line: Option<Line>,
}

impl<T: Task> Entrants for Only<'_, T> {
    fn add<C>(&mut self, name: &'static str, align: usize, make: impl FnOnce(Shape) -> C)
    where
        C: Contender + Send + 'static,
    {
        if name != self.name {
            return;
        }
        let shape = self.task.shape();
        let figures = self.task.measure(|| {
            let contender = make(shape);
            // Of one page: it is memory that is measured.
            let bytes = shape.bytes.min(crate::system::PAGE_BYTES);
            check(name, &contender, Shape { bytes, ..shape }, align);
            contender
        });
        self.line = Some(Line {
            cell: self.task.name(),
            contender: name.to_owned(),
            figures,
        });
    }
}
