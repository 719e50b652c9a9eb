//! The pages that say which test keeps a promise name tests that exist.
//!
//! ```text
//!   ## Allocators                                docs/lessons.md, docs/spec.md, …
//!   Rows of `lessons/allocators.md`.             every row of that list has one here
//!   | # | … | tests |
//!   | 7 | … | `tests/slab.rs::one`, `…::two` |   each is there, and is a test
//!   | 8 | … | later: the pool |                  says that it has none yet
//!   | 9a | …   | 9b | …                          one row of the list, in parts
//! ```
//!
//! It reads every page in `docs/` and takes each table whose last column is headed *test* or *tests*.
//! The lists are in `../shared/lessons`, where that is beside the checkout: rows of a table
//! that begins with `#`, or paragraphs that begin with a number and a full stop. A list that
//! has neither is counted through: each row of a table, each bullet, each paragraph. What a
//! list reports by number, as `#24`, has to be named by a row too. A list that numbers each of
//! its parts anew is taken in parts, `lessons/kv.md#Complaints`, and then in all of them.
#![allow(clippy::unwrap_used, reason = "a test that fails should panic")]

mod shared_data;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// A row of a table of tests.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    /// The list that the rows of this section are from.
    list: Option<String>,
    /// The first cell.
    id: String,
    /// All cells.
    text: String,
    /// `file::name`, as they stand.
    tests: Vec<String>,
    /// Does it say that the test is still to come?
    later: bool,
}

/// The cells of a line of a table.
fn cells(line: &str) -> Option<Vec<&str>> {
    let inner = line.trim().strip_prefix('|')?.strip_suffix('|')?;
    Some(inner.split('|').map(str::trim).collect())
}

/// What stands in backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// The rows of all tables of tests of a page.
fn rows(page: &str) -> Vec<Row> {
    let mut rows = Vec::new();
    let (mut list, mut in_table) = (None, false);
    for line in page.lines() {
        if line.starts_with('#') {
            list = None;
        }
        let Some(cells) = cells(line) else {
            in_table = false;
            let named = quoted(line).find(|name| name.starts_with("lessons/"));
            list = named.map(str::to_owned).or(list);
            continue;
        };
        let last = *cells.last().unwrap();
        if last == "tests" || last == "test" {
            in_table = true;
        } else if in_table && !last.starts_with("---") {
            rows.push(Row {
                list: list.clone(),
                id: cells[0].to_owned(),
                text: line.to_owned(),
                tests: quoted(last).map(str::to_owned).collect(),
                later: last
                    .split([';', ','])
                    .any(|part| part.trim().starts_with("later:")),
            });
        }
    }
    rows
}

/// Why `file::name` is no test of this package.
fn missing(root: &Path, test: &str) -> Option<String> {
    let Some((file, name)) = test.split_once("::") else {
        return Some(format!("{test}: no `file::name`"));
    };
    let Ok(text) = fs::read_to_string(root.join(file)) else {
        return Some(format!("{test}: there is no {file}"));
    };
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let function = format!("fn {name}(");
    let Some(at) = lines.iter().position(|line| line.starts_with(&function)) else {
        return Some(format!("{test}: no such function in {file}"));
    };
    // A bench is a function, and a binary without a harness is one test.
    if file.starts_with("benches/") || name == "main" {
        return None;
    }
    let above = lines[..at].iter().rev();
    let attributes = above.take_while(|line| line.starts_with(['#', '/']));
    let is_test = attributes.into_iter().any(|line| *line == "#[test]");
    (!is_test).then(|| format!("{test}: a function, but no test"))
}

/// The part of a list whose heading begins so, with its heading.
fn part<'a>(list: &'a str, name: &str) -> Option<&'a str> {
    let starts = list.match_indices("\n## ").map(|(at, _)| at + 1);
    let mut parts = starts.map(|start| {
        let len = list[start..].find("\n## ");
        &list[start..len.map_or(list.len(), |len| start + len)]
    });
    parts.find(|part| part["## ".len()..].starts_with(name))
}

