//! Brokers of a test's own, for tests that kill them or make them ill.
//!
//! A server keeps all it has in a directory for temporary files, listens on
//! loopback only and ends with its [`Server`].

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

use crate::fixture::service_url;

/// No server takes longer to start or to answer.
const PATIENCE: Duration = Duration::from_secs(60);
const GLANCE: Duration = Duration::from_millis(50);

/// Which program a server is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Brand {
    /// RabbitMQ, by the script that makes a private node.
    RabbitMq,
    /// NATS with JetStream.
    Nats,
}

impl Brand {
    /// The name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::RabbitMq => "rabbitmq",
            Self::Nats => "nats",
        }
    }

    /// The environment variable that names the program.
    #[must_use]
    pub const fn variable(self) -> &'static str {
        match self {
            Self::RabbitMq => "ONCEBOX_TEST_RABBITMQ_SERVER",
            Self::Nats => "ONCEBOX_TEST_NATS_SERVER",
        }
    }
}

/// A server that can be killed and started again with what it had stored.
#[derive(Debug)]
pub struct Server {
    brand: Brand,
    program: String,
    dir: PathBuf,
    port: u16,
    child: Option<Child>,
}

impl Server {
    /// A fresh server that answers, or `None` if its program is not there.
    pub async fn start(brand: Brand, case: &str) -> Option<Self> {
        let program = service_url(brand.variable(), case)?;
        let dir = std::env::temp_dir().join(unique(brand));
        std::fs::create_dir_all(&dir).expect("a directory for the server");
        let mut server = Self { brand, program, dir, port: free_port(), child: None };
        server.resume().await;
        Some(server)
    }

    /// Starts it again where it was killed.
    pub async fn resume(&mut self) {
        let log = std::fs::File::create(self.dir.join("output")).expect("a file for what the server says");
        let mut command = Command::new(&self.program);
        match self.brand {
            Brand::RabbitMq => {
                command.arg("start").arg(&self.dir).arg(self.port.to_string());
                command.env("RABBITMQ_PASSWORD", "secret");
            }
            Brand::Nats => {
                command.args(["-a", "127.0.0.1", "-p", &self.port.to_string(), "-js", "-sd"]).arg(&self.dir);
            }
        }
        let errors = log.try_clone().expect("a second handle");
        command.stdin(Stdio::null()).stdout(log).stderr(errors).kill_on_drop(true);
        self.child = Some(command.spawn().expect("the server's program runs"));
        let is_up = async {
            while !self.answers().await {
                tokio::time::sleep(GLANCE).await;
            }
        };
        tokio::time::timeout(PATIENCE, is_up).await.expect("the server starts");
    }

    async fn answers(&self) -> bool {
        let Ok(mut stream) = TcpStream::connect(self.address()).await else { return false };
        let exchange = async {
            match self.brand {
                // It listens when all else is done, and answers with a frame that begins with 1.
                Brand::RabbitMq => {
                    let mut first = [0];
                    stream.write_all(b"AMQP\0\0\x09\x01").await.is_ok()
                        && stream.read_exact(&mut first).await.is_ok()
                        && first == [1]
                }
                // It introduces itself, and tells whether JetStream is ready.
                Brand::Nats => {
                    let mut text = vec![0; 4096];
                    let read = stream.read(&mut text).await.unwrap_or(0);
                    String::from_utf8_lossy(&text[..read]).contains("\"jetstream\":true")
                }
            }
        };
        tokio::time::timeout(PATIENCE / 10, exchange).await.unwrap_or(false)
    }

    /// `kill -9`.
    pub async fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().await.expect("the server was running");
        }
    }

    /// Returns when what was declared so far survives a kill. RabbitMQ writes
    /// its list of quorum queues up to a second late.
    pub async fn settle(&self) {
        if self.brand == Brand::RabbitMq {
            self.call("settle", &[]).await;
        }
    }

    /// What `rabbitmqctl` says.
    pub async fn ctl(&self, arguments: &[&str]) -> String {
        self.call("ctl", arguments).await
    }

    async fn call(&self, verb: &str, arguments: &[&str]) -> String {
        let mut command = Command::new(&self.program);
        command.arg(verb).arg(&self.dir).args(arguments).stdin(Stdio::null()).kill_on_drop(true);
        let output = tokio::time::timeout(PATIENCE, command.output()).await.expect("an answer in time");
        let output = output.expect("the server's program runs");
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Where it listens, for instance `127.0.0.1:5672`.
    #[must_use]
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// How clients connect.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_by(&self.address())
    }

    /// The same by way of something in between.
    #[must_use]
    pub fn url_by(&self, address: &str) -> String {
        match self.brand {
            Brand::RabbitMq => format!("amqp://oncebox:secret@{address}/%2f"),
            Brand::Nats => format!("nats://{address}"),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.start_kill().ok();
            // It would go on writing into what is about to be removed.
            for _ in 0..100 {
                if !matches!(child.try_wait(), Ok(None)) {
                    break;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        std::fs::remove_dir_all(&self.dir).ok();
    }
}

fn unique(brand: Brand) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("oncebox-{}-{}-{number}", brand.name(), std::process::id())
}

/// A port below those that outgoing connections get: it must still be free
/// when the server comes, or comes back.
#[must_use]
pub fn free_port() -> u16 {
    let nanos = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(1, |now| now.subsec_nanos());
    let mut port = 20_000 + u16::try_from((nanos / 1_000 + std::process::id() * 97) % 10_000).unwrap_or(0);
    while std::net::TcpListener::bind(("127.0.0.1", port)).is_err() {
        port += 1;
    }
    port
}
