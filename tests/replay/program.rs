//! What the program prints, refuses and survives.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use super::TOOL;

/// A trace file, gone with its folder.
pub(crate) struct Written {
    _folder: tempfile::TempDir,
    pub(crate) path: PathBuf,
}

pub(crate) fn written(contents: impl AsRef<[u8]>) -> Written {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace");
    std::fs::write(&path, contents).unwrap();
    Written {
        _folder: folder,
        path,
    }
}

/// A line of a Mooncake trace with those full blocks.
pub(crate) fn line(ids: &[u64]) -> String {
    let tokens = ids.len() * 512;
    format!(
        "{{\"timestamp\": 0, \"input_length\": {tokens}, \"output_length\": 1, \"hash_ids\": {ids:?}}}\n"
    )
}

const AZURE: &str = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n\
                     2023-11-16 18:17:03.9799600,20,50\r\n\
                     2023-11-16 18:17:04.4799600,15,30\r\n\
                     2023-11-16 18:17:04.9799600,16,0";

#[test]
fn the_kind_of_a_trace_is_seen_and_can_be_forced() {
    let prompts = written(line(&[1, 2]) + &line(&[]));
    let arrivals = written(AZURE);
    let blocks = ["--blocks", "8"];
    let report = TOOL.answer(&prompts.path, &blocks);
    assert_eq!(report["format"], "mooncake");
    assert_eq!(
        (&report["requests"], &report["blocks"]),
        (&2.into(), &2.into())
    );
    let report = TOOL.answer(&arrivals.path, &blocks);
    assert_eq!(report["format"], "azure");
    // 70, 45 and 16 tokens, and the first one goes before the third one comes.
    assert_eq!(
        (&report["requests"], &report["blocks"]),
        (&3.into(), &9.into())
    );
    assert_eq!(report["peak_pinned"], 5 + 3);
    assert_eq!(report["peak_sequences"], 2);
    assert_eq!(
        report["finished_early"], 0,
        "frees before allocations at a tie"
    );
    assert_eq!(report["waste"], 13.0 / 144.0);

    let forced = |path, format| [TOOL.refusal(path, &["--blocks", "8", "--format", format])];
    let [text] = forced(&prompts.path, "azure");
    assert!(
        text.contains("line 1: expected the header TIMESTAMP,"),
        "{text}"
    );
    let [text] = forced(&arrivals.path, "mooncake");
    assert!(
        text.contains("line 1: expected a JSON object with"),
        "{text}"
    );
}

#[test]
fn a_wrong_line_is_named_with_what_was_expected() {
    let good = line(&[1, 2]);
    let row = |row: &str| format!("{AZURE}\n{row}\n");
    let json = "a JSON object with input_length and hash_ids";
    let cases: [(String, String); 16] = [
        (String::new(), "line 1: expected a request, but the file is empty".into()),
        ("\n".into(), "line 1: expected a JSON object or the header TIMESTAMP,ContextTokens,GeneratedTokens, found an empty line".into()),
        ("\0\x1b[2J".into(), r"found \u{0}\u{1b}[2J".into()),
        ("x".repeat(1000), format!("found {}…", "x".repeat(60))),
        (format!("{good}{{\n"), format!("line 2: expected {json}: EOF while parsing an object (column 1)")),
        (format!("{good}{good}\n"), format!("line 3: expected {json}: EOF while parsing a value (column 0)")),
        (good.replace("hash_ids", "hashes"), format!("line 1: expected {json}: missing field `hash_ids`")),
        (good.replace("[1,", "[-1,"), format!("line 1: expected {json}: invalid value: integer `-1`, expected u64")),
        (good.replace("1024", "1025"), "line 1: expected 3 hash_ids, one for each 512 of 1025 tokens, found 2".into()),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n".into(), "line 2: expected a request, but there is only the header".into()),
        (row("2023-11-16 18:17:05,1"), "line 5: expected three fields, TIMESTAMP,ContextTokens,GeneratedTokens, found 2023-11-16 18:17:05,1".into()),
        (row("yesterday,1,1"), "line 5: expected a time like 2023-11-16 18:17:03.9799600 from 1970 on, found yesterday,1,1".into()),
        (row("2023-11-16 18:17:05,-1,1"), "line 5: expected ContextTokens as a number up to 4294967295, found".into()),
        (row("2023-11-16 18:17:05,1,4294967296"), "line 5: expected GeneratedTokens as a number up to 4294967295".into()),
        (row("2023-11-16 18:17:04,1,1"), "line 5: expected a time that is not before that of the line above".into()),
        (row(""), "line 5: expected three fields".into()),
    ];
    for (contents, expected) in cases {
        let trace = written(&contents);
        let text = TOOL.refusal(&trace.path, &["--blocks", "8"]);
        assert!(text.contains(&expected), "{text}\nand not\n{expected}");
        assert!(text.starts_with(trace.path.to_str().unwrap()), "{text}");
    }
    let trace = written([good.as_bytes(), b"\xff\xfe\n"].concat());
    let text = TOOL.refusal(&trace.path, &["--blocks", "8"]);
    assert!(text.contains("line 2: expected"), "{text}");
}

