//! A terminal for a program that is tested: what it shows there, and how it counts up.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

const COLUMNS: u16 = 80;

/// The two ends of a terminal: what a person has, and what the program has.
pub(crate) fn terminal() -> (File, File) {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&ours).unwrap();
    unlockpt(&ours).unwrap();
    let size = Winsize {
        ws_row: 24,
        ws_col: COLUMNS,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    tcsetwinsize(&ours, size).unwrap();
    let path = ptsname(&ours, Vec::new()).unwrap();
    let theirs = OpenOptions::new()
        .read(true)
        .write(true)
        .open(path.to_str().unwrap())
        .unwrap();
    (File::from(ours), theirs)
}

/// All that came, once nobody has the other end any more, of which Linux makes an error.
pub(crate) fn screen(mut ours: File) -> String {
    let mut shown = Vec::new();
    let mut piece = [0; 4096];
    loop {
        match ours.read(&mut piece) {
            Ok(0) => break,
            Ok(bytes) => shown.extend(&piece[..bytes]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    String::from_utf8(shown).unwrap()
}

/// What is through, and `all` of it, was shown in its order, and the line is gone in the end.
#[track_caller]
pub(crate) fn assert_counts_up(shown: &str, what: &str, all: usize) {
    let words: Vec<&str> = shown.split_whitespace().collect();
    let what_follows = format!("{what},");
    let counts: Vec<(usize, usize)> = words
        .windows(4)
        .filter(|four| four[1] == "of" && four[3] == what_follows)
        .map(|four| (four[0].parse().unwrap(), four[2].parse().unwrap()))
        .collect();
    assert!(!counts.is_empty(), "{shown:?}");
    assert!(counts.is_sorted(), "{shown:?}");
    for (through, of) in counts {
        assert!(through <= of && of == all, "{shown:?}");
    }
    // Cursor to the start of the line, and the rest of it erased.
    let (_, last) = shown.rsplit_once('\r').unwrap();
    assert!(!last.contains(what), "{shown:?}");
}
