//! Servers of a test's own, to be made ill: each in a folder of its own, on a
//! port of its own, gone with the test.

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use oncebox_conformance::server::free_port;

use crate::database::fresh_folder;
use crate::program::{other, ran, service};

/// No server takes longer to start, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(90);

#[track_caller]
fn wait_for(what: &str, mut is_up: impl FnMut() -> bool) {
    let since = Instant::now();
    while !is_up() {
        assert!(since.elapsed() < PATIENCE, "{what} does not start");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn quiet(command: &mut Command) -> Child {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

fn stop(child: &mut Child, folder: &Path) {
    child.kill().ok();
    child.wait().ok();
    std::fs::remove_dir_all(folder).ok();
}

/// A certificate for `localhost` that is its own authority, as `cert.pem` and
/// `key.pem`; false if nobody can make one.
pub(crate) fn make_certificate(folder: &Path, case: &str) -> bool {
    if !crate::program::has("openssl", case) {
        return false;
    }
    let text = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"])
        .args(["-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"])
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .args(["-keyout", &text("key.pem"), "-out", &text("cert.pem")])
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    true
}

/// Somebody who speaks TLS, and nothing that matters behind it.
pub(crate) struct TlsListener {
    pub(crate) port: u16,
    child: Child,
}

impl TlsListener {
    pub(crate) fn start(folder: &Path) -> Self {
        let port = free_port();
        let child = Command::new("openssl")
            .args(["s_server", "-quiet", "-key", "key.pem", "-cert", "cert.pem", "-accept"])
            .arg(port.to_string())
            .current_dir(folder)
            // It ends when its standard input does.
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        wait_for("openssl", || TcpStream::connect(("127.0.0.1", port)).is_ok());
        Self { port, child }
    }
}

impl Drop for TlsListener {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// NATS with JetStream, for user `app`.
pub(crate) struct NatsServer {
    pub(crate) port: u16,
    folder: PathBuf,
    child: Child,
}

impl NatsServer {
    /// `jetstream` and `more` are lines of its configuration.
    pub(crate) fn start(case: &str, password: &str, jetstream: &str, more: &str) -> Option<Self> {
        let program = service("ONCEBOX_TEST_NATS_SERVER", case)?;
        let (folder, port) = (fresh_folder(), free_port());
        write_config(&folder, port, password, &[jetstream, more]);
        let child = quiet(Command::new(program).arg("-c").arg(folder.join("nats.conf")));
        wait_for("nats-server", || TcpStream::connect(("127.0.0.1", port)).is_ok());
        Some(Self { port, folder, child })
    }

    pub(crate) fn url(&self, password: &str) -> String {
        format!("nats://app:{password}@127.0.0.1:{}", self.port)
    }

    /// Another password from now on; whoever is logged in with the old one is thrown out.
    pub(crate) fn change_password(&self, password: &str) {
        write_config(&self.folder, self.port, password, &["", ""]);
        other("kill", &["-HUP", &self.child.id().to_string()], "");
    }

    /// Does something with its streams.
    pub(crate) fn manage<T>(
        &self,
        password: &str,
        act: impl AsyncFnOnce(async_nats::jetstream::Context) -> T,
    ) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let options = async_nats::ConnectOptions::with_user_and_password("app".into(), password.into());
            let client = options.connect(format!("127.0.0.1:{}", self.port)).await.unwrap();
            act(async_nats::jetstream::new(client)).await
        })
    }
}

fn write_config(folder: &Path, port: u16, password: &str, [jetstream, more]: &[&str; 2]) {
    let store = folder.to_str().unwrap();
    let text = format!(
        "listen: \"127.0.0.1:{port}\"\njetstream {{ store_dir: \"{store}\"\n{jetstream}\n}}\n\
         authorization {{ user: app, password: \"{password}\" }}\n{more}\n"
    );
    std::fs::write(folder.join("nats.conf"), text).unwrap();
}

impl Drop for NatsServer {
    fn drop(&mut self) {
        stop(&mut self.child, &self.folder);
    }
}

/// RabbitMQ, for user `oncebox` with the password `secret`.
pub(crate) struct RabbitNode {
    script: String,
    port: u16,
    folder: PathBuf,
    child: Child,
}

impl RabbitNode {
    pub(crate) fn start(case: &str) -> Option<Self> {
        let script = service("ONCEBOX_TEST_RABBITMQ_SERVER", case)?;
        let (folder, port) = (fresh_folder(), free_port());
        let mut start = Command::new(&script);
        start.arg("start").arg(folder.join("node")).arg(port.to_string()).env("RABBITMQ_PASSWORD", "secret");
        let child = quiet(&mut start);
        wait_for("RabbitMQ", || says_hello(port));
        Some(Self { script, port, folder, child })
    }

    pub(crate) fn url(&self) -> String {
        format!("amqp://oncebox:secret@127.0.0.1:{}/%2f", self.port)
    }

    pub(crate) fn ctl(&self, args: &[&str]) {
        let mut ctl = Command::new(&self.script);
        let run = ran(ctl.arg("ctl").arg(self.folder.join("node")).args(args).stdin(Stdio::null()));
        assert_eq!(run.code, Some(0), "{run:?}");
    }
}

/// Whether the server answers the protocol's name.
fn says_hello(port: u16) -> bool {
    use std::io::{Read as _, Write as _};
    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { return false };
    let mut first = [0];
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    stream.write_all(b"AMQP\0\0\x09\x01").is_ok() && stream.read_exact(&mut first).is_ok() && first == [1]
}

impl Drop for RabbitNode {
    fn drop(&mut self) {
        stop(&mut self.child, &self.folder);
    }
}

/// PostgreSQL, for the superuser `admin` with the password `secret`.
pub(crate) struct PostgresServer {
    port: u16,
    folder: PathBuf,
    child: Child,
}

impl PostgresServer {
    pub(crate) fn start(case: &str) -> Option<Self> {
        let Some(programs) = programs() else {
            assert!(std::env::var_os("ONCEBOX_NO_SKIP").is_none(), "there is no PostgreSQL to start");
            println!("SKIP {case}: there is no PostgreSQL to start");
            return None;
        };
        let (folder, port) = (fresh_folder(), free_port());
        let (data, password) = (folder.join("data"), folder.join("password"));
        std::fs::create_dir(&data).unwrap();
        std::fs::write(&password, "secret").unwrap();
        if is_root() {
            other("chown", &["-R", "postgres", folder.to_str().unwrap()], "");
        }
        let mut make = as_owner(&programs.join("initdb"));
        make.args(["-U", "admin", "-A", "scram-sha-256", "-E", "UTF8", "--no-locale", "-N", "-D"]);
        let made = ran(make.arg(&data).arg("--pwfile").arg(&password));
        assert_eq!(made.code, Some(0), "{made:?}");
        let port_text = format!("port={port}");
        let mut start = as_owner(&programs.join("postgres"));
        start.arg("-D").arg(&data).args(["-c", &port_text, "-c", "listen_addresses=127.0.0.1"]);
        let child = quiet(start.args(["-c", "unix_socket_directories="]));
        let server = Self { port, folder, child };
        wait_for("PostgreSQL", || {
            let url = server.url("admin", "secret");
            ran(Command::new("psql").args(["-XqAt", "-c", "SELECT 1", &url])).code == Some(0)
        });
        Some(server)
    }

    pub(crate) fn url(&self, role: &str, password: &str) -> String {
        format!("postgres://{role}:{password}@127.0.0.1:{}/postgres", self.port)
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        // Its processes end with it only if it is asked.
        Command::new("kill").args(["-QUIT", &self.child.id().to_string()]).status().ok();
        self.child.wait().ok();
        std::fs::remove_dir_all(&self.folder).ok();
    }
}

/// Where Debian keeps the programs of the newest version.
fn programs() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?;
    let folders = versions.filter_map(|version| Some(version.ok()?.path().join("bin")));
    folders.filter(|folder| folder.join("initdb").exists()).max()
}

fn is_root() -> bool {
    other("id", &["-u"], "").trim() == "0"
}

/// PostgreSQL refuses to run as root.
fn as_owner(program: &Path) -> Command {
    if !is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=postgres", "--regid=postgres", "--init-groups"]).arg(program).current_dir("/");
    command
}
