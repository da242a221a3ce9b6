//! A daemon that runs beside its test.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;

use crate::program::{eventually, other};

/// A program at work; it ends with the test at the latest.
pub(crate) struct Process {
    child: Child,
    stdout: Arc<Mutex<Vec<String>>>,
    stderr: Arc<Mutex<Vec<String>>>,
    readers: Vec<std::thread::JoinHandle<()>>,
}

impl Process {
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (stdout, stderr) = (Arc::default(), Arc::default());
        let readers = vec![
            collect(child.stdout.take().unwrap(), Arc::clone(&stdout)),
            collect(child.stderr.take().unwrap(), Arc::clone(&stderr)),
        ];
        Self { child, stdout, stderr, readers }
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.stdout.lock().unwrap().clone()
    }

    pub(crate) fn errors(&self) -> String {
        self.stderr.lock().unwrap().join("\n")
    }

    /// Waits until standard error has this text.
    #[track_caller]
    pub(crate) fn says(&self, text: &str) {
        eventually(&format!("{text:?} on standard error"), || self.errors().contains(text));
    }

    /// Where health checks are answered.
    #[track_caller]
    pub(crate) fn health(&self) -> String {
        let mark = "health checks on http://";
        self.says(mark);
        let errors = self.errors();
        errors.split(mark).nth(1).unwrap().lines().next().unwrap().to_owned()
    }

    pub(crate) fn signal(&self, name: &str) {
        other("kill", &[name, &self.child.id().to_string()], "");
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Waits for its end; tells the exit code and what it had to say.
    #[track_caller]
    pub(crate) fn end(mut self) -> (Option<i32>, String) {
        eventually("the end of the process", || !self.is_running());
        self.readers.drain(..).for_each(|reader| reader.join().unwrap());
        (self.child.wait().unwrap().code(), self.errors())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("the process said:\n{}", self.errors());
        }
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn collect(
    from: impl std::io::Read + Send + 'static,
    into: Arc<Mutex<Vec<String>>>,
) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        BufReader::new(from).lines().map_while(Result::ok).for_each(|line| into.lock().unwrap().push(line));
    })
}

/// The status and body of a GET.
pub(crate) fn get(address: &str, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    (status, answer.split_once("\r\n\r\n").unwrap().1.to_owned())
}

/// What `/readyz` says.
pub(crate) fn readiness(address: &str) -> (u16, Value) {
    let (status, body) = get(address, "/readyz");
    (status, serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error} in {body}")))
}
