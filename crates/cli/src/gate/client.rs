//! A client of its own, as a check must be able to say what no good client
//! says, and to hang up when no good client does.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// No answer takes longer.
const PATIENCE: Duration = Duration::from_secs(30);

/// A request, as bytes.
#[derive(Clone, Debug)]
pub(super) struct Message {
    pub(super) method: &'static str,
    pub(super) path: String,
    pub(super) headers: Vec<(String, Vec<u8>)>,
    pub(super) body: Vec<u8>,
}

impl Message {
    pub(super) fn post(path: &str, body: &str) -> Self {
        let kind = ("content-type".to_owned(), b"application/json".to_vec());
        Self { method: "POST", path: path.to_owned(), headers: vec![kind], body: body.into() }
    }

    pub(super) fn method(mut self, method: &'static str) -> Self {
        self.method = method;
        self
    }

    pub(super) fn header(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.headers.push((name.to_owned(), value.as_ref().to_vec()));
        self
    }

    /// In place of what it was.
    pub(super) fn kind(mut self, kind: &str) -> Self {
        self.headers.retain(|(name, _)| name != "content-type");
        self.header("content-type", kind)
    }

    pub(super) fn key(self, key: &str) -> Self {
        self.header("idempotency-key", key)
    }

    pub(super) fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    pub(super) fn path(mut self, path: &str) -> Self {
        path.clone_into(&mut self.path);
        self
    }

    /// As it is sent; the last one on its connection says so.
    fn bytes(&self, host: &str, is_last: bool) -> Vec<u8> {
        let mut text = format!("{} {} HTTP/1.1\r\nhost: {host}\r\n", self.method, self.path).into_bytes();
        for (name, value) in &self.headers {
            text.extend_from_slice(name.as_bytes());
            text.extend_from_slice(b": ");
            text.extend_from_slice(value);
            text.extend_from_slice(b"\r\n");
        }
        let close = if is_last { "connection: close\r\n" } else { "" };
        text.extend_from_slice(format!("content-length: {}\r\n{close}\r\n", self.body.len()).as_bytes());
        text.extend_from_slice(&self.body);
        text
    }
}

/// What came back.
#[derive(Clone, Debug, Default)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
    /// When the first byte of the body came.
    pub(super) first_byte: Option<Duration>,
    pub(super) took: Duration,
}

impl Answer {
    pub(super) fn all(&self, name: &str) -> Vec<&str> {
        let fields = self.headers.iter().filter(|(field, _)| field.eq_ignore_ascii_case(name));
        fields.map(|(_, value)| value.as_str()).collect()
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.all(name).first().copied()
    }

    pub(super) fn is_problem(&self) -> bool {
        self.get("content-type").is_some_and(|kind| kind.starts_with("application/problem+json"))
            && serde_json::from_slice::<serde_json::Value>(&self.body).is_ok()
    }

    /// Its status, and what is said about it.
    pub(super) fn summary(&self) -> String {
        match (self.get("idempotent-replayed"), self.code()) {
            (Some(_), _) => format!("{} replayed", self.status),
            (None, code) if code.is_empty() => self.status.to_string(),
            (None, code) => format!("{} {code}", self.status),
        }
    }

    pub(super) fn code(&self) -> String {
        let problem: serde_json::Value = serde_json::from_slice(&self.body).unwrap_or_default();
        problem.get("code").and_then(|code| code.as_str()).unwrap_or_default().to_owned()
    }
}

/// Where requests go.
#[derive(Clone, Debug)]
pub(super) struct Target {
    /// `host:port`.
    pub(super) address: String,
    /// Before every path.
    pub(super) base: String,
}

impl Target {
    /// From a URL of the form `http://host:port/base`.
    pub(super) fn parse(url: &str) -> Option<Self> {
        let rest = url.strip_prefix("http://")?;
        let (address, base) = rest.split_once('/').unwrap_or((rest, ""));
        let address = if address.contains(':') { address.to_owned() } else { format!("{address}:80") };
        let base = base.trim_end_matches('/');
        let base = if base.is_empty() { String::new() } else { format!("/{base}") };
        Some(Self { address, base })
    }