#[test]
fn what_cannot_be_replayed_is_one_line_and_exit_code_2() {
    let folder = tempfile::tempdir().unwrap();
    let text = TOOL.refusal(&folder.path().join("nowhere"), &["--blocks", "8"]);
    assert!(
        text.contains("nowhere: cannot open: No such file"),
        "{text}"
    );
    let text = TOOL.refusal(folder.path(), &["--blocks", "8"]);
    assert!(text.contains("cannot read line 1: "), "{text}");

    let prompts = written(line(&[1, 1 << 32]));
    let refused = |flags: &[&str]| TOOL.refusal(&prompts.path, flags);
    let text = refused(&["--blocks", "0"]);
    assert_eq!(text, "blocks must be at least 1");
    let text = refused(&["--blocks", "8", "--block-tokens", "0"]);
    assert_eq!(text, "block_tokens must be at least 1");
    let text = refused(&["--blocks", "8", "--in-flight", "0"]);
    assert_eq!(text, "--in-flight must be at least 1");
    let text = refused(&["--blocks", "8", "--block-tokens", "1"]);
    assert!(
        text.starts_with("hash id 4294967296 needs --block-tokens"),
        "{text}"
    );
    let huge = usize::MAX.to_string();
    for size in [["--blocks", &huge], ["--block-tokens", &huge]] {
        let text = refused(
            &[
                &size[..],
                &["--blocks", "8"][..2 * usize::from(size[0] != "--blocks")],
            ]
            .concat(),
        );
        assert!(text.contains(&huge), "{text}");
    }

    let arrivals = written(AZURE);
    let text = TOOL.refusal(&arrivals.path, &["--blocks", "8", "--in-flight", "2"]);
    assert!(
        text.starts_with("--in-flight is not for an Azure trace"),
        "{text}"
    );

    for flags in [
        &[][..],
        &["--blocks", "many"],
        &["--blocks", "8", "--policy", "mru"],
    ] {
        let output = TOOL.output(&prompts.path, flags);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
    }
}

#[test]
fn requests_larger_than_the_cache_pass_by() {
    // The second would need five blocks, and the numbers of tokens are beyond memory.
    let prompts = written(line(&[1, 2]) + &line(&[1, 2, 3, 4, 5]) + &line(&[6]));
    let report = TOOL.answer(&prompts.path, &["--blocks", "4"]);
    assert_eq!(report["bypassed"], 1);
    assert_eq!(report["blocks"], 8);
    assert_eq!(report["hits"], 0);
    let huge = u32::MAX;
    let arrivals = written(format!("{AZURE}\n2023-11-16 18:17:05,{huge},{huge}"));
    let report = TOOL.answer(&arrivals.path, &["--blocks", "8"]);
    assert_eq!(report["bypassed"], 1);
    assert_eq!(report["blocks"], 9 + (u64::from(huge) * 2).div_ceil(16));
    assert_eq!(report["peak_pinned"], 8);
}

#[test]
fn the_object_has_the_numbers() {
    // Block 1 is found once; one idle block makes room for the last of the six.
    let prompts = written(line(&[1, 2]) + &line(&[1, 3]) + &line(&[4, 5]));
    let report = TOOL.answer(&prompts.path, &["--blocks", "4"]);
    let numbers = [
        ("capacity", 4),
        ("block_tokens", 16),
        ("in_flight", 1),
        ("requests", 3),
        ("blocks", 6),
        ("hits", 1),
        ("allocations", 5),
        ("evictions", 1),
        // Two bytes for the key and two for the value of a token.
        ("region_bytes", 4 * 16 * 4),
    ];
    for (name, number) in numbers {
        assert_eq!(report[name], number, "{name} of {report}");
    }
    assert_eq!(report["policy"], "lru");
    assert_eq!(report["hit_rate"], 1.0 / 6.0);
    assert!(report["ns_per_block"].as_f64().unwrap() > 0.0, "{report}");
}

#[test]
fn the_page_has_the_numbers_and_a_chart_in_80_columns() {
    let lines: String = (0..500)
        .map(|id| line(&[0, id * 2 + 1, id * 2 + 2]))
        .collect();
    let prompts = written(lines);
    let page = TOOL.page(&prompts.path, &["--blocks", "123456", "--in-flight", "8"]);
    let has = |row: &str| {
        let words: Vec<&str> = row.split(' ').collect();
        let found = page.lines().any(|line| {
            line.split_whitespace()
                .collect::<Vec<_>>()
                .starts_with(&words)
        });
        assert!(found, "no {row:?} in\n{page}");
    };
    has("cache: 123456 blocks of 16 tokens, lru; 8 in flight");
    has("requests 500");
    has("blocks 1500");
    has("peak sequences 8");
    // All but the first request find the block that all begin with.
    has("hits 499 33.27 %");
    has("evicted 0");
    has("waste 0.00 %");
    has("region 7.54 MiB");
    has("heap blocks 0.00");
    let time = page
        .lines()
        .find_map(|line| line.strip_prefix("time per block visit"));
    let words: Vec<&str> = time.unwrap().split_whitespace().take(2).collect();
    assert!(
        words[0].parse::<f64>().unwrap() > 0.0 && words[1] == "ns",
        "{page}"
    );
    has("123456 |");
    has("requests 1 to 500");
    for line in page.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let prompts = written(line(&[1]));
    for flags in [&["--blocks", "8"][..], &["--blocks", "8", "--json"]] {
        TOOL.outlives_its_reader(&prompts.path, flags);
    }
}

/// It dies of the signal, and no half of an answer is there. Not Ctrl-C's own, whose default is
/// the same: a shell has its background jobs ignore that one, and children inherit it.
#[cfg(target_os = "linux")]
#[test]
fn stopped_halfway_it_has_said_nothing() {
    use std::os::unix::process::ExitStatusExt;

    use rustix::process::{Pid, Signal, kill_process};

    let mut child = TOOL
        .command(Path::new("/dev/stdin"), &["--blocks", "8", "--json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // More than a pipe holds: when it is written, the program is reading.
    let mut stdin = child.stdin.take().unwrap();
    stdin
        .write_all(line(&[1, 2, 3]).repeat(4000).as_bytes())
        .unwrap();
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.signal(), Some(Signal::TERM.as_raw()));
    assert!(
        output.stdout.is_empty() && output.stderr.is_empty(),
        "{output:?}"
    );
}
