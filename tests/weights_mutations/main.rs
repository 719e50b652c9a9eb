//! Headers and indexes at random, broken in every way that we know, and what has to be said
//! of each: not only that nothing panics.
//!
//! ```text
//!  draft            a header that is fine: any names, dtypes, ranks, sizes, spellings
//!  fields ranges    kinds of mutations; each breaks one thing and says which
//!  text             `FormatFault` that is, with its names and numbers, or that the
//!                   file is read all the same
//! ```
//!
//! Each case also goes through the comparison with the reference reader, and takes no more
//! heap than a small multiple of its own bytes. Where mutations are drawn blindly,
//! `tests/weights_differential.rs` compares, and the fuzzers of `fuzz/`.

#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod draft;
mod fields;
#[path = "../heap_peak/mod.rs"]
mod heap_peak;
mod indexes;
mod ranges;
#[path = "../reference/mod.rs"]
mod reference;
mod text;

use std::cell::RefCell;
use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{TestCaseError, TestRunner};
use tenslab::weights::{FormatFault, Header, HeaderLimits};

use draft::{Dice, Draft, drafts};
use reference::{Answer, header};

/// Breaks a draft; `None` where there is nothing to break.
type Kind = fn(&Draft, &mut Dice) -> Option<Mutation>;

/// A file, and what has to be said of it.
type Mutation = (Vec<u8>, Expected);

enum Expected {
    /// It is read, and says this.
    Read(Draft),
    /// Exactly this fault.
    Fault(FormatFault),
    /// A fault like that.
    Like(&'static str, Box<dyn Fn(&FormatFault) -> bool>),
}

impl Expected {
    fn like(what: &'static str, is_so: impl Fn(&FormatFault) -> bool + 'static) -> Self {
        Self::Like(what, Box::new(is_so))
    }
}

/// Is this what is said of the file, by us and by the reference, in how much memory?
fn check(file: &[u8], expected: &Expected) -> Result<(), String> {
    let limits = HeaderLimits::default();
    let (held, result) = heap_peak::of(|| Header::from_bytes(file, &limits));
    if held > header::most_heap(file.len()) {
        return Err(format!("{held} bytes of heap for {} of file", file.len()));
    }
    let answer = header::compare(file)?;
    let is_read = matches!(answer, Answer::Accepted | Answer::OnlyOurs);
    match (&result, expected) {
        (Ok(header), Expected::Read(draft)) if is_read => draft.check(header),
        (Err(fault), Expected::Fault(wanted)) if fault == wanted => Ok(()),
        (Err(fault), Expected::Like(_, is_so)) if is_so(fault) => Ok(()),
        (result, Expected::Read(_)) => Err(format!("{result:.1000?} instead of what was written")),
        (result, Expected::Fault(wanted)) => Err(format!("{result:.1000?} instead of {wanted:?}")),
        (result, Expected::Like(what, _)) => Err(format!("{result:.1000?} instead of {what}")),
    }
}

#[test]
fn every_kind_of_mutation_gets_its_own_answer() {
    const CASES: u32 = if cfg!(tenslab_asan) { 60 } else { 400 };
    let kinds = || {
        let all = fields::KINDS.iter().chain(&ranges::KINDS);
        all.chain(&text::KINDS)
    };
    let tried = RefCell::new(BTreeMap::<&str, [u32; 2]>::new());
    let config = ProptestConfig {
        cases: CASES,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let result = TestRunner::new(config).run(&(drafts(), any::<u64>()), |(draft, seed)| {
        for (name, kind) in kinds() {
            let Some((file, expected)) = kind(&draft, &mut Dice(seed)) else {
                continue;
            };
            let is_refused = !matches!(expected, Expected::Read(_));
            tried.borrow_mut().entry(name).or_default()[usize::from(is_refused)] += 1;
            let problem = |problem| TestCaseError::fail(format!("{name}: {problem}"));
            check(&file, &expected).map_err(problem)?;
        }
        Ok(())
    });
    let tried = tried.into_inner();
    result.unwrap_or_else(|error| panic!("{error:.4000}"));
    for (name, _) in kinds() {
        let [read, refused] = tried.get(name).copied().unwrap_or_default();
        assert!(
            read + refused >= CASES / 8,
            "{name}: {read} read, {refused} refused"
        );
        let never_refused = ["nothing at all", "spaces", "a field that nobody knows"];
        assert!(
            never_refused.contains(name) || refused >= CASES / 20,
            "{name} is never refused"
        );
    }
}

#[test]
fn a_text_that_ends_anywhere_says_so() {
    let mut runner = TestRunner::deterministic();
    let mut cuts = 0;
    while cuts < 3_000 {
        let draft = drafts().new_tree(&mut runner).unwrap().current();
        let text = draft.pieces().0.text();
        if text.len() > 2_000 {
            continue;
        }
        for len in 0..text.len() {
            let file = draft::file(&text.as_bytes()[..len], draft.data_bytes);
            let problem = check(&file, &text::cut_after(&text, len)).err();
            assert_eq!(problem, None, "{:?}", &text.as_bytes()[..len]);
        }
        cuts += text.len();
    }
}

/// What costs the most heap for a byte of text, whole and without its end.
#[test]
fn the_most_expensive_headers_take_a_small_multiple_of_their_bytes() {
    let list =
        |entry: &dyn Fn(usize) -> String| (0..20_000).map(entry).collect::<Vec<_>>().join(",");
    let entry = |name: &str, shape: &str, tag: &str| {
        format!(r#""{name}":{{"dtype":"{tag}","shape":{shape},"data_offsets":[0,0]}}"#)
    };
    let texts = [
        format!(
            r#"{{"__metadata__":{{{}}}}}"#,
            list(&|at| format!(r#""{at:x}":"""#))
        ),
        format!(
            r#"{{"__metadata__":{{{}}}}}"#,
            list(&|at| format!(r#""\n{at}":"\n""#))
        ),
        format!("{{{}}}", list(&|at| entry(&format!("{at:x}"), "[0]", "U8"))),
        format!(
            "{{{}}}",
            list(&|at| entry(&format!("{at:x}"), "[0,0,0,0,0,0,0,0]", "U8"))
        ),
        format!(
            "{{{}}}",
            list(&|at| entry(&format!("\\u0061{at:x}"), "[]", ""))
        ),
        format!(r#"{{"x":{{"shape":[{}]}}}}"#, list(&|_| "0".into())),
        format!(r#"{{"x":{{"more":[{}]}}}}"#, list(&|_| "{}".into())),
        format!(r#"{{"{}":1}}"#, "\\u0000".repeat(100_000)),
        format!(r#"{{"x":{{"dtype":"{}"}}}}"#, "\\u0000".repeat(100_000)),
        format!(r#"{{"x":"{}"}}"#, "\\u0000".repeat(100_000)),
    ];
    let mut opened = 0;
    for text in texts {
        for len in [text.len(), text.len() - 1, text.len() / 2] {
            let mut end = len;
            while !text.is_char_boundary(end) {
                end -= 1;
            }
            let file = draft::file(&text.as_bytes()[..end], 0);
            let (held, result) =
                heap_peak::of(|| Header::from_bytes(&file, &HeaderLimits::default()));
            opened += usize::from(result.is_ok());
            let most = header::most_heap(file.len());
            assert!(held <= most, "{held} of {most} bytes for {:?}", &text[..60]);
            assert!(held >= file.len() - 8, "{held} bytes: nothing was counted");
            header::compare(&file).unwrap();
        }
    }
    assert_eq!(opened, 5);
}
