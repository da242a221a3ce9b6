//! A server of a test's own, to be killed.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use oncebox_conformance::fixture::service_url;
use oncebox_conformance::server::free_port;

use super::scene::unique;

pub(super) struct Server {
    program: String,
    folder: PathBuf,
    port: u16,
    more: Vec<String>,
    child: Child,
}

impl Server {
    /// A running server with a folder of its own, or `None` if there is no program for it.
    pub(super) fn start(case: &str, more: &[&str]) -> Option<Self> {
        let program = service_url("ONCEBOX_TEST_NATS_SERVER", case)?;
        let folder = std::env::temp_dir().join(unique());
        std::fs::create_dir_all(&folder).unwrap();
        let port = free_port();
        let more: Vec<String> = more.iter().map(|&text| text.to_owned()).collect();
        let child = spawn(&program, &folder, port, &more);
        Some(Self { program, folder, port, more, child })
    }

    pub(super) fn url(&self) -> String {
        format!("nats://{}", self.address())
    }

    pub(super) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// kill -9.
    pub(super) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// The same server again, on the same port and files.
    pub(super) fn restart(&mut self) {
        self.child = spawn(&self.program, &self.folder, self.port, &self.more);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
        std::fs::remove_dir_all(&self.folder).ok();
    }
}

fn spawn(program: &str, folder: &std::path::Path, port: u16, more: &[String]) -> Child {
    let child = Command::new(program)
        .args(["-a", "127.0.0.1", "-p", &port.to_string(), "-js", "-sd"])
        .arg(folder)
        .args(more)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the server can be started");
    let since = Instant::now();
    while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(since.elapsed() < Duration::from_secs(60), "the server does not listen");
        std::thread::sleep(Duration::from_millis(10));
    }
    child
}
