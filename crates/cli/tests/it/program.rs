//! Running the program and other programs.

use std::ffi::OsStr;
use std::io::Write as _;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// What a run left behind.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    fn of(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// The same, if it ended with this exit code.
    #[track_caller]
    pub(crate) fn exits(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self:#?}");
        self
    }

    /// Standard output as the one JSON object it must be.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error} in {self:#?}"))
    }

    /// Standard output as JSON objects, one per line.
    #[track_caller]
    pub(crate) fn json_lines(&self) -> Vec<Value> {
        let object = |line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error} in {line:?}"));
        self.stdout.lines().map(object).collect()
    }

    /// Standard error as the one JSON error it must be.
    #[track_caller]
    pub(crate) fn json_error(&self) -> Value {
        assert_eq!(self.stderr.lines().count(), 1, "{self:#?}");
        let all: Value = serde_json::from_str(&self.stderr).unwrap_or_else(|e| panic!("{e} in {self:#?}"));
        assert_eq!(all["v"], 1);
        assert_eq!(all["error"]["exit"], self.code.unwrap(), "{self:#?}");
        all["error"].clone()
    }
}

/// The program, with nothing of the caller's environment that it would read.
pub(crate) fn command<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_oncebox"));
    let own = |name: &str| name.starts_with("ONCEBOX_") || name == "DATABASE_URL";
    for name in std::env::vars().map(|(name, _)| name).filter(|name| own(name)) {
        command.env_remove(name);
    }
    command.args(args).stdin(Stdio::null());
    command
}

/// Runs the program to its end.
pub(crate) fn oncebox<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Ran {
    ran(&mut command(args))
}

/// Runs a command to its end.
pub(crate) fn ran(command: &mut Command) -> Ran {
    Ran::of(command.output().unwrap())
}

/// Runs another program with a script on its standard input; it must succeed.
pub(crate) fn other(program: &str, args: &[&str], input: &str) -> String {
    let mut child = Command::new(program)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{program}: {error}"));
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let ran = Ran::of(child.wait_with_output().unwrap());
    assert_eq!(ran.code, Some(0), "{program} {args:?}: {}", ran.stderr);
    ran.stdout
}

/// Whether a program that a test cannot do without is there.
pub(crate) fn has(program: &str, case: &str) -> bool {
    let is_there = Command::new(program).arg("--version").output().is_ok();
    if !is_there {
        assert!(std::env::var_os("ONCEBOX_NO_SKIP").is_none(), "{program} is not installed");
        println!("SKIP {case}: {program} is not installed");
    }
    is_there
}

/// The URL of a server, if it is there.
pub(crate) fn service(variable: &str, case: &str) -> Option<String> {
    let url = std::env::var(variable).ok().filter(|url| !url.is_empty());
    if url.is_none() {
        assert!(std::env::var_os("ONCEBOX_NO_SKIP").is_none(), "{variable} is not set");
        println!("SKIP {case}: {variable} is not set");
    }
    url
}

/// Waits until something holds, but not for ever.
#[track_caller]
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < deadline, "{what}: not within 60 s");
        std::thread::sleep(Duration::from_millis(20));
    }
}
