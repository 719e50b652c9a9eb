//! What is written down and read back, and what is refused.

use tenslab::memory::{Recording, Simulated, Tag, TraceProblem};

use super::probe::Dice;
use super::{BLOCK, csv, json, limits, traced, work};

#[test]
fn a_recording_survives_both_files_and_each_is_the_same_every_time() {
    for (seed, limits) in [
        (1, limits(10_000, 1000)),
        (2, limits(300, 1000)),
        (3, limits(0, 5)),
    ] {
        let (trace, handle) = traced(limits);
        let _kept: Vec<_> = (1..9)
            .map(|bytes| handle.allocate(bytes, 8).unwrap())
            .collect();
        work(&trace, &handle, seed, 2000);
        for recording in [trace.snapshot(), trace.live_snapshot()] {
            let (csv_text, json_text) = (csv(&recording), json(&recording));
            assert_eq!(
                Recording::from_csv(csv_text.as_bytes()).as_ref(),
                Ok(&recording)
            );
            assert_eq!(
                Recording::from_json(json_text.as_bytes()).as_ref(),
                Ok(&recording)
            );
            assert_eq!(csv(&recording.clone()), csv_text);
            assert_eq!(json(&recording.clone()), json_text);
            // JSON for everybody else, too.
            let value: serde_json::Value = serde_json::from_str(&json_text).unwrap();
            assert_eq!(value["seen_events"], recording.header().seen_events);
            let rows = recording.events().len() + recording.live().len();
            assert_eq!(value["lines"].as_array().unwrap().len(), rows);
        }
    }
}

#[test]
fn the_file_looks_as_the_docs_say() {
    let text = "# tenslab-trace,2\n# history,on\n# seen_events,4\n# dropped_events,0\n\
        # events,4\n# live_blocks,0\n# live_untracked,0\n# live_empty,0\n\
        number,thread,event,tag,bytes,align,zeroed,capacity,address,name\n\
        0,0,allocate,kv,1000,64,false,4096,139637976727552,\n\
        1,0,grow,kv,5000,,,8192,139637976727552,\n\
        2,0,release,kv,5000,,,8192,139637976727552,\n\
        3,0,mark,,,,,,,decode\n";
    let recording = Recording::from_csv(text.as_bytes()).unwrap();
    assert_eq!(csv(&recording), text);
    assert_eq!(recording.events().len(), 4);
}

