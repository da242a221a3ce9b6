//! Whether a person agrees to a change.

use std::io::{BufRead as _, IsTerminal as _};

use crate::fault::{Class, Fault};

/// Asks, unless `yes` was said on the command line; a script cannot be asked.
pub(crate) fn obtain(yes: bool) -> Result<(), Fault> {
    if yes || is_confirmed() {
        return Ok(());
    }
    Err(Fault::new(Class::Config, "nobody confirmed the change").help("pass --yes"))
}

/// Whether there is somebody to ask.
pub(crate) fn can_ask() -> bool {
    std::io::stdin().is_terminal()
}

fn is_confirmed() -> bool {
    if !can_ask() {
        return false;
    }
    eprint!("go on? [y/N] ");
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer).is_ok() && answer.trim().eq_ignore_ascii_case("y")
}
