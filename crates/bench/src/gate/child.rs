//! A process under load, whose processor time and memory are its own.

use std::io::{BufRead as _, BufReader, Read};
use std::process::{Command, Stdio};

use crate::machine;

/// Where a process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// On a processor of its own.
    Alone,
    /// Where the kernel likes.
    Anywhere,
}

impl Place {
    /// The processor of the clients.
    pub(super) const CLIENTS: usize = 1;

    const fn processor(self) -> Option<usize> {
        match self {
            Self::Alone => Some(0),
            Self::Anywhere => None,
        }
    }
}

/// A running process; it ends with this value.
pub(super) struct Child {
    child: std::process::Child,
    pub(super) address: String,
}

impl Child {
    /// Starts a program that says its address on the first line of its output.
    pub(super) fn start(command: &Command, place: Place) -> Self {
        let mut command = placed(command, place);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the program starts");
        let address = said(child.stdout.take().expect("its output"), "");
        Self { child, address }
    }

    /// Starts a program that says its address, after these words, among its errors.
    pub(super) fn start_saying(command: &Command, place: Place, words: &'static str) -> Self {
        let mut command = placed(command, place);
        let mut child = command.stderr(Stdio::piped()).spawn().expect("the program starts");
        let address = said(child.stderr.take().expect("its errors"), words);
        Self { child, address }
    }

    /// Processor time so far, in microseconds.
    pub(super) fn cpu_micros(&self) -> f64 {
        machine::cpu_micros(self.child.id())
    }

    /// The most memory that was resident, in bytes.
    pub(super) fn peak(&self) -> u64 {
        machine::peak(self.child.id())
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn placed(command: &Command, place: Place) -> Command {
    let mut placed = match place.processor() {
        Some(processor) => {
            let mut taskset = Command::new("taskset");
            taskset.args(["--cpu-list", &processor.to_string()]).arg(command.get_program());
            taskset
        }
        None => Command::new(command.get_program()),
    };
    placed.args(command.get_args());
    for (name, value) in command.get_envs() {
        placed.env(name, value.unwrap_or_default());
    }
    placed.stdin(Stdio::null());
    placed
}

/// The word that follows these, in the first line that has them. The rest is read and forgotten.
fn said(from: impl Read + Send + 'static, words: &str) -> String {
    let mut lines = BufReader::new(from).lines().map_while(Result::ok);
    let address = lines.find_map(|line| {
        let (_, after) = line.split_once(words)?;
        after.split_whitespace().next().map(str::to_owned)
    });
    std::thread::spawn(move || lines.for_each(drop));
    address.expect("the program says its address")
}
