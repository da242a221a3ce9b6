//! A virtual host of a test's own on the shared RabbitMQ server, and what came
//! to it.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use crate::database::fresh_name;
use crate::program::{command, ran, service};

pub(crate) struct VirtualHost {
    name: String,
    /// `user:password` of an administrator.
    admin: String,
    address: String,
    api: String,
    ctl: String,
}

impl VirtualHost {
    pub(crate) fn fresh(case: &str) -> Option<Self> {
        let url = service("ONCEBOX_TEST_RABBITMQ_URL", case)?;
        let api = service("ONCEBOX_TEST_RABBITMQ_API", case)?;
        let ctl = service("ONCEBOX_TEST_RABBITMQ_CTL", case)?;
        let (admin, rest) = url.strip_prefix("amqp://").unwrap().split_once('@').unwrap();
        let address = rest.split('/').next().unwrap().to_owned();
        let host = Self { name: fresh_name(), admin: admin.to_owned(), address, api, ctl };
        host.api("PUT", &format!("vhosts/{}", host.name), "");
        host.permit(admin.split(':').next().unwrap());
        Some(host)
    }

    fn permit(&self, user: &str) {
        let all = r#"{"configure":".*","write":".*","read":".*"}"#;
        self.api("PUT", &format!("permissions/{}/{user}", self.name), all);
    }

    /// The URL of the administrator.
    pub(crate) fn url(&self) -> String {
        format!("amqp://{}@{}/{}", self.admin, self.address, self.name)
    }

    /// A user of the test's own, with this password from now on; its URL.
    pub(crate) fn user(&self, password: &str) -> String {
        let user = &self.name;
        self.api("PUT", &format!("users/{user}"), &format!(r#"{{"password":"{password}","tags":""}}"#));
        self.permit(user);
        format!("amqp://{user}:{password}@{}/{}", self.address, self.name)
    }

    /// Throws the user out; it has to log in again.
    pub(crate) fn throw_out(&self) {
        let run = ran(Command::new(&self.ctl).args(["close_all_user_connections", &self.name, "revoked"]));
        assert_eq!(run.code, Some(0), "{run:?}");
    }

    pub(crate) fn delete_queue(&self, queue: &str) {
        self.api("DELETE", &format!("queues/{}/{queue}", self.name), "");
    }

    fn api(&self, method: &str, path: &str, body: &str) {
        let answer = self.call(method, path, body);
        let status = answer.split(' ').nth(1).unwrap_or_default();
        assert!(status.starts_with('2'), "{method} {path}: {answer}");
    }

    fn call(&self, method: &str, path: &str, body: &str) -> String {
        let (user, address) = self.api.strip_prefix("http://").unwrap().split_once('@').unwrap();
        let (user, length) = (base64(user.as_bytes()), body.len());
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        write!(
            stream,
            "{method} /api/{path} HTTP/1.0\r\nHost: {address}\r\nAuthorization: Basic {user}\r\n\
             Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }
}

impl Drop for VirtualHost {
    fn drop(&mut self) {
        self.call("DELETE", &format!("vhosts/{}", self.name), "");
        self.call("DELETE", &format!("users/{}", self.name), "");
    }
}

fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let bits =
            chunk.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for place in 0..4 {
            let letter = LETTERS[(bits >> (18 - 6 * place) & 63) as usize];
            text.push(if place <= chunk.len() { letter as char } else { '=' });
        }
    }
    text
}

/// What the broker holds for the group `peek` of a channel, sorted; the group
/// begins to exist with the first call.
#[track_caller]
pub(crate) fn arrived(url: &str, channel: &str) -> Vec<u64> {
    peek(url, channel, &["--idle", "600ms"])
}

/// The same where this many are due, however slow the broker is, and no other;
/// copies of what a relay had to send twice may follow.
#[track_caller]
pub(crate) fn arrived_all(url: &str, channel: &str, count: usize) -> Vec<u64> {
    let numbers = match count {
        0 => Vec::new(),
        _ => peek(url, channel, &["--count", &count.to_string(), "--idle", "30s"]),
    };
    let more = arrived(url, channel);
    assert!(more.iter().all(|number| numbers.contains(number)), "{more:?} after {numbers:?}");
    numbers
}

#[track_caller]
fn peek(url: &str, channel: &str, more: &[&str]) -> Vec<u64> {
    let args = [&["consume", "--from", url, "--channel", channel, "--group", "peek"], more].concat();
    let run = ran(&mut command(args)).exits(0);
    let mut numbers: Vec<u64> =
        run.json_lines().iter().map(|line| line["data"]["n"].as_u64().unwrap()).collect();
    numbers.sort_unstable();
    numbers
}