    pub(super) async fn connect(&self) -> io::Result<TcpStream> {
        let stream = TcpStream::connect(&self.address).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    fn bytes(&self, message: &Message, is_last: bool) -> Vec<u8> {
        let based = message.clone().path(&format!("{}{}", self.base, message.path));
        based.bytes(&self.address, is_last)
    }

    pub(super) async fn open(&self, message: &Message) -> io::Result<TcpStream> {
        let mut stream = self.connect().await?;
        stream.write_all(&self.bytes(message, true)).await?;
        Ok(stream)
    }

    pub(super) async fn send(&self, message: &Message) -> io::Result<Answer> {
        let exchange = async {
            let started = std::time::Instant::now();
            let stream = self.open(message).await?;
            read(&mut BufReader::new(stream), started).await
        };
        timeout(PATIENCE, exchange).await.unwrap_or_else(|_| Err(io::Error::other("no answer in time")))
    }

    /// One after the other on one connection; tells how many were answered with this status.
    pub(super) async fn send_all(&self, messages: &[Message], status: u16) -> io::Result<usize> {
        let mut stream = BufReader::new(self.connect().await?);
        let mut answered = 0;
        for message in messages {
            let exchange = async {
                stream.write_all(&self.bytes(message, false)).await?;
                read(&mut stream, std::time::Instant::now()).await
            };
            let answer =
                timeout(PATIENCE, exchange).await.map_err(|_| io::Error::other("no answer in time"))?;
            answered += usize::from(answer?.status == status);
        }
        Ok(answered)
    }

    /// How often the handler ran for a case.
    pub(super) async fn count(&self, case: &str) -> io::Result<u64> {
        let question = Message::post(&format!("/_fx/count/{case}"), "").method("GET");
        let answer = self.send(&question).await?;
        let text = String::from_utf8_lossy(&answer.body).trim().to_owned();
        text.parse().map_err(|_| io::Error::other(format!("the count of a case is no number: {text:?}")))
    }
}

async fn line(stream: &mut BufReader<TcpStream>) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    loop {
        match stream.read_u8().await? {
            b'\n' => break,
            byte => line.push(byte),
        }
        if line.len() > 64 << 10 {
            return Err(io::Error::other("a line without an end"));
        }
    }
    if line.last() == Some(&b'\r') {
        line.pop();
    }
    Ok(line)
}

async fn read(stream: &mut BufReader<TcpStream>, started: std::time::Instant) -> io::Result<Answer> {
    let mut answer = Answer::default();
    loop {
        let first = String::from_utf8_lossy(&line(stream).await?).into_owned();
        let status = first.split(' ').nth(1).and_then(|status| status.parse().ok());
        answer.status =
            status.ok_or_else(|| io::Error::other(format!("no answer of HTTP/1.1: {first:?}")))?;
        answer.headers.clear();
        loop {
            let field = line(stream).await?;
            if field.is_empty() {
                break;
            }
            let field = String::from_utf8_lossy(&field).into_owned();
            if let Some((name, value)) = field.split_once(':') {
                answer.headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
            }
        }
        // 100 Continue and its like come before the answer.
        if answer.status >= 200 {
            break;
        }
    }
    if answer.get("transfer-encoding").is_some_and(|coding| coding.eq_ignore_ascii_case("chunked")) {
        loop {
            let size = String::from_utf8_lossy(&line(stream).await?).into_owned();
            let size = usize::from_str_radix(size.split(';').next().unwrap_or_default().trim(), 16);
            let size = size.map_err(|_| io::Error::other("a chunk without a size"))?;
            if size == 0 {
                while !line(stream).await?.is_empty() {}
                break;
            }
            let mut piece = vec![0; size];
            stream.read_exact(&mut piece).await?;
            answer.first_byte.get_or_insert(started.elapsed());
            answer.body.extend_from_slice(&piece);
            line(stream).await?;
        }
    } else if let Some(length) = answer.get("content-length").and_then(|length| length.parse().ok()) {
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await?;
        answer.first_byte = Some(started.elapsed());
        answer.body = body;
    } else if answer.status != 204 && answer.status != 304 {
        stream.read_to_end(&mut answer.body).await?;
    }
    answer.took = started.elapsed();
    Ok(answer)
}