/// Parts of `list` that are not among those that a page has.
fn absent_parts(list_name: &str, list: &str, named: &BTreeSet<String>) -> Vec<String> {
    let names = named.iter().filter_map(|name| name.split_once('#'));
    let taken: Vec<&str> = names
        .filter(|(file, _)| *file == list_name)
        .map(|(_, part)| part)
        .collect();
    if taken.is_empty() {
        return Vec::new();
    }
    let headings = list.lines().filter_map(|line| line.strip_prefix("## "));
    headings
        .filter(|heading| !taken.iter().any(|name| heading.starts_with(name)))
        .map(|heading| format!("{list_name}: the part {heading} is missing"))
        .collect()
}

/// The numbers that a list gives its rows, if it does.
fn own_numbers(list: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut in_table = false;
    for line in list.lines() {
        let number = match cells(line) {
            Some(cells) => {
                in_table |= cells[0] == "#";
                in_table.then(|| cells[0].to_owned())
            }
            None => {
                in_table = false;
                line.split_once(". ").map(|(number, _)| number.to_owned())
            }
        };
        let is_number = |text: &String| text.bytes().all(|byte| byte.is_ascii_digit());
        found.extend(number.filter(|text| !text.is_empty() && is_number(text)));
    }
    found
}

/// How many rows of tables, bullets and paragraphs a list has behind its first heading. A
/// paragraph begins behind an empty line or a table, and where a line begins with a `**term**:`.
fn passages(list: &str) -> usize {
    let (mut found, mut in_table, mut in_text) = (0, false, false);
    for line in list.lines().skip_while(|line| !line.starts_with("## ")) {
        if let Some(cells) = cells(line) {
            // The first line of a table is its head, the second the rule below that.
            found += usize::from(in_table && !cells[0].starts_with("---"));
            (in_table, in_text) = (true, false);
            continue;
        }
        in_table = false;
        if line.trim().is_empty() || line.starts_with('#') {
            in_text = false;
        } else {
            let is_term = line.starts_with("**") && line.contains("**:");
            found += usize::from(!in_text || is_term || line.starts_with("- "));
            in_text = true;
        }
    }
    found
}

/// The reports that a text names: `#24`.
fn reports(text: &str) -> BTreeSet<&str> {
    let behind = text.match_indices('#').map(|(at, _)| &text[at..]);
    let reports = behind.map(|text| {
        let digits = text[1..].bytes().take_while(u8::is_ascii_digit).count();
        &text[..=digits]
    });
    reports.filter(|report| report.len() > 1).collect()
}

/// What is wrong with the rows of a page.
fn problems(root: &Path, rows: &[Row]) -> Vec<String> {
    let mut problems = Vec::new();
    for row in rows {
        if row.tests.is_empty() && !row.later {
            problems.push(format!("row {}: neither a test nor `later:`", row.id));
        }
        let wrong = row.tests.iter().filter_map(|test| missing(root, test));
        problems.extend(wrong.map(|why| format!("row {}: {why}", row.id)));
    }
    problems
}

/// Rows of `list` that `rows` do not have, and those that they have twice or make up.
fn uncovered(list_name: &str, list: &str, rows: &[Row]) -> Vec<String> {
    let of_list = rows
        .iter()
        .filter(|row| row.list.as_deref() == Some(list_name));
    let own = own_numbers(list);
    let is_counted = own.is_empty();
    let wanted = if is_counted {
        (1..=passages(list))
            .map(|number| number.to_string())
            .collect()
    } else {
        own
    };
    let (mut seen, mut ids, mut named) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    let mut problems = Vec::new();
    for row in of_list {
        // A row of the list in parts: 9a, 9b.
        let number = row
            .id
            .trim_end_matches(|last: char| last.is_ascii_lowercase());
        if !wanted.contains(number) || !ids.insert(row.id.clone()) {
            problems.push(format!("{list_name} has no second row {}", row.id));
        }
        seen.insert(number.to_owned());
        named.extend(reports(&row.text));
    }
    let absent = wanted.difference(&seen);
    problems.extend(absent.map(|id| format!("{list_name}: row {id} is missing")));
    for part in ids.iter().filter_map(|id| before(id)) {
        if !ids.contains(&part) {
            problems.push(format!("{list_name}: row {part} is missing"));
        }
    }
    if is_counted {
        let absent = reports(list)
            .into_iter()
            .filter(|report| !named.contains(report));
        problems.extend(absent.map(|report| format!("{list_name}: no row names {report}")));
    }
    problems
}