/// Every kind of wrong line is refused with its number and its reason.
#[test]
fn a_file_that_is_no_trace_is_refused_with_the_line() {
    let (trace, handle) = traced(limits(100, 10));
    let _kept = handle.with_tag(Tag::Kv).allocate(100, 64).unwrap();
    let _other = handle.allocate(100, 64).unwrap();
    drop(handle.allocate(7, 1).unwrap());
    trace.mark("m");
    assert!(handle.allocate(BLOCK + 1, 1).is_err());
    let good = csv(&trace.snapshot());
    let lines: Vec<_> = good.lines().collect();
    assert_eq!(lines.len(), 9 + 6 + 2);

    let with = |line: usize, text: &str| {
        let mut changed = lines.clone();
        changed[line - 1] = text;
        Recording::from_csv(changed.join("\n").as_bytes()).unwrap_err()
    };
    // Line by line: each header, then events 0 to 5 on lines 10 to 15, live on 16 and 17.
    for (line, text) in [
        (1, "# tenslab-trace,3"),
        (1, ""),
        (2, "# history,maybe"),
        (3, "# seen_events,-1"),
        (3, "# seen_events,006"),
        (3, "# seen_events,99999999999999999999"),
        (4, "# dropped,0"),
        (7, "# live_untracked,"),
        (8, "# live_empty,0x0"),
        (8, "# dropped_events,0"),
        (
            7,
            "number,thread,event,tag,bytes,align,zeroed,capacity,address",
        ),
        (10, ""),
        (10, "0,0,allocate"),
        (10, "0,0,allocate,kv,100,64,false,4096,4096,,"),
        (10, "0,0,conjure,kv,100,64,false,4096,4096,"),
        (10, "0,0,allocate,pudding,100,64,false,4096,4096,"),
        (10, "0,0,allocate,,100,64,false,4096,4096,"),
        (10, "0,0,allocate,kv,100,63,false,4096,4096,"),
        (10, "0,0,allocate,kv,100,0,false,4096,4096,"),
        (10, "0,0,allocate,kv,100,2147483648,false,4096,4294967296,"),
        (10, "0,0,allocate,kv,100,64,perhaps,4096,4096,"),
        (10, "0,0,allocate,kv,100,64,false,99,4096,"),
        (10, "0,0,allocate,kv,100,64,false,4096,4097,"),
        (10, "0,0,allocate,kv,100,64,false,4096,0,"),
        (
            10,
            "0,0,allocate,kv,100,64,false,4096,18446744073709551552,",
        ),
        (
            8,
            "0,0,allocate,kv,18446744073709551615,64,false,18446744073709551615,4096,",
        ),
        (10, "0,0,allocate,kv,100,64,false,4096,4096,named"),
        (10, "0,0,allocate,kv, 100,64,false,4096,4096,"),
        (10, "0,0,allocate,kv,+100,64,false,4096,4096,"),
        (10, "1,0,allocate,kv,100,64,false,4096,4096,"),
        (10, "0,70000,allocate,kv,100,64,false,4096,4096,"),
        (10, "0,0,mark,,,,,,,a\"quote"),
        (10, "0,0,mark,,,,,,,more than 23 bytes of a name"),
        (10, "0,0,mark,kv,,,,,,m"),
        (10, "0,0,release,kv,100,64,,4096,4096,"),
        (10, "0,0,release,kv,100,,,,4096,"),
        (10, "0,0,grow,kv,100,64,,4096,4096,"),
        (10, "0,0,grow,kv,100,,false,4096,4096,"),
        (10, "0,0,grow,kv,100,,,99,4096,"),
        (10, "0,0,grow,kv,100,,,4096,0,"),
        (10, "0,0,grow,kv,100,,,4096,,"),
        (10, "0,0,grow,,100,,,4096,4096,"),
        (10, "0,0,grow,kv,0,,,4096,4096,"),
        (
            10,
            "0,0,grow,kv,9223372036854775808,,,9223372036854775808,4096,",
        ),
        (10, "0,0,grow,kv,100,,,4096,4096,named"),
        (10, "0,0,refuse,kv,100,64,false,4096,4096,"),
        (10, "0,0,refuse,kv,100,64,,,,"),
        (11, lines[9]),
        (16, "0,0,live,kv,0,64,false,4096,4096,"),
        (16, "6,0,live,kv,100,64,false,4096,4096,"),
        (17, lines[15]),
        (17, "5,0,refuse,kv,100,64,false,,,"),
    ] {
        assert_eq!(with(line, text).line, line, "{text}: {}", with(line, text));
    }
    // Numbers that contradict each other, or what follows: seen at the end of either.
    for (line, text, seen_at) in [
        (4, "# dropped_events,7", 8),
        (4, "# dropped_events,1", 8),
        (5, "# events,5", 8),
        (6, "# live_blocks,3", 17),
        (5, "# events,0", 17),
    ] {
        assert_eq!(with(line, text).line, seen_at, "{text}");
    }
    // The same addresses twice.
    let address = lines[9].rsplit(',').nth(1).unwrap();
    let twice = with(11, &format!("1,0,allocate,kv,100,64,false,4096,{address},"));
    assert_eq!(twice.line, 11);
    assert!(matches!(twice.problem, TraceProblem::AlreadyOut { .. }));
    // Not text at all.
    let mut bytes = good.clone().into_bytes();
    let place = good.find("refuse").unwrap();
    bytes[place] = 0xff;
    let error = Recording::from_csv(&bytes).unwrap_err();
    assert_eq!((error.line, error.problem), (15, TraceProblem::NotText));
    // Cut off: after every line, and in the middle of each.
    for end in 0..good.len() - 1 {
        let cut = Recording::from_csv(&good.as_bytes()[..end]);
        assert!(cut.is_err(), "{end} bytes: {cut:?}");
    }
}

/// Whatever one byte of a good file becomes, the reader answers and never panics, and
/// what it accepts, it writes back so that it is read as the same.
#[test]
fn a_damaged_file_never_panics_and_never_lies() {
    let (trace, handle) = traced(limits(20, 10));
    let _kept = handle.allocate(100, 64).unwrap();
    work(&trace, &handle, 5, 40);
    let recording = trace.snapshot();
    let mut dice = Dice(9);
    let mut refused = 0;
    for good in [csv(&recording), json(&recording)] {
        for _ in 0..4000 {
            let mut bytes = good.clone().into_bytes();
            for _ in 0..=dice.below(3) {
                let place = dice.below(bytes.len());
                match dice.below(3) {
                    0 => bytes[place] = u8::try_from(dice.below(256)).unwrap(),
                    1 => drop(bytes.remove(place)),
                    _ => bytes.insert(place, b"0123456789,\n\"{"[dice.below(14)]),
                }
            }
            let read = [Recording::from_csv(&bytes), Recording::from_json(&bytes)];
            let lines = bytes.iter().filter(|&&byte| byte == b'\n').count();
            for result in read {
                match result {
                    Ok(read) => {
                        assert_eq!(Recording::from_csv(csv(&read).as_bytes()).unwrap(), read);
                        assert_eq!(Recording::from_json(json(&read).as_bytes()).unwrap(), read);
                        let report = read.simulate(&Simulated::new(1 << 46));
                        assert_eq!(report.misplaced, 0);
                    }
                    Err(error) => {
                        refused += 1;
                        assert!((1..=lines + 2).contains(&error.line), "{error}");
                    }
                }
            }
        }
    }
    assert!(
        refused > 8000 + 4000,
        "{refused}: each file is wrong in the other format"
    );
}
