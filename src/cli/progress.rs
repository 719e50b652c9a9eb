//! How far something is, on stderr where that is a terminal, and nowhere else.

use std::io::{self, IsTerminal};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Steps between two looks at whether to draw.
const LOOK_EVERY: usize = 64;

/// A bar that counts up to a number, and goes without a trace.
#[derive(Debug)]
pub(super) struct Progress(ProgressBar);

impl Progress {
    /// `all` of `what`, which is a word for many of them.
    pub(super) fn new(all: usize, what: &str) -> Self {
        let target = if io::stderr().is_terminal() {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        };
        let template = format!("{{bar:40}} {{pos}} of {{len}} {what}, {{eta}} left");
        let style = ProgressStyle::with_template(&template);
        Self(
            ProgressBar::with_draw_target(Some(all as u64), target)
                .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar())),
        )
    }

    /// `number` of them are through.
    pub(super) fn at(&self, number: usize) {
        if number.is_multiple_of(LOOK_EVERY) {
            self.0.set_position(number as u64);
        }
    }
}

impl Drop for Progress {
    /// The line is cleared, also where an error ends it.
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