/// The part in front of this one: 9a of 9b.
fn before(id: &str) -> Option<String> {
    let last = id
        .chars()
        .last()
        .filter(|last| ('b'..='z').contains(last))?;
    let letter = char::from(u8::try_from(last).ok()? - 1);
    Some(format!("{}{letter}", &id[..id.len() - 1]))
}

fn pages() -> Vec<(String, Vec<Row>)> {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
    let mut pages = Vec::new();
    for entry in fs::read_dir(docs).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "md") {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            pages.push((name, rows(&fs::read_to_string(&path).unwrap())));
        }
    }
    pages
}

#[test]
fn every_test_that_a_page_names_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut wrong = Vec::new();
    for (page, rows) in pages() {
        assert!(
            page != "lessons.md" || rows.len() > 40,
            "{} rows",
            rows.len()
        );
        let of_contract = page.starts_with("spec");
        assert!(
            !of_contract || rows.len() > 20,
            "{page}: {} rows",
            rows.len()
        );
        let found = problems(root, &rows);
        wrong.extend(found.into_iter().map(|why| format!("docs/{page}, {why}")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn no_row_of_a_list_is_missing() {
    let mut lists = BTreeSet::new();
    for (page, rows) in pages() {
        for name in rows.iter().filter_map(|row| row.list.clone()) {
            if !lists.insert(name.clone()) {
                continue;
            }
            let (file, heading) = name.split_once('#').unwrap_or((&name, ""));
            let Some(path) = shared_data::shared(&format!("../{file}")) else {
                continue;
            };
            let list = fs::read_to_string(path).unwrap();
            let of_row = match heading {
                "" => &list,
                heading => part(&list, heading)
                    .unwrap_or_else(|| panic!("docs/{page}: {file} has no part {heading}")),
            };
            let mut wrong = uncovered(&name, of_row, &rows);
            let of_page = rows.iter().filter_map(|row| row.list.clone()).collect();
            wrong.extend(absent_parts(file, &list, &of_page));
            assert!(wrong.is_empty(), "docs/{page}: {}", wrong.join("\n"));
        }
    }
    let expected = [
        "lessons/allocators.md",
        "lessons/tensor.md",
        "lessons/kv.md#Complaints",
        "lessons/kv.md#Scenarios",
        "lessons/weights.md#Format rules",
        "lessons/weights.md#Public complaints",
        "lessons/weights.md#Measured I/O",
    ];
    assert!(
        expected.iter().all(|&name| lists.contains(name)),
        "{lists:?}"
    );
}

/// The checks themselves can fail.
#[test]
fn a_page_that_is_wrong_is_seen() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = "# A\nRows of `lessons/x.md`.\n\n| # | what | tests |\n|---|---|---|\n\
        | 1 | a | `tests/lessons.rs::a_page_that_is_wrong_is_seen` |\n\
        | 2 | b | later: the pool |\n\
        | 3 | c | soon |\n\
        | 4 | d | `tests/lessons.rs::rows`, `tests/lessons.rs::not_there` |\n\
        | 4 | e | `tests/nowhere.rs::a`, `tests/lessons.rs` |\n\n\
        | other | table |\n|---|---|\n| 9 | `x` |\n\n## B\n| id | test |\n|---|---|\n| s | soon |\n";
    let rows = rows(page);
    let ids: Vec<_> = rows.iter().map(|row| row.id.as_str()).collect();
    assert_eq!(ids, ["1", "2", "3", "4", "4", "s"]);
    assert_eq!(rows[0].list.as_deref(), Some("lessons/x.md"));
    assert_eq!(rows[5].list, None);
    assert_eq!(
        problems(root, &rows),
        [
            "row 3: neither a test nor `later:`",
            "row 4: tests/lessons.rs::rows: a function, but no test",
            "row 4: tests/lessons.rs::not_there: no such function in tests/lessons.rs",
            "row 4: tests/nowhere.rs::a: there is no tests/nowhere.rs",
            "row 4: tests/lessons.rs: no `file::name`",
            "row s: neither a test nor `later:`",
        ]
    );
    let numbered = "| # | a |\n|---|---|\n| 1 | x |\n| 3 | y |\n| 4 | z |\n\n| id | a |\n| 8 | n |\n\
        5. a paragraph\nnot. this\n";
    assert_eq!(
        uncovered("lessons/x.md", numbered, &rows),
        [
            "lessons/x.md has no second row 2",
            "lessons/x.md has no second row 4",
            "lessons/x.md: row 5 is missing",
        ]
    );
}

/// Nor can a list hide anything that gives its rows no numbers.
#[test]
fn a_list_without_numbers_is_counted_through() {
    let list = "# A list\nwhat stands here is about the list\n\n## Part\nOne, reported in #7\nand \
        **bold** text.\n\n| of | table |\n|---|---|\n| two | x |\n| three | y |\nFour.\n\
        - five,\nand more of it\n- six\n\n## Part\n**seven**: #24, #116\n**eight**: y\n";
    assert!(own_numbers(list).is_empty());
    assert_eq!(passages(list), 8);
    let page = |ids: &[&str]| {
        let head = "Rows of `lessons/x.md`.\n\n| # | tests |\n|---|---|\n".to_owned();
        let row = |id: &&str| format!("| {id} | later: all |\n");
        rows(&(head + &ids.iter().map(row).collect::<String>()))
    };
    let all = ["1", "2", "3", "4", "5", "6", "7a", "7b", "8"];
    let named = [
        "lessons/x.md: no row names #116",
        "lessons/x.md: no row names #24",
    ];
    let (report, missing) = ("lessons/x.md: no row names #7", "is missing");
    assert_eq!(
        uncovered("lessons/x.md", list, &page(&all)),
        [named[0], named[1], report]
    );
    for absent in 0..all.len() {
        let mut ids = all.to_vec();
        let id = ids.remove(absent);
        let found = uncovered("lessons/x.md", list, &page(&ids));
        // Of a row in parts the last one could be absent, but for what it names.
        let is_seen = found.contains(&format!("lessons/x.md: row {id} {missing}"));
        assert_eq!(is_seen, id != "7b", "{id}: {found:?}");
    }
    let beyond = uncovered("lessons/x.md", list, &page(&["9"]));
    assert_eq!(beyond[0], "lessons/x.md has no second row 9");
}

/// Nor can one that numbers its parts anew.
#[test]
fn a_list_in_parts_is_looked_through_part_by_part() {
    let list =
        "# A list\n## One, and more\n1. a\n2. b\n\n## Two\n1. c\n3. d\n\n## No numbers\n- e\n- f\n";
    let page = |named: &str, ids: &str| {
        let head = format!("Rows of `lessons/x.md#{named}`.\n\n| # | tests |\n|---|---|\n");
        let row = |id: char| format!("| {id} | later: all |\n");
        rows(&(head + &ids.chars().map(row).collect::<String>()))
    };
    let problems = |named: &str, ids: &str| {
        let name = format!("lessons/x.md#{named}");
        uncovered(&name, part(list, named).unwrap(), &page(named, ids))
    };
    assert_eq!(
        (problems("One", "12"), problems("Two", "13")),
        (vec![], vec![])
    );
    assert_eq!(problems("One", "1"), ["lessons/x.md#One: row 2 is missing"]);
    assert_eq!(problems("Two", "12").len(), 2);
    assert!(problems("No", "12").is_empty());
    assert_eq!(problems("No", "1"), ["lessons/x.md#No: row 2 is missing"]);
    assert_eq!(part(list, "Three"), None);

    let named = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
    let absent = |names: &[&str]| absent_parts("lessons/x.md", list, &named(names));
    assert!(absent(&["lessons/x.md#One", "lessons/x.md#Two", "lessons/x.md#No"]).is_empty());
    assert!(absent(&["lessons/x.md", "lessons/y.md#One"]).is_empty());
    let missing = ["lessons/x.md: the part One, and more is missing"];
    assert_eq!(absent(&["lessons/x.md#Two", "lessons/x.md#No"]), missing);
}
