//! A client: a connection on which one request follows the other.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// What a client has read.
pub(super) struct Answer {
    pub(super) status: u16,
    head: String,
    body: Vec<u8>,
}

impl Answer {
    /// The value of a header, named in lower case.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        let mut fields = self.head.lines().filter_map(|line| line.split_once(": "));
        fields.find(|(field, _)| field.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }
}

pub(super) struct Client {
    stream: TcpStream,
    buffer: Vec<u8>,
    read: usize,
    /// Sent with every request.
    cookie: Option<String>,
    request: Vec<u8>,
}

impl Client {
    pub(super) async fn connect(address: &str) -> Self {
        let stream = TcpStream::connect(address).await.expect("the service listens");
        stream.set_nodelay(true).expect("an option");
        Self { stream, buffer: vec![0; 16 << 10], read: 0, cookie: None, request: Vec::with_capacity(2048) }
    }

    pub(super) fn set_cookie(&mut self, cookie: String) {
        self.cookie = Some(cookie);
    }

    /// Posts an order, and tells the status.
    pub(super) async fn order(&mut self, order: &str, key: Option<&str>) -> u16 {
        self.send("POST", "/orders", key, order).await;
        self.read_answer().await.0
    }

    /// Asks something else.
    pub(super) async fn ask(&mut self, method: &str, path: &str) -> Answer {
        self.send(method, path, None, "").await;
        let (status, head, end) = self.read_answer().await;
        let text = String::from_utf8_lossy(&self.buffer[..head]).into_owned();
        Answer { status, head: text, body: self.buffer[head + 4..end].to_vec() }
    }

    /// How often the handler of this service ran.
    pub(super) async fn runs(address: &str) -> usize {
        let answer = Self::connect(address).await.ask("GET", "/runs").await;
        assert_eq!(answer.status, 200);
        String::from_utf8_lossy(&answer.body).parse().expect("a number")
    }

    async fn send(&mut self, method: &str, path: &str, key: Option<&str>, body: &str) {
        let fields = [("idempotency-key", key), ("cookie", self.cookie.as_deref())];
        let length = body.len().to_string();
        let texts = [method, " ", path, " HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"];
        self.request.clear();
        let mut write = |text: &str| self.request.extend_from_slice(text.as_bytes());
        texts.into_iter().for_each(&mut write);
        for (name, value) in fields {
            if let Some(value) = value {
                [name, ": ", value, "\r\n"].into_iter().for_each(&mut write);
            }
        }
        ["content-length: ", &length, "\r\n\r\n", body].into_iter().for_each(&mut write);
        self.stream.write_all(&self.request).await.expect("the service reads");
    }

    /// The status, and where head and body end.
    async fn read_answer(&mut self) -> (u16, usize, usize) {
        self.read = 0;
        loop {
            let more = self.stream.read(&mut self.buffer[self.read..]).await.expect("the service answers");
            assert!(more > 0, "the service hung up");
            self.read += more;
            let answer = &self.buffer[..self.read];
            let Some(head) = answer.windows(4).position(|window| window == b"\r\n\r\n") else { continue };
            let text = std::str::from_utf8(&answer[..head]).expect("a head");
            let length = text.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
            let end = head + 4 + length.unwrap_or(0);
            if self.read >= end {
                let status = text.split(' ').nth(1).and_then(|status| status.parse().ok());
                return (status.expect("a status"), head, end);
            }
        }
    }
}
